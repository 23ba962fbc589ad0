"""Ranges that fake-quantizers start with, found from what passes them: a file a method, by name."""

from __future__ import annotations

from collections.abc import Callable

from onnxq.torch.observers.base import Observer
from onnxq.torch.observers.clip_std import ClipStd
from onnxq.torch.observers.ema import EMAMinMax
from onnxq.torch.observers.kl import KL
from onnxq.torch.observers.lsq import LSQScale
from onnxq.torch.observers.lsq_plus import LSQPlus
from onnxq.torch.observers.minmax import MinMax
from onnxq.torch.observers.minmax_floor import MinMaxFloor
from onnxq.torch.observers.mse import EMAMSE, MSE
from onnxq.torch.observers.pot_mode import PoTMode
from onnxq.torch.observers.quantile import EMAQuantile
from onnxq.torch.parameters import with_parameters

__all__ = [
    "EMAMSE",
    "KL",
    "MSE",
    "OBSERVERS",
    "ClipStd",
    "EMAMinMax",
    "EMAQuantile",
    "LSQPlus",
    "LSQScale",
    "MinMax",
    "MinMaxFloor",
    "Observer",
    "PoTMode",
    "observer_named",
]

OBSERVERS: dict[str, type[Observer]] = {
    "minmax": MinMax,
    "ema": EMAMinMax,
    "quantile": EMAQuantile,
    "mse": MSE,
    "ema_mse": EMAMSE,
    "clip_std": ClipStd,
    "lsq": LSQScale,
    "lsq_plus": LSQPlus,
    "minmax_floor": MinMaxFloor,
    "pot_mode": PoTMode,
    "kl": KL,
}
"""Those that there are."""


def observer_named(text: str) -> Callable[[], Observer]:
    """What makes an observer, by its name and parameters, as in ``"quantile:quantile=0.999"``.

    Raises:
        OptionError: there is none of that name, or it has no such parameter.
    """
    return with_parameters(text, OBSERVERS, "observer")

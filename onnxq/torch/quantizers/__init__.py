"""Fake-quantizers that are trained, a file each, by name."""

from __future__ import annotations

from collections.abc import Callable

from onnxq.torch.parameters import with_parameters
from onnxq.torch.quantizers.adaround import AdaRound
from onnxq.torch.quantizers.base import Quantizer
from onnxq.torch.quantizers.dorefa import DoReFa
from onnxq.torch.quantizers.dsq import DSQ
from onnxq.torch.quantizers.ema import EMA, Fixed
from onnxq.torch.quantizers.logarithmic import Logarithmic
from onnxq.torch.quantizers.lsq import LSQ
from onnxq.torch.quantizers.pact import PACT
from onnxq.torch.quantizers.qdrop import QDrop
from onnxq.torch.quantizers.tqt import TQT

__all__ = ["QUANTIZERS", "Quantizer", "quantizer_named"]

QUANTIZERS: dict[str, type[Quantizer]] = {
    "lsq": LSQ,
    "fixed": Fixed,
    "ema": EMA,
    "pact": PACT,
    "dorefa": DoReFa,
    "dsq": DSQ,
    "tqt": TQT,
    "adaround": AdaRound,
    "qdrop": QDrop,
    "logarithmic": Logarithmic,
}
"""Those that there are."""


def quantizer_named(text: str) -> Callable[..., Quantizer]:
    """What makes a fake-quantizer, by its name and parameters, as in ``"qdrop:drop=0.3"``.

    Raises:
        OptionError: there is none of that name, or it has no such parameter.
    """
    return with_parameters(text, QUANTIZERS, "quantizer")

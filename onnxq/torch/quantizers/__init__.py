"""Fake-quantizers that are trained, a file each, by name."""

from __future__ import annotations

from onnxq.errors import OptionError
from onnxq.torch.quantizers.base import Quantizer
from onnxq.torch.quantizers.dorefa import DoReFa
from onnxq.torch.quantizers.dsq import DSQ
from onnxq.torch.quantizers.ema import EMA, Fixed
from onnxq.torch.quantizers.lsq import LSQ
from onnxq.torch.quantizers.pact import PACT
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
}
"""Those that there are."""


def quantizer_named(name: str) -> type[Quantizer]:
    """A fake-quantizer by its name.

    Raises:
        OptionError: there is none of that name.
    """
    if name not in QUANTIZERS:
        raise OptionError(f"there is no quantizer {name!r}", hint=f"There are {', '.join(sorted(QUANTIZERS))}")
    return QUANTIZERS[name]

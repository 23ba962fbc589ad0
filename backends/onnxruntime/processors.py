"""What of the costs of onnxruntime's kernels differs between processors."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CONVERSIONS_WITHOUT_VNNI", "NO_VNNI", "QUANTIZE_NS", "VNNI", "Products"]

QUANTIZE_NS = 0.22
"""Nanoseconds a QuantizeLinear takes for an element: the unit of all costs."""


@dataclass(frozen=True)
class Products:
    """Sums of 8-bit products.

    Attributes:
        mac: nanoseconds of a multiply-accumulate of an integer convolution, on the processor of the other figures.
        tap: of one tap and channel of a depthwise one.
        row: units of an output element of a matrix product.
        term: of each term of its sum.
        narrow_measured: convolutions of fewer than 16 channels, of one block of 16, of groups and of lines were
            measured one by one; else there is a coarser fit, where channels come in fours or are few.
    """

    mac: float
    tap: float
    row: float
    term: float
    narrow_measured: bool


VNNI = Products(mac=0.0029, tap=0.026, row=0.3, term=0.011, narrow_measured=False)
NO_VNNI = Products(mac=0.0062, tap=0.040, row=1.5, term=0.0305, narrow_measured=True)

CONVERSIONS_WITHOUT_VNNI = (1.6, 1.7)
"""Of an element into integers and out of them.

In profiles, the Transposes to channels last and back take as long as the QuantizeLinear and DequantizeLinear that they
stand beside, and so does what orders the channels for a float convolution. Plans by 1.6 and 1.7 were faster than by 1.3
and 1.1, the costs with VNNI: U2NetP .71 of float's time (.77), GhostNetV2 .96 (1.01), EfficientNet-Lite0 .733 (.747);
PP-OCR's detector, whose gain then is less than a tenth, stays float, .76 (.72), with 5 dB more.
"""

"""What of the costs of onnxruntime's kernels differs between processors."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QUANTIZE_NS", "WITHOUT_VNNI", "WITH_VNNI", "Products"]

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
        narrow_measured: convolutions of fewer than 16 channels, of one block of 16 and of lines were measured one by
            one; else there is a coarser fit.
    """

    mac: float
    tap: float
    row: float
    term: float
    narrow_measured: bool


WITH_VNNI = Products(mac=0.0029, tap=0.026, row=0.3, term=0.011, narrow_measured=False)
WITHOUT_VNNI = Products(mac=0.0062, tap=0.040, row=1.5, term=0.0305, narrow_measured=True)

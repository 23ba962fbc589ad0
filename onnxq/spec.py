"""How a tensor may be quantized: bits, sign, symmetry, granularity. Plain data, hashable, no arithmetic."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = [
    "FEW_BITS",
    "NEWEST_OPSET",
    "USUAL_BITS",
    "WIDE",
    "WIDE_OPSET",
    "Granularity",
    "PerBlock",
    "PerChannel",
    "PerTensor",
    "QuantSpec",
    "Scheme",
]

FEW_BITS = 4
"""Bits of weights up to which learning them gains much; at 8, next to nothing."""
USUAL_BITS = 8
"""Bits that every target has; weights of fewer lose much of what learning which way they are rounded wins back."""
WIDE = 16
"""Bits of what 8 would spoil."""
WIDE_OPSET = 21
"""From here on QuantizeLinear and DequantizeLinear have 4- and 16-bit integers."""
NEWEST_OPSET = 27
"""Up to here onnxruntime, as of 1.32, has kernels of QuantizeLinear and DequantizeLinear."""


@dataclass(frozen=True, slots=True)
class PerTensor:
    """One scale for the whole tensor."""


@dataclass(frozen=True, slots=True)
class PerChannel:
    """One scale for each index along ``axis`` (never negative)."""

    axis: int


@dataclass(frozen=True, slots=True)
class PerBlock:
    """One scale for each run of ``size`` elements along ``axis``."""

    axis: int
    size: int


Granularity = PerTensor | PerChannel | PerBlock


class Scheme(enum.Enum):
    """The shape of the grid."""

    UNIFORM = "uniform"
    LOGARITHMIC = "logarithmic"
    """Powers of ``2**(1/16)`` with a sign, 8 bits, symmetric: see :mod:`onnxq.grids.logarithmic`."""
    FLOAT8 = "float8"
    """Floating-point numbers E4M3FN times a scale, symmetric: see :mod:`onnxq.grids.float8`."""
    FLOAT4 = "float4"
    """Floating-point numbers E2M1 times a scale, symmetric, of weights in blocks: see :mod:`onnxq.grids.float4`."""


@dataclass(frozen=True, slots=True)
class QuantSpec:
    """How a tensor is quantized.

    Attributes:
        bits: width of the integer, 2 to 16, or 32 for a bias.
        signed: signed integers, else unsigned.
        symmetric: the zero point is the middle of the grid (0 if signed), else it is chosen from the range.
        granularity: per tensor, per channel or per block.
        narrow_range: the lowest integer is left out, so that the grid is symmetric (-127..127).
        power_of_two: scales are powers of two.
        range: name of the range method, with its parameter if any (``"percentile:99.99"``).
        scheme: the shape of the grid.
        reduced: of a weight: no two products with 8-bit numbers add up to more than 16 bits, see
            :mod:`onnxq.calibration.reduced`.
    """

    bits: int = 8
    signed: bool = True
    symmetric: bool = True
    granularity: Granularity = field(default_factory=PerTensor)
    narrow_range: bool = False
    power_of_two: bool = False
    range: str = "mse"
    scheme: Scheme = Scheme.UNIFORM
    reduced: bool = False

    @property
    def qmin(self) -> int:
        """The lowest integer of the grid; of 4-bit floating-point numbers in halves, :mod:`onnxq.grids.float4`."""
        if self.scheme is Scheme.FLOAT4:
            return -self.qmax
        low = -(1 << (self.bits - 1)) if self.signed else 0
        return low + 1 if self.narrow_range else low

    @property
    def qmax(self) -> int:
        """The highest integer of the grid; likewise."""
        if self.scheme is Scheme.FLOAT4:
            return 12
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def storage_bits(self) -> int:
        """Width of the ONNX integer type that holds it: 4, 8, 16 or 32."""
        return next(width for width in (4, 8, 16, 32) if self.bits <= width)

    @property
    def dtype(self) -> str:
        """Name of the ONNX type that holds it, e.g. ``"uint8"``."""
        if self.scheme is Scheme.FLOAT8:
            return "float8e4m3fn"
        if self.scheme is Scheme.FLOAT4:
            return "float4e2m1"
        return f"{'' if self.signed else 'u'}int{self.storage_bits}"

    def __str__(self) -> str:
        kind = "symmetric" if self.symmetric else "asymmetric"
        match self.granularity:
            case PerChannel(axis):
                where = f"per channel (axis {axis})"
            case PerBlock(axis, size):
                where = f"per block of {size} (axis {axis})"
            case _:
                where = "per tensor"
        sign = "float" if self.scheme in (Scheme.FLOAT8, Scheme.FLOAT4) else "int" if self.signed else "uint"
        flags = (
            ("narrow", self.narrow_range),
            ("reduced range", self.reduced),
            ("power of two", self.power_of_two),
            ("logarithmic", self.scheme is Scheme.LOGARITHMIC),
        )
        extra = "".join(f", {name}" for name, on in flags if on)
        return f"{sign}{self.bits} {kind} {where}{extra}"

"""What NVFP4 is asked to be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnxq.options.one_value import check_choice, check_flag
from onnxq.ort.fp4_in_float import BLOCK
from onnxq.spec import PerBlock, QuantSpec, Scheme
from onnxq.weight_only.recipe import Recipe

__all__ = ["METHODS", "OPSET", "Nvfp4"]

METHODS = ("rtn", "gptq")
OPSET = 23
"""The first whose DequantizeLinear takes 4-bit floating-point numbers."""


@dataclass(frozen=True)
class Nvfp4(Recipe):
    """How a model becomes NVFP4.

    Attributes:
        block: 16.
        method: ``"rtn"`` (nearest) or ``"gptq"`` (rounding that makes up for its own errors, from data).
        format: ``"nvfp4"``.
        rotate: turn the channels between layers before, see :mod:`onnxq.weight_only.rotate`.
        activations: round what weights are multiplied with as well, block by block at run time; else it stays float.

    Raises:
        OptionError: a value is none of these.
    """

    block: int = BLOCK
    format: str = "nvfp4"
    activations: bool = True

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_flag("rotate", self.rotate)
        check_flag("activations", self.activations)

    @property
    def needs_data(self) -> bool:
        """Whether there is nothing to do without data."""
        return self.activations or self.method != "rtn"

    @property
    def looks_at_data(self) -> bool:
        """Whether what weights are multiplied with is looked at."""
        return self.needs_data

    def opset(self, bits: Iterable[int] = ()) -> int:
        """The opset that the result needs; ``bits`` do not matter."""
        return OPSET

    def fitting_block(self, inputs: int, bits: int) -> int:
        """The block of any weight."""
        return self.block

    def spec(self, bits: int | None = None, block: int | None = None) -> QuantSpec:
        """How a matrix of (outputs, inputs) is quantized, whatever the arguments."""
        return QuantSpec(self.bits, granularity=PerBlock(1, self.block), scheme=Scheme.FLOAT4)

"""What weight-only quantization is asked to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnxq.errors import OptionError
from onnxq.options.one_value import check_choice, check_flag
from onnxq.spec import PerBlock, QuantSpec

__all__ = ["BITS", "FASTEST", "FORMATS", "METHODS", "TABLE_BITS", "Recipe"]

BITS = (2, 4, 8)
_BLOCKS = (16, 32, 64, 128, 256)
_SCALE_BITS = 32
_NARROW_BLOCKS = (32, 64, 128)
"""Those of 2 bits that onnxruntime 1.32 has a kernel for on a CPU; others it unpacks, 60 times slower."""
_OPSETS = {"qdq": 21, "matmulnbits": 17}
_NARROW_OPSET = 25
"""The first with integers of 2 bits, which onnx has since 1.20."""
_NARROW = ", ".join(map(str, _NARROW_BLOCKS))
_NARROW_OUTPUTS = 4
"""onnxruntime (1.26 to 1.32) makes a DequantizeLinear of 2 bits and its MatMul one MatMulNBits of wrong numbers where
the outputs, four of which share a byte, are no multiple of this."""
_NEWER_ONNX = "Install onnx 1.20 or later, or write weight_only:format=matmulnbits"
_LEAST_EXPERT_BITS = 4
METHODS = ("rtn", "gptq", "hqq")
FORMATS = ("qdq", "matmulnbits")
ACCURACY_LEVELS = (0, 1, 4)
FASTEST = 4
TABLE_BITS = 8
"""Bits of a table that rows are picked from, where no others are asked for: no sum evens out what rounding does to a
row, and all behind it sees that. In 4 bits the tables of a language model cost more accuracy than all of its products.
Tables of matrices, experts say, are multiplied with, but onnxruntime 1.32 unpacks 4 bits half as fast as 8: a matrix of
1024 x 2048 takes it twice as long as float so, and as long with 8."""


@dataclass(frozen=True)
class Recipe:
    """How weights are quantized.

    Attributes:
        bits: 4, 8 or 2; tables that rows are picked from take 8 where no others are asked for, and what chooses
            experts; some products take 4 in place of 2, see :meth:`fitting_bits`.
        block: weights that share a scale: 16, 32, 64, 128 or 256 along the input axis.
        symmetric: signed integers around 0; else a zero point for each block.
        method: ``"rtn"`` (nearest), ``"gptq"`` (rounding that makes up for its own errors, from data) or ``"hqq"``
            (scales and zero points that ignore outliers, without data).
        format: ``"qdq"`` (DequantizeLinear of opset 21 with blocks, of opset 25 for 2 bits) or ``"matmulnbits"``
            (onnxruntime's com.microsoft::MatMulNBits, GatherBlockQuantized and QMoE).
        accuracy_level: of MatMulNBits: 4 lets onnxruntime round the activations to 8 bits on the way, as it does with
            qdq; 0 or 1 multiplies in float32, which with 8 bits is about three times slower than the float model.
        avg_bits: a budget: bits on average of the weights that are multiplied with, each of which takes one of
            :attr:`widths`; 0: all take ``bits``.
        rotate: turn the channels between layers before, see :mod:`onnxq.weight_only.rotate`.

    Raises:
        OptionError: a value is none of these.
    """

    bits: int = 4
    block: int = 32
    symmetric: bool = True
    method: str = "rtn"
    format: str = "qdq"
    accuracy_level: int = FASTEST
    avg_bits: float = 0.0
    rotate: bool = False

    def __post_init__(self) -> None:
        _check_number("bits", self.bits, BITS)
        _check_number("block", self.block, _BLOCKS)
        _check_number("accuracy_level", self.accuracy_level, ACCURACY_LEVELS)
        check_flag("symmetric", self.symmetric)
        check_flag("rotate", self.rotate)
        check_choice("method", self.method, METHODS)
        check_choice("format", self.format, FORMATS)
        if self.accuracy_level != FASTEST and self.format != "matmulnbits":
            raise OptionError(
                "only format=matmulnbits has it",
                where="accuracy_level",
                hint="For qdq, onnxruntime decides when it loads the model (session.qdq_matmulnbits_accuracy_level)",
            )
        self.require_kernel(self.bits, "bits")
        least, most = self.widths[0], self.widths[-1]
        if self.avg_bits and not least <= self.avg_bits <= most:
            raise OptionError(
                f"{self.avg_bits:g} is not from {least} to {most}",
                where="avg_bits",
                hint=self._way_to_two_bits() if BITS[0] <= self.avg_bits < least else None,
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Bits that a weight may take under a budget; 2 where it asks for fewer than 4: onnxruntime 1.23 lacks them."""
        narrow = self.block in _NARROW_BLOCKS and not self._lacks_two_bits
        return BITS if narrow and self.avg_bits < BITS[1] else BITS[1:]

    def require_kernel(self, bits: int | None, where: str) -> None:
        """Refuse 2 bits where nothing multiplies with them.

        Args:
            bits: of a weight, None for those of the recipe.
            where: they were asked for.

        Raises:
            OptionError: they are 2 in another block than onnxruntime has a kernel for, or for an onnx without them.
        """
        if bits != BITS[0]:
            return
        if self._lacks_two_bits:
            raise OptionError(
                "the onnx installed has no integers of 2 bits",
                where=where,
                hint=_NEWER_ONNX,
            )
        if self.block not in _NARROW_BLOCKS:
            raise OptionError(
                f"onnxruntime does not multiply with 2 bits in blocks of {self.block}",
                where=where,
                hint=f"It takes blocks of {_NARROW}",
            )

    @property
    def _lacks_two_bits(self) -> bool:
        return self.format != "matmulnbits" and not _onnx_has_two_bits()

    def _way_to_two_bits(self) -> str:
        blocks = [] if self.block in _NARROW_BLOCKS else [f"Blocks of {_NARROW} have 2 bits as well"]
        return ". ".join([*blocks, *([_NEWER_ONNX] if self._lacks_two_bits else [])])

    def opset(self, bits: Iterable[int] = ()) -> int:
        """The opset that the result needs.

        Args:
            bits: that weights take, or may be given.
        """
        return _NARROW_OPSET if self.format == "qdq" and BITS[0] in bits else _OPSETS[self.format]

    @property
    def looks_at_data(self) -> bool:
        """Whether what weights are multiplied with is looked at, where there is data."""
        return self.method != "rtn"

    @property
    def quick_tables(self) -> bool:
        """Whether whole matrices of a table are unpacked about as fast as float ones are copied.

        onnxruntime 1.31, a matrix of 128 x 256 for each of 16 rows, against a float Gather with its MatMul: twice the
        time for GatherBlockQuantized of 8 bits, more than ten times for that of 4 and for DequantizeLinear with blocks.
        """
        return self.format == "matmulnbits"

    @property
    def packed_experts(self) -> bool:
        """Whether MoE become QMoE, which rounds activations to 8 bits where weights have 8."""
        return self.format == "matmulnbits" and (self.bits < TABLE_BITS or self.accuracy_level == FASTEST)

    @property
    def expert_bits(self) -> int:
        """Bits of the weights of QMoE, which has 4 and 8 on a CPU."""
        return max(self.bits, _LEAST_EXPERT_BITS)

    @property
    def either_sign(self) -> bool:
        """Whether scales may lie below 0: MatMulNBits takes them, not every runtime's DequantizeLinear does."""
        return self.symmetric and self.format == "matmulnbits"

    def fitting_bits(self, outputs: int, bits: int) -> int:
        """The bits of a product's weight: those asked for, or 4 in place of 2 where onnxruntime gets 2 wrong.

        It does so in the format qdq where the outputs are no multiple of 4; MatMulNBits as written by us is right.

        Args:
            outputs: of the weight.
            bits: asked for.
        """
        wrong = bits == BITS[0] and self.format != "matmulnbits" and outputs % _NARROW_OUTPUTS
        return BITS[1] if wrong else bits

    def fitting_table_bits(self, inputs: int, bits: int) -> int:
        """The bits of a table that rows are picked from: those asked for, or 8 where they have no operator.

        ONNX's Gather picks no integers narrower than a byte; GatherBlockQuantized has 4 bits, two of which share a
        byte of one row, see also :meth:`misreads_zeros`.

        Args:
            inputs: numbers of a row.
            bits: asked for.
        """
        halves = self.format == "matmulnbits" and inputs % 2 == 0 and not self.misreads_zeros(inputs)
        return BITS[1] if bits == BITS[1] and halves else TABLE_BITS

    def misreads_zeros(self, inputs: int) -> bool:
        """Whether onnxruntime gets a table of 4 bits wrong for its zero points, two of which share a byte of one row.

        GatherBlockQuantized of 1.23 to 1.26 (1.27 no longer) reads on in that byte where a row ends in the midst of it.

        Args:
            inputs: numbers of a row.
        """
        return not self.symmetric and -(-inputs // self.block) % 2 == 1

    def fitting_block(self, inputs: int, bits: int) -> int:
        """The block of a product's weight: that asked for, or a smaller one where its last block would not be full.

        MatMulNBits fills such a block up: what takes the fewest bytes is taken. Not every runtime reads it of
        DequantizeLinear (OpenVINO 2026.4, which takes 4 and 8 bits, does not): the largest one that divides the inputs
        is taken, if any does.

        Args:
            inputs: of the weight.
            bits: that it takes.
        """
        sizes = [size for size in reversed(_NARROW_BLOCKS if bits == BITS[0] else _BLOCKS) if size <= self.block]
        if self.format != "matmulnbits":
            return next((size for size in sizes if inputs % size == 0), self.block)
        zero = 0 if self.symmetric else bits
        return min(sizes, key=lambda size: -(-inputs // size) * (size * bits + zero + _SCALE_BITS))

    def spec(self, bits: int | None = None, block: int | None = None) -> QuantSpec:
        """How a matrix of (outputs, inputs) is quantized.

        Args:
            bits: other than the recipe's.
            block: other than the recipe's.
        """
        return QuantSpec(bits or self.bits, self.symmetric, self.symmetric, PerBlock(1, block or self.block))


def _onnx_has_two_bits() -> bool:
    import onnx

    return hasattr(onnx.TensorProto, "INT2")


def _check_number(name: str, value: object, known: tuple[int, ...]) -> None:
    if isinstance(value, bool) or value not in known:
        raise OptionError(f"{value!r} is not one of {', '.join(map(str, known))}", where=name)

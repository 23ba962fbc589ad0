"""Which constants are stored as integers in blocks, and why the others are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.errors import OptionError
from onnxq.graph.recognition.region import ELEMENTWISE
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant
from onnxq.integer_operators import QUANTIZERS
from onnxq.options import Options
from onnxq.options.selection import Selection
from onnxq.plan import Kept
from onnxq.planning.weightless import ALREADY, reads_quantized, why_no_weights
from onnxq.weight_only.recipe import BITS, TABLE_BITS, Recipe

__all__ = ["EXPERTS", "Matrix", "check_overrides", "find"]

_LEAST = 1024
"""Numbers of a weight that is worth a node of its own."""
_LEAST_INPUTS = 16
_STORED = ("MatMul", "Gemm", "Gather")
_EMBEDS = ("EmbedLayerNormalization",)
_WHOLE = {"Attention": {1: 0}, "EmbedLayerNormalization": {2: 1, 3: 1, 4: 1}, "MoE": {2: 1, 4: 1, 6: 1}}
"""Operators of onnxruntime's own → positions of weights → axis of inputs: 0 for the first, 1 for the last one."""
EXPERTS = (2, 4)
"""Positions of the weights of a MoE that QMoE has as well."""
_MOST_CHOICES = 1024
"""Outputs of a product that chooses experts; a vocabulary has more."""
_PASSING = frozenset({"Add", "Cast", "Div", "Flatten", "Identity", "Mul", "Reshape", "Sigmoid", "Softmax"})
_UNFIT = f"its weights have fewer than {_LEAST} numbers, or are no float32 constants of whole blocks of {{block}}"


@dataclass(frozen=True, eq=False)
class Matrix:
    """A constant matrix and the nodes that read it in one way.

    Attributes:
        value: the constant, float32, two axes; a table may have more, of which all but the last count rows.
        axis: along which inputs lie, and blocks run: 0 for MatMul (K, N), 1 for Gather's table and Gemm's (N, K).
        nodes: MatMul and Gemm that multiply with it, or Gather that pick rows of it.
        gathered: whether rows of it are picked.
        whole: whether its readers take floats alone, so that it is unpacked as a whole when the model is loaded.
        experts: whether its readers are MoE that become QMoE.
        chooses: whether the largest numbers of the product are picked, those of a router of experts say.
        asked: bits that an override asks for.
        chosen: bits that it was given under a budget.
        tied: name of the table that holds the same numbers, whose integers it multiplies with; empty: none.
    """

    value: ir.Value
    axis: int
    nodes: Sequence[ir.Node]
    gathered: bool
    whole: bool = False
    experts: bool = False
    chooses: bool = False
    asked: int | None = None
    chosen: int | None = None
    tied: str = ""

    @property
    def multiplied(self) -> bool:
        """Whether its readers are MatMul and Gemm, which multiply with it as it is stored."""
        return not (self.gathered or self.whole or self.experts)

    def bits(self, recipe: Recipe) -> int:
        """Bits that it takes: 8 where no sum evens out what rounding does, and where 4 could not be unpacked.

        Where it is multiplied with, others than those asked for or chosen if they do not fit, see
        :meth:`onnxq.weight_only.recipe.Recipe.fitting_bits`.
        """
        too_old = self.whole and recipe.format != "qdq"  # its opset has no Cast of 4 bits
        if self.gathered or self.tied or too_old:
            return TABLE_BITS
        if self.experts:
            return recipe.expert_bits
        bits = self.asked or self.chosen or (TABLE_BITS if self.chooses else recipe.bits)
        return recipe.fitting_bits(self.shape[0], bits) if self.multiplied else bits

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        *rows, columns = _shape(self.value)
        return (columns, math.prod(rows)) if self.axis == 0 else (math.prod(rows), columns)

    @property
    def rows(self) -> tuple[int, ...]:
        """Sizes of all axes but the last."""
        return _shape(self.value)[:-1]

    def block(self, recipe: Recipe) -> int:
        """Inputs that share a scale."""
        return recipe.fitting_block(self.shape[1], self.bits(recipe)) if self.multiplied else recipe.block


def find(model: ir.Model, options: Options, recipe: Recipe) -> tuple[list[Matrix], list[Kept]]:
    """The matrices of a model, in the order of their first readers, and the nodes whose weights stay float.

    Args:
        model: normalized; left as it is.
        options: ``exclude``, ``include``, ``override`` and ``providers`` count.
        recipe: how they are to be stored.

    Raises:
        OptionError: a pattern matches nothing, or an override asks for what weights in blocks do not have, or
            names none.
    """
    nodes = list(all_nodes(model))
    check_overrides(options)
    for pattern, change in options.override:
        recipe.require_kernel(change.weight_bits, f"override {pattern!r}")
    asked = Options(exclude=options.exclude, include=options.include, override=options.override)
    selection = Selection(model, nodes, asked)
    block, on_cpu = recipe.block, all(name.lower().startswith("cpu") for name in options.providers)
    found: dict[tuple[ir.Value, int, bool, bool, bool, bool, int | None], list[ir.Node]] = {}
    kept: list[Kept] = []
    for node in nodes:
        if node.op_type in ELEMENTWISE | QUANTIZERS:
            continue
        if not (_is_given(node) or any(_is_weight(v) for v in node.inputs)):
            continue
        if node.domain == "com.microsoft" and node.op_type in _WHOLE:
            fit = {p: axis for p, axis in _WHOLE[node.op_type].items() if _fits(node, p, axis, block)}
            reason = selection.why_out(node) or (None if fit else _UNFIT.format(block=block))
            wanted = {p: selection.weight_bits(node, value) for p in fit if (value := node.inputs[p]) is not None}
            experts = recipe.packed_experts and on_cpu and _fits_qmoe(node) and fit.keys() >= set(EXPERTS)
            experts = experts and all(wanted[p] in (None, recipe.expert_bits) for p in EXPERTS)
            for position, axis in fit.items() if reason is None else ():
                value = node.inputs[position]
                assert value is not None
                key = (value, axis, node.op_type in _EMBEDS, not experts, experts, False, wanted[position])
                readers = found.setdefault(key, [])
                readers += [] if node in readers else [node]
            kept += [] if reason is None else [Kept(node.name or "", node.op_type, reason)]
            continue
        reason = _refusal(node, selection, deep=recipe.quick_tables)
        if reason:
            kept.append(Kept(node.name or "", node.op_type, reason))
            continue
        gathered = node.op_type == "Gather"
        value = node.inputs[0 if gathered else 1]
        assert value is not None
        axis = 1 if gathered else int(node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1)
        chooses = not gathered and _is_picked_from(node, value, axis)
        bits_asked = selection.weight_bits(node, value)
        found.setdefault((value, axis, gathered, False, False, chooses, bits_asked), []).append(node)
    _require_weights(model, [(node, key[0]) for key, group in found.items() for node in group], options)
    return [
        Matrix(value, axis, group, gathered, whole, experts, chooses, bits)
        for (value, axis, gathered, whole, experts, chooses, bits), group in found.items()
    ], kept


def check_overrides(options: Options) -> None:
    """Refuse overrides of what weights in blocks do not have.

    Raises:
        OptionError: one asks for something else than float, or 2, 4 or 8 bits.
    """
    for pattern, change in options.override:
        where, hint = f"override {pattern!r}", "It takes PATTERN=weight_bits=2, 4 or 8, or PATTERN=float"
        if change.weight_bits not in (None, *BITS):
            raise OptionError(f"{change.weight_bits} is not one of {', '.join(map(str, BITS))}", where=where, hint=hint)
        for name in ("act_bits", "symmetric", "per_channel", "range"):
            if getattr(change, name) is not None:
                raise OptionError(f"{name} has no effect on the algorithm 'weight_only'", where=where, hint=hint)


def _require_weights(model: ir.Model, reads: Sequence[tuple[ir.Node, ir.Value]], options: Options) -> None:
    for pattern, change in options.override:
        selection = Selection(model, (), Options(override=((pattern, change),)))
        if change.weight_bits and not any(selection.weight_bits(node, value) for node, value in reads):
            raise OptionError(
                "it names no weight that is stored in blocks",
                where=f"override {pattern!r}",
                hint="Name the node that multiplies with it, or the weight",
            )


def _fits_qmoe(node: ir.Node) -> bool:
    """Whether QMoE of onnxruntime's CPU computes what a MoE does: it always normalizes, and gates by SwiGLU alone."""
    number = node.attributes.get_int
    plain = number("normalize_routing_weights", 0) == 1 and number("use_sparse_mixer", 0) == 0
    return node.op_type == "MoE" and plain and not any(v is not None for v in node.inputs[max(EXPERTS) + 2 :])


def _is_picked_from(node: ir.Node, weight: ir.Value, axis: int) -> bool:
    """Whether the largest results of a product choose what is computed: TopK picks them, or a MoE its experts."""
    if _shape(weight)[1 - axis] > _MOST_CHOICES:
        return False
    waiting = list(node.outputs)
    for value in waiting:
        for reader, index in value.uses():
            if (reader.op_type, index) in (("TopK", 0), ("MoE", 1), ("QMoE", 1)):
                return True
            others = (v for i, v in enumerate(reader.inputs) if i != index and v is not None)
            if reader.op_type in _PASSING and reader.outputs[0] not in waiting and all(map(is_constant, others)):
                waiting.append(reader.outputs[0])
    return False


def _fits(node: ir.Node, position: int, axis: int, block: int) -> bool:
    """Whether a weight of an operator of onnxruntime's is a constant of whole blocks, and worth it."""
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None or not _is_weight(value) or not is_constant(value) or value.is_graph_output():
        return False
    shape = _shape(value)
    single = value.const_value is not None and value.const_value.dtype == ir.DataType.FLOAT
    return single and math.prod(shape) >= _LEAST and shape[0 if axis == 0 else -1] % block == 0


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a float constant of two axes or more; vectors and scalars are not worth a word."""
    if value is None or value.const_value is None or not value.is_initializer():
        return False
    floats = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
    return value.const_value.dtype in floats and sum(n > 1 for n in _shape(value)) > 1


def _is_given(node: ir.Node) -> bool:
    """Whether the weight of a product, or a table, is quantized in the model given."""
    position = 0 if node.op_type == "Gather" else 1
    return node.op_type in _STORED and reads_quantized(node, slice(position, position + 1))


def _refusal(node: ir.Node, selection: Selection, *, deep: bool) -> str | None:
    if (why := selection.why_out(node)) is not None:
        return why
    if why := why_no_weights(node) if node.op_type not in _STORED else None:
        return why
    if node.op_type not in _STORED or node.domain != "":
        return "only weights of MatMul, Gemm and Gather are stored in blocks"
    value = node.inputs[0 if node.op_type == "Gather" else 1]
    if _is_given(node):
        return ALREADY
    if not _is_weight(value) or value is None or value.const_value is None:
        return "its constant is the left operand"
    if not is_constant(value):
        return "its weight is an input that may be overridden"
    if value.is_graph_output():
        return "its weight is an output of the model"
    if value.const_value.dtype != ir.DataType.FLOAT:
        return f"its weight is {value.const_value.dtype.name.lower()}"
    shape = _shape(value)
    if node.op_type == "Gather" and len(shape) > 2 and not deep:
        return (
            f"its table has {len(shape)} axes: unpacking blocks of matrices would take longer than all else. "
            "weight_only:format=matmulnbits stores them, and so does --algorithm dynamic"
        )
    if len(shape) != 2 and node.op_type != "Gather":
        return f"its weight has {len(shape)} axes, not 2"
    if math.prod(shape) < _LEAST:
        return f"its weight has fewer than {_LEAST} numbers"
    attributes = node.attributes
    if node.op_type == "Gather":
        inputs = shape[-1]
        if attributes.get_int("axis", 0) not in (0, -len(shape)):
            return "it picks columns"
    else:
        inputs = shape[1] if node.op_type == "Gemm" and attributes.get_int("transB", 0) == 1 else shape[0]
        data = node.inputs[0]
        if data is None or is_constant(data) or (data.shape is not None and len(data.shape) < 2):
            return "its data has fewer than 2 axes, or is constant"
    if inputs < _LEAST_INPUTS:
        return f"its weight has {inputs} inputs, fewer than the smallest block"
    if node.op_type == "Gemm" and attributes.get_int("transA", 0) == 1:
        return "it transposes its data"
    if node.op_type == "Gemm" and (attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)) != (1, 1):
        return "its alpha or beta is not 1"
    return None


def _shape(value: ir.Value) -> tuple[int, ...]:
    assert value.const_value is not None
    return tuple(value.const_value.shape.numpy())

"""Which constants are stored as integers in blocks, and why the others are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from onnxq.errors import OptionError
from onnxq.graph.domains import MICROSOFT
from onnxq.graph.recognition.region import ELEMENTWISE
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import input_of, is_constant
from onnxq.integer_operators import QUANTIZERS
from onnxq.options import Options
from onnxq.options.selection import Selection
from onnxq.ort.version import at_least
from onnxq.plan import Kept
from onnxq.weight_only.parted import can_be_parted
from onnxq.weight_only.recipe import BITS, TABLE_BITS, Recipe
from onnxq.weight_only.why_float import LEAST, is_given, is_weight, shape_of, why_float

__all__ = ["EXPERTS", "Matrix", "check_overrides", "find"]

_EMBEDS = ("EmbedLayerNormalization",)
_WHOLE = {"Attention": {1: 0}, "EmbedLayerNormalization": {2: 1, 3: 1, 4: 1}, "MoE": {2: 1, 4: 1, 6: 1}}
"""Operators of onnxruntime's own → positions of weights → axis of inputs: 0 for the first, 1 for the last one."""
EXPERTS = (2, 4)
"""Positions of the weights of a MoE that QMoE has as well."""
_MOST_CHOICES = 1024
"""Outputs of a product that chooses experts; a vocabulary has more."""
_PASSING = frozenset({"Add", "Cast", "Div", "Flatten", "Identity", "Mul", "Reshape", "Sigmoid", "Softmax"})
_UNFIT = f"its weights have fewer than {LEAST} numbers, or are no float32 constants of whole blocks of {{block}}"


@dataclass(frozen=True, eq=False)
class Matrix:
    """A constant matrix and the nodes that read it in one way.

    Attributes:
        value: the constant, float32, two axes; a table may have more, of which all but the last count rows.
        axis: along which inputs lie, and blocks run: 0 for MatMul (K, N), 1 for Gather's table and Gemm's (N, K).
        nodes: MatMul, Gemm and Attention that multiply with it, or Gather that pick rows of it.
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
        """Whether its readers are MatMul, Gemm or parted Attention, which multiply with it as it is stored."""
        return not (self.gathered or self.whole or self.experts)

    @property
    def free(self) -> bool:
        """Whether a budget gives it bits: it is multiplied with, no override asks for some, and it chooses nothing."""
        return self.multiplied and self.asked is None and not self.chooses

    def bits(self, recipe: Recipe) -> int:
        """Bits that it takes: 8 where no sum evens out what rounding does, and where 4 could not be unpacked.

        Others than those asked for or chosen if they do not fit, see
        :meth:`onnxq.weight_only.recipe.Recipe.fitting_bits` and
        :meth:`onnxq.weight_only.recipe.Recipe.fitting_table_bits`.
        """
        too_old = self.whole and recipe.format != "qdq"  # its opset has no Cast of 4 bits
        if too_old:
            return TABLE_BITS
        if self.gathered or self.tied:
            wanted = self.asked or TABLE_BITS
            return wanted if self.whole else recipe.fitting_table_bits(self.shape[1], wanted)
        if self.experts:
            return recipe.expert_bits
        bits = self.asked or self.chosen or (TABLE_BITS if self.chooses else recipe.bits)
        return recipe.fitting_bits(self.shape[0], bits) if self.multiplied else bits

    def fewest_bits(self, recipe: Recipe) -> int:
        """Bits that it takes, or under a budget the fewest that it may be given."""
        if not (recipe.avg_bits and self.free):
            return self.bits(recipe)
        return recipe.fitting_bits(self.shape[0], min(recipe.widths))

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        *rows, columns = shape_of(self.value)
        return (columns, math.prod(rows)) if self.axis == 0 else (math.prod(rows), columns)

    @property
    def rows(self) -> tuple[int, ...]:
        """Sizes of all axes but the last."""
        return shape_of(self.value)[:-1]

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
    on_cpu = all(name.lower().startswith("cpu") for name in options.providers)
    found: dict[_Use, list[ir.Node]] = {}
    kept: list[Kept] = []
    for node in nodes:
        if node.op_type in ELEMENTWISE | QUANTIZERS or not (is_given(node) or any(map(is_weight, node.inputs))):
            continue
        of_microsoft = node.domain == MICROSOFT and node.op_type in _WHOLE
        uses = (
            _unpacked(node, selection, recipe, on_cpu=on_cpu) if of_microsoft else _multiplied(node, selection, recipe)
        )
        if isinstance(uses, str):
            kept.append(Kept(node.name or "", node.op_type, uses))
            continue
        for use in uses:
            readers = found.setdefault(use, [])
            readers += [] if node in readers else [node]
    _require_weights(model, [(node, use.value) for use, group in found.items() for node in group], options)
    return [Matrix(nodes=group, **use._asdict()) for use, group in found.items()], kept


class _Use(NamedTuple):
    """A constant and how it is read, see :class:`Matrix`: nodes that read it alike share what is stored."""

    value: ir.Value
    axis: int
    gathered: bool = False
    whole: bool = False
    experts: bool = False
    chooses: bool = False
    asked: int | None = None


def _unpacked(node: ir.Node, selection: Selection, recipe: Recipe, *, on_cpu: bool) -> list[_Use] | str:
    """What an operator of onnxruntime's own reads, which takes floats or packed experts, or why it stays float."""
    fit = {p: axis for p, axis in _WHOLE[node.op_type].items() if _fits(node, p, axis, recipe.block)}
    if reason := selection.why_out(node) or (None if fit else _UNFIT.format(block=recipe.block)):
        return reason
    values = {position: value for position in fit if (value := node.inputs[position]) is not None}
    asked = {position: selection.weight_bits(node, value) for position, value in values.items()}
    kernel = on_cpu and at_least(1, 24)  # 1.23 wants other shapes
    experts = recipe.packed_experts and kernel and _fits_qmoe(node) and fit.keys() >= set(EXPERTS)
    experts = experts and all(asked[position] in (None, recipe.expert_bits) for position in EXPERTS)
    gathered = node.op_type in _EMBEDS
    parted = node.op_type == "Attention" and recipe.format == "matmulnbits" and kernel and can_be_parted(node)
    whole = not (experts or parted)
    return [_Use(v, fit[p], gathered, whole=whole, experts=experts, asked=asked[p]) for p, v in values.items()]


def _multiplied(node: ir.Node, selection: Selection, recipe: Recipe) -> list[_Use] | str:
    """The weight that a product or a Gather reads, or why it stays float."""
    if reason := why_float(node, selection, deep=recipe.quick_tables):
        return reason
    gathered = node.op_type == "Gather"
    value = node.inputs[0 if gathered else 1]
    assert value is not None
    axis = 1 if gathered else int(node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1)
    chooses = not gathered and _is_picked_from(node, value, axis)
    return [_Use(value, axis, gathered, chooses=chooses, asked=selection.weight_bits(node, value))]


def check_overrides(options: Options) -> None:
    """Refuse overrides of what weights in blocks do not have.

    Raises:
        OptionError: one asks for something else than float, or 2, 4 or 8 bits.
    """
    for pattern, change in options.override:
        where, hint = f"override {pattern!r}", "It takes PATTERN=weight_bits=2, 4 or 8, or PATTERN=float"
        if change.weight_bits not in (None, *BITS):
            raise OptionError(f"{change.weight_bits} is not one of {', '.join(map(str, BITS))}", where=where, hint=hint)
        for name in ("act_bits", "symmetric", "per_channel", "weight_symmetric", "range"):
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
    if shape_of(weight)[1 - axis] > _MOST_CHOICES:
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
    value = input_of(node, position)
    if value is None or not is_weight(value) or not is_constant(value) or value.is_graph_output():
        return False
    shape = shape_of(value)
    single = value.const_value is not None and value.const_value.dtype == ir.DataType.FLOAT
    return single and math.prod(shape) >= LEAST and shape[0 if axis == 0 else -1] % block == 0

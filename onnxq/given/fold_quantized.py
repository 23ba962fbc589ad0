"""What scales channels behind a layer whose weight is quantized folds into the integers and scales of that weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import set_constant
from onnxq.graph.layer import Channels, Layer, Refusal, Shared, find_layer
from onnxq.graph.namer import Namer
from onnxq.graph.note import NOT_FOLDED, Note
from onnxq.graph.passes.affine import fold_into_previous
from onnxq.graph.passes.fold_affine import ARITHMETIC, arithmetic_behind
from onnxq.graph.passes.fold_batchnorm import batchnorm_affine
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.passes.tied_tables import tables_of
from onnxq.graph.traverse import all_graphs, describe
from onnxq.graph.values import constant_array
from onnxq.plan import Plan, Site
from onnxq.qparams import QParams, dequantize, fake_quantize, quantize
from onnxq.ranged import MIN_SCALE
from onnxq.spec import PerBlock, PerChannel, PerTensor, Scheme

__all__ = ["fold_into_quantized"]

_NORM = "BatchNormalization"
_PASS = "fold_into_quantized"
_NO_POWERS = "its scales would no longer be powers of two"
_BIAS = 2
"""Position of a layer's bias."""


def fold_into_quantized(
    model: ir.Model,
    plan: Plan,
    numbers: Mapping[str, QParams],
    *,
    arithmetic: bool = False,
    powers_of_two: bool = False,
) -> tuple[Plan, dict[str, QParams], list[Note]]:
    """Fold batch normalizations into quantized layers before them, exactly.

    With ``g = gamma / sqrt(variance + epsilon)`` the scale of channel c becomes ``s |g|``; where g is negative, the
    integers change their sign (asymmetric: ``q' = qmin + qmax - q``, and the zero point with them). No integer is
    rounded anew, so the layer computes what it did up to float32 rounding. A scale of the whole tensor becomes one a
    channel unless all ``|g|`` are equal. Where ``s |g|`` is 0 or no normal number, the channel holds zeros on its old
    scale.

    Not folded, with a note: what :func:`onnxq.graph.passes.fold_batchnorm.fold_batchnorm` refuses, a quantizer between
    layer and normalization, a scale a block, scales that are no powers of two or no float32 afterwards, and symmetric
    integers at the lowest end of a full range in a channel whose sign changes.

    Args:
        model: float, its quantizers taken out; changed in place.
        plan: with the sites that the quantizers were.
        numbers: of the sites.
        arithmetic: fold also per-channel arithmetic with constants, that :func:`onnxq.graph.passes.fold_affine` folds
            into float layers; where a scale of the whole tensor stays one, and no quantizer is between.
        powers_of_two: the target's weights have no other scales: those that are such stay such.

    Returns:
        The plan and the numbers with the sites of the folded layers changed, and notes.
    """
    namer, sites, notes, norms, others = Namer(model), _Sites(plan, numbers, powers_of_two), [], 0, 0
    tables, kinds = tables_of(model), (_NORM, *(ARITHMETIC if arithmetic else ()))
    for graph in all_graphs(model):
        for node in list(graph):
            if node.op_type not in kinds or node.domain != "":
                continue
            try:
                if node.op_type == _NORM:
                    norms += _fold_norm(node, namer, sites)
                else:
                    others += _fold_arithmetic(node, namer, sites, tables)
            except Shared:
                continue
            except Refusal as reason:
                notes.append(Note(_PASS, node.name or "", f"{NOT_FOLDED}: {reason}"))
    for count, what in ((others, "element-wise nodes"), (norms, "batch normalizations")):
        if count:
            notes.insert(0, Note(_PASS, "", f"{count} {what} folded into quantized weights"))
    if norms or others:
        remove_dead(model)
    return replace(plan, sites=tuple(sites.by_name.values())), sites.numbers, notes


class _Sites:
    """The sites of a plan and their numbers, by name, by what reads them and by tensor."""

    def __init__(self, plan: Plan, numbers: Mapping[str, QParams], powers_of_two: bool) -> None:
        self.powers_of_two = powers_of_two
        self.by_name = {site.name: site for site in plan.sites}
        self.numbers = dict(numbers)
        self.tensors = {site.tensor for site in plan.sites}
        self._weights: dict[str, str] = {}
        self._biases: dict[str, list[str]] = {}
        for site in plan.sites:
            for edge in site.readers:
                if edge.index == 1:
                    self._weights.setdefault(edge.node, site.name)
                if site.role == "bias" or edge.index == _BIAS:  # also one of few bits, as Brevitas has
                    self._biases.setdefault(edge.node, []).append(site.name)

    def of_weight(self, layer: Layer) -> Site | None:
        """The site of what a layer reads as its weight, where that is a constant's."""
        name = self._weights.get(layer.node.name or "")
        return None if name is None or self.by_name[name].role == "activation" else self.by_name[name]

    def round_bias(self, layer: Layer) -> None:
        """Put a bias that nobody else reads on its grid of few bits, on which the model given adds it."""
        for name in self._biases.get(layer.node.name or "", ()):
            value, numbers = layer.node.inputs[_BIAS], self.numbers.get(name)
            array = constant_array(value)
            if value is not None and array is not None and numbers is not None and len(value.uses()) == 1:
                value.const_value = ir.Tensor(fake_quantize(array, numbers), name=value.name)

    def exchange(self, site: Site, node: str, tensor: str, made: QParams) -> None:
        """Give a folded layer a site of its own where others read the weight too; forget that of its old bias."""
        own = tuple(e for e in site.readers if e.node == node)
        if tensor == site.tensor:
            self.by_name[site.name] = replace(site, spec=made.spec, tied_to=None)
            self.numbers[site.name] = made
        else:
            self.by_name[site.name] = replace(site, readers=tuple(e for e in site.readers if e.node != node))
            self.by_name[tensor] = replace(site, name=tensor, tensor=tensor, spec=made.spec, readers=own, tied_to=None)
            self.numbers[tensor] = made
            self._weights[node] = tensor
        for name in self._biases.pop(node, ()):
            if self.by_name.pop(name, None) is not None:
                del self.numbers[name]  # another bias now, whose numbers the target makes anew


def _fold_norm(node: ir.Node, namer: Namer, sites: _Sites) -> bool:
    layer = find_layer(node.inputs[0])
    if layer is None or sites.of_weight(layer) is None:
        return False
    try:
        return _fold(layer, node, *batchnorm_affine(node), namer, sites)
    except Shared as reason:
        raise Refusal(str(reason)) from reason


def _fold_arithmetic(node: ir.Node, namer: Namer, sites: _Sites, tables: Sequence[ir.Value]) -> bool:
    found = arithmetic_behind(node, tables)
    site = None if found is None else sites.of_weight(found[0])
    if found is None or site is None:
        return False
    layer, scale, shift = found
    if not sites.tensors.isdisjoint({layer.output.name, layer.node.outputs[0].name}):
        return False
    if isinstance(site.spec.granularity, PerTensor) and len({*np.abs(scale).tolist()}) > 1:
        raise Refusal("its weight has one scale for all channels")
    return _fold(layer, node, scale, shift, namer, sites)


def _fold(layer: Layer, node: ir.Node, scale: Channels, shift: Channels, namer: Namer, sites: _Sites) -> bool:
    site = sites.of_weight(layer)
    assert site is not None
    name = layer.node.name or ""
    if not sites.tensors.isdisjoint({layer.output.name, layer.node.outputs[0].name}):
        raise Refusal(f"what {describe(layer.node)} makes is quantized before it")
    if not layer.is_conv and layer.rank() != 2:
        raise Refusal("its channels are not the last axis of what it reads")
    if layer.out_channels() != scale.size:
        raise Refusal(f"it has {scale.size} channels, {describe(layer.node)} makes {layer.out_channels()}")
    grid = sites.numbers[site.name]
    weight, made = _scaled(layer, grid, scale)
    if sites.powers_of_two and _are_powers_of_two(grid.scale) and not _are_powers_of_two(made.scale):
        raise Refusal(_NO_POWERS)
    shared = len(layer.weight.uses()) > 1
    before = layer.weight.const_value
    graph = layer.node.graph
    assert before is not None and isinstance(graph, ir.Graph)
    on_grid = dequantize(quantize(_array(layer.weight), grid), grid)
    if shared:
        layer.node.replace_input_with(1, set_constant(graph, namer, f"{name}_weight", on_grid))
    else:
        layer.weight.const_value = ir.Tensor(on_grid, name=layer.weight.name)
    now = layer.node.inputs[1]
    assert now is not None
    sites.round_bias(layer)
    try:
        fold_into_previous(replace(layer, weight=now), node, scale, shift, namer)
    except Refusal:
        if shared:
            layer.node.replace_input_with(1, layer.weight)
        else:
            layer.weight.const_value = before
        raise
    now.const_value = ir.Tensor(weight, name=now.name)
    sites.exchange(site, name, now.name or "", made)
    return True


def _scaled(layer: Layer, qp: QParams, factor: Channels) -> tuple[NDArray[np.float32], QParams]:
    """The weight on its new grid, and the grid.

    Raises:
        Refusal: the grid cannot be scaled so.
    """
    spec, axis = qp.spec, _axis(layer)
    if isinstance(spec.granularity, PerBlock) or spec.scheme is not Scheme.UNIFORM:
        raise Refusal(
            "its weight has a scale a block" if spec.scheme is Scheme.UNIFORM else f"its grid is {spec.scheme.value}"
        )
    if isinstance(spec.granularity, PerChannel) and spec.granularity.axis != axis:
        raise Refusal("the scales of its weight are not those of its output channels")
    array = _array(layer.weight)
    shape = [1] * array.ndim
    shape[axis] = -1
    codes = quantize(array, qp).astype(np.int64)
    scale = np.broadcast_to(qp.scale.astype(np.float64), factor.shape)
    zero = np.broadcast_to(qp.zero_point, factor.shape)
    factor = np.where(scale * np.abs(factor) < MIN_SCALE, 0.0, factor)
    if (scale * np.abs(factor) > np.finfo(np.float32).max).any():
        raise Refusal("its scales would be too large for float32")
    size = np.where(factor == 0.0, 1.0, np.abs(factor))
    mirrored = 2 * zero.reshape(shape) - codes
    new_zero = zero
    if ((mirrored < spec.qmin) | (mirrored > spec.qmax))[
        np.broadcast_to((factor < 0).reshape(shape), codes.shape)
    ].any():
        if spec.symmetric:
            raise Refusal(f"its weight holds {spec.qmin}, which has no negative on its grid; use a narrow range")
        new_zero = np.where(factor < 0, spec.qmin + spec.qmax - zero, zero)
        mirrored = spec.qmin + spec.qmax - codes
    sign = np.sign(factor).reshape(shape)
    codes = np.where(sign < 0, mirrored, np.where(sign == 0, zero.reshape(shape), codes))
    new_scale = (scale * size).astype(np.float32)
    if spec.power_of_two and not _are_powers_of_two(new_scale):
        raise Refusal(_NO_POWERS)
    if isinstance(spec.granularity, PerTensor) and len({*new_scale.tolist()}) == len({*new_zero.tolist()}) == 1:
        made = QParams(spec, new_scale[:1].reshape(()), np.array(new_zero[0], np.int64))
    else:
        made = QParams(replace(spec, granularity=PerChannel(axis)), new_scale, np.array(new_zero, np.int64))
    return dequantize(codes, made), made


def _are_powers_of_two(scale: NDArray[Any]) -> bool:
    return bool((np.frexp(scale)[0] == 0.5).all())


def _axis(layer: Layer) -> int:
    """Axis of the output channels in the weight."""
    match layer.node.op_type:
        case "Conv":
            return 0
        case "ConvTranspose":
            if layer.groups > 1:
                raise Refusal("the groups of a transposed convolution share the scales of its weight")
            return 1
        case "Gemm" if layer.node.attributes.get_int("transB", 0):
            return 0
        case _:
            return len(layer.array_shape()) - 1


def _array(value: ir.Value) -> NDArray[np.float32]:
    array = constant_array(value)
    if array is None or array.dtype != np.float32:
        raise Refusal("its weight is not a float32 constant")
    return np.asarray(array, np.float32)

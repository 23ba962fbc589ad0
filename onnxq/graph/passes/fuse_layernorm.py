"""Layer normalization written as a chain of operators becomes the operator LayerNormalization."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import replace_nodes, set_constant, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.recognition.groups import Group, find_groups
from onnxq.graph.recognition.region import REDUCTIONS, axes_of, compute
from onnxq.graph.values import rank_of, scalar

__all__ = ["LAYERNORM_OPSET", "fuse_layernorm", "has_layernorm_chain"]

Wanted = Callable[[Group], bool]

LAYERNORM_OPSET = 17
"""From here on LayerNormalization is a standard operator."""
_TOLERANCE = 1e-6
_SPREADS = (1e-3, 3e-2, 0.3, 1.0, 3.0, 30.0)
"""Standard deviations of the numbers fed: the small ones tell one epsilon from another."""
_MOST = 1 << 16
"""Elements of the largest scale looked at."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Form:
    """What LayerNormalization needs: the first axis it normalizes, the variance's offset, scale and bias (dims,)."""

    axis: int
    epsilon: float
    scale: Floats
    bias: Floats


def _all(group: Group) -> bool:
    """Whatever computes one."""
    return True


def fuse_layernorm(model: ir.Model, wanted: Wanted = _all) -> list[Note]:
    """Replace ``(x - mean) / sqrt(variance + epsilon) * scale + bias`` by LayerNormalization (opset 17).

    Replaced are chains over the last axes, all of known size, whose scale and bias vary over those axes only.

    Args:
        model: changed in place; the tensors in front of and behind a chain keep their names.
        wanted: whether a chain is to be replaced.

    Returns:
        One note with the number of chains replaced, if any.
    """
    if model.opset_imports.get("", 0) < LAYERNORM_OPSET:
        return []
    namer = Namer(model)
    chains = list(_chains(model, wanted))
    for group, graph, form in reversed(chains):
        start, end, last = group.inputs[0], group.outputs[0], group.nodes[-1]
        scale, bias = (
            set_constant(graph, namer, f"{end.name}_{what}", np.asarray(array, np.float32))
            for what, array in (("scale", form.scale), ("bias", form.bias))
        )
        node = ir.node(
            "LayerNormalization",
            [start, scale, bias],
            {"axis": form.axis, "epsilon": form.epsilon},
            name=last.name,
        )
        stand_for(node, group.nodes)
        replace_nodes(group.nodes, node)
    return [Note("fuse_layernorm", "", f"{len(chains)} chains replaced by LayerNormalization")] if chains else []


def has_layernorm_chain(model: ir.Model, wanted: Wanted = _all) -> bool:
    """Whether :func:`fuse_layernorm` would find something to replace, were the opset high enough."""
    return next(_chains(model, wanted), None) is not None


def _chains(model: ir.Model, wanted: Wanted) -> Iterator[tuple[Group, ir.Graph, _Form]]:
    """Chains that compute a layer normalization, the graph of each and what the operator needs."""
    for group in find_groups(model):
        graph = group.nodes[-1].graph
        if (
            group.kind != "layernorm"
            or group.inputs[0].dtype is not ir.DataType.FLOAT
            or not isinstance(graph, ir.Graph)
            or not wanted(group)
        ):
            continue
        form = _form(group)
        if form is not None:
            yield group, graph, form


def _form(group: Group) -> _Form | None:
    """The operator's parameters, found by feeding the chain numbers; None where it does something else besides."""
    normalized = _normalized(group)
    if normalized is None:
        return None
    axis, dims = normalized
    random = np.random.default_rng(0)
    fed = [random.normal(0.0, spread, dims) for spread in _SPREADS]
    wanted = _made(group, axis, fed)
    if wanted is None:
        return None
    added = {scalar(value) for node in group.nodes if node.op_type in ("Add", "Max") for value in node.inputs}
    for epsilon in sorted({0.0, *(number for number in added if number is not None and number > 0)}):
        form = _fitted(axis, epsilon, fed, wanted)
        if form is not None:
            return form
    return None


def _normalized(group: Group) -> tuple[int, tuple[int, ...]] | None:
    """The first axis that a chain normalizes over, and the sizes from there on; None where those are not the last ones,
    all of known size.
    """
    start, end = group.inputs[0], group.outputs[0]
    if start.shape is None or rank_of(end) != len(start.shape):
        return None
    rank = len(start.shape)
    reduced = [node for node in group.nodes if node.op_type in REDUCTIONS]
    axes = {axis % rank for node in reduced for axis in axes_of(node) or range(rank)} if rank else set()
    if not axes or axes != set(range(min(axes), rank)):
        return None
    dims = tuple(d for d in start.shape[min(axes) :] if isinstance(d, int))
    known = len(dims) == len(axes) and 2 <= int(np.prod(dims)) <= _MOST
    return (min(axes), dims) if known else None


def _made(group: Group, axis: int, fed: Sequence[Floats]) -> Floats | None:
    """What a chain makes of numbers (fed, dims); None where it cannot be computed, or is of another shape."""
    start, end = group.inputs[0], group.outputs[0]
    made: list[Floats] = []
    for x in fed:
        whole = x.reshape((1,) * axis + x.shape)
        values = compute(list(group.nodes), {start: whole})
        result = values.get(end) if values is not None else None
        if result is None or result.shape != whole.shape:
            return None
        made.append(result.reshape(x.shape))
    return np.stack(made)


def _fitted(axis: int, epsilon: float, fed: Sequence[Floats], wanted: Floats) -> _Form | None:
    """The scale and bias by which a normalization with some epsilon makes what is wanted; None where none do."""
    normalized = np.stack([(x - x.mean()) / np.sqrt(x.var() + epsilon) for x in fed])
    centred = normalized - normalized.mean(axis=0)
    scale = (centred * (wanted - wanted.mean(axis=0))).sum(axis=0) / (centred**2).sum(axis=0)
    bias = wanted.mean(axis=0) - scale * normalized.mean(axis=0)
    furthest = np.abs(scale * normalized + bias - wanted).max()
    fits = furthest <= _TOLERANCE * max(1.0, float(np.abs(wanted).max()))
    return _Form(axis, epsilon, scale, bias) if fits else None

"""The float model inside one that carries quantizers, in the form that a target wants, with the numbers given.

What changes the graph must leave the numbers true. The passes that bring a model into normal form run while its
quantizers are still in it: a weight behind a DequantizeLinear is no constant to them, so nothing is folded into it or
across it. What a target rewrites it finds in the float model alone; there every tensor with numbers is held: listed as
an output of its graph, which no pass may take away, rename, or give other values. Not held is what lies inside a
function that is written as a chain (GELU with Erf, say) with an operator that the target has not: the chain may become
one operator that it has, and the numbers inside are of no use then.

A model out of training (``onnxq::FakeQuantize``) was planned as one whose layers take up the arithmetic behind them, so
that nothing quantizes what is between: there it folds into the numbers of the weights, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.checks.free_sizes import check_sized
from onnxq.deploying.apart import apart
from onnxq.deploying.border import with_border
from onnxq.deploying.rounded import round_weights
from onnxq.given.unfolded import unfolded
from onnxq.graph.files.load import load
from onnxq.graph.foreign import infer_foreign
from onnxq.graph.note import NOT_FOLDED, Note
from onnxq.graph.passes.fix_shapes import fix_shapes
from onnxq.graph.passes.halves import widen_halves
from onnxq.graph.passes.normalize import normalize
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.passes.write_out import has_any, write_out
from onnxq.graph.recognition.groups import find_groups
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import OTHER_AXES, is_constant
from onnxq.options import Options
from onnxq.options.shapes import sizes_of
from onnxq.plan import Edge, Role, Site
from onnxq.planning.table_rows import row
from onnxq.planning.uneven import too_uneven
from onnxq.prepare import KEEP, Source, in_float32, lowered, needed_opset, still_half
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.read import read_folded
from onnxq.render import fake_quantize
from onnxq.render.reading.clipped_integers import is_clip_of_integers
from onnxq.spec import PerBlock, PerChannel

__all__ = ["in_form", "kind_of", "past_quantizers"]

_STORED = frozenset({ir.DataType.INT4, ir.DataType.INT8, ir.DataType.INT16})


def in_form(model: Source, target: Backend, options: Options) -> tuple[Quantized, Quantized, list[str]]:
    """Take the quantizers out of a model, and bring what is left into the form that a target wants.

    Args:
        model: carries quantizers; left unchanged.
        target: the target.
        options: opset and format.

    Returns:
        What was read, in normal form and in float32, and the same as the target wants it. Tensors with numbers have in
        the latter the names and values of the former, but for those that the target computes in a way of its own.
        Last what could not be brought to float32, as warnings.

    Raises:
        OnnxqError: the model is unreadable, or not for this target or format.
    """
    raised = load(model)
    fixed = fix_shapes(raised, map(sizes_of, options.shapes))
    widen_halves(raised)  # onnxq stores float constants so: that computes in float32
    widened = in_float32(raised)
    done = [*fixed, *widened, *_normalized(raised, needed_opset(target, options), options)]
    if fixed:
        check_sized(raised, options.shapes)
    trained = any((n.domain, n.op_type) == (fake_quantize.DOMAIN, fake_quantize.NAME) for n in all_nodes(raised))
    found = read_folded(raised, backend=target.name, arithmetic=trained)
    least = _opset(found, target, options)
    if found.model.opset_imports.get("", 0) < least:
        done += _normalized(raised, least, options)
        found = read_folded(raised, backend=target.name, arithmetic=trained)
    notes = _still_true(done, found.model)
    infer_shapes(found.model)
    found = apart(with_border(unfolded(replace(found, notes=(*notes, *found.notes)))))
    round_weights(found)
    formed = _rewritten(found, target, options)
    refuse = target.format_named(options.format).refuses
    if refuse is not None:
        refuse(formed.model)
    return found, formed, still_half(widened)


def _still_true(notes: Sequence[Note], model: ir.Model) -> list[str]:
    """Notes of passes as text, without what they left because of a quantizer, and reading has folded since."""
    names = {node.name for node in all_nodes(model)}
    return [str(n) for n in notes if not (n.message.startswith(NOT_FOLDED) and n.node and n.node not in names)]


def _normalized(model: ir.Model, least: int, options: Options) -> list[Note]:
    """Bring a model into normal form, in place, with its quantizers in it; what was done."""
    notes = normalize(
        model, min_opset=least, opset=options.opset, keep=KEEP, unfit=too_uneven, stays=_is_of_a_quantizer
    )
    return [*notes, *infer_foreign(model, options.custom_op_library)]


def _is_of_a_quantizer(node: ir.Node) -> bool:
    """Whether a node of constants is part of a quantizer: it quantizes, or makes float of stored integers."""
    data = node.inputs[0] if node.inputs else None
    stored = is_constant(data) and data is not None and data.dtype in _STORED
    return node.op_type == "QuantizeLinear" or (node.op_type == "Cast" and stored) or is_clip_of_integers(node)


def _opset(source: Quantized, target: Backend, options: Options) -> int:
    """The opset that the result needs for the widths that the model's quantizers have."""
    widths = {(kind_of(site.role), source.qparams[site.name].spec.bits) for site in source.plan.sites}
    choices = [options]
    choices += [replace(options, weight_bits=n) for kind, n in widths if kind == "weight" and n in target.weight_bits]
    choices += [replace(options, act_bits=n) for kind, n in widths if kind == "activation" and n in target.act_bits]
    return max(needed_opset(target, choice) for choice in choices)


def kind_of(role: Role) -> str:
    """What tells the numbers of a tensor from others that it has: weights and constant operands have one kind."""
    return "bias" if role == "bias" else "activation" if role == "activation" else "weight"


def past_quantizers(source: Quantized) -> set[tuple[str, Edge | None]]:
    """What reads in float a tensor that others read quantized: one end of a residual, say.

    Returns:
        The tensors, with the input of a node that reads each; with ``None`` where it is an output of the model.
    """
    readers: dict[str, set[Edge]] = {}
    quantized: set[str] = set()
    for site in source.plan.sites:
        if site.role != "bias":
            readers.setdefault(site.tensor, set()).update(site.readers)
        if site.produced:
            quantized.add(site.tensor)
    found: set[tuple[str, Edge | None]] = set()
    for node in all_nodes(source.model):
        for index, value in enumerate(node.inputs):
            edge = Edge(node.name or "", index)
            if value is not None and (known := readers.get(value.name or "")) and edge not in known:
                found.add((value.name or "", edge))
    outputs = (value.name or "" for graph in all_graphs(source.model) for value in graph.outputs)
    return found | {(name, None) for name in outputs if name in readers and name not in quantized}


def _rewritten(found: Quantized, target: Backend, options: Options) -> Quantized:
    """The same as the target rewrites its float model, at an opset that it reads."""
    newer = found.model.opset_imports.get("", 0) > target.max_opset
    lacking = target.lacks_whole
    if target.rewrite is None and not newer and not has_any(found.model, lacking):
        return found
    model = found.model.clone()
    with _held(model, {site.tensor for site in found.plan.sites} - _inside_what_it_lacks(model, target)):
        notes = [str(note) for note in write_out(model, lacking)]
        notes += lowered(model, target.name, target.max_opset, options)
        notes += map(str, target.rewrite(model) if target.rewrite is not None else ())
    remove_dead(model)
    sites, numbers = _with_other_axes(model, found)
    plan = replace(found.plan, sites=sites)
    return replace(found, model=model, plan=plan, qparams=numbers, notes=(*found.notes, *notes))


def _inside_what_it_lacks(model: ir.Model, target: Backend) -> set[str]:
    """Tensors inside functions, written as chains, that have an operator which is none of the target's."""
    found: set[str] = set()
    for group in find_groups(model):
        if any(row(target, node) is None for node in group.nodes):
            made = {value for node in group.nodes for value in node.outputs}
            found |= {value.name or "" for value in made.difference(group.outputs)}
    return found


@contextmanager
def _held(model: ir.Model, tensors: Set[str]) -> Iterator[None]:
    """Tensors are outputs of their graphs for a while."""
    own = {graph: len(graph.outputs) for graph in all_graphs(model)}
    for graph in own:
        made = [value for node in graph for value in node.outputs]
        kept = [v for v in (*made, *graph.initializers.values()) if v.name in tensors and not v.is_graph_output()]
        graph.outputs.extend(kept)
    yield
    for graph, count in own.items():
        while len(graph.outputs) > count:
            graph.outputs.pop()


def _with_other_axes(model: ir.Model, found: Quantized) -> tuple[tuple[Site, ...], Mapping[str, QParams]]:
    """The sites and numbers, with those of constants that were made of others by another order of axes."""
    first: dict[str, Site] = {}
    for site in found.plan.sites:
        first.setdefault(site.tensor, site)
    sites, numbers = list(found.plan.sites), dict(found.qparams)
    for graph in all_graphs(model):
        for name, value in graph.initializers.items():
            former, order = value.meta.get(OTHER_AXES, ("", ()))
            of = first.get(former)
            if of is None or name == former:
                continue
            numbers[name] = _permuted(numbers[of.name], order)
            readers = tuple(Edge(use.node.name or "", use.idx) for use in value.uses())
            sites.append(replace(of, name=name, tensor=name, spec=numbers[name].spec, readers=readers, tied_to=None))
    return tuple(sites), numbers


def _permuted(numbers: QParams, order: tuple[int, ...]) -> QParams:
    """The numbers of a tensor, for one of which axis ``k`` is its axis ``order[k]``."""
    grain = numbers.spec.granularity
    if not isinstance(grain, (PerChannel, PerBlock)):
        return numbers
    granularity = replace(grain, axis=order.index(grain.axis % len(order)))
    scale, zero = numbers.scale, numbers.zero_point
    if isinstance(grain, PerBlock):
        scale, zero = scale.transpose(order), zero.transpose(order)
    return QParams(replace(numbers.spec, granularity=granularity), scale, zero)

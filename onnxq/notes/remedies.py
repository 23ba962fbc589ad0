"""Results below the floor: what to change at the layer where most is lost, by flags that change how it is quantized."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.errors import OnnxqError
from onnxq.graph.shapes import shapes_of_one, sizes_at
from onnxq.graph.traverse import all_nodes
from onnxq.measuring.comparison import TensorErrors
from onnxq.notes.commands import COMPARE, WIDE_ACTIVATIONS
from onnxq.notes.hints import coarser_weights
from onnxq.options import Options, Override
from onnxq.plan import Edge, Plan
from onnxq.planning.planner import make_plan
from onnxq.planning.table_rows import row
from onnxq.quantized import Quantized

__all__ = ["Shortfall", "ahead", "blamed", "more_bits", "remedies"]

_USUAL = 8
"""Bits that are tried first where there are fewer."""
_LOST, _DROP = 12.0, 9.0
"""dB: a float node that leaves less, and loses more, has blown up what it read; the grid behind it leaves more."""


@dataclass(frozen=True)
class Shortfall:
    """What is wrong with a result.

    Attributes:
        output: the worst output.
        sqnr: its SQNR in dB.
        floor: what was asked for, in dB.
        suspects: tensors where most is lost, by the layer to blame, or the tensor where that is none.
        tries: what may help, as parts of a sentence.
        ways: what may help, as sentences.
        compare: the command that shows where all is lost.
    """

    output: str
    sqnr: float
    floor: float
    suspects: Mapping[str, TensorErrors] = field(default_factory=dict)
    tries: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()
    compare: str = COMPARE


def blamed(plan: Plan, node: str, tensor: str) -> str:
    """The name to change something at for what is lost at a tensor: its node, or the one that this is computed with.

    Args:
        plan: where the model is quantized.
        node: name of the node that writes the tensor; empty for a model input.
        tensor: its name, which is given back where the node runs in float, and on weights in float: the quantizer
            behind it is a reader's.
    """
    while node in plan.absorbed:
        node = plan.absorbed[node]
    return node if node and (node in plan.quantized or node in plan.stored) else tensor


def ahead(result: Quantized, lost: TensorErrors) -> str | None:
    """The nearest quantized node that a float node has blown up the noise of; None where it has not, or there is none.

    A sine of a time step, say: whether it is quantized itself makes no difference, but what it reads must be exact.

    Args:
        result: the bad one.
        lost: a tensor of it.
    """
    if lost.errors.sqnr_centred >= _LOST or lost.drop < _DROP or blamed(result.plan, lost.node, "") != "":
        return None
    nodes = [node for node in all_nodes(result.model) if node.name == lost.node]
    seen: set[ir.Node] = set()
    while nodes:
        made = [node for node in (v.producer() for reader in nodes for v in reader.inputs if v) if node is not None]
        if quantized := [name for node in made if (name := blamed(result.plan, node.name or "", ""))]:
            return quantized[0]
        nodes = [node for node in dict.fromkeys(made) if node not in seen]
        seen.update(nodes)
    return None


def remedies(result: Quantized, options: Options, name: str, tensor: str = "") -> list[str]:
    """Flags that each change how a result is quantized at a layer: in float, or with more bits that the target has.

    Each is planned, with what data has kept float and with the 16 bits that the result has, and left out where
    everything is quantized as before.

    Args:
        result: the bad one.
        options: how it was made.
        name: of the layer, or of a tensor, see :func:`blamed`.
        tensor: where the layer's error shows: more bits may be for all who read it, or for none.
    """
    options = _as_made(result, options)
    sizes = sizes_at(result.model, shapes_of_one(result.model))
    stored = frozenset(result.plan.stored)
    before = _seen(result, options, sizes, stored)
    found = []
    if _seen(result, replace(options, exclude=(*options.exclude, name)), sizes, stored - {name}) not in (None, before):
        found.append(f"--exclude {_quoted(name)}")
    for key, bits in _wider(result, name):
        of_tensor = tensor and key == "act_bits" and bits in _act_bits(result.backend, _concerned(result, tensor))
        for pattern in dict.fromkeys((name, *((tensor,) if of_tensor else ()))):
            asked = (*options.override, (pattern, Override.parse(f"{key}={bits}")))
            if _seen(result, replace(options, override=asked), sizes, stored) not in (None, before):
                return [*found, f"--override {_quoted(f'{pattern}={key}={bits}')}"]
    return found


def more_bits(result: Quantized, options: Options) -> list[str]:
    """The flag that gives all activations 16 bits, where the target has them, they are fewer, and no hint says so.

    Where no activation is quantized, or all that may have as many do, or weights have fewer than these, it would change
    next to nothing for the better.
    """
    target = result.backend
    wide = 16 in target.act_bits and target.bits(options)[1] < 16 and _narrower(result)
    wide &= not coarser_weights(result.plan)
    return [WIDE_ACTIVATIONS] if wide and not any(WIDE_ACTIVATIONS in hint for hint in result.hints) else []


def _as_made(result: Quantized, options: Options) -> Options:
    """The options with the widths of activations that a result has taken by itself; what the user asks for goes on."""
    usual = result.backend.activation.bits
    wide = {
        edge.node: site.spec.bits
        for site in result.plan.sites
        if site.role == "activation" and site.spec.bits > usual and options.act_bits is None
        for edge in site.readers
    }
    taken = ((f"node:{name}", Override(act_bits=bits)) for name, bits in wide.items())
    return replace(options, override=(*taken, *options.override))


def _narrower(result: Quantized) -> bool:
    """Whether some activation has fewer than 16 bits though all that write and read it in integers have those."""
    nodes = {node.name: node for node in all_nodes(result.model) if node.name in result.plan.quantized}
    made = {value.name: node for node in nodes.values() for value in node.outputs}
    for site in result.plan.sites:
        if site.role == "activation" and site.spec.bits < 16:
            near = [nodes[edge.node] for edge in site.readers if edge.node in nodes]
            near += [made[site.tensor]] if site.tensor in made else []
            if 16 in _act_bits(result.backend, near):
                return True
    return False


def _concerned(result: Quantized, name: str) -> Iterator[ir.Node]:
    """The node of a name, or all that write or read a tensor of that name, as far as they compute in integers."""
    for node in all_nodes(result.model):
        touched = {value.name for value in (*node.inputs, *node.outputs) if value is not None}
        if node.name in result.plan.quantized and (node.name == name or name in touched):
            yield node


def _act_bits(target: Backend, nodes: Iterable[ir.Node]) -> frozenset[int]:
    """The widths of activations that all of some nodes have."""
    rules = (row(target, node) for node in nodes)
    return target.act_bits.intersection(*(rule.act_bits for rule in rules if rule is not None))


def _quoted(text: str) -> str:
    """For a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _seen(result: Quantized, options: Options, sizes: Mapping[str, int], stored: Collection[str]) -> object:
    """How every node of the model would see what it reads; None where the target does not take the options.

    A table beside a float model knows tensors, not who reads them, and each of them in one way. In front of a function
    that may be absorbed it may know one whether the function is or not.
    """
    target, model = result.backend, result.model
    kept = {kept.node: kept.reason for kept in result.plan.kept_float}
    try:
        target.require(options)
        plan = make_plan(model, target, options, keep_float=kept, sizes=sizes, store=stored)
    except OnnxqError:
        return None
    return (
        _seen_by_table(plan, model, target)
        if target.format_named(options.format).beside
        else _seen_by_edge(plan, model)
    )


def _seen_by_table(plan: Plan, model: ir.Model, target: Backend) -> object:
    ways = {(site.tensor, site.spec, site.fixed) for site in plan.sites if site.role != "bias"}
    if len(ways) > len({name for name, *_ in ways}):
        return None
    inner = {node.inputs[0].name for node in all_nodes(model) if node.op_type in target.absorbed and node.inputs[0]}
    return {way for way in ways if way[0] not in inner}


def _seen_by_edge(plan: Plan, model: ir.Model) -> object:
    read = {edge: (site.spec, site.fixed) for edge, site in plan.by_edge().items()}
    made = {site.tensor: (site.spec, site.fixed) for site in plan.sites if site.produced}
    seen: dict[object, object] = {value.name: made.get(value.name or "") for value in model.graph.outputs}
    for node in all_nodes(model):
        for index, value in enumerate(node.inputs):
            edge = Edge(node.name or "", index)
            seen[edge] = read.get(edge, made.get(value.name or "") if value is not None else None)
    return seen


def _wider(result: Quantized, name: str) -> Iterator[tuple[str, int]]:
    """Widths to ask for at a layer, by key of an override: first for what has the fewest bits there."""
    target, widths = result.backend, _widths(result, name)
    act_bits = _act_bits(target, _concerned(result, name))
    more = {
        "weight_bits": _next(widths.get("weight"), target.weight_bits),
        "act_bits": _next(widths.get("activation"), act_bits),
    }
    wide = {key: bits for key, bits in more.items() if bits is not None}
    if len(set(widths.values())) == 1 and len(wide) == 2 and len(set(wide.values())) == 1:
        yield "bits", next(iter(wide.values()))
    keys = sorted(wide, key=lambda key: (widths["weight" if key == "weight_bits" else "activation"], key))
    yield from ((key, wide[key]) for key in keys)


def _widths(result: Quantized, name: str) -> dict[str, int]:
    """Role → the fewest bits of what a layer reads and writes, or of a tensor."""
    plan = result.plan
    own = {name, *(node for node in plan.absorbed if blamed(plan, node, "") == name)}
    written = {value.name for node in all_nodes(result.model) if node.name in own for value in node.outputs}
    found: dict[str, int] = {}
    for site in plan.sites:
        role = "weight" if site.role == "constant" else site.role
        if role == "bias" or site.name not in result.qparams:
            continue
        if site.tensor == name or site.tensor in written or any(edge.node in own for edge in site.readers):
            bits = result.qparams[site.name].spec.bits
            found[role] = min(found.get(role, bits), bits)
    return found


def _next(bits: int | None, known: Iterable[int]) -> int | None:
    """The next usual width that a target has; the widest where that is none of them."""
    wider = [width for width in known if bits is not None and width > bits]
    usual = [width for width in (_USUAL, 2 * _USUAL) if width in wider]
    return next(iter(usual), max(wider, default=None))

"""What to say of a model of which a target takes over nothing, or not all: operators that it quantizes otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from onnxq.backend import Format
from onnxq.console.terminal import counts, plural
from onnxq.errors import BackendError
from onnxq.graph.domains import MICROSOFT, OF_QUANTIZERS, STANDARD
from onnxq.graph.traverse import all_nodes, full_type
from onnxq.graph.values import is_constant
from onnxq.integer_operators import PACKED, QUANTIZERS, WHILE_RUNNING, is_in_integers
from onnxq.plan import Plan
from onnxq.quantized import Quantized

__all__ = ["left_while_running", "nothing_to_deploy", "refuse_unread"]

_REASONS = 2
"""That an error tells."""
_KNOWN = (*STANDARD, MICROSOFT)
_READ = "onnxq reads QuantizeLinear and DequantizeLinear of integers, and Quant of QONNX with constant operands"
_INSTEAD = {
    "qonnx": "Export it with Brevitas' export_onnx_qcdq, which writes most of them with QuantizeLinear",
    "onnx.brevitas": "Export it with Brevitas' export_onnx_qcdq",
    "org.openvinotoolkit": "Give the model with QuantizeLinear: of onnxq's own, that is written with --format qdq",
}
"""What to do with models that quantize with operators of other domains, by how these begin."""
_NOWHERE = ("qonnx", "onnx.brevitas")
"""What domains begin with that no runtime has."""


def refuse_unread(source: Quantized) -> None:
    """Refuse a model with quantizers of domains that no runtime has, of which onnxq has not read all.

    Raises:
        BackendError: there are such; they are named.
    """
    nodes = list(all_nodes(source.model))
    if any(node.domain.startswith(_NOWHERE) for node in nodes):
        raise _unread(nodes, source.backend.name)


def left_while_running(source: Quantized, form: Format) -> list[str]:
    """What to say of operators that find scales while they run, which a model deployed keeps as they are.

    Args:
        source: what was read from the model given.
        form: what is to be written.

    Raises:
        BackendError: the format has no way to say them, or no activation has a scale that is known before.
    """
    target, known = source.backend, _quantizes_activations(source)
    error = _while_running(source)
    if error is None or (target.at_home and known):
        return []
    if not known or not form.integers:
        raise error
    return [f"{error.what}: whether {target.name} runs what is left unchanged is not known. {error.hint}"]


def _while_running(source: Quantized) -> BackendError | None:
    """The error for a model with operators that find scales while they run; None where it has none."""
    target = source.backend
    left = [node for node in all_nodes(source.model) if _finds_scales(node)]
    if not left:
        return None
    found = counts(node.op_type for node in left)
    what = f"{found} in the model compute their scales at run time, and deploy can only take over constant ones"
    hint = f"Quantize the float model for {target.name}"
    if target.at_home and all(node.domain in _KNOWN for node in left):
        hint += f", or take the model given: {target.title} runs it as it is"
    return BackendError(what, hint=hint)


def _finds_scales(node: ir.Node) -> bool:
    """Whether the scale of a node is known only while it runs, as one that the model computes or a caller gives."""
    computed = node.op_type == "QuantizeLinear" and node.domain in OF_QUANTIZERS and not is_constant(node.inputs[1])
    return computed or node.op_type in WHILE_RUNNING


def nothing_to_deploy(source: Quantized, plan: Plan | None = None) -> BackendError:
    """The error for a model of which a target takes over nothing: what was found in it, and what to do.

    Args:
        source: the model given.
        plan: the target's, whose reasons are told.
    """
    name = source.backend.name
    running = _while_running(source) if plan is not None else None
    if running is not None:  # the constant scales beside these, of a table's rows say, are none that the target takes
        return running
    if _quantizes_activations(source):
        given = {edge.node for site in source.plan.sites for edge in site.readers}
        reasons = Counter(kept.reason for kept in plan.kept_float if kept.node in given) if plan is not None else {}
        told = "; ".join(f"{plural(count, 'node')}: {reason}" for reason, count in list(reasons.items())[:_REASONS])
        what = f"{name} quantizes none of what this model quantizes" + (f" ({told})" if told else "")
        return BackendError(what, hint=f"See 'onnxq plan' for what {name} quantizes")
    nodes = list(all_nodes(source.model))
    found = [node.op_type for node in nodes if node.op_type in PACKED or node.op_type == "DequantizeLinear"]
    stored = len({site.tensor for site in source.plan.sites})
    parts = [*([counts(found)] if found else []), *([f"{plural(stored, 'constant')} with scales"] if stored else [])]
    if not parts:
        return _unread(nodes, name)
    what = f"only weights are quantized in the model ({', '.join(parts)}), and {name} needs scales of activations"
    hint = f"Quantize the float model for {name}; runtimes that know these operators run this one as it is"
    return BackendError(what, hint=hint)


def _unread(nodes: Sequence[ir.Node], target: str) -> BackendError:
    """The error for a model of which no quantizer was read: there is none, or only such as onnxq does not know."""
    left = [node for node in nodes if _is_quantizer(node) or node.domain.startswith(_NOWHERE)]
    if not left:
        return BackendError("the model carries no quantizers", hint="Use 'onnxq quantize' for a float model")
    left = [node for node in left if node.domain.startswith(_NOWHERE)] or left
    found = counts(map(full_type, left))
    known = (do for node in left for start, do in _INSTEAD.items() if node.domain.startswith(start))
    do = next(known, f"Export it with those, or quantize the float model for {target}")
    return BackendError(f"the model quantizes with {found}, which deploy cannot take over: {_READ}", hint=do)


def _is_quantizer(node: ir.Node) -> bool:
    """Whether a node quantizes, or computes with integers: of domains unknown here, by its name."""
    named = node.domain not in _KNOWN and "quant" in node.op_type.lower()
    return named or node.op_type in QUANTIZERS or is_in_integers(node.op_type)


def _quantizes_activations(source: Quantized) -> bool:
    return any(site.role == "activation" for site in source.plan.sites)

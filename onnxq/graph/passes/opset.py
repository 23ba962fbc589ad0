"""Raising the version of the standard operator set, by relabelling where nothing changed, else by onnx's converter."""

from __future__ import annotations

import onnx
import onnx.defs
import onnx.helper
import onnx_ir as ir

from onnxq.errors import ModelError, OptionError
from onnxq.graph.note import CONVERTED, Note
from onnxq.graph.passes.converter import convert
from onnxq.graph.passes.expand_doubles import FIRST, LAST, expand_doubles
from onnxq.graph.skeleton import adopt, skeleton
from onnxq.graph.traverse import all_nodes, with_subgraphs

__all__ = ["changed_operators", "raise_opset"]

MIN_IR = 8
MIN_CONVERTIBLE = 13
"""From here on a model that cannot be converted is still usable as it is (per-channel scales exist)."""

# Versions that only add types, inputs or attributes whose absence means what it meant before
# (the version history in https://github.com/onnx/onnx/blob/main/docs/Changelog.md).
_ADDITIVE: dict[int, frozenset[str]] = {
    version: frozenset(names.split())
    for version, names in {
        14: "Add BatchNormalization CumSum Div GRU Identity LSTM Mul RNN Relu Reshape Sub",
        15: "BatchNormalization Pow Shape",
        16: "GreaterOrEqual Identity If LeakyRelu LessOrEqual Loop PRelu ScatterElements ScatterND Where",
        18: "Pad ScatterElements ScatterND",
        19: "Cast CastLike Constant DequantizeLinear Equal Identity If Loop Pad QuantizeLinear Reshape Scan Shape Size",
        20: "ConstantOfShape IsInf IsNaN ReduceMax ReduceMin",
        21: "Cast CastLike Constant ConstantOfShape DequantizeLinear Flatten Identity If Loop Pad QuantizeLinear "
        "Reshape Scan Shape Size Squeeze Transpose Unsqueeze",
    }.items()
}


def raise_opset(model: ir.Model, opset: int | None = None, *, minimum: int = 17) -> list[Note]:
    """Raises the standard operator set to ``opset``, or to ``minimum`` when it is below that; never lowers it.

    Args:
        model: changed in place. Functions must be inlined.
        opset: the version to reach; None means at least ``minimum``.
        minimum: used when ``opset`` is None.

    Returns:
        A note of what was raised, or that the version stayed because conversion failed.

    Raises:
        OptionError: ``opset`` is lower than the model's, or newer than the installed onnx knows.
        ModelError: a model of an opset below 13 cannot be converted, or the opset is newer than the installed onnx.
    """
    current, target = _versions(model, opset, minimum)
    if target == current:
        _raise_ir(model, current)
        return []
    notes = expand_doubles(model) if FIRST <= current <= LAST < target else []
    changed = changed_operators(model.graph, current, target)
    if not changed:
        model.opset_imports[""] = target
        _raise_ir(model, target)
        return [*notes, Note("opset", "", f"raised from {current} to {target}")]
    operators = ", ".join(sorted(changed))
    if current < 9 and "Scan" in changed:
        raise ModelError(
            "Scan of opset 8 works on batches, which later opsets cannot express",
            where="opset",
            hint="Export the model again with a newer opset",
        )
    try:
        converted, big = _converted(model, target)
    except Exception as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if opset is None and current >= MIN_CONVERTIBLE:
            _raise_ir(model, current)
            stays = f"stays at {current}: onnx cannot convert {operators} to {target} ({first_line})"
            return [*notes, Note("opset", "", stays)]
        raise ModelError(
            f"opset {current} cannot be raised to {target}: {first_line} (operators that changed: {operators})",
            where="opset",
            hint="Export the model again with a newer opset",
        ) from error
    properties = {node.name: dict(node.metadata_props) for node in all_nodes(model) if node.name}
    adopt(model, converted, big)
    for node in all_nodes(model):
        node.metadata_props.update(properties.get(node.name or "", {}))  # the converter drops them
    _raise_ir(model, target)
    return [*notes, Note("opset", "", f"{CONVERTED} from {current} to {target}; changed operators: {operators}")]


def _versions(model: ir.Model, opset: int | None, minimum: int) -> tuple[int, int]:
    """The model's version, which is set where it has none, and the one to reach; see :func:`raise_opset`."""
    current = model.opset_imports.get("")
    newest = onnx.defs.onnx_opset_version()
    if current is None:
        if any(node.domain == "" for node in all_nodes(model)):
            raise ModelError("it uses standard operators but imports no version of them", where="invalid model")
        current = opset or minimum
        model.opset_imports[""] = current
    if current > newest:
        raise ModelError(
            f"it uses opset {current}, newer than the installed onnx knows ({newest})",
            where="opset",
            hint="Upgrade the onnx and onnxruntime packages",
        )
    target = max(current, minimum) if opset is None else opset
    if target < current:
        raise OptionError(
            f"opset {target} is older than the model's own, {current}",
            hint=f"Ask for {current} or more: opsets are never lowered",
        )
    if opset is not None and target > newest:
        raise OptionError(f"opset {target} is not known; the installed onnx knows up to {newest}")
    return current, target


def _converted(model: ir.Model, target: int) -> tuple[onnx.ModelProto, dict[str, ir.Value]]:
    """What onnx's converter makes of a model, checked, and the big tensors left out of it."""
    proto, big = skeleton(model)
    types = {v.name: v.dtype for node in all_nodes(model) for v in node.inputs if v is not None}
    converted = convert(proto, target, types)
    converted.ir_version = max(proto.ir_version, _ir_version(target))
    onnx.checker.check_model(converted)
    return converted, big


def _ir_version(opset: int) -> int:
    known = onnx.helper.OP_SET_ID_VERSION_MAP.get(("ai.onnx", opset))
    return max(MIN_IR, int(known or 0))


def _raise_ir(model: ir.Model, opset: int) -> None:
    model.ir_version = max(model.ir_version, _ir_version(opset))


def changed_operators(graph: ir.Graph, current: int, target: int) -> set[str]:
    """The standard operators of a graph and its subgraphs whose meaning or form may differ between two versions."""
    changed: set[str] = set()
    seen: set[str] = set()
    for node in (node for inner in with_subgraphs(graph) for node in inner):
        if node.domain != "":
            continue
        op = node.op_type
        if op == "BatchNormalization" and current < 14 and sum(bool(v.name) for v in node.outputs) > 1:
            changed.add(op)
        if op in seen:
            continue
        seen.add(op)
        if not onnx.defs.has(op):
            continue  # no such operator: the checker's business, nothing to convert
        for version in range(current + 1, target + 1):
            try:
                schema = onnx.defs.get_schema(op, version)
            except onnx.defs.SchemaError:
                changed.add(op)
                break
            if schema.deprecated or (schema.since_version == version and op not in _ADDITIVE.get(version, frozenset())):
                changed.add(op)
                break
    return changed

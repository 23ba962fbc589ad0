"""Products and convolutions that onnxruntime's optimizer fused with what follows them, as ONNX writes them.

onnxruntime saves them so in an optimized model, and fuses them again when it loads the result where they stay float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.domains import MICROSOFT
from onnxq.graph.edits import replace_nodes, set_constant, stand_for
from onnxq.graph.layer import FLOATS, Refusal, check_finite, replace_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array, input_of, rank_of

__all__ = ["unfuse"]

_OPSET = 14
"""From here on ONNX has all of the functions; Clip has its bounds as inputs."""
_OWN = ("activation", "activation_params", "activation_alpha", "activation_beta", "activation_gamma")
_OF_GEMM: Mapping[str, Sequence[str]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "Celu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}
"""Functions that FusedGemm has, and what each of them takes; onnxruntime 1.31 has no defaults for those."""
_OF_CONV: Mapping[str, Sequence[str]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
"""Functions that FusedConv has, and what the numbers of its ``activation_params`` are."""


def unfuse(model: ir.Model) -> list[Note]:
    """Write FusedConv, FusedGemm and FusedMatMul of ``com.microsoft`` with Conv, Gemm, MatMul and what is in them.

    A FusedMatMul becomes a MatMul where its second input is constant: alpha and the constant's transposition go into
    it, that of the first input becomes a Transpose. Products of two activations stay as they are.

    Args:
        model: changed in place. Constants must be folded. The node keeps its name, its output its own.

    Returns:
        A note of how many of which, and one for each that was left, with the reason.
    """
    notes: list[Note] = []
    done: dict[str, int] = {}
    namer = Namer(model)
    opset = model.opset_imports.get("", 0)
    for node in list(all_nodes(model)):
        op = node.op_type
        if node.domain != MICROSOFT or op not in ("FusedConv", "FusedGemm", "FusedMatMul"):
            continue
        try:
            if op == "FusedMatMul":
                if constant_array(node.inputs[1]) is None:
                    continue
                _plain_product(node, namer)
            else:
                _plain_layer(node, namer, opset)
        except Refusal as reason:
            notes.append(Note("unfuse", node.name or "", f"not taken apart: {reason}"))
            continue
        done[op] = done.get(op, 0) + 1
    said = ", ".join(f"{count} {op}" for op, count in sorted(done.items()))
    return [Note("unfuse", "", f"written with operators of ONNX: {said}"), *notes] if said else notes


def _plain_product(node: ir.Node, namer: Namer) -> None:
    attributes = node.attributes
    flags = {name: attributes.get_int(name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")}
    data, weight, alpha = node.inputs[0], node.inputs[1], attributes.get_float("alpha", 1.0)
    array, graph = constant_array(weight), node.graph
    assert data is not None and weight is not None and array is not None and graph is not None
    rank = rank_of(data)
    if flags["transBatchA"] or flags["transBatchB"]:
        raise Refusal("it moves axes of batches")
    if flags["transA"] and rank is None:
        raise Refusal("it transposes its data, and how many axes that has is unknown")
    if weight.dtype is None or weight.dtype not in FLOATS:
        raise Refusal("its weight is not of a float type")
    changed: AnyArray = np.swapaxes(array, -1, -2) if flags["transB"] and array.ndim > 1 else array
    if alpha != 1.0:
        changed = changed.astype(np.float64) * alpha
        check_finite(changed, dtype=weight.dtype)
    if changed is not array:
        replace_constant(node, 1, np.ascontiguousarray(changed), namer, f"{node.name}_weight", weight.dtype)
    stand_for(node, [node])
    if flags["transA"] and rank is not None and rank > 1:
        order = [*range(rank - 2), rank - 1, rank - 2]
        turn = ir.node("Transpose", [data], {"perm": order}, name=namer.node(f"{node.name}_Transpose"))
        turned = turn.outputs[0]
        turned.name, turned.type = namer.fresh(f"{data.name}_transposed"), data.type
        turned.shape = ir.Shape([data.shape[axis] for axis in order]) if data.shape is not None else None
        graph.insert_before(node, [turn])
        node.replace_input_with(0, turned)
    for name in (*flags, "alpha"):
        attributes.pop(name, None)
    node.op_type, node.domain = "MatMul", ""


def _plain_layer(node: ir.Node, namer: Namer, opset: int) -> None:
    """A FusedConv or FusedGemm as the layer, the Add of a fourth input, and the activation function."""
    op = node.op_type.removeprefix("Fused")
    function = node.attributes.get_string("activation", "")
    numbers = _numbers(node, function, _OF_CONV if op == "Conv" else _OF_GEMM, opset)
    graph, old, name = node.graph, node.outputs[0], node.name
    if not isinstance(graph, ir.Graph):
        raise Refusal("it belongs to no graph")
    attributes = [attribute for key, attribute in node.attributes.items() if key not in _OWN]
    made = [ir.Node("", op, node.inputs[:3], attributes, num_outputs=1)]
    if op == "Conv" and input_of(node, 3) is not None:
        made.append(ir.node("Add", [made[-1].outputs[0], node.inputs[3]], name=namer.node(f"{name}_Add")))
    if function:
        bounds: list[ir.Value] = []
        if function == "Clip":
            kind = (old.dtype or ir.DataType.FLOAT).numpy()
            bounds = [set_constant(graph, namer, f"{name}_{k}", np.asarray(v, kind)) for k, v in numbers.items()]
        given = {} if bounds else numbers
        made.append(ir.node(function, [made[-1].outputs[0], *bounds], given, name=namer.node(f"{name}_{function}")))
    made[0].metadata_props.update(node.metadata_props)
    for step in made[:-1]:
        step.outputs[0].name = namer.fresh(f"{old.name}_{step.op_type.lower()}")
        step.outputs[0].type = old.type
        step.outputs[0].shape = old.shape.copy() if old.shape is not None else None
    for step in made:
        stand_for(step, [node])
    made[0].name, node.name = name, None
    replace_nodes([node], *made)


def _numbers(node: ir.Node, function: str, known: Mapping[str, Sequence[str]], opset: int) -> dict[str, float]:
    if not function and node.op_type == "FusedConv":
        return {}
    if function not in known or opset < _OPSET:
        raise Refusal(f"its activation {function!r} is not an operator of ONNX's opset {opset}")
    wanted = known[function]
    if node.op_type == "FusedConv":
        given = list(node.attributes.get_floats("activation_params", ()))
        if wanted and len(given) != len(wanted):
            raise Refusal(f"{function} takes {len(wanted)} numbers, its activation_params has {len(given)}")
        return dict(zip(wanted, given, strict=False))
    found = {name: node.attributes.get(f"activation_{name}") for name in wanted}
    if any(value is None for value in found.values()):
        raise Refusal(f"{function} lacks a number")
    return {name: value.as_float() for name, value in found.items() if value is not None}

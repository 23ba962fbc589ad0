"""Computes what nodes make of constants, all of them in one run of onnxruntime with its optimizations off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.errors import ExecutionError
from onnxq.graph.values import AnyArray, constant_array
from onnxq.ort.session import Session

__all__ = ["evaluate", "piece"]

_INLINE_BYTES = 1024
"""Constants up to this size are written into the piece, where shape inference can see their numbers."""


def piece(
    nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], *, opset_imports: Mapping[str, int], ir_version: int
) -> tuple[onnx.ModelProto, list[ir.Value]]:
    """A model of some nodes alone, whose every outside input is a constant.

    Args:
        nodes: in order.
        outputs: the values to compute.
        opset_imports: the versions the nodes are written for.
        ir_version: as the model's.

    Returns:
        The model, and the bigger constants, which it has as inputs.
    """
    proto = onnx.ModelProto(ir_version=ir_version)
    for domain, version in opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    graph = proto.graph
    graph.name = "constants"
    made = {value for node in nodes for value in node.outputs}
    feeds: list[ir.Value] = []
    seen: set[ir.Value] = set()
    for node in nodes:
        ir.serde.serialize_node_into(graph.node.add(), node)
        for value in node.inputs:
            if value is None or value in made or value in seen:
                continue
            seen.add(value)
            tensor = value.const_value
            if tensor is None:
                continue
            if tensor.nbytes <= _INLINE_BYTES:
                graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(tensor.numpy()), value.name or ""))
            else:
                graph.input.append(
                    onnx.helper.make_tensor_value_info(value.name or "", tensor.dtype.value, tensor.shape.numpy())
                )
                feeds.append(value)
    for value in outputs:
        graph.output.add().name = value.name or ""
    return proto, feeds


def evaluate(
    nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], *, opset_imports: Mapping[str, int], ir_version: int
) -> dict[ir.Value, AnyArray]:
    """Runs nodes whose every outside input is a constant.

    When onnxruntime refuses the whole (an operator it lacks), the nodes are run one by one and those that fail, with
    all that hang on them, are left out.

    Args:
        nodes: in order.
        outputs: the values wanted.
        opset_imports: the versions the nodes are written for.
        ir_version: as the model's.

    Returns:
        The values that could be computed.
    """
    if not nodes or not outputs:
        return {}
    try:
        return _run(nodes, outputs, {}, opset_imports, ir_version)
    except ExecutionError:
        pass
    known: dict[ir.Value, AnyArray] = {}
    made = {value for node in nodes for value in node.outputs}
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        if any(value in made and value not in known for value in inputs):
            continue
        try:
            known.update(_run([node], [v for v in node.outputs if v.name], known, opset_imports, ir_version))
        except ExecutionError:
            continue
    return {value: known[value] for value in outputs if value in known}


def _run(
    nodes: Sequence[ir.Node],
    outputs: Sequence[ir.Value],
    known: Mapping[ir.Value, AnyArray],
    opset_imports: Mapping[str, int],
    ir_version: int,
) -> dict[ir.Value, AnyArray]:
    proto, feeds = piece(nodes, outputs, opset_imports=opset_imports, ir_version=ir_version)
    arrays = {value.name or "": array for value in feeds if (array := constant_array(value)) is not None}
    made = {value for node in nodes for value in node.outputs}
    for node in nodes:
        for value in node.inputs:
            if value in known and value not in made and value is not None and value.name not in arrays:
                array = known[value]
                arrays[value.name or ""] = array
                elem_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                proto.graph.input.append(onnx.helper.make_tensor_value_info(value.name or "", elem_type, array.shape))
    session = Session(proto.SerializeToString(), optimize=False, threads=1)
    results = session.run(arrays, [value.name or "" for value in outputs])
    return {value: np.asarray(results[value.name or ""]) for value in outputs}

"""What one node makes of arrays, in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.errors import ExecutionError
from onnxq.graph.values import AnyArray
from onnxq.ort.session import Session

__all__ = ["run_alone"]


def run_alone(node: ir.Node, arrays: Sequence[AnyArray | None], *, opset: int, ir_version: int) -> AnyArray | None:
    """Runs a standard operator as a node has it, on other inputs.

    Args:
        node: left as it is; it has one output, of the type of its first input.
        arrays: in place of its inputs; the first is there.
        opset: the node is of.
        ir_version: as the model's.

    Returns:
        The output; None where onnxruntime refuses it.
    """
    first, *rest = arrays
    assert first is not None
    fed = ir.Value(name="fed", type=ir.TensorType(ir.tensor(first).dtype), shape=ir.Shape(first.shape))
    constants = [
        None if array is None else ir.Value(name=f"constant{index}", const_value=ir.tensor(array))
        for index, array in enumerate(rest)
    ]
    copy = ir.Node("", node.op_type, [fed, *constants], list(node.attributes.values()), num_outputs=1)
    copy.outputs[0].name, copy.outputs[0].type = "made", fed.type
    graph = ir.Graph(
        [fed],
        copy.outputs,
        nodes=[copy],
        initializers=[value for value in constants if value is not None],
        opset_imports={"": opset},
        name="alone",
    )
    try:
        return Session(ir.Model(graph, ir_version=ir_version), optimize=False).run({"fed": first})["made"]
    except ExecutionError:
        return None

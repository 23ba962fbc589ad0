"""Weights of onnxruntime's own operators that take floats alone: stored in blocks, unpacked once, at load.

What unpacks them is Cast, Sub and Mul: onnxruntime computes these where they depend on constants alone, when it loads a
model; a DequantizeLinear it would compute at every run.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.grid import Coded, block_size
from onnxq.weight_only.tensors import packed_tensor

__all__ = ["unpack", "whole_tensors"]


def whole_tensors(coded: Coded, matrix: Matrix) -> dict[str, ir.TensorProtocol]:
    """``"codes"``, ``"scale"`` and ``"zero"`` of three axes, blocks and what is in them apart.

    Codes of (outputs, blocks, size), or (blocks, size, outputs) where the inputs lie along axis 0; scales and zero
    points with a size of 1.
    """
    bits, size = coded.spec.bits, block_size(coded.spec)

    def laid(array: NDArray[np.generic], length: int) -> NDArray[np.generic]:
        apart = array.reshape(len(array), -1, length)
        return np.ascontiguousarray(apart.transpose(1, 2, 0)) if matrix.axis == 0 else apart

    parts: dict[str, ir.TensorProtocol] = {
        "codes": packed_tensor(laid(coded.codes, size), bits),  # type: ignore[arg-type]
        "scale": ir.Tensor(laid(coded.scale, 1)),
    }
    if not coded.spec.symmetric:
        parts["zero"] = packed_tensor(laid(coded.zero, 1), bits)  # type: ignore[arg-type]
    return parts


def unpack(matrix: Matrix, constants: list[ir.Value], namer: Namer) -> None:
    """Let the readers of a matrix read what its integers are unpacked to.

    Args:
        matrix: of a model, changed in place.
        constants: integers, scales and perhaps zero points, initializers of the graph that holds the matrix.
        namer: of the model.
    """
    home, base = matrix.value.graph, matrix.value.name or "weight"
    assert isinstance(home, ir.Graph) and matrix.value.const_value is not None
    shape = matrix.value.const_value.shape.numpy()
    codes, scale, *zero = constants
    made: list[ir.Node] = []

    def add(op: str, inputs: list[ir.Value], attributes: dict[str, int] | None = None) -> ir.Value:
        node = ir.node(op, inputs, attributes, name=namer.node(f"{base}_{op}"))
        node.outputs[0].name = namer.fresh(f"{base}_{op.lower()}")
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        made.append(node)
        return node.outputs[0]

    wide = {"to": int(ir.DataType.FLOAT)}
    value = add("Cast", [codes], wide)
    if zero:
        value = add("Sub", [value, add("Cast", [zero[0]], wide)])
    value = add("Mul", [value, scale])
    value = add("Reshape", [value, set_constant(home, namer, f"{base}_shape", np.asarray(shape, np.int64))])
    value.shape = ir.Shape(shape)
    home.insert_before(home[0], made)
    for node in matrix.nodes:
        for position, read in enumerate(node.inputs):
            if read is matrix.value:
                node.replace_input_with(position, value)

"""Operators that can compute on a tensor with its axes in another order: which, and how they are rewritten for it.

Throughout ``perm`` is that of a Transpose: a tensor in the order of the file is ``Transpose(perm)`` of the tensor in
the other order, so axis ``i`` of the former is axis ``perm[i]`` of the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.recognition.region import axes_of
from onnxq.graph.values import AnyArray, constant_array, input_of, is_constant, rank_of, static_shape

__all__ = ["PERMUTABLE", "can_permute", "keeps_order", "permute"]

_UNARY = (
    *("Abs", "Cast", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"),
    *("Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign"),
    *("Sqrt", "Tanh", "ThresholdedRelu", "Identity"),
)
_BROADCASTING = ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mean", "Sum", "PRelu", "Where")
_ELEMENTWISE = frozenset((*_UNARY, *_BROADCASTING))
_ALONG_AXIS = {"Concat": 0, "Split": 0, "Softmax": -1, "LogSoftmax": -1}
"""Operator → the axis it has by default."""
_REDUCTIONS = frozenset(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceProd"))
PERMUTABLE = _ELEMENTWISE | _ALONG_AXIS.keys() | _REDUCTIONS | {"Pad", "Slice"}
"""Types of all of them."""
_NEW_SOFTMAX = 13
"""Before, Softmax took all axes from its own on as one."""

Inside = Callable[[ir.Value], bool]


def can_permute(node: ir.Node, perm: Sequence[int], inside: Inside, opset: int) -> bool:
    """Whether a node can compute on tensors in the other order.

    Args:
        node: any.
        perm: see above.
        inside: whether a tensor will be there in the other order.
        opset: version of the standard operators.
    """
    if node.domain != "" or any(value is not None and value.shape is None for value in node.outputs):
        return False
    op, inputs = node.op_type, node.inputs
    data = inputs[0] if inputs else None
    if op in _ELEMENTWISE or op == "Concat":
        whole = op == "Concat"
        read = [value for value in inputs if value is not None]
        return any(map(inside, read)) and all(inside(v) or _fixed(v, len(perm), whole=whole) for v in read)
    if data is None or not inside(data):
        return False
    if op in ("Softmax", "LogSoftmax"):
        return opset >= _NEW_SOFTMAX
    if op in _REDUCTIONS:
        axes = _axes(node, len(perm))
        if not axes:
            return False
        left = [perm[i] for i in range(len(perm)) if i not in axes]
        return _keeps_dims(node) or left == sorted(left)
    if op == "Pad":
        return _constants(node, 1) and _optional_constant(node, 3)
    if op == "Slice":
        return _constants(node, 3)
    return op == "Split"


def keeps_order(node: ir.Node) -> bool:
    """Whether what a node writes is in the order of what it reads; a reduction that drops its axes has one order."""
    return node.op_type not in _REDUCTIONS or _keeps_dims(node)


def permute(node: ir.Node, perm: Sequence[int], inside: Inside, graph: ir.Graph, namer: Namer) -> None:
    """Rewrite the axes and constants of a node, whose tensors ``inside`` have changed their order.

    Args:
        node: one that :func:`can_permute`, before its tensors changed; changed in place.
        perm: see above.
        inside: whether a tensor is in the other order.
        graph: where constants go.
        namer: names them.
    """
    op = node.op_type
    if op in _ELEMENTWISE or op == "Concat":
        for index, value in enumerate(node.inputs):
            array = None if value is None or inside(value) else constant_array(value)
            if value is not None and array is not None and array.ndim and array.size != 1:
                node.replace_input_with(
                    index, set_constant(graph, namer, f"{value.name}_permuted", _moved(array, perm))
                )
    if op in _ALONG_AXIS:
        axis = node.attributes.get_int("axis", _ALONG_AXIS[op])
        node.attributes["axis"] = ir.AttrInt64("axis", perm[axis % len(perm)])
    elif op in _REDUCTIONS:
        axes = sorted(perm[axis] for axis in _axes(node, len(perm)))
        if "axes" in node.attributes:
            node.attributes["axes"] = ir.AttrInt64s("axes", axes)
        else:
            _set(node, 1, np.asarray(axes, np.int64), graph, namer)
    elif op == "Pad":
        given = input_of(node, 3)
        if given is not None:
            _set(node, 3, _renumbered(constant_array(given), perm), graph, namer)
        else:
            pads = constant_array(node.inputs[1])
            assert pads is not None
            _set(node, 1, np.concatenate([part[_inverse(perm)] for part in np.split(pads, 2)]), graph, namer)
    elif op == "Slice":
        _set(node, 3, _renumbered(constant_array(node.inputs[3]), perm), graph, namer)


def _fixed(value: ir.Value, rank: int, *, whole: bool) -> bool:
    """Whether a tensor is a constant that can be written in the other order, or one number in any."""
    if is_constant(value):
        own = rank_of(value)
        return own is not None and (own == rank or (own < rank and not whole))
    shape = static_shape(value)
    return not whole and shape is not None and len(shape) <= rank and all(dim == 1 for dim in shape)


def _moved(array: AnyArray, perm: Sequence[int]) -> AnyArray:
    wide = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
    return np.ascontiguousarray(wide.transpose(_inverse(perm)))


def _renumbered(axes: AnyArray | None, perm: Sequence[int]) -> AnyArray:
    assert axes is not None
    return np.asarray([perm[int(axis) % len(perm)] for axis in axes.reshape(-1)], axes.dtype)


def _inverse(perm: Sequence[int]) -> list[int]:
    return [int(axis) for axis in np.argsort(perm)]


def _axes(node: ir.Node, rank: int) -> list[int]:
    """What a reduction reduces; nothing where that is all or not known."""
    return [axis % rank for axis in axes_of(node) or ()]


def _keeps_dims(node: ir.Node) -> bool:
    return node.attributes.get_int("keepdims", 1) == 1


def _constants(node: ir.Node, index: int) -> bool:
    return constant_array(input_of(node, index)) is not None


def _optional_constant(node: ir.Node, index: int) -> bool:
    return input_of(node, index) is None or _constants(node, index)


def _set(node: ir.Node, index: int, array: AnyArray, graph: ir.Graph, namer: Namer) -> None:
    old = node.inputs[index]
    assert old is not None
    node.replace_input_with(index, set_constant(graph, namer, f"{old.name}_permuted", array))

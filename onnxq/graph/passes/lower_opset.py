"""Lowering the version of the standard operator set, for runtimes that read none newer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx.defs
import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, remove_nodes, rename_output, set_constant, static_shape

__all__ = ["lower_opset", "newer_than"]

_MOVES = "Cast CastLike Constant ConstantOfShape DequantizeLinear Flatten Identity If Loop Pad QuantizeLinear "
_MOVES += "Reshape Scan Shape Size Squeeze Transpose Unsqueeze"
# Versions that only add types, inputs or attributes: what an older one can say means the same there
# (https://github.com/onnx/onnx/blob/main/docs/Changelog.md).
_ADDITIVE: dict[int, frozenset[str]] = {
    version: frozenset(names.split())
    for version, names in {
        20: "ConstantOfShape IsInf IsNaN ReduceMax ReduceMin",
        21: _MOVES,
        22: "Acos Acosh Asin Asinh Atan Atanh AveragePool Bernoulli Conv ConvTranspose Cos Cosh Det Dropout Elu "
        "EyeLike GRU GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample HardSigmoid HardSwish "
        "InstanceNormalization LSTM LpNormalization LpPool MaxPool Mish RNN RandomNormal RandomNormalLike "
        "RandomUniform RandomUniformLike RoiAlign Round Selu Sin Sinh Softplus Softsign Tan ThresholdedRelu",
        23: _MOVES,
        24: f"{_MOVES} SplitToSequence TopK",
        25: _MOVES,
    }.items()
}
_OLDEST = 19
"""Down to here the changes above are all that there are."""


def newer_than(model: ir.Model, most: int) -> list[ir.Node]:
    """The standard operators of a model that an opset, 19 or newer, cannot say.

    Args:
        model: shapes inferred.
        most: the opset.
    """
    current = model.opset_imports.get("", 0)
    if most < _OLDEST:
        return list(all_nodes(model))
    nodes = [node for node in all_nodes(model) if node.domain in ("", "ai.onnx")]
    return [n for n in nodes if not _is_said(n, current, most) and not _is_written(n, current, most)]


def lower_opset(model: ir.Model, most: int) -> list[Note]:
    """Lower the standard operator set to a version, where nothing is newer, see :func:`newer_than`.

    Gelu, Swish, and the GroupNormalization of opset 21 become older operators where they have to.

    Args:
        model: changed in place, shapes inferred. Its tensors keep their names and numbers.
        most: the version.
    """
    current, namer = model.opset_imports.get("", 0), Namer(model)
    for node in list(all_nodes(model)):
        if node.domain in ("", "ai.onnx") and not _is_said(node, current, most):
            made = _WRITERS[node.op_type](_Chain(node, namer))
            rename_output(made, node.outputs[0])
            remove_nodes([node])
    model.opset_imports[""] = most
    infer_shapes(model)
    return [Note("opset", "", f"lowered from {current} to {most}")]


def _is_said(node: ir.Node, current: int, most: int) -> bool:
    """Whether the older version of a node's operator can say it, and means the same."""
    try:
        now, then = (onnx.defs.get_schema(node.op_type, version) for version in (current, most))
    except onnx.defs.SchemaError:
        return not onnx.defs.has(node.op_type)  # no such operator: not ours
    if now.since_version == then.since_version:
        return True
    changed = (v for v in range(most + 1, current + 1) if onnx.defs.get_schema(node.op_type, v).since_version == v)
    if any(node.op_type not in _ADDITIVE.get(version, frozenset()) for version in changed):
        return False
    known = set(node.attributes) <= set(then.attributes) and len(node.inputs) <= then.max_input
    return known and all(_types(node.inputs, then.inputs)) and all(_types(node.outputs, then.outputs))


def _types(values: Sequence[ir.Value | None], formal: Sequence[onnx.defs.OpSchema.FormalParameter]) -> Iterator[bool]:
    """Whether each operand has one of the types that it may have."""
    for index, value in enumerate(values):
        if value is not None and value.dtype is not None and isinstance(value.type, ir.TensorType) and formal:
            types = formal[min(index, len(formal) - 1)].types
            yield f"tensor({str(value.dtype).lower()})" in types


def _is_written(node: ir.Node, current: int, most: int) -> bool:
    """Whether an operator can be written as older ones here."""
    x = node.inputs[0] if node.inputs else None
    if node.op_type not in _WRITERS or x is None or x.dtype is not ir.DataType.FLOAT:
        return False
    if node.op_type != "GroupNormalization":
        return True
    ranked = x.shape is not None and len(x.shape) > 2 and isinstance(x.shape[1], int)
    return current >= 21 and ranked and all(constant_array(value) is not None for value in node.inputs[1:])


class _Chain:
    """Puts nodes in front of one, of which the last gives what it gives."""

    def __init__(self, node: ir.Node, namer: Namer) -> None:
        assert isinstance(node.graph, ir.Graph) and node.inputs[0] is not None
        self.node, self.graph, self.namer, self.x = node, node.graph, namer, node.inputs[0]

    def put(self, op: str, *inputs: ir.Value, **attributes: ir.Attr) -> ir.Value:
        name = self.namer.node(f"{self.node.name}_{op}")
        made = ir.node(op, list(inputs), attributes=attributes or None, name=name)
        made.outputs[0].name = self.namer.fresh(f"{self.node.outputs[0].name}_{op}")
        made.outputs[0].type = self.x.type
        self.graph.insert_before(self.node, [made])
        return made.outputs[0]

    def number(self, value: float) -> ir.Value:
        return set_constant(self.graph, self.namer, f"{self.node.name}_number", np.asarray(value, np.float32))


def _gelu(chain: _Chain) -> ir.Value:
    x, number = chain.x, chain.number
    approximate = chain.node.attributes.get("approximate")
    if approximate is not None and approximate.as_string() == "tanh":
        cube = chain.put("Mul", chain.put("Mul", x, chain.put("Mul", x, x)), number(0.044715))
        inner = chain.put("Tanh", chain.put("Mul", chain.put("Add", x, cube), number((2 / np.pi) ** 0.5)))
    else:
        inner = chain.put("Erf", chain.put("Div", x, number(2**0.5)))
    product = chain.put("Mul", x, chain.put("Add", inner, number(1.0)))
    return chain.put("Mul", product, number(0.5))


def _swish(chain: _Chain) -> ir.Value:
    alpha = chain.node.attributes.get_float("alpha", 1.0)
    inner = chain.x if alpha == 1.0 else chain.put("Mul", chain.x, chain.number(alpha))
    return chain.put("Mul", chain.x, chain.put("Sigmoid", inner))


def _group_normalization(chain: _Chain) -> ir.Value:
    """Normalized as pictures of one channel a group, then scaled channel by channel."""
    node, x = chain.node, chain.x
    assert x.shape is not None
    groups, rank = node.attributes.get_int("num_groups", 1), len(x.shape)

    def constant(name: str, array: np.ndarray) -> ir.Value:
        return set_constant(chain.graph, chain.namer, f"{node.name}_{name}", array)

    split = chain.put("Reshape", x, constant("groups", np.asarray([0, groups, -1])))
    ones, zeros = (constant(name, np.full(groups, n, np.float32)) for name, n in (("ones", 1), ("zeros", 0)))
    epsilon = ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-5))
    normal = chain.put("InstanceNormalization", split, ones, zeros, epsilon=epsilon)
    dims = static_shape(x)
    shape = chain.put("Shape", x) if dims is None else constant("shape", np.asarray(dims, np.int64))
    if dims is None:
        shape.type = ir.TensorType(ir.DataType.INT64)
    result = chain.put("Reshape", normal, shape)
    for op, value in (("Mul", node.inputs[1]), ("Add", node.inputs[2])):
        array = constant_array(value)
        assert array is not None
        result = chain.put(op, result, constant(op.lower(), array.reshape(-1, *[1] * (rank - 2))))
    return result


_WRITERS: dict[str, Callable[[_Chain], ir.Value]] = {
    "Gelu": _gelu,
    "GroupNormalization": _group_normalization,
    "Swish": _swish,
}

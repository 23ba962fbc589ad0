"""Operators that onnxruntime has in the standard's own domain and ONNX has not, written with those of the standard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import with_subgraphs
from onnxq.graph.values import rank_of

__all__ = ["expand_runtime_operators"]

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_FIRST_BROADCAST = 7
"""From this opset on arithmetic operators broadcast as numpy does."""
_AXES_INPUT = 18
"""From this opset on ReduceMean takes its axes as an input."""


def expand_runtime_operators(model: ir.Model) -> list[Note]:
    """Writes operators that onnxruntime alone has in domain ``""`` with operators of ONNX.

    They are SimplifiedLayerNormalization, of any opset, and LayerNormalization before opset 17, which brought it to
    ONNX: onnxruntime's own optimizer leaves both in models, and fuses them again when it loads the result. In opsets 7
    to 9 also Affine, ImageScaler, ParametricSoftplus, Scale and ScaledTanh. No checker, converter or shape inference
    of ONNX knows any of them.

    Args:
        model: changed in place, with its functions. A node's tensors keep their names, and what makes the first of
            them has the name of the node. A node of which the types or the rank, as far as they are needed, are not to
            be found out stays.

    Returns:
        A note of how many of which, if any.
    """
    owners = [model.graph, *(function.graph for function in model.functions.values())]
    graphs = [inner for owner in owners for inner in with_subgraphs(owner)]
    opset = model.opset_imports.get("", 0)
    found = [node for graph in graphs for node in graph if node.domain == "" and _body_of(node.op_type, opset)]
    if not found:
        return []
    namer = Namer(model)
    counts: dict[str, int] = {}
    inferred = False
    for node in found:
        body = _body_of(node.op_type, opset)
        assert body is not None
        writer = _Writer(node, opset, namer)
        made = body(writer)
        if made is None and not inferred:
            infer_shapes(model)
            inferred = True
            made = body(writer)
        if made is None:
            continue
        writer.replace(made)
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    said = ", ".join(f"{count} {op}" for op, count in sorted(counts.items()))
    return [Note("runtime_operators", "", f"written with operators of ONNX: {said}")] if said else []


class _Writer:
    """Writes nodes that take another's place."""

    def __init__(self, node: ir.Node, opset: int, namer: Namer) -> None:
        self.node = node
        self.opset = opset
        self.made: list[ir.Node] = []
        self._namer = namer

    @property
    def x(self) -> ir.Value:
        """The node's first input."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    def number(self, name: str, default: float) -> float:
        """A number among the node's attributes."""
        return float(self.node.attributes.get_float(name, default))

    def op(self, op: str, *inputs: ir.Value, **attributes: int | Sequence[int]) -> ir.Value:
        """What a standard operator makes of some values."""
        given = [
            ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrInt64s(name, value)
            for name, value in attributes.items()
        ]
        return self._add(ir.Node("", op, inputs, given, num_outputs=1), op)

    def constant(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], dtype: ir.DataType) -> ir.Value:
        """Numbers, of a type."""
        held = np.asarray(array, dtype.numpy())
        tensor = ir.Tensor(held, dtype=dtype)
        made = self._add(ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1), "constant")
        made.shape = ir.Shape(held.shape)
        made.type = ir.TensorType(dtype)
        return made

    def replace(self, outputs: Sequence[ir.Value]) -> None:
        """Puts what was written in the node's place; ``outputs`` stand for the node's own, in order."""
        graph = self.node.graph
        assert graph is not None
        graph.insert_before(self.node, self.made)
        for new, old in zip(outputs, self.node.outputs, strict=False):
            if old.name:
                rename_output(new, old)
        producer = outputs[0].producer()
        assert producer is not None
        name, self.node.name = self.node.name, None
        producer.name = name
        producer.metadata_props.update(self.node.metadata_props)
        remove_nodes([self.node])

    def _add(self, node: ir.Node, part: str) -> ir.Value:
        base = self.node.name or self.node.op_type
        node.name = self._namer.node(f"{base}_{part}")
        node.outputs[0].name = self._namer.fresh(f"{base}_{part}")
        self.made.append(node)
        return node.outputs[0]


def _dtype(value: ir.Value | None) -> ir.DataType | None:
    """The type of a value, that of a Constant node with numbers among them."""
    if value is None or value.dtype in _FLOATS:
        return value.dtype if value is not None else None
    if value.const_value is not None:
        return value.const_value.dtype
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        return producer.attributes["value"].as_tensor().dtype
    return None


def _simplified_layer_normalization(writer: _Writer) -> Sequence[ir.Value] | None:
    """x / sqrt(mean(x²) + epsilon) · scale, in float32 or float64, as onnxruntime computes it; 1 / sqrt(…) as well."""
    return _normalized(writer, centred=False)


def _layer_normalization(writer: _Writer) -> Sequence[ir.Value] | None:
    """The same of x less its mean, and a bias; the mean as well."""
    return _normalized(writer, centred=True)


def _normalized(writer: _Writer, *, centred: bool) -> Sequence[ir.Value] | None:
    node, x = writer.node, writer.x
    scale, bias = (*node.inputs[1:], None, None)[:2]
    result, given = _dtype(scale), _dtype(x)
    axis = node.attributes.get_int("axis", -1)
    rank = rank_of(x)
    if scale is None or result not in _FLOATS or (axis >= 0 and rank is None):
        return None
    axes = list(range(axis - (rank or 0) if axis >= 0 else axis, 0))
    inner = ir.DataType.DOUBLE if ir.DataType.DOUBLE in (result, given) else ir.DataType.FLOAT

    def widened(value: ir.Value, kind: ir.DataType | None) -> ir.Value:
        return value if kind == inner else writer.op("Cast", value, to=inner.value)

    def mean_of(value: ir.Value) -> ir.Value:
        if writer.opset < _AXES_INPUT:
            return writer.op("ReduceMean", value, axes=axes, keepdims=1)
        return writer.op("ReduceMean", value, writer.constant(np.array(axes), ir.DataType.INT64), keepdims=1)

    wide, factor = widened(x, given), widened(scale, result)
    mean = mean_of(wide) if centred else None
    wide = wide if mean is None else writer.op("Sub", wide, mean)
    squares = writer.op("Pow", wide, writer.constant(np.array(2.0), inner))
    epsilon = writer.constant(np.array(writer.number("epsilon", 1e-5)), inner)
    root = writer.op("Sqrt", writer.op("Add", mean_of(squares), epsilon))
    made = writer.op("Mul", writer.op("Div", wide, root), factor)
    made = made if bias is None or not centred else writer.op("Add", made, widened(bias, result))
    found = [made if result == inner else writer.op("Cast", made, to=result.value)]
    wanted = [bool(output.name) for output in node.outputs[1:]]
    others = [mean] if mean is not None and any(wanted) else []
    others += [writer.op("Reciprocal", root)] if any(wanted[len(others) :]) else []
    single = inner == ir.DataType.FLOAT
    return [*found, *(o if single else writer.op("Cast", o, to=ir.DataType.FLOAT.value) for o in others)]


def _affine(writer: _Writer) -> Sequence[ir.Value] | None:
    return _scaled(writer, writer.x, writer.number("alpha", 1.0), np.array(writer.number("beta", 0.0)))


def _scale(writer: _Writer) -> Sequence[ir.Value] | None:
    return _scaled(writer, writer.x, writer.number("scale", 1.0), None)


def _image_scaler(writer: _Writer) -> Sequence[ir.Value] | None:
    bias = np.array(writer.node.attributes.get_floats("bias", []), np.float64).reshape(-1, 1, 1)
    return _scaled(writer, writer.x, writer.number("scale", 1.0), bias if bias.size else None)


def _scaled_tanh(writer: _Writer) -> Sequence[ir.Value] | None:
    inner = _scaled(writer, writer.x, writer.number("beta", 1.0), None)
    return inner and _scaled(writer, writer.op("Tanh", *inner), writer.number("alpha", 1.0), None)


def _parametric_softplus(writer: _Writer) -> Sequence[ir.Value] | None:
    inner = _scaled(writer, writer.x, writer.number("beta", 1.0), None)
    return inner and _scaled(writer, writer.op("Softplus", *inner), writer.number("alpha", 1.0), None)


def _scaled(
    writer: _Writer,
    value: ir.Value,
    factor: float,
    offset: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None,
) -> Sequence[ir.Value] | None:
    """value · factor + offset, float32 as onnxruntime's kernels of these operators are."""
    kind = ir.DataType.FLOAT
    made = writer.op("Mul", value, writer.constant(np.array(factor), kind))
    return [made if offset is None else writer.op("Add", made, writer.constant(offset, kind))]


_Body = Callable[[_Writer], Sequence[ir.Value] | None]
_OF_ANY: Mapping[str, _Body] = {"SimplifiedLayerNormalization": _simplified_layer_normalization}
_OF_OLD: Mapping[str, _Body] = {
    "Affine": _affine,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _parametric_softplus,
    "Scale": _scale,
    "ScaledTanh": _scaled_tanh,
}
_LAST_OLD = 9
_BEFORE_ONNX: Mapping[str, tuple[int, _Body]] = {"LayerNormalization": (17, _layer_normalization)}
"""With the opset that brought them."""


def _body_of(op: str, opset: int) -> _Body | None:
    if opset < _FIRST_BROADCAST:
        return None
    first, body = _BEFORE_ONNX.get(op, (0, None))
    if opset < first:
        return body
    return _OF_ANY.get(op) or (_OF_OLD.get(op) if opset <= _LAST_OLD else None)

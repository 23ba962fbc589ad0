"""Half-precision models become float32 inside; what comes in and goes out keeps its type."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.domains import MICROSOFT, STANDARD
from onnxq.graph.edits import replace_value
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import array_of, tensor_of
from onnxq.graph.widened import Widened

__all__ = ["GENERIC", "HALVES", "upcast"]

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

# fmt: off
GENERIC = frozenset({
    "Attention", "BiasGelu", "CausalConvWithState", "ConvTransposeWithDynamicPads", "CropAndResize",
    "DequantizeLinear", "EmbedLayerNormalization", "ExpandDims", "FastGelu", "FusedConv", "FusedGemm",
    "FusedMatMul", "GatedAdd", "GatedRMSNorm", "GatherBlockQuantized", "GatherND", "Gelu", "GridSample",
    "GroupQueryAttention", "Inverse", "LinearAttention", "LinearAttentionGate", "MRotaryEmbedding", "MatMulBnb4",
    "MatMulIntegerToFloat", "MatMulNBits", "MoE", "MultiHeadAttention", "Pad", "QAttention", "QMoE",
    "QuantizeLinear", "QuickGelu", "RotaryEmbedding", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "SparseAttention", "TransposeMatMul", "Trilu", "UnfoldTensor", "Unique",
})
# fmt: on
"""Operators of com.microsoft that onnxruntime 1.31 computes in float32 wherever it takes half precision."""
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "precision")


def upcast(model: ir.Model, *, streamed: bool = False) -> list[Note]:
    """Turns tensors in half precision into float32, with Casts at the graph's inputs and outputs only.

    Initializers, types asked for by attributes (Cast, EyeLike, RandomNormal …), tensors in attributes and all
    subgraphs are converted.

    Args:
        model: changed in place, unless it is refused. Functions must be inlined, names unique.
        streamed: constants in data files stay there, and are widened whenever they are read.

    Returns:
        A note of what was done, or of why it was refused, which then is the last and begins with ``refused: ``: an
        operator of another domain, but those `GENERIC`, reads or makes such a tensor, or one goes in or out inside a
        sequence or an optional.
    """
    notes = infer_shapes(model)
    if not _uses(model):
        return notes
    reason = _refusal(model)
    if reason is not None:
        return [*notes, reason]
    namer = Namer(model)
    names = ", ".join(sorted(dtype.name for dtype in HALVES & _met(model) or HALVES))
    _convert_initializers(model, namer, streamed=streamed)
    fixed = {*model.graph.inputs, *model.graph.outputs}
    for graph in all_graphs(model):
        for node in graph:
            if not (node.outputs and node.outputs[0] in fixed and _is_end(node.outputs[0])):
                _convert_attributes(node)
        for value in (*graph.inputs, *(v for node in graph for v in node.outputs)):
            if value not in fixed:
                value.type = _converted(value.type)
    _cast_inputs(model, namer)
    _cast_outputs(model, namer)
    return [*notes, Note("upcast", "", f"computes in float32 in place of {names}")]


def _inner(kind: ir.TypeProtocol | None) -> ir.DataType | None:
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        kind = kind.elem_type
    return kind.dtype if kind is not None else None


def _is_cast(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Cast" and node.domain == ""


def _is_end(output: ir.Value) -> bool:
    """Whether an output of the graph is made by a Cast and read by nothing but Casts, so that it keeps its type."""
    return _is_cast(output.producer()) and all(_is_cast(use.node) for use in output.uses())


def _met(model: ir.Model) -> set[ir.DataType | None]:
    """The types of all tensors."""
    graphs = list(all_graphs(model))
    values = (v for graph in graphs for v in (*graph.inputs, *graph.initializers.values()))
    return {_inner(v.type) for v in (*values, *(v for graph in graphs for node in graph for v in node.outputs))}


def _uses(model: ir.Model) -> bool:
    """Whether anything is left to do: a tensor in half precision that is more than an end with a Cast."""
    ends = {*model.graph.inputs, *model.graph.outputs}
    for graph in all_graphs(model):
        made = (v for node in graph for v in node.outputs)
        if any(_inner(v.type) in HALVES for v in (*graph.inputs, *graph.initializers.values(), *made) if v not in ends):
            return True
    for value in ends:
        if _inner(value.type) in HALVES and not (value.producer() is None or _is_end(value)):
            return True
        if _inner(value.type) in HALVES and any(not _is_cast(use.node) for use in value.uses()):
            return True
    return False


def _refusal(model: ir.Model) -> Note | None:
    for end in (*model.graph.inputs, *model.graph.outputs):
        if _inner(end.type) in HALVES and not isinstance(end.type, ir.TensorType):
            return Note("upcast", end.name or "", "refused: it goes in or out inside a sequence or an optional")
    for node in all_nodes(model):
        if node.domain in STANDARD or (node.domain == MICROSOFT and node.op_type in GENERIC):
            continue
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.name and (_inner(value.type) in HALVES or value.type is None):
                what = "of a type to convert" if value.type is not None else "of unknown type"
                return Note(
                    "upcast", node.name or "", f"refused: {node.domain}::{node.op_type} touches '{value.name}', {what}"
                )
    return None


def _float32(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    return ir.Tensor(array_of(tensor).astype(np.float32), name=name)


def _convert_initializers(model: ir.Model, namer: Namer, *, streamed: bool) -> None:
    for graph in all_graphs(model):
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or tensor.dtype not in HALVES:
                continue
            main = graph is model.graph
            if main and value.is_graph_input():
                continue  # it gets a Cast as other inputs do
            if main and value.is_graph_output():
                copy = ir.Value(
                    name=namer.fresh(f"{value.name}_float"), shape=value.shape, type=ir.TensorType(ir.DataType.FLOAT)
                )
                copy.const_value = _float32(tensor, copy.name)
                graph.register_initializer(copy)
                replace_value(value, copy)
                continue
            if streamed and isinstance(tensor, ir.ExternalTensor):
                value.const_value = Widened(tensor, value.name)
            else:
                value.const_value = _float32(tensor, value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT)


def _convert_attributes(node: ir.Node) -> None:
    for name, attr in list(node.attributes.items()):
        if attr.is_ref():
            continue
        if attr.type == ir.AttributeType.TENSOR and (tensor := tensor_of(attr)).dtype in HALVES:
            node.attributes[name] = ir.AttrTensor(name, _float32(tensor, tensor.name))
        elif attr.type == ir.AttributeType.TENSORS:
            tensors = [_float32(t, t.name) if t.dtype in HALVES else t for t in attr.as_tensors()]
            node.attributes[name] = ir.AttrTensors(name, tensors)
        elif (
            name in _TYPE_ATTRIBUTES
            and attr.type == ir.AttributeType.INT
            and node.domain == ""
            and (attr.as_int() in {dtype.value for dtype in HALVES})
        ):
            node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT.value)


def _converted(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    if isinstance(kind, ir.TensorType):
        return ir.TensorType(ir.DataType.FLOAT, denotation=kind.denotation) if kind.dtype in HALVES else kind
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        inner = _converted(kind.elem_type)
        return type(kind)(inner, denotation=kind.denotation) if inner is not None else kind
    return kind


def _cast(source: ir.Value, to: ir.DataType, name: str, namer: Namer) -> ir.Node:
    node = ir.Node("", "Cast", [source], [ir.AttrInt64("to", to.value)], num_outputs=1, name=namer.node(f"{name}_cast"))
    made = node.outputs[0]
    made.type = ir.TensorType(to)
    made.shape = source.shape.copy() if source.shape is not None else None
    return node


def _cast_inputs(model: ir.Model, namer: Namer) -> None:
    graph = model.graph
    casts: list[ir.Node] = []
    for value in graph.inputs:
        readers = [use for use in value.uses() if not _is_cast(use.node)]
        if value.dtype not in HALVES or not readers:
            continue
        cast = _cast(value, ir.DataType.FLOAT, value.name or "input", namer)
        cast.outputs[0].name = namer.fresh(f"{value.name}_float")
        for node, index in readers:
            node.replace_input_with(index, cast.outputs[0])
        casts.append(cast)
    if casts and len(graph):
        graph.insert_before(graph[0], casts)


def _cast_outputs(model: ir.Model, namer: Namer) -> None:
    graph = model.graph
    for index, value in enumerate(list(graph.outputs)):
        producer = value.producer()
        if value.dtype not in HALVES or producer is None or _is_end(value):
            continue
        dtype, name, kind = value.dtype, value.name, value.type
        if dtype is None or name is None:
            continue
        cast = _cast(value, dtype, name, namer)
        made = cast.outputs[0]
        made.doc_string, made.type = value.doc_string, kind
        value.name = namer.fresh(f"{name}_float")
        value.type = ir.TensorType(ir.DataType.FLOAT)
        made.name = name
        graph.insert_after(graph[-1], cast)
        graph.outputs[index] = made

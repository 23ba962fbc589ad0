"""Types behind operators of other domains, which onnx's shape inference knows nothing of and onnxruntime does."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx_ir as ir

from onnxq.errors import OnnxqError
from onnxq.graph.domains import STANDARD
from onnxq.graph.note import Note
from onnxq.graph.pieces import reads
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.shown import show
from onnxq.graph.traverse import all_graphs
from onnxq.ort.session import Session

__all__ = ["infer_foreign"]


def infer_foreign(model: ir.Model, custom_op_library: str | os.PathLike[str] | None = None) -> list[Note]:
    """Gives tensors, whose type or shape onnx could not find, the type and shape that onnxruntime finds.

    Args:
        model: changed in place. Shapes must be inferred as far as onnx can, names unique over the model.
        custom_op_library: shared library with the model's custom operators.

    Returns:
        Notes of the types found; nothing where none was missing, or onnxruntime cannot load the model either.
    """
    notes: list[Note] = []
    for graph in all_graphs(model):
        missing = [v for node in graph for v in node.outputs if v.name and (v.type is None or _is_bare(node, v))]
        shown = _showing(model, graph, missing) if missing else None
        if shown is None:
            continue
        try:
            session = Session(shown, optimize=False, custom_op_library=custom_op_library, prepack=False)
        except OnnxqError:
            continue  # an operator that it does not know either: named as soon as the model has to run
        if named := _name(missing, session):
            notes += [Note("foreign", "", f"types of {named} tensors taken from onnxruntime"), *infer_shapes(model)]
    return notes


def _is_bare(node: ir.Node, value: ir.Value) -> bool:
    """Whether a type is written beside what an operator of another domain makes, but no shape."""
    return node.domain not in STANDARD and value.shape is None and isinstance(value.type, ir.TensorType)


def _name(missing: Sequence[ir.Value], session: Session) -> int:
    """Types and shapes from the outputs of a session; how many there were."""
    found = {info.name: info for info in session.outputs}
    named = 0
    for value in missing:
        info = found.get(value.name or "")
        if info is not None and info.dtype.kind in "fiub" and (value.type is None or info.shape):
            value.type = ir.TensorType(ir.DataType.from_numpy(info.dtype))
            value.shape = ir.Shape(info.shape) if info.shape else value.shape
            named += 1
    return named


def _showing(model: ir.Model, graph: ir.Graph, values: Sequence[ir.Value]) -> ir.Model | None:
    """The model with more outputs; of a branch or body, itself as a model, which is fed what it reads from outside.

    Returns:
        A model that shares what it consists of with the one given, None where a type of what is read is not known.
    """
    if graph is model.graph:
        shown = model.clone()
        show(shown, [value.name or "" for value in values])
        return shown
    made = {value for node in graph for value in node.outputs}
    read = dict.fromkeys(value for node in graph for value in reads(node) if value not in made)
    constants = [value for value in read if value.const_value is not None]
    inputs = [value for value in read if value.const_value is None]
    if any(value.type is None for value in inputs):
        return None
    name, opsets = graph.name or "body", dict(model.opset_imports)
    view = ir.GraphView(inputs, values, nodes=list(graph), initializers=constants, opset_imports=opsets, name=name)
    return ir.Model(view, ir_version=model.ir_version, functions=tuple(model.functions.values()))  # type: ignore[arg-type]

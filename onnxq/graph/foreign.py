"""Types behind operators of other domains, which onnx's shape inference knows nothing of and onnxruntime does."""

from __future__ import annotations

import os

import onnx_ir as ir

from onnxq.errors import OnnxqError
from onnxq.graph.note import Note
from onnxq.graph.shapes import infer_shapes
from onnxq.ort.session import Session

__all__ = ["infer_foreign"]


def infer_foreign(model: ir.Model, custom_op_library: str | os.PathLike[str] | None = None) -> list[Note]:
    """Gives tensors of the main graph, whose type onnx could not find, the type and shape that onnxruntime finds.

    Args:
        model: changed in place. Shapes must be inferred as far as onnx can, names unique over the model.
        custom_op_library: shared library with the model's custom operators.

    Returns:
        Notes of the types found; nothing where none was missing, or onnxruntime cannot load the model either.
    """
    missing = [v for node in model.graph for v in node.outputs if v.name and v.type is None]
    if not missing:
        return []
    shown = model.clone()
    wanted = {value.name for value in missing}
    shown.graph.outputs.extend(v for node in shown.graph for v in node.outputs if v.name in wanted)
    try:
        session = Session(shown, optimize=False, custom_op_library=custom_op_library)
    except OnnxqError:
        return []  # an operator that it does not know either: named as soon as the model has to run
    found = {info.name: info for info in session.outputs}
    named = 0
    for value in missing:
        info = found.get(value.name or "")
        if info is not None and info.dtype.kind in "fiub":
            value.type = ir.TensorType(ir.DataType.from_numpy(info.dtype))
            value.shape = ir.Shape(info.shape) if info.shape else value.shape
            named += 1
    return [Note("foreign", "", f"types of {named} tensors taken from onnxruntime"), *infer_shapes(model)]

"""Calls of model-local functions give way to their bodies."""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnxq.errors import ModelError
from onnxq.graph.note import Note
from onnxq.graph.skeleton import adopt, skeleton

__all__ = ["inline_functions"]


def inline_functions(model: ir.Model) -> list[Note]:
    """Inlines every function, so that only operators remain; definitions that nothing calls are dropped.

    A function written for another opset than the model's is converted on the way.

    Args:
        model: changed in place.

    Raises:
        ModelError: functions call each other in a circle, or one cannot be brought to the model's opset.
    """
    if not model.functions:
        return []
    called = {node.op_identifier() for node in ir.traversal.RecursiveGraphIterator(model.graph)} & set(model.functions)
    names = ", ".join(sorted(f"{domain}::{name}" if domain else name for domain, name, _ in called))
    versions = {
        (domain, version)
        for function in model.functions.values()
        for domain, version in function.opset_imports.items()
        if model.opset_imports.get(domain, version) != version
    }
    try:
        if versions:
            proto, big = skeleton(model)
            inlined = onnx.inliner.inline_local_functions(proto, convert_version=True)
            adopt(model, inlined, big)
        else:
            InlinePass()(model)
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(
            f"its functions cannot be inlined: {cause}",
            where="invalid model",
            hint="Export the model without functions",
        ) from error
    model.functions.clear()
    return [Note("inline", "", f"functions inlined: {names}" if names else "functions that nothing calls dropped")]

"""onnx's own checker, on models of any size."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.graph.files.structure import check_structure
from onnxq.graph.skeleton import skeleton
from onnxq.graph.unknown_operator import unknown_operator

__all__ = ["check", "check_inputs"]


def check(model: ir.Model) -> None:
    """Checks a model with ``onnx.checker``, ``full_check`` on, without serializing its big tensors.

    Operators of domains that onnx does not know are not looked into.

    Args:
        model: left as it is.

    Raises:
        ModelError: what is wrong with it, and where.
    """
    if not check_structure(model):
        raise ModelError("nodes are out of order", where="invalid model")
    for value in model.graph.initializers.values():
        if value.const_value is None:
            raise ModelError("an initializer without data", where=f"tensor '{value.name}'")
        declared = value.shape
        if declared is not None and not _fits(declared, value.const_value.shape):
            raise ModelError(
                f"declared with shape {declared}, holds {value.const_value.shape}", where=f"tensor '{value.name}'"
            )
    check_inputs(model)
    proto, _ = skeleton(model)
    _drop_unranked_outputs(proto)
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:  # the checker and shape inference raise classes of their own
        unknown = unknown_operator(" ".join(str(error).split()))
        if unknown is not None:
            raise ModelError(unknown.what, where=unknown.where, hint=unknown.hint) from error
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
        text = " ".join(lines[:3]) if lines else type(error).__name__
        raise ModelError(f"the ONNX checker refuses it: {text}", where="invalid model") from error


def check_inputs(model: ir.Model) -> None:
    """Checks that the number of axes of each input is known: onnx's converter and checker want to.

    Args:
        model: left as it is.

    Raises:
        ModelError: names the input.
    """
    for value in model.graph.inputs:
        if isinstance(value.type, ir.TensorType) and value.shape is None and value.const_value is None:
            raise ModelError(
                "it is declared without a shape, not even the number of its axes is known",
                where=f"input '{value.name}'",
                hint="Export the model with one; sizes that vary have a name in place of a number",
            )


def _fits(declared: ir.Shape, shape: ir.ShapeProtocol) -> bool:
    """Whether a constant has the shape that is declared for it; free dimensions hold anything."""
    sizes = shape.numpy()
    free = (not isinstance(want, int) or want == have for want, have in zip(declared, sizes, strict=False))
    return len(declared) == len(sizes) and all(free)


def _drop_unranked_outputs(proto: onnx.ModelProto) -> None:
    """Hides graph outputs of unknown rank, which runtimes accept and the checker has no way to accept."""
    outputs = [info for info in proto.graph.output if not _unranked(info.type)]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)


def _unranked(kind: onnx.TypeProto) -> bool:
    return kind.HasField("tensor_type") and not kind.tensor_type.HasField("shape")

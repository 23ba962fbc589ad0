"""Inputs and outputs that hold maps, as converters of classical learners make them: onnx-ir has no such type."""

from __future__ import annotations

import onnx

from onnxq.errors import ModelError

__all__ = ["refuse_maps"]


def refuse_maps(graph: onnx.GraphProto) -> None:
    """Say which input or output of a graph holds maps, and how to do without.

    Args:
        graph: of a model; without those inside it, which cannot make any of their own.

    Raises:
        ModelError: there is one.
    """
    for kind, values in (("output", graph.output), ("input", graph.input), ("tensor", graph.value_info)):
        for value in values:
            what = _described(value.type)
            if what is None:
                continue
            made = next((node for node in graph.node if value.name in node.output), None)
            hint = "Export the model again, with tensors in its place"
            if made is not None and made.op_type == "ZipMap":
                hint = (
                    f"Remove its ZipMap node, whose input {made.input[0]!r} is the same as a tensor: convert without "
                    "it, options={'zipmap': False} in skl2onnx, zipmap=False in onnxmltools"
                )
            raise ModelError(f"it is {what}, and onnxq works on tensors", where=f"{kind} '{value.name}'", hint=hint)


def _described(kind: onnx.TypeProto) -> str | None:
    """A type that holds maps in words, ``None`` for others."""
    if kind.HasField("map_type"):
        return "a map"
    for field, word in (("sequence_type", "a sequence of maps"), ("optional_type", "an optional map")):
        if kind.HasField(field) and _described(getattr(kind, field).elem_type) is not None:
            return word
    return None

"""Messages of onnxruntime, made readable."""

from __future__ import annotations

import re

import onnx

from onnxq.errors import ExecutionError
from onnxq.graph.unknown_operator import unknown_operator

__all__ = ["LOOK", "first_line", "load_error", "node_in"]

LOOK = "Run `onnxq check` on the model"
"""What to do about a model that onnxruntime cannot load, where nothing better is known."""

_NODE = (r"\bnode '([^']+)' \(", r"\bName:'([^']+)' Status Message")
"""How a message names a node: ours, and onnxruntime's while it runs."""


def load_error(error: Exception, where: str) -> ExecutionError:
    """The error for a model that onnxruntime cannot load, from what it raised."""
    text = first_line(error)
    left = unknown_operator(text)
    if left is not None:
        return ExecutionError(left.what, where=left.where, hint=left.hint)
    unknown = re.search(r"(\S+?)\(-?\d+\) is not a registered function/op", text)
    if unknown:
        return ExecutionError(
            f"onnxruntime does not know operator {unknown.group(1)}",
            where=where,
            hint="Give the library that implements it with --custom-op-library",
        )
    invalid = re.match(r'This is an invalid model\. In Node, \("([^"]*)", (\w+), .*?, Error (.*)', text)
    if invalid:
        name, op, reason = invalid.groups()
        text = f"node {name!r} ({op}): {reason}"
    hint = LOOK
    if "IR version" in text or "Current official support for domain" in text:
        hint = "Use a newer onnxruntime, or export the model again with an older opset"
    absent = re.search(r"Could not find an implementation for (\w+)\(\d+\)", text)
    if absent and not onnx.defs.has(absent.group(1)):
        hint = (
            "Give the model as it was exported, before onnxruntime's optimizer fused its operators for a GPU; its "
            "weights alone are quantized for that GPU by --algorithm weight_only --providers cuda, without data"
        )
    return ExecutionError(f"onnxruntime cannot load the model ({text})", where=where, hint=hint)


def node_in(message: str) -> str | None:
    """The name of the node that a message is about; None where it names none."""
    found = (re.search(pattern, message) for pattern in _NODE)
    return next((match.group(1) for match in found if match), None)


def first_line(error: Exception) -> str:
    """The message without onnxruntime's prefix ``[ONNXRuntimeError] : 1 : FAIL :`` and without what follows it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", lines[0])
    return _without_place(text).strip().rstrip(".")


def _without_place(text: str) -> str:
    """A message without the C++ file, line and function that onnxruntime puts before the reason."""
    found = re.search(r"\S+\.(?:cc|cpp|cu|h):\d+ ", text)
    if found is None:
        return text
    depth = 0
    for end in range(found.end(), len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        signature = "(" in text[found.end() : end] and depth == 0 and text[end] in ")>"
        if signature and text[end + 1 : end + 2] in (" ", ""):
            reason = re.sub(r"^ (?:const )?(?:\[with [^\]]*\] )?", "", text[end + 1 :])
            return text[: found.start()] + reason if reason.strip() else text
    return text

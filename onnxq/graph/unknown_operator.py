"""Operators that the ONNX standard has not, or not at a model's opset: what loaders say of them, made readable."""

from __future__ import annotations

import re
from typing import NamedTuple

import onnx

__all__ = ["Unknown", "unknown_operator"]

_MESSAGE = re.compile(r"\bOp registered for (\w+) (?:is deprecated in|with) domain_version of (\d+)")
_NOBODY = re.compile(r"\bai\.onnx:(\w+)\(-?\d+\) is not a registered function/op")
"""What onnxruntime says of an operator in the standard's domain for which it has no kernel."""
_NODE = (re.compile(r"\bName: (\S.*?) OpType: "), re.compile(r'\bIn Node, \("([^"]+)"'))
"""How onnx's checker and onnxruntime name a node."""


class Unknown(NamedTuple):
    """An operator that a model cannot have: the node, what is wrong, and what to do."""

    where: str
    what: str
    hint: str


def unknown_operator(message: str) -> Unknown | None:
    """What a message says, None where it is about something else.

    Args:
        message: of onnx's checker or of onnxruntime, about a model that they refuse.
    """
    found = _MESSAGE.search(message) or _NOBODY.search(message)
    if found is None:
        return None
    op = found[1]
    name = next((match[1] for pattern in _NODE if (match := pattern.search(message))), "")
    where = f"node {name!r} ({op})" if name else f"operator {op}"
    versions = [s for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == ""]
    if versions and found.re is _NOBODY:
        return None
    if not versions:
        what = f"no opset of ONNX has an operator {op}: the exporter left it as it found it"
        return Unknown(where, what, "Write it with other operators in the source model, and export it again")
    opset = int(found[2])
    later = [schema.since_version for schema in versions if schema.since_version > opset and not schema.deprecated]
    if later:
        what = f"opset {opset}, which the model is of, has no operator {op}: it came with {min(later)}"
        return Unknown(where, what, f"Export the model again with opset {min(later)} or above")
    last = max(schema.since_version for schema in versions) - 1
    what = f"opset {opset}, which the model is of, has no operator {op} any more: {last} was the last one"
    return Unknown(where, what, f"Export the model again, with an exporter that writes opset {opset} rightly")

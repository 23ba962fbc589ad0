"""One thing that `onnxq.check` noticed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from onnxq.errors import OnnxqError

__all__ = ["Finding", "of_error"]


@dataclass(frozen=True)
class Finding:
    """Something a user should know before quantizing.

    Attributes:
        level: ``"error"`` (quantizing fails), ``"warning"`` (it works, and is likely to disappoint) or ``"note"``.
        where: the file, node, tensor or sample it concerns.
        what: what was found, a sentence without its full stop.
        hint: what to do about it, may be empty.
    """

    level: Literal["error", "warning", "note"]
    where: str
    what: str
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)


def of_error(error: OnnxqError, where: str) -> Finding:
    """An error as a finding; ``where`` if the error does not say it."""
    return Finding("error", error.where or where, error.what, error.hint or "")

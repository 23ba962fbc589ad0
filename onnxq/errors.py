"""Every error that onnxq raises on purpose.

::

    OnnxqError
    ├── ModelError          the ONNX file: unreadable, invalid, unsupported
    ├── DataError           the calibration data: missing, wrong name, shape or type, empty
    ├── OptionError         an option: unknown name, a pattern that matches nothing, a value out of range
    ├── StatisticsError     a statistics file: unreadable, made from another model
    ├── BackendError        a target cannot express what was asked for
    ├── ExecutionError      onnxruntime could not load or run a model
    ├── OutputError         the result could not be written
    ├── MetricError         the user's own metric: missing, raises, or gives no number
    ├── VerificationError   onnxq's own result failed its final check
    └── TargetsError        some of several targets refused the model; the others are made

A message says what went wrong, where (file, node, tensor, sample) and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "BackendError",
    "DataError",
    "ExecutionError",
    "MetricError",
    "ModelError",
    "OnnxqError",
    "OptionError",
    "OutputError",
    "StatisticsError",
    "TargetsError",
    "VerificationError",
]


class OnnxqError(Exception):
    """Root of all errors raised on purpose.

    Args:
        what: what went wrong, a sentence without its full stop.
        where: the file, node, tensor or sample it concerns, e.g. ``"node 'conv1' (Conv)"``.
        hint: what the user can do about it.
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what, self.where, self.hint = what, where, hint
        head = f"{where}: {what}" if where else what
        super().__init__(f"{head}. {hint}" if hint else head)

    def report(self) -> dict[str, str | None]:
        """What ``--json`` says of it."""
        return {"kind": type(self).__name__, "what": self.what, "where": self.where, "hint": self.hint}


class ModelError(OnnxqError):
    """The ONNX model is unreadable, invalid or uses something that is not supported."""


class DataError(OnnxqError):
    """The calibration data is missing, empty, or does not fit the model's inputs."""


class OptionError(OnnxqError):
    """An option has an unknown name, a value out of range, or a pattern that matches nothing."""


class StatisticsError(OnnxqError):
    """A statistics file is unreadable or was made from another model."""


class BackendError(OnnxqError):
    """The target cannot express what was asked for."""


class ExecutionError(OnnxqError):
    """onnxruntime could not load or run a model."""


class OutputError(OnnxqError):
    """The result could not be written."""


class MetricError(OnnxqError):
    """The user's own metric is missing, raises, or gives something that is not a finite number."""


class VerificationError(OnnxqError):
    """The result failed its final check; nothing was written."""


class TargetsError(OnnxqError):
    """Some of several targets refused the model; what the others gave is made, and written where it was to be.

    Args:
        what: see :class:`OnnxqError`.
        where: see :class:`OnnxqError`.
        hint: see :class:`OnnxqError`.
        made: what would have been returned, of the targets that took it.
        refused: the error of each of the others, by name.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        made: Mapping[str, Any],
        refused: Mapping[str, OnnxqError],
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.made, self.refused = dict(made), dict(refused)

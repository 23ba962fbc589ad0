"""How the command line knows records of the log that its own report says as well."""

from __future__ import annotations

__all__ = ["IN_REPORT"]

IN_REPORT = "onnxq_in_report"
"""Attribute of such a record."""

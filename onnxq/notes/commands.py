"""Commands that a user is told to run."""

from __future__ import annotations

from onnxq.backend import Backend

__all__ = ["COMPARE", "WIDE_ACTIVATIONS", "compare_command"]

COMPARE = "onnxq compare"
WIDE_ACTIVATIONS = "--act-bits 16"


def compare_command(target: Backend, form: str | None) -> str:
    """The command that compares an artifact with the float model: with its target, where that is to read it back.

    Args:
        target: that it was made for.
        form: the name of its format; the target's default for None.
    """
    return COMPARE if target.format_named(form).read is None else f"{COMPARE} --backend {target.name}"

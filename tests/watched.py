"""Watch what onnxq opens."""

from __future__ import annotations

from typing import Any

import pytest

from onnxq.ort.session import Session

__all__ = ["opened_to_check"]


def opened_to_check(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The operators of each model that the last check opens from now on, the one timed against the result last."""
    opened: list[list[str]] = []

    class Told(Session):
        def __init__(self, model: Any, **how: Any) -> None:
            super().__init__(model, **how)
            opened.append([node.op_type for node in model.graph])

    monkeypatch.setattr("onnxq.measuring.final_check.Session", Told)
    return opened

"""The evaluation that a folder of models and tasks brings with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarking.limits import Limits, run_limited

__all__ = ["evaluate"]


def evaluate(zoo: Path, name: str, model: Path, limits: Limits) -> tuple[dict[str, Any], str]:
    """The metrics of a model in a task, and what went wrong where there are none.

    Args:
        zoo: the folder.
        name: of the task.
        model: to be evaluated.
        limits: of the process that does it.
    """
    outcome = run_limited([sys.executable, str(zoo / "zoo.py"), "eval", name, str(model)], limits)
    lines = [line for line in outcome.output.splitlines() if line.startswith("{")]
    if outcome.error or not lines:
        return {}, outcome.error or "the zoo gave no answer"
    return json.loads(lines[-1]), ""

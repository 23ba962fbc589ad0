"""The evaluation that a folder of models and tasks brings with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarking.limits import HERE, Limits, program, run_limited

__all__ = ["evaluate"]


def evaluate(
    zoo: Path, name: str, model: Path, limits: Limits, *, reference: Path | None = None
) -> tuple[dict[str, Any], str]:
    """The metrics of a model in a task, and what went wrong where there are none.

    Args:
        zoo: the folder.
        name: of the task.
        model: to be evaluated.
        limits: of the process that does it.
        reference: the float model, which is run beside it; the metrics then include ``sqnr_db`` and ``runs``, see
            `beside_float.py`.
    """
    command = [sys.executable, str(zoo / "zoo.py"), "eval", name, str(model)]
    if reference is not None:
        command = program("beside_float", str(zoo), name, str(model), str(reference))
    outcome = run_limited(command, limits, env=HERE)
    lines = [line for line in outcome.output.splitlines() if line.startswith("{")]
    if outcome.error or not lines:
        return {}, outcome.error or "the zoo gave no answer"
    return {key: value for line in lines for key, value in json.loads(line).items()}, ""

"""What algorithms that take long leave: kept from one form of a model to the next, where these begin alike."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.algorithm import Draft
from onnxq.algorithm_choice import Choice, run
from onnxq.plan import Plan
from onnxq.qparams import QParams

__all__ = ["Stages", "run_on"]

Stages = dict[tuple[str, ...], tuple[ir.Model, Plan, dict[str, QParams], list[str]]]
"""Algorithms, as they were written → the model, plan, numbers and notes that they leave, one after the other."""


def run_on(choices: Sequence[Choice], draft: Draft, stages: Stages | None) -> None:
    """Apply algorithms to a draft, from where ``stages`` knows them on; what those leave that take long is added."""
    if stages is None:
        run(choices, draft)
        return
    texts = tuple(choice.text for choice in choices)
    known = next((done for done in range(len(choices), 0, -1) if texts[:done] in stages), 0)
    if known:
        model, draft.plan, numbers, notes = stages[texts[:known]]
        draft.model, draft.numbers, draft.notes = model.clone(), dict(numbers), list(notes)
    for done, choice in enumerate(choices[known:], start=known + 1):
        run([choice], draft)
        if not choice.quick:
            stages[texts[:done]] = draft.model.clone(), draft.plan, dict(draft.numbers), list(draft.notes)

"""Outputs of the float model that are the same whatever it is given."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.graph.recognition.dependence import inputs_behind
from onnxq.ort.session import Session

__all__ = ["constant_outputs", "still_constant", "tensors_of"]

_PATIENCE = 2.0
"""Seconds for running more samples, where some gave the same."""


def tensors_of(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Those outputs that are tensors."""
    return {name: y for name, y in outputs.items() if isinstance(y, np.ndarray)}


def constant_outputs(
    model: ir.Model, feeds: Sequence[Mapping[str, np.ndarray]], outputs: Sequence[Mapping[str, Any]]
) -> dict[str, Finding]:
    """Outputs of the float model that are the same whatever the inputs that they depend on hold.

    Args:
        model: the float model.
        feeds: some samples.
        outputs: output name to what the float model gave, for each of them.

    Returns:
        What to say of each, by its name.
    """
    seen: dict[str, dict[bytes, list[Mapping[str, np.ndarray]]]] = {}
    for feed, given in zip(feeds, outputs, strict=True):
        for name, y in tensors_of(given).items():
            if y.dtype.kind == "f" and y.size:  # empty: a branch that was not taken gives nothing
                seen.setdefault(name, {}).setdefault(y.tobytes(), []).append(feed)
    found: dict[str, Finding] = {}
    for value in model.graph.outputs:
        name = value.name or ""
        if len(given_for := seen.get(name, {})) != 1:
            continue
        needed, (of,) = inputs_behind(value), given_for.values()
        distinct = len({tuple(np.asarray(feed[n]).tobytes() for n in feed if n in needed) for feed in of})
        if distinct > 1:
            what = f"the float model gives the same on {distinct} different samples"
            found[name] = Finding("warning", f"output {name!r}", what, "Is the data what the model expects?")
    return found


def still_constant(
    found: Mapping[str, Finding],
    session: Session,
    others: Iterable[Mapping[str, np.ndarray]],
    runs: Iterable[Mapping[str, Any]],
) -> list[Finding]:
    """What :func:`constant_outputs` found and no other sample refutes, of as many as two seconds are enough for.

    A detector's score is exactly 0 on many a sample.

    Args:
        found: output name to finding.
        session: the float model, loaded.
        others: samples that were not run yet, read as they are needed.
        runs: what the model gave for the others.
    """
    left = found
    given = [tensors_of(outputs) for outputs in runs]
    first = {name: next(y[name].tobytes() for y in given if name in y and y[name].size) for name in left}
    end = time.monotonic() + _PATIENCE
    feeds = iter(others)
    while left and time.monotonic() < end and (feed := next(feeds, None)) is not None:
        outputs = tensors_of(session.run(feed))
        left = {name: f for name, f in left.items() if outputs[name].tobytes() == first[name]}
    return list(left.values())

"""The errors of a model's float outputs over samples, and which output is the worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from onnxq.measuring.chosen_rows import Rows, matched
from onnxq.measuring.metrics import ErrorMeter, Errors

__all__ = ["NONE", "errors_of", "marked", "no_tensors", "worst_output", "worst_sqnr"]


NONE: Mapping[str, Rows] = MappingProxyType({})
"""No output has rows that were picked."""


def worst_output(outputs: Mapping[str, Errors]) -> tuple[str, Errors] | None:
    """The output with the lowest SQNR and its errors; None where no float output has the reference's shape throughout.

    Outputs that hold random numbers are left out.
    What has another shape in one sample has not the same rows in the same places in others: its figures say little.
    """
    whole = ((name, errors) for name, errors in outputs.items() if not errors.reshaped and not errors.drawn)
    scored = [(name, errors) for name, errors in whole if not math.isnan(errors.sqnr)]
    return min(scored, key=lambda pair: pair[1].sqnr) if scored else None


def marked(outputs: Mapping[str, Errors], drawn: Container[str]) -> dict[str, Errors]:
    """The same, those that hold random numbers as such; ``drawn``: their names."""
    return {name: replace(errors, drawn=True) if name in drawn else errors for name, errors in outputs.items()}


def no_tensors(names: Iterable[str], compared: Container[str], other: str) -> list[str]:
    """What to say of outputs that were not compared, being sequences.

    Args:
        names: all outputs.
        compared: those that were.
        other: with what.
    """
    others = [name for name in names if name not in compared]
    return [f"not compared with {other}, being no tensors: {', '.join(map(repr, others))}"] if others else []


def errors_of(
    run: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]],
    samples: Iterable[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]],
    rows: Mapping[str, Rows] = NONE,
) -> dict[str, Errors]:
    """The errors of each float output of a model.

    Args:
        run: the model.
        samples: feeds, and the outputs that they should give.
        rows: see :func:`onnxq.measuring.chosen_rows.chosen_rows`.
    """
    meters: dict[str, ErrorMeter] = {}
    for index, (feeds, wanted) in enumerate(samples):
        got = run(feeds)
        for name, values in wanted.items():
            if values.dtype.kind == "f":
                found = matched(values, got[name], rows.get(name))
                meters.setdefault(name, ErrorMeter()).update(values, found, index)
    return {name: meter.result() for name, meter in meters.items()}


def worst_sqnr(
    run: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]],
    samples: Iterable[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]],
    rows: Mapping[str, Rows] = NONE,
) -> float:
    """The lowest score in dB of a model's float outputs, see :class:`Errors`; infinite where it has none.

    Args:
        run: the model.
        samples: feeds, and the outputs that they should give.
        rows: see :func:`onnxq.measuring.chosen_rows.chosen_rows`.
    """
    return min((errors.score for errors in errors_of(run, samples, rows).values()), default=math.inf)

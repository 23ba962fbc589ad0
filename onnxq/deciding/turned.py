"""A result made anew of the float model with its channels turned, where that is better.

A transformer adds to the same channels from its first block to its last, a few of which grow far beyond the others: no
other model gains as much by :mod:`onnxq.algorithms.rotate`. Models without a normalization in between seldom gain, and
are tried only where the result is poor and for onnxruntime: for all 19 targets of an EfficientNet-Lite0 the trials took
twice the time of everything else (26 of 39 CPU s), and none gained.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.algorithm import FloatDraft
from onnxq.algorithm_choice import chosen
from onnxq.algorithms import rotate
from onnxq.algorithms.channels.streams import quantized_streams
from onnxq.calibration.roles import held_back, to_judge_by
from onnxq.console.terminal import plural
from onnxq.deciding.decider import Decider
from onnxq.measuring.score import score_of
from onnxq.quantized import Quantized

__all__ = ["turned"]

_POOR = 20.0
"""dB at the worst output below which models without a normalization are tried."""
_LEAST_GAIN = 1.0
"""dB at the worst output: for less, tensors inside the model had better be those of the float model."""


def turned(first: Quantized, decider: Decider, draft: FloatDraft) -> tuple[Quantized, Decider, FloatDraft] | None:
    """A better result, of the model with its channels turned, what made it, and the turned model; None without one.

    What stays float in the first result does so in the other.

    Args:
        first: a result.
        decider: what made it.
        draft: the float model of the decider, and what is known of it.
    """
    kept, options = draft.statistics.kept, decider.options
    judges = list({sample.index: sample for sample in (*held_back(kept), *to_judge_by(kept))}.values())
    streams = quantized_streams(decider.model, first.plan) if judges else []
    normalized = [stream for stream in streams if stream.scalings]
    if not (streams if decider.target.at_home else normalized):
        return None
    before = score_of(first, judges, options)
    if before.worst >= _POOR or not decider.target.at_home:
        streams = normalized
    if not streams:
        return None
    trial = FloatDraft(decider.model.clone(), decider.target, options, draft.statistics, keep_float=draft.keep_float)
    moves = {
        name: move
        for turning in rotate.turnings(trial, streams, first.plan)
        for name, move in turning.apply(trial).items()
    }
    trial.observe_again(moves, draft)
    choices = [*chosen([rotate.NAME]), *decider.choices]
    other = decider.variant(choices, options, trial.model, trial.statistics, trial.keep_float, decider.reporter)
    result, said = other.again()
    after = score_of(result, judges, options)
    if after.worst < before.worst + _LEAST_GAIN or after.no_better_than(before) is not None:
        return None
    other.notes = [note for note in decider.notes if note not in said] + said
    other.notes.append(
        f"{rotate.NAME}: {plural(len(streams), 'place')} turned, worst output {before.worst:.2f} dB to "
        f"{after.worst:.2f} dB"
    )
    other.warnings, other.hints = list(decider.warnings), list(decider.hints)
    return result, other, replace(draft, model=trial.model, statistics=trial.statistics)

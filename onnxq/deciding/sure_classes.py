"""A classifier that is sure of itself is judged by what its Softmax reads, see :mod:`onnxq.measuring.before_softmax`.

So it is where its probabilities are poor, and these numbers as good as blaming layers aims for, and nearly all samples
have the float model's class: a sample or two near a tie have made up all of the noise.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.calibration.roles import samples_to_verify
from onnxq.deciding.decider import Decider
from onnxq.deciding.rescue import POOR, TARGET
from onnxq.effort import learns
from onnxq.errors import ExecutionError
from onnxq.measuring.before_softmax import Classes, classes_of, softmax_inputs
from onnxq.measuring.metrics import kept_signal
from onnxq.measuring.verification import Verification
from onnxq.quantized import Quantized

__all__ = ["sure_classes", "told_by_classes"]

_SAME_CLASS = 0.9
"""Share of the rows that must have the float model's class."""
_ALL_OR_NOTHING = (
    "output {!r}: its probabilities keep {:.1f} dB, which a sample or two near a tie decide: {} of {} have the same "
    "class; compared is what its Softmax reads, {!r}"
)


def sure_classes(decider: Decider, quantized: Quantized, verification: Verification) -> dict[str, tuple[str, Classes]]:
    """Output whose probabilities do not judge → what its Softmax reads, and how the classes compare.

    Args:
        decider: what made the result.
        quantized: the result.
        verification: of it.
    """
    samples = samples_to_verify(decider.statistics.kept, learns(decider.options), decider.target.at_home)
    poor = {name for name, errors in verification.outputs.items() if kept_signal(errors) < POOR}
    found = {}
    for output, read in softmax_inputs(decider.model).items() if poor else ():
        if output not in poor:
            continue
        try:
            classes = classes_of(decider.model, quantized, output, read, samples, decider.options.session)
        except ExecutionError:
            continue
        if kept_signal(classes.errors) >= TARGET and classes.same >= _SAME_CLASS * classes.rows:
            found[output] = read, classes
    return found


def told_by_classes(
    decider: Decider, quantized: Quantized, verification: Verification
) -> tuple[Verification, tuple[str, ...]]:
    """A verification with what the Softmax reads in place of probabilities that do not judge, and what to say of it."""
    outputs, hints = dict(verification.outputs), []
    for output, (read, classes) in sure_classes(decider, quantized, verification).items():
        kept = outputs.pop(output).sqnr
        outputs[read] = classes.errors
        hints.append(_ALL_OR_NOTHING.format(output, kept, classes.same, classes.rows, read))
    return replace(verification, outputs=outputs), tuple(hints)

"""What a target's rewrites change of what the float model computes: a Sigmoid that becomes a HardSigmoid, say."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.calibration.roles import samples_to_verify
from onnxq.calibration.statistics import KeptSample
from onnxq.checks.randomness import is_random
from onnxq.effort import learns
from onnxq.errors import ExecutionError
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import COMPUTES_OTHER
from onnxq.measuring.metrics import Errors
from onnxq.measuring.outputs import errors_of, worst_output
from onnxq.measuring.verification import Verification
from onnxq.options import Options
from onnxq.ort.session import Session, open_anyhow

__all__ = ["rewrite_cost"]

_POOR = 30.0
"""dB from which on a result gives no reason to look."""
_SHARE = 6.0
"""dB of the rewritten model above those of the result, up to which the rewrites make much of the error: a quarter."""


def rewrite_cost(
    rewritten: ir.Model, name: str, verification: Verification, kept: Sequence[KeptSample], options: Options
) -> list[str]:
    """What to say where much of a poor result's error is that of the float model in the form that the target wants.

    Args:
        rewritten: that model.
        name: of the target.
        verification: of the result.
        kept: the samples held back, with the outputs of the model given; those are run that the result was verified on.
            Those of a model with random outputs tell nothing.
        options: providers, custom-op library.
    """
    worst = verification.worst
    if worst is None or worst[1].sqnr >= _POOR or not kept or is_random(rewritten):
        return []
    judges, least = samples_to_verify(kept, learns(options), at_home=False), min(_POOR, worst[1].sqnr + _SHARE)
    try:
        session = open_anyhow(rewritten, threads=1, **options.session)
        found = _worst(session, judges)
    except ExecutionError:
        return []  # the result, which is made of it, did run: its figure stands without this one
    if found is None or found[1].sqnr > least:
        return []
    types = dict.fromkeys(node.meta[COMPUTES_OTHER] for node in all_nodes(rewritten) if COMPUTES_OTHER in node.meta)
    advice = f". {' '.join(f'--exclude {op}' for op in types)} leaves those as they are, in float" if types else ""
    return [
        f"what was rewritten for {name} leaves output {found[0]!r} {found[1].sqnr:.1f} dB before anything is "
        f"quantized: {name} cannot compute what the model does (-v says what was rewritten){advice}"
    ]


def _worst(session: Session, samples: Sequence[KeptSample]) -> tuple[str, Errors] | None:
    return worst_output(errors_of(session.run, ((sample.feeds, sample.outputs) for sample in samples)))

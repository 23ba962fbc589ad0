"""What is said of a result that differs much from the model given."""

from __future__ import annotations

from collections.abc import Collection

from onnxq.console.terminal import decibels, listed, plural
from onnxq.deploying.bounds import Bounds
from onnxq.measuring.verification import SourceAgreement

__all__ = ["unlike"]

_LISTED = 5
_ALIKE = 40.0
"""dB between a result and the model given, below which it is told what was left out."""
_APART = 20.0
"""The same, below which it is told that scales were changed; a few steps of 8 bits are above it."""
_FINER = "; the result rounds less often"


def unlike(agreed: SourceAgreement, bounds: Bounds, moved: Collection[str], backend: str) -> list[str]:
    """What may be the reason where a result differs much from the model given.

    Args:
        agreed: of the result with that model.
        bounds: of the quantizers of activations that the target has no use for.
        moved: tensors whose scales are not those given.
        backend: name of the target.
    """
    worst = agreed.worst[1].sqnr if agreed.worst is not None else _ALIKE
    told = _left_out(agreed, bounds, backend) if worst < _ALIKE else []
    if moved and worst < _APART:
        names = listed([repr(name) for name in moved], _LISTED)
        told.append(
            f"the result has {decibels(worst)} to the model given, on random inputs: {backend} cannot compute with the "
            f"scales of {names}, which were changed. Quantize the float model for {backend}"
        )
    return told


def _left_out(agreed: SourceAgreement, bounds: Bounds, backend: str) -> list[str]:
    out = bounds.left_out
    if not out:
        return []
    finer = "" if agreed.warnings or bounds.lost else _FINER
    told = [
        f"{plural(len(out), 'quantizer')} of activations in the model given {'is' if len(out) == 1 else 'are'} "
        f"left out where {backend} computes in float: {listed([repr(name) for name in out], _LISTED)}{finer}"
    ]
    if bounds.lost:
        shares = [f"{share:.1%} of {name!r}" for name, share in bounds.lost.items()]
        told.append(f"quantizers that are left out clip what passes now, on random inputs {listed(shares, _LISTED)}")
    return told

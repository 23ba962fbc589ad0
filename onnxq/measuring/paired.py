"""Tensors of two models on the same samples, pair by pair, a bounded number of bytes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.share_out import share_out
from onnxq.calibration.taps import tap
from onnxq.graph.files.save import serialized_size
from onnxq.ort.session import Session, open_anyhow

__all__ = ["Pair", "PairedTensors", "paired_tensors"]

Pair = tuple[str, str]
"""A tensor of the first model, and the one of the second that is compared with it."""
Array = NDArray[Any]

_BUDGET = 256 << 20
"""Bytes of the tensors of a group for one sample, in each model; of large models as many as of their weights, which
another group would hold once more."""


class PairedTensors(NamedTuple):
    """Both models with the tensors of some pairs shown.

    Attributes:
        first: the first model, loaded.
        second: the second one.
        shown: pair → the outputs that show it.
    """

    first: Session
    second: Session
    shown: dict[Pair, Pair]

    def run(self, feeds: Mapping[str, Array]) -> Iterator[tuple[Pair, Array, Array]]:
        """Each pair with its arrays for one sample.

        Args:
            feeds: input name → array; what a model does not need is left out.

        Raises:
            ExecutionError: a model does not run.
        """
        expected = _run(self.first, feeds, [a for a, _ in self.shown.values()])
        got = _run(self.second, feeds, [b for _, b in self.shown.values()])
        for pair, (a, b) in self.shown.items():
            yield pair, expected[a], got[b]


def paired_tensors(
    first: ir.Model,
    second: ir.Model,
    pairs: Sequence[Pair],
    sizes: Mapping[str, int],
    *,
    optimize: bool = True,
    **options: Any,
) -> Iterator[PairedTensors]:
    """Load two models with the tensors of pairs shown, a group of pairs after the other.

    Args:
        first: not modified.
        second: not modified.
        pairs: what to show; pairs of which a model cannot show its tensor are left out.
        sizes: tensor of the first model → bytes for one sample; a tensor that is missing counts as none.
        optimize: run the second model with onnxruntime's graph optimizations, as the first one is.
        **options: of :class:`onnxq.ort.session.Session`.

    Yields:
        The groups in order. Nothing is kept of one that is dropped before the next is asked for.

    Raises:
        ExecutionError: onnxruntime cannot load a model.
    """
    known = {pair: sizes.get(pair[0], 0) for pair in pairs}
    for group in share_out(list(known), known, max(_BUDGET, serialized_size(first))):
        one = tap(first, [a for a, _ in group], keep_outputs=False)
        other = tap(second, [b for _, b in group], keep_outputs=False)
        shown = {
            (a, b): (one.outputs[a], other.outputs[b]) for a, b in group if a in one.outputs and b in other.outputs
        }
        if shown:
            yield PairedTensors(
                open_anyhow(one.model, **options), open_anyhow(other.model, optimize=optimize, **options), shown
            )


def _run(session: Session, feeds: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
    return session.run(session.taken(feeds), list(dict.fromkeys(outputs)))

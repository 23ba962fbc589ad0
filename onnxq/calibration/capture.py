"""Tensors of a model on a few samples, a bounded number of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.share_out import share_out
from onnxq.calibration.statistics import KeptSample
from onnxq.calibration.taps import tap
from onnxq.options import Options
from onnxq.ort.session import Session, open_anyhow

__all__ = ["capture"]

_BUDGET = 256 << 20
_UNKNOWN = 4 << 20


def capture(
    model: ir.Model,
    tensors: Sequence[str],
    samples: Sequence[KeptSample],
    *,
    options: Options,
    sizes: Mapping[str, int],
    budget: int = _BUDGET,
) -> Iterator[tuple[list[str], Iterator[dict[str, NDArray[Any]]]]]:
    """Run a model over samples and give its tensors, in groups of which one sample stays below a budget.

    Args:
        model: the model, not modified.
        tensors: names of tensors; those that cannot be observed are left out.
        samples: what to run it on.
        options: providers and the library of custom operators.
        sizes: tensor name → number of elements.
        budget: bytes of the tensors of one group for one sample.

    Yields:
        The names of a group, and an iterator over the samples: tensor name → array. Each must be exhausted (or
        dropped) before the next group is asked for.
    """
    known = {name: 4 * count for name, count in sizes.items()}
    wanted = list(dict.fromkeys(tensors))
    for group in share_out(wanted, {name: known.get(name, _UNKNOWN) for name in wanted}, budget):
        tapped = tap(model, group, keep_outputs=False)
        if tapped.outputs:
            session = open_anyhow(tapped.model, **options.session)
            yield list(tapped.outputs), _arrays(session, tapped.outputs, samples)


def _arrays(
    session: Session, shown: Mapping[str, str], samples: Sequence[KeptSample]
) -> Iterator[dict[str, NDArray[Any]]]:
    for sample in samples:
        got = session.run(sample.feeds, list(dict.fromkeys(shown.values())))
        yield {name: got[output] for name, output in shown.items()}

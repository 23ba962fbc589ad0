"""The mean of each channel of what layers read: as calibration took it, else measured on a few samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.collect import channel_means
from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample
from onnxq.calibration.taps import tap
from onnxq.options import Options
from onnxq.ort.session import Session, open_anyhow

__all__ = ["means_of"]

Means = NDArray[np.float64]

_BATCH_BYTES = 256 << 20
"""Tensors are measured together as long as one sample of them stays below this."""
_SAMPLES = 3
"""Samples that means are measured on where calibration has not; each has many positions."""
_UNKNOWN_BYTES = 4 << 20


def means_of(
    model: ir.Model,
    ranks: Mapping[str, int],
    samples: Sequence[KeptSample],
    known: dict[str, Means],
    *,
    sizes: Mapping[str, int],
    options: Options,
) -> dict[str, Means]:
    """Tensor → mean of each of its channels (axis 1), (channels,), where there is one.

    Args:
        model: the float model; left unchanged.
        ranks: tensor → number of axes that its layer reads it with; what a loop collects has more in front.
        samples: with what calibration took.
        known: measured before; added to.
        sizes: tensor → number of elements, to bound the memory that measuring takes.
        options: execution providers and the library of custom operators.
    """
    means = _kept_means(samples, ranks)
    means |= {name: known[name] for name in ranks if name in known}
    missing = [name for name in ranks if name not in means]
    if missing:
        tapped = tap(model, missing)
        shown = tapped.outputs
        session = open_anyhow(tapped.model, **options.session)
        for batch in _batches([name for name in missing if name in shown], sizes):
            means.update(_measured(session, {name: shown[name] for name in batch}, ranks, samples))
        known |= {name: means[name] for name in missing if name in means}
    return means


def _batches(tensors: Sequence[str], sizes: Mapping[str, int]) -> list[list[str]]:
    batches: list[list[str]] = []
    room = 0
    for tensor in tensors:
        need = 4 * sizes[tensor] if tensor in sizes else _UNKNOWN_BYTES
        if not batches or need > room:
            batches.append([])
            room = _BATCH_BYTES
        batches[-1].append(tensor)
        room -= need
    return batches


def _kept_means(samples: Sequence[KeptSample], tensors: Iterable[str]) -> dict[str, Means]:
    """Means of the channels that calibration took, averaged over the samples that have them."""
    found = {}
    for name in tensors:
        means = [sample.means[name] for sample in samples if name in sample.means]
        if means and len({mean.shape for mean in means}) == 1:
            found[name] = np.mean(means, axis=0)
    return found


def _measured(
    session: Session, names: Mapping[str, str], ranks: Mapping[str, int], samples: Sequence[KeptSample]
) -> dict[str, Means]:
    """Mean of each channel (axis 1) of each tensor of a rank, over samples and positions."""
    found: dict[str, list[Means]] = {}
    for sample in spread(samples, _SAMPLES):
        got = session.run(sample.feeds, list(names.values()))
        for tensor, output in names.items():
            values = got[output]
            if values.size and values.ndim >= ranks[tensor] > 1:
                found.setdefault(tensor, []).append(channel_means(values, ranks[tensor]))
    return {name: np.mean(means, axis=0) for name, means in found.items() if len({m.shape for m in means}) == 1}

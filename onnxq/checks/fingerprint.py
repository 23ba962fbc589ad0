"""What a model remembers of its training data, and whether other data looks like it.

A BatchNormalization that has not been folded keeps the mean and variance that its input had in training (Ioffe &
Szegedy 2015, sec. 3.1). If data gives the first one very different statistics, the preprocessing is not that of
training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.taps import tap
from onnxq.checks.findings import Finding
from onnxq.errors import ModelError
from onnxq.graph.values import constant_array
from onnxq.options import Options
from onnxq.ort.session import open_anyhow

__all__ = ["Fingerprint", "fingerprint"]

_MEAN_OFF, _SPREAD_OFF = 4.0, 5.0
"""Median over channels of |mean - trained mean| / trained std, and of the ratio of stds, that are suspicious."""
_FEW, _SPREAD_OFF_OF_FEW = 256, 25.0
"""Values of a channel, below which what is rare in training is likely not among them. The spread of a log-normal one
(incomes, counts) is that of its largest: 16 values show two fifths of it, and less where the last batches of training
had one that is larger than most."""
_LIVE = 1e-12
"""A variance above this is of a channel that was in use."""


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """The first BatchNormalization of a model, and what computes its input.

    Attributes:
        node: its name.
        mean: of its input in training, by channel, ``(C,)`` float64.
        variance: the same.
        model: the part of the model that gives its input.
        output: the output of that part that shows it.
    """

    node: str
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    model: ir.Model
    output: str

    def compare(self, feeds: Iterable[Mapping[str, NDArray[np.generic]]], options: Options) -> list[Finding]:
        """A warning if some samples look unlike the training data.

        Args:
            feeds: complete feeds of the whole model.
            options: providers, custom-op library.

        Raises:
            ExecutionError: the part of the model does not run.
        """
        session = open_anyhow(self.model, **options.session)
        columns = []
        for feed in feeds:
            x = session.run(session.taken(feed))[self.output]
            if x.ndim >= 2 and x.shape[1] == self.mean.size:
                columns.append(np.moveaxis(x, 1, 0).reshape(self.mean.size, -1).astype(np.float64))
        if not columns:
            return []
        live = self.variance > _LIVE
        x, mean, std = np.concatenate(columns, axis=1)[live], self.mean[live], np.sqrt(self.variance[live])
        if x.shape[1] < 2 or not np.isfinite(x).all():
            return []
        off = float(np.median(np.abs(x.mean(axis=1) - mean) / std))
        spread = float(np.median(x.std(axis=1) / std))
        narrowest = 1 / (_SPREAD_OFF if x.shape[1] >= _FEW else _SPREAD_OFF_OF_FEW)
        if off < _MEAN_OFF and narrowest < spread < _SPREAD_OFF:
            return []
        what = (
            "the data does not look like the training data: the first BatchNormalization sees "
            f"{spread:.2g} times the spread it was trained on, its mean {off:.1f} standard deviations off"
        )
        hint = "Scale and normalize the data as in training (0..1 or 0..255? mean and std? RGB or BGR?)."
        return [Finding("warning", f"node {self.node!r} (BatchNormalization)", what, hint)]


def fingerprint(model: ir.Model, *, most_nodes: int | None = None) -> Fingerprint | None:
    """The fingerprint of a model that has one.

    Args:
        model: before batch normalizations are folded; left unchanged.
        most_nodes: None where more nodes than this compute the input of the BatchNormalization.
    """
    node = next((n for n in model.graph if n.op_type == "BatchNormalization" and len(n.inputs) >= 5), None)
    source = node.inputs[0] if node is not None else None
    if node is None or source is None or not source.name:
        return None
    mean, variance = constant_array(node.inputs[3]), constant_array(node.inputs[4])
    if mean is None or variance is None or not (variance > _LIVE).any():
        return None
    if most_nodes is not None and _behind(source, most_nodes) > most_nodes:
        return None
    try:
        tapped = tap(model, [source.name], keep_outputs=False)
    except ModelError:
        return None  # the tensor cannot be shown
    if source.name not in tapped.outputs:
        return None
    trained = mean.astype(np.float64), variance.astype(np.float64)
    return Fingerprint(node.name or "", *trained, tapped.model, tapped.outputs[source.name])


def _behind(value: ir.Value, most: int) -> int:
    """How many nodes compute a value; counted no further than to one more than ``most``."""
    found: set[ir.Node] = set()
    todo: list[ir.Value | None] = [value]
    while todo and len(found) <= most:
        last = todo.pop()
        node = last.producer() if last is not None else None
        if node is None or node in found:
            continue
        found.add(node)
        todo += node.inputs
        for part in node.attributes.values():
            if part.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                return most + 1  # a loop costs what nobody knows
    return len(found)

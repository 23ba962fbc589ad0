"""Does the calibration data look like what the model was made for? Cheap questions on a few samples.

The best witness is the model itself: a BatchNormalization that has not been folded keeps the mean and variance that its
input had in training (Ioffe & Szegedy 2015, sec. 3.1). If the calibration data gives its first one very different
statistics, the preprocessing is not that of training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from onnxq.calibration.data import open_data
from onnxq.calibration.feeds import shape_text
from onnxq.calibration.taps import observe
from onnxq.errors import DataError, ModelError, OnnxqError
from onnxq.findings import Finding, of_error
from onnxq.graph.values import constant_array
from onnxq.options import ImageOptions, Options
from onnxq.session import InputInfo, Session, open_anyhow

__all__ = ["check_data"]

LOOKED_AT = 32
"""Samples that are looked at, evenly spaced where the data allows it."""
RUN = 4
"""Samples that are run through the model."""
FEW = 10
"""Fewer samples give a warning."""
_MEAN_OFF, _SPREAD_OFF = 4.0, 5.0
"""Median over channels of |mean - trained mean| / trained std, and of the ratio of stds, that are suspicious."""


def check_data(
    model: ir.Model, session: Session, data: Any, options: Options, image: ImageOptions | None
) -> list[Finding]:
    """Look at a few samples and run some.

    Args:
        model: the float model, as the user gave it.
        session: that model, loaded.
        data: see `onnxq.calibration.data.open_data`.
        options: number of samples, providers, custom-op library.
        image: how pictures are read.
    """
    limit = min(options.samples or LOOKED_AT, LOOKED_AT)
    looker = _Looker(session.inputs)
    few: dict[int, Mapping[str, np.ndarray]] = {}
    try:
        whole = open_data(data, session.inputs, image=image, samples=options.samples)
        samples = open_data(data, session.inputs, image=image, samples=limit) if whole.repeatable else whole
        for index, feed in enumerate(samples):
            if index >= limit:
                break
            looker.look(feed, samples.index_of(index))
            if index < RUN:
                few[samples.index_of(index)] = feed
    except DataError as error:
        return [of_error(error, "calibration data")]
    known = whole.length if whole.length is not None else looker.samples
    findings = looker.findings(known)
    try:
        findings += _run(session, few)
        findings += _fingerprint(model, list(few.values()), options)
    except OnnxqError as error:
        findings.append(of_error(error, "running the float model"))
    what = f"{known} samples" if whole.length is not None else f"at least {known} samples"
    return [*findings, Finding("note", "calibration data", f"{what} ({whole.kind}); {looker.shapes()}")]


class _Looker:
    """What a few feeds have in common."""

    def __init__(self, inputs: Sequence[InputInfo]) -> None:
        self._inputs = inputs
        self.samples = 0
        self._hashes: dict[str, set[bytes]] = {info.name: set() for info in inputs}
        self._shapes: dict[str, dict[tuple[int, ...], int]] = {info.name: {} for info in inputs}
        self._low = {info.name: np.inf for info in inputs}
        self._high = {info.name: -np.inf for info in inputs}
        self._whole = {info.name: True for info in inputs}
        self._flat: dict[str, list[int]] = {info.name: [] for info in inputs}
        self._bad: dict[str, list[int]] = {info.name: [] for info in inputs}

    def look(self, feed: Mapping[str, np.ndarray], index: int) -> None:
        """Take in one feed."""
        self.samples += 1
        for name, x in feed.items():
            if name not in self._shapes:
                continue
            self._shapes[name][x.shape] = self._shapes[name].get(x.shape, 0) + 1
            if x.dtype.kind not in "fiu" or not x.size:
                continue
            self._hashes[name].add(hashlib.sha256(np.ascontiguousarray(x).tobytes()).digest())
            finite = x[np.isfinite(x)] if x.dtype.kind == "f" else x
            if finite.size < x.size:
                self._bad[name].append(index)
            if not finite.size:
                continue
            low, high = float(finite.min()), float(finite.max())
            if low == high and x.size > 1:
                self._flat[name].append(index)
            self._low[name], self._high[name] = min(low, self._low[name]), max(high, self._high[name])
            self._whole[name] = self._whole[name] and bool(np.all(finite == np.rint(finite)))

    def findings(self, known: int) -> list[Finding]:
        """What is suspicious."""
        found: list[Finding] = []
        where = "calibration data"
        if known == 1:
            found.append(
                Finding("warning", where, "only one sample, so the ranges rest on it alone", "Give 32 or more.")
            )
        elif known < FEW:
            found.append(Finding("warning", where, f"only {known} samples", "Give 32 or more, like those in use."))
        for info in self._inputs:
            name, place = info.name, f"input {info.name!r}"
            if bad := self._bad[name]:
                what = f"NaN or infinity in {_samples(bad)}"
                found.append(Finding("warning", place, what, "These values are left out of every range."))
            if info.dtype.kind != "f" or self._low[name] > self._high[name]:
                continue
            low, high, flat = self._low[name], self._high[name], self._flat[name]
            big = any(np.prod(shape) > 1 for shape in self._shapes[name])
            if big and low == high:
                # an input beside others may well rest: a state, a flag
                level: Literal["warning", "note"] = "warning" if len(self._inputs) == 1 else "note"
                what = "all values are zero" if low == 0.0 else f"all values are {low:g}"
                found.append(Finding(level, place, what, "Is this the right data?"))
            elif flat:
                found.append(Finding("warning", place, f"all values are the same in {_samples(flat)}"))
            if big and low != high and self.samples > 1:
                if len(self._hashes[name]) == 1:
                    found.append(Finding("warning", place, "all samples are identical", "Give different samples."))
                elif len(self._hashes[name]) <= self.samples // 2:
                    what = f"only {len(self._hashes[name])} of {self.samples} samples differ"
                    found.append(Finding("warning", place, what))
            if self._whole[name] and low >= 0 and 32 < high <= 255 and len(info.shape or ()) == 4:
                what = "whole numbers from 0 to 255, as in pictures that were not scaled"
                found.append(Finding("note", place, what, "Right only if the model was trained on such values."))
        return found

    def shapes(self) -> str:
        """The shapes seen, e.g. ``x 1x3x224x224``."""
        parts = []
        for name, seen in self._shapes.items():
            texts = [shape_text(shape) for shape in list(seen)[:3]]
            parts.append(f"{name} {', '.join(texts)}{', ...' if len(seen) > 3 else ''}")
        return "; ".join(parts)


def _samples(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"sample {indices[0]}"
    return f"samples {', '.join(map(str, indices[:4]))}{f' and {len(indices) - 4} more' if len(indices) > 4 else ''}"


def _run(session: Session, feeds: Mapping[int, Mapping[str, np.ndarray]]) -> list[Finding]:
    """Does the float model run, and give numbers?"""
    bad: dict[str, list[int]] = {}
    outputs: dict[str, set[bytes]] = {}
    for index, feed in feeds.items():
        for name, y in session.run(feed).items():
            if not isinstance(y, np.ndarray) or y.dtype.kind != "f":
                continue
            outputs.setdefault(name, set()).add(y.tobytes())
            if not np.isfinite(y).all():
                bad.setdefault(name, []).append(index)
    found = [
        Finding("warning", f"output {name!r}", f"the float model gives NaN or infinity on {_samples(indices)}")
        for name, indices in bad.items()
    ]
    distinct = len({b"".join(np.ascontiguousarray(x).tobytes() for x in feed.values()) for feed in feeds.values()})
    for name, seen in outputs.items():
        if len(seen) == 1 and distinct > 1:
            what = f"the float model gives the same on {distinct} different samples"
            found.append(Finding("warning", f"output {name!r}", what, "Is the data what the model expects?"))
    return found


def _fingerprint(model: ir.Model, feeds: Sequence[Mapping[str, np.ndarray]], options: Options) -> list[Finding]:
    """Compare the input of the first BatchNormalization with what it remembers of training."""
    node = next((n for n in model.graph if n.op_type == "BatchNormalization" and len(n.inputs) >= 5), None)
    source = node.inputs[0] if node is not None else None
    if node is None or source is None or not source.name or not feeds:
        return []
    mean, variance = constant_array(node.inputs[3]), constant_array(node.inputs[4])
    if mean is None or variance is None or not (variance > 0).any():
        return []
    try:
        tapped = observe(model, [source.name], keep_outputs=False)
    except ModelError:
        return []  # the tensor cannot be shown
    if source.name not in tapped.outputs:
        return []
    session = open_anyhow(tapped.model, providers=options.providers, custom_op_library=options.custom_op_library)
    needed = {info.name for info in session.inputs}
    columns = []
    for feed in feeds:
        x = session.run({k: v for k, v in feed.items() if k in needed})[tapped.outputs[source.name]]
        if x.ndim >= 2 and x.shape[1] == mean.size:
            columns.append(np.moveaxis(x, 1, 0).reshape(mean.size, -1).astype(np.float64))
    if not columns:
        return []
    x = np.concatenate(columns, axis=1)
    live = variance > 1e-12
    x, trained_mean, trained_std = x[live], mean[live].astype(np.float64), np.sqrt(variance[live].astype(np.float64))
    if x.shape[1] < 2 or not np.isfinite(x).all():
        return []
    off = float(np.median(np.abs(x.mean(axis=1) - trained_mean) / trained_std))
    spread = float(np.median(x.std(axis=1) / trained_std))
    if off < _MEAN_OFF and 1 / _SPREAD_OFF < spread < _SPREAD_OFF:
        return []
    what = (
        "the data does not look like the training data: the first BatchNormalization sees "
        f"{spread:.2g} times the spread it was trained on, its mean {off:.1f} standard deviations off"
    )
    hint = "Scale and normalize the data as in training (0..1 or 0..255? mean and std? RGB or BGR?)."
    return [Finding("warning", f"node {node.name!r} (BatchNormalization)", what, hint)]

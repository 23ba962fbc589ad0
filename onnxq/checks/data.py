"""Does the calibration data look like what the model was made for? Cheap questions on a few samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from onnxq.calibration.data import open_data
from onnxq.calibration.feeds import shape_text
from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import FEW
from onnxq.calibration.usable import Usable
from onnxq.checks.constant import constant_outputs, still_constant, tensors_of
from onnxq.checks.findings import SHOWN, Finding, of_error, sentences
from onnxq.checks.fingerprint import fingerprint
from onnxq.checks.states import states
from onnxq.console.terminal import listed, plural
from onnxq.errors import DataError, OnnxqError, OptionError
from onnxq.graph.recognition.for_bytes import for_bytes
from onnxq.options import ImageOptions, Options
from onnxq.ort.inputs import InputInfo, inputs_of
from onnxq.ort.session import Session

__all__ = ["EMPTY", "UNSCALED", "Looker", "check_data"]

LOOKED_AT = 32
"""Samples that are looked at, spread over all where the data allows it."""
RUN = 4
"""Samples that are run through the model."""
UNSCALED = "whole numbers from 0 to 255, as in pictures that were not scaled"
"""What is found of an input of bytes."""
_FEW = 2
"""Numbers of an input beside others that may well be one and the same: a picture's height and width."""
EMPTY = "empty in all samples"
"""What is found of a cache that nothing was put into."""


def check_data(
    model: ir.Model, session: Session, data: Any, options: Options, image: ImageOptions | None
) -> tuple[list[Finding], dict[str, tuple[int, ...]]]:
    """Look at a few samples and run some.

    Args:
        model: the float model, as the user gave it.
        session: that model, loaded.
        data: see `onnxq.calibration.data.open_data`.
        options: number of samples, providers, custom-op library.
        image: how pictures are read.

    Returns:
        The findings, and input name → shape of the first sample, of none where the data cannot be read.
    """
    limit = min(options.samples or LOOKED_AT, LOOKED_AT)
    looker = Looker(session.inputs, states(model), for_bytes(model))
    few: dict[int, Mapping[str, np.ndarray]] = {}
    try:
        inputs = [*session.inputs, *session.defaults]
        whole = open_data(data, inputs, image=image, samples=options.samples)
        samples = open_data(data, inputs, image=image, samples=limit) if whole.seekable else whole
        to_run = range(RUN) if samples.length is None else spread(range(min(limit, samples.length)), RUN)
        for index, feed in enumerate(samples):
            if index >= limit:
                break
            looker.look(feed, samples.index_of(index))
            if index in to_run:
                few[samples.index_of(index)] = feed
    except (DataError, OptionError) as error:
        return [of_error(error, "calibration data")], {}
    known = whole.length if whole.length is not None else looker.samples
    findings = [*_number(known), *looker.findings()]
    try:
        runs = {index: session.run(feed) for index, feed in few.items()}
        usable = Usable()
        for index, outputs in runs.items():
            usable.look(few[index], tensors_of(outputs), index)
        findings += looker.broken(usable.error is not None) + _outputs(runs)
        same = constant_outputs(model, list(few.values()), list(runs.values()))
        others = (feed for at, feed in enumerate(samples) if at < limit and samples.index_of(at) not in few)
        findings += still_constant(same, session, others if samples.repeatable else (), runs.values())
        remembered = fingerprint(model)
        findings += remembered.compare(few.values(), options) if remembered is not None else []
    except OnnxqError as error:
        findings.append(of_error(error, "running the float model"))
    what = plural(known, "sample") if whole.length is not None else f"at least {plural(known, 'sample')}"
    shapes = f"; {looker.shapes()}" if looker.shapes() else ""
    findings.append(Finding("note", "calibration data", f"{what} ({whole.kind}){shapes}"))
    return findings, {name: array.shape for feed in list(few.values())[:1] for name, array in feed.items()}


def _number(samples: int) -> list[Finding]:
    where = "calibration data"
    if samples == 1:
        return [Finding("warning", where, "only one sample, so the ranges depend on it alone", "Give 32 or more.")]
    if samples < FEW:
        return [Finding("warning", where, f"only {samples} samples", "Give 32 or more, like those in use.")]
    return []


class Looker:
    """What a few feeds have in common.

    Args:
        inputs: the inputs of the model that are looked at.
        states: those that may carry a state, see :func:`onnxq.checks.states.states`: it is at rest where a sequence
            begins.
        scaled: those that the model scales itself, see :func:`onnxq.graph.recognition.for_bytes.for_bytes`.

    Attributes:
        samples: feeds seen.
    """

    def __init__(
        self, inputs: Sequence[InputInfo], states: Mapping[str, bool], scaled: Mapping[str, str] | None = None
    ) -> None:
        self._inputs, self._states, self._scaled = inputs, states, scaled or {}
        self.samples = 0
        self._hashes: dict[str, set[bytes]] = {info.name: set() for info in inputs}
        self._words = all(info.dtype.kind != "f" for info in inputs)
        self._feeds: set[bytes] = set()  # of a model of words alone
        self._moving = {info.name: 0 for info in inputs}  # samples in which it is neither empty nor a state at rest
        self._shapes: dict[str, dict[tuple[int, ...], int]] = {info.name: {} for info in inputs}
        self._low = {info.name: np.inf for info in inputs}
        self._high = {info.name: -np.inf for info in inputs}
        self._whole = {info.name: True for info in inputs}
        self._flat: dict[str, list[int]] = {info.name: [] for info in inputs}
        self._bad: dict[str, list[int]] = {info.name: [] for info in inputs}

    @classmethod
    def of(cls, model: ir.Model) -> Looker:
        """For feeds of a float model."""
        return cls(inputs_of(model), states(model), for_bytes(model))

    def look(self, feed: Mapping[str, np.ndarray], index: int) -> None:
        """Take in one feed."""
        self.samples += 1
        if self._words:
            self._feeds.add(hashlib.sha256(b"".join(_bytes(name, feed[name]) for name in sorted(feed))).digest())
        for name, x in feed.items():
            if name not in self._shapes:
                continue
            self._shapes[name][x.shape] = self._shapes[name].get(x.shape, 0) + 1
            if x.dtype.kind not in "fiu" or not x.size:
                continue
            finite = x[np.isfinite(x)] if x.dtype.kind == "f" else x
            if finite.size < x.size:
                self._bad[name].append(index)
            low, high = (float(finite.min()), float(finite.max())) if finite.size else (np.inf, -np.inf)
            at_rest = low == high == 0.0 and name in self._states
            if not at_rest:
                self._moving[name] += 1
                self._hashes[name].add(hashlib.sha256(np.ascontiguousarray(x).tobytes()).digest())
            if low == high and x.size > 1 and not at_rest:
                self._flat[name].append(index)
            if not finite.size:
                continue
            self._low[name], self._high[name] = min(low, self._low[name]), max(high, self._high[name])
            self._whole[name] = self._whole[name] and bool(np.all(finite == np.rint(finite)))

    def broken(self, unusable: bool = False) -> list[Finding]:
        """Values that are no numbers.

        Args:
            unusable: the model makes nothing of the samples that it was run on.
        """
        found = []
        for info in self._inputs:
            bad = self._bad[info.name]
            if unusable and len(bad) == self.samples:
                what, hint = f"NaN or infinity in all {self.samples} samples looked at", "Look at where it is made."
                found.append(Finding("error", f"input {info.name!r}", what, hint))
            elif bad:
                what, hint = f"NaN or infinity in {_samples(bad)}", "These values are left out of every range."
                found.append(Finding("warning", f"input {info.name!r}", what, hint))
        return found

    def findings(self) -> list[Finding]:
        """What is suspicious of the numbers."""
        return [*(finding for info in self._inputs for finding in self._of_input(info)), *self._same_words()]

    def _same_words(self) -> Iterator[Finding]:
        """That samples are the same, of a model of integers alone: a mask or a kind of token may rest by itself."""
        big = any(np.prod(shape) > 1 for seen in self._shapes.values() for shape in seen)
        different = len(self._feeds)
        if not self._words or not big or self.samples <= 1:
            return
        if different == 1:
            yield Finding("warning", "calibration data", "all samples are identical", "Give different samples.")
        elif different <= self.samples // 2:
            yield Finding("warning", "calibration data", f"only {different} of {self.samples} samples differ")

    def _of_input(self, info: InputInfo) -> Iterator[Finding]:
        name, place = info.name, f"input {info.name!r}"
        if info.dtype.kind == "f" and self._shapes[name] and not any(map(np.prod, self._shapes[name])):
            yield Finding("warning", place, EMPTY, "Is it a cache? Feed also what the model gives back, as in use.")
        low, high = self._low[name], self._high[name]
        if info.dtype.kind != "f" or low > high:
            return
        yield from self._alike(name, place)
        if name in self._scaled and -1 <= low < high <= 1:
            what = f"no value is above {high:.4g}, but the model scales bytes, 0 to 255, itself: {self._scaled[name]}"
            hint = "Give it what is not scaled yet: --image-scale 1 where the data are pictures."
            yield Finding("warning", place, what, hint)
        if self._whole[name] and low >= 0 and 32 < high <= 255 and len(info.shape or ()) == 4:
            yield Finding("note", place, UNSCALED, "Right only if the model was trained on such values.")

    def _alike(self, name: str, place: str) -> Iterator[Finding]:
        """That values, or samples, are the same."""
        level: Literal["warning", "note"]
        low, high, flat = self._low[name], self._high[name], self._flat[name]
        big = any(np.prod(shape) > 1 for shape in self._shapes[name])
        if big and low == high:
            # an input beside others may well rest: a flag, a mask
            state = self._states.get(name, False)
            level = "warning" if len(self._inputs) == 1 or state else "note"
            what = "all values are zero" if low == 0.0 else f"all values are {low:g}"
            hint = "A state: feed also what the model gives back." if state else "Is this the right data?"
            yield Finding(level, place, what, hint)
        elif flat:
            beside = len(self._inputs) > 1 and all(np.prod(shape) <= _FEW for shape in self._shapes[name])
            level = "note" if beside else "warning"  # the height and the width of a picture may well be one number
            yield Finding(level, place, f"all values are the same in {_samples(flat)}")
        moving, different = self._moving[name], len(self._hashes[name])
        if not big or low == high or moving <= 1:
            return
        others = any(len(seen) > 1 for other, seen in self._hashes.items() if other != name)
        if different == 1 and others and not self._states.get(name, False):  # a matrix that is the same at each run
            yield Finding("note", place, "all samples are identical", "Right only if it is so in use.")
        elif different == 1:
            yield Finding("warning", place, "all samples are identical", "Give different samples.")
        elif different <= moving // 2:
            yield Finding("warning", place, f"only {different} of {moving} samples differ")

    def warnings(self) -> tuple[str, ...]:
        """What makes any figures of the model on these feeds doubtful, as sentences."""
        found = [*self.broken(), *self.findings()]
        return sentences(finding for finding in found if finding.level == "warning")

    def shapes(self) -> str:
        """The shapes seen, e.g. ``x 1x3x224x224``; those of caches of many layers once."""
        alike: dict[str, list[str]] = {}
        for name, seen in self._shapes.items():
            texts = [shape_text(shape) for shape in list(seen)[:3]] or ["left out"]
            alike.setdefault(f"{', '.join(texts)}{', ...' if len(seen) > 3 else ''}", []).append(name)
        return "; ".join(f"{listed(names, SHOWN)} {text}" for text, names in alike.items())


def _bytes(name: str, x: np.ndarray) -> bytes:
    """An input of a feed, as bytes that those of no other values equal."""
    values = repr(x.tolist()).encode() if x.dtype.hasobject else np.ascontiguousarray(x).tobytes()
    return f"{name!r} {x.shape} {x.dtype} {len(values)} ".encode() + values


def _samples(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"sample {indices[0]}"
    return f"samples {listed(list(map(str, indices)), 4)}"


def _outputs(runs: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Does the float model give numbers?"""
    bad: dict[str, list[int]] = {}
    for index, outputs in runs.items():
        for name, y in tensors_of(outputs).items():
            if y.dtype.kind == "f" and not np.isfinite(y).all():
                bad.setdefault(name, []).append(index)
    return [
        Finding("warning", f"output {name!r}", f"the float model gives NaN or infinity on {_samples(indices)}")
        for name, indices in bad.items()
    ]

"""What is known of a model's tensors after running data through it; mergeable, saved to a file.

The statistics of a tensor hold no choice of bits, symmetry or range method (see
:mod:`onnxq.calibration.tensor_statistics`), so one pass over the data serves every target.
"""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.chance import drawn_of
from onnxq.calibration.digest import model_digest
from onnxq.calibration.measured import Measured
from onnxq.calibration.tensor_statistics import EMA_MOMENTUM, SENTINEL, TensorStatistics
from onnxq.console.terminal import listed, plural
from onnxq.errors import StatisticsError
from onnxq.spec import QuantSpec

__all__ = ["EMA_MOMENTUM", "FEW", "SENTINEL", "KeptSample", "Statistics", "TensorStatistics", "model_digest"]

FEW = 10
"""Fewer samples give a warning."""
_SHOWN = 3
"""Tensors that a warning names."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptSample:
    """A sample held back, so that decisions and the final check need no data later.

    Attributes:
        index: its place among the samples that were run.
        feeds: input name to array.
        outputs: output name to what the float model gave.
        means: name of the input of a convolution or Gemm to the mean of each of its channels (axis 1), float64; only of
            tensors that were observed.
        picked: name of a tensor that the model picks from, see :mod:`onnxq.graph.picking`, to what the float model gave
            there.
        source: its place in the calibration data, where not all of it was run.
    """

    index: int
    feeds: dict[str, NDArray[Any]]
    outputs: dict[str, NDArray[Any]]
    means: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    picked: dict[str, NDArray[Any]] = field(default_factory=dict)
    source: int | None = None

    @property
    def place(self) -> int:
        """Its place in the calibration data, by which it is named."""
        return self.index if self.source is None else self.source

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for part in (self.feeds, self.outputs, self.picked) for array in part.values())


@dataclass(slots=True, eq=False, repr=False)
class Statistics:
    """What is known of a model's tensors.

    Attributes:
        model_digest: which model they are of, see :func:`model_digest`.
        samples: samples run.
        tensors: tensor name to its statistics, in the order asked for.
        unobservable: tensor name to the reason why it has none.
        kept: samples held back, by index.
        meta: anything else worth keeping, text.
        remarks: what the data and the model showed that the user should know, a sentence each.
        file: where they were loaded from, for messages.
        ranges: (tensor, spec, ends of what counts) → the range that was selected for it, so that several targets search
            for it once.
        measured: what was measured on the samples held back, for the same reason.
    """

    model_digest: str
    samples: int = 0
    tensors: dict[str, TensorStatistics] = field(default_factory=dict)
    unobservable: dict[str, str] = field(default_factory=dict)
    kept: list[KeptSample] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    file: str = field(default="", init=False, compare=False)
    ranges: dict[tuple[str, QuantSpec, tuple[float, float] | None], tuple[float, float]] = field(
        default_factory=dict, init=False, repr=False
    )
    measured: Measured = field(default_factory=Measured, init=False, repr=False)

    def __repr__(self) -> str:
        held = f"{plural(self.samples, 'sample')}, {len(self.kept)} kept"
        none = f", {len(self.unobservable)} without" if self.unobservable else ""
        parts = [f"{held}; {plural(len(self.tensors), 'tensor')}{none}", f"model {self.model_digest[:12]}"]
        parts += [f"file {self.file}"] if self.file else []
        return f"<Statistics of {'; '.join(parts)}>"

    def merge(self, other: Statistics) -> None:
        """Append the samples of ``other``; as many samples stay held back as the larger of the two holds, by lot.

        Args:
            other: statistics of the same model, not modified.

        Raises:
            StatisticsError: they are of another model.
        """
        if other.model_digest != self.model_digest:
            raise StatisticsError("the statistics belong to two models", hint="Collect both from the same file")
        self.ranges.clear()
        self.measured.clear()
        for name, theirs in other.tensors.items():
            self.tensors.setdefault(name, TensorStatistics(name)).merge(theirs, self.samples)
        self.unobservable = {
            name: reason
            for name, reason in {**other.unobservable, **self.unobservable}.items()
            if name not in self.tensors
        }
        most = max(len(self.kept), len(other.kept))
        added = self.samples
        behind = max([added, *(k.place + 1 for k in self.kept)])  # of data that were not all run, as near as is known
        joined = [*self.kept, *(replace(k, index=k.index + added, source=k.place + behind) for k in other.kept)]
        self.kept = [joined[k] for k in drawn_of(len(joined), most)]
        self.samples += other.samples
        self.meta = {**other.meta, **self.meta}
        self.remarks = tuple(dict.fromkeys((*self.remarks, *other.remarks)))

    def warnings(self, tensors: Container[str] | None = None) -> list[str]:
        """What the user should know: NaN, infinities and where, few samples, all-zero tensors, and the remarks.

        Args:
            tensors: names that these are looked for among, beside inputs and outputs of the model; all if None.
        """
        found: list[str] = []
        ends = {name for sample in self.kept[:1] for name in (*sample.feeds, *sample.outputs)}
        if 0 < self._rows() < FEW:
            found.append(
                f"the ranges come from {plural(self.samples, 'sample')} only, and what others give may be far worse: "
                "give 32 or more, like those in use"
            )
        for word, total, first in (("NaN", "nan", "nan_sample"), ("infinite values", "inf", "inf_sample")):
            bad = [stats for stats in self.tensors.values() if getattr(stats, total)]
            bad = [stats for stats in bad if tensors is None or stats.name in tensors or stats.name in ends]
            if bad:
                head = bad[0]
                more = f" and {plural(len(bad) - 1, 'more tensor')}" if len(bad) > 1 else ""
                found.append(
                    f"{word} in tensor {head.name!r}{more}, first in sample {getattr(head, first)} "
                    f"({getattr(head, total)} of {head.elements} values); they are left out of the ranges"
                )
        whole = [stats for stats in self.tensors.values() if stats.count == stats.elements > 0]  # none of them a mask
        zero = [stats.name for stats in whole if stats.min == stats.max == 0.0]
        zero = [name for name in zero if tensors is None or name in tensors]
        if zero:
            found.append(f"always zero on this data: {listed(list(map(repr, zero)), _SHOWN)}")
        return [*found, *self.remarks]

    def _rows(self) -> int:
        """Samples, those of a batch counted each where it is seen: all inputs have the same first axis."""
        firsts = {x.shape[0] if x.ndim else 1 for sample in self.kept[:1] for x in sample.feeds.values()}
        return self.samples * (max(firsts) if len(firsts) == 1 else 1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a ``.npz`` file; the same statistics give the same bytes.

        Args:
            path: the file, replaced as a whole once all is written.

        Raises:
            OutputError: it cannot be written.
        """
        from onnxq.calibration import archive

        archive.save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Statistics:
        """Read what :meth:`save` wrote.

        Args:
            path: the file.

        Raises:
            StatisticsError: it is missing or malformed.
        """
        from onnxq.calibration import archive

        found = archive.load(path)
        found.file = str(path)
        return found

    def require_of(self, digest: str) -> None:
        """Hold them against the model that they are to serve.

        Args:
            digest: of the model, see :func:`model_digest`.

        Raises:
            StatisticsError: they were made from another one.
        """
        if self.model_digest != digest:
            raise StatisticsError(
                "the statistics were made from another model",
                where=f"'{self.file}'" if self.file else "",
                hint="Give the model that they were made from, with its --shape and --simplify, or calibrate this one",
            )

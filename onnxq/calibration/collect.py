"""Run the float model over the data, once, one sample at a time, and add up statistics of its tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.keep import Keeper
from onnxq.calibration.share_out import known_bytes, share_out, tensor_bytes
from onnxq.calibration.statistics import Statistics, TensorStatistics, model_digest
from onnxq.calibration.taps import tap
from onnxq.calibration.usable import Usable
from onnxq.errors import DataError, ExecutionError, OnnxqError
from onnxq.graph.picking import picking
from onnxq.ort.session import Session, open_anyhow

__all__ = ["channel_means", "collect"]

Feeds = Mapping[str, NDArray[Any]]

_MIB = 1 << 20
_SMALL = 1 << 16
"""Bytes of a tensor that costs nothing to observe for its channel means alone."""


def collect(
    model: ir.Model,
    tensors: Sequence[str],
    data: Iterable[Feeds],
    *,
    expected: int | None = None,
    keep: int = 8,
    keep_bytes: int = 64 * _MIB,
    providers: Sequence[str] | None = None,
    custom_op_library: str | os.PathLike[str] | None = None,
    memory_budget: int = 1024 * _MIB,
    progress: Callable[[int], None] | None = None,
    digest: str | None = None,
    place: Callable[[int], int] = int,
) -> Statistics:
    """Collect statistics of tensors in one pass over the data.

    Outputs of a sample are dropped before the next one runs, so memory does not grow with the number of samples.
    Where the tensors of one sample need more than ``memory_budget`` they are observed in groups, each by a run of its
    own on the same sample.

    Args:
        model: the float model, not modified; value names are unique over the whole of it.
        tensors: names of the tensors to observe, those inside subgraphs too.
        data: complete feeds, batch dimension included; shapes may differ from sample to sample.
        expected: how many there will be, where it is known.
        keep: how many samples to hold back with the model's outputs, spread over all by lot.
        keep_bytes: bytes that these may take, up to four of them four times as many (one is held back in any case);
            samples with a NaN in an output or in what the model picks from are not held back.
        providers: execution providers, see :class:`onnxq.ort.session.Session`.
        custom_op_library: shared library with custom operators.
        memory_budget: bytes of the observed tensors of one sample.
        progress: called after each sample with the number of samples done.
        digest: what the statistics say that they are of; None: the digest of ``model``.
        place: of a sample that comes after so many others, in the data that it was drawn from; what is said of it, and
            kept, names it so.

    Returns:
        Statistics of every tensor that can be observed, and the reasons for the others.

    Raises:
        DataError: there is no sample, none that the model makes a number of, or the data fails to give one.
        ModelError: the model has no tensor of a name.
        ExecutionError: the model cannot be loaded, or fails on a sample.
    """
    options: dict[str, Any] = {"providers": providers, "custom_op_library": custom_op_library}
    names = list(dict.fromkeys(tensors))
    runner: _Runner | None = None
    keeper = Keeper(keep, keep_bytes, expected)
    result = Statistics(model_digest(model) if digest is None else digest)
    for index, feeds in enumerate(_samples(data)):
        if runner is None:
            runner = _Runner(model, names, feeds, place(index), memory_budget, options)
            result.unobservable = dict(runner.unobservable)
            result.tensors = {name: TensorStatistics(name) for name in names if name not in result.unobservable}
        seen = runner.run(feeds, place(index), result, keeper.wants(index))
        if seen is not None:
            outputs, means, picked = seen
            arrays = (*feeds.values(), *outputs.values(), *picked.values())
            if not runner.needs_picked and keep * sum(array.nbytes for array in arrays) > keep_bytes:
                picked = {}  # more samples tell more
            keeper.offer(index, feeds, outputs, means, picked, place(index))
            del outputs, means, picked, arrays
        del feeds, seen
        result.samples += 1
        if progress is not None:
            progress(result.samples)
    if runner is None:
        raise DataError("no samples", where="data", hint="Give at least one, better a hundred")
    if runner.usable.error is not None:
        raise runner.usable.error
    result.kept = keeper.kept
    return result


def _samples(data: Iterable[Feeds]) -> Iterator[Feeds]:
    """Samples one at a time; what goes wrong in the user's code becomes an error that names the sample."""
    index = 0
    try:
        for feeds in data:
            yield feeds
            index += 1
    except OnnxqError:
        raise
    except Exception as error:
        raise DataError(f"the data failed ({type(error).__name__}: {error})", where=f"sample {index}") from error


@dataclass(slots=True)
class _Group:
    """A session that shows some tensors: tensor name to output name."""

    session: Session
    shown: dict[str, str]


class _Runner:
    """The sessions that show all tensors, and what they give for a sample."""

    def __init__(
        self, model: ir.Model, names: list[str], feeds: Feeds, first: int, budget: int, options: dict[str, Any]
    ) -> None:
        self._model, self._budget, self._options, picked = model, budget, options, picking(model)
        self._outputs = [value.name or "" for value in model.graph.outputs]
        tapped = tap(model, names)
        self.unobservable = tapped.unobservable
        self._names = [name for name in names if name in tapped.outputs]
        with _at_sample(first):
            self._sizes = tensor_bytes(model, self._names, feeds, **options)
        self._meant = _layer_inputs(model)  # name -> rank
        small = {n: s for n, s in known_bytes(model, sorted(self._meant), feeds).items() if s <= _SMALL}
        self._picked, self.needs_picked = picked.tensors, bool(picked.outputs)
        self._extra = [name for name in dict.fromkeys((*small, *self._picked)) if name not in names]
        self._groups = self._open()
        self.usable = Usable()

    def run(
        self, feeds: Feeds, index: int, result: Statistics, wanted: bool
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.float64]], dict[str, NDArray[Any]]] | None:
        """Add one sample to the statistics.

        Returns:
            The model's outputs that are tensors, the channel means of what convolutions and Gemms read, and what the
            model picks from, if they are wanted and no output holds a NaN. One that is fed or made inside, and taken
            out again by an Imputer or a Where, spoils nothing that is compared.
        """
        outputs: dict[str, NDArray[Any]] = {}
        means: dict[str, NDArray[np.float64]] = {}
        picked: dict[str, NDArray[Any]] = {}
        total = 0
        for group in self._groups:
            with _at_sample(index):
                arrays = group.session.run(feeds)
            if group is self._groups[0]:
                outputs = {name: arrays[name] for name in self._outputs if name in arrays}
            for name, output in group.shown.items():
                array = arrays[output] if output in outputs else arrays.pop(output)
                if wanted and array.size and array.ndim >= self._meant.get(name, 99) and array.dtype == np.float32:
                    means[name] = channel_means(array, self._meant[name])
                if wanted and name in self._picked:
                    picked[name] = array
                if name not in result.tensors:
                    continue
                if array.dtype != np.float32:
                    result.unobservable[name] = f"it is {array.dtype}, not float32"
                    result.tensors.pop(name, None)
                    continue
                stats = result.tensors[name]
                stats.update(array, index)
                total += array.nbytes
                self._sizes[name] = max(self._sizes.get(name, 0), array.nbytes)
            del arrays
        self.usable.look(feeds, outputs, index)
        if total > self._budget and len(share_out(self._names, self._sizes, self._budget)) > len(self._groups):
            self._groups = self._open()  # this sample was larger than those before
        if not wanted or any(map(_has_nan, (*outputs.values(), *picked.values()))):
            return None
        return outputs, means, picked

    def _open(self) -> list[_Group]:
        groups = []
        for number, names in enumerate(share_out(self._names, self._sizes, self._budget)):
            extra = self._extra if number == 0 else []
            tapped = tap(self._model, [*names, *extra], keep_outputs=number == 0)
            session = open_anyhow(tapped.model, **self._options)
            groups.append(_Group(session, tapped.outputs))
        return groups


def channel_means(values: NDArray[np.float32], rank: int) -> NDArray[np.float64]:
    """Mean of each channel over samples and positions.

    Args:
        values: not empty; what a Loop or Scan collects has one more axis in front than the tensor.
        rank: of the tensor, whose axis 1 holds the channels.
    """
    values = values.reshape(-1, *values.shape[values.ndim - rank + 1 :])
    with np.errstate(over="ignore"):  # a broken model's; what is not finite is left out by whoever uses the means
        rows = values.reshape(*values.shape[:2], -1).sum(axis=2)  # float32, pairwise: exact to a few parts in 1e7
    return np.asarray(rows.sum(axis=0, dtype=np.float64) * (values.shape[1] / values.size))


def _layer_inputs(model: ir.Model) -> dict[str, int]:
    """The tensors that convolutions and Gemms read as their data, with their rank."""
    found = {}
    for node in model.graph.all_nodes():
        data, weight = (*node.inputs, None, None)[:2]
        if node.op_type in ("Conv", "Gemm") and data is not None and weight is not None and weight.shape is not None:
            found[data.name or ""] = len(weight.shape)
    return found


@contextmanager
def _at_sample(index: int) -> Iterator[None]:
    """Let an error of onnxruntime name the sample."""
    try:
        yield
    except ExecutionError as error:
        where = f"sample {index}" + (f", {error.where}" if error.where else "")
        raise ExecutionError(error.what, where=where, hint=error.hint) from error


def _has_nan(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array).any())

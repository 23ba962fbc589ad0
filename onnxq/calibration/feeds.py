"""Fitting of one item of a user's data to a model's inputs: names, dimensions, types.

An item may be a mapping by input name, alone or in front of other things such as a label, a tuple or list in the order
of the inputs (what follows the last input is left out), or a single array. Tensors of torch and other libraries are
converted without importing them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxq.console.terminal import plural
from onnxq.errors import DataError
from onnxq.ort.inputs import InputInfo
from onnxq.suggest import nearest

__all__ = ["Fitter", "shape_text"]

_log = logging.getLogger("onnxq")


class Fitter:
    """Makes complete feeds of items; warns once of each kind of conversion.

    Args:
        inputs: those of the model; each must be fed that has no default and is not optional.

    Attributes:
        inputs: those that have no default.
        needed: those of them that are not optional.
    """

    def __init__(self, inputs: Sequence[InputInfo]) -> None:
        self.inputs = tuple(info for info in inputs if not info.default)
        self.needed = tuple(info for info in self.inputs if not info.optional)
        self._known = {info.name: info for info in inputs}
        self._warned: set[str] = set()
        self._ambiguous: set[str] = set()

    def fit(self, item: object, where: str) -> dict[str, np.ndarray]:
        """The complete feed, batch dimension included.

        Args:
            item: one sample as the data gives it.
            where: the sample, for messages, e.g. ``"sample 3"``.

        Raises:
            DataError: an input is missing, or a name, shape or type does not fit.
        """
        arrays = self._named(item, where)
        left_out = {info.name for info in self.inputs if info.optional and arrays.get(info.name) is None}
        arrays = {name: array for name, array in arrays.items() if name not in left_out}
        missing = [info.name for info in self.inputs if info.name not in arrays and info.name not in left_out]
        unknown = [name for name in arrays if name not in self._known]
        if missing:
            hint = nearest(missing[0], unknown, title="the data has") if unknown else ""
            wrong = f"the data has no array for the model's input {missing[0]!r}"
            needs = f"The model's inputs: {', '.join(repr(info.name) for info in self.inputs)}."
            raise DataError(wrong, where=where, hint=f"{hint} {needs}".strip())
        if unknown:
            self._warn(f"the data's {', '.join(map(repr, unknown))} is no input that the model needs, and is not used")
        feed = {name: self._array(self._known[name], arrays[name], where) for name in arrays if name in self._known}
        self._agree(feed, where)
        return feed

    def rows_in_a_sample(self, arrays: object) -> int:
        """How many rows of arrays make up a sample: the batch that the model is fixed to where a row has none, else 1.

        Args:
            arrays: by input name, or one for a model with one input, of which the shapes count; rows are along the
                first axis. What has no axes belongs to every sample.
        """
        if not isinstance(arrays, Mapping) and len(self.needed) != 1:
            return 1
        found: set[int] = set()
        axes = 0
        for name, array in self._named(arrays, "data").items():
            info = self._known.get(name)
            if info is None or not array.shape:
                continue
            row, wanted = tuple(array.shape[1:]), info.shape
            if not wanted or not isinstance(wanted[0], int) or _fits(row, wanted):
                return 1
            if not _fits(row[1:] if len(row) == len(wanted) and row[0] == 1 else row, wanted[1:]):
                return 1
            found.add(wanted[0])
            axes = max(axes, len(wanted))
        return max(found.pop(), 1) if len(found) == 1 and axes > 1 else 1

    def _agree(self, feed: Mapping[str, np.ndarray], where: str) -> None:
        """Warn of a name of dimensions that have different sizes: onnxruntime shares memory by such names."""
        seen: dict[str, tuple[int, str]] = {}
        for name, array in feed.items():
            for axis, (dim, size) in enumerate(zip(self._known[name].shape or (), array.shape, strict=False)):
                if not isinstance(dim, str) or not dim:
                    continue
                first, there = seen.setdefault(dim, (size, f"axis {axis} of {name!r}"))
                if size != first and dim not in self._ambiguous:
                    self._ambiguous.add(dim)
                    self._warn(
                        f"the model calls axis {axis} of {name!r} and {there} both {dim!r}, in {where} they are {size} "
                        f"and {first}: onnxruntime may fail to run the result. Give each its own name in the model"
                    )

    def _named(self, item: object, where: str) -> Mapping[str, Any]:
        if isinstance(item, (tuple, list)) and item and isinstance(item[0], Mapping):
            more = sum(isinstance(part, Mapping) and not set(part).isdisjoint(self._known) for part in item)
            if more > 1:
                wrong = f"an item holds {more} dicts with the model's inputs, and is one sample"
                raise DataError(wrong, where=where, hint="Give the dicts one by one, each as an item of the data")
            item = item[0]  # (feed, label)
        if isinstance(item, Mapping):
            positional = [f"arr_{i}" for i in range(len(item))]  # numpy.savez without names
            if len(item) == len(self.inputs) and set(item) == set(positional) and not set(item) & set(self._known):
                return {info.name: item[key] for info, key in zip(self.inputs, positional, strict=True)}
            return {str(name): value for name, value in item.items()}
        if isinstance(item, (tuple, list)) and item and all(self._is_array(part) for part in item[: len(self.inputs)]):
            if len(item) < len(self.needed):
                wrong = (
                    f"the data gives {plural(len(item), 'array')}, the model has {plural(len(self.inputs), 'input')}"
                )
                raise DataError(wrong, where=where, hint="Give a dict by input name, or a tuple in the inputs' order.")
            return {info.name: part for info, part in zip(self.inputs, item, strict=False)}
        if len(self.needed) != 1:
            wrong = f"the data gives a single {type(item).__name__}, the model has {len(self.inputs)} inputs"
            names = ", ".join(repr(info.name) for info in self.inputs)
            hint = f"Give all arrays of a sample by their names {names}: in a dict, or in an .npz file."
            raise DataError(wrong, where=where, hint=hint)
        return {self.needed[0].name: item}

    def _is_array(self, part: object) -> bool:
        """Lists in a list are one array where the model has one input."""
        return hasattr(part, "shape") or (len(self.inputs) > 1 and isinstance(part, (list, tuple)))

    def _array(self, info: InputInfo, value: object, where: str) -> np.ndarray:
        where = f"{where}, input {info.name!r}"
        try:
            array = _to_numpy(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{type(value).__name__} is not an array ({error})", where=where) from error
        return self._cast(_with_batch(info, array, where), info, where)

    def _cast(self, array: np.ndarray, info: InputInfo, where: str) -> np.ndarray:
        have, want = array.dtype, info.dtype
        if have == want:
            return array
        wrong = DataError(f"the data is {have.name}, the model wants {want.name}", where=where)
        if want.kind == "O":
            if have.kind in "US":
                return array.astype(np.str_).astype(object)
            raise wrong
        have_kind, want_kind = _kind(have), _kind(want)
        if have_kind not in "biuf" or want_kind not in "biuf":
            raise wrong
        if want_kind == "f":
            if not np.can_cast(have, want, "safe") and have_kind == "f":
                self._warn(f"input {info.name!r}: the data is {have.name}, cast to {want.name}")
            with np.errstate(over="ignore"):  # an infinity is reported with the statistics
                return array.astype(want)
        with np.errstate(invalid="ignore"):
            cast = array.astype(want)
        if not np.array_equal(cast, array):
            hint = "The values are not whole numbers in its range."
            raise DataError(f"the data is {have.name}, the model wants {want.name}", where=where, hint=hint)
        return cast

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s", message)


def _kind(dtype: np.dtype[Any]) -> str:
    return "f" if dtype.name == "bfloat16" else dtype.kind


def _to_numpy(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
        return np.asarray(value.numpy())
    return np.asarray(value.numpy()) if hasattr(value, "numpy") else np.asarray(value)


def _fits(shape: tuple[int, ...], wanted: Sequence[int | str | None]) -> bool:
    return len(shape) == len(wanted) and all(
        not isinstance(w, int) or w == s for s, w in zip(shape, wanted, strict=True)
    )


def _with_batch(info: InputInfo, array: np.ndarray, where: str) -> np.ndarray:
    """The array with the model's rank: a missing batch dimension is put in front."""
    if info.shape is None:
        return array
    wanted = info.shape
    if array.ndim == len(wanted) - 1:
        array = array[np.newaxis]
    elif len(wanted) + 1 == array.ndim > 2 and wanted[0] == array.shape[0] > 1 == array.shape[1]:
        array = array[:, 0]  # samples of a batch of 1 each, put together
    of_another_kind = _kind(array.dtype) not in "biuf" and _kind(info.dtype) in "biuf"  # which is told in place of it
    if not _fits(array.shape, wanted) and not of_another_kind:
        wrong = f"the data has shape {shape_text(array.shape)}, the model wants {shape_text(wanted)}"
        raise DataError(wrong, where=where, hint=_shape_hint(array.shape, wanted))
    return array


def _shape_hint(have: tuple[int, ...], want: Sequence[int | str | None]) -> str:
    if len(have) == 4 == len(want):
        channels_last = (have[0], have[3], have[1], have[2])
        channels_first = (have[0], have[2], have[3], have[1])
        if have[3] in (1, 3, 4) and _fits(channels_last, want):
            return (
                "The data has its channels last, the model wants them first: transpose height, width, channel to CHW."
            )
        if have[1] in (1, 3, 4) and _fits(channels_first, want):
            return (
                "The data has its channels first, the model wants them last: transpose channel, height, width to HWC."
            )
    if len(have) == len(want) + 1:
        spare = [a for a, size in enumerate(have) if size == 1 and _fits((*have[:a], *have[a + 1 :]), want)]
        if spare:
            return f"Its axis {spare[0]}, of 1, is one too many."
    if len(have) < len(want) and have and _fits(have, want[len(want) - len(have) :]):
        return (
            "Its first axes are missing. Of an array or a file, the first axis counts the samples: a single sample "
            "needs one more in front, array[None]."
        )
    if len(have) == len(want) and have and isinstance(want[0], int) and _fits(have[1:], want[1:]):
        return f"The model's batch is fixed to {want[0]}: each sample has to have the shape {shape_text(want)}."
    return ""


def shape_text(shape: Sequence[int | str | None]) -> str:
    """A shape as a user reads it: ``1x3x224x224``, ``?`` where free, ``scalar`` without dimensions."""
    return "x".join("?" if d is None or d == "" else str(d) for d in shape) or "scalar"

"""Calibration data from wherever a user has it: files, folders, pictures, functions, iterables, data loaders.

Whatever the source, the samples come one at a time as complete feeds (a dict of arrays by input name, batch dimension
included), always in the same order, and no more than one sample is held in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.calibration.batches import of_rows
from onnxq.calibration.feeds import Fitter
from onnxq.calibration.images import SUFFIXES, ImageReader
from onnxq.calibration.numpy_files import RowArray, load_feed, open_npy, open_npz
from onnxq.calibration.samples import Samples, Within, length_of
from onnxq.console.terminal import listed, plural
from onnxq.errors import DataError
from onnxq.file_system import is_there
from onnxq.options import ImageOptions
from onnxq.ort.inputs import InputInfo
from onnxq.suggest import nearest_file
from onnxq.user_code import at_home, function_of, split_name

__all__ = ["Samples", "of_pictures", "open_data"]

_PICTURES = "folder of picture files"
_SHOWN = 4
"""Folders that a message names."""

_STATISTICS = {"header", "integers", "reals", "hist_offsets"}
"""Arrays that are in a statistics file, see :mod:`onnxq.calibration.archive`."""


def open_data(
    source: Any,
    inputs: Sequence[InputInfo],
    *,
    image: ImageOptions | None = None,
    samples: int | None = None,
) -> Samples:
    """Open calibration data.

    Args:
        source: one of

            * a ``.npz`` file, an array per input whose first axis is the samples; an array without axes is the same for
              every sample; single samples are put together where the model's batch is fixed to more than one;
            * a ``.npy`` file or a NumPy array, the same for a model with one input; a dict of arrays likewise;
            * a folder of ``.npz`` files, each a complete feed, or of ``.npy`` files (one input), in the order of names;
            * a folder of pictures, subfolders included, read as ``image`` says;
            * ``"file.py:function"``, a function that returns an iterable (or a generator function, or an iterable);
            * an iterable, generator, function, data loader or data set (samples by index), whose items are a dict by
              input name, a tuple in the order of the inputs (labels behind are left out), or an array. Batches are fed
              as they are.

            A sample may have the batch dimension or lack it.
        inputs: the model's inputs; an array for one with a default is used where the data has it by its name, and one
            that is optional may be left out.
        image: how pictures are read.
        samples: use at most so many, spread over all by lot (see :mod:`onnxq.calibration.chance`); of an iterable with
            a length, what lies before the last of them is read and passed over. Where it is not known how many there
            are, they are the first ones, which the log says.

    Raises:
        DataError: there is no such data, it is empty, or it cannot be opened.
        OptionError: it is said how pictures are read, and the data is no folder of pictures.
    """
    image = ImageOptions.of(image)
    opened = _open(source, inputs, image, samples)
    if opened.kind != _PICTURES:
        ImageOptions.refuse(image, f"this data, which is not a folder of pictures ({opened.kind})")
    return opened


def of_pictures(source: Any) -> bool:
    """Whether data is a folder with pictures in it."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source)
    return os.path.isdir(path) and bool(_kinds(path)["picture"])


def _open(source: Any, inputs: Sequence[InputInfo], image: ImageOptions, samples: int | None) -> Samples:
    for info in inputs:
        if info.container:
            raise DataError(
                f"it is a {info.container}, and samples are tensors",
                where=f"input {info.name!r}",
                hint="Quantize the part of the model that has tensors as its inputs",
            )
    fitter = Fitter(inputs)
    if samples is not None and samples < 1:
        raise DataError(f"{samples} samples asked for", hint="Use at least one.")
    if isinstance(source, Samples):
        raise DataError("the data is open already", hint="Give the source itself, or iterate over what was opened.")
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source)
        if not text:
            raise DataError("the name of the data is empty", hint="Give a file or a folder; '.' is the current one.")
        path, name = split_name(text)
        if name is not None:
            where = f"data {f'{path}:{name}'!r}"
            found = function_of(path, name, where=where, error=DataError)
            within = partial(at_home, str(path.absolute().parent))
            return _from_object(found, f"function {name}", fitter, samples, where, within)
        return _from_path(path, fitter.needed, fitter, image, samples)
    return _from_object(source, type(source).__name__, fitter, samples)


def _from_path(
    path: Path, inputs: tuple[InputInfo, ...], fitter: Fitter, image: ImageOptions, samples: int | None
) -> Samples:
    if not is_there(path, DataError):
        raise DataError("does not exist", where=f"data {str(path)!r}", hint=nearest_file(path))
    if path.is_dir():
        return _from_folder(path, inputs, fitter, image, samples)
    if path.suffix == ".npz":
        arrays: Mapping[str, RowArray] = open_npz(path)
        if arrays.keys() >= _STATISTICS:
            hint = "Give it as statistics, not as data: --statistics FILE."
            raise DataError("is a statistics file, as onnxq calibrate writes it", where=f"{str(path)!r}", hint=hint)
        return _from_rows("npz file", arrays, _length(arrays, path), fitter, samples, f"data {str(path)!r}")
    if path.suffix == ".npy":
        array = open_npy(path)
        length = _length({path.name: array}, path)
        return _from_rows("npy file", array, length, fitter, samples, f"data {str(path)!r}")
    if path.suffix == ".py":
        hint = f"Write {path}:FUNCTION."
        raise DataError("names no function in the Python file", where=f"data {str(path)!r}", hint=hint)
    hint = "Use .npz, .npy, a folder of either or of pictures, or FILE.py:FUNCTION."
    raise DataError("is not a kind of data that onnxq reads", where=f"data {str(path)!r}", hint=hint)


def _from_folder(
    folder: Path, inputs: tuple[InputInfo, ...], fitter: Fitter, image: ImageOptions, samples: int | None
) -> Samples:
    where = f"data {str(folder)!r}"
    if not os.access(folder, os.R_OK | os.X_OK):
        raise DataError("the folder cannot be read: permission denied", where=where)
    kinds = _kinds(folder)
    present = [kind for kind, found in kinds.items() if found]
    if not present:
        raise DataError("no samples", where=where, hint=_elsewhere(folder))
    if len(present) > 1:
        counts = ", ".join(plural(len(kinds[kind]), f"{kind} file") for kind in present)
        raise DataError(f"the folder mixes {counts}", where=where, hint="Keep one kind in a folder.")
    found = kinds[present[0]]
    read: Callable[[Path], Any] = load_feed
    if present[0] == "picture":
        read = ImageReader(inputs, image).read

    def items(indices: Sequence[int] | None) -> Iterator[Any]:
        for index in range(len(found)) if indices is None else indices:
            yield read(found[index])

    names = [path.relative_to(folder).as_posix() for path in found]
    return Samples(f"folder of {present[0]} files", items, len(found), fitter, samples=samples, files=names)


def _kinds(folder: Path) -> dict[str, list[Path]]:
    """The files in a folder that may be samples, by what they are."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not _hidden(p.relative_to(folder)))
    return {
        "npz": [p for p in files if p.suffix == ".npz" and p.parent == folder],
        "npy": [p for p in files if p.suffix == ".npy" and p.parent == folder],
        "picture": [p for p in files if p.suffix.lower() in SUFFIXES],
    }


def _elsewhere(folder: Path) -> str:
    """What a folder without samples has not, and what the folders in it have."""
    inside = sorted({p.relative_to(folder).parts[0] for p in folder.rglob("*.np[yz]") if p.parent != folder})
    if not inside:
        return "The folder has no .npz, .npy or picture files."
    return (
        f"Arrays are read from the folder itself, not from those in it ({listed([repr(n) for n in inside], _SHOWN)}): "
        "give one of them if it holds whole samples; else write a file .npz for each, with an array for each input."
    )


def _from_object(
    source: Any, kind: str, fitter: Fitter, samples: int | None, where: str | None = None, within: Within = nullcontext
) -> Samples:
    """An object as data; ``where``: what it was asked for by; ``within``: the surroundings that its code needs."""
    if source is None:
        raise DataError("no data", hint="Give a file, a folder, an iterable or FILE.py:FUNCTION.")
    if isinstance(source, Mapping):
        arrays = {str(name): np.asarray(value) for name, value in source.items()}
        return _from_rows("arrays", arrays, _length(arrays, None), fitter, samples)
    if isinstance(source, np.ndarray):
        length = _length({"the array": source}, None)
        return _from_rows("array", source, length, fitter, samples)
    if isinstance(source, (list, tuple)) or _by_index(source):
        sequence = source

        def picked(indices: Sequence[int] | None) -> Iterator[Any]:
            return (sequence[i] for i in (range(len(sequence)) if indices is None else indices))

        return Samples(kind, picked, len(sequence), fitter, samples=samples, within=within)
    if isinstance(source, Iterable):
        return Samples(kind, lambda _: source, length_of(source), fitter, samples=samples, seekable=False,
                       repeatable=not isinstance(source, Iterator), within=within)  # fmt: skip
    if callable(source):

        def called(_: Sequence[int] | None) -> Iterable[Any]:
            made = source()
            if isinstance(made, (str, bytes)) or not isinstance(made, Iterable):
                wrong = f"the function returned {type(made).__name__}, not an iterable of samples"
                raise DataError(wrong, where=f"data ({kind})", hint="Yield or return a list of feeds.")
            return [made] if isinstance(made, Mapping) else made

        return Samples(kind, called, None, fitter, samples=samples, seekable=False, within=within)
    raise DataError(
        f"{type(source).__name__} is not a kind of data that onnxq reads",
        where=where,
        hint="Give a file, a folder, an iterable or FILE.py:FUNCTION.",
    )


def _by_index(source: Any) -> bool:
    """Whether samples are had by their index alone, as those of torch's map-style data sets."""
    return not isinstance(source, Iterable) and hasattr(source, "__getitem__") and length_of(source) is not None


def _from_rows(
    kind: str,
    arrays: Mapping[str, RowArray] | Mapping[str, np.ndarray] | RowArray | np.ndarray,
    length: int,
    fitter: Fitter,
    samples: int | None,
    where: str = "data",
) -> Samples:
    items, total = of_rows(arrays, length, fitter, where)
    return Samples(kind, items, total, fitter, samples=samples)


def _length(arrays: Mapping[str, RowArray] | Mapping[str, np.ndarray], path: Path | None) -> int:
    """The common length of the first axes."""
    lengths = {name: array.shape[0] for name, array in arrays.items() if array.shape}
    where = f"data {str(path)!r}" if path else "data"
    if not arrays:
        raise DataError("no samples", where=where, hint="It holds no arrays.")
    if not lengths:
        raise DataError("no array has a first axis", where=where, hint="The first axis of the arrays is the samples.")
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        hint = (
            "The first axis of each array is the samples; where the batch is another axis of an input (a state of "
            "layers by batch), put samples of the input's own shape behind one another on a new first axis."
        )
        raise DataError(f"the arrays have different numbers of samples: {text}", where=where, hint=hint)
    return next(iter(lengths.values()))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)

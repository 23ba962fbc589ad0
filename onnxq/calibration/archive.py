"""Statistics to a ``.npz`` file and back: deterministic bytes, no pickle; a malformed file is an error, not a crash.

Members: ``header`` (JSON as UTF-8 bytes), ``integers`` and ``reals`` (a row a tensor), the histograms sparsely as
``hist_offsets``, ``hist_keys``, ``hist_counts``, and ``kept/<sample>/feed/<n>``, ``…/output/<n>``, ``…/means/<n>``.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.histogram import KEYS
from onnxq.calibration.numpy_files import BROKEN
from onnxq.calibration.statistics import KeptSample, Statistics, TensorStatistics
from onnxq.errors import StatisticsError
from onnxq.file_system import whole_file

__all__ = ["load", "save"]

_FORMAT, _VERSION = "onnxq statistics", 1
_INTEGERS = ("count", "nan", "inf", "sentinels", "masked", "nan_sample", "inf_sample", "samples", "averaged")
_REALS = ("min", "max", "sum", "sum_abs", "sum_squares", "ema_min", "ema_max", "first_min", "first_max")
_EXPANDED_LIMIT = 1 << 30  # bytes that compressed members may expand to
_EPOCH = (1980, 1, 1, 0, 0, 0)


def save(statistics: Statistics, path: str | os.PathLike[str]) -> None:
    """Write statistics; the file appears complete or not at all.

    Args:
        statistics: what to write.
        path: the file, replaced if it is there.

    Raises:
        OutputError: it cannot be written.
    """
    with whole_file(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for name, array, compress in _members(statistics):
            _write(file, name, array, compress)


def load(path: str | os.PathLike[str]) -> Statistics:
    """Read statistics.

    Args:
        path: a file that :func:`save` wrote.

    Returns:
        What was saved.

    Raises:
        StatisticsError: the file is missing, or is not a sound statistics file.
    """
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as file:
            return _read(_Reader(file))
    except FileNotFoundError as error:
        raise StatisticsError("no such file", where=f"'{source}'", hint="Make it with `onnxq calibrate`") from error
    except (OSError, MemoryError) as error:
        what = getattr(error, "strerror", None) or error
        raise StatisticsError(f"cannot be read: {what}", where=f"'{source}'") from error
    except (*BROKEN, AttributeError) as error:
        if _is_data(source):
            raise StatisticsError(
                "holds arrays, not statistics",
                where=f"'{source}'",
                hint="Give it as data, or make statistics from it with `onnxq calibrate`",
            ) from error
        raise StatisticsError(
            f"not a sound statistics file ({error or type(error).__name__})",
            where=f"'{source}'",
            hint="Make it again with `onnxq calibrate`",
        ) from error


def _is_data(path: Path) -> bool:
    """Whether a file is a sound one, of something else."""
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except BROKEN:
        return False
    return bool(names) and "header.npy" not in names and all(name.endswith(".npy") for name in names)


def _members(statistics: Statistics) -> list[tuple[str, NDArray[Any], bool]]:
    """Name, array and whether to compress it, for all members."""
    tensors = list(statistics.tensors.values())
    keys = [np.flatnonzero(tensor.counts) for tensor in tensors]
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "model_digest": statistics.model_digest,
        "samples": statistics.samples,
        "tensors": [tensor.name for tensor in tensors],
        "unobservable": statistics.unobservable,
        "meta": statistics.meta,
        "remarks": list(statistics.remarks),
        "kept": [
            {
                "index": k.index,
                "feeds": list(k.feeds),
                "outputs": list(k.outputs),
                "means": list(k.means),
                **({"picked": list(k.picked)} if k.picked else {}),
                **({"source": k.source} if k.source is not None else {}),
            }
            for k in statistics.kept
        ],
    }
    text = json.dumps(header, sort_keys=True, ensure_ascii=True)
    nothing = np.zeros(0, np.int64)
    members: list[tuple[str, NDArray[Any], bool]] = [
        ("header", np.frombuffer(text.encode("ascii"), np.uint8), True),
        ("integers", _table(tensors, _INTEGERS, np.int64), True),
        ("reals", _table(tensors, _REALS, np.float64), True),
        ("hist_offsets", np.cumsum([0, *(len(k) for k in keys)], dtype=np.int64), True),
        ("hist_keys", np.concatenate([nothing, *keys]).astype(np.uint16), True),
        ("hist_counts", np.concatenate([nothing, *(t.counts[k] for t, k in zip(tensors, keys, strict=True))]), True),
    ]
    for number, sample in enumerate(statistics.kept):
        for kind, part in (("feed", sample.feeds), ("output", sample.outputs), ("picked", sample.picked)):
            for index, array in enumerate(part.values()):
                members.append((f"kept/{number}/{kind}/{index}", _plain(array), False))
        for index, means in enumerate(sample.means.values()):
            members.append((f"kept/{number}/means/{index}", means, False))
    return members


def _table(tensors: list[TensorStatistics], names: tuple[str, ...], dtype: type[np.generic]) -> NDArray[Any]:
    rows = [[getattr(tensor, name) for name in names] for tensor in tensors]
    return np.array(rows, dtype).reshape(len(tensors), len(names))


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Strings as fixed-width text, which needs no pickle."""
    return array.astype(np.str_) if array.dtype == np.object_ else array


def _write(file: zipfile.ZipFile, name: str, array: NDArray[Any], compress: bool) -> None:
    info = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    info.external_attr = 0o644 << 16
    info.create_system = 3
    with file.open(info, "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)


class _Reader:
    """Arrays of a zip file, whose claimed sizes are checked before memory is taken."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        entries = file.infolist()
        if sum(e.file_size for e in entries if e.compress_type != zipfile.ZIP_STORED) > _EXPANDED_LIMIT:
            raise ValueError("its members expand to more than 1 GiB")
        if any(e.compress_type == zipfile.ZIP_STORED and e.file_size != e.compress_size for e in entries):
            raise ValueError("a member claims a wrong size")

    def array(self, name: str, kinds: str, ndim: int | None = None) -> NDArray[Any]:
        """An array whose type is one of ``kinds`` (NumPy's letters) and which has ``ndim`` dimensions."""
        info = self._file.getinfo(f"{name}.npy")
        with self._file.open(info) as member:
            if np.lib.format.read_magic(member) != (1, 0):
                raise ValueError(f"member {name!r} is of an unknown version")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(member)
            start = member.tell()
            expected = dtype.itemsize * int(np.prod([int(n) for n in shape], dtype=object))
            if dtype.hasobject or dtype.kind not in kinds or fortran or min(shape, default=0) < 0:
                raise ValueError(f"member {name!r} is of type {dtype}")
            if expected != info.file_size - start:
                raise ValueError(f"member {name!r} is {info.file_size - start} bytes long, not {expected}")
            data = member.read()
        array = np.frombuffer(data, dtype).reshape(shape) if expected else np.zeros(shape, dtype)
        if ndim is not None and array.ndim != ndim:
            raise ValueError(f"member {name!r} has {array.ndim} dimensions")
        return array


def _read(reader: _Reader) -> Statistics:
    header = json.loads(reader.array("header", "u", 1).tobytes().decode("ascii"))
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ValueError("it holds something else")
    if header["version"] != _VERSION:
        raise ValueError(f"version {header['version']}, this onnxq reads version {_VERSION}")
    names = _strings(header["tensors"])
    integers = reader.array("integers", "i", 2)
    reals = reader.array("reals", "f", 2)
    if integers.shape != (len(names), len(_INTEGERS)) or reals.shape != (len(names), len(_REALS)):
        raise ValueError("its tables do not fit the list of tensors")
    if not np.isfinite(reals).all() or (integers < -1).any() or (integers[:, 0] < 0).any():
        raise ValueError("its tables hold impossible numbers")
    statistics = Statistics(
        str(header["model_digest"]),
        _integer(header["samples"]),
        unobservable=_texts(header["unobservable"]),
        meta=_texts(header["meta"]),
        remarks=tuple(_strings(header.get("remarks", []))),
    )
    counts = _histograms(reader, len(names), integers[:, 0])
    for row, name in enumerate(names):
        tensor = TensorStatistics(name, counts=counts[row])
        for column, attribute in enumerate(_INTEGERS):
            setattr(tensor, attribute, int(integers[row, column]))
        for column, attribute in enumerate(_REALS):
            setattr(tensor, attribute, float(reals[row, column]))
        if tensor.min > tensor.max:
            raise ValueError(f"the extremes of tensor {name!r} are in the wrong order")
        statistics.tensors[name] = tensor
    for number, kept in enumerate(header["kept"]):
        parts = [
            {key: reader.array(f"kept/{number}/{kind}/{i}", "biufcSU") for i, key in enumerate(_strings(names))}
            for kind, names in (
                ("feed", kept["feeds"]),
                ("output", kept["outputs"]),
                ("picked", kept.get("picked", [])),
            )
        ]
        means = {
            key: reader.array(f"kept/{number}/means/{i}", "f", 1).astype(np.float64)
            for i, key in enumerate(_strings(kept["means"]))
        }
        source = _integer(kept["source"]) if "source" in kept else None
        statistics.kept.append(KeptSample(_integer(kept["index"]), parts[0], parts[1], means, parts[2], source))
    return statistics


def _histograms(reader: _Reader, tensors: int, totals: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    offsets = reader.array("hist_offsets", "i", 1)
    keys = reader.array("hist_keys", "u", 1)
    counts = reader.array("hist_counts", "i", 1)
    if offsets.shape != (tensors + 1,) or keys.shape != counts.shape or (np.diff(offsets) < 0).any():
        raise ValueError("its histograms do not fit together")
    if offsets[0] != 0 or offsets[-1] != len(keys) or (keys >= KEYS).any() or (counts <= 0).any():
        raise ValueError("its histograms do not fit together")
    full: list[NDArray[np.int64]] = []
    for row in range(tensors):
        part = slice(int(offsets[row]), int(offsets[row + 1]))
        histogram = np.zeros(KEYS, np.int64)
        np.add.at(histogram, keys[part].astype(np.int64), counts[part])
        if int(histogram.sum()) != int(totals[row]):
            raise ValueError("a histogram does not add up")
        full.append(histogram)
    return full


def _strings(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value) or len(set(value)) != len(value):
        raise ValueError("a list of names is malformed")
    return value


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ValueError("a table of texts is malformed")
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a count is malformed")
    return value

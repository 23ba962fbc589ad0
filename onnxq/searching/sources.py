"""Digests of what a search depends on beside the model."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.calibration.data import of_pictures
from onnxq.calibration.statistics import Statistics
from onnxq.options import ImageOptions
from onnxq.searching.state import file_digest

__all__ = ["digest_of_data", "images_for", "text_digest"]


def text_digest(*things: object) -> str:
    """SHA-256 of how things are written, for plain data."""
    return hashlib.sha256(repr(things).encode("utf-8", "surrogatepass")).hexdigest()


def images_for(
    data: Any, eval_data: Any, image: ImageOptions | None
) -> tuple[ImageOptions | None, ImageOptions | None]:
    """How pictures of the one and of the other data are read: options need have an effect on only one of them."""
    if eval_data is None:
        return image, None
    pictures, eval_pictures = of_pictures(data), of_pictures(eval_data)
    return image if pictures or not eval_pictures else None, image if eval_pictures else None


def digest_of_data(data: Any) -> str:
    """What changes with data as far as it can be told without reading it twice.

    A file's contents count; of a folder the names and sizes; of arrays and lists of arrays the values; of statistics
    their numbers of values; of a function or iterator its type alone.
    """
    if data is None:
        return "none"
    if isinstance(data, Statistics):
        return text_digest([(t.name, t.count, t.min, t.max, t.sum, t.sum_squares) for t in data.tensors.values()])
    if isinstance(data, (str, os.PathLike)):
        return _of_path(os.fspath(data))
    sha = hashlib.sha256()
    _feed(sha, data)
    return sha.hexdigest()


def _of_path(text: str) -> str:
    file, colon, name = text.rpartition(":")
    path = Path(file) if colon and file.endswith(".py") else Path(text)
    if os.path.isfile(path):
        return file_digest([path]) + (f":{name}" if path != Path(text) else "")
    if os.path.isdir(path):
        files = sorted(p for p in path.rglob("*") if p.is_file())
        return text_digest([(str(p.relative_to(path)), p.stat().st_size) for p in files])
    return text_digest(text)  # reading it will complain


def _feed(sha: Any, data: Any) -> None:
    if isinstance(data, np.ndarray) and data.dtype != object:
        sha.update(repr((data.dtype.str, data.shape)).encode())
        sha.update(np.ascontiguousarray(data).tobytes())
    elif isinstance(data, dict):
        for key, value in data.items():
            sha.update(repr(key).encode())
            _feed(sha, value)
    elif isinstance(data, (list, tuple)):
        sha.update(f"{type(data).__name__} {len(data)}".encode())
        for value in data:
            _feed(sha, value)
    else:
        sha.update(type(data).__name__.encode())

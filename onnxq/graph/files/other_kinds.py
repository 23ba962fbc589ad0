"""What a file is that is no ONNX model, by its first bytes."""

from __future__ import annotations

from pathlib import Path

__all__ = ["other_kind"]

_ENOUGH = 512
_TFLITE = slice(4, 8)
_KINDS = (
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself", "Run 'git lfs pull' in its repository"),
    (b"\x1f\x8b", "compressed by gzip", "Unpack it with gunzip"),
    (b"PK\x03\x04", "a zip archive, as torch.save writes too", "Unpack it, or export the model with torch.onnx.export"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras saves", "Convert the model with tf2onnx"),
    (b"\x80\x02", "a pickle, as torch.save once wrote", "Export the model with torch.onnx.export"),
    (b"\x80\x04", "a pickle", "Export the model as ONNX"),
    (b"\x80\x05", "a pickle", "Export the model as ONNX"),
)
_WEB = (b"<!doctype html", b"<html")


def other_kind(path: Path) -> tuple[str, str] | None:
    """What a file that could not be read as ONNX is, and what to do; ``None`` where it is of no kind known here.

    Args:
        path: the file.
    """
    with path.open("rb") as file:
        head = file.read(_ENOUGH)
    if head[_TFLITE] == b"TFL3":
        beside = path.with_suffix(".onnx")
        made = f"Give the ONNX model beside it, '{beside}', where onnxq wrote the two"
        convert = "Convert the model that it was made of with tf2onnx"
        return "a TensorFlow Lite model", made if beside != path and beside.is_file() else convert
    text = head.lstrip().lower()
    if text.startswith(_WEB):
        return "a web page, as a download that failed leaves", "Download the model again"
    if text.startswith((b"<net", b"<?xml")):
        return "an XML file, as OpenVINO's", "Give the ONNX model that it was made of"
    return next(((what, hint) for start, what, hint in _KINDS if head.startswith(start)), None)

"""Pictures as a model's input: decode, resize, crop, scale, normalize, lay out. Needs Pillow."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxq.console.terminal import plural
from onnxq.errors import DataError, OptionError
from onnxq.options import ImageOptions
from onnxq.ort.inputs import InputInfo

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SUFFIXES", "ImageReader"]

_log = logging.getLogger("onnxq")

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_BY_HAND = "Write the feeds as .npz files or use FILE.py:FUNCTION."
_WIDE = 65535 / 255
"""A step of 8 bits in steps of 16."""
_SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose pictures of mode I, 32 bits in memory, have the range of 16 bits."""


class ImageReader:
    """Reads pictures for one model input.

    Args:
        inputs: the model's inputs; there must be one, of rank 3 or 4.
        options: see `ImageOptions`; what it leaves open follows from the input's shape and type.

    Raises:
        DataError: the model's inputs do not take a picture.
        OptionError: Pillow is missing, or a size, layout or number of channels must be given.
    """

    def __init__(self, inputs: tuple[InputInfo, ...], options: ImageOptions) -> None:
        info, dims = _input(inputs)
        self._pil: Any = _pillow()
        self._layout = options.layout or _layout(dims)
        c, h, w = dims if self._layout == "nchw" else (dims[2], dims[0], dims[1])
        self._channels = options.channels or ("gray" if c == 1 else "rgb")
        expected = 1 if self._channels == "gray" else 3
        if isinstance(c, int) and c != expected:
            wrong = f"{self._channels} pictures have {plural(expected, 'channel')}, and the input takes {_sides(dims)}"
            raise DataError(wrong, where=f"input {info.name!r}", hint=_otherwise(dims, c, expected))
        model_size = (h, w) if isinstance(h, int) and isinstance(w, int) else None
        self._resize, self._crop = options.size("resize"), options.size("crop")
        if self._resize is None:
            self._resize = None if self._crop else model_size
        elif len(self._resize) == 1 and self._crop is None:
            self._crop = model_size
        is_float = info.dtype.kind == "f" or info.dtype.name == "bfloat16"
        self._scale = options.scale if options.scale is not None else 1 / 255 if is_float else 1.0
        self._mean, self._std = (self._per_channel(name, getattr(options, name), expected) for name in ("mean", "std"))
        self._dtype: np.dtype[Any] = np.dtype(np.float32) if is_float else info.dtype
        self._remark = self._beyond_pixels()
        self._free = f"input {info.name!r}" if self._resize is None and self._crop is None else ""

    def _beyond_pixels(self) -> str:
        """What to say of a mean that no pixel reaches: it is meant for another scale."""
        brightest, mean = 255 * abs(self._scale), float(self._mean.max())
        if mean <= brightest * 1.001:
            return ""
        return (
            f"image mean {mean:g} lies beyond the pixels, which the scale {self._scale:.4g} brings to "
            f"0..{brightest:g}: all pictures become nearly the same. Give the scale 1 (--image-scale 1) if mean and "
            "std are those of the bytes 0..255, or divide both by 255"
        )

    @staticmethod
    def _per_channel(name: str, values: tuple[float, ...], channels: int) -> np.ndarray:
        if len(values) not in (1, channels):
            raise OptionError(f"{len(values)} numbers for {plural(channels, 'channel')}", where=f"image {name}")
        return np.asarray(values, np.float32)

    def read(self, path: Path) -> np.ndarray:
        """One picture as float32 (or the input's integer type), CHW or HWC, without the batch dimension.

        Raises:
            DataError: the file is no readable picture, has a range that it does not tell, or is smaller than the crop.
        """
        if self._remark:
            _log.warning("%s", self._remark)
            self._remark = ""
        try:
            with self._pil.open(path) as opened:
                picture: Image = self._in_bytes(opened, path)
        except (OSError, ValueError, SyntaxError, self._pil.DecompressionBombError) as error:
            raise DataError(f"cannot be read as a picture ({error})", where=str(path)) from error
        picture = self._fit(picture, path)
        if self._free:
            _log.warning(
                "%s leaves height or width free: pictures keep their own, %dx%d is that of the first. "
                "--image-resize HxW gives all of them the size of real use",
                self._free, picture.height, picture.width,
            )  # fmt: skip
            self._free = ""
        x = np.asarray(picture, np.float32).reshape(picture.height, picture.width, -1)
        if x.shape[2] == 1 and self._channels != "gray":
            x = np.repeat(x, 3, axis=2)
        if self._channels == "bgr":
            x = x[:, :, ::-1]
        x = (x * np.float32(self._scale) - self._mean) / self._std
        if self._dtype.kind != "f":
            bounds = np.iinfo(self._dtype.type)
            x = np.clip(np.rint(x), bounds.min, bounds.max)
        x = x.transpose(2, 0, 1) if self._layout == "nchw" else x
        return np.ascontiguousarray(x, self._dtype)

    def _in_bytes(self, opened: Image, path: Path) -> Image:
        """The picture in the channels wanted, its values 0..255; gray of 16 bits as floats of one channel.

        Pillow would cut off what is above 255.
        """
        if opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format in _SIXTEEN_BITS):
            gray: Image = self._pil.fromarray(np.asarray(opened, np.float32) / np.float32(_WIDE))
            return gray
        if opened.mode in ("I", "F"):
            low, high = (float(end) for end in np.asarray(opened.getextrema()))
            fractions = opened.mode == "F" and 0 < high <= 1  # 0..1, or nearly black: Pillow would cut them all off
            if low < 0 or high > 255 or fractions:
                wrong = f"its values are {low:g} to {high:g}, and the file does not tell which of them is white"
                raise DataError(wrong, where=str(path), hint="Convert it to 8 bits, or write it as a .npy file.")
        return opened.convert("L" if self._channels == "gray" else "RGB")

    def _fit(self, picture: Image, path: Path) -> Image:
        bilinear = self._pil.Resampling.BILINEAR
        if self._resize is not None:
            if len(self._resize) == 1:
                factor = self._resize[0] / min(picture.size)
                size = (max(round(picture.width * factor), 1), max(round(picture.height * factor), 1))
            else:
                size = (self._resize[1], self._resize[0])
            picture = picture.resize(size, bilinear)
        if self._crop is not None:
            height, width = (self._crop * 2)[:2]
            left, top = (picture.width - width) // 2, (picture.height - height) // 2
            if left < 0 or top < 0:
                wrong = f"the picture is {picture.height}x{picture.width}, smaller than the crop {height}x{width}"
                raise DataError(wrong, where=str(path), hint="Resize to at least the size of the crop.")
            picture = picture.crop((left, top, left + width, top + height))
        return picture


def _sides(dims: Sequence[int | str | None]) -> str:
    return "x".join("?" if dim is None else str(dim) for dim in dims)


def _otherwise(dims: Sequence[int | str | None], channels: int, expected: int) -> str:
    """What to do where an input's channels are not those of the pictures: neither on this side, nor on the other."""
    if expected in (dims[0], dims[-1]):
        return "Set the picture layout (nchw or nhwc)."
    return {1: "Read them as gray.", 3: "Read them as rgb or bgr."}.get(channels, _BY_HAND)


def _layout(dims: tuple[int | str | None, ...]) -> str:
    """Where the channels are: the first axis unless only the last has 1 or 3 entries."""
    return "nhwc" if dims[2] in (1, 3) and dims[0] not in (1, 3) else "nchw"


def _input(inputs: tuple[InputInfo, ...]) -> tuple[InputInfo, tuple[int | str | None, ...]]:
    """The one input that takes pictures, and its last three sizes.

    Raises:
        DataError: the model has another number of inputs, or this one another rank.
    """
    shape = inputs[0].shape if len(inputs) == 1 else None
    if shape is None or len(shape) not in (3, 4):
        names = ", ".join(repr(info.name) for info in inputs)
        raise DataError(f"a folder of pictures feeds one input of rank 4, the model has {names}", hint=_BY_HAND)
    return inputs[0], shape[-3:]


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise OptionError("reading pictures needs Pillow", hint='pip install "onnxq[images]"') from error
    return Image

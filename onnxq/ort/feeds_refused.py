"""What to do about feeds on which a model fails while it runs: by the message of onnxruntime, and their shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.ort.inputs import InputInfo

__all__ = ["about_feeds"]

_HINT = "Check the names, types and shapes of the inputs"

_PICTURE, _HALVED = 4, 32
"""Axes of pictures, and what their sides are multiples of where they are halved five times, as is usual."""

_SHOWN = 3
"""Inputs whose shape is said."""


def about_feeds(inputs: Sequence[InputInfo], feeds: Mapping[str, NDArray[Any]], message: str) -> str:
    """The hint of an error: what is known of why a model does not run on its feeds.

    Args:
        inputs: of the model.
        feeds: arrays by input name.
        message: what onnxruntime raised.
    """
    found = re.search(r"out of data bounds, idx=(-?\d+)", message)
    whole = [info.name for info in inputs if info.dtype.kind in "iu"]
    if found:
        whole = [name for name in whole if np.any(np.asarray(feeds.get(name, ())) == int(found.group(1)))]
        if whole:
            names = ", ".join(map(repr, whole))
            return f"Check the values of {names}: is an index beyond what the model has, of another vocabulary?"
    if " while running " not in message:
        return _HINT
    for info in inputs:
        shape = np.shape(feeds.get(info.name, ()))
        sides = _sides(info.shape) if len(shape) == _PICTURE else ()
        if any(shape[axis] % _HALVED for axis in sides):
            return (
                f"{_HINT}: {_sized(info.name, shape)}, and a model that halves pictures takes only sides that are "
                f"multiples of {_HALVED}, say, which --image-resize HxW gives those of a folder"
            )
    free = [info.name for info in inputs if _chosen(info, feeds)]
    if not free:
        return _HINT
    sized = [_sized(name, np.shape(feeds[name])) for name in free[:_SHOWN]]
    more = f" and {len(free) - _SHOWN} more" if len(free) > _SHOWN else ""
    return (
        f"{_HINT}: {', '.join(sized)}{more}. A model may take fewer sizes than its inputs say: none longer than its "
        "table of positions, or only those of the example that it was exported with, where the exporter wrote them "
        "into it. Then give samples of these sizes, or export it again so that they stay free"
    )


def _sized(name: str, shape: tuple[int, ...]) -> str:
    return f"{name!r} is {'x'.join(map(str, shape)) or 'a number'}"


def _chosen(info: InputInfo, feeds: Mapping[str, NDArray[Any]]) -> bool:
    """Whether a feed decides of a size, other than that of one sample in front."""
    shape = np.shape(feeds.get(info.name, ()))
    wanted = info.shape if info.shape is not None else (None,) * len(shape)
    return any(not isinstance(want, int) and have != 1 for want, have in zip(wanted, shape, strict=False))


def _sides(shape: tuple[int | str | None, ...] | None) -> tuple[int, ...]:
    """The axes of a picture's free height and width; none of what is no picture."""
    if shape is None or len(shape) != _PICTURE:
        return ()
    for colours, *sides in ((1, 2, 3), (3, 1, 2)):
        if shape[colours] in (1, 3) and not any(isinstance(shape[axis], int) for axis in sides):
            return tuple(sides)
    return ()

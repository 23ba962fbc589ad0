"""Windows of convolutions and pools along axes, and how TensorFlow Lite says their padding: SAME, VALID, or a PAD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.backends.litert.placed import RefusedError

__all__ = ["Window", "is_same", "windows_of"]


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one axis.

    Attributes:
        size: of the input.
        kernel: elements of the window.
        step: from one window to the next.
        gap: from one element to the next.
        begin: padding in front.
        end: padding behind.
    """

    size: int
    kernel: int
    step: int
    gap: int
    begin: int
    end: int

    @property
    def reach(self) -> int:
        """From the first element of a window to its last, both counted."""
        return (self.kernel - 1) * self.gap + 1


def windows_of(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int], made: Sequence[int]) -> list[Window]:
    """The windows of a Conv or pool.

    Args:
        node: with explicit or automatic padding.
        sizes: of its input, of these axes.
        kernel: of the window, as many.
        made: sizes of its output. Where a pool rounds its number of windows up, the last ones reach beyond the padding
            that it says; that is padding, too.
    """
    get, count = node.attributes, len(kernel)
    steps = get.get_ints("strides", ()) or (1,) * count
    gaps = get.get_ints("dilations", ()) or (1,) * count
    pads = get.get_ints("pads", ()) or (0,) * 2 * count
    found = [Window(*numbers) for numbers in zip(sizes, kernel, steps, gaps, pads[:count], pads[count:], strict=True)]
    same = {"SAME_UPPER": False, "SAME_LOWER": True}.get(get.get_string("auto_pad", "NOTSET"))
    if same is not None:
        found = [_padded(window, lower=same) for window in found]
    if any(min(window.begin, window.end) < 0 for window in found):
        raise RefusedError("its padding is negative")
    for window, count in zip(found, made, strict=True):
        beyond = (count - 1) * window.step - window.begin >= window.size and get.get_int("ceil_mode", 0) == 1
        if beyond or (same is not None and count != -(-window.size // window.step)):
            raise RefusedError("its last window is beyond its input, where runtimes have none")
    return [_reaching(window, count) for window, count in zip(found, made, strict=True)]


def _reaching(window: Window, count: int) -> Window:
    """A window that is applied so often, with the padding that this needs."""
    more = max((count - 1) * window.step + window.reach - window.begin - window.size, window.end)
    return Window(window.size, window.kernel, window.step, window.gap, window.begin, more)


def _padded(window: Window, *, lower: bool) -> Window:
    total = max((-(-window.size // window.step) - 1) * window.step + window.reach - window.size, 0)
    less, more = total // 2, total - total // 2
    begin, end = (more, less) if lower else (less, more)
    return Window(window.size, window.kernel, window.step, window.gap, begin, end)


def is_same(windows: Sequence[Window]) -> bool:
    """Whether the padding is what TensorFlow Lite calls SAME."""
    return all((w.begin, w.end) == (p.begin, p.end) for w, p in zip(windows, map(_same, windows), strict=True)) and all(
        (w.size + w.begin + w.end - w.reach) // w.step + 1 == -(-w.size // w.step) for w in windows
    )


def _same(window: Window) -> Window:
    return _padded(window, lower=False)

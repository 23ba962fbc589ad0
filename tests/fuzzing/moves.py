"""Operators of random graphs that move numbers about: Concat, Split, Reshape, Slice, Pad, Resize and their kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzzing.scope import Scope

__all__ = ["concat", "cut", "flatten", "is_float", "pad", "rearrange", "reshape", "resize", "split", "with_axes"]


def is_float(s: Scope, *ranks: int) -> Callable[[Any], bool]:
    return lambda a: a.dtype == s.dtype and (not ranks or a.ndim in ranks)


def concat(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 0)
    if x is None:
        return
    shape = s.shape(x)
    axis = int(s.rng.integers(len(shape)))

    def fits(a: Any) -> bool:
        same = a.dtype == s.dtype and a.ndim == len(shape)
        return bool(same and all(i == axis or a.shape[i] == shape[i] for i in range(len(shape))))

    parts = [x, *(name for _ in range(int(s.choose([1, 1, 2, 3]))) if (name := s.pick(fits)) is not None)]
    if s.chance(0.15):
        empty = s.chance(0.5)
        parts.append(s.constant(s.normal(*[(0 if empty else 1) if i == axis else n for i, n in enumerate(shape)])))
    s.add("Concat", parts, axis=axis - len(shape) if s.opset >= 11 and s.chance(0.4) else axis)


def split(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 0 and max(a.shape) > 1)
    if x is None:
        return
    shape = s.shape(x)
    axis = int(s.choose([i for i, n in enumerate(shape) if n > 1]))
    first = int(s.rng.integers(0 if s.chance(0.05) else 1, shape[axis]))
    sizes = [first, shape[axis] - first]
    if s.opset < 13:
        s.add("Split", [x], outputs=2, axis=axis, split=sizes)
    elif s.opset >= 18 and s.chance(0.3):
        s.add("Split", [x], outputs=2, axis=axis, num_outputs=2)
    else:
        s.add("Split", [x, s.constant(sizes, np.int64)], outputs=2, axis=axis)


def reshape(s: Scope) -> None:
    x = s.pick(is_float(s))
    if x is None:
        return
    shape = s.shape(x)
    kind = s.rng.integers(6)
    if kind == 0 and shape:
        target = s.choose([[-1], [0, -1], [1, -1], [0, 0, -1][: len(shape) + 1], [*shape, 1], [1, *shape]])
        s.add("Reshape", [x, s.constant(target, np.int64)])
    elif kind == 1 and shape:
        s.add("Transpose", [x], **({"perm": s.rng.permutation(len(shape)).tolist()} if s.chance(0.9) else {}))
    elif kind == 2:
        with_axes(s, "Unsqueeze", [x], [int(s.rng.integers(len(shape) + 1))], since=13)
    elif kind == 3 and 1 in shape:
        with_axes(s, "Squeeze", [x], [shape.index(1)], since=13)
    elif kind == 4 and len(shape) > 1:  # the shape is computed, as exporters do
        size = s.add("Shape", [x])
        part = s.add("Gather", [size[0], s.constant([0], np.int64)], axis=0) if size else None
        joined = s.add("Concat", [part[0], s.constant([-1], np.int64)], axis=0) if part else None
        if joined:
            s.add("Reshape", [x, joined[0]])
    else:
        flatten(s)


def flatten(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 2)
    if x is not None:
        s.add("Flatten", [x], **({"axis": int(s.choose([0, 1, 2]))} if s.chance(0.3) else {}))


def with_axes(s: Scope, op: str, inputs: list[str], axes: list[int], *, since: int, **more: Any) -> list[str] | None:
    if s.opset < since:
        return s.add(op, inputs, axes=axes, **more)
    return s.add(op, [*inputs, s.constant(axes, np.int64)], **more)


def cut(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 0 and max(a.shape) > 1)
    if x is None:
        return
    axis = int(s.choose([i for i, n in enumerate(s.shape(x)) if n > 1]))
    size = s.shape(x)[axis]
    start, kind = int(s.rng.integers(size)), s.rng.integers(3)
    if kind == 0:
        index = [start] if s.chance(0.5) else start
        s.add("Gather", [x, s.constant(index, s.choose([np.int64, np.int32]))], axis=axis)
    elif s.opset < 10:
        s.add("Slice", [x], axes=[axis], starts=[start], ends=[2**31 - 1 if s.chance(0.5) else size])
    elif kind == 1:
        numbers = ([size - 1], [-size - 1], [axis], [-1]) if s.chance(0.3) else ([0], [2**31 - 1], [axis], [2])
        s.add("Slice", [x, *(s.constant(n, np.int64) for n in numbers)])
    else:
        s.add("Slice", [x, *(s.constant(n, np.int64) for n in ([start], [size], [axis]))])


def pad(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 0)
    if x is None:
        return
    pads = [int(s.choose([0, 0, 1, 2, -1] if s.chance(0.1) else [0, 0, 1, 2])) for _ in range(2 * len(s.shape(x)))]
    mode, value = s.choose(["constant", "constant", "reflect", "edge"]), float(s.choose([0, 0, 1, -5]))
    if s.opset < 11:
        s.add("Pad", [x], pads=pads, mode=mode, value=value)
        return
    more = [s.constant(value, s.dtype)] if s.chance(0.6) else []
    s.add("Pad", [x, s.constant(pads, np.int64), *more], mode=mode)


def resize(s: Scope) -> None:
    x = s.pick(is_float(s, 3, 4))
    if x is None:
        return
    shape, mode = s.shape(x), str(s.choose(["nearest", "linear", "cubic"]))
    factors = [1.0, 1.0, *(float(s.choose([2, 2, 0.5, 1.5])) for _ in shape[2:])]
    if s.opset < 9:
        s.add("Upsample", [x], scales=factors, mode="nearest")
    elif s.opset < 11:
        s.add("Upsample" if s.opset == 9 else "Resize", [x, s.constant(factors, np.float32)], mode="nearest")
    elif s.chance(0.3):
        sizes = [*shape[:2], *(int(n * f) for n, f in zip(shape[2:], factors[2:], strict=True))]
        s.add("Resize", [x, "", "", s.constant(sizes, np.int64)], mode=mode)
    else:
        roi = s.constant([], np.float32) if s.opset < 13 or s.chance(0.3) else ""
        form = {"coordinate_transformation_mode": s.choose(["asymmetric", "half_pixel", "align_corners"])}
        s.add("Resize", [x, roi, s.constant(factors, np.float32)], mode=mode, **(form if s.chance(0.5) else {}))


def rearrange(s: Scope) -> None:
    x = s.pick(is_float(s, 4))
    if x is None:
        return
    shape, kind = s.shape(x), s.rng.integers(4)
    if kind == 0 and shape[1] % 4 == 0:
        s.add("DepthToSpace", [x], blocksize=2)
    elif kind == 1 and shape[2] % 2 == 0 == shape[3] % 2:
        s.add("SpaceToDepth", [x], blocksize=2)
    elif kind == 2 and shape[1] % 2 == 0:  # a channel shuffle
        apart = s.add("Reshape", [x, s.constant([0, 2, shape[1] // 2, *shape[2:]], np.int64)])
        turned = s.add("Transpose", apart, perm=[0, 2, 1, 3, 4]) if apart else None
        if turned:
            s.add("Reshape", [turned[0], s.constant([0, *shape[1:]], np.int64)])
    elif s.opset >= 8:
        s.add("Expand", [x, s.constant([2 if n == 1 else n for n in shape], np.int64)])

"""What random graphs are made of: one function a family of operators, in the forms of opsets 7 to 23."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz import Scope

__all__ = ["grow"]

Grower = Callable[[Scope], Any]

_UNARY = ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Sqrt", "Erf", "Softplus", "Softsign", "Floor", "Identity",
          "Dropout", "Sin", "Reciprocal", "Log", "Round", "HardSwish", "Mish", "Gelu", "Sign", "Cos",
          "Atan", "Ceil")  # fmt: skip
_PARAMETER = {"LeakyRelu": "alpha", "Elu": "alpha", "HardSigmoid": "alpha", "Selu": "gamma", "ThresholdedRelu": "alpha",
              "Celu": "alpha"}  # fmt: skip
_REDUCE = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd", "ReduceSumSquare",
           "ReduceLogSumExp", "ReduceL1")  # fmt: skip


def grow(scope: Scope) -> None:
    """Append one operator of a random family, or nothing where it does not fit."""
    scope.choose(_FAMILIES)(scope)


def _is_float(s: Scope, *ranks: int) -> Callable[[Any], bool]:
    return lambda a: a.dtype == s.dtype and (not ranks or a.ndim in ranks)


def _conv(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and 3 <= a.ndim <= 5 and a.shape[1] > 0)
    if x is None:
        return
    shape = s.shape(x)
    channels, rank = shape[1], len(shape) - 2
    transposed = s.chance(0.2)
    group = int(s.choose([g for g in (1, 1, 1, 2, channels) if channels % g == 0]))
    each = int(s.choose([1, 2, 3, 4]))
    kernel = [int(s.choose([1, 1, 2, 3, 3])) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel} if s.chance(0.8) else {}
    if s.chance(0.3):
        attributes["strides"] = [int(s.choose([1, 2, 3])) for _ in range(rank)]
    if s.chance(0.15):
        attributes["dilations"] = [int(s.choose([1, 2])) for _ in range(rank)]
    if s.chance(0.5):
        attributes["pads"] = [int(s.choose([0, 1, 1])) for _ in range(2 * rank)]
    elif s.chance(0.2):
        attributes["auto_pad"] = s.choose(["SAME_UPPER", "SAME_LOWER", "VALID"])
    if group > 1 or s.chance(0.3):
        attributes["group"] = group
    if transposed:
        w = s.weight(channels, each, *kernel, fan=channels // group * int(np.prod(kernel)))
        if s.chance(0.2) and "auto_pad" not in attributes:
            attributes["output_padding"] = [0] * rank
    else:
        w = s.weight(group * each, channels // group, *kernel)
    bias = [s.constant(s.normal(group * each, scale=0.3))] if s.chance(0.6) else []
    made = s.add("ConvTranspose" if transposed else "Conv", [x, w, *bias], **attributes)
    if made and s.chance(0.5):
        _after(s, made[0])


def _after(s: Scope, x: str) -> None:
    """What mostly follows a layer."""
    channels = s.shape(x)[1] if len(s.shape(x)) > 1 else 1
    kind = s.rng.integers(5)
    if kind == 0 and len(s.shape(x)) > 1:
        scale, shift, mean = (s.constant(s.normal(channels) + c) for c in (1, 0, 0))
        s.add("BatchNormalization", [x, scale, shift, mean, s.constant(np.abs(s.normal(channels)) + s.dtype(0.2))])
    elif kind == 1:
        _clip(s, x)
    elif kind == 2:
        gate = s.add("Sigmoid", [x])
        if gate:
            s.add("Mul", [x, gate[0]])
    elif kind == 3 and len(s.shape(x)) == 4:
        s.add("PRelu", [x, s.constant(s.normal(channels, 1, 1, scale=0.2))])
    else:
        s.add("Relu", [x])


def _clip(s: Scope, x: str) -> None:
    low, high = (-1.0, 1.0) if s.chance(0.3) else (0.0, float(s.choose([6, 1, 4])))
    if s.opset < 11:
        s.add("Clip", [x], min=low, max=high)
        return
    bounds = [s.constant(low, s.dtype) if s.chance(0.8) else "", s.constant(high, s.dtype)]
    s.add("Clip", [x, *bounds])


def _gemm(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim == 2 and min(a.shape) > 0)
    if x is None:
        _flatten(s)
        return
    across, back = s.chance(0.2), s.chance(0.5)
    rows, inner = s.shape(x)[::-1] if across else s.shape(x)
    out = int(s.choose([1, 3, 5, 8]))
    w = s.weight(*((out, inner) if back else (inner, out)), fan=inner)
    attributes: dict[str, Any] = {"transB": 1} if back else {}
    attributes |= {"transA": 1} if across else {}
    attributes |= {"alpha": float(s.choose([0.5, 2.0]))} if s.chance(0.15) else {}
    attributes |= {"beta": float(s.choose([0.5, 2.0, 0.0]))} if s.chance(0.15) else {}
    bias = [s.constant(s.normal(*s.choose([(out,), (out,), (1, out), (), (rows, 1), (1,)]), scale=0.3))]
    s.add("Gemm", [x, w, *(bias if s.opset < 11 or s.chance(0.7) else [])], **attributes)


def _matmul(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim >= 1 and a.shape[-1] > 0)
    if x is None:
        return
    shape = s.shape(x)
    if s.chance(0.25) and len(shape) >= 2:  # of two activations
        turned = s.add("Transpose", [x], perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
        if turned:
            made = s.add("MatMul", [x, turned[0]])
            if made and s.chance(0.6):
                scaled = s.add("Mul", [made[0], s.constant(0.3, s.dtype)])
                if scaled:
                    s.add("Softmax", scaled, axis=-1 if s.opset >= 11 else len(shape) - 1)
        return
    out = int(s.choose([1, 4, 6, 8]))
    forms = [(shape[-1], out)] * 6 + [(shape[-1],), (2, shape[-1], out)]
    made = s.add("MatMul", [x, s.weight(*s.choose(forms), fan=shape[-1])])
    if made and s.chance(0.4) and s.shape(made[0]):
        s.add("Add", [made[0], s.constant(s.normal(s.shape(made[0])[-1], scale=0.3))][:: int(s.choose([1, -1]))])


def _unary(s: Scope) -> None:
    x = s.pick(_is_float(s))
    if x is not None and s.chance(0.25):
        op = s.choose(list(_PARAMETER))
        form: dict[str, Any] = {_PARAMETER[op]: float(s.choose([0.1, 0.5, 1.2]))} if s.chance(0.7) else {}
        s.add(op, [x], **form)
    elif x is not None:
        s.add(s.choose(_UNARY), [x])


def _binary(s: Scope) -> None:
    x = s.pick(_is_float(s))
    if x is None:
        return
    shape = s.shape(x)
    op = str(s.choose(["Add", "Add", "Add", "Mul", "Mul", "Sub", "Div", "Max", "Min", "Pow", "Sum", "Mean"]))
    other = None
    if op != "Pow" and s.chance(0.6):
        other = s.pick(lambda a: a.dtype == s.dtype and _broadcasts(a.shape, shape))
    if other is None:
        forms = [(), (1,), shape[-1:], (1, *shape[1:]) if shape else (), (*shape[1:2], *[1] * (len(shape) - 2)), shape]
        value = s.normal(*s.choose(forms))
        other = s.constant(np.asarray(np.abs(value) + s.dtype(0.5) if op in ("Div", "Pow") else value, s.dtype))
    operands = [x, other] if s.chance(0.7) or op in ("Pow", "Div") else [other, x]
    if op in ("Max", "Min", "Sum", "Mean") and s.chance(0.3):
        operands.append(x)
    s.add(op, operands)


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def _pool(s: Scope) -> None:
    x = s.pick(_is_float(s, 3, 4, 5))
    if x is None:
        return
    rank, op = len(s.shape(x)) - 2, str(s.choose(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"]))
    if s.chance(0.3):
        s.add(s.choose(["GlobalAveragePool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"]), [x])
        return
    attributes: dict[str, Any] = {"kernel_shape": [int(s.choose([1, 2, 2, 3])) for _ in range(rank)]}
    if s.chance(0.5):
        attributes["strides"] = [int(s.choose([1, 2])) for _ in range(rank)]
    if s.chance(0.3):
        attributes["pads"] = [int(s.choose([0, 1])) for _ in range(2 * rank)]
    if s.chance(0.2) and s.opset >= 10 and op != "LpPool":
        attributes["ceil_mode"] = 1
    if s.chance(0.3) and op == "AveragePool":
        attributes["count_include_pad"] = 1
    s.add(op, [x], outputs=2 if op == "MaxPool" and s.opset >= 8 and s.chance(0.15) else 1, **attributes)


def _concat(s: Scope) -> None:
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


def _split(s: Scope) -> None:
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


def _reshape(s: Scope) -> None:
    x = s.pick(_is_float(s))
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
        _with_axes(s, "Unsqueeze", [x], [int(s.rng.integers(len(shape) + 1))], since=13)
    elif kind == 3 and 1 in shape:
        _with_axes(s, "Squeeze", [x], [shape.index(1)], since=13)
    elif kind == 4 and len(shape) > 1:  # the shape is computed, as exporters do
        size = s.add("Shape", [x])
        part = s.add("Gather", [size[0], s.constant([0], np.int64)], axis=0) if size else None
        joined = s.add("Concat", [part[0], s.constant([-1], np.int64)], axis=0) if part else None
        if joined:
            s.add("Reshape", [x, joined[0]])
    else:
        _flatten(s)


def _flatten(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 2)
    if x is not None:
        s.add("Flatten", [x], **({"axis": int(s.choose([0, 1, 2]))} if s.chance(0.3) else {}))


def _with_axes(s: Scope, op: str, inputs: list[str], axes: list[int], *, since: int, **more: Any) -> list[str] | None:
    if s.opset < since:
        return s.add(op, inputs, axes=axes, **more)
    return s.add(op, [*inputs, s.constant(axes, np.int64)], **more)


def _slice(s: Scope) -> None:
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


def _pad(s: Scope) -> None:
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


def _resize(s: Scope) -> None:
    x = s.pick(_is_float(s, 3, 4))
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


def _normalize(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 1 and min(a.shape) > 0)
    if x is None:
        return
    shape, kind = s.shape(x), s.rng.integers(7)
    if kind == 0:
        s.add("Softmax", [x], **({"axis": int(s.rng.integers(len(shape)))} if s.chance(0.8) else {}))
    elif kind == 1 and s.opset >= 17:
        scale, shift = s.constant(s.normal(shape[-1]) + s.dtype(1)), s.constant(s.normal(shape[-1]))
        s.add("LayerNormalization", [x, scale, *([shift] if s.chance(0.7) else [])], axis=-1)
    elif kind == 2 and len(shape) > 2:
        s.add("InstanceNormalization", [x, *(s.constant(s.normal(shape[1]) + s.dtype(c)) for c in (1, 0))])
    elif kind == 3:  # as exporters spelled LayerNormalization before opset 17
        _spelled_out(s, x, [-1] if s.opset >= 11 else [len(shape) - 1])
    elif kind == 4 and len(shape) == 4:
        s.add("LRN", [x], size=3)
    elif kind == 5:
        s.add("LogSoftmax" if s.chance(0.5) else "Hardmax", [x], axis=len(shape) - 1)
    else:
        s.add("LpNormalization", [x], axis=1, p=2)


def _spelled_out(s: Scope, x: str, axes: list[int]) -> None:
    mean = _with_axes(s, "ReduceMean", [x], axes, since=18)
    centred = s.add("Sub", [x, *mean]) if mean else None
    square = s.add("Pow", [*centred, s.constant(2.0, s.dtype)]) if centred else None
    spread = _with_axes(s, "ReduceMean", square, axes, since=18) if square else None
    safe = s.add("Add", [*spread, s.constant(1e-3, s.dtype)]) if spread else None
    root = s.add("Sqrt", safe) if safe else None
    made = s.add("Div", [*centred, *root]) if centred and root else None
    if made:
        s.add("Mul", [*made, s.constant(s.normal(s.shape(x)[-1]) + s.dtype(1))])


def _reduce(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 0 and a.size > 0)
    if x is None:
        return
    rank, op = len(s.shape(x)), str(s.choose(_REDUCE))
    axes = sorted({int(s.rng.integers(rank)) for _ in range(int(s.choose([1, 1, 2])))})
    keep = {"keepdims": int(s.choose([0, 1]))} if s.chance(0.7) else {}
    if s.chance(0.05):
        s.add(op, [x], **keep)  # over everything
    else:
        _with_axes(s, op, [x], axes, since=13 if op == "ReduceSum" else 18, **keep)


def _integers(s: Scope) -> None:
    """Operators whose inputs or outputs are no floats."""
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 0 and a.shape[-1] > 1)
    if x is None:
        return
    shape, kind = s.shape(x), s.rng.integers(8)
    if kind == 0:
        s.add(s.choose(["ArgMax", "ArgMin"]), [x], axis=len(shape) - 1, keepdims=int(s.choose([0, 1])))
    elif kind == 1:
        k = s.constant([2], np.int64)
        made = s.add("TopK", [x, k], outputs=2) if s.opset >= 10 else s.add("TopK", [x], outputs=2, k=2)
        if made and s.opset >= 11 and s.chance(0.5):
            s.add("GatherElements", [x, made[1]], axis=-1)
    elif kind == 2 and s.opset >= 9:
        above = s.add("Greater", [x, s.constant(0, s.dtype)])
        if above:
            s.add("Where", [above[0], x, s.constant(s.choose([0, -1, -100]), s.dtype)])
    elif kind == 3:
        whole = s.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(s.choose([np.int32, np.int64]))))
        if whole:
            s.add("Cast", whole, to=helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype)))
    elif kind == 4:
        other = np.dtype(s.choose([np.float32, np.float16, np.float64]))
        there = s.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(other))
        if there and s.chance(0.7):
            inside = s.add(s.choose(["Relu", "Tanh", "Neg"]), there)
            s.add("Cast", inside or there, to=helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype)))
    elif kind == 5:  # a table that tokens look up
        rows, width = int(s.choose([5, 20])), int(s.choose([4, 8]))
        index = s.add("ArgMax", [x], axis=len(shape) - 1, keepdims=0)
        if index:
            s.add("Gather", [s.weight(rows, width, fan=1), index[0]], axis=0)
    elif kind == 6 and s.opset >= 13:
        s.add("CumSum", [x, s.constant(0, np.int64)])
    else:
        s.add("Tile", [x, s.constant([1] * (len(shape) - 1) + [2], np.int64)])


def _rearrange(s: Scope) -> None:
    x = s.pick(_is_float(s, 4))
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


def _recurrent(s: Scope) -> None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim == 3 and min(a.shape) > 0)
    if x is None or s.opset < 7:
        return
    op, hidden = s.choose([("LSTM", 4), ("GRU", 3), ("RNN", 1)]), int(s.choose([2, 4]))
    rows, width = op[1] * hidden, s.shape(x)[2]
    weights = [s.weight(1, rows, width, fan=width), s.weight(1, rows, hidden, fan=hidden)]
    bias = [s.constant(s.normal(1, 2 * rows, scale=0.2))] if s.chance(0.6) else []
    s.add(op[0], [x, *weights, *bias], outputs=2, hidden_size=hidden)


def _flow(s: Scope) -> None:
    from tests.fuzz_flow import condition, loop

    s.choose([condition, condition, loop])(s)


_WEIGHTED = [(_conv, 9), (_gemm, 4), (_matmul, 6), (_unary, 6), (_binary, 7), (_pool, 3), (_concat, 4), (_split, 2),
             (_reshape, 5), (_slice, 3), (_pad, 2), (_resize, 2), (_normalize, 4), (_reduce, 2), (_integers, 3),
             (_rearrange, 2), (_recurrent, 1), (_flow, 1)]  # fmt: skip
_FAMILIES: list[Grower] = [family for family, share in _WEIGHTED for _ in range(share)]

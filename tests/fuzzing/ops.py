"""What random graphs are made of: one function a family of operators, in the forms of opsets 7 to 23."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from tests.fuzzing.moves import concat, cut, flatten, is_float, pad, rearrange, reshape, resize, split, with_axes
from tests.fuzzing.scope import Scope

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
        flatten(s)
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
    x = s.pick(is_float(s))
    if x is not None and s.chance(0.25):
        op = s.choose(list(_PARAMETER))
        form: dict[str, Any] = {_PARAMETER[op]: float(s.choose([0.1, 0.5, 1.2]))} if s.chance(0.7) else {}
        s.add(op, [x], **form)
    elif x is not None:
        s.add(s.choose(_UNARY), [x])


def _binary(s: Scope) -> None:
    x = s.pick(is_float(s))
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
    x = s.pick(is_float(s, 3, 4, 5))
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
    pads, windows = attributes.get("pads", [0] * 2 * rank), attributes["kernel_shape"]
    if any(n + a + b < w for n, a, b, w in zip(s.shape(x)[2:], pads, pads[rank:], windows, strict=False)):
        return  # by its definition such a pool gives nothing; onnxruntime's versions of it differ
    s.add(op, [x], outputs=2 if op == "MaxPool" and s.opset >= 8 and s.chance(0.15) else 1, **attributes)


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
    mean = with_axes(s, "ReduceMean", [x], axes, since=18)
    centred = s.add("Sub", [x, *mean]) if mean else None
    square = s.add("Pow", [*centred, s.constant(2.0, s.dtype)]) if centred else None
    spread = with_axes(s, "ReduceMean", square, axes, since=18) if square else None
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
        with_axes(s, op, [x], axes, since=13 if op == "ReduceSum" else 18, **keep)


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
    from tests.fuzzing.flow import condition, loop

    s.choose([condition, condition, loop])(s)


_WEIGHTED = [(_conv, 9), (_gemm, 4), (_matmul, 6), (_unary, 6), (_binary, 7), (_pool, 3), (concat, 4), (split, 2),
             (reshape, 5), (cut, 3), (pad, 2), (resize, 2), (_normalize, 4), (_reduce, 2), (_integers, 3),
             (rearrange, 2), (_recurrent, 1), (_flow, 1)]  # fmt: skip
_FAMILIES: list[Grower] = [family for family, share in _WEIGHTED for _ in range(share)]

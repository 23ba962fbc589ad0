"""What check says of operators that the HTP has in no type; ``test_qnn_runtime.py`` sees that it has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.backends.qnn.lacks import NOWHERE
from tests.models import build, f32, normal

_AS_INTEGERS = "i = Cast <to = 6> (a) j = {} y = Cast <to = 1> (j)"
_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{op: (f"y = {op} (a)", {}) for op in ("Acos", "Acosh", "Asinh", "Atanh", "Celu", "Cosh", "Softsign", "Trilu")},
    **{
        f"Bitwise{op}": (_AS_INTEGERS.format(f"Bitwise{op} (i, three)"), {"three": np.array(3, np.int32)})
        for op in ("And", "Or", "Xor")
    },
    "BitwiseNot": (_AS_INTEGERS.format("BitwiseNot (i)"), {}),
    "IsInf": ("i = IsInf (a) y = Cast <to = 1> (i)", {}),
    "OneHot": ("i = ArgMax <axis = 1, keepdims = 0> (a) y = OneHot <axis = 1> (i, four, ends)",
               {"four": np.array(4), "ends": f32([0, 1])}),
    "DeformConv": ("y = DeformConv <kernel_shape = [1, 1]> (a, w, o)",
                   {"w": normal(4, 4, 1, 1), "o": normal(1, 2, 8, 8)}),
    "Col2Im": ("r = Reshape (a, s) y = Col2Im (r, p, q)",
               {"s": np.array([1, 4, 64]), "p": np.array([9, 9]), "q": np.array([2, 2])}),
    "CenterCropPad": ("y = CenterCropPad (a, s)", {"s": np.array([1, 4, 6, 6])}),
    "EyeLike": ("r = Reshape (a, s) e = EyeLike (r) y = Add (r, e)", {"s": np.array([16, 16])}),
    "DFT": ("r = Reshape (a, s) y = DFT <axis = 1> (r)", {"s": np.array([1, 256, 1])}),
    "STFT of complex numbers": ("r = Reshape (a, s) y = STFT <onesided = 0> (r, t, , l)",
                                {"s": np.array([1, 128, 2]), "t": np.array(16), "l": np.array(64)}),
    "STFT whose step or length is computed": (
        "r = Reshape (a, s) m = ReduceMax <keepdims = 0> (r) c = Ceil (m) d = Mul (c, f) t = Cast <to = 7> (d) "
        "y = STFT (r, t, , l)", {"s": np.array([1, 256]), "f": f32(16), "l": np.array(64)},
    ),
    **{
        f"Reduce{kind}": (f"b = Exp (a) y = Reduce{kind} (b, axes)", {"axes": np.array([3])})
        for kind in ("L1", "LogSum", "Prod", "SumSquare")
    },
    "LpPool of a norm other than 1 and 2": ("y = LpPool <kernel_shape = [2, 2], p = 3> (a)", {}),
    "MaxPool that gives indices": ("y, i = MaxPool <kernel_shape = [2, 2]> (a) k = Cast <to = 1> (i)", {}),
    "Pad that wraps around": ('y = Pad <mode = "wrap"> (a, p)', {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
    **{
        f"{op} that takes the larger or smaller {reduction}": (
            f'y = {op} <reduction = "{reduction}"> (a, i, u)',
            {
                "i": np.zeros((1, 4, 1, 1) if op == "ScatterElements" else (1, 1), np.int64),
                "u": normal(1, 4, 1, 1) if op == "ScatterElements" else normal(1, 4, 8, 8),
            },
        )
        for op in ("ScatterElements", "ScatterND")
        for reduction in ("max", "min")
    },
    "linear Resize of samples or channels": (
        'z = Resize <mode = "linear"> (a, , s) y = Abs (z)', {"s": f32([1, 1.5, 1, 1])},
    ),
    "cubic Resize whose scales are not the ratios of its sizes": (
        'z = Resize <mode = "cubic"> (a, , s) y = Abs (z)', {"s": f32([1, 1, 1.3, 1.3])},
    ),
    "cubic GridSample": (
        'z = GridSample <mode = "bicubic"> (a, grid) y = Abs (z)', {"grid": 0.4 * normal(1, 8, 8, 2)},
    ),
    **{
        f"{op} of five dimensions": (f"v = Reshape (a, five) {text}", {"five": np.array([1, 4, 2, 4, 8]), **constants})
        for op, text, constants in (
            ("ArgMax", "i = ArgMax <axis = 4, keepdims = 0> (v) y = Cast <to = 1> (i)", {}),
            ("CumSum", "w = CumSum (v, one) y = ReduceMean <keepdims = 0> (w, one)", {"one": np.array([1])}),
            ("LogSoftmax", "w = LogSoftmax <axis = 1> (v) y = Squeeze (w, zero)", {"zero": np.array([0])}),
            ("ReduceLogSumExp", "y = ReduceLogSumExp <keepdims = 0> (v, three)", {"three": np.array([3])}),
        )
    },
    "Expand of six dimensions": (
        "v = Reshape (a, six) w = Expand (v, wide) y = Reshape (w, four)",
        {"six": np.array([1, 4, 8, 1, 8, 1]), "wide": np.array([1, 4, 8, 2, 8, 2]), "four": np.array([1, 4, 16, 16])},
    ),
}  # fmt: skip
FORMS = tuple(_FORMS)
_RANKS = {"EyeLike": 2, "DFT": 3}


def model_with(form: str) -> onnx.ModelProto:
    """A float model with one of these."""
    text, constants = _FORMS[form]
    sizes = ", ".join("bcde"[: _RANKS.get(form, 4)])
    more = ", float[f, g, h, i] k" if "indices" in form else ""
    return build(
        f"(float[1, 4, 8, 8] x) => (float[{sizes}] y{more}) {{ a = Sigmoid (x) {text} }}", opset=19, **constants
    )


@pytest.mark.parametrize("form", FORMS)
def test_what_the_htp_lacks_is_told(form: str) -> None:
    name = form.rsplit(" ", 1)[0] if form.endswith((" max", " min")) else form
    found = onnxq.check(model_with(form), backend="qnn")
    (told,) = [f for f in found if f.level == "warning" and f.where.startswith("node")]
    assert f"the HTP has no {name}" in told.what and "the CPU" in told.what


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("i = Cast <to = 7> (x) y = Cast <to = 1> (i)", True),
        ("f = Floor (x) i = Cast <to = 7> (f) y = Cast <to = 1> (i)", False),
        ("i = Cast <to = 7> (x) j = Neg (i) y = Cast <to = 1> (j)", False),
        ("i = Cast <to = 10> (x) y = Cast <to = 1> (i)", False),
    ],
)
def test_a_cast_to_integers_and_back(nodes: str, told: bool) -> None:
    found = onnxq.check(build(f"(float[1, 4] x) => (float[1, 4] y) {{ {nodes} }}"), backend="qnn")
    assert [f.level for f in found if "leave fractions" in f.what] == ["warning"] * told


def test_each_name_is_of_an_operator() -> None:
    assert {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""} >= NOWHERE

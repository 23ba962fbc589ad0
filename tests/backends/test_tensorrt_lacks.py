"""What check says of operators that TensorRT has not; that it has not is seen in ``test_tensorrt_runtime.py``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

import onnxq
from tests.models import build, f32, normal


class Form(NamedTuple):
    """A model of one node behind a Relu.

    Attributes:
        text: of the node, which reads ``a`` (float32, 1 by 4 by 8 by 8) and makes ``y``.
        said: what is said of it; nothing where it is empty.
        more: other outputs.
        constants: by name.
    """

    text: str
    said: str = ""
    more: str = ""
    constants: dict[str, Any] = {}  # noqa: RUF012  # a default of a NamedTuple, which nobody changes

    def model(self) -> onnx.ModelProto:
        text = f"(float[1, 4, 8, 8] x) => (float[a, b, c, d] y{self.more}) {{ a = Relu (x) [node] {self.text} }}"
        return build(text, opset=19, **self.constants)


def _scatter(op: str, reduction: str, said: str = "") -> Form:
    index = np.zeros((1, 4, 1, 1) if op == "ScatterElements" else (1, 1), np.int64)
    updates = normal(1, 4, 1, 1) if op == "ScatterElements" else normal(1, 4, 8, 8)
    return Form(f'y = {op} <reduction = "{reduction}"> (a, i, u)', said, constants={"i": index, "u": updates})


def _resize(attributes: str, said: str = "") -> Form:
    regions = f32([0, 0, 0, 0, 1, 1, 1, 1])
    return Form(
        f'y = Resize <mode = "linear", {attributes}> (a, r, , z)',
        said,
        constants={"r": regions, "z": np.array([1, 4, 4, 4])},
    )


def _cast(to: str, said: str = "") -> Form:
    return Form(f"c = Cast <to = {getattr(onnx.TensorProto, to)}> (a) y = Cast <to = 1> (c)", said)


def _top_k(k: int, said: str = "") -> Form:
    text = "f = Reshape (a, s) t, i = TopK (f, k) y = Reshape (t, w)"
    shapes = {"s": np.array([-1]), "w": np.array([1, 1, 1, -1])}
    return Form(f"n = Concat <axis = 1> ({', '.join('a' * 20)}) {text.replace('(a, s)', '(n, s)')}", said,
                constants={"k": np.array([k]), **shapes})  # fmt: skip


_ONES = {"one": np.ones(4, np.float32)}
_LOOP = (
    "<body = g (int64 n, bool k, float[1, 4, 8, 8] b) => (bool l, float[1, 4, 8, 8] e) "
    "{ l = Identity (k) e = Relu (b) }>"
)
FORMS = (
    Form("y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (a)", "pool with dilations"),
    Form("y = AveragePool <kernel_shape = [2, 2], dilations = [1, 2]> (a)", "pool with dilations"),
    Form("y = MaxPool <kernel_shape = [2, 2], dilations = [1, 1]> (a)"),
    Form("y, i = MaxPool <kernel_shape = [2, 2]> (a)", "MaxPool that gives indices", ", int64[e, f, g, h] i"),
    Form(
        "y, m, v = BatchNormalization <training_mode = 1> (a, one, one, one, one)",
        "BatchNormalization in training",
        ", float[4] m, float[4] v",
        _ONES,
    ),
    Form("y = Dropout (a, r, t)", "Dropout in training", constants={"r": f32(0.5), "t": np.array(True)}),
    Form(
        "y, m = LayerNormalization (a, s)",
        "LayerNormalization that gives its mean",
        ", float[e, f, g, h] m",
        {"s": normal(8)},
    ),
    Form("y = LayerNormalization (a, s)", constants={"s": normal(8)}),
    Form("y = LpPool <kernel_shape = [2, 2], p = 3> (a)", "LpPool of a norm other"),
    Form("y = LpPool <kernel_shape = [2, 2], p = 1> (a)"),
    Form(
        "f = Reshape (a, s) l = LpPool <kernel_shape = [2]> (f) y = Unsqueeze (l, o)",
        "LpPool over one axis",
        constants={"s": np.array([1, 4, 64]), "o": np.array([0])},
    ),
    *(
        Form(
            f"y = ConvTranspose <strides = [1, {step}], dilations = [2, 1]> (a, w)",
            said,
            constants={"w": normal(4, 4, 2, 2)},
        )
        for step, said in ((2, "ConvTranspose with both strides and dilations"), (1, ""))
    ),
    *(_scatter(op, "add", f"{op} that reduces") for op in ("ScatterElements", "ScatterND")),
    *(_scatter(op, "none") for op in ("ScatterElements", "ScatterND")),
    _resize('coordinate_transformation_mode = "tf_crop_and_resize"', "Resize by tf_crop_and_resize"),
    _resize("antialias = 1", "Resize with antialiasing"),
    _resize('coordinate_transformation_mode = "align_corners"'),
    Form(f"y = Loop (n, , a) {_LOOP}", "Loop without a condition", constants={"n": np.array(3)}),
    Form(f"y = Loop (n, t, a) {_LOOP}", constants={"n": np.array(3), "t": np.array(True)}),
    _top_k(3841, "TopK of more than 3840"),
    _top_k(3840),
    *(_cast(name, f"no tensors of {name.lower()}") for name in ("INT16", "UINT16", "UINT32", "UINT64")),
    _cast("UINT8", "tensors of uint8 at inputs and outputs of a model alone"),
    *map(_cast, ("INT32", "INT64", "FLOAT16", "DOUBLE", "BOOL")),
    Form("y = CenterCropPad (a, z)", "has no CenterCropPad", constants={"z": np.array([1, 4, 4, 4])}),
    Form("y = Unique <axis = 1> (a)", "has no Unique"),
)
"""Each form that TensorRT refuses, and one next to it that it takes."""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.text)
@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt_fp8", "tensorrt_nlp"])
def test_check_names_what_is_refused(form: Form, backend: str) -> None:
    found = onnxq.check(form.model(), backend=backend)
    told = [f.what for f in found if f.level == "warning" and f.where.startswith("node")]
    assert len(told) == bool(form.said)
    assert all(form.said in what for what in told)


def test_check_names_what_has_no_kernel() -> None:
    model = build(
        """(float[1, 8, 4] b, float[1, 2, 8] s) => (int64[N, 3] y) {
            c = Relu (s)
            [nms] y = NonMaxSuppression (b, c, m)
        }""",
        m=np.array([3], np.int64),
    )
    (finding,) = [f for f in onnxq.check(model, backend="tensorrt") if "no kernel" in f.what]
    assert finding.level == "warning" and "'nms'" in finding.where and "Cut the model" in finding.hint


def test_check_names_an_input_of_a_type_that_is_refused() -> None:
    model = build("(int16[1, 4] x) => (float[1, 4] y) { f = Cast <to = 1> (x) y = Relu (f) }")
    (finding,) = [f for f in onnxq.check(model, backend="tensorrt") if "int16" in f.what]
    assert finding.where == "input 'x'" and finding.level == "warning"

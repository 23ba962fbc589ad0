"""TVM: onnxruntime's scheme without its costs, at the widths that TVM loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from tests.models import build, f32, images, normal
from tests.planning.test_planner import residual

INTEGERS = {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32}


def test_all_that_onnxruntime_has_rows_for_is_quantized() -> None:
    """A first layer of three channels is slower in integers on onnxruntime; no costs speak here."""
    model = build(
        "(float[1, 3, 16, 16] x) => (float[1, 8, 16, 16] y) { a = Conv (x, w)\n s = Sigmoid (a)\n y = Mul (a, s) }",
        w=normal(8, 3, 1, 1),
    )
    found = onnxq.plan(model, backend="tvm", options=Options())
    assert not found.kept_float or all("kept whole" in kept.reason for kept in found.kept_float)
    assert "Conv" in found.quantized.values()
    assert "Conv" not in onnxq.plan(model, backend="onnxruntime").quantized.values()


def test_rows_of_a_softmax_may_be_free_sizes() -> None:
    """Attention over as many tokens as there are: onnxruntime's kernel is wrong for one, TVM computes in float."""
    model = build(
        """(float[1, N, 8] x) => (float[1, N, 8] y) {
            q = MatMul (x, a)
            t = Transpose <perm = [0, 2, 1]> (x)
            s = MatMul (q, t)
            p = Softmax <axis = -1> (s)
            y = MatMul (p, x)
        }""",
        a=normal(8, 8),
    )
    found = onnxq.plan(model, backend="tvm")
    assert "Softmax" in found.quantized.values(), found.kept_float
    (told,) = [kept.reason for kept in onnxq.plan(model, backend="onnxruntime").kept_float if kept.op == "Softmax"]
    assert told.endswith("is wrong for rows of one element, which its free sizes allow (--shape fixes them)")


@pytest.mark.parametrize(("weight", "act", "kinds"), [(8, 8, {3, 2, 6}), (8, 16, {3, 4, 6}), (16, 16, {5, 4, 6})])
def test_widths(weight: int, act: int, kinds: set[int], tmp_path: Path) -> None:
    options = Options(weight_bits=weight, act_bits=act)
    model = residual()
    onnxq.quantize(model, images(1, 16, 8, 8), backend="tvm", output=tmp_path / "q.onnx", options=options)
    written = onnx.load(tmp_path / "q.onnx")
    assert {t.data_type for t in written.graph.initializer} & INTEGERS <= kinds
    domains = {n.domain for n in written.graph.node if n.op_type == "QuantizeLinear"}
    assert domains == ({"com.microsoft"} if act == 16 else {""})
    assert {o.domain: o.version for o in written.opset_import}[""] < 21


@pytest.mark.parametrize("options", [{"weight_bits": 4}, {"act_bits": 4}, {"act_bits": 7}])
def test_widths_that_it_cannot_load_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="tvm has no"):
        onnxq.quantize(residual(), images(1, 16, 8, 8), backend="tvm", options=Options(**options))


def test_scalars_computed_at_run_time_are_not_quantized() -> None:
    model = build(
        """(float[N, 8, 16] x) => (float[N, 8, 16] y) {
            h = MatMul (x, w)
            top = ReduceMax <keepdims = 0> (h)
            y = Mul (h, top)
        }""",
        w=normal(16, 16),
    )
    found = onnxq.plan(model, backend="tvm", options=Options(placement="all"))
    assert "Mul" in found.quantized.values()
    assert "top" not in {site.tensor for site in found.sites}


def test_what_tvm_refuses_is_said_before() -> None:
    model = build(
        "(float[6, 1, 8] x) => (float[6, 1, 1, 8] y) { [layer] s = LSTM <hidden_size = 8> (x, w, r)\n y = Relu (s) }",
        w=normal(1, 32, 8),
        r=normal(1, 32, 8, seed=1),
    )
    (said,) = (f for f in onnxq.check(model, backend="tvm") if "TVM" in f.what)
    assert "'layer'" in said.where and "no LSTM" in said.what and said.level == "warning"
    assert not [f for f in onnxq.check(residual(), backend="tvm") if "TVM" in f.what]


NMS = "[nms] i = NonMaxSuppression (b, s, most, overlap, least)"
REFUSED = {
    "indices": ("(float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y, int64[1, 1, 2, 2] i) {{ {} }}", "gives indices"),
    "topk": ("(float[4, 9] x, int64[1] k) => (float[4, N] y, int64[4, N] i) {{ {} }}", "whose k is computed"),
    "nms": ("(float[1, 20, 4] b, float[1, 2, 20] s) => (float[N] y) {{ {} }}", "a row for every box"),
    "training": (
        "(float[1, 4, 6] x) => (float[1, 4, 6] y, float[4] m, float[4] v) {{ {} }}",
        "other running means",
    ),
    "heads": ("(float[1, 2, 6, 8] x) => (float[1, 2, 6, 6] y) {{ {} }}", "onnxruntime's own Attention"),
    "sized": ("(float[1, 4, H, 6] x) => (float[1, 4, 12, 12] y) {{ {} }}", "ignores its output_shape"),
}
BODIES = {
    "indices": "[pool] y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)",
    "topk": "[best] y, i = TopK (x, k)",
    "nms": f"{NMS}\n y = GatherND (s, i)",
    "training": "y, m, v = BatchNormalization <training_mode = 1> (x, one, one, one, one)",
    "heads": "a, k, v, y = Attention (x, x, x)",
    "sized": "y = ConvTranspose <strides = [2, 2], output_shape = [12, 12]> (x, w)",
}


def refused(name: str) -> onnx.ModelProto:
    """A model that TVM 0.27 cannot import or compile."""
    text = REFUSED[name][0].format(BODIES[name])
    if name != "nms":
        constants = {"one": np.ones(4, np.float32), "w": normal(4, 4, 3, 3)}
        used: Any = {key: value for key, value in constants.items() if f"{key})" in text or f"{key}," in text}
        return build(text, opset=23 if name == "heads" else 17, ir_version=10, **used)
    return build(text, most=np.array([5]), overlap=f32([0.5]), least=f32([0.1]))


@pytest.mark.parametrize("name", REFUSED)
def test_what_tvm_makes_of_single_operators_is_said_before(name: str) -> None:
    (said,) = (f for f in onnxq.check(refused(name), backend="tvm") if "TVM" in f.what)
    assert REFUSED[name][1] in said.what and said.hint


def test_an_nms_at_the_end_and_known_ks_are_fine() -> None:
    model = build(
        f"(float[1, 20, 4] b, float[1, 2, 20] s) => (int64[N, 3] i, float[1, 2, 3] y, int64[1, 2, 3] j) {{ {NMS}\n"
        "[best] y, j = TopK (s, k) }",
        most=np.array([5]),
        overlap=f32([0.5]),
        least=f32([0.1]),
        k=np.array([3]),
    )
    assert not [f for f in onnxq.check(model, backend="tvm") if "TVM" in f.what]


@pytest.mark.parametrize(("op", "known"), [("com.microsoft.FastGelu", True), ("com.microsoft.Inverse", False)])
def test_operators_of_onnxruntimes_own_are_told_apart(op: str, known: bool) -> None:
    model = build(f"(float[4, 4] x) => (float[4, 4] y) {{ y = {op} (x) }}", domains={"com.microsoft": 1})
    assert any("TVM" in f.what for f in onnxq.check(model, backend="tvm")) is not known


@pytest.mark.parametrize("size", ["output_shape = [12, 13]", 'auto_pad = "SAME_LOWER"'])
def test_a_transposed_convolution_names_its_padding(size: str, tmp_path: Path) -> None:
    model = build(
        f"(float[1, 4, 6, 6] x) => (float[1, 4, h, w] y) {{ y = ConvTranspose <strides = [2, 2], {size}> (x, w) }}",
        w=normal(4, 4, 3, 3),
    )
    assert not [f for f in onnxq.check(model, backend="tvm") if "TVM" in f.what]
    onnxq.quantize(model, images(1, 4, 6, 6), backend="tvm", output=tmp_path / "q.onnx")
    (node,) = [n for n in onnx.load(tmp_path / "q.onnx").graph.node if n.op_type == "ConvTranspose"]
    assert "pads" in {a.name for a in node.attribute} and not {"output_shape", "auto_pad"} & {
        a.name for a in node.attribute
    }


def resizing(mode: str, shape: str = "8, 8", **given: Any) -> onnx.ModelProto:
    """A Resize by ``scales`` or to ``sizes``."""
    arguments = "x, , scales" if "scales" in given else "x, , , sizes"
    return build(f"(float[1, 3, {shape}] x) => (float[a, b, c, d] y) {{ y = Resize <{mode}> ({arguments}) }}", **given)


_CORNERS = 'mode = "linear", coordinate_transformation_mode = "align_corners"'
RESIZED_OTHERWISE = (
    ('mode = "linear"', {"scales": f32([1, 1, 1.3, 0.6])}, "1.3 of 8"),
    ('mode = "nearest"', {"scales": f32([1, 1, 1, 0.6])}, "0.6 of 8"),
)
RESIZED_ALIKE = (
    ('mode = "linear"', {"scales": f32([1, 1, 1.5, 0.25])}),
    ('mode = "nearest"', {"scales": f32([1, 1, 2, 2])}),
    ('mode = "linear"', {"sizes": np.array([1, 3, 11, 5])}),
    (_CORNERS, {"sizes": np.array([1, 3, 11, 5])}),
)


@pytest.mark.parametrize(("mode", "given", "what"), RESIZED_OTHERWISE)
def test_scales_that_lead_to_no_whole_size_are_said_before(mode: str, given: dict[str, Any], what: str) -> None:
    (told,) = [f.what for f in onnxq.check(resizing(mode, **given), backend="tvm") if "Resize" in f.where]
    assert what in told and told.endswith(": other numbers")
    (told,) = [f.what for f in onnxq.check(resizing(mode, "H, W", **given), backend="tvm") if "Resize" in f.where]
    assert "of a free size" in told and "maybe" in told


@pytest.mark.parametrize(("mode", "given"), RESIZED_ALIKE)
def test_other_resizes_are_not_told(mode: str, given: dict[str, Any]) -> None:
    assert not [f for f in onnxq.check(resizing(mode, **given), backend="tvm") if "Resize" in f.where]


def test_corners_of_a_single_element_are_said_before() -> None:
    model = resizing(_CORNERS, sizes=np.array([1, 3, 1, 5]))
    (told,) = [f.what for f in onnxq.check(model, backend="tvm") if "Resize" in f.where]
    assert "divides by zero" in told

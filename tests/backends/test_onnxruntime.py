"""What onnxruntime makes of the results: which kernels run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.graph.files.save import to_proto
from onnxq.ort.session import Session
from tests import running
from tests.graph.helpers import run
from tests.models import build, f32, feeds_for, images, normal, verified_sqnr
from tests.planning.test_planner import recurrent, residual, transformer

ALL = Options(placement="all")


def optimized(path: Path) -> list[str]:
    """Operator types of the graph as onnxruntime runs it, all optimizations on."""
    return [n.op_type for n in running.optimized(path, path.parent).graph.node]


def test_a_convolutional_net_runs_in_integers(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(residual(), images(1, 16, 8, 8), output=path, options=ALL)
    ops = optimized(path)
    assert ops.count("QLinearConv") == 3
    assert "QLinearAdd" in ops and "NhwcMaxPool" in ops
    assert not {"Conv", "Relu", "Clip", "Add"} & set(ops)


def test_biases_behind_matmuls_do_not_pull_them_into_float(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    model = build(
        "(float[1, 64, 128] x) => (float[1, 64, 256] y) { h = MatMul (x, w)\n y = Add (h, b) }",
        w=normal(128, 256),
        b=normal(256),
    )
    q = onnxq.quantize(model, images(1, 64, 128), output=path)
    assert list(q.plan.quantized.values()) == ["MatMul"]
    ops = optimized(path)
    assert "MatMulIntegerToFloat" in ops
    assert not {"Gemm", "MatMul", "FusedGemm"} & set(ops)


def test_a_transformer_block_runs_its_products_in_integers(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(transformer(), images(1, 64, 128), output=path)
    assert optimized(path).count("MatMulIntegerToFloat") == 5


def test_stored_weights_are_unpacked_once(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(recurrent(), images(7, 2, 32), output=path)
    assert list(q.plan.stored.values()) == ["GRU"]
    assert optimized(path) == ["GRU"]
    kinds = {t.name: t.data_type for t in onnx.load(path).graph.initializer}
    assert kinds["w_quantized"] == kinds["r_quantized"] == onnx.TensorProto.INT8
    assert "w" not in kinds


@pytest.mark.parametrize("channels", [3, 64])
def test_first_layers_of_few_channels_stay_float(channels: int) -> None:
    model = build(
        f"""(float[1, {channels}, 64, 64] x) => (float[1, 32, 62, 62] y) {{
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            y = Conv (r, v)
        }}""",
        w=normal(32, channels, 3, 3),
        v=normal(32, 32, 3, 3, seed=1),
    )
    plan = onnxq.plan(model)
    assert (sum(op == "Conv" for op in plan.quantized.values()) == 1) == (channels == 3)


@pytest.mark.parametrize(
    ("kernel", "dilation", "integers"),
    [((7, 7), 1, True), ((7, 7), 2, False), ((127,), 1, True), ((3, 3, 3), 1, False)],
)
def test_rows_of_a_kernel_are_copied_at_once(kernel: tuple[int, ...], dilation: int, integers: bool) -> None:
    """Of the float time onnxruntime 1.32 takes 76 % for three channels and 7x7 kernels, 43 % for a line of 127 taps."""
    rank = len(kernel)
    pads = [dilation * (k // 2) for k in kernel] * 2
    size = {1: 4096, 2: 64, 3: 16}[rank]
    model = build(
        f"""(float[{", ".join(map(str, [1, 3, *[size] * rank]))}] x) => (float[{", ".join(["n"] * (rank + 2))}] y) {{
            [first] a = Conv <dilations = {[dilation] * rank}, pads = {pads}> (x, w)
            r = Relu (a)
            y = Conv (r, v)
        }}""",
        w=normal(64, 3, *kernel),
        v=normal(64, 64, *[1] * rank, seed=1),
    )
    assert ("first" in onnxq.plan(model).quantized) == integers


@pytest.mark.parametrize(("dilation", "integers"), [(1, True), (12, True), (36, False)])
def test_convolutions_that_mostly_read_padding_stay_float(dilation: int, integers: bool) -> None:
    """Dilated by 36 over 32x32 positions onnxruntime takes an eighth of the time in float, all of it in integers."""
    model = build(
        f"""(float[1, 256, 32, 32] x) => (float[1, 256, 32, 32] y) {{
            r = Relu (x)
            [dilated] d = Conv <dilations = [{dilation}, {dilation}], pads = {[dilation] * 4}> (r, w)
            y = Relu (d)
        }}""",
        w=normal(256, 256, 3, 3),
    )
    assert ("dilated" in onnxq.plan(model).quantized) == integers


@pytest.mark.parametrize("channels", [1, 2])
def test_from_one_channel_to_one_floats_are_faster(channels: int) -> None:
    """A line of 127 taps takes onnxruntime 1.32 eight times as long in integers: it follows a pointer for each tap."""
    model = build(
        """(float[1, 64, 2048] x) => (float[1, 64, 2048] y) {
            [before] b = Conv (x, u)
            [line] a = Conv <pads = [127, 127]> (b, w)
            y = Conv (a, v)
        }""",
        u=normal(channels, 64, 1),
        w=normal(channels, channels, 255, seed=1),
        v=normal(64, channels, 1, seed=2),
    )
    assert ("line" in onnxq.plan(model).quantized) == (channels == 2)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_convolutions_with_more_outputs_than_inputs_stay_float(multiplier: int) -> None:
    """onnxruntime has a kernel in integers for those with as many: the other one takes 1.3 times as long as in float,
    with groups put together.
    """
    model = build(
        """(float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y) {
            a = Conv (x, v)
            [depthwise] d = Conv <group = 64, pads = [1, 1, 1, 1]> (a, w)
            y = Conv (d, u)
        }""",
        v=normal(64, 64, 1, 1),
        w=normal(64 * multiplier, 1, 3, 3, seed=1),
        u=normal(64, 64 * multiplier, 1, 1, seed=2),
    )
    plan = onnxq.plan(model)
    assert ("depthwise" in plan.quantized) == (multiplier == 1)


@pytest.mark.parametrize("dims", [1, 2])
def test_long_depthwise_filters_over_time_run_in_integers(dims: int) -> None:
    """onnxruntime has a fast float kernel of depthwise convolutions for planes only."""
    sizes, kernel = ("1024", (31,)) if dims == 1 else ("32, 32", (5, 5))
    model = build(
        f"""(float[1, 64, {sizes}] x) => (float[1, 64, {sizes}] y) {{
            d = Conv <group = 64, pads = [{", ".join([str(kernel[0] // 2)] * 2 * dims)}]> (x, w)
            y = Relu (d)
        }}""",
        w=normal(64, 1, *kernel),
    )
    assert bool(onnxq.plan(model).quantized) == (dims == 1)


def test_rows_are_gathered_along_the_first_axis_only(tmp_path: Path) -> None:
    """A table that another tool quantized, read by columns: its DequantizeLinear stays where it is."""
    model = build(
        "(int64[3] i) => (float[8, 3] y) { t = DequantizeLinear (q, s, z)\n y = Gather <axis = 1> (t, i) }",
        q=np.arange(-32, 32, dtype=np.int8).reshape(8, 8),
        s=np.float32(0.5),
        z=np.int8(0),
    )
    again = onnxq.read(model).qdq()
    feeds = {"i": np.array([1, 2, 5])}
    expected = np.arange(-32, 32).reshape(8, 8)[:, [1, 2, 5]] * 0.5
    np.testing.assert_array_equal(Session(again).run(feeds)["y"], expected)


def test_a_bias_that_is_an_output_keeps_its_shape() -> None:
    model = build(
        "(float[1, 64, 128] x) => (float[1, 64, 256] y, float[256] b) { h = MatMul (x, w)\n y = Add (h, b) }",
        w=normal(128, 256),
        b=normal(256),
    )
    q = onnxq.quantize(model, images(1, 64, 128), options=Options(placement="compute"))
    assert q.plan.quantized
    np.testing.assert_array_equal(Session(q.qdq()).run(images(1, 64, 128)[0])["b"], normal(256))


@pytest.mark.parametrize("opset", [17, 21])
def test_signed_pairs_are_written_in_its_own_domain_where_it_needs_that(opset: int) -> None:
    options = Options(placement="all", symmetric=True, opset=opset)
    q = onnxq.quantize(residual(), images(1, 16, 8, 8), options=options)
    domains = {n.domain for n in q.qdq().graph if n.op_type == "QuantizeLinear"}
    assert domains == ({"com.microsoft"} if opset == 21 else {""})
    weights = {n.domain for n in q.qdq().graph if n.op_type == "DequantizeLinear" and n.inputs[0].is_initializer()}  # type: ignore[union-attr]
    assert weights == {""}


@pytest.mark.parametrize(
    "view", ["Reshape (t, shape)", "Unsqueeze (t, zero)", "Squeeze (t, zero)", "Flatten <axis = 2> (t)"]
)
def test_views_of_floats_stay_float(view: str) -> None:
    """onnxruntime gives the same memory other dimensions in 2 µs, floats or integers: 8 bits gain nothing."""
    model = build(
        f"(float[1, 1024, 192] x) => (y) {{ t = Tanh (x)\n [view] v = {view}\n [product] y = MatMul (v, w) }}",
        shape=np.array([1024, 192]),
        zero=np.array([0]),
        w=normal(192, 192),
    )
    assert list(onnxq.plan(model).quantized) == ["product"]


def test_a_resize_that_fills_in_a_value_is_no_data_movement() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 3, 16, 16] y) {
            y = Resize <mode = "nearest", coordinate_transformation_mode = "tf_crop_and_resize",
                        extrapolation_value = 50.0> (x, roi, , sizes)
        }""",
        roi=np.array([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5], np.float32),
        sizes=np.array([1, 3, 16, 16]),
    )
    q = onnxq.quantize(model, images(1, 3, 8, 8), options=ALL)
    assert [k.reason for k in q.plan.kept_float] == ["it fills in a value that its input need not hold"]


def test_a_resize_between_layers_stays_float_where_that_is_faster() -> None:
    """With the channels last, as between integer layers, it takes .6 ns an element: longer than conversions."""
    model = build(
        """(float[1, 64, 40, 40] x) => (float[1, 64, H, W] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [up] r = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                             nearest_mode = "floor"> (a, , scales)
            y = Conv <pads = [1, 1, 1, 1]> (r, v)
        }""",
        w=normal(64, 64, 3, 3),
        v=normal(64, 64, 3, 3, seed=1),
        scales=np.array([1, 1, 2, 2], np.float32),
    )
    assert "up" in onnxq.plan(model).quantized, "it repeats elements: rows are joined with themselves"
    for tensor in model.graph.initializer:
        if tensor.name == "scales":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 1, 2.25, 2.25], np.float32), "scales"))
    plan = onnxq.plan(model)
    assert list(plan.quantized.values()) == ["Conv"] * 2
    assert [(k.node, k.reason) for k in plan.kept_float] == [
        ("up", "slower in integers than in float, counting the conversions")
    ]
    assert "up" in onnxq.plan(model, options=ALL).quantized


@pytest.mark.parametrize("integer", [np.int8, np.uint8])
@pytest.mark.parametrize("moves", ["t = Transpose (h)", "r = Reshape (h, shape) t = Transpose (r)"])
def test_float_data_movement_that_a_body_reads(moves: str, integer: type[np.integer[Any]]) -> None:
    """onnxruntime 1.31 aborts the process where a DequantizeLinear stands before it, see `_shield_bodies`."""
    model = build(
        f"""(float[4, 8] x, bool c) => (float[8, 4] y, float[8, 4] n) {{
            q = QuantizeLinear (x, s, z)
            h = DequantizeLinear (q, s, z)
            {moves}
            n = Neg (t)
            y = If (c) <
                then_branch = yes () => (float[8, 4] p) {{ p = Abs (t) }},
                else_branch = no () => (float[8, 4] m) {{ m = Neg (t) }}
            >
        }}""",
        opset=21,
        ir_version=10,
        s=np.float32(0.05),
        z=integer(3),
        shape=np.array([4, 8]),
    )
    result = onnxq.read(model).qdq()
    (branch,) = {n for n in result.graph if n.op_type == "If"}
    read = [n.inputs[0] for g in (branch.attributes[k].as_graph() for k in ("then_branch", "else_branch")) for n in g]
    assert all(v is not None and (p := v.producer()) and p.op_type == "DequantizeLinear" for v in read)
    feeds = {**images(4, 8)[0], "c": np.array(False)}
    expected = Session(model.SerializeToString(), optimize=False).run(feeds)
    for optimize in (True, False):
        got = Session(result, optimize=optimize).run(feeds)
        np.testing.assert_array_equal(got["y"], expected["y"], "the pair changes no number")
        np.testing.assert_array_equal(got["n"], expected["n"])


def test_pairs_that_turn_out_to_be_the_same_in_front_of_a_body() -> None:
    """A Relu that changes nothing between two quantizers of one scale, the second of which a body reads."""
    model = build(
        """(float[4, 8] x, bool c) => (float[4, 8] y) {
            q = QuantizeLinear (x, s, z)
            h = DequantizeLinear (q, s, z)
            r = Relu (h)
            p = QuantizeLinear (r, s, z)
            y = If (c) <
                then_branch = yes () => (float[4, 8] t) { a = DequantizeLinear (p, s, z) t = Abs (a) },
                else_branch = no () => (float[4, 8] e) { b = DequantizeLinear (p, s, z) e = Neg (b) }
            >
        }""",
        s=np.float32(0.05),
        z=np.uint8(0),
    )
    result = onnxq.read(model).qdq()
    assert not [n for n in result.graph.all_nodes() if n.op_type == "DequantizeLinear" and n.graph is not result.graph]
    feeds = {**images(4, 8)[0], "c": np.array(False)}
    expected = Session(model.SerializeToString(), optimize=False).run(feeds)["y"]
    np.testing.assert_array_equal(Session(result).run(feeds)["y"], expected)


def test_the_weight_of_a_matmul_with_float_data_in_a_body() -> None:
    model = build(
        """(float[4, 16] x, bool c) => (float[4, 16] y) {
            y = If (c) <
                then_branch = yes () => (float[4, 16] t) { t = MatMul (x, w) },
                else_branch = no () => (float[4, 16] e) { r = Relu (x)
                    e = MatMul (r, w) }
            >
        }""",
        w=normal(16, 16),
    )
    feeds = [{**feed, "c": np.array(i % 2 == 0)} for i, feed in enumerate(images(4, 16))]
    q = onnxq.quantize(model, feeds, options=Options(placement="all", act_bits=6))
    assert len(q.plan.quantized) == 2
    assert verified_sqnr(q) > 20


@pytest.mark.parametrize("act", ["Relu (a)", "Clip (a, zero, six)"])
@pytest.mark.parametrize("first", ["Gemm (x, w, b)", "Gemm (x, w)", "MatMul (x, w)"])
def test_a_product_in_front_of_what_stays_float(first: str, act: str, tmp_path: Path) -> None:
    """onnxruntime makes a float kernel of a product and the Relu behind it where no quantizer follows."""
    more: dict[str, Any] = {"zero": np.float32(0), "six": np.float32(6)} if "Clip" in act else {}
    if "b)" in first:
        more["b"] = normal(512, seed=2)
    model = build(
        f"(float[8, 256] x) => (float[8, 4] y) {{ a = {first}\n r = {act}\n [last] y = MatMul (r, v) }}",
        w=normal(256, 512, scale=0.1),
        v=normal(512, 4, scale=0.1, seed=1),
        **more,
    )
    path = tmp_path / "q.onnx"
    onnxq.quantize(model, images(8, 256), output=path, options=Options(exclude=("last",)))
    ops = optimized(path)
    assert {"QGemm", "QLinearMatMul"} & set(ops)
    assert not {"Gemm", "FusedGemm", "Relu", "Clip"} & set(ops)


def test_symmetric_activations_leave_float_what_onnxruntime_would_compute_in_float(tmp_path: Path) -> None:
    q = onnxq.quantize(residual(), images(1, 16, 8, 8), options=Options(symmetric=True))
    reasons = {kept.reason for kept in q.plan.kept_float if kept.op == "Conv"}
    assert "computed in float together with the activation function after it, as the grid is symmetric" in reasons
    path = tmp_path / "q.onnx"
    onnxq.quantize(residual(), images(1, 16, 8, 8), output=path, options=Options(symmetric=True, placement="all"))
    assert optimized(path).count("QuantizeLinear") >= 3  # asked for, so done


def test_a_stored_table_with_a_scale_a_column_in_front_of_a_quantizer() -> None:
    model = build(
        "(int64[1, 6] i) => (float[1, 6, 8] y) { t = Gather (rows, i)\n y = MatMul (t, w) }",
        rows=normal(4096, 16),
        w=normal(16, 8, seed=1),
    )
    feeds = [{"i": np.arange(6, dtype=np.int64)[None] + 100 * k} for k in range(4)]
    q = onnxq.quantize(model, feeds, options=ALL)
    assert verified_sqnr(q) > 30


def gated(function: str, channels: int = 96) -> onnx.ModelProto:
    """Pointwise convolutions with an activation function between them."""
    return build(
        f"""(float[1, {channels}, 28, 28] x) => (float[1, {channels}, 28, 28] y) {{
            [first] a = Conv (x, w1, b1)
            {function}
            [second] c = Conv (g, w2, b1)
            y = Neg (c)
        }}""",
        w1=normal(channels, channels, 1, 1, scale=0.1),
        w2=normal(channels, channels, 1, 1, scale=0.1, seed=1),
        b1=normal(channels, seed=2),
        half=np.float32(0.5),
        one=np.float32(1),
        root=np.float32(np.sqrt(2)),
    )


def test_a_silu_between_convolutions_runs_in_integers(tmp_path: Path) -> None:
    """In float it would split them: conversions on either side, and Sigmoid and Mul apart."""
    model = gated("s = Sigmoid (a)\n g = Mul (a, s)")
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(model, images(1, 96, 28, 28), output=path)
    ops = optimized(path)
    assert ops.count("QLinearConv") == 2 and {"QLinearSigmoid", "QLinearMul"} <= set(ops)
    assert not {"Sigmoid", "Mul", "QuickGelu"} & set(ops)
    assert verified_sqnr(q) > 30


@pytest.mark.parametrize(
    ("slopes", "written"),
    [
        ((0.25, -1.5), {"Mul": 1, "Max": 1}),
        ((0.25, 1.5), {"Relu": 1, "Min": 1, "Mul": 1, "Add": 1}),
        ((0.25, 0.0), {"Relu": 1, "Min": 1, "Mul": 1, "Add": 1}),  # an infinite number times 0 is none
        ((0.25, -np.inf), {"PRelu": 1}),  # the same
    ],
)
def test_a_prelu_of_a_feature_map_does_not_branch_on_each_element(
    slopes: tuple[float, float], written: dict[str, int]
) -> None:
    text = "(float[2, 16, n] x) => (float[2, 16, n] y) { y = PRelu (x, slope) }"
    model = build(text, slope=f32(slopes).reshape(2, 1, 1))
    feeds = feeds_for(model, n=16)
    made = onnxq.quantize(model, feeds, options=Options(exclude=("*",)))
    result = to_proto(made.rendered())
    assert Counter(node.op_type for node in result.graph.node) == written
    special = f32([0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45])[np.newaxis, np.newaxis].repeat(16, 1).repeat(2, 0)
    for x in (*(feed["x"] for feed in feeds), special):
        with np.errstate(invalid="ignore", over="ignore"):
            want = np.where(x < 0, f32(slopes).reshape(2, 1, 1) * x, x)
        untouched = "PRelu" in written  # onnxruntime 1.26 and before makes NaN of infinity in it
        np.testing.assert_array_equal(run(result, {"x": x})[0], run(model, {"x": x})[0] if untouched else want)
    assert [kept.op for kept in onnxq.plan(result).kept_float] == ["PRelu"], "what reads it finds the operator"


def test_a_small_prelu_stays_one_node() -> None:
    model = build("(float[1, 64] x) => (float[1, 64] y) { y = PRelu (x, slope) }", slope=normal(64))
    made = onnxq.quantize(model, feeds_for(model), options=Options(exclude=("*",)))
    assert [node.op_type for node in made.rendered().graph] == ["PRelu"]


@pytest.mark.parametrize("moved", [False, True])
def test_a_max_pool_of_floats_behind_which_integers_begin_stays_in_place(moved: bool, tmp_path: Path) -> None:
    """A first convolution of one channel is faster in float, and so is the pool behind it."""
    path = tmp_path / "q.onnx"
    turn = "t = Transpose <perm = [0, 1, 3, 2]> (p)" if moved else "t = Identity (p)"
    model = build(
        "(float[1, 1, 64, 64] x) => (float[1, 32, 32, 32] y) { c = Conv <pads = [1, 1, 1, 1]> (x, w)\n r = Relu (c)\n"
        f" p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)\n {turn}\n"
        " d = Conv <pads = [1, 1, 1, 1]> (t, v)\n y = Relu (d) }",
        w=normal(32, 1, 3, 3),
        v=normal(32, 32, 3, 3),
    )
    q = onnxq.quantize(model, images(1, 1, 64, 64), output=path)
    nodes = running.optimized(path, tmp_path).graph.node
    assert [node.op_type for node in nodes].count("QLinearConv") == 1 and q.verification is not None
    pooled = next(node for node in nodes if node.op_type == "MaxPool")
    assert "nchwc" in pooled.domain

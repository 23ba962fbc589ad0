"""Bounds of onnxruntime's integer kernels that the target keeps to, measured in the kernels themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq import Options
from onnxq.backends.onnxruntime.limits import _SOFTMAX_STEPS
from onnxq.graph.files.save import to_proto
from tests.backends.test_onnxruntime import optimized
from tests.backends.test_onnxruntime_groups import in_integers
from tests.graph.helpers import run
from tests.models import build, f32, feeds_for, normal
from tests.running import open_session

OLD = tuple(map(int, ort.__version__.split(".")[:2])) < (1, 32)


def test_step_of_onnxruntimes_softmax() -> None:
    """The bound itself, in the kernel: exact to a step at 148 steps for each element, wrong at 150 up to 1.31."""

    def worst(elements: int, steps: float, scale: float) -> int:
        numbers = {"xs": f32(scale), "xz": np.uint8(0), "ys": f32(1 / steps), "yz": np.uint8(0)}
        graph = helper.make_graph(
            [helper.make_node("QLinearSoftmax", ["q", "xs", "xz", "ys", "yz"], ["y"], axis=-1, opset=13,
                              domain="com.microsoft")],
            "kernel",
            [helper.make_tensor_value_info("q", TensorProto.UINT8, ["n", elements])],
            [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        session = open_session(model)
        q = np.random.default_rng(0).integers(0, 256, (200, elements)).astype(np.uint8)
        q[:20] = 255  # where everything is the largest number
        power = np.exp((q.astype(np.float64) - q.max(axis=1, keepdims=True)) * scale)
        exact = np.rint(power / power.sum(axis=1, keepdims=True) / np.float64(numbers["ys"]))
        return int(np.abs(np.minimum(exact, 255) - session.run(None, {"q": q})[0]).max())

    for elements in (1, 2, 7, 20, 196):
        for scale in (0.001, 0.02, 0.3):
            assert worst(elements, _SOFTMAX_STEPS * elements, scale) <= 1
        if OLD:
            assert worst(elements, 150.0 * elements, 0.02) > 100


@pytest.mark.parametrize("moved", ["t = Relu (s)", "r = Clip (s, low, high)\n t = Transpose <perm = [0, 1, 2]> (r)"])
def test_a_float_softmax_whose_quantizer_stands_further_on(moved: str) -> None:
    """Its 64 results lie near 1/64; a step made for them is too fine for the kernel that takes its place."""
    model = build(
        f"""(float[1, 64, 16] x) => (float[1, 64, 8] y, float[1, 64, 8] z) {{
            a = MatMul (x, w)
            z = MatMul (a, v)
            s = Softmax <axis = 1> (a)
            {moved}
            y = MatMul (t, u)
        }}""",
        w=normal(16, 16, scale=0.02),
        u=normal(16, 8),
        v=normal(16, 8),
        low=np.float32(0),
        high=np.float32(6),
    )
    made = onnxq.quantize(model, feeds_for(model), options=Options(placement="compute"))
    assert made.verification is not None and made.plan.quantized and "Softmax" not in made.plan.quantized.values()
    step = next(float(made.qparams[s.name].scale) for s in made.plan.sites if s.tensor == "t")
    assert step == pytest.approx(1 / (64 * _SOFTMAX_STEPS)), "raised to the bound"
    plain = made.verification.plain_sqnr
    assert plain is not None and plain > 40, "the optimized model computes what is written"
    assert made.verification.outputs["y"].sqnr > 30


@pytest.mark.parametrize(("length", "why"), [("1", "one element$"), ("T", "one element, which its free sizes allow")])
def test_why_a_softmax_stays_float(length: str, why: str) -> None:
    """That of an attention over any number of tokens is not said to be over one."""
    made = build(f"(float[1, {length}] x) => (float[1, {length}] y) {{ y = Softmax (x) }}")
    (kept,) = onnxq.plan(made, options=Options(placement="all")).kept_float
    assert re.search(why, kept.reason)


def found_none() -> onnx.ModelProto:
    """What is left of a layer's results above a threshold, times a number and doubled."""
    return build(
        """(float[1, 3, 8, 8] x) => (float[K] y) {
            [first] f = Conv <pads = [1, 1, 1, 1]> (x, w)
            [second] g = Conv <pads = [1, 1, 1, 1]> (f, v)
            big = Greater (g, level)
            nz = NonZero (big)
            at = Transpose <perm = [1, 0]> (nz)
            k = GatherND (g, at)
            t = Mul (k, factor)
            y = Add (t, t)
        }""",
        w=normal(6, 3, 3, 3),
        v=normal(6, 6, 3, 3, seed=1),
        level=np.float32(1),
        factor=f32([0.5]),
    )


@pytest.mark.parametrize("backend", ["onnxruntime", "onnx_qnn"])
def test_where_nothing_is_found_a_result_runs(backend: str, tmp_path: Path) -> None:
    """In a process of its own: onnxruntime 1.32's QLinearMul and QLinearAdd end theirs on two threads."""
    model = found_none()
    made = onnxq.quantize(
        model, feeds_for(model), backend=backend, output=tmp_path / "q.onnx", options=Options(placement="all")
    )
    assert {"Mul", "Add"} <= set(made.plan.quantized.values())
    script = f"""if True:
        import numpy as np, onnxruntime as ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        session = ort.InferenceSession({str(tmp_path / "q.onnx")!r}, options, providers=["CPUExecutionProvider"])
        print(session.run(None, {{"x": np.zeros((1, 3, 8, 8), np.float32)}})[0].shape)
        """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(0,)", (done.returncode, done.stderr)


def test_where_nothing_is_found_another_target_is_simulated(tmp_path: Path) -> None:
    """Likewise: of data in which nothing is found."""
    onnx.save(found_none(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"][0] * k for k, feed in enumerate(feeds_for(found_none()))]))
    command = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "--backend", "qnn"]
    more = ["--placement", "all", "-o", str(tmp_path / "q.onnx")]
    done = subprocess.run([sys.executable, "-m", "onnxq", *command, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "SQNR" in done.stdout, (done.returncode, done.stderr)


@pytest.mark.parametrize("options", [Options(), Options(placement="all", exclude=("pool",))])
def test_an_average_pool_that_stays_float_between_convolutions_runs_in_float(options: Options, tmp_path: Path) -> None:
    """onnxruntime's integer kernel, which it would take unasked, is several times as slow."""
    model = build(
        """(float[1, 64, 32, 32] x) => (float[1, 64, 16, 16] y) {
            [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [pool] p = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (a)
            [last] y = Conv <pads = [1, 1, 1, 1]> (p, v)
        }""",
        w=normal(64, 64, 3, 3, scale=0.1),
        v=normal(64, 64, 3, 3, scale=0.1, seed=1),
    )
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds_for(model, 8), output=path, options=options)
    assert set(q.plan.quantized) == {"first", "last"}
    assert "pool" in {kept.node for kept in q.plan.kept_float}
    ops = optimized(path)
    assert ops.count("QLinearConv") == 2 and "AveragePool" in ops and "QLinearAveragePool" not in ops


_KEPT = {
    "Conv": "Conv <pads = [1, 1, 1, 1]> (a, w)",
    "ConvTranspose": "ConvTranspose <pads = [1, 1, 1, 1]> (a, w)",
    "Gemm": "Gemm (a, w)",
}


@pytest.mark.parametrize("between", ["", "Relu", "Clip", "LeakyRelu"])
@pytest.mark.parametrize("op", _KEPT)
def test_a_layer_kept_float_between_integers_is_not_rounded_when_it_is_loaded(op: str, between: str) -> None:
    """onnxruntime 1.32 rounds its weights with one scale for all: one large number cost 12 dB."""
    plane = op != "Gemm"
    shape, side, edge = ("1, 64, 12, 12", (3, 3), ["pads = [1, 1, 1, 1]"]) if plane else ("16, 64", (), [])
    layer = f"Conv <{edge[0]}>" if plane else "Gemm"
    function = {"": "Identity (k)", "Relu": "Relu (k)", "Clip": "Clip (k, low, high)", "LeakyRelu": "LeakyRelu (k)"}[
        between
    ]
    large = normal(64, 64, *side, scale=0.06, seed=1)
    large[(0,) * large.ndim] = 15.0
    model = build(
        f"""(float[{shape}] x) => (float[{shape}] y) {{
            f = {layer} (x, v)
            a = Relu (f)
            [kept] k = {_KEPT[op]}
            r = {function}
            y = {layer} (r, u)
        }}""",
        v=normal(64, 64, *side, scale=0.06),
        w=large,
        u=normal(64, 64, *side, scale=0.06, seed=2),
        low=np.float32(0),
        high=np.float32(6),
    )
    feeds = feeds_for(model)
    q = onnxq.quantize(model, feeds, options=Options(placement="all", exclude=("kept",), effort="fast"))
    assert "kept" not in q.plan.quantized
    assert q.verification is not None and q.verification.plain_sqnr is not None
    assert q.verification.plain_sqnr > 40, "the optimized model computes what is written"


def assert_computed_as_written(model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    """But for single steps of the last quantizer: what is rounded is 15 to 35 dB from it."""
    expected = run(model, feeds)[0]
    off = in_integers(model, feeds) - expected
    assert (off**2).sum() <= 1e-5 * (expected**2).sum()


@pytest.mark.parametrize(
    ("before", "behind", "excluded"),
    [
        ("Identity (f)", "Transpose <perm = [0, 1, 3, 2]> (k)", ("kept", "behind")),
        ("Transpose <perm = [0, 1, 3, 2]> (f)", "Identity (k)", ("before", "kept")),
        ("Transpose <perm = [0, 1, 3, 2]> (f)", "Slice (k, zero, some)", ("before", "kept", "behind")),
    ],
)
def test_nor_is_one_behind_data_movement_that_stays_float(before: str, behind: str, excluded: tuple[str, ...]) -> None:
    """onnxruntime moves the quantizers through it to the layer, and rounded the weights all the same."""
    large = normal(64, 64, 3, 3, scale=0.06, seed=1)
    large[0, 0, 0, 0] = 15.0
    model = build(
        f"""(float[1, 64, 12, 12] x) => (float[1, 64, h, w] y) {{
            f = Conv (x, v)
            [before] a = {before}
            [kept] k = Conv <pads = [1, 1, 1, 1]> (a, w)
            [behind] r = {behind}
            y = Conv (r, u)
        }}""",
        v=normal(64, 64, 1, 1, scale=0.06),
        w=large,
        u=normal(64, 64, 1, 1, scale=0.06, seed=2),
        zero=np.zeros(4, np.int64),
        some=np.array([1, 64, 8, 10]),
    )
    options = Options(placement="all", exclude=excluded, effort="fast")
    q = onnxq.quantize(model, feeds_for(model), options=options)
    assert len(q.plan.quantized) == 2
    assert_computed_as_written(to_proto(q.rendered()), feeds_for(model)[0])


def test_nor_is_the_table_of_a_fourier_transform_behind_data_movement() -> None:
    hidden = np.asarray(np.hanning(30), np.float32)
    hidden[15] = 60.0
    model = build(
        """(float[1, 16, 400] x) => (float[4, 8, 32] y) {
            t = Conv (x, v)
            [before] r = Reshape (t, rows)
            f = STFT (r, step, window)
            [behind] p = Reshape (f, lines)
            y = Conv (p, u)
        }""",
        v=normal(4, 16, 1),
        u=normal(8, 38, 1, seed=3),
        rows=np.array([4, 400]),
        lines=np.array([4, 38, 32]),
        step=np.array(10),
        window=hidden,
    )
    options = Options(placement="all", exclude=("before", "behind", "STFT"), effort="fast")
    q = onnxq.quantize(model, feeds_for(model), options=options)
    assert "STFT" not in {node.op_type for node in q.rendered().graph}
    assert_computed_as_written(to_proto(q.rendered()), feeds_for(model)[0])

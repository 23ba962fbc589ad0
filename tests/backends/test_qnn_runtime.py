"""QDQ models on the HTP emulator of onnxruntime-qnn: nothing falls back to the CPU, and the numbers agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import VerificationError
from onnxq.measuring.layerwise import compare_layers
from onnxq.ort.session import Session
from onnxq.runtimes.child import examine, missing
from onnxq.runtimes.qnn import RUNTIME
from tests.backends.test_qnn import block
from tests.backends.test_qnn_lacks import FORMS, model_with
from tests.contract import infer, sqnr
from tests.models import build, f32, feeds_for, images, normal
from tests.planning.test_planner import residual

WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(WHY is not None, reason=f"no onnxruntime-qnn: {WHY}")]

S = "float[1, 8, 12, 12]"


def gate() -> onnx.ModelProto:
    """Squeeze and excite, resizes into a concatenation, a transposed convolution, a pool, a padded border."""
    nearest = 'Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
    return build(
        f"""({S} x) => (float[1, 4, 26, 26] y) {{
            a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            h = HardSwish (a)
            m = GlobalAveragePool (h)
            g = Conv (m, w2)
            s = HardSigmoid (g)
            e = Mul (h, s)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (e)
            u = {nearest} (p, , twice)
            c = Concat <axis = 1> (u, e)
            t = ConvTranspose <strides = [2, 2]> (c, w3, b3)
            l = LeakyRelu (t)
            y = Pad (l, border)
        }}""",
        w1=normal(8, 8, 3, 3),
        b1=normal(8),
        w2=normal(8, 8, 1, 1, seed=1),
        w3=normal(16, 4, 2, 2, seed=2),
        b3=normal(4),
        twice=f32([1, 1, 2, 2]),
        border=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    )


@pytest.mark.parametrize(
    ("make", "bits", "least"),
    [
        (residual, 8, 35.0),
        (residual, 16, 50.0),
        (gate, 8, 35.0),
        (gate, 16, 50.0),
        (block, 8, 32.0),  # layer normalization and GELU are each two steps off on the HTP
        (block, 16, 50.0),
    ],
)
def test_the_htp_takes_all_and_agrees(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], bits: int, least: float
) -> None:
    model, path = make(), tmp_path / "q.onnx"
    feeds = feeds_for(model, samples=3)
    q = onnxq.quantize(model, feeds, backend="qnn", output=path, options=Options(act_bits=bits))
    seen = examine(RUNTIME, path, feeds)
    assert len(seen.integer) >= len(q.plan.quantized) - len(q.plan.absorbed)
    assert not seen.floating
    session = Session(q.qdq(), optimize=False)
    assert sqnr([session.run(f)["y"] for f in feeds], [o["y"] for o in seen.outputs]) >= least


@pytest.mark.parametrize(
    ("make", "bits", "most"), [(residual, 8, 1), (residual, 16, 4), (gate, 8, 1), (gate, 16, 4), (block, 8, 1)]
)
def test_every_layer_agrees_to_a_step(make: Callable[[], onnx.ModelProto], bits: int, most: int) -> None:
    """Also shows a tensor whose grid the HTP sets by itself, which no output of a whole model does."""
    feeds = feeds_for(make(), samples=2)
    q = onnxq.quantize(make(), feeds, backend="qnn", options=Options(act_bits=bits))
    layers = compare_layers(q.qdq(), RUNTIME, feeds, timeout=120)
    assert len(layers) >= 5
    assert max(layer.steps for layer in layers) <= most, layers


def test_what_the_htp_lacks_is_an_error_unless_the_cpu_may_help(tmp_path: Path) -> None:
    model = build("(float[1, 16] x) => (float[1, 16] y) { e = Erf (x)\n y = Relu (e) }")
    path, feeds = tmp_path / "q.onnx", images(1, 16, samples=2)
    onnxq.quantize(model, feeds, backend="qnn", output=path)
    with pytest.raises(VerificationError, match="the HTP does not take Erf"):
        examine(RUNTIME, path, feeds)
    assert len(examine(RUNTIME, path, feeds, fallback=True).outputs) == 2


@pytest.mark.parametrize("form", FORMS)
def test_what_check_says_that_the_htp_lacks(form: str, tmp_path: Path) -> None:
    """In float, among operators that it has."""
    model, path = model_with(form), tmp_path / "m.onnx"
    onnx.save(model, path)
    with pytest.raises(VerificationError, match="does not take"):
        examine(RUNTIME, path, feeds_for(model, samples=1))


def test_a_cast_to_integers_and_back(tmp_path: Path) -> None:
    """So that check warns of it, unless what is between is used, or a Floor is in front."""
    model, path = (
        build(
            """(float[1, 4] x) => (float[1, 4] y, float[1, 4] z, float[1, 4] u) {
            i = Cast <to = 6> (x)
            y = Cast <to = 1> (i)
            f = Floor (x)
            j = Cast <to = 6> (f)
            z = Cast <to = 1> (j)
            k = Add (i, two)
            u = Cast <to = 1> (k)
        }""",
            two=np.array([2], np.int32),
        ),
        tmp_path / "m.onnx",
    )
    onnx.save(model, path)
    (seen,) = examine(RUNTIME, path, [{"x": f32([[0.25, 0.75, 1.25, 1.75]])}]).outputs
    assert abs(seen["y"] - f32([[0.25, 0.75, 1.25, 1.75]])).max() < 0.01  # it should be 0, 0, 1, 1
    assert abs(seen["z"] - f32([[0, 0, 1, 1]])).max() < 0.01
    assert abs(seen["u"] - f32([[2, 2, 3, 3]])).max() < 0.01


def test_an_stft_is_computed_in_float(tmp_path: Path) -> None:
    model = build(
        "(float[1, 256, 1] x) => (float[1, 31, 9, 2] y) { a = Relu (x) y = STFT (a, step, window) }",
        step=np.array(8),
        window=np.hanning(16).astype(np.float32),
    )
    feeds = feeds_for(model, samples=1)
    onnx.save(model, tmp_path / "m.onnx")
    seen = examine(RUNTIME, tmp_path / "m.onnx", feeds)
    assert any("Stft" in entry for entry in seen.floating)
    assert sqnr(infer(model, feeds, optimize=False)["y"], [seen.outputs[0]["y"]]) > 50
    assert not [f for f in onnxq.check(model, backend="qnn") if "the HTP has no" in f.what]


def test_a_float_output_is_why_units_are_complete(tmp_path: Path) -> None:
    """A unit without a quantizer behind it is what the table must never make: the HTP computes it wrongly."""
    model = build("(float[1, 8, 6, 6] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 8, 1, 1))
    feeds, path = images(1, 8, 6, 6, samples=2), tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, backend="qnn", output=path)
    seen = examine(RUNTIME, path, feeds)
    worst = max(
        float(np.abs(o["y"] - Session(q.qdq(), optimize=False).run(f)["y"]).max())
        for f, o in zip(feeds, seen.outputs, strict=True)
    )
    assert worst <= 1.01 * float(q.qparams["y"].scale)


def test_free_sizes_are_those_of_the_sample(tmp_path: Path) -> None:
    model = build("(float[N, 8, 6, 6] x) => (float[N, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 8, 1, 1))
    path, feeds = tmp_path / "q.onnx", images(2, 8, 6, 6, samples=2)
    onnxq.quantize(model, feeds, backend="qnn", output=path)
    assert examine(RUNTIME, path, feeds).outputs[0]["y"].shape == (2, 4, 6, 6)


def test_a_context_is_written_and_runs(tmp_path: Path) -> None:
    path, feeds = tmp_path / "q.onnx", images(1, 16, 8, 8, samples=2)
    q = onnxq.quantize(residual(), feeds, backend="qnn", output=path, options=Options(format="context"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["q.onnx", "q_ctx.onnx", "q_ctx_qnn.bin"]
    assert [n.op_type for n in onnx.load(tmp_path / "q_ctx.onnx").graph.node] == ["EPContext"]
    compiled, plain = (examine(RUNTIME, tmp_path / name, feeds, arch="", soc="") for name in ("q_ctx.onnx", "q.onnx"))
    for a, b in zip(compiled.outputs, plain.outputs, strict=True):
        np.testing.assert_array_equal(a["y"], b["y"])
    compiled_bytes = sum((tmp_path / name).stat().st_size for name in ("q_ctx.onnx", "q_ctx_qnn.bin"))
    assert q.verification is not None and q.verification.quantized_bytes == compiled_bytes


def test_a_dlc_is_written(tmp_path: Path) -> None:
    path, feeds = tmp_path / "q.onnx", images(1, 16, 8, 8, samples=2)
    onnxq.quantize(residual(), feeds, backend="qnn", output=path, options=Options(format="dlc"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["q.dlc", "q.onnx"]
    assert (tmp_path / "q.dlc").read_bytes()[:2] == b"PK"  # a zip


def test_a_node_that_stays_float_runs_among_integers(tmp_path: Path) -> None:
    model = build(
        f"({S} x) => ({S} y) {{ a = Conv (x, w)\n [odd] b = Max (a, v)\n y = Conv (b, w) }}",
        w=normal(8, 8, 1, 1),
        v=normal(1, 8, 1, 1, seed=1, scale=0.3),
    )
    path, feeds = tmp_path / "q.onnx", images(1, 8, 12, 12, samples=2)
    q = onnxq.quantize(model, feeds, backend="qnn", output=path, options=Options(exclude=("odd",)))
    assert len(q.hints) == 1 and q.hints[0].startswith("odd stays float: ") and "soc_model" in q.hints[0]
    seen = examine(RUNTIME, path, feeds)
    assert any(line.startswith("ElementWiseMax") for line in seen.floating)
    want = [Session(q.qdq(), optimize=False).run(f)["y"] for f in feeds]
    assert sqnr(want, [o["y"] for o in seen.outputs]) > 30


def test_short_time_spectra_are_computed_in_float_on_an_htp_69_and_not_at_all_on_a_68(tmp_path: Path) -> None:
    model = build(
        """(float[1, 256] x) => (float[1, 13, 33, 2] y) {
            h = Mul (x, half)
            s = STFT (h, step, window)
            y = Mul (s, half)
        }""",
        half=f32([0.5]),
        step=np.array(16),
        window=np.hanning(64).astype(np.float32),
    )
    feeds, path = images(1, 256, samples=2), tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, backend="qnn", output=path)
    for arch, soc in (("69", "36"), ("73", "43")):
        seen = examine(RUNTIME, path, feeds, arch=arch, soc=soc)
        assert any(line.startswith("Stft") for line in seen.floating)
        want = [Session(q.qdq(), optimize=False).run(feed)["y"] for feed in feeds]
        assert sqnr(want, [outputs["y"] for outputs in seen.outputs]) > 30
    with pytest.raises(VerificationError, match="QNN cannot make its QNN_Stft"):
        examine(RUNTIME, path, feeds, arch="68", soc="30")


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_layers_run_in_float_on_an_htp_69_and_not_at_all_on_a_68(tmp_path: Path, op: str, gates: int) -> None:
    model = build(
        f"""(float[6, 1, 8] x) => (float[6, 1, 8] y) {{
            [layer] s = {op} <hidden_size = 8> (x, w, r)
            y = Squeeze (s, one)
        }}""",
        w=normal(1, 8 * gates, 8),
        r=normal(1, 8 * gates, 8, seed=1),
        one=np.array([1]),
    )
    feeds, path = images(6, 1, 8, samples=2), tmp_path / "q.onnx"
    onnxq.quantize(model, feeds, backend="qnn", output=path)
    assert examine(RUNTIME, path, feeds, arch="69", soc="36").floating
    with pytest.raises(VerificationError) as caught:
        examine(RUNTIME, path, feeds, arch="68", soc="30")
    said = str(caught.value)
    assert re.search(f"QNN cannot make its QNN_{op}", said, re.IGNORECASE) and "finalize" in said
    assert "--exclude NODE" in said and "Traceback" not in said and ".py" not in said


def test_what_the_htp_does_not_take_is_named(tmp_path: Path) -> None:
    model = build(
        "(float[1, 2, 2, 5, 16] x) => (float[1, 2, 2, 5, 12] y) { [flat] m = MatMul (x, w)\n [curve] y = Erf (m) }",
        w=normal(16, 12),
    )
    feeds, path = images(1, 2, 2, 5, 16, samples=1), tmp_path / "q.onnx"
    onnxq.quantize(model, feeds, backend="qnn", output=path)
    with pytest.raises(VerificationError, match=r"takes? the artifact: the HTP does not take .*Erf 'curve'"):
        examine(RUNTIME, path, feeds)


@pytest.mark.parametrize(("signed", "zero"), [(True, -9), (False, 110)])
def test_a_weight_with_a_zero_point_in_a_model_to_deploy(signed: bool, zero: int, tmp_path: Path) -> None:
    kind = np.int8 if signed else np.uint8
    low = -128 if signed else 0
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y) {
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            v = DequantizeLinear (w, sw, zw)
            c = Conv <pads = [1, 1, 1, 1]> (xd, v)
            cq = QuantizeLinear (c, so, z)  y = DequantizeLinear (cq, so, z)
        }""",
        w=np.random.default_rng(0).integers(low, low + 256, (8, 4, 3, 3)).astype(kind),
        s=f32(0.03),
        z=np.uint8(120),
        sw=f32(0.004),
        zw=kind(zero),
        so=f32(0.05),
    )
    path = tmp_path / "q.onnx"
    onnxq.deploy(model, backend="qnn", output=path)
    feeds = images(1, 4, 8, 8)
    seen = examine(RUNTIME, path, feeds)
    assert any("Conv2d" in op for op in seen.integer) and not seen.floating
    for feed, outputs in zip(feeds, seen.outputs, strict=True):
        expected = Session(model.SerializeToString(), optimize=False).run(feed)["y"]
        np.testing.assert_allclose(outputs["y"], expected, rtol=0, atol=1.01 * 0.05)

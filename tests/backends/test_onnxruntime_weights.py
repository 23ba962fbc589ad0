"""When stored integers are unpacked in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.cli import main
from onnxq.ort.session import Session
from onnxq.qparams import fake_quantize
from onnxq.show import ModelView
from tests import running
from tests.backends.test_onnxruntime import optimized
from tests.contract import infer
from tests.installed import needs
from tests.models import build, constants_of, embedded_attention, images, normal, verified_sqnr
from tests.planning.test_planner import table


def test_rows_of_a_table_are_dequantized_behind_the_gather(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.integers(0, 1000, (1, 8))} for _ in range(4)]
    q = onnxq.quantize(table(), feeds, output=path)
    assert q.plan.stored["Gather"] == "Gather"
    model = onnx.load(path)
    gather = next(n for n in model.graph.node if n.op_type == "Gather")
    assert {t.name: t.data_type for t in model.graph.initializer}[gather.input[0]] == onnx.TensorProto.INT8
    assert verified_sqnr(q) > 35


def test_rows_of_a_table_are_unpacked_without_quantizers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A DequantizeLinear with a scale for each column is slow, and onnxruntime puts a pair behind the Transpose too."""
    path = tmp_path / "q.onnx"
    model = build(
        """(int64[1, 6] i) => (float[6, 1, 32] y) {
            r = Gather (t, i)
            s = Transpose <perm = [1, 0, 2]> (r)
            y = Neg (s)
        }""",
        t=normal(1000, 32) * np.linspace(0.1, 2, 32, dtype=np.float32),
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", i=np.stack([np.arange(6)[None] * k for k in range(4)]))
    assert main(["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert "stored as integers, unpacked row by row as they are read: 1 Gather" in out
    assert optimized(path) == ["Gather", "Cast", "Mul", "Transpose", "Neg"]
    made = onnx.load(path).graph
    assert {t.name for t in made.initializer} <= {name for node in made.node for name in node.input}, "nothing unread"
    assert onnxq.compare(tmp_path / "m.onnx", path, tmp_path / "d.npz").outputs["y"].sqnr > 35


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--backend", "onnxruntime", "--format", "fake-quantize"],
            "rounded, in float in this format: 1 Gather, 1 MatMul",
        ),
        (["--backend", "academic_nlp"], "rounded, in float in this format: 1 Gather"),
        (["--backend", "academic_nlp", "--format", "qdq"], "stored as integers: 1 Gather"),
    ],
)
def test_when_another_runtime_unpacks_weights_is_not_said(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(table(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.arange(80).reshape(10, 8))
    given = [str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), *flags]
    assert main(["quantize", *given, "-o", str(tmp_path / "q.onnx")]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split(None, 1)[1] for line in lines if line.startswith("weights ")] == [said]


def test_matrices_of_experts_have_one_scale(tmp_path: Path) -> None:
    """A DequantizeLinear of one scale is quick, so that the result is no slower for its small file."""
    model = build(
        """(float[N, 1, 48] x, int64[N] e) => (float[N, 1, 64] y) {
            w = Gather (t, e)
            y = MatMul (x, w)
        }""",
        t=normal(8, 48, 64),
    )
    feeds = [{"x": normal(3, 1, 48, seed=k), "e": np.array([k, (3 * k) % 8, 7 - k])} for k in range(4)]
    q = onnxq.quantize(model, feeds, output=tmp_path / "q.onnx")
    assert q.plan.stored == {"Gather": "Gather"}
    made = onnx.load(tmp_path / "q.onnx").graph
    held = {t.name: t for t in made.initializer}
    assert [node.op_type for node in made.node] == ["Gather", "DequantizeLinear", "MatMul"]
    assert held[made.node[0].input[0]].data_type == onnx.TensorProto.INT8
    assert not held[made.node[1].input[1]].dims
    assert verified_sqnr(q) > 35


@pytest.mark.parametrize(("axis", "zero"), [(0, 0), (0, 5), (1, 0)], ids=["rows", "rows with zero points", "columns"])
def test_what_is_picked_of_a_table_is_unpacked_with_its_own_numbers(axis: int, zero: int) -> None:
    """A model given, with a scale and a zero point for each column of its table."""
    model = build(
        f"""(int64[2, 3] i) => (float[a, b, c] y) {{
            t = DequantizeLinear <axis = 1> (k, s, z)
            g = Gather <axis = {axis}> (t, i)
            y = Neg (g)
        }}""",
        k=np.arange(-32, 32, dtype=np.int8).reshape(8, 8),
        s=np.linspace(0.01, 0.08, 8, dtype=np.float32),
        z=np.arange(8, dtype=np.int8) * zero,
    )
    feeds = [{"i": np.array([[0, 7, 5], [2, 2, 1]])}]
    made = onnxq.read(model).rendered()
    want, got = (infer(m, feeds, optimize=False)["y"][0] for m in (model, ir.to_proto(made)))
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_weights_unpacked_at_load_have_their_scales_along_their_axis(axis: int) -> None:
    model = build(
        f"""(float[2, 8] x) => (float[2, 8] y) {{
            w = DequantizeLinear <axis = {axis}> (k, s, z)
            y = MatMul (x, w)
        }}""",
        k=np.arange(-32, 32, dtype=np.int8).reshape(8, 8),
        s=np.linspace(0.01, 0.08, 8, dtype=np.float32),
        z=np.zeros(8, np.int8),
    )
    made = onnxq.read(model).rendered()
    assert [node.op_type for node in made.graph] == ["Cast", "Mul", "MatMul"]
    feeds = images(2, 8)
    want, got = (infer(m, feeds, optimize=False)["y"] for m in (model, ir.to_proto(made)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@needs("onnxruntime", "1.23.2")
def test_weights_of_onnxruntimes_own_operators_are_stored(tmp_path: Path) -> None:
    """Tables of embeddings, a packed weight, experts: unpacked once, at load, by what is folded away."""
    model = build(
        """(int32[N, 6] ids) => (float[N, 6, 32] y) {
            [embed] e, m = com.microsoft.EmbedLayerNormalization (ids, "", words, places, "", gamma, beta)
            [attend] a = com.microsoft.Attention <num_heads = 4> (e, qkv, qkv_bias, ends)
            rows = Reshape (a, of_rows)
            route = Slice (rows, zero, four, last)
            [experts] f = com.microsoft.MoE <k = 2, activation_type = "gelu"> (rows, route, fc1, fc1_bias, fc2)
            y = Reshape (f, of_tokens)
        }""",
        domains={"com.microsoft": 1},
        **embedded_attention(),
        ends=np.array([6, 0], np.int32),  # with which an Attention stays one operator
        of_rows=np.array([-1, 32]),
        of_tokens=np.array([-1, 6, 32]),
        zero=np.array([0]),
        four=np.array([4]),
        last=np.array([-1]),
        fc1=normal(4, 64, 32, seed=4),
        fc1_bias=normal(4, 64, seed=5),
        fc2=normal(4, 32, 64, seed=6),
    )
    feeds = [{"ids": np.arange(k, k + 6, dtype=np.int32)[None]} for k in range(8)]
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, output=path)
    assert q.plan.stored == {"embed": "EmbedLayerNormalization", "attend": "Attention", "experts": "MoE"}
    large = [t for t in onnx.load(path).graph.initializer if np.prod(t.dims) >= 1024]
    assert len(large) == 5 and {t.data_type for t in large} == {onnx.TensorProto.INT8}
    assert not {"Cast", "Mul", "DequantizeLinear"} & set(optimized(path))
    assert verified_sqnr(q) > 30


def _one_sided() -> onnx.ModelProto:
    return build(
        """(float[N, 16, 12, 12] x) => (float[N, 10] y) {
            [first] a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            [second] c = Conv <group = 16> (a, d)
            [flat] f = Flatten (c)
            [last] y = Gemm <transB = 1> (f, g)
        }""",
        w=normal(16, 16, 3, 3) + np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1, 1, 1),
        b=normal(16),
        d=normal(16, 1, 3, 3, seed=1) - 1,
        g=normal(10, 1600, seed=2) + 0.25,
    )


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_zero_points_of_few_bits_leave_kernels_in_integers(bits: int, form: str, tmp_path: Path) -> None:
    """onnxruntime takes them from the weights once, when it loads the model, so that its kernels see none."""
    path = tmp_path / "q.onnx"
    options = onnxq.Options(weight_bits=bits, weight_symmetric=False, placement="all", format=form, min_sqnr=0)
    q = onnxq.quantize(_one_sided(), images(2, 16, 12, 12), output=path, options=options)
    assert (q.qparams["w"].zero_point != 1 << (bits - 1)).any()
    held = {t.name: t for t in onnx.load(path).graph.initializer}
    assert held["w_quantized"].data_type == onnx.TensorProto.UINT4
    seen = running.optimized(path, tmp_path)
    ops, held = [node.op_type for node in seen.graph.node], constants_of(seen)
    layers = [node for node in seen.graph.node if node.op_type == "QLinearConv"]
    assert ops.count("QLinearConv") == 2 and ops.count("QGemm") == 1
    for node in layers:
        assert held[node.input[3]].dtype == np.int8 and not held[node.input[5]].any()
    feeds = images(2, 16, 12, 12)[:1]
    plain, fast = (infer(onnx.load(path), feeds, optimize=optimize)["y"][0] for optimize in (False, True))
    assert np.abs(plain - fast).max() <= np.abs(plain).max() / 100


def test_zero_points_of_a_layer_in_float(tmp_path: Path) -> None:
    """Unpacked by a Cast, a Sub and a Mul, which onnxruntime computes when it loads the model."""
    weight = normal(64, 32) + np.linspace(-1, 1, 32, dtype=np.float32)
    model = build("(float[1, 64] x) => (float[1, 32] y) { [last] y = MatMul (x, w) }", w=weight)
    options = onnxq.Options(weight_bits=4, weight_symmetric=False)
    path, feeds = tmp_path / "q.onnx", images(1, 64)
    q = onnxq.quantize(model, feeds, output=path, options=options)
    assert q.plan.stored == {"last": "MatMul"}
    assert [n.op_type for n in onnx.load(path).graph.node] == ["Cast", "Sub", "Mul", "MatMul"]
    assert optimized(path) == ["MatMul"]
    expected = feeds[0]["x"] @ fake_quantize(weight, q.qparams["w"])
    assert np.abs(Session(path).run(feeds[0])["y"] - expected).max() < 1e-4
    back = onnxq.read(path)
    assert np.array_equal(back.qparams["w"].zero_point, q.qparams["w"].zero_point)


def test_a_product_of_stored_weights_and_its_bias_are_one_gemm(tmp_path: Path) -> None:
    """As onnxruntime makes of the float model: a MatMul and an Add are slower by up to a tenth."""
    model = build(
        "(float[1, 6, 64] x) => (float[1, 6, 32] y) { [last] h = MatMul (x, w)\n y = Add (h, b) }",
        w=normal(64, 32, scale=0.1),
        b=normal(32, seed=1),
    )
    path, feeds = tmp_path / "q.onnx", images(1, 6, 64)
    q = onnxq.quantize(model, feeds, output=path)
    assert q.plan.stored == {"last": "MatMul"}
    ops = optimized(path)
    assert "Gemm" in ops and not {"MatMul", "Add"} & set(ops)
    plain, fast = (infer(onnx.load(path), feeds, optimize=optimize)["y"] for optimize in (False, True))
    assert np.abs(np.stack(plain) - np.stack(fast)).max() < 1e-5


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_zero_points_of_few_bits_are_read_back(form: str, tmp_path: Path) -> None:
    """By deploy, which gives the same numbers, and by show."""
    path, again = tmp_path / "q.onnx", tmp_path / "again.onnx"
    options = onnxq.Options(weight_bits=4, weight_symmetric=False, placement="all", format=form)
    feeds = images(2, 16, 12, 12)
    q = onnxq.quantize(_one_sided(), feeds, output=path, options=options)
    given = onnxq.deploy(path, output=again)
    for name in ("w", "d", "g"):
        assert np.array_equal(given.qparams[name].scale, q.qparams[name].scale)
        points = given.qparams[name].zero_point - given.qparams[name].spec.qmin
        assert np.array_equal(points, q.qparams[name].zero_point)
    assert np.array_equal(Session(path).run(feeds[0])["y"], Session(again).run(feeds[0])["y"])
    view = onnxq.show(path)
    assert isinstance(view, ModelView)
    shown = {t.tensor: t for t in view.quantized if t.role == "weight"}
    points = q.qparams["w"].zero_point
    assert shown["w_quantized"].dtype == "uint4" and shown["w_quantized"].scales == 16
    assert shown["w_quantized"].zero_point == (points.min(), points.max())


def test_zero_points_of_wider_weights_are_refused() -> None:
    """A kernel of onnxruntime with a zero point for each channel is many times slower than in float."""
    with pytest.raises(onnxq.OptionError, match="2, 3, 4 bits only"):
        onnxq.quantize(_one_sided(), images(2, 16, 12, 12), options=onnxq.Options(weight_symmetric=False))
    options = onnxq.Options(weight_bits=4, weight_symmetric=False, override="first=weight_bits=8", placement="all")
    q = onnxq.quantize(_one_sided(), images(2, 16, 12, 12), options=options)
    assert q.verification is not None and q.qparams["w"].spec.symmetric and not q.qparams["d"].spec.symmetric
    assert any("the weights of 1 Conv have no zero points" in warning for warning in q.verification.warnings)


@pytest.mark.parametrize(("picked", "late"), [(3, True), (16, False)], ids=["few", "as many as there are"])
def test_tables_read_whole_are_unpacked_when_the_model_loads(
    picked: int, late: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of four experts, matrices for more tokens than there are: each of them would be unpacked several times a run."""
    text = f"""(float[{picked}, 1, 64] x, int64[{picked}] expert) => (float[{picked}, 1, 64] y) {{
        w = Gather (t, expert)
        p = MatMul (x, w)
        y = Neg (p)
    }}"""
    onnx.save(build(text, t=normal(4, 64, 64)), tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    (tmp_path / "d").mkdir()
    for k in range(4):
        x = rng.standard_normal((picked, 1, 64)).astype(np.float32)
        np.savez(tmp_path / "d" / f"{k}.npz", x=x, expert=rng.integers(0, 4, picked))
    path = tmp_path / "q.onnx"
    assert main(["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d"), "-o", str(path)]) == 0
    said = "row by row as they are read: 1 Gather" if late else "unpacked to float at load: 1 Gather"
    assert said in capsys.readouterr().out
    made = onnx.load(path)
    gather = next(node for node in made.graph.node if node.op_type == "Gather")
    types = {t.name: t.data_type for t in made.graph.initializer}
    assert (types.get(gather.input[0]) == onnx.TensorProto.INT8) == late
    assert path.stat().st_size < 0.4 * (tmp_path / "m.onnx").stat().st_size
    assert ("DequantizeLinear" in optimized(path)) == late, "constants are unpacked by the time it runs"

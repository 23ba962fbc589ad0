"""When stored integers are unpacked in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.cli import main
from tests.backends.test_onnxruntime import optimized
from tests.contract import infer
from tests.models import build, embedded_attention, images, normal
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
    assert q.verification is not None and q.verification.worst is not None
    assert q.verification.worst[1].sqnr > 35


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
    assert q.verification is not None and q.verification.worst is not None
    assert q.verification.worst[1].sqnr > 35


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
    assert q.verification is not None and q.verification.worst is not None
    assert q.verification.worst[1].sqnr > 30

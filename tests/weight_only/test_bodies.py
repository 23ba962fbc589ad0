"""Weights inside branches and bodies, and weights that several read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from tests.installed import needs
from tests.models import build, normal
from tests.running import optimized
from tests.weight_only.layers import LOSS, run, save


def test_bodies_and_shared_weights(tmp_path: Path) -> None:
    """A weight read by a main graph and by a branch, and as a table as well."""
    proto = build(
        """(float[N, 48] x, int64[N] i, bool c) => (float[N, 48] y) {
            a = MatMul (x, w)
            e = Gather (w, i)
            b = If (c) <
                then_branch = g1 () => (float[N, 48] t) { t = MatMul (a, w) },
                else_branch = g2 () => (float[N, 48] f) { n = Neg (a) \n f = MatMul (n, v) }
            >
            y = Add (b, e)
        }""",
        w=normal(48, 48),
        v=normal(48, 48, seed=1),
    )
    source = save(proto, tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    feeds: list[dict[str, np.ndarray]] = [
        {"x": rng.standard_normal((5, 48)).astype(np.float32), "i": rng.integers(0, 48, 5), "c": np.array(k % 2 == 0)}
        for k in range(4)
    ]
    for format in ("qdq", "matmulnbits"):
        for method in ("rtn", "gptq"):
            result = quantize_weights(source, tmp_path / "q.onnx", bits=8, format=format, method=method, data=feeds)
            assert len(result.quantized) == 4
            for feed in feeds:
                want, got = run(source, feed)["y"], run(tmp_path / "q.onnx", feed)["y"]
                assert sqnr(want, got) > LOSS[8]
    assert not any("no data reaches" in note for note in result.notes)
    never = [feed | {"c": np.array(True)} for feed in feeds]
    result = quantize_weights(source, tmp_path / "q.onnx", bits=8, method="gptq", data=never)
    assert "gptq: 1 matrices rounded to nearest, since no data reaches them, or zeros alone" in result.notes


@pytest.mark.parametrize("external", [False, True])
def test_gptq_learns_inside_branches_and_bodies(external: bool, tmp_path: Path) -> None:
    """A decoder that export tools merged is one If; one weight here is read in both branches, another one in a loop."""
    proto = build(
        """(float[N, 64] x, bool c) => (float[N, 64] y) {
            b = If (c) <
                then_branch = g1 () => (float[N, 64] t) { t = MatMul (x, w) },
                else_branch = g2 () => (float[N, 64] f) { n = Neg (x) \n f = MatMul (n, w) }
            >
            y = Loop (trips, "", b) <
                body = g3 (int64 i, bool go, float[N, 64] s) => (bool on, float[N, 64] z) {
                    on = Identity (go) \n m = MatMul (s, v) \n z = Tanh (m)
                }
            >
        }""",
        w=normal(64, 64),
        v=normal(64, 64, seed=1),
        trips=np.array(3),
    )
    source = save(proto, tmp_path / "m.onnx", external=external)
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((6, 64))
    feeds: list[dict[str, np.ndarray]] = [
        {"x": (rng.standard_normal((64 + k, 6)) @ mixing).astype(np.float32), "c": np.array(k % 4 < 2)}
        for k in range(16)
    ]
    result = quantize_weights(source, tmp_path / "q.onnx", method="gptq", data=feeds)
    (note,) = [note for note in result.notes if note.startswith("gptq")]
    assert note.startswith("gptq: 2 matrices, output error on held-out samples")
    assert float(note.split("samples ")[1].split()[0]) < 0.5
    plain = quantize_weights(source, tmp_path / "p.onnx", data=feeds)
    assert plain.verification.worst is not None and result.verification.worst is not None
    assert result.verification.worst[1].sqnr > plain.verification.worst[1].sqnr + 2


@needs("onnxruntime", "1.26")
@pytest.mark.parametrize("external", [False, True])
def test_branches_read_integers_of_their_own(external: bool, tmp_path: Path) -> None:
    """onnxruntime fuses no DequantizeLinear with a MatMul of another graph, and such a model is slower than float."""
    proto = build(
        """(float[N, 48] x, bool c) => (float[N, 48] y) {
            y = If (c) <
                then_branch = g1 () => (float[N, 48] t) { t = MatMul (x, w) },
                else_branch = g2 () => (float[N, 48] f) { n = Neg (x) \n f = MatMul (n, w) }
            >
        }""",
        w=normal(48, 48),
    )
    source = save(proto, tmp_path / "m.onnx", external=external)
    result = quantize_weights(source, tmp_path / "q.onnx", bits=8)
    assert any("once for each graph" in note for note in result.notes) is not external
    (choice,) = optimized(tmp_path / "q.onnx", tmp_path).graph.node
    for branch in choice.attribute:
        assert {"MatMulNBits"} == {node.op_type for node in branch.g.node} - {"Neg"}
    if external:  # the same bytes for both
        written = onnx.load(tmp_path / "q.onnx", load_external_data=False).graph.node[0]
        held = [{t.dims[0]: t for t in b.g.initializer if t.external_data}[48] for b in written.attribute]
        offsets = [{entry.key: entry.value for entry in t.external_data}["offset"] for t in held]
        assert offsets[0] == offsets[1]


@needs("onnxruntime", "1.28")
@pytest.mark.parametrize("format", ["qdq", "matmulnbits"])
@pytest.mark.parametrize("external", [False, True])
def test_layers_that_share_a_weight_multiply_with_it_as_packed(format: str, external: bool, tmp_path: Path) -> None:
    """onnxruntime fuses no DequantizeLinear whose integers others read: in a data file each layer has its own."""
    proto = build(
        """(float[N, 64] x) => (float[N, 64] y) {
            a = MatMul (x, w)
            b = Tanh (a)
            c = MatMul (b, w)
            d = Tanh (c)
            y = MatMul (d, w)
        }""",
        w=normal(64, 64),
    )
    source = save(proto, tmp_path / "m.onnx", external=external)
    result = quantize_weights(source, tmp_path / "q.onnx", bits=4, format=format)
    warned = any("several nodes multiply with is unpacked at each run" in note for note in result.notes)
    nodes = optimized(tmp_path / "q.onnx", tmp_path).graph.node
    packed = sum(node.op_type == "MatMulNBits" for node in nodes)
    assert (packed == 3) is not warned
    assert warned is (format == "qdq" and not external)
    if external and format == "qdq":  # the same bytes for all
        held = [
            t for t in onnx.load(tmp_path / "q.onnx", load_external_data=False).graph.initializer if len(t.dims) == 2
        ]
        offsets = [{entry.key: entry.value for entry in t.external_data}["offset"] for t in held if t.external_data]
        assert len(held) == 6
        assert len(set(offsets)) == len(offsets) // 3

"""Models of opset 23, whose transformers are single operators: targets that have them not get what they consist of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from tests.contract import infer, sqnr
from tests.installed import needs
from tests.models import build, normal

pytestmark = [needs("onnx", "1.19"), needs("onnxruntime", "1.32")]


def block() -> onnx.ModelProto:
    """Normalization, projections, rotation and causal attention of a decoder."""
    text = """(float[N, 12, 32] x, int64[N, 12] at) => (float[N, 12, 32] y) {
        [norm] n = RMSNormalization (x, g)
        q = MatMul (n, wq)
        k = MatMul (n, wk)
        v = MatMul (n, wv)
        qr = RotaryEmbedding <num_heads = 4> (q, cos, sin, at)
        kr = RotaryEmbedding <num_heads = 2> (k, cos, sin, at)
        [scores] a = Attention <q_num_heads = 4, kv_num_heads = 2, is_causal = 1> (qr, kr, v)
        o = MatMul (a, wo)
        y = Add (x, o) }"""
    weights = {
        name: normal(32, width, seed=n) for n, (name, width) in enumerate(zip("qkvo", (32, 16, 16, 32), strict=True))
    }
    angles = np.arange(16)[:, None] / 100 ** (np.arange(4) / 4)
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    constants = {f"w{name}": weight for name, weight in weights.items()}
    return build(text, opset=23, ir_version=11, domains=None, g=np.ones(32, np.float32), **tables, **constants)


def samples() -> list[dict[str, np.ndarray]]:
    return [{"x": normal(2, 12, 32, seed=n), "at": np.stack([np.arange(12)] * 2)} for n in range(8)]


@pytest.mark.parametrize("backend", ["qnn", "snpe", "rknn", "tensorrt", "tvm", "vitis"])
def test_products_of_attention_run_in_integers_where_the_target_has_no_attention(backend: str, tmp_path: Path) -> None:
    result = onnxq.quantize(block(), samples(), backend=backend, output=tmp_path)
    written = onnx.load(result.files[0])
    here = Counter(node.op_type for node in written.graph.node)
    assert not {"Attention", "RMSNormalization", "RotaryEmbedding"} & set(here)
    assert here["MatMul"] == 6
    if backend != "rknn":  # whose builder hangs on products of three axes
        assert Counter(result.plan.quantized.values())["MatMul"] == 6
    assert result.verification is not None and result.verification.outputs["y"].sqnr > 15


def test_onnxruntime_and_openvino_keep_the_operators_and_share_statistics_with_the_others(tmp_path: Path) -> None:
    statistics = onnxq.calibrate(block(), samples(), output=tmp_path / "s.npz")
    for backend in ("onnxruntime", "openvino"):
        result = onnxq.quantize(block(), backend=backend, statistics=tmp_path / "s.npz", output=tmp_path)
        here = Counter(node.op_type for node in onnx.load(result.files[0]).graph.node)
        assert here["Attention"] == here["RMSNormalization"] == 1 and here["RotaryEmbedding"] == 2
    alone = onnxq.quantize(block(), samples(), backend="qnn", output=tmp_path / "alone")
    shared = onnxq.quantize(block(), backend="qnn", statistics=statistics, output=tmp_path / "shared")
    assert alone.files[0].read_bytes() == shared.files[0].read_bytes()


def test_the_nodes_written_out_are_named_by_the_operator() -> None:
    plan = onnxq.plan(block(), backend="qnn", options=Options(exclude=("scores", "norm")))
    assert Counter(plan.quantized.values())["MatMul"] == 4
    kept = {kept.op for kept in plan.kept_float}
    assert {"Softmax", "MatMul", "Sqrt", "ReduceMean"} <= kept


def test_a_model_with_quantizers_is_deployed_with_the_operator_written_out(tmp_path: Path) -> None:
    options = Options(placement="all", symmetric=True)
    given = onnxq.quantize(block(), samples(), output=tmp_path / "q.onnx", options=options)
    deployed = onnxq.deploy(tmp_path / "q.onnx", backend="tensorrt", output=tmp_path / "t.onnx")
    written = onnx.load(deployed.files[0])
    assert "Attention" not in {node.op_type for node in written.graph.node}
    before, after = (
        infer(onnx.load(path), samples(), optimize=False)["y"] for path in (given.files[0], deployed.files[0])
    )
    assert sqnr(before, after) > 25


def test_it_is_fine_tuned_with_the_operators_left_as_they_are(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    q = onnxq.quantize(block(), samples(), output=tmp_path / "q.onnx", options=Options(placement="all", weight_bits=4))
    module = q.torch()
    feeds = samples()[:1]
    given = {name: torch.from_numpy(array) for name, array in feeds[0].items()}
    found = module(**given).detach().numpy()
    expected = infer(onnx.load(q.files[0]), feeds, optimize=False)["y"]
    assert sqnr(expected, [found]) > 60
    trained = onnxq.finetune(q, samples(), teacher=block(), steps=4, output=tmp_path / "t.onnx")
    here = Counter(node.op_type for node in onnx.load(tmp_path / "t.onnx").graph.node)
    assert here["Attention"] == 1 and here["RotaryEmbedding"] == 2
    assert trained is not None

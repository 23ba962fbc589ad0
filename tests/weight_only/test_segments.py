from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.graph.files.load import load
from onnxq.ort.session import Session
from onnxq.weight_only import quantize_weights, segments
from onnxq.weight_only.activations import Activations
from onnxq.weight_only.segments import SegmentedModel
from tests.models import build, feeds_for, normal


def _branched() -> onnx.ModelProto:
    """Reads across segments: a skip connection, an If whose branches read the outer graph, an unused output."""
    return build(
        """(float[N, 64] x, bool c) => (float[N, 64] y, float[N, 64] h, float[N, 32] top) {
            h = MatMul (x, a)
            r = Relu (h)
            m = MatMul (r, b)
            y0 = If (c) <
                then_branch = then_graph () => (float[N, 64] t) { t = Add (m, r) },
                else_branch = else_graph () => (float[N, 64] e) { e = MatMul (m, d) }
            >
            top, rest = Split <axis = 1, num_outputs = 2> (y0)
            s = Add (y0, h)
            y = MatMul (s, d)
        }""",
        opset=18,
        a=normal(64, 64),
        b=normal(64, 64, seed=1),
        d=normal(64, 64, seed=2),
    )


@pytest.mark.parametrize("limit", [0, 20_000, 1 << 30])
@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_segments_compute_what_the_model_computes(limit: int, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_BYTES", limit)
    proto = _branched()
    model = load(proto)
    before = onnx.ModelProto.SerializeToString(proto)
    feeds = [{**f, "c": np.array(i % 2 == 0)} for i, f in enumerate(feeds_for(_without_flag(proto), 3, N=4))]
    run = SegmentedModel(model)
    assert len(run.segments) == {0: 6, 20_000: 3, 1 << 30: 1}[limit]  # the last two products share a weight
    kept = Activations(budget)
    seen = [samples for _, samples in run.run(feeds, kept)]
    assert seen == [3] * len(run.segments)
    whole = Session(proto.SerializeToString())
    for sample, feed in enumerate(feeds):
        for name, expected in whole.run(feed).items():
            np.testing.assert_allclose(kept.get(name, sample), expected, rtol=1e-5, atol=1e-5)
    assert set(kept.names()) == {"y", "h", "top"}  # nothing else is left
    kept.close()
    assert proto.SerializeToString() == before


def _without_flag(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.input[1]
    return copy


def test_data_of_layers_is_there_while_their_segment_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_TAPS", 1)
    model = load(_branched())
    products = [node for node in model.graph if node.op_type == "MatMul"]
    feeds = [{"x": normal(4, 64, scale=1.0), "c": np.array(True)}]
    kept = Activations()
    found = []
    for segment, _ in SegmentedModel(model, products).run(feeds, kept):
        taps = [node for node in segment.nodes if node in products]
        assert len(taps) <= 1
        found += [kept.get(node.inputs[0].name or "", 0) for node in taps if node.inputs[0] is not None]
    assert [array.shape for array in found] == [(4, 64)] * 3
    np.testing.assert_array_equal(found[1], np.maximum(kept.get("h", 0), 0))


def test_an_attention_whose_sizes_come_from_outside() -> None:
    """onnxruntime 1.31 infers a wrong shape for its output where the sizes of its inputs are unknown."""
    proto = build(
        """(float[N, M, 64] x, float[N, K, 64] k, float[N, K, 64] v) => (float[N, M, 64] y) {
            q = MatMul (x, w)
            a = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v)
            y = MatMul (a, w)
        }""",
        opset=23,
        w=normal(64, 64),
    )
    feeds = [
        {"x": normal(1, 2, 64, scale=1.0), "k": normal(1, n, 64, scale=1.0), "v": normal(1, n, 64, seed=1, scale=1.0)}
        for n in (3, 5)
    ]
    kept = Activations()
    list(SegmentedModel(load(proto)).run(feeds, kept))
    whole = Session(proto.SerializeToString())
    for sample, feed in enumerate(feeds):
        np.testing.assert_allclose(kept.get("y", sample), whole.run(feed)["y"], rtol=1e-5, atol=1e-5)


def test_an_input_that_a_sample_leaves_out_has_the_model_s_own_value(tmp_path: Path) -> None:
    proto = build(
        """(float[N, 64] x, float[64] scale) => (float[N, 64] y) {
            a = MatMul (x, w)
            b = Mul (a, scale)
            y = MatMul (b, v)
        }""",
        w=normal(64, 64),
        v=normal(64, 64, seed=1),
        scale=normal(64, seed=2, scale=1.0),
    )
    feeds = [{"x": normal(4, 64, seed=seed, scale=1.0)} for seed in range(4)]
    feeds[1]["scale"] = normal(64, seed=9, scale=1.0)
    kept = Activations()
    list(SegmentedModel(load(proto), limit=0).run(feeds, kept))
    whole = Session(proto.SerializeToString())
    for sample, feed in enumerate(feeds):
        np.testing.assert_allclose(kept.get("y", sample), whole.run(feed)["y"], rtol=1e-5, atol=1e-5)
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, source)
    made = quantize_weights(source, output, format="matmulnbits", avg_bits=8, data=feeds)
    assert made.verification is not None and made.verification.outputs["y"].sqnr > 35


def test_activations_on_the_disk() -> None:
    kept = Activations(100)
    small, large = np.arange(5), normal(100)
    kept.put("a", 0, small)
    kept.put("b", 0, large)
    kept.put("b", 1, large[:50])
    assert (kept.common_shape("a", 1), kept.common_shape("b", 1), kept.common_shape("b", 2)) == ([5], [100], [None])
    np.testing.assert_array_equal(kept.get("a", 0), small)
    np.testing.assert_array_equal(kept.get("b", 0), large)
    kept.drop("b", 2)
    with pytest.raises(KeyError):
        kept.get("b", 0)
    kept.close()

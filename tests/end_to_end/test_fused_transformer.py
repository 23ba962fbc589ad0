"""Transformers that onnxruntime's optimizer fused are quantized as those that it did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import dynamic
from tests.installed import needs
from tests.models import build, f32, feeds_for, normal, verified_sqnr

SIZE, ROWS, HEADS = 32, 8, 4
SHAPE = f"float[1, {ROWS}, {SIZE}]"


def plain() -> onnx.ModelProto:
    """A block as exporters write it."""
    heads = "\n".join(
        f"{k}m = MatMul (x, w{k})  {k}b = Add (b{k}, {k}m)  {k}r = Reshape ({k}b, apart)"
        f"  {k} = Transpose <perm = [{order}]> ({k}r)"
        for k, order in (("q", "0, 2, 1, 3"), ("k", "0, 2, 3, 1"), ("v", "0, 2, 1, 3"))
    )
    return build(
        f"""({SHAPE} x) => ({SHAPE} y) {{
            {heads}
            s0 = MatMul (q, k)  s = Div (s0, root)  p = Softmax <axis = -1> (s)
            a0 = MatMul (p, v)  a1 = Transpose <perm = [0, 2, 1, 3]> (a0)  a = Reshape (a1, joined)
            om = MatMul (a, wo)  ob = Add (bo, om)  t = Add (ob, x)
            n = LayerNormalization <axis = -1> (t, g, h)
            f0 = MatMul (n, w1)  f1 = Add (b1, f0)
            e0 = Div (f1, root2)  e1 = Erf (e0)  e2 = Add (e1, one)  e3 = Mul (f1, e2)  e = Mul (e3, half)
            y0 = MatMul (e, w2)  y = Add (b2, y0)
        }}""",
        **weights(),
        apart=np.array([0, 0, HEADS, SIZE // HEADS]),
        joined=np.array([0, 0, SIZE]),
        root=f32((SIZE / HEADS) ** 0.5),
        root2=f32(2**0.5),
        one=f32(1.0),
        half=f32(0.5),
    )


def fused() -> onnx.ModelProto:
    """The same, as onnxruntime's optimizer for transformers writes it."""
    own = weights()
    packed = np.concatenate([own.pop(f"w{k}") for k in "qkv"], axis=1)
    shifts = np.concatenate([own.pop(f"b{k}") for k in "qkv"])
    return build(
        f"""({SHAPE} x) => ({SHAPE} y) {{
            [attend] a = com.microsoft.Attention <num_heads = {HEADS}> (x, w, b)
            om = MatMul (a, wo)
            [norm] n = com.microsoft.SkipLayerNormalization <epsilon = 1e-5> (om, x, g, h, bo)
            f0 = MatMul (n, w1)
            [gelu] e = com.microsoft.BiasGelu (f0, b1)
            y0 = MatMul (e, w2)  y = Add (b2, y0)
        }}""",
        domains={"com.microsoft": 1},
        **own,
        w=packed,
        b=shifts,
    )


def whole_attention() -> onnx.ModelProto:
    """ONNX's own Attention, which some targets have whole, behind layers that its scale could be folded into."""
    text = "(float[1, 4, 8, 16] x) => (float[1, 4, 8, 16] y) { q = Conv (x, w0)  k = Conv (x, w1)  v = Conv (x, w2)"
    made: dict[str, Any] = {f"w{k}": normal(4, 4, 1, 1, seed=k) for k in range(4)}
    return build(f"{text} a = Attention (q, k, v)  y = Conv (a, w3) }}", opset=23, **made)


def weights() -> dict[str, Any]:
    made: dict[str, Any] = {f"w{k}": normal(SIZE, SIZE, seed=i) / 6 for i, k in enumerate("qkvo")}
    made |= {f"b{k}": normal(SIZE, seed=10 + i) for i, k in enumerate("qkvo")}
    made |= {"w1": normal(SIZE, 4 * SIZE, seed=20) / 6, "b1": normal(4 * SIZE, seed=21)}
    made |= {"w2": normal(4 * SIZE, SIZE, seed=22) / 12, "b2": normal(SIZE, seed=23)}
    return made | {"g": 1 + normal(SIZE, seed=24) / 10, "h": normal(SIZE, seed=25)}


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "qnn", "snpe", "tensorrt", "tvm"])
def test_what_onnxruntime_fused_is_quantized_as_what_it_did_not(backend: str) -> None:
    feeds = feeds_for(plain(), samples=16)
    options = onnxq.Options(placement="all")
    both = [onnxq.quantize(model, feeds, backend=backend, options=options) for model in (plain(), fused())]
    heavy = [Counter(op for op in q.plan.quantized.values() if op in ("Gemm", "MatMul")) for q in both]
    assert heavy[0] == heavy[1] and heavy[1].total() == 8
    assert not {"Attention", "BiasGelu", "SkipLayerNormalization"} & {n.op_type for n in both[1].rendered().graph}
    levels = [q.verification.worst[1].sqnr for q in both if q.verification is not None and q.verification.worst]
    assert abs(levels[0] - levels[1]) < 3


@pytest.mark.parametrize("placement", ["auto", "all"])
@pytest.mark.parametrize(
    "make", [fused, pytest.param(whole_attention, marks=[needs("onnx", "1.19"), needs("onnxruntime", "1.32")])]
)
def test_one_calibration_serves_targets_that_have_them_and_those_that_have_not(
    make: Callable[[], onnx.ModelProto], placement: Literal["auto", "all"]
) -> None:
    model = make()
    statistics = onnxq.calibrate(model, feeds_for(model, samples=8))
    for target in onnxq.backends():
        options = onnxq.Options(placement=placement)
        q = onnxq.quantize(model, statistics=statistics, backend=target.name, options=options)
        assert verified_sqnr(q) > 10


@pytest.mark.parametrize("opset", [13, 16])
def test_models_of_older_opsets_are_raised_for_it(opset: int) -> None:
    """onnxruntime's optimizer leaves a model the opset that it was exported with."""
    model = fused()
    model.opset_import[0].version = opset
    feeds = feeds_for(model, samples=4)
    q = onnxq.quantize(model, feeds, backend="tensorrt")
    assert Counter(op for op in q.plan.quantized.values() if op == "MatMul") == {"MatMul": 8}


def test_ranges_at_run_time_are_of_its_products_too(tmp_path: Path) -> None:
    model = fused()
    onnx.save(model, tmp_path / "m.onnx")
    feeds = feeds_for(model, samples=4)
    made = dynamic.rewrite(tmp_path / "m.onnx", feeds, output=tmp_path / "q.onnx")
    assert Counter(made.quantized.values()) == {"MatMul": 6}
    assert verified_sqnr(made) > 30


@pytest.mark.parametrize("pattern", ["attend", "Attention", "com.microsoft::Attention"])
def test_patterns_still_name_what_was_written_out(pattern: str) -> None:
    model = fused()
    feeds = feeds_for(model, samples=4)
    options = onnxq.Options(placement="all", exclude=(pattern,))
    q = onnxq.quantize(model, feeds, options=options)
    assert Counter(op for op in q.plan.quantized.values() if op == "MatMul") == {"MatMul": 3}


def kept() -> onnx.ModelProto:
    """Two attentions that give their keys and values for the next run."""
    free, last = f"float[1, {HEADS}, past, {SIZE // HEADS}]", f"float[1, {HEADS}, total, {SIZE // HEADS}]"
    own = weights()
    return build(
        f"""(float[1, rows, {SIZE}] x, float[2, 1, {HEADS}, past, {SIZE // HEADS}] p, {free} pk, {free} pv) =>
            (float[1, rows, {SIZE}] y, float[2, 1, {HEADS}, total, {SIZE // HEADS}] n, {last} nk, {last} nv) {{
            [first] a, n = com.microsoft.Attention <num_heads = {HEADS}, unidirectional = 1> (x, w, b, "", p)
            q = MatMul (a, wq)  k = MatMul (a, wk)  v = MatMul (a, wv)
            [second] h, nk, nv = com.microsoft.MultiHeadAttention <num_heads = {HEADS}> (q, k, v, b, "", "", pk, pv)
            y = MatMul (h, wo)
        }}""",
        domains={"com.microsoft": 1},
        w=np.concatenate([own[f"w{k}"] for k in "qkv"], axis=1),
        b=np.concatenate([own[f"b{k}"] for k in "qkv"]),
        **{name: own[name] for name in ("wq", "wk", "wv", "wo")},
    )


@pytest.mark.parametrize(("backend", "products"), [("onnxruntime", 9), ("openvino", 11), ("qnn", 11), ("tensorrt", 11)])
def test_keys_and_values_of_before(backend: str, products: int) -> None:
    model = kept()
    feeds = feeds_for(model, samples=32, rows=1, past=6)
    q = onnxq.quantize(model, feeds, backend=backend, options=onnxq.Options(placement="all"))
    assert Counter(op for op in q.plan.quantized.values() if op == "MatMul") == {"MatMul": products}
    left = {node.op_type for node in q.rendered().graph if node.domain == "com.microsoft"}
    assert left == ({"MultiHeadAttention"} if backend == "onnxruntime" else set())
    assert verified_sqnr(q) > 15


def test_ranges_at_run_time_leave_an_attention_with_a_past_whole(tmp_path: Path) -> None:
    """It has one row mostly, of which onnxruntime's kernel is faster."""
    model = kept()
    onnx.save(model, tmp_path / "m.onnx")
    made = dynamic.rewrite(tmp_path / "m.onnx", feeds_for(model, rows=1, past=6), output=tmp_path / "q.onnx")
    assert Counter(made.quantized.values()) == {"MatMul": 4, "Attention": 1}

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxq
from onnxq.graph.files.load import load
from onnxq.integer_operators import quantizing
from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from onnxq.weight_only.grid import decode, nearest
from onnxq.weight_only.recipe import Recipe
from tests.installed import needs
from tests.models import build, constants_of, normal
from tests.weight_only.layers import run, save

_FEEDS = {"x": normal(1, 12, 64, seed=9, scale=1.0)}


def _experts(normalize: int = 1) -> onnx.ModelProto:
    """Two of four experts for each token, chosen by a product."""
    return build(
        f"""(float[N, 12, 64] x) => (float[N, 12, 64] y) {{
            [router] r = MatMul (x, router)
            logits = Reshape (r, flat)
            [experts] y = com.microsoft.MoE
                <k = 2, activation_type = "silu", normalize_routing_weights = {normalize}>
                (x, logits, first, first_bias, second)
        }}""",
        domains={"com.microsoft": 1},
        router=normal(64, 32, scale=0.4),
        flat=np.array([-1, 32]),
        first=normal(32, 128, 64, seed=1, scale=0.12),
        first_bias=normal(32, 128, seed=2),
        second=normal(32, 64, 128, seed=3, scale=0.09),
    )


_PACKED = needs("onnxruntime", "1.24")


@_PACKED
@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_experts_are_multiplied_as_they_are_stored(bits: int, symmetric: bool, external: bool, tmp_path: Path) -> None:
    """QMoE gives what MoE gives with the rounded weights; of 8 bits onnxruntime's kernel rounds activations as well."""
    proto, recipe = _experts(), Recipe(bits=bits, symmetric=symmetric, format="matmulnbits")
    output = tmp_path / "q.onnx"
    result = quantize_weights(
        save(proto, tmp_path / "m.onnx", external=external),
        output,
        bits=bits,
        symmetric=symmetric,
        format="matmulnbits",
        exclude=["router"],
    )
    assert dict(result.quantized) == {"experts": "MoE"}
    assert "1 MoE became QMoE, with weights as onnxruntime's CPU lays them out" in result.notes
    made = onnx.load(output)
    assert [node.op_type for node in made.graph.node] == ["MatMul", "Reshape", "QMoE"]
    assert quantizing(load(output)) == ["QMoE"]
    stored = constants_of(made)
    assert stored["first_quantized"].shape == (32, 128, 64 * bits // 8) and "first" not in stored
    for tensor in proto.graph.initializer:
        if tensor.name in ("first", "second"):
            weight = numpy_helper.to_array(tensor)
            rows = weight.reshape(-1, weight.shape[-1])
            rounded = decode(nearest(rows, recipe.spec(), either_sign=recipe.either_sign))
            tensor.CopyFrom(numpy_helper.from_array(rounded.reshape(weight.shape), tensor.name))
    want = run(save(proto, tmp_path / "rounded.onnx"), _FEEDS)["y"]
    least = 80 if bits == 4 else 38
    assert sqnr(want, run(output, _FEEDS)["y"]) > least
    assert sqnr(want, run(output, _FEEDS, optimize=True)["y"]) > least


@_PACKED
def test_quantized_experts_are_left_as_they_are_and_told_of(tmp_path: Path) -> None:
    quantize_weights(save(_experts(), tmp_path / "m.onnx"), tmp_path / "q.onnx", format="matmulnbits")
    again = quantize_weights(tmp_path / "q.onnx", tmp_path / "again.onnx", format="matmulnbits")
    assert {k.op: k.reason for k in again.kept_float} == dict.fromkeys(
        ("MatMulNBits", "QMoE"), "already quantized in the input model"
    )
    seen = onnxq.verify(tmp_path / "q.onnx", data=_FEEDS)
    assert Counter(line.split()[0] for line in seen.integer) == {"MatMulNBits": 1, "QMoE": 1}


@needs("onnxruntime", "1.23.2")
def test_an_onnxruntime_that_lays_experts_out_otherwise_unpacks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.23.2")
    source, output = save(_experts(), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    quantize_weights(source, output, format="matmulnbits")
    assert "MoE" in [node.op_type for node in onnx.load(output).graph.node]
    assert sqnr(run(source, _FEEDS)["y"], run(output, _FEEDS)["y"]) > 30


@needs("onnxruntime", "1.23.2")
def test_experts_that_onnxruntime_would_weigh_otherwise_are_unpacked(tmp_path: Path) -> None:
    """QMoE normalizes the weights of the experts that it picks, whatever the attribute says."""
    source, output = save(_experts(normalize=0), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    result = quantize_weights(source, output, format="matmulnbits")
    assert "MoE" in [node.op_type for node in onnx.load(output).graph.node]
    assert any(note.startswith("2 weights that are unpacked at load take 8 bits") for note in result.notes)
    assert sqnr(run(source, _FEEDS)["y"], run(output, _FEEDS)["y"]) > 30


@_PACKED
def test_experts_of_which_a_weight_cannot_be_stored_stay_float(tmp_path: Path) -> None:
    proto = _experts()
    (second,) = (t for t in proto.graph.initializer if t.name == "second")
    weight = numpy_helper.to_array(second).copy()
    weight[0, 0, 0] = np.inf
    second.CopyFrom(numpy_helper.from_array(weight, "second"))
    result = quantize_weights(save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx", format="matmulnbits")
    assert dict(result.quantized) == {"router": "MatMul"}
    assert [(k.node, k.reason) for k in result.kept_float] == [("experts", "its weight holds NaN or infinite values")]


@needs("onnxruntime", "1.23.2")
@pytest.mark.parametrize("format", ["qdq", "matmulnbits"])
def test_what_chooses_takes_8_bits(format: str, tmp_path: Path) -> None:
    output = tmp_path / "q.onnx"
    result = quantize_weights(save(_experts(), tmp_path / "m.onnx"), output, format=format)
    (note,) = (note for note in result.notes if "picked" in note)
    assert note.startswith("1 weight whose product is picked from takes 8 bits")
    stored = {t.name: t.data_type for t in onnx.load(output).graph.initializer}
    assert stored["router_quantized"] == (onnx.TensorProto.INT8 if format == "qdq" else onnx.TensorProto.UINT8)
    assert dict(result.quantized) == {"router": "MatMul", "experts": "MoE"}


@pytest.mark.parametrize(("outputs", "bits"), [(96, 8), (2048, 4)])
def test_what_topk_picks_from(outputs: int, bits: int, tmp_path: Path) -> None:
    """Not a vocabulary, whose matrix is the largest of a small model."""
    proto = build(
        """(float[N, 64] x) => (float[N, 4] y, int64[N, 4] i) {
            a = MatMul (x, w)
            b = Add (a, bias)
            c = Softmax (b)
            y, i = TopK (c, k)
        }""",
        w=normal(64, outputs, scale=0.4),
        bias=normal(outputs, seed=1),
        k=np.array([4]),
    )
    quantize_weights(save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx")
    stored = {t.name: t.data_type for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert stored["w_quantized"] == (onnx.TensorProto.INT8 if bits == 8 else onnx.TensorProto.INT4)

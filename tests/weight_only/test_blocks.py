"""How large blocks are, and tables that rows or matrices are picked from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq import Options
from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from onnxq.weight_only.grid import decode, nearest
from onnxq.weight_only.pipeline import rewrite_weights
from onnxq.weight_only.recipe import Recipe
from tests.models import build, normal
from tests.weight_only.layers import LOSS, layers, run, save


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("bits", "asked"), [(8, ()), (4, ()), (4, ("Gather=weight_bits=4",))])
def test_matrices_of_experts(
    bits: int, asked: tuple[str, ...], symmetric: bool, external: bool, tmp_path: Path
) -> None:
    """They take 8 bits, which onnxruntime unpacks quickly, or the 4 asked for.

    With DequantizeLinear, unpacking them takes longer than all else.
    """
    table = normal(6, 40, 48)
    proto = build(
        "(int64[N] e, float[N, 1, 40] x) => (float[N, 1, 48] y) { w = Gather (t, e) \n y = MatMul (x, w) }", t=table
    )
    source = save(proto, tmp_path / "m.onnx", external=external)
    made = quantize_weights(
        source, tmp_path / "q.onnx", bits=bits, symmetric=symmetric, format="matmulnbits", override=asked
    )
    assert list(made.quantized.values()) == ["Gather"]
    assert made.notes == (
        [
            "1 table that matrices are picked from takes 8 bits: onnxruntime unpacks those of 4 half as fast "
            "(--override 'Gather=weight_bits=4' for the smaller file)"
        ]
        if bits == 4 and not asked
        else []
    )
    feeds = {"e": np.array([5, 0, 3]), "x": normal(3, 1, 40, seed=1, scale=1.0)}
    recipe = Recipe(4 if asked else 8, 32, symmetric, format="matmulnbits")
    coded = nearest(table.reshape(-1, 48), recipe.spec(), either_sign=recipe.either_sign)
    rounded = decode(coded).reshape(table.shape)
    np.testing.assert_allclose(
        run(tmp_path / "q.onnx", feeds)["y"], feeds["x"] @ rounded[feeds["e"]], rtol=1e-4, atol=1e-4
    )
    (kept,) = rewrite_weights(source, None, Recipe(8), output=tmp_path / "o.onnx", options=Options()).kept_float
    assert "its table has 3 axes" in kept.reason and "weight_only:format=matmulnbits" in kept.reason


@pytest.mark.parametrize(("inputs", "block"), [(160, 32), (384, 128), (512, 256), (24, 32)])
def test_blocks_are_no_larger_than_what_fills_them(inputs: int, block: int, tmp_path: Path) -> None:
    """MatMulNBits stores whole blocks: of 256, 160 inputs would take 1.5 times the bytes that they take in 32."""
    w = normal(inputs, 64, scale=0.1)
    source = save(
        build(f"(float[N, {inputs}] x) => (float[N, 64] y) {{ y = MatMul (x, w) }}", w=w), tmp_path / "m.onnx"
    )
    sizes = {}
    for asked in (256, block):
        output = tmp_path / f"{asked}.onnx"
        result = quantize_weights(source, output, format="matmulnbits", block=asked)
        (node,) = onnx.load(output).graph.node
        assert onnx.helper.get_node_attr_value(node, "block_size") == block
        assert any("smaller blocks" in note for note in result.notes) is (asked != block)
        sizes[asked] = output.stat().st_size
    assert sizes[256] == sizes[block]
    feeds = {"x": normal(8, inputs, seed=3, scale=1.0)}
    assert sqnr(run(source, feeds)["y"], run(tmp_path / "256.onnx", feeds, optimize=True)["y"]) > LOSS[4]


@pytest.mark.parametrize(("inputs", "block"), [(160, 32), (384, 128), (72, 256)])
def test_blocks_are_whole_where_they_can_be(inputs: int, block: int, tmp_path: Path) -> None:
    """OpenVINO reads no DequantizeLinear whose last block is not full."""
    w = normal(inputs, 64, scale=0.1)
    source = save(
        build(f"(float[N, {inputs}] x) => (float[N, 64] y) {{ y = MatMul (x, w) }}", w=w), tmp_path / "m.onnx"
    )
    quantize_weights(source, tmp_path / "q.onnx", block=256)
    dequantize, _ = onnx.load(tmp_path / "q.onnx").graph.node
    assert onnx.helper.get_node_attr_value(dequantize, "block_size") == block
    feeds = {"x": normal(8, inputs, seed=3, scale=1.0)}
    assert sqnr(run(source, feeds)["y"], run(tmp_path / "q.onnx", feeds, optimize=True)["y"]) > LOSS[4]


@pytest.mark.parametrize("format", ["qdq", "matmulnbits"])
def test_tables_take_8_bits(format: str, tmp_path: Path) -> None:
    """In both formats, as the summary says: in 4 bits they lose more than products do."""
    source = save(layers(), tmp_path / "m.onnx")
    result = quantize_weights(source, tmp_path / "q.onnx", format=format)
    assert "1 table that rows are picked from takes 8 bits: no sum evens out the rounding of a row" in result.notes
    assert not any("half precision" in note for note in result.notes)
    table = next(t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if t.name == "table_quantized")
    assert table.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    assert onnx.numpy_helper.to_array(table).shape == (50, 72)

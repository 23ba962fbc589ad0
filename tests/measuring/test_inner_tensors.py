"""Tensors in between, as what reads them computes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxq
from tests.models import build, f32, images, normal


def test_a_quantized_reference_is_read_behind_its_quantizers(tmp_path: Path) -> None:
    """A quantizer that saturates as a Relu does has the Relu on the side; for another target it is written out."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv (x, w)\n r = Relu (a)\n y = Conv (r, v) }",
        w=normal(8, 3, 1, 1),
        v=normal(4, 8, 1, 1, seed=1),
    )
    data, first = images(1, 3, 8, 8), tmp_path / "first.onnx"
    onnxq.quantize(model, data, backend="onnxruntime", output=first, options=onnxq.Options(placement="all"))
    second = onnxq.deploy(first, backend="snpe")
    assert "Relu" in {node.op_type for node in second.model.graph}
    compared = onnxq.compare(first, second, data)
    inner = {tensor.tensor: tensor.errors.sqnr for tensor in compared.tensors}
    assert "r" in inner and min(inner.values()) > 100


@pytest.mark.parametrize(
    ("behind", "format", "bits"),
    [(" r = Sigmoid (n)\n y = Conv (r, u)", "qdq", 4), ("", "qdq", 4), ("", "qoperator", 8)],
)
def test_a_folded_normalization_is_blamed_on_the_layer_that_it_is_folded_into(
    behind: str, format: str, bits: int
) -> None:
    """The Conv leaves the other's output, and the Conv is what --exclude can name."""
    positive = np.abs(normal(8, seed=2)) + 0.5
    given = "[conv] a = Conv (x, w)\n [norm] n = BatchNormalization (a, s, b, m, v)"
    model = build(
        f"(float[4, 3, 8, 8] x) => (float[4, 8, 8, 8] {'y' if behind else 'n'}) {{ {given}\n{behind} }}",
        w=normal(8, 3, 1, 1),
        u=normal(8, 8, 1, 1, seed=1),
        s=positive,
        b=positive,
        m=positive,
        v=positive,
    )
    data = images(4, 3, 8, 8)
    options = onnxq.Options(placement="all", weight_bits=bits, format=format)
    result = onnxq.quantize(model, data, options=options)
    (found,) = (tensor for tensor in onnxq.compare(model, result, data).tensors if tensor.tensor == "n")
    assert (found.node, found.op) == ("conv", "Conv")
    assert found.drop > 3 or bits == 8


def test_what_is_left_out_is_not_blamed_on_a_node_that_has_its_number() -> None:
    """Nodes without names are numbered file by file: the second Relu of one is the first of another."""
    text = "(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {{ a = Conv (x, w)\n {}\n y = Conv (r2, u) }}"
    first, second = (
        build(text.format(given), h=f32([0.5]), w=normal(8, 3, 1, 1), u=normal(4, 8, 1, 1, seed=1))
        for given in ("r1 = Relu (a)\n s = Sub (r1, h)\n r2 = Relu (s)", "s = Sub (a, h)\n r2 = Relu (s)")
    )
    found = {tensor.tensor: tensor.node for tensor in onnxq.compare(first, second, images(1, 3, 8, 8)).tensors}
    assert found["r2"] == "Relu_1"


@pytest.mark.parametrize("quantized", [False, True])
def test_a_normalization_written_as_a_chain_is_judged_as_one(quantized: bool) -> None:
    """Of rows without a mean the mean is all noise, and loses nothing: it is subtracted from far larger numbers."""
    chain = """m = ReduceMean <axes = [-1]> (x) c = Sub ({}, m) two = Constant <value = float {{2}}> () q = Pow (c, two)
        v = ReduceMean <axes = [-1]> (q) eps = Constant <value = float {{0.00001}}> () e = Add (v, eps) s = Sqrt (e)
        d = Div (c, s) n = Mul (d, g) b = Add (n, h) y = MatMul (b, w)"""
    x = normal(2, 8, 64, scale=1.0)
    x -= x.mean(axis=-1, keepdims=True)
    constants: dict[str, Any] = {"g": normal(64), "h": normal(64, seed=1), "w": normal(64, 4, seed=2)}
    first = build(f"(float[2, 8, 64] x) => (float[2, 8, 4] y) {{ {chain.format('x')} }}", **constants)
    noisy = chain.replace("ReduceMean <axes = [-1]> (x)", "ReduceMean <axes = [-1]> (z)").format("z")
    rounded = "i = QuantizeLinear (t, u, o) z = DequantizeLinear (i, u, o)"
    if quantized:
        noisy = noisy.replace(
            "s = Sqrt (e)", "ei = QuantizeLinear (e, u, o) ed = DequantizeLinear (ei, u, o) s = Sqrt (ed)"
        )
    text = f"(float[2, 8, 64] x) => (float[2, 8, 4] y) {{ t = Identity (x) {rounded} {noisy} }}"
    second = build(text, u=f32(0.05), o=np.int8(0), **constants)
    found = {t.tensor: t for t in onnxq.compare(first, second, [{"x": x}]).tensors}
    assert found["m"].errors.sqnr < 0 and found["b"].errors.sqnr > 30
    assert ({name for name, t in found.items() if np.isnan(t.drop)} >= set("mcqvesdn")) is not quantized
    assert found["m"].drop > 30 if quantized else abs(found["b"].drop) < 10

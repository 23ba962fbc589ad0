"""LiteRT with weights of 4 bits: its kernels compute what the model beside the file says, from two weights a byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from tests.backends import test_litert_dynamic
from tests.backends.litert_interpreter import agrees_in_integers, computed, one
from tests.backends.test_litert_integers import CASES
from tests.contract import infer
from tests.models import build, feeds_for, normal

pytest.importorskip("ai_edge_litert")

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_CASES = {name: model for name, model in CASES.items() if name.split()[0] in _LAYERS and "of two" not in name}
_TOLERANCE = 1e-5
"""Of a float result, relative to its largest number."""


@pytest.mark.parametrize("name", _CASES)
def test_a_layer_computes_as_onnxruntime_does(name: str, tmp_path: Path) -> None:
    agrees_in_integers(_CASES[name], tmp_path, weight_bits=4)


def types_of(content: bytes, beginning: str) -> set[str]:
    """Types of the tensors of integers in a file whose names begin so."""
    from ai_edge_litert import schema_py_generated as schema

    names = {schema.TensorType.INT4: "int4", schema.TensorType.INT8: "int8"}
    graph = schema.ModelT.InitFromPackedBuf(content).subgraphs[0]
    tensors = [tensor for tensor in graph.tensors if tensor.name.decode().startswith(beginning)]
    return {names[tensor.type] for tensor in tensors if tensor.type in names}


@pytest.mark.parametrize("name", [name for name in test_litert_dynamic.CASES if not name.startswith("Conv")])
def test_with_ranges_taken_at_each_run(name: str, tmp_path: Path) -> None:
    model = test_litert_dynamic.CASES[name]
    target, options = tmp_path / "net.onnx", Options(weight_bits=4)
    onnxq.quantize(model, feeds_for(model), backend="litert_dynamic", options=options, output=target)
    content = target.with_suffix(".tflite").read_bytes()
    assert types_of(content, "") == {"int4"}
    for feeds in feeds_for(model, seed=3):
        (wanted,) = infer(onnx.load(target), [feeds], optimize=False)["y"]
        np.testing.assert_allclose(
            computed(content, feeds)["y"], wanted, rtol=0, atol=_TOLERANCE * np.abs(wanted).max()
        )


def test_a_convolution_with_ranges_taken_at_each_run_has_8_bits_and_says_so() -> None:
    """XNNPACK has no kernel of 4 bits for it, and those that LiteRT has are slower than its float ones."""
    model = test_litert_dynamic.CASES["Conv"]
    made = onnxq.quantize(model, feeds_for(model), backend="litert_dynamic", options=Options(weight_bits=4))
    assert [site.spec.bits for site in made.plan.sites] == [8]
    assert made.verification is not None and any("have 8 bits" in text for text in made.verification.warnings)


@pytest.mark.parametrize(
    ("node", "size", "stored"),
    [
        ("Gemm (x, w)", "3, 16", "int4"),
        ("Gemm (x, w)", "3, 17", "int8"),
        ("MatMul (x, w)", "2, 5, 16", "int4"),
        ("MatMul (x, w)", "2, 5, 17", "int8"),
    ],
)
def test_rows_of_an_odd_number_are_stored_a_byte_each(node: str, size: str, stored: str, tmp_path: Path) -> None:
    """XNNPACK takes no others; without it ranges are taken otherwise."""
    model = one(node, size, w=normal(int(size.split()[-1]), 8))
    for backend in ("litert", "litert_dynamic"):
        target = tmp_path / f"{backend}.onnx"
        options = Options(weight_bits=4, placement="all")
        onnxq.quantize(model, feeds_for(model), backend=backend, options=options, output=target)
        assert types_of(target.with_suffix(".tflite").read_bytes(), "w") == {stored}
        assert onnxq.verify(target, feeds_for(model, seed=3), backend=backend).outputs["y"].sqnr > 40


@pytest.mark.parametrize(("columns", "stored"), [(64, "int4"), (65, "int8")])
def test_a_table_of_embeddings(columns: int, stored: str, tmp_path: Path) -> None:
    model = build(
        f"(int64[1, 5] x) => (float[1, 5, {columns}] y) {{ y = Gather (table, x) }}", table=normal(100, columns)
    )
    feeds = [{"x": np.random.default_rng(seed).integers(0, 100, (1, 5))} for seed in range(4)]
    target, options = tmp_path / "net.onnx", Options(weight_bits=4, placement="all")
    onnxq.quantize(model, feeds, backend="litert", options=options, output=target)
    content = target.with_suffix(".tflite").read_bytes()
    assert types_of(content, "table") == {stored}
    (wanted,) = infer(onnx.load(target), feeds[:1], optimize=False)["y"]
    np.testing.assert_allclose(computed(content, feeds[0])["y"], wanted, rtol=_TOLERANCE, atol=0)


def test_a_file_is_half_as_large(tmp_path: Path) -> None:
    model = one("Gemm (x, w, b)", "1, 256", w=normal(256, 256), b=normal(256))
    sizes = []
    for bits in (8, 4):
        target = tmp_path / f"{bits}.onnx"
        options = Options(weight_bits=bits, placement="all")
        onnxq.quantize(model, feeds_for(model), backend="litert_dynamic", options=options, output=target)
        sizes.append(target.with_suffix(".tflite").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]

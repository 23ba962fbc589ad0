"""Models with 4-bit floating-point numbers that other tools wrote, in simulation, against onnx's reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from onnxq.errors import ExecutionError
from onnxq.ort.session import Session
from tests.models import build, normal
from tests.nvfp4.reference import REFERENCE, computed

X = normal(6, 64, seed=9, scale=1.0)
CODES = normal(32, 64, scale=2.0).astype(ml_dtypes.float4_e2m1fn)
SCALES = np.abs(normal(32, 4, seed=1, scale=3.0)).astype(ml_dtypes.float8_e4m3fn)


def made(text: str, **constants: NDArray[Any]) -> onnx.ModelProto:
    return build(text, opset=23, ir_version=11, domains={"trt": 1}, **constants)


@REFERENCE
@pytest.mark.parametrize(("kind", "near"), [("float", 1e-5), ("float16", 2e-3)])
def test_as_model_optimizer_writes_it(kind: str, near: float, tmp_path: Path) -> None:
    """Weights of (outputs, inputs) in front of a Transpose, half precision, a unit that is no power of two."""
    number = np.dtype("float32" if kind == "float" else kind).type
    model = made(
        f"""({kind}[6, 64] x) => ({kind}[6, 32] y) {{
            numbers, of_blocks = trt.TRT_FP4DynamicQuantize <axis = -1, block_size = 16, scale_type = 17> (x, unit)
            scales = DequantizeLinear (of_blocks, unit)
            rounded = DequantizeLinear <axis = -1, block_size = 16> (numbers, scales)
            of_weights = DequantizeLinear (s, factor)
            w = DequantizeLinear <axis = -1, block_size = 16> (codes, of_weights)
            t = Transpose <perm = [1, 0]> (w)
            y = MatMul (rounded, t)
        }}""",
        codes=CODES,
        s=SCALES,
        factor=np.asarray(0.0123, number),
        unit=np.asarray(0.0017, number),
    )
    onnx.save(model, tmp_path / "m.onnx")
    feeds = {"x": X.astype(number)}
    (wanted,) = computed(tmp_path / "m.onnx", feeds)
    got = Session(tmp_path / "m.onnx").run(feeds)["y"]
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=near, atol=near * np.abs(wanted).max())


@REFERENCE
def test_blocks_with_scales_of_their_own(tmp_path: Path) -> None:
    model = made(
        """(float[6, 64] x) => (float[6, 32] y) {
            w = DequantizeLinear <axis = 0, block_size = 32> (codes, s)
            y = MatMul (x, w)
        }""",
        codes=np.ascontiguousarray(CODES.T),
        s=np.abs(normal(2, 32)),
    )
    onnx.save(model, tmp_path / "m.onnx")
    (wanted,) = computed(tmp_path / "m.onnx", {"x": X})
    np.testing.assert_allclose(Session(tmp_path / "m.onnx").run({"x": X})["y"], wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "(float[6, 64] x) => (float4e2m1[32, 64] c) { c = Identity (codes) }",
        "(float[6, 64] x) => (float[32, 64] y) { y = DequantizeLinear (codes, s) }",
    ],
    ids=["an output", "one scale for all"],
)
def test_other_uses_are_refused_in_onnxruntimes_words(text: str) -> None:
    model = made(text, codes=CODES, s=np.asarray(0.5, np.float32))
    with pytest.raises(ExecutionError, match="onnxruntime cannot load the model"):
        Session(model.SerializeToString())

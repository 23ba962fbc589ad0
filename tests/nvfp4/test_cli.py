"""``--algorithm nvfp4`` on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.cli import main
from onnxq.locations import find_artifact
from onnxq.show import ModelView
from tests.models import build, normal
from tests.nvfp4.reference import feeds_of, mlp
from tests.weight_only.layers import save


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    source = save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in feeds_of()]))
    return ["quantize", str(source), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "out")]


def test_a_result_in_a_folder_is_named_after_tensorrt(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*given, "--algorithm", "nvfp4:method=gptq", "--backend", "tensorrt"]) == 0
    said = capsys.readouterr().out
    assert "NVFP4: weights and activations in blocks of 16, gptq" in said and "of a simulation in float" in said
    path = find_artifact(given[-1], "tensorrt")
    assert path.name == "m_tensorrt.onnx"
    onnx.checker.check_model(onnx.load(path), full_check=True)


def test_the_target_is_to_be_named(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*given, "--algorithm", "nvfp4"]) == 1
    said = capsys.readouterr().err
    assert "writes models for tensorrt alone, not for onnxruntime. Write --backend tensorrt" in said
    assert not Path(given[-1]).exists()


def test_check_says_what_tensorrt_lacks() -> None:
    model = build(
        "(float[N, 64] x) => (int64[3, M] y) { a = MatMul (x, w) b = Unsqueeze (a, z) y = NonZero (b) }",
        w=normal(64, 64),
        z=np.array([0]),
    )
    options = Options(algorithms=("nvfp4",))
    found = {finding.where: finding for finding in onnxq.check(model, backend="tensorrt", options=options)}
    assert found["algorithm 'nvfp4'"].level == "note"
    assert any("NonZero" in finding.what and finding.level == "warning" for finding in found.values())
    (refused,) = [f for f in onnxq.check(model, options=options) if f.level == "error"]
    assert "for tensorrt alone" in refused.what


def test_show_lists_weights_and_activations_and_no_scales(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*given, "--algorithm", "nvfp4", "--backend", "tensorrt", "-q"]) == 0
    path = str(find_artifact(given[-1], "tensorrt"))
    view = onnxq.show(path)
    assert isinstance(view, ModelView)
    roles = [(each.role, each.dtype) for each in view.quantized]
    products = view.ops["MatMul"] + view.ops.get("Gemm", 0)
    assert roles.count(("weight", "float4e2m1")) == products == len(roles) - roles.count(("activation", "float4e2m1"))
    assert all("DequantizeLinear" not in each.readers and each.readers for each in view.quantized)
    stored = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    for each in view.quantized:
        if each.role == "weight":
            codes, unit = (stored[each.tensor.replace("_quantized", word)] for word in ("_scale", "_unit"))
            scales = onnx.numpy_helper.to_array(codes).astype(np.float32) * onnx.numpy_helper.to_array(unit)
            assert each.scale == pytest.approx((scales.min(), scales.max())) and each.scales == scales.size


def test_verify_says_that_a_simulation_has_nothing_to_be_compared_with(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The float model inside rounds to 4 bits as well."""
    assert main([*given, "--algorithm", "nvfp4", "--backend", "tensorrt", "-q"]) == 0
    path = str(find_artifact(given[-1], "tensorrt"))
    capsys.readouterr()
    assert main(["verify", path, "--backend", "tensorrt", "--simulation", "--data", given[3]]) == 0
    said = capsys.readouterr().out
    assert "weights in blocks and ranges taken at run time: " in said and "float4e2m1 activation" in said
    assert "compared  nothing: all that is quantized here" in said and f"onnxq compare FLOAT.onnx {path}" in said
    assert "exact" not in said and "tensors with a scale" not in said

"""TensorRT in 8-bit floating point: what is quantized, what is written, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from onnxq.spec import PerChannel, Scheme
from tests.contract import infer, sqnr
from tests.models import build, images, normal
from tests.planning.test_planner import transformer


def net() -> onnx.ModelProto:
    return build(
        """(float[1, 8, 16, 16] x) => (float[1, 10] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            r = Relu (a)
            d = Conv <group = 16, pads = [1, 1, 1, 1]> (r, k)
            u = ConvTranspose <strides = [2, 2]> (d, t)
            g = GlobalAveragePool (u)
            f = Flatten (g)
            y = Gemm (f, v, c)
        }""",
        w=normal(16, 8, 3, 3),
        b=normal(16),
        k=normal(16, 1, 3, 3),
        t=normal(16, 16, 2, 2),
        v=normal(16, 10),
        c=normal(10),
    )


def test_what_is_written(tmp_path: Path) -> None:
    made = onnxq.quantize(net(), images(1, 8, 16, 16), backend="tensorrt_fp8", output=tmp_path / "q.onnx")
    assert sorted(made.plan.quantized.values()) == ["Conv", "Gemm"]
    reasons = {kept.op: kept.reason for kept in made.plan.kept_float}
    assert "16 groups" in reasons["Conv"] and "no FP8 kernel" in reasons["ConvTranspose"]
    model = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 19
    stored = {t.name: t for t in model.graph.initializer}
    assert stored["w_quantized"].data_type == stored["x_zero_point"].data_type == TensorProto.FLOAT8E4M3FN
    largest = np.abs(normal(16, 8, 3, 3)).max(axis=(1, 2, 3))
    np.testing.assert_allclose(onnx.numpy_helper.to_array(stored["w_scale"]), largest / 448, rtol=1e-6)
    assert "b" in stored, "biases stay float"
    feeds = images(1, 8, 16, 16)
    assert sqnr(infer(net(), feeds, optimize=False)["y"], infer(model, feeds, optimize=False)["y"]) > 25


def test_read_back(tmp_path: Path) -> None:
    made = onnxq.quantize(net(), images(1, 8, 16, 16), backend="tensorrt_fp8", output=tmp_path / "q.onnx")
    back = onnxq.read(tmp_path / "q.onnx", backend="tensorrt_fp8")
    assert {s.name: made.qparams[s.name] for s in made.plan.sites} == {
        s.name: back.qparams[s.name] for s in back.plan.sites
    }
    weight = back.plan.by_name["w"].spec
    assert weight.scheme is Scheme.FLOAT8 and weight.granularity == PerChannel(0)
    assert str(weight) == "float8 symmetric per channel (axis 0)"
    (again,) = onnxq.deploy(tmp_path / "q.onnx", backend="tensorrt_fp8", output=tmp_path / "again.onnx").files
    feeds = images(1, 8, 16, 16)
    one, two = (infer(onnx.load(path), feeds, optimize=False)["y"] for path in (tmp_path / "q.onnx", again))
    np.testing.assert_array_equal(one, two)


def test_large_numbers_beside_small_ones() -> None:
    """One channel 1000 times the others: int8 loses the small ones, floating point does not."""
    model = build("(float[1, 16, 32] x) => (float[1, 16, 32] y) { y = MatMul (x, w) }", w=normal(32, 32) * 0.1)
    wide = np.ones(32, np.float32)
    wide[3] = 1000.0
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array((normal(32, 32) / wide[:, None]).astype(np.float32), "w")
    )
    feeds = [{"x": f["x"] * wide} for f in images(1, 16, 32)]
    worst = {}
    for backend in ("tensorrt", "tensorrt_fp8"):
        checked = onnxq.quantize(model, feeds, backend=backend, options=Options(placement="all")).verification
        assert checked is not None and checked.worst is not None
        worst[backend] = checked.worst[1].sqnr
    assert worst["tensorrt_fp8"] > 25 > worst["tensorrt"] + 10


def test_transformer() -> None:
    plan = onnxq.plan(transformer(), backend="tensorrt_fp8")
    assert plan.quantized and set(plan.quantized.values()) <= {"MatMul", "Gemm", "Conv"}
    assert all(site.spec.scheme is Scheme.FLOAT8 for site in plan.sites)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"opset": 18}, "opset 18"),
        ({"symmetric": False}, "no zero point"),
        ({"weight_bits": 4}, "4"),
        ({"act_bits": 16}, "16"),
    ],
)
def test_what_it_cannot_be(options: dict[str, int], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        onnxq.plan(net(), backend="tensorrt_fp8", options=Options(**options))  # type: ignore[arg-type]


def test_an_integer_model_does_not_become_one(tmp_path: Path) -> None:
    onnxq.quantize(net(), images(1, 8, 16, 16), backend="tensorrt", output=tmp_path / "q.onnx")
    with pytest.raises(onnxq.BackendError, match="uniform"):
        onnxq.deploy(tmp_path / "q.onnx", backend="tensorrt_fp8", output=tmp_path / "out.onnx")


def test_training_says_that_it_does_not_train_such_a_grid() -> None:
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    from onnxq.torch import prepare

    with pytest.raises(OptionError, match="no quantizer trains"):
        prepare(torch.nn.Conv2d(3, 4, 3), (torch.zeros(1, 3, 8, 8),), backend="tensorrt_fp8")

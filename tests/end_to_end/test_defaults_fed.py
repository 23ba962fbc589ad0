"""Inputs with a default, an initializer that a caller may override: the data's values count, in all samples or some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import onnxq
from onnxq import Options
from onnxq.weight_only import quantize_weights
from tests.contract import infer, sqnr
from tests.models import build, f32, normal, verified_sqnr

Feeds = list[dict[str, Any]]


def net() -> onnx.ModelProto:
    """A convolution whose bias and gain have defaults, and are far larger in the data."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            s = Mul (c, gain)
            y = Conv (s, v)
        }""",
        w=normal(4, 3, 3, 3, scale=1.0),
        b=np.zeros(4, np.float32),
        gain=f32(0.01),
        v=normal(4, 4, 1, 1, scale=1.0),
    )
    model.graph.input.append(helper.make_tensor_value_info("gain", TensorProto.FLOAT, []))
    model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4]))
    return model


def samples(fed: str) -> Feeds:
    rng = np.random.default_rng(0)
    found = [{"x": normal(1, 3, 8, 8, seed=k, scale=1.0)} for k in range(24)]
    for k, feed in enumerate(found):
        if fed == "all" or (fed == "some" and k % 2):
            feed |= {"gain": f32(rng.uniform(2, 4)), "b": normal(4, seed=k, scale=1.0)}
    return found


def error(model: onnx.ModelProto, made: ir.Model, feeds: Feeds) -> float:
    return sqnr(*(infer(m, feeds, optimize=False)["y"] for m in (model, ir.to_proto(made))))


@pytest.mark.parametrize("fed", ["all", "some", "none"])
@pytest.mark.parametrize("algorithm", ["bias_correction", "gptq", "smoothquant"])
def test_ranges_are_those_of_what_the_data_feeds(algorithm: str, fed: str) -> None:
    model, feeds = net(), samples(fed)
    made = onnxq.quantize(model, feeds, options=Options(placement="all", algorithms=(algorithm,)))
    found = error(model, made.rendered(), feeds)
    assert found > 25 and made.verification is not None and made.verification.worst is not None
    assert made.verification.worst[1].sqnr == pytest.approx(found, abs=4)
    assert {v.name for v in made.rendered().graph.inputs} == {"x", "gain", "b"}
    comparison = onnxq.compare(model, made, feeds)
    assert comparison.outputs["y"].sqnr == pytest.approx(found, abs=1)


@pytest.mark.parametrize("fed", ["all", "some", "none"])
@pytest.mark.parametrize("algorithm", ["adaquant:iterations=2", "reconstruct:iterations=2"])
def test_blocks_that_read_such_an_input_are_trained(algorithm: str, fed: str) -> None:
    pytest.importorskip("torch")
    model, feeds = net(), samples(fed)
    made = onnxq.quantize(model, feeds, options=Options(placement="all", algorithms=(algorithm,)))
    assert error(model, made.rendered(), feeds) > 25
    trained = onnxq.finetune(made, feeds, teacher=model, steps=2)
    assert error(model, trained.rendered(), feeds) > 25


def test_weights_in_blocks_are_judged_by_what_the_data_feeds(tmp_path: Path) -> None:
    model = build(
        "(float[N, 64] x) => (float[N, 64] y) { a = MatMul (x, w)  s = Mul (a, gain)  y = MatMul (s, v) }",
        w=normal(64, 64),
        v=normal(64, 64, seed=1),
        gain=f32(0),
    )
    model.graph.input.append(helper.make_tensor_value_info("gain", TensorProto.FLOAT, []))
    onnx.save(model, tmp_path / "m.onnx")
    feeds = [{"x": normal(8, 64, seed=k, scale=1.0), "gain": f32(k + 1)} for k in range(8)]
    made = quantize_weights(tmp_path / "m.onnx", tmp_path / "q.onnx", bits=8, data=feeds)
    assert 20 < verified_sqnr(made) < 60


def test_check_runs_the_model_on_what_the_data_feeds() -> None:
    model = net()
    broken = [{**feed, "gain": f32(np.nan)} for feed in samples("all")]
    assert any("NaN or infinity on" in finding.what for finding in onnxq.check(model, broken))
    assert not any("NaN or infinity on" in finding.what for finding in onnxq.check(model, samples("all")))

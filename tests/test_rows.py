"""What the rows of several targets' tables share."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.graph.files.save import to_proto
from tests.contract import infer
from tests.models import build, feeds_for, normal

SCORES = """(float[1, 8] x) => (float[1, 4] y) {
    a = Gemm <transB = 1> (x, w, c)
    [gate] g = Sigmoid (a)
    b = Gemm <transB = 1> (g, v, low)
    [last] y = Sigmoid (b)
}"""


def scores(last: str) -> onnx.ModelProto:
    """Scores that are next to 0 in all samples: a word that none of them holds."""
    return build(
        SCORES.replace("[last] y = Sigmoid", f"[last] y = {last}"),
        w=normal(4, 8),
        v=normal(4, 4, seed=1, scale=0.3),
        c=np.zeros(4, np.float32),
        low=np.array([8, -9, -9, -9] if last == "Softmax" else [-9] * 4, np.float32),
    )


@pytest.mark.parametrize("last", ["Sigmoid", "Softmax"])
@pytest.mark.parametrize("backend", ["tvm", "onnx_qnn", "rknn"])
def test_scores_that_are_model_outputs_are_not_rounded_to_a_grid_from_0_to_1(backend: str, last: str) -> None:
    model = scores(last)
    made = onnxq.quantize(model, feeds_for(model), backend=backend)
    assert "only a model output" in next(kept.reason for kept in made.plan.kept_float if kept.node == "last")
    assert "gate" in made.plan.quantized
    (gate,) = (site for site in made.plan.sites if site.tensor == "g")
    assert gate.fixed == (0.0, 1.0)
    feeds = feeds_for(model, seed=10)
    want, got = (
        np.concatenate(infer(m, feeds, optimize=False)["y"])[:, 1:] for m in (model, to_proto(made.rendered()))
    )
    assert np.abs(got / want - 1).max() < 0.2, "of 255 steps, all would be 0"


def test_tvm_quantizes_no_model_output() -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) {
            a = Conv (x, w)
            y = Relu (a)
            b = Conv (x, v)
            z = Add (b, x)
        }""",
        w=normal(4, 4, 1, 1),
        v=normal(4, 4, 1, 1, seed=1),
    )
    plan = onnxq.plan(model, backend="tvm")
    assert {site.tensor for site in plan.sites if site.role == "activation"} == {"x", "b"}
    assert set(plan.quantized.values()) == {"Conv", "Add"}

"""Models with an output of no elements, as where nothing was found in a picture."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from tests.contract import infer
from tests.models import build, normal

pytest.importorskip("torch")


@pytest.mark.parametrize("algorithms", [(), ("adaquant:iterations=2",)])
def test_an_output_without_elements_is_nothing_to_learn_from(algorithms: tuple[str, ...]) -> None:
    model = build(
        """(float[1, 8] x) => (float[1, 4] y, float[0, 4] z) {
            y = MatMul (x, w)  r = Relu (y)  z = Slice (r, zero, zero, zero)
        }""",
        w=normal(8, 4),
        zero=np.array([0]),
    )
    feeds = [{"x": normal(1, 8, seed=k, scale=1.0)} for k in range(16)]
    options = Options(placement="all", weight_bits=4, algorithms=algorithms)
    made = onnxq.quantize(model, feeds, options=options)
    trained = onnxq.finetune(made, feeds, teacher=model, steps=2)
    got = infer(ir.to_proto(trained.rendered()), feeds, optimize=False)
    assert all(not z.size for z in got["z"]) and np.isfinite(got["y"]).all()

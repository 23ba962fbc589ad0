"""Sites, and the ties between them."""

from __future__ import annotations

import numpy as np
import pytest

import onnxq
from onnxq import Options
from tests.models import build, f32, images, normal

ALL = Options(placement="all")


@pytest.mark.parametrize("deep", [[1, 4, 8, 8], [1, 2, 2, 8, 8]])
def test_a_scale_that_holds_a_product_is_known_however_the_target_writes_it(deep: list[int]) -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 16, 16] y) {
            a = Conv (x, w)
            d = Reshape (a, deep)
            p = MatMul (d, d)
            f = Reshape (p, flat)
            r = Resize <mode = "linear"> (f, none, factors)
            y = Conv (r, w)
        }""",
        w=normal(4, 4, 1, 1),
        deep=np.array(deep),
        flat=np.array([1, 4, 8, 8]),
        none=f32([]),
        factors=f32([1, 1, 2, 2]),
    )
    made = onnxq.quantize(model, images(1, 4, 8, 8), backend="qnn", options=ALL)
    assert any(site.spans for site in made.plan.sites)
    worst = made.verification.worst if made.verification is not None else None
    assert worst is not None and worst[1].sqnr > 20


@pytest.mark.parametrize(("backend", "op"), [("vitis", "Concat <axis = 2> ({0}, z)"), ("tvm", "Relu ({0})")])
def test_long_chains_of_operators(backend: str, op: str) -> None:
    lines = [f"t{k + 1} = {op.format(f't{k}')}" for k in range(1500)]
    body = "t0 = Conv (x, w)\n" + "\n".join(lines)
    model = build(
        f"(float[1, 4, 4, 4] x) => (float[1, 4, N, 4] t1500) {{ {body} }}", w=normal(4, 4, 1, 1), z=normal(1, 4, 1, 4)
    )
    plan = onnxq.plan(model, backend=backend, options=ALL)
    assert plan.done + len(plan.kept_float) == plan.total >= 1


@pytest.mark.parametrize(("bits", "rounded"), [(8, True), (4, False)])
def test_a_bias_of_a_layer_in_few_bits_stays_float(bits: int, rounded: bool) -> None:
    """onnxruntime computes it in float, and steps of 4 bits times those of the weight are coarse."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w, b) }",
        w=normal(4, 3, 3, 3),
        b=normal(4, seed=1),
    )
    options = Options(weight_bits=bits, act_bits=bits, placement="all")
    plan = onnxq.plan(model, options=options)
    assert any(site.role == "bias" for site in plan.sites) == rounded
    made = onnxq.quantize(model, images(1, 3, 8, 8), backend="qonnx", options=options)
    given = onnxq.deploy(made.rendered(), backend="onnxruntime")
    assert any(site.role == "bias" for site in given.plan.sites) == rounded

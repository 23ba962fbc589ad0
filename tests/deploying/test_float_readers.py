"""An operator that stays float reads what it reads in the model given: the quantized tensor, where others do too."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from tests.contract import infer, sqnr
from tests.models import build, f32, images

FEEDS = images(1, 4, 8, 8)


def residual(reads: str, zero: np.uint8 | np.int8) -> onnx.ModelProto:
    """``e``, of a float operator, quantized for a convolution; the last Add, which stays float, reads it too."""
    return build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{
            e = Erf (x)  q = QuantizeLinear (e, s, z)  d = DequantizeLinear (q, s, z)
            wd = DequantizeLinear <axis = 0> (w, sw, zw)
            c = Conv (d, wd)  f = Sin (c)  y = Add (f, {reads})
        }}""",
        s=f32(0.1),
        z=np.array(zero),
        w=np.random.default_rng(0).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8),
        sw=f32([0.004, 0.005, 0.006, 0.007]),
        zw=np.zeros(4, np.int8),
    )


def rendered(made: onnxq.Quantized) -> onnx.ModelProto:
    return ir.serde.serialize_model(made.rendered())


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt", "academic"])
@pytest.mark.parametrize("reads", ["d", "e"])
def test_the_other_end_of_a_residual_is_read_as_given(backend: str, reads: str) -> None:
    source = residual(reads, np.int8(0) if backend == "tensorrt" else np.uint8(128))
    made = onnxq.deploy(source, backend=backend)
    assert "Conv" in made.plan.quantized.values() and "Add" not in made.plan.quantized.values()
    want, got = (infer(m, FEEDS, optimize=False)["y"] for m in (source, rendered(made)))
    assert sqnr(want, got) > 60


def test_the_integers_may_be_others() -> None:
    made = onnxq.deploy(residual("d", np.uint8(128)), backend="tensorrt")
    site = next(s for s in made.plan.sites if s.tensor == "e")
    assert made.qparams[site.name].zero_point == 0
    assert {edge.node for edge in site.readers} & {kept.node for kept in made.plan.kept_float if kept.op == "Add"}

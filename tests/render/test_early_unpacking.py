from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.spec import PerChannel
from tests.models import build, normal
from tests.render.reading.test_read import equal_outputs


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_cast_and_scaled_are_a_table(bits: int) -> None:
    """As they are written for onnxruntime; the table is square, so that columns and rows could be taken for another."""
    table = normal(128, 128) * np.linspace(0.1, 2, 128, dtype=np.float32)
    model = build("(int64[2, 3] i) => (float[2, 3, 128] y) { r = Gather (t, i)\n y = Neg (r) }", t=table)
    feeds = [{"i": np.array([[0, 127, 5], [7, 7, -1]])}]
    made = onnxq.quantize(model, feeds, options=Options(weight_bits=bits, opset=21, min_sqnr=0))
    written = made.qdq()
    assert [n.op_type for n in written.graph][-4:] == ["Gather", "Cast", "Mul", "Neg"]
    back = onnxq.read(ir.to_proto(written))
    (site,) = back.plan.sites
    assert (site.role, site.spec.bits, site.spec.granularity) == ("weight", bits, PerChannel(1))
    assert list(back.plan.stored.values()) == ["Gather"]
    np.testing.assert_array_equal(back.qparams[site.name].scale, made.qparams["t"].scale)
    for again in (back.model, back.qdq()):
        equal_outputs(ir.to_proto(written).SerializeToString(), again, feeds[0])

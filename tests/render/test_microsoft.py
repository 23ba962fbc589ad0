"""4- and 16-bit quantizers below opset 21, in onnxruntime's own domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from tests.contract import infer
from tests.models import images
from tests.planning.test_planner import recurrent, residual

NETS = {"residual": (residual, (1, 16, 8, 8)), "recurrent": (recurrent, (7, 2, 32))}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("bits", [{"weight_bits": 4}, {"act_bits": 16}, {"weight_bits": 16, "act_bits": 16}])
def test_the_opset_stays_and_the_numbers_too(net: str, bits: dict[str, Any]) -> None:
    make, shape = NETS[net]
    feeds = images(*shape, samples=3)
    made: dict[str, onnx.ModelProto] = {}
    for form in ("qdq", "qdq-microsoft"):
        q = onnxq.quantize(make(), feeds, options=Options(placement="all", format=form, **bits))
        made[form] = ir.to_proto(q.rendered())
    standard, own = made["qdq"], made["qdq-microsoft"]
    assert next(o.version for o in own.opset_import if o.domain == "") == 17
    assert next(o.version for o in standard.opset_import if o.domain == "") == 21
    onnx.checker.check_model(own, full_check=True)
    types = {t.name: t.data_type for t in own.graph.initializer}
    wide = {onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.INT16, onnx.TensorProto.UINT16}
    for node in own.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert node.domain == ("com.microsoft" if types[node.input[2]] in wide else "")
    for optimize in (False, True):
        for a, b in zip(
            infer(standard, feeds, optimize=optimize)["y"], infer(own, feeds, optimize=optimize)["y"], strict=True
        ):
            np.testing.assert_allclose(a, b, atol=float(np.ptp(a)) * 1e-5)


def test_opset_21_needs_no_other_domain() -> None:
    options = Options(placement="all", format="qdq-microsoft", act_bits=16, opset=21)
    q = onnxq.quantize(residual(), images(1, 16, 8, 8, samples=2), options=options)
    assert {node.domain for node in q.rendered().graph} == {""}


def test_a_low_opset_may_be_asked_for() -> None:
    options = Options(placement="all", format="qdq-microsoft", act_bits=16, opset=17)
    q = onnxq.quantize(residual(), images(1, 16, 8, 8, samples=2), options=options)
    assert q.rendered().opset_imports == {"": 17, "com.microsoft": 1}
    again = onnxq.read(q.rendered())
    assert {p.spec.bits for name, p in again.qparams.items() if name == "x"} == {16}

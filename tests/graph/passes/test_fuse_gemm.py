"""MatMul and Add as Gemm."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from onnxq.graph.passes.fuse_gemm import fuse_gemm
from onnxq.ort.session import Session
from tests.models import build, feeds_for, normal, verified_sqnr


def dense(row: tuple[int, ...] = (4,), signature: str = "(float[3, 6] x) => (float[3, 4] y)") -> onnx.ModelProto:
    return build(
        f"{signature} {{ [p] m = MatMul (x, w)\n [a] y = Add (m, b) }}", w=normal(6, 4), b=normal(*row, seed=1)
    )


@pytest.mark.parametrize("row", [(4,), (1, 4)])
def test_one_node_computes_both(row: tuple[int, ...]) -> None:
    model = ir.from_proto(dense(row))
    assert fuse_gemm(model)
    (node,) = model.graph
    assert (node.op_type, node.name, node.outputs[0].name) == ("Gemm", "p", "y")
    for feeds in feeds_for(dense(row), samples=2):
        want = Session(dense(row).SerializeToString(), optimize=False).run(feeds)["y"]
        np.testing.assert_allclose(Session(model, optimize=False).run(feeds)["y"], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "source",
    [
        dense((3, 4)),
        dense((3, 1)),
        dense((1,)),
        dense(signature="(float[2, 3, 6] x) => (float[2, 3, 4] y)"),
        dense(signature="(float[3, 6] x) => (float[3, 4] y, float[3, 4] m)"),
    ],
)
def test_what_is_left(source: onnx.ModelProto) -> None:
    model = ir.from_proto(source)
    assert not fuse_gemm(model)
    assert [node.op_type for node in model.graph] == ["MatMul", "Add"]


def test_a_row_declared_with_a_free_dimension_stays() -> None:
    """Initializers of IR version 3 are inputs as well, and may be declared so."""
    source = dense()
    source.ir_version = 3
    for name, dims in (("w", (6, 4)), ("b", ("n",))):
        source.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    assert not fuse_gemm(ir.from_proto(source))


def test_onnxruntime_computes_it_in_integers() -> None:
    """Left to itself it makes a float Gemm of the two before it looks at the quantizers."""
    source = build(
        "(float[8, 64] x) => (float[8, 4] y) { m = MatMul (x, w)\n a = Add (m, b)\n r = Relu (a)\n y = MatMul (r, v) }",
        w=normal(64, 512),
        b=normal(512, seed=1),
        v=normal(512, 4, seed=2),
    )
    q = onnxq.quantize(source, feeds_for(source, samples=4))
    assert "Gemm" in q.plan.quantized.values()
    assert verified_sqnr(q) > 30


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize("pattern", ["p", "a", "?", "m", "MatMul", "Add"])
def test_what_it_was_can_still_be_named(pattern: str, backend: str) -> None:
    """Also where another target is meant: calibration looks at all of them."""
    options = Options(placement="all", exclude=(pattern,))
    q = onnxq.quantize(dense(), feeds_for(dense(), samples=4), backend=backend, options=options)
    kept = {k.reason for k in q.plan.kept_float}
    assert f"excluded by {pattern!r}" in kept
    assert bool(q.plan.quantized) == (backend == "tensorrt" and pattern in ("a", "Add"))


def test_what_names_nothing_in_any_form_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'addd' matches no node name.*Did you mean"):
        onnxq.calibrate(dense(), feeds_for(dense(), samples=4), options=Options(exclude=("addd",)))

"""An operator that stays float reads what it reads in the model given: the quantized tensor, where others do too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.deploying.float_readers import with_float_readers
from onnxq.plan import Edge, Kept
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


@pytest.mark.parametrize(("scale", "bits", "reads"), [(1.0, 8, True), (1.01, 8, False), (1.0, 16, False)])
def test_on_another_grid_it_reads_the_tensor_itself(scale: float, bits: int, reads: bool) -> None:
    source = onnxq.read(residual("d", np.uint8(128)))
    (activation,) = (site for site in source.plan.sites if site.role == "activation")
    conv, add = sorted(activation.readers, key=lambda edge: edge.index)
    mine = replace(activation, readers=(conv,), produced=False, spec=replace(activation.spec, bits=bits))
    weights = [site for site in source.plan.sites if site.role == "weight"]
    kept = (Kept(add.node, "Add", "a reason"),)
    plan = replace(source.plan, sites=(mine, *weights), kept_float=kept)
    before = source.qparams[activation.name]
    numbers = {**source.qparams, mine.name: replace(before, spec=mine.spec, scale=before.scale * np.float32(scale))}
    sites = {site.name: site for site in with_float_readers(source, plan, numbers).sites}
    assert sites[mine.name].readers == ((conv, add) if reads else (conv,))
    assert [sites[site.name] for site in weights] == weights


def test_an_edge_has_one_quantizer() -> None:
    """Two sites of a tensor with equal numbers: the float operator reads one of them."""
    source = onnxq.read(residual("d", np.uint8(128)))
    (activation,) = (site for site in source.plan.sites if site.role == "activation")
    conv, add = sorted(activation.readers, key=lambda edge: edge.index)
    first = replace(activation, readers=(conv,), produced=False)
    second = replace(activation, name="again", readers=(Edge("another", 0),), produced=False)
    plan = replace(source.plan, sites=(first, second), kept_float=(Kept(add.node, "Add", "a reason"),))
    numbers = {**source.qparams, "again": source.qparams[activation.name]}
    found = with_float_readers(source, plan, numbers)
    assert [site.readers for site in found.sites] == [(conv, add), (Edge("another", 0),)]


@pytest.mark.parametrize(("produced", "read"), [(True, True), (False, False)])
def test_where_no_quantizer_stands_none_is_added(produced: bool, read: bool) -> None:
    """What the operator before gives quantized all read so anyway; what nothing reads quantized needs no quantizer."""
    source = onnxq.read(residual("d", np.uint8(128)))
    (activation,) = (site for site in source.plan.sites if site.role == "activation")
    conv, add = sorted(activation.readers, key=lambda edge: edge.index)
    mine = replace(activation, readers=(conv,) if read else (), produced=produced)
    plan = replace(source.plan, sites=(mine,), kept_float=(Kept(add.node, "Add", "a reason"),))
    assert with_float_readers(source, plan, source.qparams).sites == (mine,)

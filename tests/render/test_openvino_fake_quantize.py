"""OpenVINO's FakeQuantize: written, evaluated by its formula, and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq import Options, Quantized
from onnxq.backend_choice import backend_named
from onnxq.errors import BackendError
from tests.contract import infer
from tests.models import build, constants_of, f32, feeds_for, images, normal
from tests.planning.test_planner import residual
from tests.targets import GRAPHS

Array = NDArray[Any]
FQ = "openvino-fake-quantize"
DOMAIN = "org.openvinotoolkit"
FORMULA = """
<opset_import: ["" : 17], domain: "org.openvinotoolkit">
FakeQuantize <levels> (x, il, ih, ol, oh) => (y) {
    count = Constant <value_int: int = @levels> ()
    n = Cast <to = 11> (count)
    one = Constant <value_float = 1.0> ()
    one_d = Cast <to = 11> (one)
    steps = Sub (n, one_d)
    xd = Cast <to = 11> (x)
    ild = Cast <to = 11> (il)
    ihd = Cast <to = 11> (ih)
    old = Cast <to = 11> (ol)
    ohd = Cast <to = 11> (oh)
    moved = Sub (xd, ild)
    width = Sub (ihd, ild)
    share = Div (moved, width)
    scaled = Mul (share, steps)
    level = Round (scaled)
    again = Div (level, steps)
    out = Sub (ohd, old)
    wide = Mul (again, out)
    inside = Add (wide, old)
    least = Min (ild, ihd)
    most = Max (ild, ihd)
    below = LessOrEqual (xd, least)
    above = Greater (xd, most)
    upper = Where (above, ohd, inside)
    yd = Where (below, old, upper)
    y = Cast <to = 1> (yd)
}
"""
"""The operator by the formula of its documentation, in float64."""


def by_formula(written: onnx.ModelProto, feeds: list[dict[str, Array]]) -> dict[str, list[Array]]:
    """What a model with OpenVINO's FakeQuantize computes."""
    model = onnx.ModelProto()
    model.CopyFrom(written)
    model.functions.append(onnx.parser.parse_function(FORMULA))
    return infer(model, feeds, optimize=False)


def assert_close(got: dict[str, list[Array]], want: dict[str, list[Array]]) -> None:
    for name, arrays in want.items():
        for one, other in zip(got[name], arrays, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * float(np.abs(other).max()))


def quantized(model: onnx.ModelProto, path: Path | None = None, **options: Any) -> Quantized:
    return onnxq.quantize(model, feeds_for(model), backend="openvino", output=path, options=Options(**options))


@pytest.mark.parametrize("graph", GRAPHS)
def test_fake_quantize_by_its_formula_is_what_is_rendered(graph: str, tmp_path: Path) -> None:
    model = GRAPHS[graph]()
    q = quantized(model, tmp_path / "q.onnx", format=FQ)
    written = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert {o.domain: o.version for o in written.opset_import}["org.openvinotoolkit"] == 1
    assert not written.functions and "onnxq" not in {o.domain for o in written.opset_import}
    nodes = [n for n in written.graph.node if n.op_type == "FakeQuantize"]
    levels = [a.i for n in nodes for a in n.attribute]
    weights = sum(site.role == "weight" for site in q.plan.sites)
    assert levels.count(255) == weights and levels.count(256) == len(nodes) - weights and weights > 0
    feeds = feeds_for(model, samples=3)
    assert_close(by_formula(written, feeds), infer(ir.to_proto(q.rendered()), feeds, optimize=False))


def test_ranges_are_exact_and_lie_along_the_channels(tmp_path: Path) -> None:
    q = quantized(residual(), tmp_path / "q.onnx", format=FQ)
    written = onnx.load(tmp_path / "q.onnx")
    constants = constants_of(written)
    found = 0
    for node in written.graph.node:
        if node.op_type != "FakeQuantize":
            continue
        low, high = constants[node.input[1]], constants[node.input[2]]
        assert list(node.input[1:3]) == list(node.input[3:5])
        site = q.plan.by_name[node.input[1].removesuffix("_low")]
        qp = q.qparams[site.name]
        exact = qp.scale.astype(np.float64)
        assert np.array_equal(low.reshape(exact.shape), (qp.spec.qmin - qp.zero_point) * exact)
        assert np.array_equal(high.reshape(exact.shape), (qp.spec.qmax - qp.zero_point) * exact)
        if site.role == "weight":
            found += 1
            assert low.shape == (16, 1, 1, 1)
    assert found == 3


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_way_back(graph: str, tmp_path: Path) -> None:
    model = GRAPHS[graph]()
    q = quantized(model, tmp_path / "q.onnx", format=FQ)
    reader = backend_named("openvino").formats[FQ].read
    assert reader is not None
    back = reader(tmp_path / "q.onnx")
    given = {(s.tensor, s.role == "weight"): q.qparams[s.name] for s in q.plan.sites}
    for site in back.plan.sites:
        tensor = site.tensor
        want, got = given[tensor, site.role == "weight"], back.qparams[site.name]
        assert np.array_equal(want.scale.reshape(-1), got.scale.reshape(-1))
        assert np.array_equal(want.lo.reshape(-1), got.lo.reshape(-1))
        if site.role == "weight":
            assert got.spec.signed and got.spec.narrow_range and not got.zero_point.any()
        if want.scale.size > 1:
            assert got.spec.granularity == want.spec.granularity
    back.save(tmp_path / "again.onnx")
    feeds = feeds_for(model)
    first, second = (
        infer(ir.to_proto(x.rendered()), feeds, optimize=False) for x in (q, reader(tmp_path / "again.onnx"))
    )
    for name, arrays in first.items():
        for a, b in zip(arrays, second[name], strict=True):
            np.testing.assert_array_equal(a, b)


def test_weights_of_7_bits_keep_their_numbers(tmp_path: Path) -> None:
    q = quantized(residual(), tmp_path / "q.onnx", format=FQ, weight_bits=7)
    written = onnx.load(tmp_path / "q.onnx")
    feeds = images(1, 16, 8, 8)
    assert_close(by_formula(written, feeds), infer(ir.to_proto(q.rendered()), feeds, optimize=False))
    assert {a.i for n in written.graph.node if n.op_type == "FakeQuantize" for a in n.attribute} == {255, 256}


def _one(levels: int = 256, low: object = 0.0, high: object = 2.55, out: object = 2.55) -> onnx.ModelProto:
    nodes = [helper.make_node("FakeQuantize", ["x", "l", "h", "l", "o"], ["y"], domain=DOMAIN)]
    nodes[0].attribute.append(helper.make_attribute("levels", levels))
    ends = {"l": f32(low), "h": f32(high), "o": f32(out)}
    shape: list[str | int | None] = ["N", 4]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(a, n) for n, a in ends.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (_one(levels=16), "16 levels"),
        (_one(out=5.1), "maps one range to another"),
        (_one(low=1.0), "does not hold zero"),
        (_one(low=3.0), "empty"),
        (residual(), "no org.openvinotoolkit::FakeQuantize"),
    ],
)
def test_what_is_no_8_bit_quantizer_is_an_error(model: onnx.ModelProto, said: str, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    reader = backend_named("openvino").formats[FQ].read
    assert reader is not None
    with pytest.raises(BackendError, match=said):
        reader(tmp_path / "m.onnx")


def test_a_model_of_another_tool_is_read(tmp_path: Path) -> None:
    onnx.save(_one(low=[[-1.28]], high=[[1.27]], out=[[1.27]]), tmp_path / "m.onnx")
    reader = backend_named("openvino").formats[FQ].read
    assert reader is not None
    back = reader(tmp_path / "m.onnx")
    (site,) = back.plan.sites
    assert site.tensor == "x" and site.spec.dtype == "int8"
    assert back.qparams[site.name].scale.item() == pytest.approx(0.01, rel=1e-6)
    assert not back.qparams[site.name].zero_point.any()


def test_bodies_of_branches_are_written_too(tmp_path: Path) -> None:
    model = build(
        """(float[1, 16, 8, 8] x, bool flag) => (float[1, 16, 8, 8] y) {
            y = If (flag) <
                then_branch = yes () => (float[1, 16, 8, 8] t) { t = Conv <pads = [1, 1, 1, 1]> (x, w) },
                else_branch = no () => (float[1, 16, 8, 8] e) { e = Identity (x) }
            >
        }""",
        w=normal(16, 16, 3, 3),
    )
    feeds = [{**feed, "flag": np.array(k % 2 == 0)} for k, feed in enumerate(images(1, 16, 8, 8))]
    q = onnxq.quantize(
        model, feeds, backend="openvino", output=tmp_path / "q.onnx", options=Options(format=FQ, placement="all")
    )
    assert list(q.plan.quantized.values()) == ["Conv"]
    written = onnx.load(tmp_path / "q.onnx")
    bodies = [a.g for n in written.graph.node if n.op_type == "If" for a in n.attribute]
    everywhere = [n.op_type for g in (written.graph, *bodies) for n in g.node]
    assert everywhere.count("FakeQuantize") == 2

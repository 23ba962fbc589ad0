"""Quant of QONNX: written, evaluated by its formula, and read back by loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.plan import Edge
from tests.contract import infer
from tests.models import build, f32, feeds_for, images, normal
from tests.targets import GRAPHS

Array = NDArray[Any]
DOMAIN = "qonnx.custom_op.general"
FORMULA = """
<opset_import: ["" : 17], domain: "qonnx.custom_op.general">
Quant <signed, narrow, rounding_mode> (x, scale, zeropt, bitwidth) => (y) {
    one = Constant <value_float = 1.0> ()
    two = Constant <value_float = 2.0> ()
    s_int = Constant <value_int: int = @signed> ()
    n_int = Constant <value_int: int = @narrow> ()
    s = Cast <to = 1> (s_int)
    n = Cast <to = 1> (n_int)
    power = Sub (bitwidth, s)
    count = Pow (two, power)
    top = Sub (count, one)
    least = Mul (count, s)
    negative = Neg (least)
    low = Add (negative, n)
    ratio = Div (x, scale)
    moved = Add (ratio, zeropt)
    below = Max (moved, low)
    inside = Min (below, top)
    level = Round (inside)
    centred = Sub (level, zeropt)
    y = Mul (centred, scale)
}
"""
"""The operator by its documentation: it cuts off before it rounds. Unsigned and narrow is nothing that is written."""


def by_formula(written: onnx.ModelProto, feeds: list[dict[str, Array]]) -> dict[str, list[Array]]:
    """What a model with Quant computes."""
    model = onnx.ModelProto()
    model.CopyFrom(written)
    model.functions.append(onnx.parser.parse_function(FORMULA))
    return infer(model, feeds, optimize=False)


def quants(model: onnx.ModelProto) -> dict[str, dict[str, Any]]:
    """What each Quant reads → its attributes, with ``bits``, ``zero`` and ``scale``."""
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.domain == DOMAIN:
            said = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            scale, zero, bits = (arrays[name] for name in node.input[1:])
            found[node.input[0]] = {**said, "bits": int(bits), "zero": zero, "scale": scale, "shape": bits.shape}
    return found


@pytest.mark.parametrize(("weights", "activations"), [(8, 8), (4, 3), (2, 6), (16, 16)])
@pytest.mark.parametrize("graph", GRAPHS)
def test_quant_by_its_formula_is_what_is_rendered(graph: str, weights: int, activations: int, tmp_path: Path) -> None:
    model = GRAPHS[graph]()
    options = Options(weight_bits=weights, act_bits=activations, min_sqnr=-100)
    q = onnxq.quantize(model, feeds_for(model), backend="qonnx", output=tmp_path / "q.onnx", options=options)
    written = onnx.load(tmp_path / "q.onnx")
    imports = {o.domain: o.version for o in written.opset_import}
    assert imports[DOMAIN] == 1 and "onnxq" not in imports and not written.functions
    stored = {tensor.name for tensor in written.graph.initializer}
    for name, quant in quants(written).items():
        assert quant["rounding_mode"] == b"ROUND" and not quant["zero"].any() and quant["shape"] == ()
        assert quant["bits"] == (weights if name in stored else activations)
        assert quant["narrow"] == int(name in stored) and quant["signed"] >= quant["narrow"]
    feeds = feeds_for(model, samples=3)
    want = infer(ir.to_proto(q.rendered()), feeds, optimize=False)
    for name, arrays in by_formula(written, feeds).items():
        for one, other in zip(arrays, want[name], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * float(np.abs(other).max()))


@pytest.mark.parametrize("backend", ["qonnx", "hls4ml"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_way_back(graph: str, backend: str, tmp_path: Path) -> None:
    model = GRAPHS[graph]()
    options = Options(weight_bits=5, act_bits=6, min_sqnr=-100)
    q = onnxq.quantize(model, feeds_for(model), backend=backend, output=tmp_path / "q.onnx", options=options)
    back = onnxq.read(tmp_path / "q.onnx", backend=backend)
    of_edge: dict[Edge, Any] = {edge: q.qparams[site.name] for site in q.plan.sites for edge in site.readers}
    found = 0
    for site in back.plan.sites:
        got = back.qparams[site.name]
        want = next(of_edge[edge] for edge in site.readers if edge in of_edge)
        assert (got.spec.qmin, got.spec.qmax) == (want.spec.qmin, want.spec.qmax)
        assert np.array_equal(got.scale, want.scale) and np.array_equal(got.zero_point, want.zero_point)
        found += 1
    assert found > len(q.plan.quantized) // 2


def test_weights_lie_on_their_grids_and_each_reader_has_a_quant_of_its_own(tmp_path: Path) -> None:
    model = GRAPHS["branches"]()
    onnxq.quantize(model, feeds_for(model), backend="qonnx", output=tmp_path / "q.onnx")
    written = onnx.load(tmp_path / "q.onnx")
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in written.graph.initializer}
    for name, quant in quants(written).items():
        if name in arrays:
            codes = arrays[name] / quant["scale"]
            np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
            assert np.abs(codes).max() < 127.5
    twice = [node for node in written.graph.node if node.input[0] == "shared"]
    readers = [sum(twin.output[0] in node.input for node in written.graph.node) for twin in twice]
    assert readers == [1, 1]


def net(op: str = "Relu (a)", **constants: Any) -> onnx.ModelProto:
    return build(
        f"(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {{ a = Conv (x, v)\n [act] r = {op}\n y = Conv (r, w) }}",
        v=normal(4, 3, 3, 3),
        w=normal(4, 4, 1, 1, seed=1),
        **constants,
    )


def written(model: onnx.ModelProto, folder: Path, data: list[dict[str, Array]] | None = None) -> onnx.ModelProto:
    onnxq.quantize(model, data or images(1, 3, 8, 8), backend="qonnx", output=folder / "q.onnx")
    return onnx.load(folder / "q.onnx")


def test_attributes_with_defaults_are_said(tmp_path: Path) -> None:
    """Both qonnx and FINN ask for them by name."""
    first = next(node for node in written(net(), tmp_path).graph.node if node.op_type == "Conv")
    said = {a.name: onnx.helper.get_attribute_value(a) for a in first.attribute}
    want = {"kernel_shape": [3, 3], "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0], "group": 1}
    assert said == want


@pytest.mark.parametrize(("high", "becomes"), [(0.5, "Relu"), (1e4, "Relu"), (-1.0, "Clip")])
def test_a_clip_that_its_quantizer_saturates_is_a_relu(high: float, becomes: str, tmp_path: Path) -> None:
    """The compilers have no Clip. Where nothing reaches its end, the quantizer ends before it."""
    bounds = {"low": f32(0 if high > 0 else -2), "high": f32(abs(high))}
    model = net("Clip (a, low, high)", **bounds)
    made = written(model, tmp_path)
    assert [node.op_type for node in made.graph.node if node.name == "act"] == [becomes]
    feeds = images(1, 3, 8, 8)
    want = infer(ir.to_proto(onnxq.read(tmp_path / "q.onnx", backend="qonnx").rendered()), feeds, optimize=False)
    given = onnxq.quantize(model, images(1, 3, 8, 8), backend="qonnx")
    as_given = infer(ir.to_proto(given.rendered()), feeds, optimize=False)
    for one, other in zip(want["y"], as_given["y"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)

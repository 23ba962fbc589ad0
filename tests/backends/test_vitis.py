"""The XINT8 target: powers of two, positions within reach of the DPU's shifters, its arithmetic, its artifacts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import onnxq
from onnxq import Options
from onnxq.backends.vitis import BACKEND
from onnxq.backends.vitis.positions import position
from onnxq.backends.vitis.rewrites import factor
from onnxq.calibration.weights import weight_range
from onnxq.errors import BackendError, OptionError
from onnxq.graph.files.load import load
from onnxq.prepare import Prepared
from onnxq.qparams import QParams, fake_quantize
from onnxq.ranged import from_range
from tests.contract import infer, sqnr
from tests.models import build, constants_of, f32, images, normal, untouched
from tests.running import open_session


def net() -> onnx.ModelProto:
    """Conv with every activation function that the DPU knows, a residual Add, Concat, pools and a Gemm."""
    return build(
        """(float[1, 3, 12, 12] x) => (float[1, 5] y) {
            [stem] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            [relu] r = Relu (a)
            [leaky] l = Conv <pads = [1, 1, 1, 1]> (r, w2, b2)
            [leaky_act] la = LeakyRelu <alpha = 0.1> (l)
            [six] s = Conv (la, w3)
            [six_act] sa = Clip (s, zero, six)
            [swish] h = HardSwish (sa)
            [sum] t = Add (h, r)
            [join] c = Concat <axis = 1> (t, la)
            [mean] m = AveragePool <kernel_shape = [3, 3], strides = [3, 3]> (c)
            [gate] g = Sigmoid (m)
            [gated] n = Mul (m, g)
            [all] p = GlobalAveragePool (n)
            [flat] f = Flatten (p)
            [head] y = Gemm <transB = 1> (f, w4, b4)
        }""",
        w1=normal(8, 3, 3, 3),
        b1=normal(8, seed=1, scale=0.1),
        w2=normal(8, 8, 3, 3, seed=2),
        b2=normal(8, seed=3, scale=0.1),
        w3=normal(8, 8, 1, 1, seed=4),
        w4=normal(5, 16, seed=5),
        b4=normal(5, seed=6, scale=0.1),
        zero=f32(0),
        six=f32(6),
    )


DATA = images(1, 3, 12, 12)


def quantized(
    model: onnx.ModelProto, feeds: list[dict[str, NDArray[Any]]] | None = None, **options: object
) -> onnxq.Quantized:
    return onnxq.quantize(model, DATA if feeds is None else feeds, backend="vitis", options=Options(**options))  # type: ignore[arg-type]


def test_every_number_is_int8_with_a_power_of_two_and_the_result_is_near() -> None:
    proto = ir.to_proto(quantized(net()).rendered())
    onnx.checker.check_model(proto, full_check=True)
    constants = constants_of(proto)
    readers = [n for n in proto.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert readers
    for node in readers:
        scale, zero = constants[node.input[1]], constants[node.input[2]]
        assert scale.shape == () and np.frexp(scale)[0] == 0.5, node.name
        assert zero.dtype == np.int8 and zero == 0, node.name
    biases = {n.input[2] for n in proto.graph.node if n.op_type in ("Conv", "Gemm") and len(n.input) > 2}
    stored = {n.output[0]: constants[n.input[0]] for n in readers if n.input[0] in constants}
    assert len(biases) == 3 and all(stored[name].dtype == np.int8 for name in biases)
    assert {opset.version for opset in proto.opset_import if opset.domain == ""} == {17}
    before, after = infer(net(), DATA, optimize=False), infer(proto, DATA, optimize=False)
    assert sqnr(before["y"], after["y"]) > 15


def test_nothing_stands_between_a_layer_and_its_activation_function() -> None:
    proto = ir.to_proto(quantized(net()).rendered())
    makers = {n.output[0]: n.op_type for n in proto.graph.node}
    pairs = {(makers.get(n.input[0]), n.op_type) for n in proto.graph.node}
    assert {("Conv", "Relu"), ("Conv", "LeakyRelu"), ("Conv", "Clip"), ("AveragePool", "Mul")} <= pairs
    assert {("HardSigmoid", "Mul"), ("Relu", "QuantizeLinear"), ("Clip", "QuantizeLinear")} <= pairs
    assert "Conv" not in {before for before, after in pairs if after == "QuantizeLinear"}


def test_a_clip_that_the_dpu_has_not_gets_a_quantizer_in_front() -> None:
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { [conv] a = Conv (x, w)\n [clip] y = Clip (a, low, high) }",
        w=normal(4, 4, 1, 1),
        low=f32(-1),
        high=f32(2),
    )
    plan = onnxq.plan(model, backend="vitis")
    assert not plan.absorbed and {"a", "y"} <= plan.by_name.keys()


def test_prelu_slopes_are_weights() -> None:
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { [conv] a = Conv (x, w)\n [act] y = PRelu (a, slope) }",
        w=normal(4, 4, 1, 1),
        slope=normal(4, 1, 1, seed=1, scale=0.2),
    )
    plan = onnxq.plan(model, backend="vitis")
    assert plan.absorbed == {"act": "conv"}
    assert plan.by_name["slope"].role == "weight" and plan.by_name["slope"].spec.power_of_two


def test_arithmetic_of_the_dpu_keeps_the_tensors_names() -> None:
    model, notes = Prepared(net(), Options()).for_target(BACKEND, Options())
    values = {v.name: v for n in model.graph for v in n.outputs}
    assert not {"Sigmoid", "HardSwish"} & {n.op_type for n in model.graph}
    assert values["la"].producer().attributes["alpha"].value == 26 / 256  # type: ignore[union-attr]
    for name in "hmgp":
        assert values[name].producer().op_type == "Mul", name  # type: ignore[union-attr]
    assert any("HardSwish" in note for note in notes)
    sample = DATA[0]["x"]
    exposed = onnx.shape_inference.infer_shapes(ir.to_proto(model))
    for name in ("c", "m", "g", "sa", "h"):
        exposed.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = open_session(exposed)
    _, c, m, g, sa, h = session.run(None, {"x": sample})
    tiles = c.reshape(1, 16, 4, 3, 4, 3).mean(axis=(3, 5))
    np.testing.assert_allclose(m, tiles * (9 * 7 / 64), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(g, np.clip(m / 6 + 0.5, 0, 1) * 1.0001220703125, rtol=1e-6)
    np.testing.assert_allclose(h, sa * np.clip(sa / 6 + 0.5, 0, 1) * 1.0001220703125, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [(2, 1.0), (3, 63 / 64), (4, 1.0), (5, 250 / 256), (6, 252 / 256), (7, 1029 / 1024), (14, 4116 / 4096), (300, 1.0)],
)
def test_factors_of_square_pools(kernel: int, expected: float) -> None:
    x = ir.Value(name="x", shape=ir.Shape([1, 4, 512, 512]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("AveragePool", [x], attributes={"kernel_shape": [kernel, kernel]})
    assert factor(node) == np.float32(expected)
    assert factor(ir.node("AveragePool", [x], attributes={"kernel_shape": [kernel, kernel + 1]})) is None


def test_means_over_unknown_sizes_are_left_and_said() -> None:
    model = build(
        "(float[1, 4, H, W] x) => (float[1, 4, 1, 1] y) { [conv] a = Conv (x, w)\n [mean] y = GlobalAveragePool (a) }",
        w=normal(4, 4, 1, 1),
    )
    prepared, notes = Prepared(model, Options()).for_target(BACKEND, Options())
    assert [n.op_type for n in prepared.graph] == ["Conv", "GlobalAveragePool"]
    assert any("mean" in note and "not known" in note for note in notes)


def test_positions_of_weights_make_the_least_error_of_all_powers_of_two() -> None:
    rng = np.random.default_rng(0)
    for tail in (0.0, 20.0):
        w = rng.standard_normal(4000).astype(np.float32)
        w[0] += tail
        chosen = from_range(*weight_range(w, BACKEND.weight), BACKEND.weight)

        def error(p: int, w: NDArray[np.float32] = w) -> float:
            qp = QParams(BACKEND.weight, np.asarray(2.0**-p, np.float32), np.asarray(0))
            return float(np.square(fake_quantize(w, qp) - w, dtype=np.float64).sum())

        assert position(chosen) == min(range(-2, 10), key=error)


@pytest.mark.parametrize(
    "options",
    [
        {"per_channel": True},
        {"symmetric": False},
        {"weight_bits": 4},
        {"act_bits": 16},
        {"override": ("stem=per_channel=true",)},
        {"override": ("stem=symmetric=false",)},
        {"override": ("stem=act_bits=16",)},
    ],
)
def test_what_xint8_has_not_is_an_error_before_any_data_is_read(options: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        onnxq.quantize(net(), untouched(), backend="vitis", options=Options(**options))  # type: ignore[arg-type]


def test_exclusions_work_on_what_was_rewritten() -> None:
    for pattern in ("mean", "Mul", "swish", "gate", "stem", "AveragePool", "Conv"):
        result = quantized(net(), exclude=(pattern,))
        kept = {k.node: k.reason for k in result.plan.kept_float}
        assert any(pattern in why for why in kept.values())
        open_session(ir.to_proto(result.rendered()))
    kept = {k.node: k.reason for k in quantized(net(), exclude=("stem",)).plan.kept_float}
    assert kept["relu"] == "the operator before it stays float"


def test_fix_positions_are_written_and_read_back(tmp_path: Path) -> None:
    result = quantized(net(), format="fix-positions")
    files = result.save(tmp_path / "m.onnx")
    assert [f.name for f in files] == ["m.onnx", "m.json"]
    table = json.loads((tmp_path / "m.json").read_text())["vitis"]
    assert table == {s.tensor: {"scale": float(result.qparams[s.name].scale)} for s in result.plan.sites}
    written = onnx.load(tmp_path / "m.onnx")
    assert not {"QuantizeLinear", "FakeQuantize"} & {n.op_type for n in written.graph.node}
    assert [n.op_type for n in written.graph.node].count("Mul") == 2  # x times HardSigmoid, twice: no factors
    names = {n for node in written.graph.node for n in (*node.input, *node.output)}
    assert table.keys() <= names
    for tensor in written.graph.initializer:
        if tensor.name in table:
            clipped, scale = numpy_helper.to_array(tensor), table[tensor.name]["scale"]
            assert clipped.min() >= -128 * scale and clipped.max() <= 127 * scale
    read = BACKEND.formats["fix-positions"].read
    assert read is not None
    again = infer(ir.to_proto(read(tmp_path / "m.onnx").rendered()), DATA, optimize=False)
    before = infer(ir.to_proto(result.rendered()), DATA, optimize=False)
    np.testing.assert_array_equal(np.stack(again["y"]), np.stack(before["y"]))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"vitis": {"x": {"scale": 0.3}}}', '{"vitis": {"nobody": {"scale": 0.5}}}']
)
def test_a_table_that_is_none_is_an_error(tmp_path: Path, text: str) -> None:
    quantized(net(), format="fix-positions").save(tmp_path / "m.onnx")
    (tmp_path / "m.json").write_text(text)
    read = BACKEND.formats["fix-positions"].read
    assert read is not None
    with pytest.raises(BackendError):
        read(tmp_path / "m.onnx")


def test_qdq_and_fake_quantize_compute_the_same(tmp_path: Path) -> None:
    qdq, fake = quantized(net()), quantized(net(), format="fake-quantize")
    a, b = (infer(ir.to_proto(q.rendered()), DATA, optimize=False)["y"] for q in (qdq, fake))
    np.testing.assert_array_equal(np.stack(a), np.stack(b))
    qdq.save(tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx").graph.outputs[0].name == "y"


@pytest.mark.parametrize("exclude", [("Sigmoid", "LeakyRelu"), ("gate", "leak"), ("s", "y")])
def test_what_is_excluded_is_not_rewritten(exclude: tuple[str, ...]) -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float y) {
            c = Conv (x, w)
            [gate] s = Sigmoid (c)
            d = Conv (s, v)
            [leak] y = LeakyRelu <alpha = 0.3> (d)
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    q = onnxq.quantize(model, images(1, 3, 8, 8), backend="vitis", options=Options(exclude=exclude))
    kept = {node.name: node for node in q.model.graph}
    assert kept["gate"].op_type == "Sigmoid"
    assert kept["leak"].attributes.get_float("alpha") == pytest.approx(0.3)
    assert {"gate", "leak"}.isdisjoint(q.plan.quantized)
    (rewritten,) = [
        n for n in onnxq.quantize(model, images(1, 3, 8, 8), backend="vitis").model.graph if n.name == "gate"
    ]
    assert rewritten.op_type == "HardSigmoid"


def test_factors_that_are_in_a_model_already_are_not_multiplied_in_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    onnxq.quantize(net(), DATA, backend="vitis", output=first)
    made = onnxq.deploy(first, backend="vitis", output=second)
    muls = [[n for n in onnx.load(path).graph.node if n.op_type == "Mul"] for path in (first, second)]
    assert len(muls[0]) == len(muls[1]) and not [k for k in made.plan.kept_float if k.op == "Mul"]
    for feed in DATA:
        want, got = (infer(onnx.load(path), [feed], optimize=False)["y"] for path in (first, second))
        np.testing.assert_array_equal(got, want)


def test_an_operator_of_another_domain_has_no_bias(tmp_path: Path) -> None:
    """Its name may be that of a standard one: what it reads third is a constant like others."""
    model = build(
        "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) { a = Conv (x, w)\n r = Relu (a)\n y = Mul (r, c) }",
        w=normal(4, 4, 1, 1),
        c=normal(4, 1, 1),
    )
    path = tmp_path / "m.onnx"
    onnxq.quantize(model, images(1, 4, 6, 6), backend="vitis", output=path, options=Options(format="fix-positions"))
    read = BACKEND.formats["fix-positions"].read
    assert read is not None
    alone = read(path)
    written = onnx.load(path)
    (factor,) = (name for node in written.graph.node if node.op_type == "Mul" for name in node.input if name != "r")
    written.graph.node.append(onnx.helper.make_node("Conv", ["x", "x", factor], ["own"], domain="custom"))
    written.opset_import.append(onnx.helper.make_opsetid("custom", 1))
    onnx.save(written, path)
    roles = [{site.tensor: site.role for site in r.plan.sites}[factor] for r in (alone, read(path))]
    assert roles[0] == roles[1] != "bias"


def test_no_quantizer_stands_between_a_pad_and_the_mean_pool_that_alone_reads_it() -> None:
    text = """(float[1, 4, 8, 8] x) => (float[1, 4, 7, 7] y, float[1, 4, 10, 10] z) {{
        r = Relu (x)
        p = Pad (r, sides)
        y = AveragePool <kernel_shape = [4, 4]> (p)
        z = {reader} (p)
    }}"""
    sides = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    found = onnxq.plan(build(text.format(reader="Relu"), sides=sides), backend="vitis")
    assert "p" in {site.tensor for site in found.sites}
    alone = build(text.format(reader="Relu").replace("z = Relu (p)", "z = Pad (r, sides)"), sides=sides)
    found = onnxq.plan(alone, backend="vitis")
    assert {"Pad", "AveragePool"} <= found.quantized.keys() and "p" not in {site.tensor for site in found.sites}

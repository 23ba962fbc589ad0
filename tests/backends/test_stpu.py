"""STPU: the table's entries held against the numbers of the model, its formulas against float32 bit patterns."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxq
from onnxq import Options
from onnxq.backends.stpu import BACKEND, biased_exponent, table_path
from onnxq.errors import BackendError, OptionError
from onnxq.ort.session import Session
from tests.contract import infer, sqnr
from tests.models import build, constants_of, f32, images, normal


def net() -> onnx.ModelProto:
    """Conv with Relu and with Clip, a depthwise layer, Add, Concat, ConvTranspose, upsampling, Sigmoid, a Gemm."""
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 5] y, float[1, 4, 16, 16] gate) {
            [stem] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            [act] r = Relu (a)
            [depthwise] d = Conv <group = 8, pads = [1, 1, 1, 1]> (r, w2)
            [six] e = Clip (d, zero, top)
            [sum] s = Add (e, r)
            [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (s)
            [side] c = Conv (p, w3)
            [join] j = Concat <axis = 1> (p, c)
            [double] u = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                                 nearest_mode = "floor"> (j, , scales)
            [deconv] t = ConvTranspose <strides = [2, 2], kernel_shape = [2, 2]> (u, w4, b4)
            [sigmoid] gate = Sigmoid (t)
            [middle] m = GlobalAveragePool (u)
            [flat] f = Flatten (m)
            [head] y = Gemm <transB = 1> (f, w5, b5)
        }""",
        w1=normal(8, 3, 3, 3),
        b1=normal(8, seed=1, scale=0.1),
        w2=normal(8, 1, 3, 3, seed=2),
        w3=normal(4, 8, 1, 1, seed=3),
        w4=normal(12, 4, 2, 2, seed=4),
        b4=normal(4, seed=5, scale=0.1),
        w5=normal(5, 12, seed=6),
        b5=normal(5, seed=7, scale=0.1),
        zero=f32(0),
        top=f32(6),
        scales=f32([1, 1, 2, 2]),
    )


FEEDS = images(1, 3, 8, 8, samples=4)


def written(tmp_path: Path, model: onnx.ModelProto | None = None, **options: Any) -> tuple[onnxq.Quantized, Any]:
    """A result written to a folder, and its table."""
    options = {"range": "minmax", **options}
    q = onnxq.quantize(model or net(), FEEDS, backend="stpu", output=tmp_path / "m.onnx", options=Options(**options))
    return q, json.loads((tmp_path / "m_minmax.json").read_text())


def magnitudes(*names: str) -> dict[str, float]:
    """Tensor → its largest magnitude over the samples."""
    model = net()
    for name in names:
        if name not in {o.name for o in model.graph.output}:
            model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    outputs = infer(model, FEEDS, optimize=False) | {"x": [feed["x"] for feed in FEEDS]}
    return {name: max(float(np.abs(a).max()) for a in arrays) for name, arrays in outputs.items()}


def exponent_bits(value: float) -> int:
    """The exponent field of a float32."""
    return (int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 23) & 0xFF


def test_ranges(tmp_path: Path) -> None:
    q, table = written(tmp_path)
    assert [path.name for path in q.files] == ["m.onnx", "m_minmax.json"]
    top = magnitudes("r", "e", "s", "p", "c", "j", "u", "t", "m", "f", "y")
    for name in ("x", "r", "e", "t", "y"):
        assert table[name]["max"] == pytest.approx(top[name], rel=1e-6), name
    for entry in table.values():
        assert "alpha" in entry or entry["min"] == -entry["max"]
    shared = table["j"]["max"]
    assert shared == pytest.approx(top["j"], rel=1e-6)
    assert shared == table["c"]["max"] == table["p"]["max"] == table["u"]["max"] == table["s"]["max"]
    assert table["gate"] == {"min": -1.0, "max": 1.0}
    assert table["m"]["max"] == table["f"]["max"]
    weights = constants_of(net())
    for node, name in (("stem", "w1"), ("depthwise", "w2"), ("side", "w3"), ("deconv", "w4"), ("head", "w5")):
        assert table[f"{node}_weights"]["max"] == pytest.approx(float(np.abs(weights[name]).max()), rel=1e-6)


def test_activation_functions_are_computed_with_the_operator_in_front(tmp_path: Path) -> None:
    q, table = written(tmp_path)
    assert q.plan.absorbed == {"act": "stem", "six": "depthwise"}
    for before, behind in (("a", "r"), ("d", "e")):
        assert {k: table[before][k] for k in ("min", "max")} == table[behind]


def test_exponents_and_units_of_biases(tmp_path: Path) -> None:
    _, table = written(tmp_path)

    def summed(node: str, data: str, terms: int, output: str) -> int:
        product = math.sqrt(terms) * table[data]["max"] * table[f"{node}_weights"]["max"]
        return exponent_bits(max(product, table[output]["max"])) - 10

    assert table["a"]["emin"] == summed("stem", "x", 3 * 9, "a")
    assert table["d"]["emin"] == summed("depthwise", "r", 9, "d")
    assert table["c"]["emin"] == summed("side", "p", 8, "c")
    assert table["t"]["emin"] == summed("deconv", "u", 12 * 4, "t")
    assert table["u"]["emin"] == exponent_bits(table["u"]["max"]) - 20
    assert table["y"]["emin"] == 128
    assert {name for name, entry in table.items() if "emin" in entry} == {"a", "d", "c", "t", "u", "y"}
    for node, data in (("stem", "x"), ("deconv", "u"), ("head", "f")):
        steps = [(table[name]["max"] - table[name]["min"]) / 254 for name in (f"{node}_weights", data)]
        assert table[f"{node}_bias"] == {"alpha": pytest.approx(steps[0] * steps[1], rel=1e-12), "zero_point": 0}
    assert "side_bias" not in table


@pytest.mark.parametrize("value", [1.0, 0.75, 6.5, 2.0**-126, 2.0**-125, 2.0**127, 3.4e38, 255.99, 1e-7])
def test_biased_exponents(value: float) -> None:
    assert biased_exponent(value) == exponent_bits(value)


def test_biased_exponents_at_the_ends() -> None:
    assert [biased_exponent(v) for v in (0.0, 1e-45, 1e39)] == [0, 1, 254]


def test_the_model_is_float_with_its_weights_within_their_ranges(tmp_path: Path) -> None:
    _, table = written(tmp_path)
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [n.op_type for n in model.graph.node] == [n.op_type for n in net().graph.node]
    constants = constants_of(model)
    assert np.abs(constants["w1"]).max() <= table["stem_weights"]["max"] * (1 + 1e-7)
    reference, got = (infer(m, FEEDS, optimize=False) for m in (net(), model))
    for name in reference:
        assert sqnr(reference[name], got[name]) > 25, "biases are corrected and on their grid, nothing else changes"


@pytest.mark.parametrize("exclude", [(), ("side",)])
def test_it_is_read_back_bit_for_bit(exclude: tuple[str, ...], tmp_path: Path) -> None:
    q, _ = written(tmp_path, exclude=exclude)
    back = BACKEND.formats["ranges"].read(tmp_path / "m.onnx")  # type: ignore[misc]
    assert {s.name: (s.role, s.readers) for s in back.plan.sites} == {s.name: (s.role, s.readers) for s in q.plan.sites}
    assert back.plan.quantized == q.plan.quantized
    _same_numbers(q, back)


def test_operators_that_only_read_and_write_ranges_count_as_quantized_when_read(tmp_path: Path) -> None:
    """The table cannot say otherwise; the numbers are the same."""
    q, _ = written(tmp_path, exclude=("double", "sum"))
    back = BACKEND.formats["ranges"].read(tmp_path / "m.onnx")  # type: ignore[misc]
    assert back.plan.quantized.keys() - q.plan.quantized.keys() == {"double", "sum"}
    _same_numbers(q, back)


def _same_numbers(q: onnxq.Quantized, back: onnxq.Quantized) -> None:
    assert all(back.qparams[name].scale == qp.scale for name, qp in q.qparams.items() if qp.scale.ndim == 0)
    for feed in FEEDS:
        a, b = (Session(m.rendered(), optimize=False).run(feed) for m in (q, back))
        for name in a:
            assert a[name].tobytes() == b[name].tobytes()


def test_the_result_is_close_to_the_float_model(tmp_path: Path) -> None:
    q, _ = written(tmp_path)
    reference = infer(net(), FEEDS, optimize=False)
    got = [Session(q.rendered(), optimize=False).run(feed) for feed in FEEDS]
    for name in reference:
        assert sqnr(reference[name], [run[name] for run in got]) > 25


def test_a_constant_operand_has_its_range_under_its_own_name(tmp_path: Path) -> None:
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { [add] y = Add (x, k) }", k=normal(1, 4, 8, 8, scale=1.0)
    )
    q = onnxq.quantize(model, images(1, 4, 8, 8), backend="stpu", output=tmp_path / "m.onnx")
    table = json.loads((tmp_path / "m_minmax.json").read_text())
    assert {*table} == {"x", "k", "y"}
    back = BACKEND.formats["ranges"].read(tmp_path / "m.onnx")  # type: ignore[misc]
    assert back.plan.sites == q.plan.sites


def test_names_that_the_table_cannot_tell_apart(tmp_path: Path) -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [one] one_weights = Conv (x, w)
            [two] y = Conv (one_weights, v)
        }""",
        w=normal(4, 3, 1, 1),
        v=normal(4, 4, 1, 1),
    )
    with pytest.raises(BackendError, match="two entries 'one_weights'"):
        onnxq.quantize(model, FEEDS, backend="stpu", output=tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nowhere": {"min": -1.0, "max": 1.0}}, "'nowhere'"),
        ({"x": {"min": -1.0, "max": 2.0}}, "not symmetric"),
        ({"x": {"max": 2.0}}, "min and max"),
        ({"x": [1.0]}, "min and max"),
    ],
)
def test_tables_that_make_no_sense(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    _, table = written(tmp_path)
    table_path(tmp_path / "m.onnx").write_text(json.dumps({**table, **change}))
    with pytest.raises(BackendError, match=message):
        BACKEND.formats["ranges"].read(tmp_path / "m.onnx")  # type: ignore[misc]


@pytest.mark.parametrize(
    "options", [Options(symmetric=False), Options(per_channel=True), Options(weight_bits=4), Options(act_bits=16)]
)
def test_options_without_meaning_are_refused_before_any_work(options: Options) -> None:
    with pytest.raises(OptionError):
        onnxq.quantize(net(), [{"x": np.zeros(1)}], backend="stpu", options=options)

"""Tables of numbers beside a float model: read back, and damaged in every number that they hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.catalog import backends
from onnxq.errors import BackendError, OnnxqError
from onnxq.render.tables import qparams_of
from onnxq.spec import QuantSpec
from tests.contract import infer
from tests.models import build, feeds_for, normal
from tests.targets import BY_RUNTIMES

TABLES = [
    (target.name, name)
    for target in backends()
    for name, form in target.formats.items()
    if form.read is not None and form.simulated and (target.name, name) not in BY_RUNTIMES
    if name != "openvino-fake-quantize"  # which has no table
]
HOSTILE = ["1e999", "-1e999", "NaN", "9" * 400, "-5", "3.7", "1100000000", '"a"', '"8"', "null", "true", "[]", "[1, 2]"]
HOSTILE += ["{}", "1e-50", "[[1], [2, 3]]"]


def layer() -> onnx.ModelProto:
    text = """(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) {
        c = Conv <kernel_shape = [1, 1]> (x, w) r = Relu (c) y = Conv <kernel_shape = [1, 1]> (r, v)
    }"""
    return build(text, w=normal(2, 2, 1, 1), v=normal(2, 2, 1, 1, seed=1))


@pytest.mark.parametrize(("target", "form"), TABLES)
def test_whatever_stands_in_place_of_a_number_is_named_or_read(target: str, form: str, tmp_path: Path) -> None:
    made = onnxq.quantize(
        layer(), feeds_for(layer()), backend=target, output=tmp_path / "m.onnx", options=Options(format=form)
    )
    (table,) = [path for path in made.files if path.suffix != ".onnx"]
    read, render = backend_named(target).formats[form].read, backend_named(target).formats[form].render
    assert read is not None
    render(read(made.files[0]))
    text = table.read_text()
    numbers = list(re.finditer(r"(?<![\w.\"])-?\d+(\.\d*)?(e[+-]?\d+)?(?![\w.\"])", text))
    assert numbers
    for index, found in enumerate(numbers):
        for bad in HOSTILE[index % 4 :: 4]:
            table.write_text(text[: found.start()] + bad + text[found.end() :])
            try:
                render(read(made.files[0]))
            except OnnxqError as error:
                assert "'" in str(error), error
    table.write_text("[" * 100_000)
    with pytest.raises(BackendError):
        read(made.files[0])


@pytest.mark.parametrize(("target", "form"), TABLES)
def test_an_input_that_is_an_output_too_is_read_back(target: str, form: str, tmp_path: Path) -> None:
    model = build(
        "(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y, float[1, 2, 4, 4] x) { y = Conv (x, w) }", w=normal(2, 2, 1, 1)
    )
    feeds = feeds_for(model)
    onnxq.quantize(model, feeds, backend=target, output=tmp_path / "m.onnx", options=Options(format=form))
    found = onnxq.verify(tmp_path / "m.onnx", feeds, backend=target, simulation=True)
    assert found.outputs["x"].sqnr == float("inf") and found.outputs["y"].sqnr > 25


@pytest.mark.parametrize(("target", "form"), TABLES)
def test_a_weight_that_is_an_output_too_comes_out_as_it_was(target: str, form: str, tmp_path: Path) -> None:
    weight = normal(4, 2, 3, 3)
    model = build("(float[1, 2, 8, 8] x) => (float[1, 4, 6, 6] y, float[4, 2, 3, 3] w) { y = Conv (x, w) }", w=weight)
    feeds = feeds_for(model)
    made = onnxq.quantize(model, feeds, backend=target, output=tmp_path / "m.onnx", options=Options(format=form))
    assert made.plan.quantized
    written = infer(onnx.load(made.files[0]), feeds[:1], optimize=False)
    simulated = infer(ir.to_proto(made.rendered()), feeds[:1], optimize=False)
    np.testing.assert_array_equal(written["w"][0], weight)
    np.testing.assert_array_equal(simulated["w"][0], weight)
    found = onnxq.verify(made.files[0], feeds, backend=target, simulation=True)
    assert found.outputs["w"].sqnr == float("inf")


@pytest.mark.parametrize(("target", "form"), TABLES)
def test_layers_behind_what_onnx_infers_nothing_of_are_read_back(target: str, form: str, tmp_path: Path) -> None:
    """A pipeline of classical machine learning: the types behind its Scaler are in the file."""
    model = build(
        """(float[1, 8] x) => (float[1, 4] y) {
            s = ai.onnx.ml.Scaler <offset = [0.1], scale = [2.0]> (x)  y = Gemm (s, w)
        }""",
        domains={"ai.onnx.ml": 2},
        w=normal(8, 4),
    )
    made = onnxq.quantize(
        model, feeds_for(model), backend=target, output=tmp_path / "m.onnx", options=Options(format=form)
    )
    read = backend_named(target).formats[form].read
    assert read is not None and read(made.files[0]).plan.quantized == made.plan.quantized


@pytest.mark.parametrize(("target", "form"), TABLES)
def test_what_a_body_reads_is_read_back(target: str, form: str, tmp_path: Path) -> None:
    """A state that a Scan hands on, and what it picks, are inputs of its body."""
    model = build(
        """(float[6, 1, 8] x, float[1, 8] h0) => (float[1, 8] hn, float[6, 1, 8] ys) {
            hn, ys = Scan <num_scan_inputs = 1, body = b
                (float[1, 8] h, float[1, 8] i) => (float[1, 8] g, float[1, 8] o) {
                p = Gemm (i, w)  q = Gemm (h, v)  s = Add (p, q)  g = Sigmoid (s)  o = Identity (g)
            }> (h0, x)
        }""",
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
    )
    made = onnxq.quantize(
        model, feeds_for(model), backend=target, output=tmp_path / "m.onnx", options=Options(format=form)
    )
    read = backend_named(target).formats[form].read
    assert read is not None
    multiplied = {name for name, op in made.plan.quantized.items() if op == "Gemm"}
    assert not multiplied or multiplied <= read(made.files[0]).plan.quantized.keys()


def test_the_numbers_of_an_entry() -> None:
    made = qparams_of("t", Path("a.json"), QuantSpec(8, signed=False, symmetric=False), [0.5, 1], [3.0, 4])
    assert made.scale.tolist() == [0.5, 1.0] and made.scale.dtype == np.float32
    assert made.zero_point.tolist() == [3, 4] and made.zero_point.dtype == np.int64


@pytest.mark.parametrize("scale", ["a", {}, [[1], [2, 3]], 10**400])
@pytest.mark.parametrize("zero_point", [0, 1])
def test_what_is_no_scale(scale: object, zero_point: object) -> None:
    with pytest.raises(BackendError, match=r"'a\.json': the entry of 't' does not hold"):
        qparams_of("t", Path("a.json"), QuantSpec(), scale, zero_point)


@pytest.mark.parametrize("zero_point", ["a", None, 3.7, float("inf"), float("nan"), 10**400, 2**40, {}])
def test_what_is_no_zero_point(zero_point: object) -> None:
    with pytest.raises(BackendError, match="the entry of 't' does not hold"):
        qparams_of("t", Path("a.json"), QuantSpec(), 1.0, zero_point)


@pytest.mark.parametrize("bits", json.loads('["8", 1, 0, -3, 8.5, 17, 64, null, [8], true, 1100000000]'))
def test_what_is_no_width(bits: int) -> None:
    with pytest.raises(BackendError, match="not a number of bits"):
        qparams_of("t", Path("a.json"), QuantSpec(bits), 1.0)

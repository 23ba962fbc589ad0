"""x * Sigmoid(x) in 16 bits: an Abs keeps the two apart that the HTP would compute as one, wrongly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.ort.session import Session
from tests.models import build, feeds_for, images, normal

PICTURE = "(float[1, 8, 12, 8] x) => (float[1, 8, 12, 8] y)"
TOKENS = "(float[1, 12, 8] x) => (float[1, 12, 8] y)"


def ops(q: onnxq.Quantized) -> list[str]:
    return [n.op_type for n in q.qdq().graph if not n.op_type.endswith("Linear")]


def gate(between: str = "s = Sigmoid (a)\n y = Mul (a, s)") -> onnx.ModelProto:
    return build(f"{PICTURE} {{ a = Conv <pads = [1, 1, 1, 1]> (x, w)\n {between} }}", w=normal(8, 8, 3, 3))


@pytest.mark.parametrize(
    "between",
    [
        "s = Sigmoid (a)\n y = Mul (a, s)",
        "s = Sigmoid (a)\n y = Mul (s, a)",
        "r = Relu (a)\n s = Sigmoid (r)\n y = Mul (r, s)",
        "t = Transpose <perm = [0, 2, 3, 1]> (a)\n u = Sigmoid (t)\n"
        " s = Transpose <perm = [0, 3, 1, 2]> (u)\n y = Mul (a, s)",
    ],
)
def test_an_abs_stands_between_the_two_and_changes_no_number(between: str, tmp_path: Path) -> None:
    model, path = gate(between), tmp_path / "q.onnx"
    feeds = feeds_for(model, samples=2)
    q = onnxq.quantize(model, feeds, backend="qnn", output=path, options=Options(act_bits=16))
    assert ops(q).count("Abs") == 1 and "Abs" not in [n.op_type for n in q.model.graph]
    onnx.checker.check_model(onnx.load(path), full_check=True)
    rendered = q.qdq()
    (magnitude,) = (n for n in rendered.graph if n.op_type == "Abs")
    pair = [next(iter(magnitude.outputs[0].uses())).node]
    pair.append(next(iter(pair[0].outputs[0].uses())).node)
    before = magnitude.inputs[0].producer() if magnitude.inputs[0] is not None else None
    assert before is not None and [n.op_type for n in pair] == ["QuantizeLinear", "DequantizeLinear"]
    assert all(n.inputs[1:] == before.inputs[1:] for n in pair)
    for feed in feeds:
        wide, simulated = Session(rendered, optimize=False).run(feed)["y"], Session(q.fake_quantize()).run(feed)["y"]
        steps = np.abs(wide - simulated) / float(q.qparams["y"].scale)
        # a sum that lies between two integers may be rounded to either, which is some steps of y
        assert (steps > 1.01).mean() < 0.01 and steps.max() < 5


def test_what_was_written_is_read_and_deployed_as_it_is(tmp_path: Path) -> None:
    path, options = tmp_path / "q.onnx", Options(act_bits=16)
    q = onnxq.quantize(gate(), images(1, 8, 12, 8), backend="qnn", output=path, options=options)
    for again in (onnxq.read(path, backend="qnn"), onnxq.deploy(path, backend="qnn", options=options)):
        assert ops(again).count("Abs") == 1
        feed = images(1, 8, 12, 8, samples=1)[0]
        want = Session(q.qdq(), optimize=False).run(feed)["y"]
        np.testing.assert_array_equal(Session(again.qdq(), optimize=False).run(feed)["y"], want)


def test_a_sigmoid_of_two_products_has_one() -> None:
    q = onnxq.quantize(
        gate("s = Sigmoid (a)\n b = Mul (a, s)\n c = Mul (s, a)\n y = Add (b, c)"),
        images(1, 8, 12, 8),
        backend="qnn",
        options=Options(act_bits=16),
    )
    assert ops(q).count("Abs") == 1


@pytest.mark.parametrize(
    ("model", "bits"),
    [
        (gate(), 8),
        (build(f"{TOKENS} {{ a = MatMul (x, w)\n s = Sigmoid (a)\n y = Mul (a, s) }}", w=normal(8, 8)), 16),
        (gate("b = Conv <pads = [1, 1, 1, 1]> (x, w)\n s = Sigmoid (b)\n y = Mul (a, s)"), 16),
    ],
    ids=["8 bits", "no picture", "another tensor"],
)
def test_what_the_htp_computes_rightly_is_left(model: onnx.ModelProto, bits: int) -> None:
    q = onnxq.quantize(model, feeds_for(model, samples=2), backend="qnn", options=Options(act_bits=bits))
    assert "Abs" not in ops(q)


def test_the_width_of_the_sigmoid_decides() -> None:
    """An override of one of two gives 16 bits to that one alone."""
    model = gate("[one] s = Sigmoid (a)\n b = Mul (a, s)\n [two] t = Sigmoid (b)\n y = Mul (b, t)")
    feeds = feeds_for(model, samples=2)
    q = onnxq.quantize(model, feeds, backend="qnn", options=Options(override={"s": "act_bits=16"}))
    assert q.qparams["s"].spec.bits == 16 and q.qparams["t"].spec.bits == 8
    (magnitude,) = (n for n in q.qdq().graph if n.op_type == "Abs")
    assert magnitude.outputs[0].name == "s_quantized_abs"
    assert isinstance(magnitude.graph, ir.Graph)


@pytest.mark.parametrize(("bits", "level"), [(8, None), (16, "warning")])
def test_softplus_in_16_bits_is_warned_of(bits: int, level: str | None) -> None:
    model = gate("[curve] y = Softplus (a)")
    found = [f for f in onnxq.check(model, backend="qnn", options=Options(act_bits=bits)) if "Softplus" in f.what]
    assert [f.level for f in found] == ([level] if level else [])
    q = onnxq.quantize(model, images(1, 8, 12, 8), backend="qnn", options=Options(act_bits=bits))
    assert q.verification is not None
    told = [text for text in q.verification.warnings if "curve" in text and "rows wrong" in text]
    assert len(told) == (1 if level else 0) and all("onnxq verify" in text for text in told)


def test_a_softplus_that_is_right_is_a_note() -> None:
    """As in Mish, where another operator reads its input."""
    model = gate("[curve] p = Softplus (a)\n t = Tanh (p)\n y = Mul (a, t)")
    (found,) = (f for f in onnxq.check(model, backend="qnn", options=Options(act_bits=16)) if "Softplus" in f.what)
    assert found.level == "note"


def test_an_override_of_softplus_decides() -> None:
    model = gate("[curve] y = Softplus (a)")
    options = Options(override={"curve": "act_bits=16"})
    assert any("Softplus" in f.what for f in onnxq.check(model, backend="qnn", options=options))

"""A result of deploy is compared with the model it was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.cli import main
from onnxq.deploying.source import in_form
from onnxq.errors import ExecutionError, VerificationError
from onnxq.measuring.against_source import against_source
from onnxq.measuring.metrics import Errors
from onnxq.ort.session import Session
from tests.models import build, f32, feeds_for
from tests.targets import residual


@pytest.fixture(scope="module")
def source() -> onnx.ModelProto:
    made = onnxq.quantize(residual(), feeds_for(residual()), options=Options(placement="all"))
    model: onnx.ModelProto = ir.serde.serialize_model(made.rendered())
    return model


def test_the_same_numbers_are_exact(source: onnx.ModelProto) -> None:
    made = onnxq.deploy(source, backend="onnxruntime")
    assert made.verification is not None and made.verification.against_source is not None
    found = made.verification.against_source
    assert found.samples == 3 and found.worst is not None and found.worst[1].sqnr > 60 and not found.skipped
    assert not found.warnings and made.verification.to_dict()["against_source"]["samples"] == 3


def test_fewer_quantizers_are_no_cause_for_a_warning(source: onnx.ModelProto) -> None:
    made = onnxq.deploy(source, backend="openvino")
    assert made.verification is not None and made.verification.against_source is not None
    worst = made.verification.against_source.worst
    assert worst is not None and 10 < worst[1].sqnr < 80 and not made.verification.against_source.warnings


def test_a_result_that_computes_something_else_is_told(source: onnx.ModelProto) -> None:
    inside, *_ = in_form(source, backend_named("onnxruntime"), Options())
    broken = onnx.ModelProto()
    broken.CopyFrom(source)
    for tensor in broken.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.int8 and array.ndim == 4:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.clip(array, -10, 10), tensor.name))
    given = ir.serde.deserialize_model(source)
    found = against_source(given, inside, ir.serde.deserialize_model(broken), Options())
    (warning,) = found.warnings
    assert "from that of the model given on 3 random inputs, which is itself" in warning
    assert "rounding does not explain that" in warning and "onnxq compare" in warning


def test_what_cannot_be_run_is_skipped_with_the_reason() -> None:
    text = """(float[2, 4] x, string[1] s) => (float[2, 4] y, string[1] u) {
        q = QuantizeLinear (x, k, z)
        d = DequantizeLinear (q, k, z)
        n = Relu (d)
        p = QuantizeLinear (n, k, z)
        y = DequantizeLinear (p, k, z)
        u = Identity (s)
    }"""
    made = onnxq.deploy(build(text, k=f32(0.02), z=np.uint8(100)), backend="qnn")
    assert made.verification is not None and made.verification.against_source is not None
    assert made.verification.against_source.skipped == "input 's': no random values can be made for its type"


def test_the_summary_has_the_figure(
    source: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(source, tmp_path / "q.onnx")
    command = ["deploy", str(tmp_path / "q.onnx"), "--backend", "openvino", "-o", str(tmp_path / "o.onnx")]
    assert main(command) == 0
    assert "dB to the model given, 3 random inputs" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["targets"][0]["verification"]["against_source"]["skipped"] == ""


def test_another_shape_is_told(source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, *_ = in_form(source, backend_named("onnxruntime"), Options())
    lost, near = Errors(samples=3, reshaped=3, score=-6.0), Errors(samples=3, sqnr=35.0, score=35.0)
    found = iter([{"y": lost}, *[{"y": near}] * 3])
    monkeypatch.setattr("onnxq.measuring.against_source.errors_of", lambda run, samples: next(found))
    given = ir.serde.deserialize_model(source)
    (warning,) = against_source(given, inside, given, Options()).warnings
    assert "on 3 random inputs and another shape in 3 of them" in warning


def test_a_result_farther_from_the_float_model_than_the_model_given_is_told(
    source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model given that differs much from its float model on random inputs hides what the result loses."""
    inside, *_ = in_form(source, backend_named("onnxruntime"), Options())

    def warnings(after: float) -> tuple[str, ...]:
        figures = iter(Errors(samples=3, sqnr=db, score=db) for db in (2.4, 5.0, 5.9, after))
        monkeypatch.setattr("onnxq.measuring.against_source.errors_of", lambda run, samples: {"y": next(figures)})
        given = ir.serde.deserialize_model(source)
        return against_source(given, inside, given, Options()).warnings

    (warning,) = warnings(1.4)
    assert "output 'y' is 1.4 dB from that of the float model inside the model given" in warning
    assert "the model given 5.9 dB: the result loses more. Compare both on real data" in warning
    assert not warnings(5.0)


def breaking(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with a Reshape that onnxruntime loads and cannot run."""
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    (output,) = broken.graph.output
    for node in broken.graph.node:
        node.output[:] = ["before" if name == output.name else name for name in node.output]
    broken.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7, -1, 11, 13]), "shape"))
    broken.graph.node.append(onnx.helper.make_node("Identity", ["shape"], ["asked"]))
    broken.graph.node.append(onnx.helper.make_node("Reshape", ["before", "asked"], [output.name]))
    del output.type.tensor_type.shape.dim[:]
    output.type.tensor_type.ClearField("shape")
    return broken


def test_a_result_that_does_not_run_is_refused(source: onnx.ModelProto) -> None:
    inside, *_ = in_form(source, backend_named("openvino"), Options())
    given = ir.serde.deserialize_model(source)
    with pytest.raises(VerificationError, match="failed its final check") as caught:
        against_source(given, inside, ir.serde.deserialize_model(breaking(source)), Options())
    assert "Nothing was written" in str(caught.value)


@pytest.mark.parametrize("fails", [True, False])
def test_a_result_is_run_with_optimizations_as_well(
    source: onnx.ModelProto, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Session.run
    counted: list[bool] = []

    def broken(self: Session, feeds: Any, *more: Any, **named: Any) -> Any:
        counted.append(self in optimized)
        if fails and self in optimized:
            raise ExecutionError("FusedConv: a kernel fails")
        return run(self, feeds, *more, **named)

    opened, optimized = Session.__init__, list[Session]()

    def noted(self: Session, model: Any, *, optimize: bool = True, **named: Any) -> None:
        opened(self, model, optimize=optimize, **named)
        if optimize and not named.get("precise"):
            optimized.append(self)

    monkeypatch.setattr(Session, "__init__", noted)
    monkeypatch.setattr(Session, "run", broken)
    path = tmp_path / "out.onnx"
    if fails:
        with pytest.raises(VerificationError, match="a kernel fails"):
            onnxq.deploy(source, backend="onnxruntime", output=path)
        assert not path.exists()
        return
    made = onnxq.deploy(source, backend="onnxruntime", output=path)
    assert counted.count(True) == 3 and made.verification is not None
    assert made.verification.against_source is not None and made.verification.against_source.ran == 3
    cut_off = made.verification.against_source.overflows  # on processors without VNNI
    assert made.verification.plain_sqnr is not None and (made.verification.plain_sqnr > 30 or cut_off)
    assert made.verification.against_source.given_bytes == source.ByteSize()


def test_a_model_given_that_does_not_run_is_no_reason_not_to_run_the_result(source: onnx.ModelProto) -> None:
    inside, *_ = in_form(source, backend_named("onnxruntime"), Options())
    given, result = ir.serde.deserialize_model(breaking(source)), ir.serde.deserialize_model(source)
    found = against_source(given, inside, result, Options())
    assert found.ran == 3 and not found.samples and found.skipped
    assert found.warnings == (f"not compared with the model given: {found.skipped}",)


def test_the_summary_says_what_was_run(
    source: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(source, tmp_path / "q.onnx")
    command = ["deploy", str(tmp_path / "q.onnx"), "-o", str(tmp_path / "o.onnx"), "--backend"]
    assert main([*command, "onnxruntime"]) == 0
    said = capsys.readouterr().out
    assert "runs with optimizations on and off; 3 random inputs" in said and "0 samples" not in said
    assert main([*command, "openvino"]) == 0
    assert "simulated in onnxruntime, 3 random inputs" in capsys.readouterr().out
    text = "(float[2, 4] x, string[1] s) => (float[2, 4] y, string[1] u) {"
    text += " q = QuantizeLinear (x, k, z) d = DequantizeLinear (q, k, z) n = Relu (d)"
    text += " p = QuantizeLinear (n, k, z) y = DequantizeLinear (p, k, z) u = Identity (s) }"
    onnx.save(build(text, k=f32(0.02), z=np.uint8(100)), tmp_path / "q.onnx")
    assert main([*command, "qnn"]) == 0
    said = capsys.readouterr().out
    assert "loads in onnxruntime; it was not run" in said
    assert "warning" in said and "not compared with the model given: input 's'" in said

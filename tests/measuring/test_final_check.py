"""The last check: what is measured, and what is refused."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

import onnxq
from onnxq.calibration.statistics import KeptSample
from onnxq.errors import VerificationError
from onnxq.measuring.final_check import _warnings, first_look
from onnxq.measuring.metrics import Errors
from onnxq.measuring.verification import OtherSize, Verification
from onnxq.options import Options
from onnxq.ort.session import Session
from onnxq.prepare import Prepared
from tests.models import build, f32, feeds_for, images, normal
from tests.pairs import data, float_model, quantized_model
from tests.watched import opened_to_check


def loaded(model: onnx.ModelProto) -> ir.Model:
    return ir.serde.deserialize_model(model)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray[Any, np.dtype[Any]]]) -> dict[str, Any]:
    evaluator = ReferenceEvaluator(model)
    return dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))


def kept(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray[Any, np.dtype[Any]]]]) -> list[KeptSample]:
    return [KeptSample(3 * k, feed, run(model, feed)) for k, feed in enumerate(feeds)]


def test_errors_are_those_of_the_outputs() -> None:
    reference, result = float_model(), quantized_model()
    samples = kept(reference, data())
    found = first_look(loaded(reference), loaded(result), samples, float_bytes=1234).completed()
    want = np.concatenate([s.outputs["y"] for s in samples]).astype(np.float64)
    session = Session(result.SerializeToString(), optimize=False)
    got = np.concatenate([session.run(s.feeds)["y"] for s in samples]).astype(np.float64)
    sqnr = 10 * np.log10(np.square(want).sum() / np.square(want - got).sum())
    assert found.outputs["y"].sqnr == pytest.approx(sqnr, abs=0.1)  # codes at ties may differ
    assert found.worst is not None and found.worst[0] == "y"
    assert found.outputs["y"].worst_sample in {3 * k for k in range(6)}, "indices of the data, not of the kept samples"
    assert found.outputs["top"].agreement >= 0.5
    assert (found.samples, found.float_bytes) == (6, 1234)
    assert found.speedup is not None and found.speedup > 0
    assert found.plain_sqnr is not None and found.plain_sqnr > 30
    size = len(result.SerializeToString())
    assert size * 0.8 < found.quantized_bytes < size * 1.2


def test_no_more_than_two_sessions_hold_weights_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Session] = weakref.WeakSet()
    most: list[int] = []

    class Counted(Session):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            alive.add(self)
            most.append(len(alive))

    monkeypatch.setattr("onnxq.measuring.final_check.Session", Counted)
    reference = float_model()
    checked = first_look(
        loaded(reference), loaded(quantized_model()), kept(reference, data()), float_bytes=1
    ).completed()
    assert checked.speedup is not None and most == [1, 2, 2]


@pytest.mark.parametrize(
    ("body", "given"),
    [
        (
            "c = Conv (x, w) p = Relu (c) n = Neg (c) r = Relu (n) m = Mul (r, slope) y = Sub (p, m)",
            True,
        ),
        ("c = Conv (x, w) y = PRelu (c, slope)", False),
    ],
)
def test_the_speed_is_that_against_the_model_as_it_came(
    body: str, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = opened_to_check(monkeypatch)
    text = f"(float[1, 3, 16, 16] x) => (float[1, 4, 14, 14] y) {{ {body} }}"
    model = build(text, w=normal(4, 3, 3, 3), slope=f32([0.1, 0.2, 0.3, 0.4]).reshape(4, 1, 1))
    made = onnxq.quantize(model, feeds_for(model), options=Options(effort="fast"))
    assert made.verification is not None and made.verification.speedup is not None
    assert opened[-1] == [node.op_type for node in model.graph.node], "the last one is timed against the result"
    assert Prepared(model, Options()).given is (model if given else None)


def test_what_loading_says_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The model as it came is loaded again to be timed."""
    model = build(
        "(float[1, 3, 16, 16] x) => (float[1, 4, 14, 14] y) { c = Conv (x, w) y = Mul (c, two) }",
        w=normal(4, 3, 3, 3),
        two=f32(2),
    )
    model.graph.node.reverse()
    made = onnxq.quantize(model, feeds_for(model), options=Options(effort="fast"))
    assert made.verification is not None and made.verification.speedup is not None
    assert Prepared(model, Options()).given is model
    assert caplog.messages.count("nodes out of order: sorted") == 2, "once by each of these two"


def test_a_file_that_is_gone_by_then_costs_the_speed_and_no_more(tmp_path: Path) -> None:
    model, gone = float_model(), tmp_path / "gone.onnx"
    found = first_look(
        loaded(model), loaded(quantized_model()), kept(model, data()), float_bytes=0, given=gone
    ).completed()
    assert found.speedup is None
    assert found.worst is not None


def test_the_speed_is_told_for_samples_of_quite_another_size_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single tokens may gain where prompts lose: the typical sample alone would hide it."""
    times = iter([(2e-3, 1e-3), (9e-3, 18e-3)])
    rows: list[int] = []

    def glance(_: Session, __: Session, feeds: dict[str, Any], ___: object) -> tuple[float, float]:
        rows.append(len(feeds["x"]))
        return next(times)

    monkeypatch.setattr("onnxq.measuring.final_check.glance", glance)
    model = float_model()
    feeds = [{"x": np.resize(data()[0]["x"], (size, 3))} for size in (1, 1, 12, 1)]
    found = first_look(loaded(model), loaded(quantized_model()), kept(model, feeds), float_bytes=0).completed()
    assert rows == [1, 12]
    assert (found.speedup, found.other_size) == (2.0, OtherSize(6, "x", (12, 3), 0.5, 9e-3))
    assert found.to_dict()["other_size"]["shape"] == [12, 3]


def test_without_samples_it_is_checked_and_loaded_only() -> None:
    found = first_look(loaded(float_model()), loaded(quantized_model()), [], float_bytes=0).completed()
    assert found.worst is None and found.speedup is None and found.plain_sqnr is None and not found.outputs


def test_an_invalid_result_is_refused() -> None:
    result = quantized_model()
    result.graph.node[0].input[1] = "nowhere"
    with pytest.raises(VerificationError, match="final check"):
        first_look(loaded(float_model()), loaded(result), [], float_bytes=0).completed()


def test_a_result_that_does_not_run_is_refused() -> None:
    result = build(
        "(float[N, 3] x) => (float[N, 4] y, int64[N] top) { y = Reshape (x, s)\n top = ArgMax (y) }",
        s=np.array([-1, 7]),
    )
    with pytest.raises(VerificationError, match="final check"):
        first_look(loaded(float_model()), loaded(result), kept(float_model(), data()), float_bytes=0).completed()


def test_a_node_that_onnxruntime_refuses_is_named_with_what_keeps_it_float() -> None:
    result = float_model()
    node = result.graph.node[0]
    node.name, node.op_type, node.domain = "the layer", "DynamicQuantizeLSTM", "com.microsoft"
    result.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    original = float_model()
    original.graph.node[0].name = "the layer"
    with pytest.raises(VerificationError) as caught:
        first_look(loaded(original), loaded(result), [], float_bytes=0).completed()
    said = str(caught.value)
    assert "node 'the layer' (DynamicQuantizeLSTM): " in said and "has input size 2" in said
    assert said.endswith("Keep that node float with --exclude 'the layer'") and "tensor(" not in said
    with pytest.raises(VerificationError, match="Keep the layers around it float"):
        first_look(loaded(float_model()), loaded(result), [], float_bytes=0).completed()


def test_a_total_that_hides_the_usual_sample_is_said() -> None:
    reference = build("(float[4, 8] x) => (float[4, 8] y) { y = Identity (x) }")
    result = build(
        "(float[4, 8] x) => (float[4, 8] y) { q = QuantizeLinear (x, s, z)\n y = DequantizeLinear (q, s, z) }",
        s=f32(1.0),
        z=np.int8(0),
    )
    feeds = images(4, 8, samples=5)
    feeds[2] = {"x": normal(4, 8, scale=40.0)}
    found = first_look(loaded(reference), loaded(result), kept(reference, feeds), float_bytes=0).completed()
    assert found.outputs["y"].sqnr > 12 > found.outputs["y"].median
    assert len(found.warnings) == 1 and "median sample" in found.warnings[0] and "'y'" in found.warnings[0]
    poor = first_look(loaded(reference), loaded(result), kept(reference, feeds[:2]), float_bytes=0).completed()
    assert max(poor.outputs["y"].sqnr, poor.outputs["y"].median) < 12 and not poor.warnings, "the total hides nothing"
    fine = first_look(loaded(reference), loaded(result), kept(reference, feeds[2:3]), float_bytes=0).completed()
    assert not fine.warnings


def test_it_can_be_written_as_json() -> None:
    found = first_look(
        loaded(float_model()), loaded(quantized_model()), kept(float_model(), data()), float_bytes=10
    ).completed()
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["samples"] == 6 and again["outputs"]["y"]["sqnr"] == pytest.approx(found.outputs["y"].sqnr)
    assert json.dumps(Verification().to_dict(), allow_nan=False)


@pytest.mark.parametrize(("median", "told"), [(5.0, True), (11.9, False), (13.0, False)])
def test_a_median_sample_is_told_of_only_where_it_is_far_from_the_whole(median: float, told: bool) -> None:
    said = list(_warnings({"y": Errors(sqnr=12.1, median=median)}, ["y"]))
    assert any("the median sample has" in text for text in said) == told


def test_models_are_timed_with_memory_planned_as_onnxruntime_does_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, models with weights stored as integers seem a tenth slower beside float than they are in use."""
    timed: list[bool] = []

    def watched(reference: Session, result: Session, feeds: Any, clock: Any) -> tuple[float, float]:
        timed.extend(session._session.get_session_options().enable_mem_pattern for session in (reference, result))
        return 2.0, 1.0

    monkeypatch.setattr("onnxq.measuring.final_check.glance", watched)
    reference, result = float_model(), quantized_model()
    found = first_look(loaded(reference), loaded(result), kept(reference, data()), float_bytes=1).completed()
    assert (timed, found.speedup) == ([ort.SessionOptions().enable_mem_pattern] * 2, 2.0)

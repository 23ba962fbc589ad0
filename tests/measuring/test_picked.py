"""A detector's result is compared by what NonMaxSuppression picks from, and keeps the float model's outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.calibration.collect import collect
from onnxq.graph.files.load import load
from onnxq.measuring import final_check
from onnxq.notes import cautions
from tests.contract import quantize_checked
from tests.models import images
from tests.picking_nets import detector, labels, picked_from

FEEDS = list(images(1, 16, 8, 8, samples=24))
AUTO = Options(placement="compute")


def test_it_is_compared_by_what_is_picked_from() -> None:
    made = quantize_checked(detector(), FEEDS, AUTO, least=None).quantized
    assert made.verification is not None
    assert set(made.verification.outputs) == {"boxes", "scores"}
    assert min(errors.sqnr for errors in made.verification.outputs.values()) > 25
    assert {"body", "second"} <= made.plan.quantized.keys()
    assert not [text for text in made.verification.warnings if "shape" in text or "no tensors" in text]
    (hint,) = (hint for hint in made.hints if "picked among" in hint)
    assert hint.startswith("output 'found_boxes', 'found_scores': picked among many, ")
    assert hint.endswith("compared is what is picked from, 'boxes', 'scores'")


def test_the_figures_are_those_of_these_tensors() -> None:
    """Against onnxruntime, on the samples that verify: all of 8."""
    feeds = FEEDS[:8]
    model = detector()
    made = onnxq.quantize(model, feeds, options=AUTO)
    for name in ("boxes", "scores"):
        expected, got = (picked_from(proto, name, feeds) for proto in (model, ir.to_proto(made.rendered())))
        noise = sum(float(np.square(a - b).sum()) for a, b in zip(expected, got, strict=True))
        signal = sum(float(np.square(a).sum()) for a in expected)
        assert made.verification is not None
        assert made.verification.outputs[name].sqnr == pytest.approx(10 * np.log10(signal / noise), abs=0.05)


def test_the_result_has_the_outputs_of_the_float_model(tmp_path: Path) -> None:
    made = onnxq.quantize(detector(), FEEDS, options=AUTO, output=tmp_path / "made.onnx")
    written = onnx.load(tmp_path / "made.onnx")
    assert [value.name for value in written.graph.output] == ["found_boxes", "found_scores"]
    assert [value.name for value in made.model.graph.outputs] == ["found_boxes", "found_scores"]
    by_cost = onnxq.quantize(detector(), FEEDS)
    reasons = {kept.op: kept.reason for kept in by_cost.plan.kept_float}
    assert reasons["Sigmoid"] == "it computes what is picked from, which stays float", reasons


@pytest.mark.parametrize("slow_first", [True, False])
def test_a_warning_of_the_speed_is_of_the_speed_shown(monkeypatch: pytest.MonkeyPatch, *, slow_first: bool) -> None:
    """What compares the result has more outputs than what is written: only the latter's speed counts."""
    times = [(0.002, 0.004), (0.002, 0.001)][:: 1 if slow_first else -1]
    measured = iter(times)
    monkeypatch.setattr(cautions, "_SLOW", 0.85)  # which is not said in tests else
    monkeypatch.setattr(final_check, "glance", lambda *_: next(measured, times[-1]))
    made = onnxq.quantize(labels(), FEEDS, options=AUTO)
    assert made.verification is not None and made.verification.speedup is not None
    warned = [text for text in made.verification.warnings if "of the float model's speed" in text]
    assert bool(warned) == (made.verification.speedup < 0.85), warned


def test_statistics_of_a_file_give_the_same(tmp_path: Path) -> None:
    made = onnxq.quantize(detector(), FEEDS, options=AUTO)
    onnxq.calibrate(detector(), FEEDS, output=tmp_path / "kept.npz")
    again = onnxq.quantize(detector(), statistics=tmp_path / "kept.npz", options=AUTO)
    assert again.verification is not None and made.verification is not None
    assert again.verification.outputs == made.verification.outputs
    assert ir.to_proto(again.rendered()).SerializeToString() == ir.to_proto(made.rendered()).SerializeToString()


@pytest.mark.parametrize("target", ["openvino", "qnn", "tvm", "vitis", "rknn", "snpe"])
def test_for_other_targets(target: str) -> None:
    made = onnxq.quantize(detector(), FEEDS, backend=target)
    assert made.verification is not None and made.verification.outputs.keys() == {"boxes", "scores"}
    assert [value.name for value in made.rendered().graph.outputs] == ["found_boxes", "found_scores"]


def test_effort_best_and_algorithms_judge_by_it() -> None:
    plain = onnxq.quantize(detector(), FEEDS, options=Options(placement="compute", weight_bits=4, effort="fast"))
    best = onnxq.quantize(detector(), FEEDS, options=Options(placement="compute", weight_bits=4, effort="best"))
    assert best.verification is not None and plain.verification is not None
    assert best.verification.worst is not None and plain.verification.worst is not None
    assert best.verification.worst[1].sqnr > plain.verification.worst[1].sqnr + 1


def test_what_an_argmax_reads_is_compared_beside_its_output() -> None:
    made = quantize_checked(labels(), FEEDS, AUTO).quantized
    assert made.verification is not None and set(made.verification.outputs) == {"logits", "y"}
    assert made.verification.worst is not None and made.verification.worst[0] == "logits"
    assert made.verification.outputs["y"].agreement > 0.9
    assert [value.name for value in made.rendered().graph.outputs] == ["y"]


def test_what_an_argmax_reads_is_not_kept_where_it_would_cost_samples() -> None:
    for budget, compared in ((1 << 30, True), (1 << 17, False)):
        kept = collect(load(labels()), [], FEEDS, keep=len(FEEDS), keep_bytes=budget).kept
        assert len(kept) == len(FEEDS) and all(bool(sample.picked) is compared for sample in kept)


def test_compare_tells_what_is_picked_from() -> None:
    model = detector()
    made = onnxq.quantize(model, FEEDS, options=AUTO)
    found = onnxq.compare(model, made, FEEDS)
    shown = {tensor.tensor for tensor in found.tensors}
    assert {"boxes", "scores"} <= shown and not {"found_boxes", "found_scores"} & shown
    (said,) = (text for text in found.warnings if "picked" in text)
    level = {tensor.tensor: f"'{tensor.tensor}' has {tensor.errors.sqnr:.1f} dB" for tensor in found.tensors}
    assert level["boxes"] in said and level["scores"] in said

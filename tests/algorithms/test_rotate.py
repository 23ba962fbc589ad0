"""Rotation: weights and channels that stand out between linear layers no longer make grids coarse."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from onnxq import OptionError, Options, quantize
from onnxq.algorithm import FloatDraft
from onnxq.algorithms import rotate
from onnxq.algorithms.channels.streams import Stream, quantized_streams, turned_weights
from onnxq.algorithms.rotate import apply
from onnxq.backend_choice import backend_named
from onnxq.calibration.collect import collect
from onnxq.calibration.statistics import Statistics
from onnxq.compare import compare
from onnxq.graph.files.load import load
from onnxq.graph.passes.normalize import normalize
from onnxq.observe import observable
from tests.contract import infer, quantize_checked
from tests.models import build, images, normal
from tests.turnable import blocks, bottlenecks

Feeds = list[dict[str, NDArray[Any]]]
PLAIN = Options(placement="all", algorithms=("bias_correction",))
ROTATED = Options(placement="all", algorithms=("rotate", "bias_correction"))


def drafted(model: onnx.ModelProto, feeds: Feeds, options: Options = ROTATED) -> FloatDraft:
    """A float draft that was rotated."""
    made = load(model)
    normalize(made, min_opset=14)
    statistics = collect(made, observable(made, options), feeds, keep=len(feeds))
    draft = FloatDraft(made, backend_named("onnxruntime"), options, statistics)
    apply(draft)
    return draft


def _no_place() -> onnx.ModelProto:
    """Two layers with an activation between them."""
    return build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Conv (x, u)\n r = Relu (a)\n y = Conv (r, w) }",
        u=normal(8, 3, 3, 3),
        w=normal(4, 8, 1, 1),
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_outliers_are_no_longer_in_the_way(bits: int) -> None:
    model, feeds = bottlenecks(outliers=True), images(1, 3, 8, 8, samples=24)
    plain, rotated = (
        quantize_checked(
            model,
            feeds,
            Options(placement="all", weight_bits=bits, weight_symmetric=True, algorithms=names),
            least=None,
            agree=15.0,
        ).worst
        for names in (("bias_correction",), ("rotate", "bias_correction"))
    )
    assert rotated >= plain + 2.0


def test_channels_that_stand_out_behind_normalizations() -> None:
    model, feeds = blocks(outlier=40.0), images(1, 16, 12, samples=24)
    plain, rotated = (quantize_checked(model, feeds, options, least=None).worst for options in (PLAIN, ROTATED))
    assert rotated >= plain + 6.0


def test_the_float_model_stays_what_it_is() -> None:
    model, feeds = bottlenecks(outliers=True), images(1, 3, 8, 8, samples=16)
    draft = drafted(model, feeds)
    assert "rotate: 1 of 1 places turned (8 layers)" in draft.notes[0], draft.notes
    fresh = images(1, 3, 8, 8, samples=4, seed=77)
    before, after = (infer(m, fresh, optimize=False)["y"] for m in (model, ir.to_proto(draft.model)))
    for want, got in zip(before, after, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * float(np.abs(want).max()), rtol=0)


def test_without_outliers_nothing_is_lost() -> None:
    model, feeds = bottlenecks(outliers=False), images(1, 3, 8, 8, samples=24)
    plain, rotated = (quantize_checked(model, feeds, options, least=None).worst for options in (PLAIN, ROTATED))
    assert rotated >= plain - 0.5


def test_statistics_are_those_of_the_turned_tensors() -> None:
    model, feeds = bottlenecks(outliers=True), images(1, 3, 8, 8, samples=16)
    draft = drafted(model, feeds)
    seen = onnx.ModelProto()
    seen.CopyFrom(ir.to_proto(draft.model))
    seen.graph.output.append(onnx.helper.make_empty_tensor_value_info("s2"))
    true = np.stack(infer(seen, feeds, optimize=False)["s2"])
    stats = draft.statistics.tensors["s2"]
    assert stats.min == pytest.approx(float(true.min()), rel=1e-4)
    assert stats.max == pytest.approx(float(true.max()), rel=1e-4)


def test_effort_best_takes_it_where_there_is_a_place() -> None:
    feeds = images(1, 3, 8, 8, samples=48)
    made = quantize(bottlenecks(outliers=True), feeds, options=Options(placement="all", effort="best"))
    assert "rotate" in made.recipe, made.notes
    plain = quantize(_no_place(), feeds, options=Options(placement="all", effort="best"))
    assert not [note for note in plain.notes if "rotate" in note]


def test_a_seed_gives_the_same_model_and_another_seed_another() -> None:
    model, feeds = bottlenecks(outliers=True), images(1, 3, 8, 8, samples=16)
    found = [
        ir.to_proto(drafted(model, feeds, Options(placement="all", algorithms=("rotate",), seed=seed)).model)
        for seed in (0, 0, 1)
    ]
    assert found[0].SerializeToString() == found[1].SerializeToString()
    assert found[0].SerializeToString() != found[2].SerializeToString()


def test_a_model_without_a_place_says_so() -> None:
    notes = drafted(_no_place(), images(1, 3, 8, 8, samples=8)).notes
    assert notes == ["rotate: nothing done, no quantized layers with only linear operators between them"]


def test_turned_tensors_are_not_compared_with_float_ones(tmp_path: Any) -> None:
    model, feeds = bottlenecks(outliers=True), images(1, 3, 8, 8, samples=16)
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, source)
    quantize_checked(source, feeds, ROTATED, output=target, least=None)
    report = compare(source, target, feeds)
    assert any("tensors in between not compared" in line for line in report.warnings), report.warnings


def test_tries_below_one_are_refused() -> None:
    model, feeds = bottlenecks(outliers=False, blocks=1), images(1, 3, 8, 8, samples=4)
    with pytest.raises(OptionError, match="0 is below 1"):
        quantize_checked(model, feeds, Options(algorithms=("rotate:tries=0",)), least=None)


def test_a_rotation_is_chosen_by_a_part_of_many_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spread over them all; the one that is chosen turns every one."""
    turned: list[int] = []

    def counted(nodes: Any, stream: Stream, matrix: Any) -> Any:
        turned.append(len(stream.writers) + len(stream.readers))
        return turned_weights(nodes, stream, matrix)

    monkeypatch.setattr(rotate, "turned_weights", counted)
    model = load(bottlenecks(outliers=True, blocks=9))
    normalize(model, min_opset=14)
    draft = FloatDraft(model, backend_named("onnxruntime"), ROTATED, Statistics(""))
    plan = draft.plan()
    streams = quantized_streams(model, plan)
    assert [turning.stream for turning in rotate.turnings(draft, streams, plan)] == streams
    assert turned == [20] * 4, "ten layers before it, ten behind"
    turned.clear()
    monkeypatch.setattr(rotate, "_MOST", 32 * 32 * 96 * 8)
    assert [turning.stream for turning in rotate.turnings(draft, streams, plan)] == streams
    assert turned == [8] * 4

"""GPTQ on the quantized prefix: a layer makes up for those before it, the end of a branch for what it is added to."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.algorithm import Draft
from onnxq.algorithms.common.quantized_layer import quantized_layers
from onnxq.algorithms.layerwise.hessian import batches, moments_of
from onnxq.algorithms.layerwise.joins import joins_of
from onnxq.calibration.capture import capture
from onnxq.qparams import fake_quantize
from tests.algorithms.learned import rows_by_number
from tests.algorithms.test_gptq import chain, draft_of, related
from tests.contract import infer, sqnr
from tests.models import build, normal

Doubles = NDArray[np.float64]
Feeds = list[dict[str, NDArray[Any]]]


def test_layers_that_read_the_quantized_prefix_make_up_for_it() -> None:
    model, feeds = chain()
    scores = []
    for algorithm in ("bias_correction", "gptq", "gptq:prefix=true"):
        options = Options(placement="all", weight_bits=3, algorithms=(algorithm,), format="fake-quantize")
        q = onnxq.quantize(model, feeds[:12], options=options)
        want = infer(model, feeds[12:], optimize=False)["y"]
        got = infer(ir.to_proto(q.rendered()), feeds[12:], optimize=False)["y"]
        scores.append(sqnr(want, got))
    assert scores[1] > scores[0] + 1
    assert scores[2] > scores[1] + 1


JOINS: dict[str, tuple[str, dict[str, Any], Feeds]] = {
    "Conv": (
        """(float[1, 6, 8, 8] x) => (float[1, 6, 8, 8] y) {
            skip = Conv <pads = [1, 1, 1, 1]> (x, w0, b0)
            a = Relu (skip)
            c = Conv <pads = [1, 1, 1, 1]> (a, w1, b1)
            y = Add (ADDED)
        }""",
        {"w0": normal(6, 6, 3, 3, scale=0.3), "b0": normal(6), "w1": normal(6, 6, 3, 3, seed=1, scale=0.3),
         "b1": normal(6)},
        related(1, 6, 8, 8, axis=1, samples=16),
    ),
    "MatMul": (
        """(float[20, 12] x) => (float[20, 12] y) {
            skip = Gemm (x, w0, b0)
            a = Relu (skip)
            m = MatMul (a, w1)
            c = Add (m, b1)
            y = Add (ADDED)
        }""",
        {"w0": normal(12, 12), "b0": normal(12), "w1": normal(12, 12, seed=1), "b1": normal(12)},
        related(20, 12, axis=-1, samples=16),
    ),
}  # fmt: skip


def branched(op: str, added: str) -> tuple[onnx.ModelProto, Feeds]:
    text, constants, feeds = JOINS[op]
    return build(text.replace("ADDED", added), **constants), feeds


def read_from(draft: Draft, model: ir.Model, tensor: str, grids: bool) -> list[NDArray[Any]]:
    """A tensor of a model on the samples held back, as it is read from the quantized one."""
    ((_, runs),) = capture(model, [tensor], draft.held, options=draft.options, sizes=draft.sizes)
    (site,) = {s.name for s in draft.plan.sites if s.tensor == tensor}
    return [fake_quantize(run[tensor], draft.numbers[site]) if grids else run[tensor] for run in runs]


@pytest.mark.parametrize("added", ["c, skip", "skip, c"])
@pytest.mark.parametrize("op", JOINS)
def test_moments_tell_the_error_of_the_sum_at_the_end_of_a_branch(op: str, added: str) -> None:
    draft = draft_of(*branched(op, added), weight_bits=3, act_bits=4, format="fake-quantize")
    _, layer = quantized_layers(draft.model, draft.plan)
    (seen,) = moments_of(draft, [layer], prefix=True)
    rendered = draft.quantized().rendered()
    weight = layer.matrix().astype(np.float64)
    rng = np.random.default_rng(4)
    told, measured = [], []
    for _ in range(2):
        change = rng.standard_normal(weight.shape) * 0.1
        told.append(float(seen.held.error(change, 0.25).sum()))
        sums = []
        for model, used, extra in ((rendered, weight + change, 0.25), (draft.reference, weight, 0.0)):
            read = [read_from(draft, model, tensor, model is rendered) for tensor in (layer.data.name or "", "skip")]
            sums.append([used[0] @ layer.inputs(a)[0] + extra + _columns(skip) for a, skip in zip(*read, strict=True)])
        wrong = np.stack(sums[0]) - np.stack(sums[1])
        measured.append(float(np.square(wrong).sum() / wrong.shape[0] / wrong.shape[2]))
    assert told[0] - told[1] == pytest.approx(measured[0] - measured[1], rel=1e-3, abs=1e-5 * measured[0])


def _columns(y: NDArray[Any]) -> NDArray[Any]:
    return y.reshape(y.shape[1], -1) if y.ndim == 4 else y.T


def _none(draft: Draft, layers: object) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("op", JOINS)
def test_the_end_of_a_branch_makes_up_for_what_it_is_added_to(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = branched(op, "c, skip")
    options = Options(
        placement="all",
        weight_bits=3,
        weight_symmetric=True,
        algorithms=("gptq:prefix=true",),
        format="fake-quantize",
    )
    scores = []
    for joins in (_none, joins_of):
        monkeypatch.setattr("onnxq.algorithms.layerwise.hessian.joins_of", joins)
        q = onnxq.quantize(model, feeds[:12], options=options)
        want, got = (infer(m, feeds[12:], optimize=False)["y"] for m in (model, ir.to_proto(q.rendered())))
        scores.append(sqnr(want, got))
    assert scores[1] > scores[0] + 0.3, scores


def test_an_add_that_repeats_its_other_input_is_no_branch() -> None:
    model = build(
        """(float[20, 12] x, float[1, 12] row) => (float[20, 12] y) {
            other = Relu (row)
            c = Gemm (x, w1, b1)
            y = Add (c, other)
        }""", w1=normal(12, 12), b1=normal(12),
    )  # fmt: skip
    feeds = [{**f, "row": normal(1, 12, seed=k)} for k, f in enumerate(related(20, 12, axis=-1, samples=16))]
    draft = draft_of(model, feeds, weight_bits=4, act_bits=4, format="fake-quantize")
    (layer,) = quantized_layers(draft.model, draft.plan)
    (seen,) = moments_of(draft, [layer], prefix=True)
    moved = [fake_quantize(s.feeds["x"], read) - s.feeds["x"] for s in draft.held
             for read in [draft.numbers[next(p.name for p in draft.plan.sites if p.tensor == "x")]]]  # fmt: skip
    off = np.concatenate(moved) @ layer.matrix()[0].T.astype(np.float64)
    assert seen.held.shift is not None
    np.testing.assert_allclose(seen.held.shift[0], off.mean(axis=0), atol=1e-6)


def test_layers_are_taken_together_where_none_reads_another() -> None:
    weights: dict[str, Any] = {f"w{k}": normal(8, 8, seed=k) for k in range(1, 5)}
    model = build(
        """(float[4, 8] x) => (float[4, 8] y) {
            a = Gemm (x, w1)
            b = Gemm (x, w2)
            c = Add (a, b)
            d = Gemm (c, w3)
            y = Gemm (d, w4)
        }""", **weights,
    )  # fmt: skip
    draft = draft_of(model, [{"x": normal(4, 8, seed=s)} for s in range(6)], weight_bits=4)
    layers = quantized_layers(draft.model, draft.plan)
    found = batches(layers, draft.model.graph)
    assert [[layer.weight.name for layer in batch] for batch in found] == [["w1", "w2"], ["w3"], ["w4"]]
    assert [len(batch) for batch in batches(layers)] == [4]


def test_a_layer_that_reads_other_rows_once_quantized_is_left_alone() -> None:
    feeds = [{"x": normal(100, 8, seed=s, scale=1.0)} for s in range(16)]
    options = Options(placement="all", weight_bits=3, algorithms=("gptq:prefix=true",))
    q = onnxq.quantize(rows_by_number(), feeds, options=options)
    (note,) = [note for note in q.notes if note.startswith("gptq")]
    assert "1 left alone" in note and "another shape once quantized" in note
    assert {"before", "behind"} <= set(q.plan.quantized)

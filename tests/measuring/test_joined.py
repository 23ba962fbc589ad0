"""Branches of outputs: where they lie, and what their errors are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.cli import main
from onnxq.measuring.joined import JoinedMeter, Partition, hidden, partitions
from onnxq.measuring.metrics import Errors, sqnr
from onnxq.prepare import Prepared
from tests.models import build, feeds_for, normal

HEAD = """(float[B, 3, 4, 4] x, float[B, 3, 2, 2] z) => (float[B, N, 5] y) {
    boxes = Conv (x, w)
    logits = Conv (x, v)
    score = Sigmoid (logits)
    one = Concat <axis = 1> (boxes, score)
    flat = Reshape (one, rows)
    more = Conv (z, w)
    last = Conv (z, v)
    sure = Sigmoid (last)
    two = Concat <axis = 1> (more, sure)
    even = Reshape (two, rows)
    all = Concat <axis = 2> (flat, even)
    y = Transpose <perm = [0, 2, 1]> (all)
}"""


def head() -> onnx.ModelProto:
    """A detector of two scales: 4 numbers of a box and a score for each place, places in rows."""
    return build(HEAD, w=300 * normal(4, 3, 1, 1), v=normal(1, 3, 1, 1, seed=1), rows=np.array([0, 5, -1]))


def found(model: onnx.ModelProto) -> dict[str, tuple[Partition, ...]]:
    return partitions(Prepared(model, Options()).model)


def test_branches_are_found_behind_what_moves_them_and_where_all_scales_have_them() -> None:
    scales, parts = found(head())["y"]
    assert scales == Partition(-2, ("flat", "even"), (16, 4))
    assert parts == Partition(-1, ("boxes", "score"), (4, 1))


def test_a_concat_within_one_along_the_same_axis_is_taken_apart() -> None:
    model = build(
        """(float[2, N] a, float[2, 3] b, float[2, 1] c) => (float[2, M] y) {
            d = Concat <axis = 1> (a, b)
            y = Concat <axis = -1> (c, d)
        }"""
    )
    (part,) = found(model)["y"]
    assert part == Partition(-1, ("c", "a", "b"), (1, None, 3))
    array = np.arange(16.0).reshape(2, 8)
    split = part.split(array)
    assert [split[name].shape for name in "cab"] == [(2, 1), (2, 4), (2, 3)]
    np.testing.assert_array_equal(np.concatenate(list(split.values()), axis=1), array)
    assert part.split(array[:, :3]) == {} and part.split(array[0, 0]) == {}, "not of these sizes"
    assert Partition(-1, ("a", "b"), (3, 1)).split(array[:, :5]) == {}


def test_a_transpose_that_says_no_order_turns_all_axes_round() -> None:
    model = build(
        """(float[2, 5, 3] a, float[2, 5, 1] b) => (float[4, 5, 2] y) {
            c = Concat <axis = 2> (a, b)
            y = Transpose (c)
        }"""
    )
    assert found(model) == {"y": (Partition(-3, ("a", "b"), (3, 1)),)}


def test_numbers_of_a_place_stay_last_where_places_are_put_into_rows() -> None:
    model = build(
        """(float[1, 3, 4, 4, 4] a, float[1, 3, 4, 4, 1] b) => (float[1, N, 5] y) {
            c = Concat <axis = 4> (a, b)
            y = Reshape (c, rows)
        }""",
        rows=np.array([1, -1, 5]),
    )
    assert found(model) == {"y": (Partition(-1, ("a", "b"), (4, 1)),)}


@pytest.mark.parametrize(
    "text",
    [
        "(float[2, 3] a, float[2, 3] b) => (float[2, 6] y) { c = Concat <axis = 1> (a, b)\n y = Relu (c) }",
        "(float[2, 3] a) => (float[2, 3] y) { y = Identity (a) }",
        "(float[2, 3] a, float[2, 3] b) => (float[3, 4] y) { c = Concat <axis = 1> (a, b)\n y = Reshape (c, s) }",
        "(float[2, N] a, float[2, M] b) => (float[2, K] y) { y = Concat <axis = 1> (a, b) }",
        "(float[2, 3] a) => (float[2, 6] y) { y = Concat <axis = 1> (a, a) }",
    ],
)
def test_what_is_not_joined_or_not_known_has_no_branches(text: str) -> None:
    assert found(build(text, s=np.array([3, 4]))) == {}


def test_errors_of_branches_are_those_of_their_values() -> None:
    part = Partition(-1, ("big", "small"), (3, 1))
    meter = JoinedMeter((part,))
    want = [np.concatenate([100 * normal(5, 3, seed=k), normal(5, 1, seed=k + 9)], axis=1) for k in range(2)]
    got = [np.round(array) for array in want]
    for index, (a, b) in enumerate(zip(want, got, strict=True)):
        meter.update(a, b, index)
    meter.update(want[0], got[0][:2], 2)
    measured = meter.result()
    assert measured["small"].samples == 2, "another shape has no branches"
    for name, columns in (("big", slice(0, 3)), ("small", slice(3, 4))):
        exact, rounded = (np.concatenate([array[:, columns] for array in arrays]) for arrays in (want, got))
        assert measured[name].sqnr == pytest.approx(sqnr(exact, rounded))


@pytest.mark.parametrize(
    ("branch", "peak", "shown"), [(8.0, 1.0, True), (31.0, 1.0, False), (29.0, 1.0, True), (-np.inf, 0.0, False)]
)
def test_a_branch_is_hidden_where_the_whole_is_far_better(branch: float, peak: float, shown: bool) -> None:
    parts = {"boxes": Errors(sqnr=42.0, peak=640.0), "score": Errors(sqnr=branch, peak=peak)}
    worst = hidden(Errors(sqnr=42.0), parts)
    assert (worst is not None and worst[0] == "score") if shown else worst is None
    assert hidden(Errors(sqnr=branch + 5), parts) is None or branch + 5 > 42


def test_the_summary_names_the_branch_that_the_figure_hides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = head()
    onnx.save(model, tmp_path / "m.onnx")
    feeds = feeds_for(model, B=1)
    x, z = (np.stack([feed[name] for feed in feeds]) for name in ("x", "z"))
    np.savez(tmp_path / "d.npz", x=x, z=z)
    made = onnxq.quantize(model, feeds, backend="tengine")
    assert made.verification is not None
    errors = made.verification.branches["y"]["score"]
    assert errors.sqnr < 10 < 30 < made.verification.outputs["y"].sqnr
    (told,) = [text for text in made.verification.warnings if "branch 'score' of output 'y' has" in text]
    assert told.endswith("hides it, and onnxq compare --backend tengine shows where it is lost")
    given = [str(tmp_path / name) for name in ("m.onnx", "d.npz", "q.onnx")]
    main(["quantize", given[0], "--data", given[1], "--backend", "tengine", "-o", given[2]])
    said = " ".join(capsys.readouterr().out.split())
    assert f"score: {errors.sqnr:.1f} dB, hidden by the rest of that output" in said
    fine = onnxq.quantize(model, feeds)
    assert fine.verification is not None and not fine.verification.branches


def test_the_graph_is_not_changed() -> None:
    model = Prepared(head(), Options()).model
    before = ir.to_proto(model).SerializeToString()
    partitions(model)
    assert ir.to_proto(model).SerializeToString() == before

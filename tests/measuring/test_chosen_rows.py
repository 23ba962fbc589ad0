from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.graph.files.load import load
from onnxq.graph.shapes import infer_shapes
from onnxq.measuring.chosen_rows import Rows, chosen_rows, matched
from onnxq.measuring.metrics import sqnr
from onnxq.ort.session import Session
from tests.models import build, f32, images, normal


def detector(count: int = 20, rows: int | str = 20) -> onnx.ModelProto:
    """Boxes and scores of 144 places, of which a TopK picks the best, with what it picked."""
    return build(
        f"""(float[N, 16, 12, 12] x) => (float[N, {rows}, 5] y) {{
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            h = Relu (a)
            b = Conv (h, wb)
            rb = Reshape (b, four)
            boxes = Transpose <perm = [0, 2, 1]> (rb)
            s = Conv (h, ws)
            rs = Reshape (s, one)
            scores = Sigmoid (rs)
            best, which = TopK (scores, count)
            index = Unsqueeze (which, last)
            size = Shape (boxes)
            width = Slice (size, end, far)
            times = Concat <axis = 0> (ones, width)
            wide = Tile (index, times)
            picked = GatherElements <axis = 1> (boxes, wide)
            column = Unsqueeze (best, last)
            y = Concat <axis = 2> (picked, column)
        }}""",
        w=normal(16, 16, 3, 3, scale=0.1),
        wb=normal(4, 16, 1, 1, seed=1),
        ws=normal(1, 16, 1, 1, seed=2, scale=0.02),
        four=np.array([0, 4, 144]),
        one=np.array([0, 144]),
        count=np.array([count]),
        last=np.array([-1]),
        ones=np.array([1, 1]),
        end=np.array([2]),
        far=np.array([3]),
    )


def along(axis: int) -> Rows:
    return Rows((axis,), frozenset({20}))


def rows_of(model: onnx.ModelProto) -> dict[str, Rows]:
    found = ir.serde.deserialize_model(model)
    infer_shapes(found)
    return chosen_rows(found)


def test_outputs_behind_a_top_k_of_as_many_rows() -> None:
    assert rows_of(detector()) == {"y": along(-2)}
    assert rows_of(detector(4, 4)) == {}, "so few are experts or classes"


def test_labels_are_no_rows() -> None:
    """They are compared place by place."""
    text = """(float[N, 144] x) => (float[N, 20] best, int64[N, 20] which) { best, which = TopK (x, count) }"""
    assert rows_of(build(text, count=np.array([20]))) == {"best": along(-1)}


def test_rows_are_where_a_sample_shows_them_if_the_model_does_not_say() -> None:
    text = """(float[N, 144, M] x) => (float[N, R, C] y) {
        best = ReduceMax <keepdims = 0> (x, last)
        top, which = TopK (best, count)
        index = Unsqueeze (which, last)
        size = Shape (x)
        width = Slice (size, two, three)
        one = Constant <value_ints = [1, 1]> ()
        times = Concat <axis = 0> (one, width)
        wide = Tile (index, times)
        y = GatherElements <axis = 1> (x, wide)
    }"""
    found = rows_of(build(text, last=np.array([-1]), count=np.array([20]), two=np.array([2]), three=np.array([3])))
    assert found == {"y": Rows((-2, -1), frozenset({20}))}
    assert found["y"].axis((1, 20, 5)) == found["y"].axis((20, 20, 5)) == -2, "the first is the batch"
    assert found["y"].axis((1, 5, 20)) == -1
    assert found["y"].axis((1, 20, 20)) is None and found["y"].axis((1, 19, 5)) is None and found["y"].axis(()) is None


def test_other_constants_than_a_count_pick_no_rows() -> None:
    text = "(float[1, 80] x) => (float[1, 20, 4] y) { y = Reshape (x, shape) }"
    assert rows_of(build(text, shape=np.array([1, 20, 4]))) == {}


def test_a_column_that_is_the_same_in_all_rows_tells_nothing() -> None:
    wanted = np.stack([np.arange(20.0), np.full(20, 7.0)], axis=1).astype(np.float32)[None]
    got = wanted[:, ::-1] + np.array([0.1, 0.3], np.float32)
    np.testing.assert_array_equal(matched(wanted, got, along(-2)), got[:, ::-1])


@pytest.mark.parametrize("rows", [20, "rows"])
def test_a_detector_whose_rows_change_places_is_judged_by_its_rows(rows: int | str) -> None:
    model, data = detector(rows=rows), list(images(1, 16, 12, 12))
    result = onnxq.quantize(model, data, options=Options(placement="compute"))
    assert len(result.plan.quantized) == 3
    assert result.verification is not None and result.verification.worst is not None
    name, errors = result.verification.worst
    assert name == "y" and errors.sqnr > 25
    assert any("a TopK picks its rows" in note for note in result.notes)
    compared = onnxq.compare(model, result, data=data).outputs["y"]
    assert compared.sqnr > 25
    expected, got = (Session(m).run(data[0])["y"] for m in (load(model), result.rendered()))
    assert sqnr(expected, got) < errors.sqnr - 10, "place by place, most is lost"


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 20, 5), -2), ((3, 20), -1), ((20, 5), -2), ((3, 5, 20), -1), ((20,), -1)]
)
def test_each_row_is_compared_with_the_nearest(shape: tuple[int, ...], axis: int) -> None:
    reference = normal(*shape)
    order = np.random.default_rng(1).permutation(20)
    result = np.take(reference, order, axis) + f32(1e-4)
    np.testing.assert_allclose(matched(reference, result, along(axis)), reference, atol=2e-4)
    assert matched(reference, result, None) is result
    assert matched(reference, result[..., :-1], along(axis)).shape != shape, "another shape stays one"


def test_a_score_tells_as_much_as_a_coordinate() -> None:
    boxes, scores = np.repeat(300 * normal(4, 4), 5, axis=0), np.linspace(1, 0, 20, dtype=np.float32)
    reference = np.concatenate([boxes, scores[:, None]], axis=1)
    noise = np.concatenate([normal(20, 4, seed=1, scale=3.0), normal(20, 1, seed=2, scale=1e-3)], axis=1)
    found = matched(reference, (reference + noise)[::-1], along(-2))
    np.testing.assert_allclose(found[:, 4], scores, atol=5e-3)

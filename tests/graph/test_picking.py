"""What a model picks from, and what it makes of that."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.graph.files.load import load
from onnxq.graph.passes.normalize import normalize
from onnxq.graph.picking import Picking, picking
from tests.models import build, f32, normal

HEADS = """
    f = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu (f)
    b = Conv (r, wb)
    boxes = Reshape (b, as_boxes)
    s = Conv (r, ws)
    sr = Reshape (s, as_scores)
    scores = Sigmoid (sr)
"""
ARRAYS = {
    "w": normal(8, 3, 3, 3),
    "wb": normal(4, 8, 1, 1, seed=1),
    "ws": normal(2, 8, 1, 1, seed=2),
    "as_boxes": np.array([1, 64, 4]),
    "as_scores": np.array([1, 2, 64]),
    "most": np.array([10]),
    "third": np.array([2]),
    "first": np.array([0]),
    "column": np.array([1]),
    "half": f32(0.5),
    "all": np.array([-1]),
    "as_column": np.array([1, 64, 1]),
    "row": normal(1, 4, seed=6),
    "many": np.array([32]),
    "next": normal(4, 4, seed=3),
}
CHOSEN = """
    found = NonMaxSuppression (boxes, scores, most)
    which = Gather <axis = 1> (found, third)
    rows = Squeeze (which, column)
    flat = Squeeze (boxes, first)
    kept = Gather <axis = 0> (flat, rows)
"""


def picked(outputs: str, body: str) -> Picking:
    model = build(f"(float[1, 3, 8, 8] x) => ({outputs}) {{ {HEADS} {body} }}", **ARRAYS)  # type: ignore[arg-type]
    made = load(model)
    normalize(made)
    return picking(made)


def test_what_nonmaxsuppression_reads() -> None:
    found = picked("float[K, 4] y, float[1, 2, 64] scores", CHOSEN + "y = Identity (kept)")
    assert found.tensors == ("boxes", "scores"), "what is the same in another shape counts once"
    assert found.outputs == {"y"}


def test_a_model_that_picks_nothing() -> None:
    assert picked("float[1, 64, 4] boxes, float[1, 2, 64] scores", "") == Picking()


def test_layers_behind_are_what_a_detector_of_two_stages_has() -> None:
    assert picked("float[K, 4] y", CHOSEN + "y = MatMul (kept, next)") == Picking()


def test_a_threshold_picks_from_the_numbers_it_compares() -> None:
    found = picked(
        "float[K] y",
        "big = Greater (scores, half) nz = NonZero (big) at = Transpose <perm = [1, 0]> (nz) y = GatherND (scores, at)",
    )
    assert found.tensors == ("scores",) and found.outputs == {"y"}


def test_a_topk_in_front_belongs_to_it() -> None:
    found = picked(
        "float[K, 4] y",
        """best, order = TopK (scores, many)
        found = NonMaxSuppression (boxes, best, most)
        which = Gather <axis = 1> (found, third)
        rows = Squeeze (which, column)
        flat = Squeeze (boxes, first)
        y = Gather <axis = 0> (flat, rows)""",
    )
    assert "scores" in found.tensors and "best" not in found.tensors


def test_sizes_are_no_numbers_of_a_layer() -> None:
    found = picked(
        "float[K, 4] y",
        CHOSEN + "sh = Shape (f) fs = Cast <to = 1> (sh) m = Mul (kept, fs) y = Identity (m)",
    )
    assert not {"fs", "sh"} & set(found.tensors) and found.tensors


def test_an_argmax_at_the_end() -> None:
    found = picked("int64[1, 64] y", "t = Reshape (sr, as_scores) y = ArgMax <axis = 1, keepdims = 0> (t)")
    assert found.tensors == ("t",) and not found.outputs and not found.nodes
    shown = picked("int64[1, 64] y, float[1, 2, 64] sr", "y = ArgMax <axis = 1, keepdims = 0> (sr)")
    assert shown == Picking(), "an output is compared as it is"


def test_an_argmax_whose_choice_a_layer_reads_is_none() -> None:
    assert (
        picked(
            "float[1, 64, 4] y",
            "a = ArgMax <axis = 1> (sr) c = Cast <to = 1> (a) e = Reshape (c, as_column) y = MatMul (e, row)",
        )
        == Picking()
    )


def test_what_an_argmax_picks_elsewhere_is_not_compared() -> None:
    """As a pose's joints: the place of the largest in one map, and numbers of another there."""
    found = picked(
        "float[1, 4] y, int64[1] best",
        """high = ReduceMax <axes = [1], keepdims = 0> (sr)
        best = ArgMax <axis = 1, keepdims = 0> (high)
        flat = Squeeze (boxes, first)
        y = Gather <axis = 0> (flat, best)""",
    )
    assert found.tensors == ("high", "flat") and found.outputs == {"y"}


def test_what_picks_by_the_input_alone_is_none() -> None:
    assert (
        picked(
            "float[K] y",
            "z = Reshape (x, all) big = Greater (z, half) nz = NonZero (big) at = Transpose <perm = [1, 0]> (nz) "
            "m = Reshape (boxes, all) y = GatherND (m, at)",
        )
        == Picking()
    )


def test_a_loop_that_picks_inside() -> None:
    """As TensorFlow's detectors do for each picture."""
    model = build(
        f"(float[1, 3, 8, 8] x) => (int64[N, K, 3] y) {{ {HEADS} y = Identity (scores) }}",
        **ARRAYS,  # type: ignore[arg-type]
    )
    graph = model.graph
    del graph.node[-1]
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["chosen"]),
            onnx.helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [
            onnx.helper.make_tensor_value_info("turn", onnx.TensorProto.INT64, []),
            onnx.helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
        ],
        [
            onnx.helper.make_tensor_value_info("go_on", onnx.TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("chosen", onnx.TensorProto.INT64, ["K", 3]),
        ],
    )
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "turns"))
    graph.node.append(onnx.helper.make_node("Loop", ["turns", ""], ["y"], body=body))
    made = ir.from_proto(model)
    normalize(made)
    found = picking(made)
    assert found.tensors == ("boxes", "scores") and found.outputs == {"y"}

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.files.load import load
from onnxq.graph.passes.normalize import normalize
from onnxq.graph.passes.scalar_range import scalar_ranges
from onnxq.graph.shapes import infer_shapes
from onnxq.ort.session import Session
from tests.models import build

TEXT = """(float[N] x, int64[1] last) => (int64[M] y) {
    start = Constant <value = int64 {0}> ()
    step = Constant <value = int64[1] {2}> ()
    y = Range (start, last, step)
}"""


def test_vectors_become_scalars() -> None:
    model = load(build(TEXT))
    infer_shapes(model)
    assert [str(note) for note in scalar_ranges(model)] == ["scalar_range: 2 inputs of Range made scalars"]
    infer_shapes(model)
    node = next(n for n in model.graph if n.op_type == "Range")
    assert all(value is not None and value.shape is not None and not len(value.shape) for value in node.inputs)
    assert scalar_ranges(model) == []
    got = Session(model).run({"x": np.zeros(1, np.float32), "last": np.array([7])})["y"]
    assert got.tolist() == [0, 2, 4, 6]


def test_a_range_whose_end_turns_out_constant_still_loads() -> None:
    """onnxruntime takes the branch of a constant condition, and then refuses the vector that it knows the value of."""
    model = load(
        build("""(int64[4] size) => (int64[M] y) {
            count = Size (size)
            four = Constant <value = int64 {4}> ()
            zero = Constant <value = int64 {0}> ()
            one = Constant <value = int64 {1}> ()
            one_1d = Constant <value = int64[1] {1}> ()
            is_four = Equal (count, four)
            d = If (is_four) <
                then_branch = a () => (int64[1] p) { p = Identity (one_1d) },
                else_branch = b () => (int64[1] q) { q = Slice (size, one_1d, one_1d) }>
            y = Range (zero, d, one)
        }""")
    )
    normalize(model)
    assert isinstance(model, ir.Model)
    assert Session(model).run({"size": np.arange(4)})["y"].tolist() == [0]

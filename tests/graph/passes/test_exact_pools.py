from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.files.save import to_proto
from onnxq.graph.note import Note
from onnxq.graph.passes.exact_pools import exact_pools
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, random, run


def shape_inferred(proto: onnx.ModelProto) -> list[int]:
    bare = onnx.ModelProto.FromString(proto.SerializeToString())
    bare.graph.output[0].type.tensor_type.ClearField("shape")
    (output,) = onnx.shape_inference.infer_shapes(bare).graph.output
    return [dim.dim_value for dim in output.type.tensor_type.shape.dim]


@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "MaxPool"])
def test_as_onnxruntime_computes_it(op: str) -> None:
    """Random windows, steps, pads and dilations: the numbers stay, and onnx then infers the shape that there is."""
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(150):
        opset = int(rng.choice([18, 19, 22] if op == "LpPool" else [12, 17, 19, 22]))
        kernel, steps = rng.integers(1, 4, 2), rng.integers(1, 4, 2)
        pads = [int(rng.integers(0, kernel[i % 2])) for i in range(4)]
        more = f", dilations = [{rng.integers(1, 3)}, 1]" if op == "MaxPool" or opset >= 19 else ""
        more += f", count_include_pad = {rng.integers(0, 2)}" if op == "AveragePool" else ""
        height, width = rng.integers(2, 9, 2)
        proto = build(
            f"""g (float[1, 1, {height}, {width}] x) => (float[a, b, c, d] y) {{
                y = {op} <kernel_shape = {kernel.tolist()}, strides = {steps.tolist()}, ceil_mode = 1, pads = {pads}
                          {more}> (x) }}""",
            opset=opset,
        )
        x = {"x": random(1, 1, int(height), int(width))}
        try:
            (wanted,) = run(proto, x)
        except Exception:  # onnxruntime's own: a window that does not fit
            continue
        model = ir.from_proto(proto)
        if exact_pools(model):
            changed += 1
            (got,) = run(to_proto(model), x)
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)
            assert shape_inferred(to_proto(model)) == list(wanted.shape)
            assert not exact_pools(model)
    assert changed > 20


def test_one_after_the_other() -> None:
    """The second pool's input is smaller than onnx infers before the first is settled."""
    pool = "MaxPool <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1>"
    proto = build(
        f"g (float[1, 1, 7, 7] x) => (float[1, 1, 3, 3] y) {{ a = {pool} (x) \n b = {pool} (a) \n y = Neg (b) }}",
        opset=12,
    )

    def settle(model: ir.Model) -> list[Note]:
        return infer_shapes(model)

    model, notes = apply(settle, proto, {"x": random(1, 1, 7, 7)})
    assert [note.pass_name for note in notes] == ["exact_pools"]
    assert [list(value.shape or ()) for node in model.graph for value in node.outputs][:2] == [
        [1, 1, 4, 4],
        [1, 1, 3, 3],
    ]


def test_left_where_windows_reach_into_the_input_or_nothing_is_known() -> None:
    for shapes, pads in (("[1, 1, 7, 7] x) => (float[1, 1, 4, 4]", 0), ("[1, 1, H, W] x) => (float[1, 1, a, b]", 1)):
        pool = f"MaxPool <kernel_shape = [2, 2], strides = [2, 2], pads = {[pads] * 4}, ceil_mode = 1>"
        assert not exact_pools(ir.from_proto(build(f"g (float{shapes} y) {{ y = {pool} (x) }}", opset=12)))

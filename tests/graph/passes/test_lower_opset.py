from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.lower_opset import lower_opset, newer_than
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random
from tests.installed import needs


def lowered(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    if model.opset_imports[""] == 19:
        return []
    assert not newer_than(model, 19)
    return lower_opset(model, 19)


@pytest.mark.parametrize("opset", [20, 21, 22, 23, pytest.param(24, marks=needs("onnxruntime", "1.24"))])
def test_what_only_got_more_types_stays(opset: int) -> None:
    text = """g (float[1, 3, 8, 8] x) => (float[1, 12] y) {
        a = Conv (x, w)
        h = HardSwish (a)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (h)
        m = GlobalAveragePool (p)
        f = Flatten (m)
        s = Shape (f)
        r = Reshape (f, s)
        c = Cast <to = 1> (r)
        t = Transpose <perm = [1, 0]> (c)
        u = Transpose <perm = [1, 0]> (t)
        y = Round (u) }"""
    proto = build(text, opset=opset, ir_version=10, w=random(12, 3, 3, 3))
    before = [node.op_type for node in proto.graph.node]
    model, notes = apply(lowered, proto, {"x": random(1, 3, 8, 8)})
    assert model.opset_imports[""] == 19 and ops(model) == before
    assert [note.message for note in notes] == [f"lowered from {opset} to 19"]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("kernel", "ceil_mode"), [("2, 1", 0), ("2, 3", 1)])
def test_windows_that_start_behind_the_input_are_counted_in_no_older_opset(
    op: str, kernel: str, ceil_mode: int
) -> None:
    """Of 10 columns, kernel 1 and strides 2, opset 19 has 6 windows; 9 rows with kernel 2 need a padded one."""
    pool = f"{op} <ceil_mode = 1, strides = [2, 2], kernel_shape = [{kernel}]>"
    text = f"g (float[1, 2, 9, 10] x) => (float[1, 2, 5, 5] y) {{ y = {pool} (x) }}"
    model, _ = apply(lowered, build(text, opset=22, ir_version=10), {"x": random(1, 2, 9, 10)})
    (node,) = model.graph
    assert node.attributes.get_int("ceil_mode", 0) == ceil_mode
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize("form", ["", '<approximate = "tanh">', '<approximate = "none">'])
def test_gelu_is_written_out(form: str) -> None:
    proto = build(f"g (float[4, 8] x) => (float[4, 8] y) {{ y = Gelu {form} (x) }}", opset=20)
    model, _ = apply(lowered, proto, {"x": random(4, 8)})
    assert ("Tanh" if "tanh" in form else "Erf") in ops(model) and "Gelu" not in ops(model)


@pytest.mark.parametrize("opset", [20, 22])
@pytest.mark.parametrize(
    ("mode", "older"), [("linear", "bilinear"), ("cubic", "bicubic"), ("nearest", "nearest"), ("", "")]
)
def test_a_sampled_picture_has_the_older_names_of_modes(mode: str, older: str, opset: int) -> None:
    form = f'<mode = "{mode}", padding_mode = "border">' if mode else ""
    text = f"g (float[1, 2, 6, 7] x) => (float[1, 2, 4, 5] y) {{ y = GridSample {form} (x, grid) }}"
    grid = (np.random.default_rng(0).uniform(-1.2, 1.2, (1, 4, 5, 2))).astype(np.float32)
    model, _ = apply(lowered, build(text, opset=opset, ir_version=10, grid=grid), {"x": random(1, 2, 6, 7)})
    (node,) = model.graph
    assert node.attributes.get_string("mode", "bilinear") == (older or "bilinear")
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        ("(float[1, 2, 3, 4, 5] x, float[1, 3, 4, 5, 3] z) => (float[1, 2, 3, 4, 5] y) { y = GridSample (x, z) }", 20),
        pytest.param(
            "(float[2, 8, 4] x, float[2, 1, 4] u) => (float[2, 8, 4] y) { [far] y = TensorScatter (x, u) }",
            24,
            marks=needs("onnx", "1.19"),
        ),
        ("(float[2, 8] x, int4[2, 8] z) => (int4[8, 2] y) { [far] y = Transpose <perm = [1, 0]> (z) }", 21),
        ("(float[2, 8] x, int8[2, 8] z) => (float[2, 8] y) { [far] y = DequantizeLinear <block_size = 4> (z, x) }", 21),
        ("(float[2, 8] x) => (float[2, 8] y) { h = Cast <to = 10> (x) g = Gelu (h) y = Cast <to = 1> (g) }", 20),
    ],
)
def test_what_is_newer(text: str, opset: int) -> None:
    """Axes, an operator, a type, an attribute, and one that is written out of float32 alone."""
    model = ir.from_proto(build(f"g {text}", opset=opset, ir_version=10, s=random(8)))
    infer_shapes(model)
    assert len(newer_than(model, 19)) == 1

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.explicit_pads import explicit_pads
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, random


def padded(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return explicit_pads(model)


@pytest.mark.parametrize("more", ["", ", dilations = [2, 1]", ", output_padding = [1, 0]", ", group = 2"])
@pytest.mark.parametrize(
    "how",
    [
        "output_shape = [12, 15]",
        'output_shape = [11, 14], auto_pad = "SAME_UPPER"',
        'output_shape = [11, 14], auto_pad = "SAME_LOWER"',
        "output_shape = [14, 17]",
        'auto_pad = "SAME_UPPER"',
        'auto_pad = "SAME_LOWER"',
    ],
)
def test_it_changes_no_number(how: str, more: str) -> None:
    text = f"""g (float[1, 4, 6, 7] x) => (float[1, m, h, w] y) {{
        y = ConvTranspose <strides = [2, 2], {how}{more}> (x, k) }}"""
    proto = build(text, k=random(4, 2, 3, 4))
    model, notes = apply(padded, proto, {"x": random(1, 4, 6, 7, seed=1)})
    assert len(notes) == 1
    assert not {"auto_pad", "output_shape"} & set(model.graph[0].attributes)


@pytest.mark.parametrize("how", ["SAME_UPPER", "SAME_LOWER"])
def test_steps_wider_than_the_kernel_need_no_padding(how: str) -> None:
    text = f"""g (float[1, 4, 6, 7] x) => (float[1, m, h, w] y) {{
        y = ConvTranspose <strides = [3, 3], auto_pad = "{how}"> (x, k) }}"""
    model, notes = apply(padded, build(text, k=random(4, 2, 1, 2)), {"x": random(1, 4, 6, 7, seed=1)})
    assert len(notes) == 1
    assert model.graph[0].attributes.get_ints("pads") == (0, 0, 0, 0)


@pytest.mark.parametrize("how", ["output_shape = [12, 15]", 'auto_pad = "SAME_LOWER"'])
def test_a_free_batch_is_no_hindrance(how: str) -> None:
    text = f"""g (float[N, 4, 6, 7] x) => (float[N, m, h, w] y) {{
        y = ConvTranspose <strides = [2, 2], {how}> (x, k) }}"""
    _, notes = apply(padded, build(text, k=random(4, 2, 3, 4)), {"x": random(3, 4, 6, 7, seed=1)})
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("how", "batch"),
    [("pads = [1, 1, 1, 1]", "1"), ('auto_pad = "VALID"', "1"), ('auto_pad = "SAME_UPPER"', "1, 4, H")],
)
def test_others_are_left(how: str, batch: str) -> None:
    sizes = batch if "," in batch else "1, 4, 6"
    text = f"g (float[{sizes}, 7] x) => (float[a, b, c, d] y) {{ y = ConvTranspose <{how}> (x, k) }}"
    assert padded(ir.from_proto(build(text, k=random(4, 2, 3, 3)))) == []

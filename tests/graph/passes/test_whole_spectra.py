from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.whole_spectra import whole_spectra
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random


def cut(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    notes = whole_spectra(model)
    infer_shapes(model)
    return notes


@pytest.mark.parametrize("signal", [7, 8])
@pytest.mark.parametrize(
    ("opset", "node"),
    [
        (17, "DFT <axis = 2, onesided = 1> (x)"),
        (17, "DFT <onesided = 1> (t)"),
        (18, "DFT <axis = 2, onesided = 1> (x, n)"),
        (20, "DFT <onesided = 1> (x)"),
        (20, "DFT <onesided = 1> (t, , one)"),
    ],
)
def test_half_of_a_whole_spectrum(opset: int, node: str, signal: int) -> None:
    text = f"""g (float[2, 3, {signal}, 1] x) => (float[a, b, c, d] y) {{
        t = Transpose <perm = [0, 2, 1, 3]> (x)
        y = {node} }}"""
    model, notes = apply(cut, build(text, opset=opset, n=np.array(6), one=np.array(1)), {"x": random(2, 3, signal, 1)})
    assert ops(model)[-2:] == ["DFT", "Slice"]
    assert [note.message for note in notes] == ["1 spectra are cut from whole ones"]


@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (17, "(float[2, n, 1] x) => (float[a, b, c] y) { y = DFT <onesided = 1> (x) }"),
        (17, "(float[2, 8, 1] x) => (float[a, b, c] y) { y = DFT (x) }"),
    ],
)
def test_what_is_left(opset: int, text: str) -> None:
    model, notes = apply(cut, build("g " + text, opset=opset), {"x": random(2, 8, 1)})
    assert ops(model) == ["DFT"] and not notes

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.errors import ModelError
from onnxq.graph.files.load import load
from onnxq.graph.note import Note
from onnxq.graph.passes.opset import raise_opset
from tests.graph.helpers import apply, build, random


def raised(model: ir.Model) -> list[Note]:
    return raise_opset(model)


FACTORS = [(2.0, 2.0), (1.5, 1.3), (0.5, 0.6), (0.7, 0.7), (2.0, 0.5)]
"""The last one shrinks to elements that lie on elements."""


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factors", FACTORS)
def test_resize_of_opset_10_counts_from_the_first_element(mode: str, factors: tuple[float, float]) -> None:
    text = f'g (float[1,2,7,9] x) => (float[1,2,h,w] y) {{ y = Resize <mode = "{mode}"> (x, s) }}'
    proto = build(text, opset=10, s=np.array([1, 1, *factors], np.float32))
    apply(raised, proto, {"x": random(1, 2, 7, 9)})


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 9])
def test_upsample_counts_from_the_first_element(mode: str, opset: int) -> None:
    factors = "" if opset == 9 else ", scales = [1.0, 1.0, 1.5, 3.0]"
    text = f"""g (float[1,2,5,7] x) => (float[1,2,h,w] y) {{
        y = Upsample <mode = "{mode}"{factors}> (x{", s" if opset == 9 else ""}) }}"""
    constants = {"s": np.array([1, 1, 1.5, 3], np.float32)} if opset == 9 else {}
    apply(raised, build(text, opset=opset, **constants), {"x": random(1, 2, 5, 7)})


def test_upsamples_whose_results_the_converter_renames_keep_their_own() -> None:
    text = """g (float[1,2,5,7] x) => (float[1,2,h,w] y) {
        a = Upsample <mode = "linear"> (x, s)
        b = Relu (a)
        c = Upsample <mode = "nearest"> (b, t)
        d = Neg (c)
        e = Upsample <mode = "linear"> (d, t)
        y = Abs (e) }"""
    constants = {"s": np.array([1, 1, 2, 2], np.float32), "t": np.array([1, 1, 1.5, 1.3], np.float32)}
    apply(raised, build(text, opset=9, **constants), {"x": random(1, 2, 5, 7)})


def test_resize_by_factors_that_are_computed_and_in_a_branch() -> None:
    text = """g (float[1,1,4,6] x, float[4] s, bool c) => (float[1,1,h,w] y) {
        a = Resize <mode = "linear"> (x, s)
        y = If (c) <then_branch = t () => (float[1,1,k,l] p) { p = Resize <mode = "linear"> (a, s) },
                    else_branch = e () => (float[1,1,m,n] q) { q = Neg (a) }> }"""
    feeds = {"x": random(1, 1, 4, 6), "s": np.array([1, 1, 2, 2.5], np.float32), "c": np.array(True)}
    apply(raised, build(text, opset=10), feeds)


def test_resize_that_later_opsets_lack_is_refused() -> None:
    text = "g (float[1,1,4,6] x) => (float[1,1,h,w] y) { y = Resize (x, s) }"
    with pytest.raises(ModelError, match="enlarges along one axis and shrinks along another"):
        raise_opset(load(build(text, opset=10, s=np.array([1, 1, 2, 0.7], np.float32))))


@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_hardmax_looks_at_all_axes_from_its_own_on(axis: int | None) -> None:
    said = "" if axis is None else f"<axis = {axis}>"
    text = f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = Hardmax {said} (x) }}"
    apply(raised, build(text, opset=11), {"x": random(2, 3, 4)})

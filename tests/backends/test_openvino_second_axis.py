from __future__ import annotations

import numpy as np
import pytest

from onnxq.backends.openvino.second_axis import spectra_along_the_second
from tests.graph.helpers import apply
from tests.models import build, normal

X = {"x": normal(2, 4, 8, 6, 2)}


@pytest.mark.parametrize("inputs", ["x, , first", "x, , third", "x, ten, last", "x"])
@pytest.mark.parametrize("inverse", [0, 1])
def test_a_spectrum_is_taken_along_the_second_axis(inputs: str, inverse: int) -> None:
    sizes = "2, 4, 8, 10, 2" if "ten" in inputs else "2, 4, 8, 6, 2"
    model = build(
        f"(float[2, 4, 8, 6, 2] x) => (float[{sizes}] y) {{ [dft] y = DFT <inverse = {inverse}> ({inputs}) }}",
        first=np.array(0),
        third=np.array(2),
        last=np.array(-2),
        ten=np.array(10),
        opset=20,
        ir_version=9,
    )
    changed, notes = apply(spectra_along_the_second, model, X, tolerance=1e-4)
    assert [node.op_type for node in changed.graph] == ["Transpose", "DFT", "Transpose"]
    made = changed.graph[1]
    axis = made.inputs[2]
    assert axis is not None and axis.const_value is not None and axis.const_value.numpy() == 1
    assert made.name == "dft" and len(notes) == 1


@pytest.mark.parametrize("axis", [1, -4])
def test_one_along_the_second_axis_stays(axis: int) -> None:
    model = build(
        "(float[2, 4, 8, 6, 2] x) => (float[2, 4, 8, 6, 2] y) { y = DFT (x, , axis) }",
        axis=np.array(axis),
        opset=20,
        ir_version=9,
    )
    assert not apply(spectra_along_the_second, model, X, tolerance=0)[1]


@pytest.mark.parametrize(("axis", "becomes"), [(-2, 3), (-4, 1), (2, 2)])
def test_an_attribute_counts_from_the_front(axis: int, becomes: int) -> None:
    model = build(f"(float[2, 4, 8, 6, 2] x) => (float[2, 4, 8, 6, 2] y) {{ y = DFT <axis = {axis}> (x) }}")
    changed, notes = apply(spectra_along_the_second, model, X, tolerance=0)
    assert changed.graph[0].attributes.get_int("axis", 0) == becomes
    assert bool(notes) == (axis < 0)

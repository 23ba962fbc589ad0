"""Which models are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.searching.equal_time import structure
from tests.models import build, f32


def test_structure_is_that_of_operators_types_and_shapes() -> None:
    def of(text: str, w: Any) -> str:
        return structure(ir.from_proto(build(f"(float[N, 2] x) => (float[N, 2] y) {{ {text} }}", w=w)))

    first = of("y = MatMul (x, w)", f32([[1, 2], [3, 4]]))
    assert of("y = MatMul (x, w)", f32([[5, 6], [7, 8]])) == first
    assert of("y = Add (x, w)", f32([[1, 2], [3, 4]])) != first
    assert of("y = MatMul (x, w)", f32([[1, 2], [3, 4]]).astype(np.float64)) != first
    assert of("y = MatMul (x, w)", f32([[1, 2, 3], [3, 4, 5]])) != first

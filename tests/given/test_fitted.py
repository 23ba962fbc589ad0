"""Scales that a target moves are named, however small they are."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Plan, QParams
from onnxq.backends.onnxruntime import BACKEND
from onnxq.given.fitted import fit_to_target
from tests.models import build, f32


@pytest.mark.parametrize("scale", [1e-2, 5e-9, 1e-30])
@pytest.mark.parametrize(("factor", "moved"), [(2.0, True), (1.01, True), (1.00001, False)])
def test_a_scale_that_was_moved_is_named(scale: float, factor: float, moved: bool) -> None:
    read = onnxq.read(
        build(
            """(float[4] x) => (float[4] y) {
                q = QuantizeLinear (x, s, zero)
                d = DequantizeLinear (q, s, zero)
                y = Relu (d)
            }""",
            s=f32(scale),
            zero=np.uint8(0).reshape(()),
        )
    )

    def adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
        numbers.update({name: replace(qp, scale=qp.scale * np.float32(factor)) for name, qp in numbers.items()})
        return []

    notes = fit_to_target(read.model, read.plan, dict(read.qparams), replace(BACKEND, adjust=adjust))
    assert any("'x': they were changed" in note for note in notes) == moved

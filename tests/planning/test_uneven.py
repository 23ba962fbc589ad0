"""Normalizations in front of layers: folded into their weights, unless these would be too coarse then."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq import Options
from onnxq.prepare import Prepared
from tests.graph.helpers import build, f32, ops, random


@pytest.mark.parametrize("spread", [1.0, 3.0, 1e3])
def test_columns_in_their_own_units_stay_normalized(spread: float) -> None:
    """A table's columns of 1e-3 to 1e3: no scale of the folded weight fits them all."""
    text = (
        "g (float[3,4] x) => (float[3,5] y) "
        "{ r = Relu(x) \n n = BatchNormalization(r, one, one, one, var) \n y = Gemm(n, w) }"
    )
    variance = f32([spread**-2, 1, 1, spread**2])
    prepared = Prepared(build(text, w=random(4, 5), one=np.ones(4, np.float32), var=variance), Options())
    if spread < 1e3:
        assert ops(prepared.model) == ["Relu", "Gemm"]
    else:
        assert ops(prepared.model) == ["Relu", "BatchNormalization", "Gemm"]
        assert any("its channels differ so much in size" in note for note in prepared.notes)

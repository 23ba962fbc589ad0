"""Numbers of tokens, which ncnn reads in 32 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxq
from onnxq.errors import VerificationError
from onnxq.runtimes.child import examine, missing
from onnxq.runtimes.ncnn import RUNTIME
from tests.contract import infer
from tests.models import build, normal

WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(WHY is not None, reason=f"no ncnn: {WHY}")]


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_numbers_of_tokens_are_read_in_32_bits(kind: Any, tmp_path: Path) -> None:
    """As 64 bits, ncnn took every second one for 0."""
    size = np.dtype(kind).name
    text = f"({size}[1, 12] i) => (float[1, 12, 4] y) {{ e = Gather (table, i) y = Tanh (e) }}"
    model = build(text, table=normal(20, 4))
    feeds = [{"i": np.arange(k, k + 12, dtype=kind).reshape(1, 12)} for k in range(3)]
    onnxq.quantize(model, feeds, backend="ncnn", output=tmp_path / "m.onnx")
    seen = examine(RUNTIME, tmp_path / "m.onnx", feeds).outputs
    for made, want in zip(seen, infer(model, feeds, optimize=False)["y"], strict=True):
        np.testing.assert_allclose(made["y"], want, atol=1e-5)


def test_numbers_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    model = build("(int64[1, 2] i) => (float[1, 2, 4] y) { e = Gather (table, i) y = Tanh (e) }", table=normal(20, 4))
    feeds = [{"i": np.array([[0, 1]])}]
    onnxq.quantize(model, feeds, backend="ncnn", output=tmp_path / "m.onnx")
    with pytest.raises(VerificationError, match="32 bits"):
        examine(RUNTIME, tmp_path / "m.onnx", [{"i": np.array([[0, 2**40]])}])

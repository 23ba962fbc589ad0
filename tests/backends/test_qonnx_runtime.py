"""The package qonnx runs what is written: equal to onnxq's own simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import VerificationError
from onnxq.runtimes.child import examine, missing
from onnxq.runtimes.qonnx import RUNTIME
from tests.models import build, f32, feeds_for, images, normal
from tests.targets import GRAPHS

_WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(_WHY is not None, reason=f"no qonnx: {_WHY}")]


@pytest.mark.parametrize(("weights", "activations"), [(8, 8), (4, 4), (3, 5), (16, 16)])
@pytest.mark.parametrize("name", GRAPHS)
def test_numbers(name: str, weights: int, activations: int, tmp_path: Path) -> None:
    model = GRAPHS[name]()
    feeds = feeds_for(model, samples=2)
    options = Options(weight_bits=weights, act_bits=activations, min_sqnr=-100)
    made = onnxq.quantize(model, feeds, backend="qonnx", output=tmp_path / "q.onnx", options=options)
    agreement = onnxq.verify(made, feeds)
    assert agreement.runtime is not None and agreement.runtime.startswith("QONNX ") and not agreement.simulated
    assert agreement.ok and agreement.worst is not None and agreement.worst[1].sqnr > 120


def test_zero_points_are_held_but_for_ties(tmp_path: Path) -> None:
    """With an odd zero point QONNX rounds what is half-way between integers to the other side."""
    model = build(
        """(float[1, 16] x) => (float[1, 16] y) {
            q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)
            wq = DequantizeLinear (w, ws)  y = MatMul (d, wq)
        }""",
        s=f32(0.5),
        z=np.uint8(101),
        w=np.eye(16, dtype=np.int8),
        ws=f32(1),
    )
    onnxq.deploy(model, backend="qonnx", output=tmp_path / "q.onnx")
    off, ties = f32(np.arange(16)) * 0.5 - 3.1, f32(np.arange(16)) * 0.5 - 3.25
    for x, steps in ((off, 0.0), (ties, 1.0)):
        (seen,) = examine(RUNTIME, tmp_path / "q.onnx", [{"x": x.reshape(1, 16)}]).outputs
        want = (np.rint(x / f32(0.5) + 101) - 101) * 0.5
        np.testing.assert_array_equal(seen["y"][0], want)
        own = np.rint(x / f32(0.5)) * 0.5
        assert np.abs(seen["y"][0] - own).max() == steps * 0.5


def test_a_batch_of_any_size_and_what_is_picked(tmp_path: Path) -> None:
    model = build(
        """(float[N, 3, 8, 8] x) => (float[N, 2] y, int64[N, 2] i) {
            a = Conv (x, w)  m = GlobalAveragePool (a)  f = Flatten (m)
            y, i = TopK (f, k)
        }""",
        w=normal(6, 3, 3, 3),
        k=np.array([2]),
    )
    data = [*images(1, 3, 8, 8, samples=4), *images(3, 3, 8, 8, samples=2)]
    made = onnxq.quantize(model, data, backend="qonnx", output=tmp_path / "q.onnx")
    agreement = onnxq.verify(made, data)
    assert agreement.ok and agreement.worst is not None and agreement.worst[1].sqnr > 100
    assert agreement.tensors > 0 and agreement.compared.startswith("QONNX against onnxruntime")


def test_what_it_refuses_is_said_in_a_sentence(tmp_path: Path) -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y) { y = nowhere.Odd (x) }", domains={"nowhere": 1})
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(VerificationError, match="QONNX does not take the artifact: it does not run it: ") as caught:
        examine(RUNTIME, tmp_path / "m.onnx", [{"x": normal(1, 4)}])
    assert "Traceback" not in str(caught.value) and "\n" not in str(caught.value)

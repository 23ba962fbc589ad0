"""hls4ml's C++, compiled: bit for bit what onnxq simulates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import onnxq
from onnxq import Options
from onnxq.errors import VerificationError
from onnxq.runtimes.child import missing
from onnxq.runtimes.hls4ml import RUNTIME
from tests.models import build, feeds_for, normal
from tests.targets import GRAPHS

_WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(_WHY is not None, reason=f"no hls4ml: {_WHY}")]

_STEM = "a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)  r = Relu (a)"
NETS = {
    "convolutions": f"{_STEM}  d = Conv <pads = [1, 1, 1, 1], group = 8> (r, w2)  e = Relu (d)  y = Conv (e, w3)",
    "residual": f"{_STEM}  c = Conv (r, w3)  s = Add (c, r)  t = Relu (s)  y = Conv (t, w3)",
    "pool": f"{_STEM}  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)  y = Conv (p, w3)",
    "layers": f"{_STEM}  f = Flatten (r)  g = Gemm <transB = 1> (f, w4, b4)  t = Relu (g)  y = MatMul (t, w5)",
}


@pytest.mark.parametrize(("weights", "activations"), [(6, 6), (3, 8)])
@pytest.mark.parametrize("name", NETS)
def test_numbers(name: str, weights: int, activations: int, tmp_path: Path) -> None:
    constants: dict[str, Any] = {
        "w1": normal(8, 3, 3, 3),
        "b1": normal(8, seed=1, scale=0.1),
        "w2": normal(8, 1, 3, 3, seed=2),
        "w3": normal(8, 8, 1, 1, seed=3),
        "w4": normal(10, 288, seed=4, scale=0.1),
        "b4": normal(10, seed=5, scale=0.1),
        "w5": normal(10, 4, seed=6),
    }
    size = {"pool": "1, 8, 3, 3", "layers": "1, 4"}.get(name, "1, 8, 6, 6")
    used = {key: array for key, array in constants.items() if key in NETS[name]}
    model = build(f"(float[1, 3, 6, 6] x) => (float[{size}] y) {{ {NETS[name]} }}", **used)
    feeds = feeds_for(model, samples=4)
    options = Options(weight_bits=weights, act_bits=activations, min_sqnr=-100)
    made = onnxq.quantize(model, feeds, backend="hls4ml", output=tmp_path / "q.onnx", options=options)
    agreement = onnxq.verify(made, feeds)
    assert agreement.runtime is not None and agreement.runtime.startswith("hls4ml ")
    assert agreement.ok and agreement.worst is not None and agreement.worst[1].max_error == 0.0


def test_what_it_refuses_is_said_in_a_sentence(tmp_path: Path) -> None:
    model = GRAPHS["upsampling"]()
    feeds = feeds_for(model, samples=1)
    made = onnxq.quantize(model, feeds, backend="hls4ml", output=tmp_path / "q.onnx")
    with pytest.raises(VerificationError, match=r"hls4ml does not take the artifact: .*ConvTranspose") as caught:
        onnxq.verify(made, feeds)
    assert "Traceback" not in str(caught.value) and "\n" not in str(caught.value)

"""An exported file is refused where it computes something else than torch, and not for values at ties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.errors import VerificationError
from onnxq.graph.files.load import load
from onnxq.render import fake_quantize
from tests.models import build, f32
from tests.running import open_session

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from onnxq.torch.agreement import quantized_values, require_same

torch.set_num_threads(1)


class Deep(nn.Module):
    """Every layer makes a difference of one value larger and spreads it over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(700, 700) for _ in range(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(6 * layer(x)).transpose(0, 1)
        return x


def test_a_net_that_makes_ties_large_is_exported(tmp_path: Path) -> None:
    example = torch.randn(700, 700)
    model = qat.prepare(Deep(), (example,), batches=[example]).eval()
    path = qat.export(model, tmp_path / "trained.onnx", (example,), input_names=["x"])
    with torch.no_grad():
        want = model(example).numpy()
    got = np.asarray(open_session(path, optimize=False).run(None, {"x": example.numpy()})[0])
    assert np.median(np.abs(got - want)) > 1e-2, "the test needs a net whose outputs differ"


def _tie(moved: int) -> tuple[ir.Model, list[torch.Tensor], dict[ir.Value, torch.Tensor]]:
    """A sum of 400 rounded values, torch's outputs where some of them were rounded to the other side of a tie."""
    model = load(
        build(
            """(float[400] x) => (float[1] y) {
                q = onnxq.FakeQuantize<quant_min = -128, quant_max = 127, call = "a"> (x, scale, zero)
                big = Mul (q, thousand)
                y = ReduceSum<keepdims = 1> (big)
            }""",
            domains={"onnxq": 1},
            scale=f32(1.0),
            zero=f32(0.0),
            thousand=f32(1000.0),
        )
    )
    fake_quantize.register(model)
    rounded = torch.arange(400).remainder(100).float() - 50
    rounded[:moved] += 1
    return model, [1000 * rounded.sum().reshape(1)], quantized_values(model, {"a": rounded})


def _x() -> list[torch.Tensor]:
    return [torch.arange(400).remainder(100).float() - 50]


def test_a_few_ties_are_forgiven_and_what_follows_from_them() -> None:
    model, wanted, quantized = _tie(4)
    require_same(model, _x(), wanted, quantized)
    with pytest.raises(VerificationError, match="another tensor 'y'"):
        require_same(model, _x(), [wanted[0] * 1.01], quantized)


def test_more_than_ties_are_told_where_they_are() -> None:
    model, wanted, quantized = _tie(40)
    with pytest.raises(VerificationError, match="another tensor 'q'"):
        require_same(model, _x(), wanted, quantized)

"""Masks of attention have no place on a grid beside the scores, whether the example shows them or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onnxq
from onnxq.errors import DataError

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from tests.torch.nets import batches

torch.set_num_threads(1)

LOWEST = float(np.finfo(np.float32).min)


class Masked(nn.Module):
    """Attention of one head with a bias of positions, its padding masked as in most transformers."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.low = way, -1e4 if "mild" in way else LOWEST
        self.parts, self.last = nn.Linear(8, 24), nn.Linear(8, 4)
        self.places = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        query, key, value = self.parts(x).chunk(3, -1)
        scores, kept = query @ key.transpose(-1, -2), kept[:, None]
        if "added" in self.way:
            scores = scores + (self.places + (1 - kept.float()) * self.low)
        else:
            scores = (scores + self.places).masked_fill(kept == 0, self.low)
        found: torch.Tensor = self.last(scores.softmax(-1) @ value)
        return found


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt", "vitis"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("way", ["added", "put in place", "mild, added", "mild, put in place"])
def test_scores_keep_their_accuracy_beside_a_mask(way: str, padded: bool, backend: str) -> None:
    data, kept = batches(2, 6, 8), torch.ones(2, 6, dtype=torch.int64)
    padding = kept.clone()
    padding[:, 4:] = 0
    example, net = (data[0], padding if padded else kept), Masked(way)
    calibration = [(x, k) for x in data for k in (kept, example[1])]
    model = qat.prepare(net, example, backend=backend, act_observer="minmax", batches=calibration).eval()
    with torch.no_grad():
        want, got = net(data[0], padding), model(data[0], padding)
        assert float((got - want).abs().max()) < (0.2 if backend == "vitis" else 0.1) * float(want.abs().max())
        other = data[0].clone()
        other[:, 4:] = 0
        assert torch.equal(model(other, padding)[:, :4], got[:, :4]), "what is masked makes no difference"


@pytest.mark.parametrize("dynamo", [False, True])
def test_it_is_deployed_as_it_was_trained(tmp_path: Path, dynamo: bool) -> None:
    data, padding = batches(2, 6, 8), torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]])
    example = (data[0], padding)
    model = qat.prepare(Masked("added"), example, batches=[(x, padding) for x in data], dynamo=dynamo).eval()
    assert any("masks" in why for why in model.left.values())
    path = qat.export(model, tmp_path / "trained.onnx", example, input_names=["x", "kept"], dynamo=dynamo)
    session = onnxq.Session(onnxq.deploy(path).rendered(), optimize=False)
    with torch.no_grad():
        for x in data:
            (got,) = session.run({"x": x.numpy(), "kept": padding.numpy()}).values()
            np.testing.assert_allclose(got, model(x, padding).numpy(), rtol=1e-4, atol=1e-5)


def test_a_mask_given_as_numbers_that_no_example_shows_is_told_at_calibration() -> None:
    class Given(Masked):
        def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
            query, key, value = self.parts(x).chunk(3, -1)
            found: torch.Tensor = self.last(torch.relu(query @ key.transpose(-1, -2) + kept) @ value)
            return found

    data = batches(2, 6, 8)
    model = qat.prepare(Given("added"), (data[0], torch.zeros(2, 6, 6)))
    mask = torch.zeros(2, 6, 6)
    mask[:, :, 4:] = LOWEST
    with pytest.raises(DataError, match=r"quantizer 'add_\w+': it holds NaN, infinite values or masks") as raised:
        qat.calibrate(model, [(x, mask) for x in data])
    assert "example" in str(raised.value.hint)

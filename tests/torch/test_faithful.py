"""What torch exports as something else than it computes is told before a training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from onnxq.errors import OnnxqError, VerificationError

torch.set_num_threads(1)
Tensor = torch.Tensor


class Between(nn.Module):
    """Two layers with something between them."""

    def __init__(self, change: Callable[[Tensor], Tensor], end: Callable[[Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.first, self.last, self.change, self.end = nn.Linear(8, 8), nn.Linear(8, 3), change, end

    def forward(self, x: Tensor) -> Any:
        return self.end(self.last(self.change(self.first(x))))


def under_another_name(x: Tensor) -> Tensor:
    x[:, :6].mul_(3.0).relu_()
    return x


def random(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def in_windows(x: Tensor) -> Tensor:
    """Of other axes in torch's older exporter."""
    return x.repeat(1, 8).unfold(-1, 8, 8)


TOLD = "torch exports Between as something else than it computes, in float as it is now"


@pytest.mark.parametrize("change", [under_another_name, random, in_windows])
def test_it_is_told_by_prepare_and_refused_by_export(tmp_path: Path, change: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 8)
    with pytest.warns(UserWarning, match=TOLD) as told:
        model = qat.prepare(Between(change), (x,), batches=[x])
    assert [warning.filename for warning in told] == [__file__]
    with pytest.raises(OnnxqError):
        qat.export(model, tmp_path / "trained.onnx", (x,))


def test_an_example_of_several_is_looked_at_too() -> None:
    def branch(x: Tensor) -> Tensor:
        return random(x) if len(x) == 3 else x

    qat.prepare(Between(branch), (torch.randn(4, 8),))
    with pytest.warns(UserWarning, match=TOLD):
        qat.prepare(Between(branch), (torch.randn(4, 8),), more_examples=[(torch.randn(3, 8),)])


@pytest.mark.parametrize("change", [under_another_name, pytest.param(in_windows, marks=pytest.mark.slow)])
def test_the_other_exporter_takes_it(tmp_path: Path, change: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 8)
    model = qat.prepare(Between(change), (x,), batches=[x], dynamo=True)
    qat.export(model, tmp_path / "trained.onnx", (x,), dynamo=True)


def test_numbers_among_the_outputs_are_refused() -> None:
    net = Between(torch.relu, lambda y: (y, y.shape[0]))
    with pytest.raises(VerificationError, match=r"it has 2 outputs, the module gives 1 tensors\. Let forward return"):
        qat.prepare(net, (torch.randn(4, 8),))


def test_infinite_outputs_and_no_numbers_are_what_torch_gives(tmp_path: Path) -> None:
    def most(y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(y < 1e9, -torch.inf, y), torch.where(y < 1e9, torch.nan, y)

    x = torch.randn(4, 8)
    qat.export(qat.prepare(Between(torch.relu, most), (x,), batches=[x]), tmp_path / "trained.onnx", (x,))


def test_it_leaves_the_module_and_the_example_as_they_were() -> None:
    net, x = Between(nn.Sequential(nn.Dropout(), nn.BatchNorm1d(8))), torch.randn(4, 8)
    before, state = x.clone(), {name: value.clone() for name, value in net.state_dict().items()}
    qat.prepare(net.train(), (x,))
    assert torch.equal(x, before)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert all(part.training for part in net.modules())

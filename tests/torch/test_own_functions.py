"""Functions of the user's with a backward pass of their own, among the calls that are quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import onnxq

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from tests.torch.nets import assert_same, batches, differences, trained

torch.set_num_threads(1)
Tensor = torch.Tensor


class Swish(torch.autograd.Function):
    """As EfficientNets have it, to keep one tensor for the backward pass in place of two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        share = torch.sigmoid(ctx.saved_tensors[0])
        result: Tensor = gradient * (share * (1 + ctx.saved_tensors[0] * (1 - share)))
        return result


class Sign(torch.autograd.Function):
    """The context apart, as torch 2 has it, and a gradient that passes straight through."""

    @staticmethod
    def forward(x: Tensor, size: float = 1.0) -> Tensor:
        return torch.sign(x) * size

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


class Net(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function, self.first, self.second = function, nn.Linear(8, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.function.apply(self.second(self.function.apply(self.first(x))))
        out: Tensor = self.last(x)
        return out


@pytest.mark.parametrize("backend", ["onnxruntime", "qnn"])
@pytest.mark.parametrize("function", [Swish, Sign])
def test_what_is_trained_with_it_is_exported(
    tmp_path: Path, function: type[torch.autograd.Function], backend: str
) -> None:
    data = batches(4, 8)
    apply = torch.autograd.Function.__dict__["apply"]
    net = Net(function)
    before = net.first.weight.detach().clone()
    model, _ = trained(net, data, backend=backend)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert not torch.equal(net.first.weight, before)
    made = onnxq.deploy(path, backend=backend, output=tmp_path / "d.onnx")
    assert list(made.plan.quantized.values()).count("Gemm") == 3
    assert_same(differences(model, tmp_path / "d.onnx", data, optimize=False), 0.02)

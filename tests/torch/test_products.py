"""Products with a bias, however written, are deployed as trained, also where targets round between the two."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import onnxq

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from tests.torch.nets import W4A4, differences

torch.set_num_threads(1)

Tensor = torch.Tensor
Form = Callable[[Tensor, Tensor, Tensor], Tensor]

FORMS: dict[str, Form] = {
    "addmm": torch.addmm,
    "method": lambda b, x, w: b.addmm(x, w),
    "keywords": lambda b, x, w: torch.addmm(input=b, mat1=x, mat2=w),
    "factors": lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2.0),
    "baddbmm": lambda b, x, w: torch.baddbmm(b, x[None], w[None])[0],
    "linear": lambda b, x, w: nn.functional.linear(x, w.T, bias=b),
}


class Product(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        self.weight, self.bias = nn.Parameter(torch.randn(16, 16) * 0.3), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self.bias, x, self.weight)


@pytest.mark.parametrize("name", FORMS)
def test_the_bias_is_rounded_and_not_the_weight(tmp_path: Path, name: str) -> None:
    """Inputs are large: the unit of the bias, data scale times weight scale, is far above any weight."""
    x = torch.randn(64, 16) * 600
    net = Product(FORMS[name])
    with torch.no_grad():
        want = net(x)
    model = qat.prepare(net, (x,), options=W4A4, batches=[x]).eval()
    assert not model.left
    with torch.no_grad():
        assert float((model(x) - want).norm() / want.norm()) < 0.3
    path = qat.export(model, tmp_path / "trained.onnx", (x,))
    onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    assert differences(model, tmp_path / "d.onnx", [x], optimize=False).max() <= 1e-6


class Feed(nn.Module):
    """A transformer's two layers, on tensors of three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(torch.relu(self.up(x)))
        return result


@pytest.mark.parametrize("backend", ["onnxruntime", "qnn", "snpe", "vitis", "ppl", "onnx_qnn", "tvm", "tensorrt"])
def test_layers_on_three_axes_are_quantized(backend: str, tmp_path: Path) -> None:
    data = [torch.randn(4, 6, 16) for _ in range(4)]
    model = qat.prepare(Feed(), (data[0],), backend=backend, batches=data)
    assert {"up_linear_weight", "down_linear_weight"} <= set(model.quantizers)
    between = {"up_linear_product", "down_linear_product"} & set(model.quantizers)
    assert len(between) == (0 if backend in ("onnxruntime", "tvm", "tensorrt") else 2)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x in data:
        loss = model(x).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    path = qat.export(model.eval(), tmp_path / "trained.onnx", (data[0],), input_names=["x"], output_names=["y"])
    deployed = onnxq.deploy(path, backend=backend)
    assert sorted(op for op in deployed.plan.quantized.values() if op == "MatMul") == ["MatMul", "MatMul"]
    session = onnxq.Session(deployed.rendered(), optimize=False)
    for x in data:
        with torch.no_grad():
            want = model(x).numpy()
        found = np.abs(session.run({"x": x.numpy()})["y"] - want) / np.abs(want).max()
        assert np.mean(found > 1e-4) <= 0.01 and found.max() <= 0.02


class Contracted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Parameter(torch.randn(2, 8, 4)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.einsum("btc,hcd->bhtd", x, self.inner).relu().mean(2).flatten(1))
        return result


def test_weights_that_stay_float_are_told() -> None:
    x = torch.randn(5, 2, 8)
    with pytest.warns(UserWarning, match="weights of '/module/Einsum' train and deploy in float, though onnxr"):
        model = qat.prepare(Contracted(), (x,))
    assert "/module/Einsum" in model.left
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qat.prepare(Feed(), (torch.randn(2, 3, 16),), backend="qnn")

"""A prepared module computes the same inside torch.compile, which cuts code into functions of other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn
from torch.nn import functional

import onnxq.torch as qat
from onnxq.errors import OptionError
from tests.torch.nets import batches

torch.set_num_threads(1)


class Functions(nn.Module):
    """Calls of functions in the user's own code, behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu6(self.first(x))
        x = functional.hardswish(x + 1)
        return functional.linear(x.mean((2, 3)), self.last.weight, self.last.bias)


@pytest.mark.parametrize("way", ["torch.compile", "Module.compile"])
def test_a_compiled_module_keeps_all_its_quantizers(tmp_path: Path, way: str) -> None:
    torch._dynamo.reset()
    data = batches(2, 3, 8, 8)
    model = qat.prepare(Functions(), (data[0],), batches=data)
    compiled: Any = model
    with torch.no_grad():
        wanted = model.eval()(data[0])
        with model.set(active=False):
            assert not torch.allclose(model(data[0]), wanted, rtol=0, atol=1e-6)
        if way == "torch.compile":
            compiled = torch.compile(model, backend="eager")
        else:
            model.compile(backend="eager")
        assert torch.equal(compiled(data[0]), wanted)
    model.train()
    compiled(data[0]).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert not model._unknown


def test_a_compiled_module_exports_as_before(tmp_path: Path) -> None:
    torch._dynamo.reset()
    data = batches(2, 3, 8, 8)
    model = qat.prepare(Functions(), (data[0],), batches=data)
    plain = qat.export(model, tmp_path / "plain.onnx", (data[0],)).read_bytes()
    compiled: Any = torch.compile(model, backend="eager")
    compiled(data[0])
    assert qat.export(compiled, tmp_path / "compiled.onnx", (data[0],)).read_bytes() == plain


@pytest.mark.parametrize("name", ["first", ""])
def test_a_part_compiled_after_prepare_is_refused(tmp_path: Path, name: str) -> None:
    data = batches(2, 3, 8, 8)
    model = qat.prepare(Functions(), (data[0],), batches=data)
    plain = qat.export(model, tmp_path / "plain.onnx", (data[0],)).read_bytes()
    model.module.get_submodule(name).compile(backend="eager")
    with pytest.raises(OptionError, match=rf"module '{name or 'root'}' went through torch\.compile"):
        model(data[0])
    assert qat.export(model, tmp_path / "compiled.onnx", (data[0],)).read_bytes() == plain

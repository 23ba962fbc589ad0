"""A prepared module in a file of its own; checkpoints of its state are in test_prepare.py."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

import onnxq.torch as qat
from onnxq.errors import OptionError
from onnxq.torch.module import QuantizedModule
from tests.torch.nets import Plain, batches

torch.set_num_threads(1)


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt", "snpe"])
def test_a_prepared_module_is_saved_whole(tmp_path: Path, backend: str) -> None:
    data = batches(2, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), backend=backend, batches=data).eval()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    assert isinstance(other, QuantizedModule)
    assert other.target == model.target
    assert other.plan == model.plan
    with torch.no_grad():
        assert torch.equal(other(data[0]), model(data[0]))
    paths = [qat.export(m, tmp_path / f"{k}.onnx", (data[0],)) for k, m in enumerate((model, other))]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    other.train()
    other(data[0]).sum().backward()
    assert all(p.grad is not None for p in other.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_a_copy_has_the_very_target() -> None:
    data = batches(2, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), batches=data)
    assert copy.deepcopy(model).target is model.target


def test_a_module_for_a_target_that_is_not_installed_is_told() -> None:
    data = batches(2, 3, 10, 10)
    state = qat.prepare(Plain(), (data[0],)).__getstate__()
    with pytest.raises(OptionError, match="elsewhere"):
        QuantizedModule.__new__(QuantizedModule).__setstate__({**state, "target": "elsewhere"})

"""A quantized model's module in a file, copied, and in a deep graph."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxq
from onnxq import Options
from tests.models import build, f32, feeds_for
from tests.targets import residual

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch.optim.swa_utils import AveragedModel

from onnxq.torch import GraphModule

torch.set_num_threads(1)

FEEDS = feeds_for(residual(), samples=8)


def outputs(module: torch.nn.Module) -> list[torch.Tensor]:
    with torch.no_grad():
        return [module(**{n: torch.from_numpy(a) for n, a in feed.items()}) for feed in FEEDS]


def there_and_back(module: GraphModule) -> GraphModule:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    assert isinstance(found, GraphModule)
    return found


@pytest.mark.parametrize("copied", [there_and_back, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("backend", ["onnxruntime", "snpe"])
def test_another_one_computes_the_same_and_is_taken_back(copied, backend: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    q = onnxq.quantize(residual(), FEEDS, backend=backend, options=Options(placement="all"))
    module = q.torch().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.01)
    other = copied(module)
    assert all(torch.equal(a, b) for a, b in zip(outputs(module), outputs(other), strict=True))
    paths = [q.load_torch(m).save(tmp_path / f"{k}.onnx")[0] for k, m in enumerate((module, other))]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert other.source.save(tmp_path / "other.onnx")[0].read_bytes() == q.save(tmp_path / "q.onnx")[0].read_bytes()
    other.train()(**{n: torch.from_numpy(a) for n, a in FEEDS[0].items()}).sum().backward()
    assert not [p for p in module.parameters() if p.grad is not None]


def test_a_graph_deeper_than_python_recurses() -> None:
    depth = 600
    weights: dict[str, Any] = {f"w{k}": f32(np.eye(4)) for k in range(depth)}
    steps = "\n".join(f"t{k + 1} = MatMul(t{k}, w{k})" for k in range(depth))
    model = build(f"(float[1,4] t0) => (float[1,4] t{depth}) {{\n{steps}\n}}", **weights)
    feeds = [{"t0": f32(np.random.default_rng(k).normal(size=(1, 4)))} for k in range(4)]
    module = onnxq.quantize(model, feeds, options=Options(placement="all")).torch().eval()
    x = torch.from_numpy(feeds[0]["t0"])
    for other in (there_and_back(module), AveragedModel(module)):
        assert torch.equal(other(x), module(x))

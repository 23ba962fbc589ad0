"""Weights that are equal, cut out of one, or one: each layer that has its own trains its own."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

import onnxq

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from onnxq.torch.module import QuantizedModule
from tests.torch.nets import W4A4, assert_same, batches, differences, trained

torch.set_num_threads(1)


def weights(model: QuantizedModule) -> list[str]:
    return [name for name, quantizer in model.observing() if quantizer.weight]


def test_copied_layers_have_a_quantizer_each(tmp_path: Path) -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1)
    data = batches(4, 4, 6, 6)
    model, _ = trained(nn.Sequential(layer, nn.ReLU(), copy.deepcopy(layer)), data, options=W4A4)
    assert weights(model) == ["0_conv2d_weight", "2_conv2d_weight"]
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    made = onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    scales = [made.qparams[s.name].scale for s in made.plan.sites if s.role == "weight"]
    assert len(scales) == 2 and (scales[0] != scales[1]).all()
    assert_same(differences(model, tmp_path / "d.onnx", data, optimize=False), 0.1)


def test_a_layer_called_twice_has_one() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1)
    model = qat.prepare(nn.Sequential(layer, nn.ReLU(), layer), (torch.randn(2, 4, 6, 6),))
    assert weights(model) == ["0_conv2d_weight"]


@pytest.mark.filterwarnings("error:onnxq")
def test_a_new_encoder_whose_layers_are_copies_trains_in_all_of_them() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert len(weights(qat.prepare(net, (torch.randn(2, 5, 8),)))) == 8


class Crossed(nn.Module):
    """Attention to another sentence: its weight is cut into those of queries and of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.attend(x[:, :3], x, x * 0.5, need_weights=False)[0])
        return result


@pytest.mark.filterwarnings("error:onnxq")
def test_weights_cut_out_of_one_are_quantized(tmp_path: Path) -> None:
    data = batches(4, 5, 8)
    model, _ = trained(Crossed(), data, options=W4A4)
    assert len(weights(model)) == 5
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    made = onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    assert sum(s.role == "weight" for s in made.plan.sites) == 5
    assert_same(differences(model, tmp_path / "d.onnx", data, optimize=False), 0.1)


def test_a_deep_module_is_prepared() -> None:
    layers = [part for _ in range(130) for part in (nn.Linear(2, 2), nn.ReLU())]
    assert len(weights(qat.prepare(nn.Sequential(*layers), (torch.randn(2, 2),)))) == 130

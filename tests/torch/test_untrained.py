"""Scales found behind batch normalizations that never ran in training mode are those of another net, and it is said."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from tests.torch.nets import Plain, batches

torch.set_num_threads(1)


def deep(*, layers: int) -> nn.Module:
    torch.manual_seed(0)
    parts = [[nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()] for _ in range(layers)]
    return nn.Sequential(nn.Conv2d(3, 4, 3), *(part for some in parts for part in some))


def test_a_deep_net_that_was_never_trained_is_told() -> None:
    data, net = batches(8, 3, 8, 8), deep(layers=8)
    with pytest.warns(UserWarning, match=r"batch normalization '23' and \d more has never run in training mode.*e-0"):
        qat.prepare(net, (data[0],), batches=data)
    for _ in range(30):
        net.train()(data[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = qat.prepare(net, (data[0],), batches=data)
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_a_net_whose_values_keep_their_size_is_not() -> None:
    data = batches(4, 3, 10, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qat.prepare(Plain(), (data[0],), batches=data)

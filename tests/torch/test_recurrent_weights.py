"""Weights of recurrent layers train on the grids on which the target stores them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from tests.running import open_session

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from tests.torch.nets import batches, trained

torch.set_num_threads(1)

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Recurrent(nn.Module):
    """Two layers in both directions, or one in one."""

    def __init__(self, kind: str, *, deep: bool) -> None:
        super().__init__()
        self.layer = KINDS[kind](6, 5, 1 + deep, batch_first=True, bidirectional=deep)
        self.head = nn.Linear(5 * (1 + deep), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return result


@pytest.mark.parametrize(
    ("options", "bits"),
    [
        pytest.param(Options(weight_bits=4), 4, id="4 bits"),
        pytest.param(Options(per_channel=False), 8, id="per tensor"),
    ],
)
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_is_what_is_stored(tmp_path: Path, kind: str, deep: bool, options: Options, bits: int) -> None:
    data = batches(2, 4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # that weights train in float
        model, _ = trained(Recurrent(kind, deep=deep), data, options=options)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],), input_names=["x"])
    deployed = onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    graph = onnx.load(tmp_path / "d.onnx").graph
    layers = {node.name: node for node in graph.node if node.op_type == kind.upper()}
    assert len(layers) == 1 + deep and layers.keys() <= set(deployed.plan.stored)
    sites = [site for site in deployed.plan.sites if any(edge.node in layers for edge in site.readers)]
    assert len(sites) == 2 * (1 + deep) and {site.spec.bits for site in sites} == {bits}
    scales = {
        tuple(np.sort(q.qparams().scale, axis=None)) for name, q in model.observing() if q.weight and "head" not in name
    }
    assert {tuple(np.sort(deployed.qparams[site.name].scale, axis=None)) for site in sites} == scales
    session = open_session(tmp_path / "d.onnx", optimize=False)
    apart = []
    for x in data:
        with torch.no_grad():
            want = model(x).numpy()
        apart.append(np.abs(np.asarray(session.run(None, {"x": x.numpy()})[0]) - want).max() / np.abs(want).max())
    assert np.median(apart) <= 1e-4 and max(apart) <= 0.02


def test_rounding_one_by_one_needs_one_weight() -> None:
    """Both directions share their scales, and a number for each weight is none for two."""
    with pytest.raises(onnxq.errors.OptionError, match="needs the shape of the weight"):
        qat.prepare(Recurrent("lstm", deep=True), (batches(2, 4, 6)[0],), weight_quantizer="adaround")

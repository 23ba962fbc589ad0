"""Modules trained for other targets than onnxruntime are deployed as trained."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import OptionError

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

import onnxq.torch as qat
from tests.torch.nets import Plain, assert_same, batches, trained, with_signs

torch.set_num_threads(1)


@pytest.mark.parametrize("backend", ["tensorrt", "openvino", "qnn", "snpe", "ncnn", "rknn", "tvm", "academic"])
def test_other_targets_compute_what_torch_does(tmp_path: Path, backend: str) -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(with_signs(Plain()), (data[0],), backend=backend)
    qat.calibrate(model, data)
    path = qat.export(model.eval(), tmp_path / "trained.onnx", (data[0],), input_names=["x"], output_names=["y"])
    session = onnxq.Session(onnxq.deploy(path, backend=backend).rendered(), optimize=False)
    found = []
    for x in data:
        with torch.no_grad():
            want = model(x).numpy()
        found.append(np.abs(session.run({"x": x.numpy()})["y"] - want) / np.abs(want).max())
    assert_same(np.stack(found), 0.02)


@pytest.mark.parametrize("layout", ["fake-quantize", "gfpq"])
def test_a_logarithmic_target_keeps_the_clip_values(tmp_path: Path, layout: str) -> None:
    data = batches(1, 3, 10, 10)
    model, losses = trained(Plain(norm=False), data, backend="nnie")
    assert np.isfinite(losses).all()
    clips = {n: float(q.qparams().scale) for n, q in model.observing()}
    assert all(np.isclose(16 * np.log2(c), np.rint(16 * np.log2(c)), atol=1e-5) for c in clips.values())
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],), input_names=["x"], output_names=["y"])
    options = Options(format=layout)
    deployed = onnxq.deploy(path, backend="nnie", output=tmp_path / "d.onnx", options=options)
    assert not [note for note in deployed.notes if "moved" in note]
    sites = {s.tensor: float(deployed.qparams[s.name].scale) for s in deployed.plan.sites}
    assert sites["x"] == clips["first_conv2d_input"]
    assert sites["second.weight"] == clips["second_conv2d_weight"]
    joined = {s.name for s in deployed.plan.sites for e in s.readers if deployed.plan.quantized[e.node] == "Add"}
    assert len(joined) == 2 and len({float(deployed.qparams[name].scale) for name in joined}) == 1
    session = onnxq.Session(deployed.rendered(), optimize=False)
    read = deployed.backend.format_named(layout).read or partial(onnxq.read, backend="nnie")
    again = onnxq.Session(read(tmp_path / "d.onnx").rendered(), optimize=False)
    found = []
    for x in data:
        with torch.no_grad():
            want = model(x).numpy()
        got = session.run({"x": x.numpy()})["y"]
        found.append(np.abs(got - want) / np.abs(want).max())
        np.testing.assert_allclose(again.run({"x": x.numpy()})["y"], got, rtol=1e-5, atol=1e-5)
    assert_same(np.stack(found), 0.05)


def test_what_a_logarithmic_grid_has_no_meaning_for_is_refused() -> None:
    x, net = torch.zeros(1, 3, 10, 10), Plain(norm=False)
    with pytest.raises(OptionError, match="wants a logarithmic grid"):
        qat.prepare(net, (x,), backend="nnie", weight_quantizer="lsq")
    with pytest.raises(OptionError, match="is for uniform grids"):
        qat.prepare(net, (x,), backend="nnie", act_observer="kl")
    with pytest.raises(OptionError, match="is for logarithmic ones"):
        qat.prepare(net, (x,), act_quantizer="logarithmic")

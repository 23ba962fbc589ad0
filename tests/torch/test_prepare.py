"""A module trained with fake-quantizers computes, once exported and deployed, what it computed in torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.errors import DataError, ModelError, OptionError

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from onnxq.torch.module import QuantizedModule

torch.set_num_threads(1)

W4A4 = Options(weight_bits=4, act_bits=4)
BITS = {"W4A4": W4A4, "W8A8": Options(), "W2A8": Options(weight_bits=2), "per tensor": Options(per_channel=False)}


@pytest.fixture(autouse=True)
def _same_nets() -> None:
    torch.manual_seed(0)


class Plain(nn.Module):
    """Convolution, batch normalization, ReLU, residual, linear."""

    def __init__(self, *, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8) if norm else nn.Identity()
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(8 * 25, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.first(x)))
        y = self.second(x)
        y += x
        result: torch.Tensor = self.last(self.pool(torch.relu(y)).flatten(1))
        return result


class Branches(nn.Module):
    """What tracing cannot follow: code that looks at the data."""

    def __init__(self) -> None:
        super().__init__()
        self.bright, self.dark, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = torch.relu(self.bright(x) + x)
        else:
            x = torch.relu(self.dark(x)) * 2.0
        result: torch.Tensor = self.last(x)
        return result


class Attention(nn.Module):
    """A transformer's layer, its attention inside one function of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.attend(x, x, x, need_weights=False)[0])
        result: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return result


def batches(*shape: int, count: int = 4, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def with_signs(net: nn.Module) -> nn.Module:
    """Batch normalizations as training leaves them: factors of both signs, statistics that are not 0 and 1."""
    generator = torch.Generator().manual_seed(5)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            with torch.no_grad():
                part.weight.copy_(torch.randn(part.num_features, generator=generator))
                part.bias.copy_(torch.randn(part.num_features, generator=generator) * 0.3)
    return net


def trained(
    net: nn.Module, data: list[torch.Tensor], steps: int = 6, **options: Any
) -> tuple[QuantizedModule, list[float]]:
    torch.manual_seed(1)
    model = qat.prepare(net, (data[0],), **options)
    qat.calibrate(model, data)
    model.train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        loss = model(data[step % len(data)]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    return model.eval(), losses


def in_onnxruntime(path: Path, x: torch.Tensor, *, optimize: bool = True) -> NDArray[Any]:
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options)
    found: NDArray[Any] = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    return found


def differences(model: QuantizedModule, path: Path, data: list[torch.Tensor], *, optimize: bool = True) -> NDArray[Any]:
    """Of each element, in shares of the largest output."""
    found = []
    for x in data:
        with torch.no_grad():
            want = model(x).numpy()
        found.append(np.abs(in_onnxruntime(path, x, optimize=optimize) - want) / np.abs(want).max())
    return np.stack(found)


def assert_same(found: NDArray[Any], code: float) -> None:
    """Equal to 1e-4 in at least three of four samples, and nowhere more than a code off, as a tie leaves open."""
    worst = found.reshape(found.shape[0] * found.shape[1], -1).max(axis=1)
    assert np.mean(worst <= 1e-4) >= 0.75 and worst.max() <= code, np.sort(worst)


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("layout", ["qdq", "fake-quantize"])
def test_what_is_trained_is_what_runs(tmp_path: Path, name: str, layout: str) -> None:
    data = batches(4, 3, 10, 10)
    net = with_signs(Plain(norm=name != "per tensor"))
    model, _ = trained(net, data, options=BITS[name])
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],), input_names=["x"], output_names=["y"])
    deployed = onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx", options=Options(format=layout))
    for optimize in (False, True):
        if layout == "fake-quantize" or not optimize:
            assert_same(differences(model, tmp_path / "d.onnx", data, optimize=optimize), 0.1 if "4" in name else 0.01)
    trained_scales = {n: q.qparams() for n, q in model.observing()}
    sites = {s.tensor: deployed.qparams[s.name] for s in deployed.plan.sites if s.role != "bias"}
    assert sites["x"].scale == trained_scales["first_conv2d_input"].scale
    assert sites["x"].zero_point == trained_scales["first_conv2d_input"].zero_point
    np.testing.assert_array_equal(sites["second.weight"].scale, trained_scales["second_conv2d_weight"].scale)
    if name == "per tensor":
        return
    with torch.no_grad():
        norm = net.norm
        assert isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None
        factor = norm.weight.abs().double() / torch.sqrt(norm.running_var.double() + norm.eps)
    want = trained_scales["first_conv2d_weight"].scale * factor.numpy()
    np.testing.assert_allclose(sites["first.weight"].scale, want, rtol=1e-6)


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


def test_integer_kernels_agree_up_to_single_codes(tmp_path: Path) -> None:
    """At full optimization onnxruntime computes with integers, whose output may be a code off at ties."""
    data = batches(4, 3, 10, 10)
    model, _ = trained(with_signs(Plain()), data)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    found = differences(model, tmp_path / "d.onnx", data, optimize=True)
    assert found.max() <= 0.02 and np.median(found) <= 1e-4


def test_training_lowers_the_loss_and_moves_the_scales() -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), options=W4A4)
    qat.calibrate(model, data)
    before = {n: q.qparams().scale.copy() for n, q in model.observing()}
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    target = torch.randn(4, 5, generator=torch.Generator().manual_seed(3))
    losses = []
    model.train()
    for _ in range(40):
        loss = (model(data[0]) - target).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    moved = [n for n, q in model.observing() if not np.array_equal(q.qparams().scale, before[n])]
    assert moved == list(before), "every scale is learned"


def test_the_exported_file_says_where_the_quantizers_are(tmp_path: Path) -> None:
    data = batches(4, 3, 10, 10)
    model, _ = trained(Plain(), data, options=W4A4)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    calls = [n for n in proto.graph.node if (n.domain, n.op_type) == ("onnxq", "FakeQuantize")]
    assert len(calls) >= len(model.quantizers) and [f.name for f in proto.functions] == ["FakeQuantize"]
    assert any(n.op_type == "BatchNormalization" for n in proto.graph.node), "it folds when the model is deployed"
    assert differences(model, path, data).max() <= 0.05, "in plain onnxruntime, its biases not rounded yet"


def test_code_that_looks_at_the_data(tmp_path: Path) -> None:
    bright, dark = torch.rand(5, 6), -torch.rand(5, 6)
    model = qat.prepare(Branches(), (bright,), more_examples=[(dark,)], options=W4A4)
    qat.calibrate(model, [bright, dark])
    model.eval()
    names = list(model.quantizers)
    assert {"bright_linear_weight", "dark_linear_weight", "last_linear_weight"} <= set(names)
    for k, x in enumerate((bright, dark)):
        path = qat.export(model, tmp_path / f"{k}.onnx", (x,))
        onnxq.deploy(path, backend="onnxruntime", output=tmp_path / f"{k}d.onnx")
        assert differences(model, tmp_path / f"{k}d.onnx", [x], optimize=False).max() <= 1e-4


def test_a_branch_that_no_example_reached_is_named() -> None:
    bright = torch.rand(5, 6)
    model = qat.prepare(Branches(), (bright,), options=W4A4)
    qat.calibrate(model, [bright])
    with pytest.warns(UserWarning, match="linear at .* of module 'dark' was not reached"):
        model(-bright)


def test_attention_inside_one_function_of_torch(tmp_path: Path) -> None:
    data = batches(2, 5, 8)
    net = Attention()
    with torch.no_grad():
        want = net.eval()(data[0])
    model, _ = trained(net, data, steps=3)
    layers = {"attend_linear_weight", "attend_linear_weight_2", "up_linear_weight", "down_linear_weight"}
    assert layers <= set(model.quantizers), "attention's projections in and out too"
    assert any("matmul" in name for name in model.quantizers), "the products of activations"
    with model.set(active=False), torch.no_grad():
        assert torch.allclose(model(data[0]), want, atol=0.1)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    found = differences(model, tmp_path / "d.onnx", data, optimize=False)
    assert np.median(found) <= 1e-5 and found.max() <= 0.02, "a code off at ties"


@pytest.mark.parametrize("kind", ["lsq", "fixed", "ema", "pact", "dsq", "dorefa", "tqt"])
def test_every_quantizer_is_deployed_as_trained(tmp_path: Path, kind: str) -> None:
    data = batches(4, 3, 10, 10)
    backend, net = ("vitis", Plain(norm=False)) if kind == "tqt" else ("onnxruntime", with_signs(Plain()))
    act = "lsq" if kind == "dorefa" else kind
    weight = "lsq" if kind == "pact" else kind
    model, losses = trained(net, data, backend=backend, weight_quantizer=weight, act_quantizer=act)
    assert np.isfinite(losses).all()
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    onnxq.deploy(path, backend=backend, output=tmp_path / "d.onnx")
    found = differences(model, tmp_path / "d.onnx", data, optimize=False)
    assert_same(found, 0.05 if kind == "tqt" else 0.01)  # a power of two makes ties, and vitis quantizes outputs


def test_a_module_without_quantization_is_untouched() -> None:
    data = batches(4, 3, 10, 10)
    net = Plain().eval()
    with torch.no_grad():
        want = net(data[0])
        model = qat.prepare(net, (data[0],))
        with model.set(active=False):
            assert torch.equal(model(data[0]), want)
        assert torch.equal(net(data[0]), want)
    assert sum(1 for _ in model.module.parameters()) == sum(1 for _ in Plain().parameters())


def test_its_state_is_saved_and_loaded() -> None:
    data = batches(4, 3, 10, 10)
    model, _ = trained(Plain(), data, options=W4A4)
    again = qat.prepare(Plain(), (data[0],), options=W4A4)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(data[1]), model(data[1]))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda m, x: qat.prepare(m, (x,))(x), OptionError, "calibrate"),
        (lambda m, x: qat.calibrate(qat.prepare(m, (x,)), []), DataError, "no batch"),
        (lambda m, x: qat.calibrate(qat.prepare(m, (x,)), [x * float("nan")]), DataError, "NaN"),
        (lambda m, x: qat.prepare(qat.prepare(m, (x,)), (x,)), OptionError, "prepared already"),
        (lambda m, x: qat.prepare(m, (x,), weight_quantizer="none"), OptionError, "there is no quantizer"),
        (lambda m, x: qat.prepare(m, (x,), act_observer="none"), OptionError, "there is no observer"),
        (lambda m, x: qat.export(m, "x.onnx", (x,)), OptionError, "not prepared"),
        (lambda m, x: qat.prepare(nn.Tanh(), (x,)), ModelError, "quantizes nothing"),
        (lambda m, x: qat.prepare(m, (x,), options=Options(per_channel=False)), OptionError, "batch normalization"),
    ],
)
def test_what_cannot_be_is_said_at_once(
    make: Callable[[nn.Module, torch.Tensor], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make(Plain(), torch.randn(1, 3, 10, 10))

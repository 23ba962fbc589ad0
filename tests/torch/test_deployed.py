"""A module trained with fake-quantizers computes, once exported and deployed, what it computed in torch."""

from __future__ import annotations

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
from tests.torch.nets import W4A4, Attention, Packed, Plain, assert_same, batches, differences, trained, with_signs

torch.set_num_threads(1)


BITS = {"W4A4": W4A4, "W8A8": Options(), "W2A8": Options(weight_bits=2), "per tensor": Options(per_channel=False)}


@pytest.mark.parametrize("name", BITS)
def test_what_is_trained_is_what_runs(tmp_path: Path, name: str) -> None:
    data = batches(4, 3, 10, 10)
    net = with_signs(Plain(norm=name != "per tensor"))
    model, _ = trained(net, data, options=BITS[name])
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],), input_names=["x"], output_names=["y"])
    code = 0.1 if "4" in name else 0.01
    for layout in ("fake-quantize", "qdq"):
        options = Options(format=layout)
        deployed = onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx", options=options)
        assert_same(differences(model, tmp_path / "d.onnx", data, optimize=False), code)
        if layout == "fake-quantize":
            assert_same(differences(model, tmp_path / "d.onnx", data, optimize=True), code)
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


def test_integer_kernels_agree_up_to_single_codes(tmp_path: Path) -> None:
    """At full optimization onnxruntime computes with integers, whose output may be a code off at ties."""
    data = batches(4, 3, 10, 10)
    model, _ = trained(with_signs(Plain()), data)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    found = differences(model, tmp_path / "d.onnx", data, optimize=True)
    assert found.max() <= 0.02 and np.median(found) <= 1e-4


def test_the_exported_file_says_where_the_quantizers_are(tmp_path: Path) -> None:
    data = batches(4, 3, 10, 10)
    model, _ = trained(Plain(), data, options=W4A4)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    calls = [n for n in proto.graph.node if (n.domain, n.op_type) == ("onnxq", "FakeQuantize")]
    assert len(calls) >= len(model.quantizers) and [f.name for f in proto.functions] == ["FakeQuantize"]
    assert any(n.op_type == "BatchNormalization" for n in proto.graph.node), "it folds when the model is deployed"
    with model.set(round_biases=False):  # that is done when the model is deployed
        assert_same(differences(model, path, data, optimize=False), 0.1)


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


KINDS = [("onnxruntime", kind) for kind in ("lsq", "fixed", "ema", "pact", "dsq", "dorefa", "adaround", "qdrop")]
KINDS += [("vitis", kind) for kind in ("lsq", "pact", "tqt", "qdrop")]


@pytest.mark.filterwarnings("ignore:onnxq. weights of .*rounding_loss:UserWarning")
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_every_quantizer_is_deployed_as_trained(tmp_path: Path, backend: str, kind: str) -> None:
    data = batches(4, 3, 10, 10)
    net = Plain(norm=False) if backend == "vitis" else with_signs(Plain())
    act = "lsq" if kind in ("dorefa", "adaround") else kind
    weight = "lsq" if kind in ("pact", "qdrop") else kind
    model, losses = trained(net, data, backend=backend, weight_quantizer=weight, act_quantizer=act)
    assert np.isfinite(losses).all()
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    onnxq.deploy(path, backend=backend, output=tmp_path / "d.onnx")
    found = differences(model, tmp_path / "d.onnx", data, optimize=False)
    if backend == "vitis":  # its biases of 8 bits and its powers of two make ties, and its outputs are codes
        assert found.max() <= 0.26 and np.mean(found > 1e-4) <= 0.15
    else:
        assert_same(found, 0.01)


@pytest.mark.parametrize("observer", ["clip_std", "lsq", "lsq_plus", "kl", "quantile:quantile=0.99", "mse:power=2.4"])
def test_every_observer_finds_ranges_to_start_with(observer: str) -> None:
    data = batches(4, 3, 10, 10, count=2)
    net = Plain().eval()
    with torch.no_grad():
        want = net(data[0])
    model = qat.prepare(net, (data[0],), act_observer=observer, weight_observer=observer)
    qat.calibrate(model, data)
    with torch.no_grad():
        assert float((model.eval()(data[0]) - want).abs().max()) < 0.3 * float(want.abs().max())


def test_a_quantizer_behind_another_one(tmp_path: Path) -> None:
    """The first layer's output has 8 bits, and the second layer rounds it again, to 4 with a zero point of its own."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3, padding=1)
            self.head = torch.nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.stem(x))
            out: torch.Tensor = self.head((x + self.body(x)).mean((2, 3)))
            return out

    torch.manual_seed(0)
    data = [torch.randn(2, 3, 10, 10) for _ in range(4)]
    overrides: dict[str, dict[str, int]] = {"*stem/Conv": {"bits": 8}}
    options = Options(weight_bits=4, act_bits=4, override=overrides)  # type: ignore[arg-type]
    model = qat.prepare(Net(), (data[0],), options=options)
    qat.calibrate(model, data)
    behind = model.get_submodule("quantizers.body_conv2d_input")
    with torch.no_grad():
        behind.get_parameter("offset").copy_(-2.0 * behind.get_parameter("scale"))
    model.eval()
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "out.onnx")
    assert differences(model, tmp_path / "out.onnx", data, optimize=False).max() <= 1e-4


def test_packed_sequences_train_and_their_layer_reads_weights_of_integers(tmp_path: Path) -> None:
    lengths = torch.tensor([3, 7, 5, 2])
    data = [(torch.randint(1, 50, (4, 7)), lengths) for _ in range(3)]
    model = qat.prepare(Packed(), data[0], batches=data)
    assert {"head_linear_weight", "middle_linear_weight", "layer_lstm_weight"} <= set(model.quantizers)
    path = qat.export(model.eval(), tmp_path / "trained.onnx", data[0], input_names=["words", "lengths"])
    deployed = onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "out.onnx")
    assert len(deployed.plan.stored) == 1, "the weights of the recurrent layer are integers in the file"
    session = open_session(tmp_path / "out.onnx", precise=True)
    (found,) = session.run(None, {"words": data[1][0].numpy(), "lengths": lengths.numpy()})
    with torch.no_grad():
        want = model(*data[1]).numpy()
    assert np.median(np.abs(found - want)) <= 1e-5 * np.abs(want).max()


def test_biases_that_are_not_quantized_are_one_line(tmp_path: Path) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    model = qat.prepare(net, (x,), batches=[(x,)])
    path = qat.export(model.eval(), tmp_path / "trained.onnx", (x,))
    deployed = onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "out.onnx")
    reasons = [k.reason for k in deployed.plan.kept_float if k.op == "Add"]
    assert len(set(reasons)) <= 1, reasons


class Head(nn.Module):
    """A detector's head: the target's plan has the Sigmoid in front of what moves its values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x).flatten(2).transpose(1, 2).sigmoid()
        return result


@pytest.mark.parametrize("backend", ["onnxruntime", "qnn", "snpe"])
def test_scores_are_on_the_grid_of_scores_and_not_what_they_are_made_of(tmp_path: Path, backend: str) -> None:
    data = batches(1, 1, 4, 4)
    model = qat.prepare(Head(), (data[0],), backend=backend, batches=data).eval()
    with torch.no_grad():
        found = model(data[0])
        with model.set(active=False):
            want = model(data[0])
    assert float(want.min()) < 0.4
    torch.testing.assert_close(found, want, atol=0.02, rtol=0)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],), input_names=["x"])
    session = onnxq.Session(onnxq.deploy(path, backend=backend).rendered(), optimize=False)
    (got,) = session.run({"x": data[0].numpy()}).values()
    torch.testing.assert_close(torch.from_numpy(got), found, atol=1e-4, rtol=0)


class Arithmetic(nn.Module):
    """A learned scale a channel, one for all, and a mean that is taken off, each behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)
        self.channels = nn.Parameter(torch.tensor([0.6, -1.7, 1.2, -0.8]).reshape(4, 1, 1))
        self.register_buffer("mean", torch.tensor([0.1, -0.2, 0.05]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x) * self.channels)
        x = torch.relu(self.second(x) * 0.5)
        result: torch.Tensor = torch.relu(self.last(x.mean((2, 3))) - self.mean)
        return result


@pytest.mark.parametrize("backend", ["onnxruntime", "qnn", "snpe", "tensorrt"])
def test_what_scales_the_channels_of_a_layer_folds_as_its_plan_has_it(tmp_path: Path, backend: str) -> None:
    """Such layers trained quantized, and their files had them in float where a target quantizes what they give too."""
    data = batches(4, 3, 10, 10)
    net = Arithmetic()
    model, _ = trained(net, data, backend=backend)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],), input_names=["x"], output_names=["y"])
    deployed = onnxq.deploy(path, backend=backend)
    assert {"Conv", "Gemm"}.isdisjoint(kept.op for kept in deployed.plan.kept_float)
    weights = {n: q.qparams().scale for n, q in model.observing() if q.weight}
    found = {s.tensor: deployed.qparams[s.name].scale for s in deployed.plan.sites if s.role == "weight"}
    factor = net.channels.detach().abs().flatten().numpy()
    np.testing.assert_allclose(found["first.weight"], weights["first_conv2d_weight"] * factor, rtol=1e-6)
    np.testing.assert_allclose(found["second.weight"], weights["second_conv2d_weight"] * 0.5, rtol=1e-6)
    np.testing.assert_array_equal(found["last.weight"], weights["last_linear_weight"])
    session = onnxq.Session(deployed.rendered(), optimize=False)
    off = []
    for x in data:
        with torch.no_grad():
            want = model(x).numpy()
        off.append(np.abs(session.run({"x": x.numpy()})["y"] - want) / np.abs(want).max())
    assert_same(np.stack(off), 0.02)


class Factor(nn.Module):
    """A learned number behind the last layer, as CLIP has it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.last, self.factor = nn.Linear(6, 6), nn.Linear(6, 3), nn.Parameter(torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.relu(self.first(x))) * self.factor
        return result


@pytest.mark.parametrize(("factor", "apart"), [(1.3, True), (0.5, False)])
def test_a_factor_stays_behind_a_layer_whose_scale_is_a_power_of_two(
    tmp_path: Path, factor: float, apart: bool
) -> None:
    """It folded into the weight, whose scale the target did not hold then: the whole layer was left in float."""
    data = batches(4, 6)
    model = qat.prepare(Factor(factor), (data[0],), backend="vitis", batches=data)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    deployed = onnxq.deploy(path, backend="vitis")
    assert list(deployed.plan.quantized.values()).count("Gemm") == 2
    assert ("Mul" in {kept.op for kept in deployed.plan.kept_float}) is apart
    scales = {n: q.qparams().scale for n, q in model.observing() if q.weight}
    found = {s.tensor: deployed.qparams[s.name].scale for s in deployed.plan.sites if s.role == "weight"}
    np.testing.assert_array_equal(found["last.weight"], scales["last_linear_weight"] * (1.0 if apart else factor))

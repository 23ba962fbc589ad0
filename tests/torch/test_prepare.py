"""Fake-quantizers in a module of one's own: where they are put, that they train, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import DataError, ModelError, OptionError

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from tests.torch.nets import W4A4, Branches, Plain, batches, differences, trained

torch.set_num_threads(1)


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


def test_calibration_watches_a_weight_once_and_activations_in_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), options=W4A4)
    seen = dict.fromkeys((n for n, _ in model.observing()), 0)
    for name, quantizer in model.observing():

        def watch(x: torch.Tensor, name: str = name, plain: Callable[..., None] = quantizer.watch) -> None:
            seen[name] += 1
            plain(x)

        monkeypatch.setattr(quantizer, "watch", watch)
    for _ in range(2):
        qat.calibrate(model, data)
    for name, quantizer in model.observing():
        assert seen[name] == (2 if quantizer.weight else 2 * len(data)), name


def test_what_has_diverged_is_not_exported(tmp_path: Path) -> None:
    model = qat.prepare(torch.nn.Linear(6, 3), (torch.rand(5, 6),), options=W4A4)
    qat.calibrate(model, [torch.rand(5, 6)])
    with torch.no_grad():
        model.module.get_parameter("bias")[1] = float("nan")
    with pytest.raises(OptionError, match=r"'module\.bias' hold NaN"):
        qat.export(model, tmp_path / "x.onnx", (torch.rand(5, 6),))


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


@pytest.mark.parametrize("observer", ["ema_mse", "minmax", "clip_std", "quantile"])
@pytest.mark.parametrize("kind", ["ema", "dsq"])
def test_a_running_range_goes_on_from_a_checkpoint(kind: str, observer: str) -> None:
    data = batches(4, 3, 10, 10)
    given: dict[str, Any] = {"act_quantizer": kind, "act_observer": observer, "options": W4A4}
    model = qat.prepare(Plain(norm=False), (data[0],), batches=data, **given).train()
    model(data[1] * 3)
    again = qat.prepare(Plain(norm=False), (data[0],), **given).train()
    again.load_state_dict(model.state_dict())
    for part in (model, again):
        part(data[2] * 0.1)
    found, wanted = ({n: q.qparams() for n, q in part.observing()} for part in (again, model))
    assert found == wanted


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


class Gained(nn.Module):
    """Two inputs, one of which may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, gain: torch.Tensor | None = None) -> torch.Tensor:
        gain = torch.ones(len(x), 1) if gain is None else gain
        result: torch.Tensor = self.last(self.first(x) * gain)
        return result


X8, GAIN, LABELS = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), torch.full((16, 1), 50.0), [0] * 16


@pytest.mark.parametrize(
    "batch",
    [
        (X8, GAIN),
        [X8, GAIN, LABELS],
        ((X8, GAIN), LABELS),
        {"x": X8, "gain": GAIN},
        (X8.double().numpy(), GAIN.numpy(), LABELS),
    ],
)
def test_batches_give_all_inputs_of_the_example(batch: Any) -> None:
    model = qat.prepare(Gained(), (X8, GAIN), batches=[batch], act_observer="minmax").eval()
    with torch.no_grad():
        got = model(X8, GAIN)
        with model.set(active=False):
            want = model(X8, GAIN)
    assert float((got - want).norm() / want.norm()) < 0.02


@pytest.mark.parametrize(("batch", "count"), [(X8, 1), ((X8,), 1), (((X8,), LABELS), 1), (((X8, GAIN, GAIN),), 3)])
def test_batches_of_other_inputs_than_the_example_are_refused(batch: Any, count: int) -> None:
    with pytest.raises(DataError, match=f"{count} of the inputs, the example .* 2"):
        qat.prepare(Gained(), (X8, GAIN), batches=[batch])


def test_what_a_target_computes_otherwise_is_noted() -> None:
    x = torch.randn(2, 3, 10, 10)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.01), nn.Conv2d(4, 2, 3))
    assert any("/LeakyRelu: alpha 0.01 became" in note for note in qat.prepare(net, (x,), backend="vitis").notes)
    assert qat.prepare(net, (x,)).notes == ()


def test_a_file_of_any_batch(tmp_path: Path) -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), batches=data).eval()
    axes = {"images": {0: "batch"}}
    qat.export(model, tmp_path / "x.onnx", (data[0],), input_names=["images"], dynamic_axes=axes)
    onnxq.deploy(tmp_path / "x.onnx", backend="onnxruntime", output=tmp_path / "d.onnx")
    for x in (torch.cat(data), data[0][:1]):
        assert differences(model, tmp_path / "d.onnx", [x], optimize=False).max() <= 0.01


def test_a_tensor_alone_is_an_example(tmp_path: Path) -> None:
    model = qat.prepare(Gained(), X8, batches=[X8.numpy()]).eval()
    path = qat.export(model, tmp_path / "x.onnx", X8)
    assert differences(model, path, [X8]).max() < 0.05
    with pytest.raises(OptionError, match="an example is a tuple of the inputs, not set"):
        qat.prepare(Gained(), {X8})  # type: ignore[arg-type]


def test_what_only_the_users_module_has_is_named_where_it_is() -> None:
    class Configured(Plain):
        config = 3

    model = qat.prepare(Configured(), (batches(4, 3, 10, 10)[0],))
    with pytest.raises(AttributeError, match=r"no attribute 'config'; Configured has it: \.module\.config"):
        model.config  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        model.nothing  # noqa: B018


def test_no_hooks_stay_on_the_module() -> None:
    net = Plain()
    x = torch.randn(2, 3, 10, 10)
    with pytest.raises(OptionError, match="batch normalization"):
        qat.prepare(net, (x,), options=Options(per_channel=False))
    model = qat.prepare(net, (x,), batches=[x])
    with pytest.raises(RuntimeError):
        model(x[:, :1])
    model(x)
    assert not [hook for part in net.modules() for hook in (*part._forward_hooks, *part._forward_pre_hooks)]


def test_batches_given_at_once_are_calibrated_with() -> None:
    data = batches(4, 3, 10, 10)
    torch.manual_seed(0)
    first, second = (Plain().eval() for _ in range(2))
    second.load_state_dict(first.state_dict())
    drawn = []

    def endless() -> Iterator[torch.Tensor]:
        for number in count():
            drawn.append(number)
            yield data[number % len(data)]

    at_once = qat.prepare(first, (data[0],), options=W4A4, batches=endless(), most=3)
    assert len(drawn) <= 4, "no more than were asked for"
    later = qat.prepare(second, (data[0],), options=W4A4)
    qat.calibrate(later, (data[k % len(data)] for k in range(3)))
    found, wanted = ({n: q.qparams() for n, q in model.observing()} for model in (at_once, later))
    assert found and found == wanted


def test_a_checkpoint_of_other_bits_is_refused_and_nothing_is_loaded() -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), options=W4A4, batches=data)
    saved = model.state_dict()
    other = qat.prepare(Plain(), (data[0],), batches=data)
    before = {n: t.clone() for n, t in other.module.state_dict().items()}
    with pytest.raises(OptionError, match=r"int8 .* here"):
        other.load_state_dict(saved)
    assert all(torch.equal(t, before[n]) for n, t in other.module.state_dict().items())
    same = qat.prepare(Plain(), (data[0],), options=W4A4)
    same.load_state_dict(saved)
    with torch.no_grad():
        assert torch.equal(same.eval()(data[0]), model.eval()(data[0]))


def test_a_checkpoint_that_does_not_say_its_bits_is_loaded_with_a_warning() -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), options=W4A4, batches=data)
    saved = {n: t for n, t in model.state_dict().items() if n != "_extra_state"}
    same = qat.prepare(Plain(), (data[0],), options=W4A4)
    with pytest.warns(UserWarning, match="does not say what bits"):
        same.load_state_dict(saved)
    with torch.no_grad():
        assert torch.equal(same.eval()(data[0]), model.eval()(data[0]))


def test_what_wraps_a_prepared_module_is_exported(tmp_path: Path) -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), options=W4A4, batches=data)
    qat.export(model, tmp_path / "plain.onnx", (data[0],))
    for k, wrapped in enumerate((torch.optim.swa_utils.AveragedModel(model), torch.compile(model, backend="eager"))):
        path = qat.export(wrapped, tmp_path / f"{k}.onnx", (data[0],))  # type: ignore[arg-type]
        assert path.read_bytes() == (tmp_path / "plain.onnx").read_bytes()
    with pytest.raises(OptionError, match="Plain is not prepared"):
        qat.export(Plain(), tmp_path / "x.onnx", (data[0],))


def test_adaround_without_its_regularizer_is_told(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), options=W4A4, batches=data, weight_quantizer="adaround")
    qat.export(model.eval(), tmp_path / "x.onnx", (data[0],))
    assert not [w for w in recwarn if "rounding_loss" in str(w.message)], "nothing was trained"
    model.train()(data[0])
    with pytest.warns(UserWarning, match="rounding_loss"):
        qat.export(model, tmp_path / "x.onnx", (data[0],))


def test_a_module_that_torch_cannot_export_is_named_as_the_user_names_it() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.linalg.eigvals(x).real
            return found

    with pytest.raises(ModelError, match="module Odd"):
        qat.prepare(Odd(), (torch.rand(3, 3),))

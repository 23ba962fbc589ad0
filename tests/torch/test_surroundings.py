"""A prepared module in what training scripts put around it: modes of torch, arguments by name, asked gradients."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.errors import ModelError, OptionError

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import onnxq.torch as qat
from onnxq.torch.exporter import in_float32
from tests.contract import infer
from tests.torch.nets import W4A4, Plain, assert_same, batches, differences

torch.set_num_threads(1)


def test_inference_mode_computes_what_no_grad_does() -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), options=W4A4, batches=data).eval()
    with torch.no_grad():
        want = model(data[0])
    with torch.inference_mode():
        assert torch.equal(model(data[0]), want)
        assert torch.equal(model(data[0].clone()), want), "a tensor that inference_mode made"


def test_a_forward_pass_leaves_nothing_on_its_inputs(tmp_path: Path) -> None:
    """They were no longer to be copied, and a saved one held the whole module."""
    x = torch.randn(4, 3, 10, 10)
    model = qat.prepare(Plain(), (x,), batches=[x]).train()
    model(x)
    assert not vars(x)
    assert torch.equal(copy.deepcopy(x), x)
    torch.save(x, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt", weights_only=True), x)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None, "a batch that the user keeps would keep the module"


def test_autocast_around_prepare_and_export_changes_neither(tmp_path: Path) -> None:
    data = batches(4, 3, 10, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = qat.prepare(Plain(), (data[0],), options=W4A4)
    assert model.plan.sites == qat.prepare(Plain(), (data[0],), options=W4A4).plan.sites
    qat.calibrate(model, data)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    with model.eval().set(round_biases=False):
        assert_same(differences(model, path, data, optimize=False), 0.1)


class Mixed(Plain):
    """Mixed precision inside the module, as some libraries write it and wrappers of modules add it."""

    @torch.autocast("cpu", dtype=torch.bfloat16)  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).float()


def test_autocast_inside_the_module_is_left_out_of_the_file_alone(tmp_path: Path) -> None:
    data = batches(4, 3, 10, 10)
    net = Mixed()
    model = qat.prepare(net, (data[0],), options=W4A4, batches=data).eval()
    assert model.plan.sites == qat.prepare(Plain(), (data[0],), options=W4A4).plan.sites
    mixed = model(data[0])
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],), input_names=["x"])
    assert torch.equal(model(data[0]), mixed)
    with in_float32(), model.set(round_biases=False):
        assert_same(differences(model, path, data, optimize=False), 0.1)
        exact = model(data[0])
    assert not torch.equal(exact, mixed), "the test needs a module that computes in bfloat16"


def test_a_module_that_asks_for_a_gradient_of_what_a_quantizer_gave() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(1, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x[:, None]
            if self.training:
                x.requires_grad = True
            result: torch.Tensor = self.layer(x)
            return result

    data = batches(2, 10)
    model = qat.prepare(Asks(), (data[0],), batches=data).train()
    model(data[0]).sum().backward()
    assert all(p.grad is not None for p in model.module.parameters())


@pytest.mark.parametrize("exported_before", [False, True])
def test_what_cannot_be_exported_is_told_in_one_message(
    exported_before: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(6, 6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(x, x)
            return result

    torch._C._jit_set_onnx_log_enabled(exported_before)  # as torch.onnx.export leaves it
    with pytest.raises(ModelError, match="bilinear"):
        qat.prepare(Unknown(), (torch.randn(4, 6),))
    torch._C._jit_set_onnx_log_enabled(False)
    assert capfd.readouterr().out == ""


class Turned(nn.Module):
    """A picture is sampled anew before it is looked at: an operator that opset 20 is the first to have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 4, 3)
        self.turn = nn.Parameter(torch.tensor([[[0.9, 0.2, 0.0], [-0.2, 0.9, 0.1]]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = nn.functional.affine_grid(self.turn, [1, 1, 8, 8], align_corners=False)
        result: torch.Tensor = self.layer(nn.functional.grid_sample(x, grid, align_corners=False))
        return result


def test_an_operator_of_a_later_opset(tmp_path: Path) -> None:
    data = batches(1, 1, 8, 8)
    model = qat.prepare(Turned(), (data[0],), batches=data).eval()
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],), input_names=["x"])
    onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    assert_same(differences(model, tmp_path / "d.onnx", data, optimize=False), 0.01)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_is_refused(reentrant: bool) -> None:
    """It runs a layer again in the backward pass, where nothing of the forward pass is around it."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.first(x))
            if self.training:
                result: torch.Tensor = checkpoint(self.second, x, use_reentrant=reentrant)
            else:
                result = self.second(x)
            return result

    data = batches(4, 6)
    model = qat.prepare(Twice(), (data[0],), batches=data)
    model.eval()(data[0])
    with pytest.raises(OptionError, match=r"module 'second': it runs inside torch\.utils\.checkpoint"):
        model.train()(data[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ["torch.compile", "torch.jit"])
def test_what_hides_its_calls_is_refused_by_name(way: str) -> None:
    layer = nn.Conv2d(3, 4, 3)
    hidden: Any = torch.compile(layer) if way == "torch.compile" else torch.jit.trace(layer, torch.randn(2, 3, 8, 8))
    net = nn.Sequential(nn.ReLU(), hidden)
    with pytest.raises(OptionError, match=f"module '1' went through {way}"):
        qat.prepare(net, (torch.randn(2, 3, 8, 8),))


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_other_types_than_float32_are_refused(kind: torch.dtype) -> None:
    with pytest.raises(OptionError, match=f"parameters are of {kind}"):
        qat.prepare(nn.Conv2d(3, 4, 3).to(kind), (torch.randn(2, 3, 8, 8, dtype=kind),))


@pytest.mark.parametrize(("weights", "made"), [("lsq", "5 channels"), ("adaround", r"shape \(5, 200\)")])
def test_a_layer_of_another_size_put_in_after_prepare_is_named(weights: str, made: str) -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), batches=data, weight_quantizer=weights)
    model.module.last = nn.Linear(200, 5)
    model(data[0])
    model.module.last = nn.Linear(200, 7)
    told = rf"quantizer 'last_linear_weight': it was made for a tensor of {made}, .* shape \(7, 200\).*before prepare"
    for step in (lambda: model(data[0]), lambda: qat.calibrate(model, data)):
        with pytest.raises(OptionError, match=told):
            step()


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16])
def test_a_prepared_module_of_another_type_is_not_exported(tmp_path: Path, kind: torch.dtype) -> None:
    x = torch.randn(2, 3, 10, 10)
    model = qat.prepare(Plain(), (x,), batches=[x]).eval().to(kind)
    with pytest.raises(OptionError, match=rf"export: its parameters are of {kind}.*Export module\.float\(\)"):
        qat.export(model, tmp_path / "x.onnx", (x.to(kind),))
    qat.export(model.float(), tmp_path / "x.onnx", (x,))


def test_a_module_with_a_prepared_one_inside_is_refused() -> None:
    x = torch.randn(2, 3, 10, 10)
    with pytest.raises(OptionError, match="module '0' is prepared already"):
        qat.prepare(nn.Sequential(qat.prepare(Plain(), (x,), batches=[x]), nn.ReLU()), (x,))


def test_what_is_compiled_in_place_is_exported_and_stays_compiled(tmp_path: Path) -> None:
    data = batches(4, 3, 10, 10)
    model = qat.prepare(Plain(), (data[0],), batches=data).eval()
    plain = qat.export(model, tmp_path / "plain.onnx", (data[0],)).read_bytes()
    model.compile(backend="eager")
    assert qat.export(model, tmp_path / "compiled.onnx", (data[0],)).read_bytes() == plain
    assert model._compiled_call_impl is not None
    net = Plain()
    net.last.compile(backend="eager")
    with pytest.raises(OptionError, match=r"module 'last' went through torch\.compile"):
        qat.prepare(net, (data[0],))


@pytest.mark.parametrize(("groups", "way"), [(1, r"norm, transpose=True\)"), (4, r"Options\(exclude=\[.*\]\)")])
def test_a_normalization_behind_a_transposed_convolution_is_told_how_to_fold(groups: int, way: str) -> None:
    x = torch.randn(2, 8, 4, 4)
    conv, norm = nn.ConvTranspose2d(8, 12, 3, groups=groups), nn.BatchNorm2d(12)
    net = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), conv, norm).eval()
    options = onnxq.Options(per_channel=False)
    with pytest.raises(OptionError, match=way) as told:
        qat.prepare(net, (x,), backend="tensorrt", options=options)
    if groups == 1:
        folded = torch.nn.utils.fuse_conv_bn_eval(conv, norm, transpose=True)  # type: ignore[type-var]
        net = nn.Sequential(net[0], net[1], folded)
    else:
        (name,) = re.findall(r"exclude=\['(.*)'\]", str(told.value))
        options = onnxq.Options(per_channel=False, exclude=[name])
    qat.prepare(net, (x,), backend="tensorrt", options=options, batches=[x])


class Named(nn.Module):
    """Arguments as transformers have them, with defaults between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        doubled: bool = False,
        factor: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = self.layer(x) if mask is None else self.layer(x) * mask
        x = x * 2 if doubled else x
        x = x if factor is None else x * factor
        return x if labels is None else torch.nn.functional.cross_entropy(x, labels)


def test_examples_and_batches_by_name(tmp_path: Path) -> None:
    inputs = {"x": torch.randn(2, 4), "factor": torch.rand(3)}
    batch = {**inputs, "labels": torch.tensor([0, 2])}
    model = qat.prepare(Named(), inputs, batches=[batch]).train()
    model(**batch).backward()
    path = qat.export(model, tmp_path / "trained.onnx", inputs, input_names=["x", "factor"])
    found = {value.name for value in onnx.load(path).graph.input}
    assert found == {"x", "factor"}
    want = model.eval()(**inputs).detach().numpy()
    got = infer(onnx.load(path), [{n: a.numpy() for n, a in inputs.items()}], optimize=False)
    np.testing.assert_allclose(next(iter(got.values()))[0], want, atol=0.01)


@pytest.mark.parametrize(
    ("example", "why"), [({"y": torch.ones(2, 4)}, "no argument 'y'"), ({"mask": torch.ones(2, 3)}, "there is no 'x'")]
)
def test_examples_by_other_names_are_refused(example: dict[str, torch.Tensor], why: str) -> None:
    with pytest.raises(OptionError, match=rf"Named.forward: .*{why}.*x, mask, doubled, factor, labels"):
        qat.prepare(Named(), example)


class OfOne(nn.Module):
    """Its one argument is a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"logits": torch.relu(self.layer(batch["x"])) + 2 * batch["shift"]}


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dictionary_is_an_argument(tmp_path: Path, dynamo: bool) -> None:
    pytest.importorskip("onnxscript")
    batch = {"shift": torch.randn(2, 3), "x": torch.randn(2, 4)}
    path, names = tmp_path / "trained.onnx", ["shift", "x"]
    cases: list[tuple[Any, Any]] = [
        ((batch,), batch),
        ((batch,), (batch, "label")),
        ({"batch": batch}, {"batch": batch}),
    ]
    for example, given in cases[dynamo:]:  # that exporter takes its time
        model = qat.prepare(OfOne(), example, batches=[given], dynamo=dynamo).eval()
        qat.export(model, path, example, input_names=names, dynamo=dynamo)
        got = infer(onnx.load(path), [{n: a.numpy() for n, a in batch.items()}], optimize=False)
        want = model(batch)["logits"].detach().numpy()
        np.testing.assert_allclose(next(iter(got.values()))[0], want, atol=0.02)


@pytest.mark.parametrize(
    ("example", "why"),
    [
        ((torch.randn(2, 3, 10, 10), torch.tensor([0, 1])), "forward.. takes 2 positional arguments but 3 were given"),
        ((torch.randn(2, 3, 10, 10).double(),), "RuntimeError: .*[dD]ouble"),
    ],
)
def test_an_example_that_the_module_does_not_run_on(example: Any, why: str) -> None:
    with pytest.raises(ModelError, match=rf"module Plain: it does not run on the example \(.*{why}.*labels say"):
        qat.prepare(Plain(), example)


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) * mask
        return result


def test_an_argument_by_keyword_alone_is_refused() -> None:
    with pytest.raises(OptionError, match=r"ByKeyword\.forward takes 'mask' by keyword alone.*calls this one"):
        qat.prepare(ByKeyword(), {"x": torch.randn(2, 4), "mask": torch.ones(3)})

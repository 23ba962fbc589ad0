"""Prepared and exported by the exporter that stands on torch.export: what is written is what TorchScript's gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.errors import ModelError, OptionError
from onnxq.graph.files.load import load
from onnxq.graph.values import constant_array
from tests.running import open_session

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn

import onnxq.torch as qat
from tests.torch.nets import Attention, Branches, Packed, Plain, assert_same, batches, differences, trained, with_signs

torch.set_num_threads(1)

with_onnxscript = pytest.mark.skipif(
    importlib.util.find_spec("onnxscript") is None, reason="the extra torch is not installed"
)
AXES = {"x": {0: "batch"}}
nets = pytest.mark.parametrize(
    ("net", "shape"), [(Plain(), (4, 3, 10, 10)), pytest.param(Attention(), (2, 5, 8), marks=pytest.mark.slow)]
)


def _numbers(path: Path) -> list[tuple[Any, ...]]:
    """Scale, zero point, grid and readers, but those that move values only, of every quantizer of a file."""
    found: list[tuple[Any, ...]] = []
    for node in load(path).graph:
        if node.op_type in ("FakeQuantize", "QuantizeLinear", "DequantizeLinear"):
            arrays = [np.asarray(constant_array(value)) for value in node.inputs[1:]]
            grid = [node.attributes.get_int(key, 0) for key in ("quant_min", "quant_max", "axis")]
            readers = {use.node.op_type for use in node.outputs[0].uses()} - {"Shape", "Flatten", "Reshape"}
            found.append((node.op_type, [(a.dtype.name, a.ravel().tolist()) for a in arrays], grid, sorted(readers)))
    return sorted(found, key=str)


@with_onnxscript
@nets
def test_both_exporters_write_the_same_numbers_at_the_same_places(
    tmp_path: Path, net: nn.Module, shape: tuple[int, ...]
) -> None:
    data = batches(*shape)
    model, _ = trained(with_signs(net), data, steps=2)
    files = {}
    for dynamo in (False, True):
        files[dynamo] = qat.export(
            model, tmp_path / f"{dynamo}.onnx", (data[0],), input_names=["x"], dynamic_axes=AXES, dynamo=dynamo
        )
        onnxq.deploy(files[dynamo], backend="onnxruntime", output=tmp_path / f"{dynamo}_deployed.onnx")
    assert _numbers(files[True]) == _numbers(files[False])
    deployed = [_numbers(tmp_path / f"{dynamo}_deployed.onnx") for dynamo in (False, True)]
    assert len(deployed[0]) > 5 and deployed[1] == deployed[0]
    other = batches(3, *shape[1:], count=2, seed=7)  # another batch than the example's
    for dynamo in (False, True):
        assert_same(differences(model, tmp_path / f"{dynamo}_deployed.onnx", other, optimize=False), 0.03)


@with_onnxscript
def test_a_global_pool_is_in_integers_by_either_exporter(tmp_path: Path) -> None:
    """TorchScript writes GlobalAveragePool, the other ReduceMean, for which TensorRT has no integers."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    data = batches(4, 3, 10, 10)
    model = qat.prepare(net, (data[0],), backend="tensorrt", batches=data)
    plans = []
    for dynamo in (False, True):
        path = qat.export(model, tmp_path / f"{dynamo}.onnx", (data[0],), dynamo=dynamo)
        plans.append(onnxq.deploy(path, backend="tensorrt").plan)
    assert [sorted(plan.quantized.values()) for plan in plans] == [["Conv", "Gemm", "GlobalAveragePool"]] * 2


@with_onnxscript
@nets
def test_prepared_by_either_exporter_the_same_calls_are_quantized(net: nn.Module, shape: tuple[int, ...]) -> None:
    example = torch.randn(shape)
    one, other = (qat.prepare(net, (example,), backend="snpe", dynamo=dynamo) for dynamo in (False, True))
    assert other._at == one._at and other._biases == one._biases
    assert {n: q.spec for n, q in other.observing()} == {n: q.spec for n, q in one.observing()}


@with_onnxscript
def test_code_that_branches_on_data_is_told_where_and_of_the_other_exporter(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    example = torch.randn(4, 6)
    model = qat.prepare(Branches(), (example,), batches=[example])
    with pytest.raises(
        ModelError, match=r"values of a tensor, at .*nets\.py:\d+: if x\.sum\(\) > 0.*Leave dynamo=True out"
    ):
        qat.export(model, tmp_path / "trained.onnx", (example,), dynamo=True)
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "trained.onnx").exists()


@with_onnxscript
def test_what_it_cannot_follow_otherwise_is_told_in_one_line() -> None:
    example = (torch.randint(0, 50, (3, 7)), torch.tensor([7, 4, 2]))
    with pytest.raises(ModelError, match=r"at .*nets\.py:\d+: .*pad_packed_sequence.*leave dynamo=True out") as found:
        qat.prepare(Packed(), example, dynamo=True)
    assert "\n" not in str(found.value)


class Written(nn.Module):
    """A tensor that is changed in place and read under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        rows = y.view(-1, 2, 6)
        y += x
        result: torch.Tensor = self.last(rows)
        return result


@with_onnxscript
def test_a_tensor_changed_in_place_and_read_under_another_name(tmp_path: Path) -> None:
    data = batches(4, 6)
    with pytest.warns(UserWarning, match="torch exports Written as something else than it computes"):
        model = qat.prepare(Written(), (data[0],), batches=data).eval()
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],), input_names=["x"], dynamo=True)
    with model.set(round_biases=False):
        assert_same(differences(model, path, data, optimize=False), 0.03)


class Structured(nn.Module):
    """Arguments in a list and with defaults, results by name, one of them None."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(
        self, pair: list[torch.Tensor], mask: torch.Tensor | None = None, twice: bool = False, more: Any = None
    ) -> dict[str, Any]:
        x, y = pair
        x = self.layer(x) if mask is None else self.layer(x) * mask
        return {"z": self.other(x + y if more is None else x + y * more), "none": None, "a": x.relu()}


@with_onnxscript
def test_inputs_and_outputs_in_structures(tmp_path: Path) -> None:
    example = {"pair": [torch.randn(2, 6), torch.randn(2, 6)], "more": torch.randn(6)}
    model = qat.prepare(Structured(), example, batches=[example], dynamo=True).eval()
    names = ["x", "y", "more"]
    axes = {name: {0: "batch"} for name in names[:2]}
    path = qat.export(
        model, tmp_path / "t.onnx", example, input_names=names, output_names=["z", "a"], dynamic_axes=axes, dynamo=True
    )
    graph = onnx.load(path).graph
    assert [v.name for v in graph.input] == names and [v.name for v in graph.output] == ["z", "a"]
    pair, more = [torch.randn(5, 6), torch.randn(5, 6)], torch.randn(6)
    with torch.no_grad(), model.set(round_biases=False):
        want = model(pair, more=more)
    session = open_session(path)
    got = session.run(["z", "a"], dict(zip(names, (t.numpy() for t in (*pair, more)), strict=True)))
    for name, array in zip(("z", "a"), got, strict=True):
        np.testing.assert_allclose(array, want[name].numpy(), atol=1e-4)


@with_onnxscript
def test_an_axis_of_an_input_that_there_is_not(tmp_path: Path) -> None:
    example = torch.randn(4, 6)
    model = qat.prepare(nn.Linear(6, 3), (example,), batches=[example])
    with pytest.raises(OptionError, match="dynamic_axes: there is no input 'y'"):
        qat.export(model, tmp_path / "t.onnx", (example,), input_names=["x"], dynamic_axes={"y": [0]}, dynamo=True)


def test_without_onnxscript_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = torch.randn(4, 6)
    model = qat.prepare(nn.Linear(6, 3), (example,), batches=[example])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r'not installed. pip install "onnxq\[torch\]", which brings it, or leave'):
        qat.export(model, tmp_path / "t.onnx", (example,), dynamo=True)

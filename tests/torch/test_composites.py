"""Functions of torch that are several layers: run part by part they compute the same, and each part is quantized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onnxq

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch import nn
from torch.nn import functional

import onnxq.torch as qat
from onnxq.torch.composites import parts_of
from tests.torch.nets import W4A4, assert_same, batches, differences, trained

torch.set_num_threads(1)


torch.manual_seed(0)
X, H = torch.randn(3, 8), torch.randn(3, 4)
CELL = (torch.randn(16, 8), torch.randn(16, 4), torch.randn(16), torch.randn(16))
THIRDS = tuple(p[:12] for p in CELL)
CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (functional.silu, (X,), {}),
    (functional.mish, (X,), {"inplace": False}),
    (functional.glu, (X,), {"dim": 1}),
    (functional.glu, (X[:2], 0), {}),
    (torch.lstm_cell, (X, (H, H + 1), *CELL), {}),
    (torch.lstm_cell, (X, (H, H + 1), *CELL[:2]), {}),
    (torch.gru_cell, (X, H, *THIRDS), {}),
    (torch.rnn_tanh_cell, (X, H, *(p[:4] for p in CELL)), {}),
    (torch.rnn_relu_cell, (X, H, *(p[:4] for p in CELL)), {}),
    (torch.diff, (X,), {"n": 2, "dim": 0, "prepend": X[:1]}),
    (torch.diff, (torch.arange(5) // 2,), {"append": torch.tensor([7])}),
    (torch.diff, (X > 0,), {}),
    (torch.vdot, (X[0], X[1]), {}),
    (functional.rms_norm, (X, (8,)), {}),
    (functional.rms_norm, (X, (3, 8), X.abs()), {"eps": 1e-2}),
    (functional.rms_norm, (X.bfloat16(), (8,), H[0, 0].expand(8).bfloat16()), {}),
    (torch.cumsum, (X > 0, 1), {}),
    (torch.Tensor.cumsum, (X > 0,), {"dim": 0, "dtype": torch.float32}),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_the_parts_compute_what_the_function_does(number: int) -> None:
    func, args, kwargs = CALLS[number]
    parts = parts_of(func, args, kwargs)
    assert parts is not None
    torch.testing.assert_close(parts(*args, **kwargs), func(*args, **kwargs))


@pytest.mark.parametrize("func", [functional.silu, functional.mish])
def test_in_place_changes_the_tensor_given(func: Callable[..., torch.Tensor]) -> None:
    parts, x = parts_of(func, (X,), {"inplace": True}), X.clone()
    assert parts is not None
    result = parts(x, inplace=True)
    assert result is x
    torch.testing.assert_close(x, func(X))


class Gated(nn.Module):
    """Convolutions with SiLU between them, once in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 1)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.silu(self.first(x))
        result: torch.Tensor = self.last(self.act(self.second(x)))
        return result


def test_silu_is_all_integers_on_targets_that_need_it(tmp_path: Path) -> None:
    data = batches(4, 3, 10, 10)
    model, _ = trained(Gated(), data, backend="qnn")
    assert not model.left
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    made = onnxq.deploy(path, backend="qnn", output=tmp_path / "d.onnx")
    assert not made.plan.kept_float and list(made.plan.quantized.values()).count("Sigmoid") == 2
    assert_same(differences(model, tmp_path / "d.onnx", data, optimize=False), 0.05)


class Steps(nn.Module):
    """A recurrent cell, called step by step."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.last = cell, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        result: torch.Tensor = self.last(state if isinstance(state, torch.Tensor) else state[0])
        return result


@pytest.mark.parametrize(
    "cell", [nn.LSTMCell, *(pytest.param(cell, marks=pytest.mark.slow) for cell in (nn.GRUCell, nn.RNNCell))]
)
def test_cells_of_two_layers_run_as_trained(tmp_path: Path, cell: type[nn.Module]) -> None:
    data = batches(4, 5, 8)
    model, _ = trained(Steps(cell(8, 6)), data, options=W4A4)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    made = onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    assert list(made.plan.quantized.values()).count("Gemm") == 10  # the first state is constant
    assert_same(differences(model, tmp_path / "d.onnx", data, optimize=False), 0.1)


def test_a_norm_of_root_mean_squares_is_prepared_and_runs_as_trained(tmp_path: Path) -> None:
    data = batches(4, 5, 8)
    net = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 8), nn.RMSNorm(8, elementwise_affine=False))
    model, _ = trained(nn.Sequential(net, nn.Linear(8, 3)), data, options=W4A4)
    path = qat.export(model, tmp_path / "trained.onnx", (data[0],))
    made = onnxq.deploy(path, backend="onnxruntime", output=tmp_path / "d.onnx")
    assert len(made.plan.by_edge("weight")) == 3
    assert_same(differences(model, tmp_path / "d.onnx", data, optimize=False), 0.1)


class Masked(nn.Module):
    """The mask of packed sentences as transformers makes it, by differences and sums of truth values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        sentence = (torch.diff(places, prepend=places[:, :1] - 1, dim=-1) != 1).cumsum(-1)
        result: torch.Tensor = self.layer(x) * (sentence == 0)[..., None]
        return result


def test_differences_and_sums_of_truth_values_are_exported(tmp_path: Path) -> None:
    example = torch.randn(2, 5, 4), torch.tensor([[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]])
    model = qat.prepare(Masked(), example, batches=[example])
    qat.export(model, tmp_path / "trained.onnx", example)
    onnxq.deploy(tmp_path / "trained.onnx", backend="onnxruntime")

"""Modules to train, and how what they give is compared with onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import onnxq.torch as qat
from onnxq import Options
from onnxq.torch.module import QuantizedModule
from tests.running import open_session

W4A4 = Options(weight_bits=4, act_bits=4)


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


class Packed(nn.Module):
    """Sentences of different lengths through a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layer = nn.LSTM(16, 12, batch_first=True, bidirectional=True)
        self.middle, self.head = nn.Linear(24, 24), nn.Linear(24, 3)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.table(words), lengths, batch_first=True, enforce_sorted=False)
        found, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        out: torch.Tensor = self.head(self.middle(found).relu())
        return out


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


def differences(model: QuantizedModule, path: Path, data: list[torch.Tensor], *, optimize: bool = True) -> NDArray[Any]:
    """Of each element to what onnxruntime gives, in shares of the largest output."""
    session = open_session(path, optimize=optimize, precise=True)  # weights are given
    found = []
    for x in data:
        with torch.no_grad():
            want = model(x).numpy()
        got = np.asarray(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        found.append(np.abs(got - want) / np.abs(want).max())
    return np.stack(found)


def assert_same(found: NDArray[Any], code: float) -> None:
    """Equal to 1e-4 in at least three of four samples, and nowhere more than a code off, as a tie leaves open."""
    worst = found.reshape(found.shape[0] * found.shape[1], -1).max(axis=1)
    assert np.mean(worst <= 1e-4) >= 0.75 and worst.max() <= code, np.sort(worst)

"""The nets and data of `tools/qat.py`: a small CNN with a residual and depthwise layers, and a small ViT.

The data are those that the zoo's models mnist_cnn and fashion_vit were trained on, made by the zoo's own code from the
packages that its page names: MNIST digits on cluttered backgrounds, and Fashion-MNIST.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

__all__ = ["NETS", "ResNet18", "Split", "accuracy", "data", "fit", "make"]

Tensor = torch.Tensor
NETS = {"cnn": "CNN, cluttered MNIST", "vit": "ViT, Fashion-MNIST"}
_BATCH = 64


@dataclass(frozen=True)
class Split:
    """Pictures (N, 1, H, W) float32 and labels (N,) int64, to train on and held out."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def _layer(inputs: int, outputs: int, stride: int = 1, kernel: int = 3, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Cnn(nn.Module):
    """(N, 1, 40, 40) → (N, 10): batch normalizations, a residual block, depthwise and pointwise layers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = _layer(1, width, 2)
        self.first = _layer(width, width)
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.down = nn.Sequential(
            _layer(width, width, 2, groups=width),
            _layer(width, 2 * width, kernel=1),
            _layer(2 * width, 2 * width, 2, groups=2 * width),
            _layer(2 * width, 4 * width, kernel=1),
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.stem(x)
        x = functional.relu(x + self.second(self.first(x)))
        y: Tensor = self.head(functional.adaptive_avg_pool2d(self.down(x), 1).flatten(1))
        return y


class _Block(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attend = nn.MultiheadAttention(size, heads, batch_first=True)
        self.up, self.down = nn.Linear(size, 3 * size), nn.Linear(3 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        made: Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return made


class Vit(nn.Module):
    """(N, 1, 28, 28) → (N, 10): 16 patches and a class token, two blocks of attention."""

    def __init__(self, size: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, size, 7, 7)
        self.token = nn.Parameter(torch.zeros(1, 1, size))
        self.position = nn.Parameter(0.02 * torch.randn(1, 17, size))
        self.blocks = nn.Sequential(*[_Block(size, 4) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        y: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return y


class ResNet18(nn.Module):
    """The layers of ResNet-18 (He et al., 2016, table 1), (N, 3, H, W) → (N, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
        self.blocks = nn.Sequential(*[_Residual(*s) for s in [*sizes, (512, 512, 1)]])
        self.head = nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        y: Tensor = self.head(functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))
        return y


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _layer(inputs, outputs, stride)
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(self.first(x)) + self.short(x))


def make(net: str, seed: int) -> nn.Module:
    """A net with its own random weights."""
    torch.manual_seed(seed)
    return Cnn() if net == "cnn" else Vit()


def data(net: str, zoo: Path, cache: Path) -> Split:
    """Its data, fetched and made once.

    Args:
        net: of :data:`NETS`.
        zoo: the zoo's folder, whose ``zoo_lib.small`` makes the data.
        cache: keeps the packages and the arrays.
    """
    stored = cache / f"{net}.npz"
    if not stored.exists():
        cache.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("ZOO_ROOT", str(cache))
        sys.path.insert(0, str(zoo))
        small: Any = importlib.import_module("zoo_lib.small")
        if net == "cnn":
            x, y = small.mnist()
            made = [small.clutter(x[:4000], np.random.default_rng(seed))[0] for seed in (1, 2)]
            parts = {"x": np.concatenate(made), "y": np.concatenate([y[:4000]] * 2)}
            parts |= {"test_x": small.clutter(x[4000:], np.random.default_rng(9))[0], "test_y": y[4000:]}
        else:
            x, y = small.fashion()
            x = np.ascontiguousarray((x - 0.286) / 0.353)[:, None]
            parts = {"x": x[:8000], "y": y[:8000], "test_x": x[11000:], "test_y": y[11000:]}
        np.savez(stored, **parts)  # type: ignore[arg-type]
    with np.load(stored) as arrays:
        kinds = {"x": np.float32, "y": np.int64, "test_x": np.float32, "test_y": np.int64}
        return Split(**{k: torch.from_numpy(arrays[k].astype(kind)) for k, kind in kinds.items()})


def fit(net: nn.Module, split: Split, groups: Any, epochs: int, seed: int) -> None:
    """The training loop of both the float nets and the quantized ones: AdamW, a cosine that ends at 0.

    Args:
        net: to train.
        split: of the data.
        groups: parameter groups with their learning rates.
        epochs: over the training pictures.
        seed: of the order of the pictures.
    """
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(groups)
    steps = epochs * (len(split.x) // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    net.train()
    for _ in range(epochs):
        order = torch.randperm(len(split.x))
        for batch in torch.split(order[: len(order) // _BATCH * _BATCH], _BATCH):
            loss = functional.cross_entropy(net(split.x[batch]), split.y[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    net.eval()


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of right answers, in percent."""
    return 100.0 * float((logits.argmax(1) == labels).float().mean())

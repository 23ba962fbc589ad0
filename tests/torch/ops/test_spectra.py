"""Fourier transforms and warps give what onnxruntime gives, and gradients go through them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.errors import ModelError
from onnxq.graph.files.load import load
from onnxq.torch.executor import Executor
from tests.models import build, f32, normal
from tests.torch.ops.helpers import case


@pytest.mark.parametrize("form", ["2, 16, 3, 1", "2, 16, 3, 2", "2, 12, 3, 1"])
@pytest.mark.parametrize("attributes", ["inverse = 0", "inverse = 1", "onesided = 1"])
@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("length", ["", "n"])
def test_transforms(form: str, attributes: str, opset: int, length: str) -> None:
    if "onesided" in attributes and form.endswith("2"):
        form = form[:-1] + "1"
    said, read = (", axis = 1", "") if opset == 17 else ("", ", a")
    text = f"(float[{form}] x) => (float[b, k, m, c] y) {{ y = DFT <{attributes}{said}> (x, {length}{read}) }}"
    x = normal(*map(int, form.split(", ")), scale=1.0)
    case(text, {"x": x}, opset=opset, n=np.array(8), a=np.array(1))


@pytest.mark.parametrize("form", ["2, 100", "2, 100, 1"])
@pytest.mark.parametrize("read", ["h, w", "h, , n", "h, w, n"])
@pytest.mark.parametrize("half", [0, 1])
def test_frames(form: str, read: str, half: int) -> None:
    text = f"(float[{form}] x) => (float[b, f, k, c] y) {{ y = STFT <onesided = {half}> (x, {read}) }}"
    window = np.asarray(np.hanning(16) + 0.1, np.float32)
    case(text, {"x": normal(*map(int, form.split(", ")), scale=1.0)}, h=np.array(5), w=window, n=np.array(16))


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_warps(mode: str, padding: str, aligned: int) -> None:
    attributes = f'mode = "{mode}", padding_mode = "{padding}", align_corners = {aligned}'
    signature = "(float[2, 3, 7, 9] x, float[2, 4, 5, 2] g) => (float[2, 3, 4, 5] y)"
    text = f"{signature} {{ y = GridSample <{attributes}> (x, g) }}"
    case(text, {"x": normal(2, 3, 7, 9, scale=1.0), "g": normal(2, 4, 5, 2, seed=1, scale=0.7)}, opset=20)


def test_gradients_go_through() -> None:
    model = build(
        "(float[1, 100, 1] x) => (float[b, f, k, c] y) { s = Mul (x, g)\n y = STFT (s, h, w) }",
        g=f32([2]),
        h=np.array(5),
        w=np.asarray(np.hanning(16), np.float32),
    )
    executor = Executor(load(model))
    gain = executor.parameters["g"].requires_grad_()
    executor.run({"x": torch.from_numpy(normal(1, 100, 1, scale=1.0))})["y"].square().sum().backward()
    assert gain.grad is not None and float(gain.grad) > 0


def test_half_of_a_spectrum_back_is_refused() -> None:
    model = build(
        "(float[1, 9, 2] x) => (float[b, n, c] y) { y = DFT <onesided = 1, inverse = 1> (x, , a) }",
        opset=20,
        a=np.array(1),
    )
    with pytest.raises(ModelError, match="onesided with inverse"):
        Executor(load(model))

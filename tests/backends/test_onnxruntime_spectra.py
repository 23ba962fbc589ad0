"""Fourier transforms are written as products, and computed as exactly as numpy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.test_onnxruntime_fast_floats import made, ops
from tests.graph.helpers import run
from tests.models import build, normal
from tests.running import optimized

Array = NDArray[Any]


def window(size: int) -> NDArray[np.float32]:
    return np.asarray(np.hanning(size) + 0.1, np.float32)


def framed(x: Array, size: int, step: int, weights: Array | float, *, half: bool = True) -> Array:
    """What an STFT is, by numpy's transform of float64."""
    frames = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), size, axis=1)[:, ::step] * weights
    spectra = np.fft.rfft(frames) if half else np.fft.fft(frames)
    return np.stack([spectra.real, spectra.imag], axis=-1)


def assert_close(got: Array, expected: Array, decibels: float = 120.0) -> None:
    assert got.shape == expected.shape
    assert ((got - expected) ** 2).sum() <= 10 ** (-decibels / 10) * (expected**2).sum()


@pytest.mark.parametrize("shape", ["1, 4000, 1", "n, l, 1", "n, 4000"])
@pytest.mark.parametrize("form", ["x, h, w", "x, h, , s", "x, h, w, s"])
@pytest.mark.parametrize("half", [0, 1])
def test_frames_of_a_signal(shape: str, form: str, half: int) -> None:
    text = f"(float[{shape}] x) => (float[b, f, k, c] y) {{ y = STFT <onesided = {half}> ({form}) }}"
    model = build(text, opset=17, h=np.array(160), w=window(400), s=np.array(400))
    x = normal(1, 4000, scale=1.0)
    given = x[..., np.newaxis] if shape.endswith(" 1") else x
    result = made(model, [{"x": given}] * 2)
    assert "STFT" not in ops(result)
    weights = window(400) if "w" in form else 1.0
    for signal in (given, *((np.concatenate([given] * 3),) if "n" in shape else ())):
        expected = framed(signal.reshape(len(signal), -1), 400, 160, weights, half=bool(half))
        assert_close(run(result, {"x": signal})[0], expected)
        assert_close(run(model, {"x": signal})[0], expected, 80)
    assert result.ByteSize() < 30_000  # one turn, not the table of 400 by 201


def test_a_step_that_is_a_row_of_one_number() -> None:
    text = "(float[1, 4000] x) => (float[b, f, k, c] y) { y = STFT (x, h, w) }"
    model = build(text, opset=17, h=np.array([160]), w=window(400))
    x = normal(1, 4000, scale=1.0)
    result = made(model, [{"x": x}] * 2)
    assert "STFT" not in ops(result)
    assert_close(run(result, {"x": x})[0], framed(x, 400, 160, window(400)))


def test_the_table_is_made_when_the_model_is_loaded(tmp_path: Any) -> None:
    model = build(
        "(float[1, 4000, 1] x) => (float[b, f, k, c] y) { y = STFT (x, h, w) }",
        opset=17,
        h=np.array(160),
        w=window(400),
    )
    result = made(model, [{"x": normal(1, 4000, 1)}] * 2)
    assert set(ops(optimized(result, tmp_path))) == {"Conv", "Reshape", "Transpose"}


AXES = [("1, 32, 60, 1", -2), ("1, 32, 60, 2", 2), ("1, 60, 32, 2", 1), ("n, 60, m, 1", 1), ("60, 32, 2", 0)]
KINDS = [(0, 0), (1, 0), (0, 1)]
"""Inverse, and half of a spectrum, which is that of real numbers."""
TRANSFORMS = [(*axis, *kind) for axis in AXES for kind in KINDS if not (kind[1] and axis[0].endswith("2"))]


@pytest.mark.parametrize(("form", "axis", "inverse", "half"), TRANSFORMS)
@pytest.mark.parametrize("opset", [17, 20])
def test_transforms_along_an_axis(form: str, axis: int, inverse: int, half: int, opset: int) -> None:
    rank, parts = form.count(",") + 1, int(form[-1])
    place = axis % rank
    said, read = (f", axis = {place}", "") if opset == 17 else ("", ", , axis")
    text = f"<inverse = {inverse}, onesided = {half}{said}> (x{read})"
    model = build(
        f"(float[{form}] x) => (float[{', '.join('abcd'[:rank])}] y) {{ y = DFT {text} }}",
        opset=opset,
        axis=np.array(axis),
    )
    sizes = [{"n": 1, "m": 32}.get(size) or int(size) for size in form.split(", ")]
    x = normal(*sizes, scale=1.0)
    result = made(model, [{"x": x}] * 2)
    assert "DFT" not in ops(result)
    for signal in (x, *((np.concatenate([x] * 3),) if form.startswith("n") else ())):
        given = signal.astype(np.float64)
        numbers = given[..., 0] + (1j * given[..., 1] if parts == 2 else 0)
        transform = np.fft.ifft if inverse else np.fft.rfft if half else np.fft.fft
        spectrum = transform(numbers, axis=place)
        expected = np.stack([spectrum.real, spectrum.imag], axis=-1)
        assert_close(run(result, {"x": signal})[0], expected)
        assert_close(run(model, {"x": signal})[0], expected, 80)


@pytest.mark.parametrize(
    ("shape", "node"),
    [
        ("1, 32, 256, 1", "DFT <axis = 2> (x)"),
        ("1, 2, 600, 1", "DFT <axis = 2> (x)"),
        ("1, 32, 60, 1", "DFT <axis = 2> (x, s)"),
        ("1, 32, k, 1", "DFT <axis = 2> (x)"),
        ("1, 4096, 1", "STFT (x, h, , l)"),
        ("1, 4096, 2", "STFT <onesided = 0> (x, h, , s)"),
        ("1, 1983, 1", "STFT (x, q, , k)"),
        ("1, 9000, 1", "STFT <onesided = 0> (x, q, , k)"),
    ],
)
def test_others_stay(shape: str, node: str) -> None:
    """Long powers of two, few rows or frames, another length than the tensor's, what is not known, no real signal."""
    numbers = {"s": np.array(48), "h": np.array(512), "l": np.array(2048), "q": np.array(64), "k": np.array(1024)}
    model = build(
        f"(float[{shape}] x) => (float[{', '.join('abcd'[:4])}] y) {{ y = {node} }}",
        opset=17,
        **{name: array for name, array in numbers.items() if f" {name}" in node[node.index("(") :]},  # type: ignore[arg-type]
    )
    sizes = [60 if size == "k" else int(size) for size in shape.split(", ")]
    result = made(model, [{"x": normal(*sizes)}] * 2)
    assert ops(result)[node.split()[0]] == 1

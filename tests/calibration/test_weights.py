from __future__ import annotations

import numpy as np
import pytest

from onnxq.calibration.weights import weight_range
from onnxq.errors import ModelError
from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import PerBlock, PerChannel, QuantSpec

W = np.random.default_rng(0).standard_t(4, (6, 5, 3, 3)).astype(np.float32)


def _errors(w: np.ndarray, spec: QuantSpec, ratio: float | None = None) -> np.ndarray:
    """Squared error of each channel along axis 0, of the range chosen or of a share of the full range."""
    lo, hi = weight_range(w, spec)
    if ratio is not None:
        flat = w.reshape(len(w), -1)
        lo, hi = flat.min(1) * ratio, flat.max(1) * ratio
    changed = fake_quantize(w, from_range(lo, hi, spec)).astype(np.float64)
    return np.asarray(((changed - w) ** 2).reshape(len(w), -1).sum(1))


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_full_range_from_8_bits(bits: int) -> None:
    for axis in range(4):
        lo, hi = weight_range(W, QuantSpec(bits, granularity=PerChannel(axis)))
        others = tuple(i for i in range(4) if i != axis)
        assert np.array_equal(lo, W.min(others)) and np.array_equal(hi, W.max(others))
    lo, hi = weight_range(W, QuantSpec(bits))
    assert lo.shape == () and (float(lo), float(hi)) == (W.min(), W.max())
    lo, hi = weight_range(np.abs(W), QuantSpec(bits))
    assert lo == 0.0


@pytest.mark.parametrize(
    "spec", [QuantSpec(b, s, s, PerChannel(0)) for b in (2, 3, 4, 6) for s in (True, False)], ids=str
)
def test_search_below_8_bits(spec: QuantSpec) -> None:
    chosen = _errors(W, spec)
    for ratio in np.linspace(0.1, 1.0, 46):
        assert (chosen <= _errors(W, spec, ratio) * 1.03).all()
    assert (chosen <= _errors(W, spec, 1.0)).all()


def test_blocks() -> None:
    spec = QuantSpec(4, granularity=PerBlock(1, 2))
    w = W[:, :, 0, 0]
    lo, hi = weight_range(w, spec)
    assert lo.shape == hi.shape == (6, 3)
    for index, part in enumerate((w[:, :2], w[:, 2:4], w[:, 4:])):
        alone = weight_range(part, QuantSpec(4, granularity=PerChannel(0)))
        assert np.allclose(lo[:, index], alone[0]) and np.allclose(hi[:, index], alone[1])
    assert weight_range(W, QuantSpec(8, granularity=PerBlock(0, 4)))[0].shape == (2, 5, 3, 3)


def test_odd_weights() -> None:
    for bits in (4, 8):
        spec = QuantSpec(bits, granularity=PerChannel(0))
        w = np.array([[0.0, 0.0], [np.inf, 1.0], [np.nan, -1.0], [1e-42, 0.0]], np.float32)
        lo, hi = weight_range(w, spec)
        assert np.isfinite(lo).all() and np.isfinite(hi).all() and (lo <= 0).all() and (hi >= 0).all()
        assert (lo[0], hi[0]) == (0.0, 0.0) and hi[1] > 0.9 and lo[2] < -0.9
        assert weight_range(np.zeros((0, 3), np.float32), spec)[0].shape == (0,)
        assert weight_range(np.zeros((3, 0), np.float32), spec)[0].tolist() == [0.0, 0.0, 0.0]
        assert weight_range(W.astype(np.float16), spec)[0].shape == (6,)
    with pytest.raises(ModelError, match="no axis 4"):
        weight_range(W, QuantSpec(granularity=PerChannel(4)))


def test_large_weights_are_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = QuantSpec(4, granularity=PerChannel(0))
    whole = weight_range(W, spec)
    monkeypatch.setattr("onnxq.calibration.weights._CHUNK", 50)
    parts = weight_range(W, spec)
    assert np.array_equal(whole[0], parts[0]) and np.array_equal(whole[1], parts[1])

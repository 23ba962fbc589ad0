from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxq.errors import BackendError, ModelError
from onnxq.ort.session import Session
from onnxq.qparams import QParams, dequantize, ends, fake_quantize, quantize, spread
from onnxq.ranged import MIN_SCALE, from_range
from onnxq.spec import PerBlock, PerChannel, PerTensor, QuantSpec, Scheme

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
BELOW_OVERFLOW = st.floats(-(2.0**126), 2.0**126, width=32)
"""Two steps of a power of two above the largest of these numbers are still float32 numbers."""
SPECS = st.builds(
    QuantSpec,
    bits=st.integers(2, 16),
    signed=st.booleans(),
    symmetric=st.booleans(),
    narrow_range=st.just(False),
    power_of_two=st.booleans(),
)


@given(FLOATS, FLOATS, SPECS)
def test_scale_is_finite_and_positive_and_zero_is_on_the_grid(a: float, b: float, spec: QuantSpec) -> None:
    qp = from_range(min(a, b), max(a, b), spec)
    assert qp.scale.dtype == np.float32 and qp.scale.shape == ()
    assert math.isfinite(qp.scale) and qp.scale >= MIN_SCALE
    assert np.isfinite(np.float32(1.0) / qp.scale)
    assert spec.qmin <= int(qp.zero_point) <= spec.qmax
    assert fake_quantize(0.0, qp) == 0.0


@given(BELOW_OVERFLOW, BELOW_OVERFLOW, SPECS, st.floats(0, 1))
def test_error_inside_the_range_is_at_most_half_a_step(a: float, b: float, spec: QuantSpec, where: float) -> None:
    lo, hi = min(a, b, 0.0), max(a, b, 0.0)
    qp = from_range(lo, hi, spec)
    x = np.float32(lo * (1 - where) + hi * where)
    step = float(qp.scale)
    error = abs(float(fake_quantize(x, qp)) - float(x))
    assert error <= step * 0.5 * (1 + 1e-3) + 1e-6 * abs(float(x))


@given(FLOATS, SPECS)
def test_power_of_two_scales(a: float, spec: QuantSpec) -> None:
    if spec.power_of_two:
        mantissa, _ = math.frexp(float(from_range(-abs(a), abs(a) / 3, spec).scale))
        assert mantissa == 0.5


@given(FLOATS, FLOATS, SPECS)
def test_power_of_two_scale_is_the_next_one(a: float, b: float, spec: QuantSpec) -> None:
    exact = from_range(min(a, b), max(a, b), QuantSpec(spec.bits, spec.signed, spec.symmetric))
    rounded = from_range(min(a, b), max(a, b), QuantSpec(spec.bits, spec.signed, spec.symmetric, power_of_two=True))
    assert float(exact.scale) <= float(rounded.scale) or float(rounded.scale) == 2.0**127
    assert float(rounded.scale) < 2 * float(exact.scale)


@pytest.mark.parametrize("n", [-20, -1, 0, 3])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_scale_that_is_a_power_of_two_stays_what_it_is(n: int, symmetric: bool) -> None:
    spec = QuantSpec(8, signed=symmetric, symmetric=symmetric, power_of_two=True)
    assert float(from_range(0.0, (127 if symmetric else 255) * 2.0**n, spec).scale) == 2.0**n


@given(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=st.floats(-1e6, 1e6, width=32)),
    SPECS,
    st.floats(0.0, 1e6, width=32),
)
def test_fake_quantize_is_dequantize_of_quantize(x: np.ndarray[Any, Any], spec: QuantSpec, end: float) -> None:
    qp = from_range(-end, end / 2, spec)
    expected = dequantize(quantize(x, qp), qp)
    got = fake_quantize(x, qp)
    assert got.dtype == np.float32
    assert got.tobytes() == expected.tobytes()


@given(SPECS)
def test_idempotent(spec: QuantSpec) -> None:
    qp = from_range(-1.3, 2.9, spec)
    once = fake_quantize(np.linspace(-3, 3, 101, dtype=np.float32), qp)
    assert np.array_equal(fake_quantize(once, qp), once)


def test_formulas() -> None:
    asymmetric = from_range(-1.0, 3.0, QuantSpec(8, signed=False, symmetric=False))
    assert asymmetric.scale == np.float32(4 / 255) and asymmetric.zero_point == 64
    symmetric = from_range(-1.0, 3.0, QuantSpec(8))
    assert symmetric.scale == np.float32(3 / 127) and symmetric.zero_point == 0
    middle = from_range(-1.0, 3.0, QuantSpec(8, signed=False))
    assert middle.scale == np.float32(3 / 127) and middle.zero_point == 128


@pytest.mark.parametrize("spec", [QuantSpec(8), QuantSpec(8, signed=False, symmetric=False), QuantSpec(4)])
def test_degenerate_ranges(spec: QuantSpec) -> None:
    for lo, hi in ((0.0, 0.0), (0.0, 1e-45), (-1e-40, 0.0), (-3.4e38, 3.4e38), (5.0, 6.0), (-6.0, -5.0)):
        qp = from_range(lo, hi, spec)
        assert np.isfinite(qp.scale) and qp.scale >= MIN_SCALE
        assert fake_quantize(0.0, qp) == 0.0
    zero = from_range(0.0, 0.0, QuantSpec(8, signed=False, symmetric=False))
    assert zero.zero_point == 0 and zero.scale == np.float32(1 / 255)


@pytest.mark.parametrize(("lo", "hi"), [(5.0, 6.0), (-6.0, -5.0), (0.4, 0.6)])
def test_a_range_beside_zero_is_held_up_to_its_far_end(lo: float, hi: float) -> None:
    qp = from_range(lo, hi, QuantSpec(8, signed=False, symmetric=False))
    x = np.array([lo, 0.0, hi], np.float32)
    np.testing.assert_allclose(fake_quantize(x, qp), x, atol=float(qp.scale) * 0.501)


@pytest.mark.parametrize(
    "spec",
    [
        QuantSpec(8),
        QuantSpec(8, signed=False, symmetric=False),
        QuantSpec(8, signed=False, symmetric=False, granularity=PerChannel(1)),
        QuantSpec(scheme=Scheme.FLOAT8),
        QuantSpec(scheme=Scheme.LOGARITHMIC),
    ],
    ids=str,
)
def test_the_ends_of_a_grid_are_what_numbers_far_off_become(spec: QuantSpec) -> None:
    channels = (2,) if isinstance(spec.granularity, PerChannel) else ()
    qp = from_range(np.full(channels, -1.0), np.full(channels, 3.0), spec)
    low, high = (fake_quantize(np.full((1, 2), far, np.float32), qp) for far in (-1e9, 1e9))
    assert (qp.lo == low).all() and (qp.hi == high).all()
    for end, wanted in zip(ends(qp, (1, 2)), (low, high), strict=True):
        np.testing.assert_allclose(np.broadcast_to(end, (1, 2)), wanted, rtol=1e-6)


def test_range_that_is_not_finite_is_refused() -> None:
    for lo, hi in ((math.nan, 1.0), (-math.inf, 1.0), (0.0, math.inf)):
        with pytest.raises(ModelError, match="not finite"):
            from_range(lo, hi, QuantSpec())


@pytest.mark.parametrize("other", [{"bits": 16}, {"signed": False, "symmetric": False}])
def test_logarithmic_grids_that_do_not_exist_are_refused(other: Any) -> None:
    with pytest.raises(BackendError, match="logarithmic"):
        from_range(-1.0, 1.0, QuantSpec(scheme=Scheme.LOGARITHMIC, **other))


def test_a_logarithmic_grid_has_no_scale_and_zero_point() -> None:
    with pytest.raises(BackendError, match="logarithmic"):
        spread(from_range(-1.0, 1.0, QuantSpec(scheme=Scheme.LOGARITHMIC)), (3,))


def test_not_finite_values_saturate_and_nan_is_zero() -> None:
    qp = from_range(-1.0, 1.0, QuantSpec(8))
    x = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32)
    assert quantize(x, qp).tolist() == [127, -128, 0, 0]
    assert fake_quantize(x, qp).tobytes() == dequantize(quantize(x, qp), qp).tobytes()


def test_storage_types() -> None:
    x = np.zeros(3, np.float32)
    for bits, signed, dtype in (
        (4, True, "int8"),
        (2, False, "uint8"),
        (8, False, "uint8"),
        (12, True, "int16"),
        (16, False, "uint16"),
        (32, True, "int32"),
    ):
        assert quantize(x, from_range(-1.0, 1.0, QuantSpec(bits, signed))).dtype == np.dtype(dtype)


def test_int32_is_rounded_in_float32_and_saturates_exactly() -> None:
    qp = QParams(QuantSpec(32), np.asarray(1e-3, np.float32), np.asarray(0, np.int64))
    got = quantize(np.array([1e9, -1e9, 1.0], np.float32), qp)
    assert got.tolist() == [2**31 - 1, -(2**31), 1000]


def test_per_channel_and_per_block_shapes() -> None:
    w = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 12
    channel = QuantSpec(8, granularity=PerChannel(1))
    qp = from_range(w.min(axis=(0, 2)), w.max(axis=(0, 2)), channel)
    for index in range(3):
        one = QParams(QuantSpec(8), np.asarray(qp.scale[index]), np.asarray(qp.zero_point[index]))
        assert np.array_equal(fake_quantize(w, qp)[:, index], fake_quantize(w[:, index], one))
    block = QuantSpec(4, granularity=PerBlock(2, 3))
    low = np.stack([w[..., :3].min(-1), w[..., 3:].min(-1)], axis=-1)
    high = np.stack([w[..., :3].max(-1), w[..., 3:].max(-1)], axis=-1)
    blocked = from_range(low, high, block)
    assert blocked.scale.shape == (2, 3, 2)
    assert np.abs(fake_quantize(w, blocked) - w).max() <= blocked.scale.max() / 2
    for bad in (channel, block):
        with pytest.raises(ModelError, match="do not fit"):
            quantize(np.zeros((5, 5), np.float32), QParams(bad, np.ones(4, np.float32), np.zeros(4, np.int64)))


def test_equality_and_hash() -> None:
    a, b = (from_range(-1.0, 1.0, QuantSpec()) for _ in range(2))
    assert a == b and hash(a) == hash(b)
    assert a != from_range(-1.0, 2.0, QuantSpec()) and a != "a"
    assert a != QParams(a.spec, a.scale, a.zero_point + 1), "the same steps from another zero"


def _model(dtype: str, shape: tuple[int, ...], axis: int | None) -> Session:
    params = "[]" if axis is None else f"[{shape[axis]}]"
    attribute = "" if axis is None else f"<axis = {axis}>"
    dims = ",".join(map(str, shape))
    text = f"""
        <ir_version: 10, opset_import: ["" : 21]>
        agraph (float[{dims}] x, float{params} s, {dtype}{params} z) => ({dtype}[{dims}] q, float[{dims}] y) {{
            q = QuantizeLinear {attribute} (x, s, z)
            y = DequantizeLinear {attribute} (q, s, z)
        }}"""
    return Session(ir.from_onnx_text(text), optimize=False)


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize(("bits", "signed"), [(8, False), (8, True), (16, False), (16, True)])
def test_bit_equal_with_onnxruntime(bits: int, signed: bool, axis: int | None) -> None:
    rng = np.random.default_rng(bits + signed)
    shape = (5, 7, 33)
    dtype = f"{'' if signed else 'u'}int{bits}"
    session = _model(dtype, shape, axis)
    granularity: Any = {} if axis is None else {"granularity": PerChannel(axis)}
    for symmetric in (True, False):
        spec = QuantSpec(bits, signed, symmetric, **granularity)
        size = () if axis is None else (shape[axis],)
        qp = from_range(-rng.gamma(1.0, 3.0, size), rng.gamma(1.0, 3.0, size), spec)
        x = (rng.standard_normal(shape) * 4).astype(np.float32)
        x.reshape(-1)[:6] = [np.inf, -np.inf, 1e38, -1e38, -0.0, 1e-42]
        ties = (rng.integers(-20, 20, shape) + 0.5) * (qp.scale if axis is None else float(qp.scale[0]))
        x = np.where(rng.random(shape) < 0.3, ties, x).astype(np.float32)
        got = session.run({"x": x, "s": qp.scale, "z": qp.zero_point.astype(dtype)})
        q = quantize(x, qp)
        assert q.dtype == np.dtype(dtype)
        assert np.array_equal(q, got["q"])
        assert dequantize(q, qp).tobytes() == got["y"].tobytes()


@settings(max_examples=40)
@given(
    hnp.arrays(np.float32, (16,), elements=st.floats(width=32, allow_nan=False)),
    st.floats(2.0**-100, 2.0**100, width=32),
    st.integers(0, 255),
)
def test_bit_equal_with_onnxruntime_for_any_scale(x: np.ndarray[Any, Any], scale: float, zero: int) -> None:
    qp = QParams(QuantSpec(8, False, False), np.asarray(np.float32(scale)), np.asarray(zero, np.int64))
    got = _U8.run({"x": x, "s": qp.scale, "z": qp.zero_point.astype(np.uint8)})
    assert np.array_equal(quantize(x, qp), got["q"])
    assert dequantize(got["q"], qp).tobytes() == got["y"].tobytes()


_U8 = _model("uint8", (16,), None)


@pytest.mark.parametrize("granularity", [PerTensor(), PerChannel(0), PerChannel(1), PerBlock(0, 3)], ids=str)
def test_large_tensors_are_quantized_piece_by_piece(
    granularity: PerTensor | PerChannel | PerBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).standard_normal((9, 8)).astype(np.float32)
    x[4, 5], x[6, 7] = np.nan, np.inf
    counts = {PerTensor(): (), PerChannel(0): (9,), PerChannel(1): (8,)}.get(granularity, (3, 8))
    top = np.linspace(0.5, 2, int(np.prod(counts))).reshape(counts)
    qp = from_range(-top / 2, top, QuantSpec(8, False, False, granularity))
    expected = quantize(x, qp)
    for piece in (1, 16, 40):
        monkeypatch.setattr("onnxq.qparams._PIECE", piece)
        np.testing.assert_array_equal(quantize(x, qp), expected)

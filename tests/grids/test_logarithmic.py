"""The logarithmic grid against exact arithmetic: powers of 2**(1/16) are compared as whole numbers, by their powers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import onnxq
from onnxq.calibration.bin_error import Bins
from onnxq.calibration.ranges import check_range, select_range
from onnxq.calibration.statistics import TensorStatistics
from onnxq.errors import OptionError
from onnxq.grids.logarithmic import HIGHEST, LOWEST, RELATIVE_NOISE
from onnxq.ort.session import Session
from onnxq.qparams import QParams, dequantize, fake_quantize, quantize
from onnxq.ranged import from_range
from onnxq.render import nnie_quantize
from onnxq.spec import PerChannel, QuantSpec, Scheme
from tests.models import build

SPEC = QuantSpec(scheme=Scheme.LOGARITHMIC)
CLIPS = [LOWEST, -1000, -127, -17, 0, 5, 32, 100, HIGHEST]
"""``n`` of clip values ``2**(n/16)``."""

Floats = NDArray[np.float32]


def grid(n: int) -> QParams:
    return from_range(-(2.0 ** (n / 16)), 2.0 ** (n / 16), SPEC)


def at_least(x: Fraction, numerator: int, denominator: int) -> bool:
    """Whether ``x >= 2**(numerator/denominator)``, exactly."""
    return bool(x**denominator >= Fraction(2) ** numerator)


def exact_code(x: float, n: int) -> int:
    """The code of a number by the formula, in whole numbers."""
    z = n - 127
    value = Fraction(abs(x))
    if x == 0:
        return 0x80
    if x > 0:
        lowest, base, zone = 0, 0, at_least(value, z - 16, 16)
    else:
        limit = Fraction(2) ** (z + 1 - 16)
        lowest, base, zone = 1, 0x80, bool(value**16 > limit)
    if not zone:
        return 0x80
    near = math.floor(16 * math.log2(abs(x)))
    k = next(k for k in range(near - 2, near + 4) if not at_least(value, 2 * k + 1, 32))  # x < 2**((k + 1/2)/16)
    return base + min(max(k - z, lowest), 127)


def exact_number(code: int, n: int) -> float:
    """The float32 nearest to what a code stands for."""
    if code == 0x80:
        return 0.0
    power = n - 127 + code % 0x80  # the number is 2**(power/16)
    near = np.float32(2.0 ** (power / 16))
    below, given, above = (Fraction(float(v)) for v in (np.nextafter(near, np.float32(0)), near, near * (1 + 2**-23)))
    assert ((below + given) / 2) ** 16 < Fraction(2) ** power < ((given + above) / 2) ** 16
    return float(near if code < 0x80 else -near)


def around_thresholds(n: int) -> Floats:
    """Numbers at and next to all thresholds and numbers of a grid, both signs; zeros, NaN and infinities."""
    half_steps = np.arange(2 * (n - 127) - 40, 2 * n + 5) / 32
    x = np.exp2(half_steps[half_steps < 128]).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(np.inf))])
    return np.concatenate([x, -x, np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45], np.float32)])


def test_the_golden_grid() -> None:
    qp = from_range(-4.0, 3.9, SPEC)
    assert qp.scale == np.float32(4.0) and qp.lo == -4.0 and qp.hi == 4.0
    numbers = dequantize(np.arange(256), qp)
    positive = np.sort(numbers[numbers > 0])
    assert float(positive[0]) == pytest.approx(0.016317, abs=5e-7) == pytest.approx(2.0 ** (-95 / 16), abs=5e-7)
    assert positive[-1] == 4.0 and len(positive) == 128
    assert len(np.unique(numbers)) == 256
    assert list(numbers[[0x00, 0x7F, 0x80, 0xFF]]) == [np.float32(2.0 ** (-95 / 16)), 4.0, 0.0, -4.0]


@pytest.mark.parametrize("n", CLIPS)
def test_numbers_of_all_codes_are_exact(n: int) -> None:
    qp = grid(n)
    codes = np.arange(256)
    numbers = dequantize(codes, qp)
    assert [exact_number(c, n) for c in range(256)] == list(numbers)
    assert not np.signbit(numbers[0x80])
    np.testing.assert_array_equal(quantize(numbers, qp), codes)
    np.testing.assert_array_equal(fake_quantize(numbers, qp), numbers)


@pytest.mark.parametrize("n", CLIPS)
def test_codes_at_all_thresholds_are_exact(n: int) -> None:
    x = around_thresholds(n)
    x = x[np.isfinite(x)]
    assert quantize(x, grid(n)).tolist() == [exact_code(float(v), n) for v in x]


@settings(max_examples=200)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(LOWEST, HIGHEST))
def test_any_code_is_exact(x: float, n: int) -> None:
    assert int(quantize(x, grid(n))) == exact_code(float(np.float32(x)), n)


def test_what_is_no_number_and_what_is_beyond() -> None:
    qp = grid(32)
    got = fake_quantize(np.array([np.nan, np.inf, -np.inf, 1e30, -1e30], np.float32), qp)
    assert got.tolist() == [0.0, 4.0, -4.0, 4.0, -4.0]


@pytest.mark.parametrize("end", [1e-45, 1e-30, 0.3, 1.0, 3.99, 5e10, 3.4e38])
def test_the_clip_value_is_the_nearest_of_the_table(end: float) -> None:
    clip = float(from_range(-end / 3, end, SPEC).scale)
    n = round(16 * math.log2(clip))
    assert clip == np.float32(2.0 ** (n / 16))
    if LOWEST < n < HIGHEST:
        assert 2.0 ** ((n - 0.5) / 16) <= end * (1 + 1e-7) and end <= 2.0 ** ((n + 0.5) / 16)
        assert fake_quantize(end, from_range(-end, end, SPEC)) == np.float32(clip), "the extreme rounds to it"


def test_an_empty_range() -> None:
    assert from_range(0.0, 0.0, SPEC).scale == 1.0


def test_a_grid_for_each_channel() -> None:
    x = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    ends = np.array([0.5, 1.0, 7.0])
    together = from_range(-ends, ends, QuantSpec(scheme=Scheme.LOGARITHMIC, granularity=PerChannel(0)))
    rows = [fake_quantize(row, from_range(-end, end, SPEC)) for row, end in zip(x, ends, strict=True)]
    np.testing.assert_array_equal(fake_quantize(x, together), np.stack(rows))


def test_a_number_of_one_grid_is_a_number_of_every_wider_one() -> None:
    numbers = dequantize(np.arange(256), grid(7))
    wider = numbers[(numbers >= 2.0 ** ((30 - 127) / 16)) | (numbers <= -(2.0 ** ((31 - 127) / 16)))]
    np.testing.assert_array_equal(fake_quantize(wider, grid(30)), wider)


# -- the ONNX function


def session(opset: int, *, optimize: bool) -> Session:
    x = ir.Value(name="x", shape=ir.Shape(["N"]), type=ir.TensorType(ir.DataType.FLOAT))
    c = ir.Value(name="c", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.FLOAT))
    node = nnie_quantize.node(x, c, "f")
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = "y", x.type, ir.Shape(["N"])
    graph = ir.Graph([x, c], node.outputs, nodes=[node], opset_imports={"": opset}, name="g")
    model = ir.Model(graph, ir_version=8)
    nnie_quantize.register(model)
    nnie_quantize.register(model)
    assert len(model.functions) == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return Session(model, optimize=optimize)


@pytest.mark.parametrize(("opset", "optimize"), [(13, False), (14, True), (17, False), (21, True)])
def test_the_function_equals_the_arithmetic_bit_for_bit(opset: int, optimize: bool) -> None:
    function = session(opset, optimize=optimize)
    rng = np.random.default_rng(1)
    for n in [*CLIPS, *(int(n) for n in rng.integers(LOWEST, HIGHEST + 1, 12))]:
        qp = grid(n)
        x = np.concatenate([around_thresholds(n), dequantize(np.arange(256), qp)])
        assert function.run({"x": x, "c": qp.scale})["y"].tobytes() == fake_quantize(x, qp).tobytes(), n


def test_functions_are_read_back() -> None:
    model = build(
        """(float[2, 4] x) => (float[2, 3] y) {
            q = onnxq.NNIEQuantize (x, c)
            v = onnxq.NNIEQuantize (w, d)
            y = MatMul (q, v)
        }""",
        domains={"onnxq": 1},
        c=np.float32(4.05),
        d=np.float32(0.5),
        w=np.ones((4, 3), np.float32),
    )
    loaded = ir.from_proto(model)
    nnie_quantize.register(loaded)
    read = onnxq.read(loaded, backend="nnie")
    assert {name: float(qp.scale) for name, qp in read.qparams.items()} == {"x": 4.0, "w": 0.5}
    assert [site.role for site in read.plan.sites] == ["activation", "weight"]
    assert not read.model.functions
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    again = Session(read.fake_quantize(), optimize=False).run(feeds)["y"]
    np.testing.assert_array_equal(again, fake_quantize(feeds["x"], grid(32)) @ np.full((4, 3), 1.0, np.float32) * 0.5)


# -- ranges and errors


def seen(x: Floats) -> TensorStatistics:
    stats = TensorStatistics("t")
    stats.update(x, 0)
    return stats


@pytest.mark.parametrize("method", ["mse", "minmax"])
def test_the_range_is_the_largest_magnitude(method: str) -> None:
    x = np.random.default_rng(3).standard_normal(5000).astype(np.float32)
    spec = QuantSpec(scheme=Scheme.LOGARITHMIC, range=method)
    qp = from_range(*select_range(seen(x), spec), spec)
    n = round(16 * math.log2(float(np.abs(x).max())))
    assert qp.scale == np.float32(2.0 ** (n / 16))


@pytest.mark.parametrize("method", ["entropy", "lsq"])
def test_range_methods_of_uniform_grids_are_refused(method: str) -> None:
    with pytest.raises(OptionError, match="uniform grids"):
        check_range(method, SPEC)
    with pytest.raises(OptionError, match="uniform grids"):
        select_range(seen(np.ones(3, np.float32)), QuantSpec(scheme=Scheme.LOGARITHMIC, range=method))
    check_range(method, QuantSpec())


@pytest.mark.parametrize("clip", [0.02, 1.0, 6.0])
def test_the_error_on_a_histogram_is_that_of_the_values(clip: float) -> None:
    x = np.random.default_rng(4).standard_normal(200_000).astype(np.float32)
    flat: Any = QParams(SPEC, from_range(-clip, clip, SPEC).scale.reshape(1), np.zeros(1, np.int64))
    exact = np.square(fake_quantize(x, from_range(-clip, clip, SPEC)) - x, dtype=np.float64).sum()
    assert Bins(seen(x)).exact(flat)[0] == pytest.approx(exact, rel=0.01)


def test_the_relative_noise_inside_the_grid() -> None:
    x = np.exp2(np.random.default_rng(5).uniform(-3, 2, 100_000)).astype(np.float32)
    error = (fake_quantize(x, grid(64)) - x) / x
    assert np.mean(np.square(error, dtype=np.float64)) == pytest.approx(RELATIVE_NOISE, rel=0.02)

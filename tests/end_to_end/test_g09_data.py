"""Group 9: the calibration data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import DataError, OptionError, Options, calibrate, check, quantize
from tests.contract import ALL, quantize_checked
from tests.models import build, images, normal

RANGES = ("mse", "minmax", "entropy", "percentile:99.9", "std", "lsq")


def model() -> onnx.ModelProto:
    return build(
        """(float[N, 3, 8, 8] x) => (float[N, 4, 4, 4] y) {
            a = Conv (x, w, b)
            r = Relu (a)
            y = Conv (r, v)
        }""",
        w=normal(4, 3, 3, 3),
        b=normal(4, seed=1, scale=0.3),
        v=normal(4, 4, 3, 3, seed=2),
    )


def test_nan_in_one_sample() -> None:
    feeds = images(1, 3, 8, 8, samples=8)
    feeds[2]["x"][0, 1, 2, 3] = np.nan
    sound = [feed for i, feed in enumerate(feeds) if i != 2]
    result = quantize_checked(model(), feeds, agree=-100, least=None)
    assert result.quantized.plan.quantized
    assert "NaN in tensor 'x'" in result.notes
    assert "sample 2" in result.notes
    for qp in result.quantized.qparams.values():
        assert np.isfinite(qp.scale).all()
    assert quantize_checked(model(), sound).worst > 20


def test_nan_in_every_sample_of_a_part() -> None:
    """A 0/0 in padded rows is no reason to fail."""
    net = build(
        """(float[4, 8] x) => (float[4, 4] y) {
            n = ReduceL2 <axes = [1], keepdims = 1> (x)
            d = Div (x, n)
            y = MatMul (d, w)
        }""",
        w=normal(8, 4),
    )
    feeds = images(4, 8)
    for feed in feeds:
        feed["x"][3] = 0
    result = quantize_checked(net, feeds, least=None, agree=-100)
    assert "NaN in tensor 'd'" in result.notes


def test_infinity_in_one_sample() -> None:
    feeds = images(1, 3, 8, 8, samples=8)
    feeds[4]["x"][0, 1, 2, 3] = np.inf
    result = quantize_checked(model(), feeds, agree=-100, least=None)
    assert result.quantized.plan.quantized
    assert "infinite values in tensor 'x'" in result.notes
    assert "sample 4" in result.notes


@pytest.mark.parametrize("data", [[], (), np.zeros((0, 3, 8, 8), np.float32), iter(())])
def test_empty_reader(data: Any) -> None:
    with pytest.raises(DataError, match="no samples"):
        quantize(model(), data, options=ALL)


def test_empty_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 3, 8, 8), np.float32))
    for data in ("folder", "none.npz"):
        with pytest.raises(DataError, match=r"no samples|no \.np|is empty|nothing"):
            quantize(model(), tmp_path / data, options=ALL)


def test_neither_data_nor_statistics() -> None:
    with pytest.raises(OptionError, match="neither data nor statistics"):
        quantize(model())


def test_float64_data(caplog: pytest.LogCaptureFixture) -> None:
    feeds = [{"x": feed["x"].astype(np.float64)} for feed in images(1, 3, 8, 8)]
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        quantized = quantize(model(), feeds, options=ALL)
    assert sum("float64" in record.message for record in caplog.records) == 1, "cast, and said once"
    assert quantized.qparams == quantize(model(), images(1, 3, 8, 8), options=ALL).qparams


def test_one_sample() -> None:
    result = quantize_checked(model(), images(1, 3, 8, 8, samples=1))
    assert "the ranges come from 1 sample only" in result.notes


def test_identical_samples() -> None:
    feeds = images(1, 3, 8, 8, samples=1) * 12
    quantize_checked(model(), feeds)
    problems = [f.what for f in check(model(), data=feeds) if f.level == "warning"]
    assert any("identical" in what for what in problems)


def test_several_samples_say_nothing_of_one() -> None:
    assert "sample only" not in quantize_checked(model(), images(1, 3, 8, 8, samples=2)).notes


def test_hwc_for_chw() -> None:
    with pytest.raises(DataError, match=r"sample 0.*'x'.*1x8x8x3.*(HWC|channels|NHWC|transpos)"):
        quantize(model(), images(1, 8, 8, 3), options=ALL)


def test_bytes_for_a_model_of_unit_range() -> None:
    """The batch normalization at the front tells what the model was trained on."""
    net = build(
        """(float[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y) {
            n = BatchNormalization (x, g, z, m, v)
            y = Relu (n)
        }""",
        g=np.ones(3, np.float32),
        z=np.zeros(3, np.float32),
        m=np.full(3, 0.5, np.float32),
        v=np.full(3, 0.08, np.float32),
    )
    rng = np.random.default_rng(0)
    unit = [{"x": rng.random((1, 3, 8, 8)).astype(np.float32)} for _ in range(16)]
    raw = [{"x": np.floor(feed["x"] * 256)} for feed in unit]
    said = [f.what for f in check(net, data=raw) if f.level == "warning"]
    assert any("does not look like the training data" in what for what in said)
    assert not [f for f in check(net, data=unit) if f.level == "warning" and "training data" in f.what]


@pytest.mark.parametrize("method", RANGES)
def test_wide_then_narrow(method: str) -> None:
    """First batch wide, then narrow ones, and the other way round: identical thresholds."""
    feeds = [{"x": normal(4, 3, 8, 8, seed=i, scale=size)} for i, size in enumerate((30, 1, 0.5, 0.2, 1, 0.1))]
    options = Options(placement="all", range=method, bias_correction=False)
    assert quantize(model(), feeds, options=options).qparams == quantize(model(), feeds[::-1], options=options).qparams


def test_wrong_names_and_missing_inputs() -> None:
    with pytest.raises(DataError, match=r"'y0'|'x'"):
        quantize(model(), [{"y0": normal(1, 3, 8, 8)}], options=ALL)
    with pytest.raises(DataError, match=r"sample 1"):
        quantize(model(), [{"x": normal(1, 3, 8, 8)}, {}], options=ALL)


@pytest.mark.parametrize("broken", [None, "text", 7, object(), {"x": "text"}, {"x": [[1], [1, 2]]}])
def test_samples_that_are_no_arrays(broken: Any) -> None:
    with pytest.raises(DataError, match="sample 1"):
        quantize(model(), [{"x": normal(1, 3, 8, 8)}, broken], options=ALL)


def test_an_error_in_the_data_names_the_sample() -> None:
    def source() -> Iterator[dict[str, Any]]:
        yield {"x": normal(1, 3, 8, 8)}
        raise ZeroDivisionError("a bug of the user")

    with pytest.raises(DataError, match=r"sample 1.*ZeroDivisionError.*a bug of the user") as caught:
        quantize(model(), source(), options=ALL)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_data_is_left_unchanged() -> None:
    feeds = images(1, 3, 8, 8)
    copies = [feed["x"].copy() for feed in feeds]
    quantize(model(), feeds, options=ALL)
    for feed, copy in zip(feeds, copies, strict=True):
        np.testing.assert_array_equal(feed["x"], copy)


def test_samples_without_batch_dimension() -> None:
    with_batch = images(1, 3, 8, 8)
    without = [{"x": feed["x"][0]} for feed in with_batch]
    fixed = model()
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    assert quantize(fixed, without, options=ALL).qparams == quantize(fixed, with_batch, options=ALL).qparams


def test_a_generator_is_read_once() -> None:
    taken: list[int] = []

    def source() -> Iterator[dict[str, Any]]:
        for i in range(5):
            taken.append(i)
            yield {"x": normal(1, 3, 8, 8, seed=i, scale=1)}

    quantize(model(), source(), options=ALL)
    assert taken == [0, 1, 2, 3, 4]


def test_samples_counts() -> None:
    feeds = images(1, 3, 8, 8, samples=12)
    assert calibrate(model(), feeds, options=Options(samples=5)).samples == 5
    assert calibrate(model(), feeds, options=Options(samples=500)).samples == 12

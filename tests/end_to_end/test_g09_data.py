"""Group 9: calibration data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import DataError, Options, calibrate, check, quantize
from tests.cases import g09
from tests.contract import ALL, quantize_checked
from tests.models import build, feeds_for, images, normal

RANGES = ["mse", "minmax", "entropy", "percentile:99.9", "ema", "std"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_in_one_sample(bad: float) -> None:
    feeds = images(1, 3, 8, 8)
    sound = quantize(g09.conv(), [*feeds[:2], *feeds[3:]], options=ALL)
    feeds[2]["x"][0, 1, 3, 3] = bad
    broken = quantize(g09.conv(), feeds, options=ALL)
    assert broken.verification is not None
    told = "\n".join(broken.verification.warnings)
    assert "'x'" in told
    assert "first in sample 2" in told
    assert f"1 of {6 * 3 * 64} values" in told, "counted"
    for name, qp in broken.qparams.items():
        assert np.isfinite(qp.scale).all()
        np.testing.assert_allclose(qp.scale, sound.qparams[name].scale, rtol=0.3)
    outputs = broken.verification.outputs
    assert all(np.isfinite(errors.sqnr) for errors in outputs.values()), "the sample must not spoil the verdict"


@pytest.mark.parametrize("method", RANGES)
def test_nan_in_one_sample_with_every_range(method: str) -> None:
    feeds = images(1, 3, 8, 8)
    feeds[2]["x"][:] = np.nan
    quantized = quantize(g09.conv(), feeds, options=Options(placement="all", range=method))
    for qp in quantized.qparams.values():
        assert np.isfinite(qp.scale).all()
        assert (qp.scale > 0).all()


def test_nan_everywhere_is_not_quantized_silently() -> None:
    feeds = images(1, 3, 8, 8, samples=2)
    for sample in feeds:
        sample["x"][:] = np.nan
    with pytest.raises(DataError, match=r"input 'x', first in sample 0: no sample can be used"):
        quantize(g09.conv(), feeds, options=ALL)


@pytest.mark.parametrize("filled", ["zero", "missing"])
def test_nan_for_what_is_missing(filled: str) -> None:
    """A NaN inside that reaches no output does not keep a result from being compared; one in an output does."""
    model = build(
        f"""(float[N, 64] x, bool[N, 1] there) => (float[N, 8] y)
        {{
            h = MatMul (x, w)
            size = Shape (h)
            missing = ConstantOfShape <value = float[1] {{nan}}> (size)
            some = Where (there, h, missing)
            y = Where (there, some, {filled})
        }}""",
        w=normal(64, 8),
        zero=np.zeros(8, np.float32),
    )
    rng = np.random.default_rng(0)
    there = np.arange(16)[:, np.newaxis] % 4 > 0
    feeds = [{"x": rng.standard_normal((16, 64), np.float32), "there": there} for _ in range(12)]
    check = quantize(model, feeds, options=ALL).verification
    assert check is not None
    told = "the float model makes a NaN of every sample: the result was not compared with the float model"
    assert (told in check.warnings) == (filled == "missing")
    if filled == "zero":
        assert check.samples > 0
        assert check.outputs["y"].sqnr > 30


EMPTY = {
    "list": [],
    "iterator": iter(()),
    "function": lambda: iter(()),
    "array": np.zeros((0, 3, 8, 8), np.float32),
    "dict": {"x": np.zeros((0, 3, 8, 8), np.float32)},
}


@pytest.mark.parametrize("data", EMPTY.values(), ids=EMPTY.keys())
def test_empty_reader(data: object) -> None:
    with pytest.raises(DataError, match="no samples"):
        quantize(g09.conv(), data, options=ALL)


@pytest.mark.parametrize("kind", ["npy", "npz", "folder"])
def test_empty_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"data.{kind}"
    if kind == "npy":
        np.save(path, np.zeros((0, 3, 8, 8), np.float32))
    elif kind == "npz":
        np.savez(path, x=np.zeros((0, 3, 8, 8), np.float32))
    else:
        path.mkdir()
    with pytest.raises(DataError, match="no samples"):
        quantize(g09.conv(), path, options=ALL)


def test_float64_data(caplog: pytest.LogCaptureFixture) -> None:
    feeds = images(1, 3, 8, 8)
    wide = [{"x": sample["x"].astype(np.float64)} for sample in feeds]
    expected = quantize(g09.conv(), feeds, options=ALL)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        got = quantize(g09.conv(), wide, options=ALL)
    told = [record.message for record in caplog.records if "float64" in record.message]
    assert told == ["input 'x': the data is float64, cast to float32"], "once, not for every sample"
    assert got.qparams == expected.qparams


def test_one_sample() -> None:
    result = quantize_checked(*g09.one_sample())
    assert "1 sample" in result.notes


def test_identical_samples() -> None:
    model, feeds = g09.identical_samples()
    result = quantize_checked(model, feeds)
    once = quantize(model, feeds[:1], options=ALL)
    assert result.quantized.qparams == once.qparams
    assert "all samples are identical" in "\n".join(finding.what for finding in check(model, data=feeds))


def test_constant_samples() -> None:
    feeds = [{"x": np.full((1, 3, 8, 8), 0.5, np.float32)} for _ in range(4)]
    quantize_checked(g09.conv(), feeds)


def test_hwc_for_chw() -> None:
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 3, 3, 3))
    with pytest.raises(DataError, match=r"sample 0, input 'x'.*1x8x8x3.*1x3x8x8.*CHW"):
        quantize(model, images(1, 8, 8, 3), options=ALL)
    with pytest.raises(DataError, match=r"sample 0, input 'x'.*CHW"):
        quantize(model, images(8, 8, 3), options=ALL)


def test_chw_for_hwc() -> None:
    model = build(
        """(float[1, 8, 8, 3] x) => (float[1, 4, 6, 6] y) {
            t = Transpose <perm = [0, 3, 1, 2]> (x)
            y = Conv (t, w)
        }""",
        w=normal(4, 3, 3, 3),
    )
    with pytest.raises(DataError, match=r"sample 0, input 'x'.*HWC"):
        quantize(model, images(1, 3, 8, 8), options=ALL)


def test_0_to_255_for_a_0_to_1_model() -> None:
    right, wrong = (check(g09.normalized_conv(), data=g09.pictures(0, high)) for high in (1, 255))
    told = "\n".join(finding.what for finding in wrong if finding.level == "warning")
    assert "does not look like the training data" in told
    assert "training data" not in "\n".join(finding.what for finding in right)


def test_0_to_1_for_a_0_to_255_model() -> None:
    model = g09.normalized_conv()
    for tensor, value in zip(model.graph.initializer[3:5], (127.0, 4096.0), strict=True):
        tensor.raw_data = np.full(3, value, np.float32).tobytes()
    told = "\n".join(finding.what for finding in check(model, data=g09.pictures(0, 1)) if finding.level == "warning")
    assert "does not look like the training data" in told


@pytest.mark.parametrize("method", [method for method in RANGES if method != "ema"])
def test_first_batch_wide_then_narrow(method: str) -> None:
    model, feeds = g09.first_batch_wide_then_narrow()
    options = Options(placement="all", range=method)
    forth, back = (quantize(model, data, options=options) for data in (feeds, feeds[::-1]))
    for site in forth.plan.sites:
        if site.role == "activation":
            assert forth.qparams[site.name] == back.qparams[site.name], site.name


def test_batches_give_what_single_samples_give() -> None:
    singles = images(1, 3, 8, 8)
    batches = [{"x": np.concatenate([a["x"], b["x"]])} for a, b in zip(singles[::2], singles[1::2], strict=True)]
    options = Options(placement="all", bias_correction=False)
    assert (
        quantize(g09.conv(), singles, options=options).qparams == quantize(g09.conv(), batches, options=options).qparams
    )


def test_data_that_breaks_off_names_the_sample(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, NDArray[np.float32]]]:
        yield from images(1, 3, 8, 8, samples=3)
        raise RuntimeError("the disk is gone")

    target = tmp_path / "out.onnx"
    with pytest.raises(DataError, match=r"sample 3.*the disk is gone"):
        quantize(g09.conv(), broken, output=target, options=ALL)
    assert not list(tmp_path.iterdir())


def test_wrong_name_and_missing_input() -> None:
    model = build(
        "(float[N, 4] x, float[N, 4] z) => (float[N, 4] y) { a = Add (x, z)  y = MatMul (a, w) }", w=normal(4, 4)
    )
    feeds = feeds_for(model, N=2)
    with pytest.raises(DataError, match=r"sample 0.*'z'.*'x', 'z'"):
        quantize(model, [{"x": sample["x"], "zz": sample["z"]} for sample in feeds], options=ALL)
    with pytest.raises(DataError, match=r"sample 0.*'z'"):
        quantize(model, [{"x": sample["x"]} for sample in feeds], options=ALL)


def test_data_is_not_changed() -> None:
    feeds = images(1, 3, 8, 8)
    copies = [{name: array.copy() for name, array in sample.items()} for sample in feeds]
    quantize_checked(g09.conv(), feeds)
    for sample, copy in zip(feeds, copies, strict=True):
        np.testing.assert_array_equal(sample["x"], copy["x"])


def test_data_in_odd_memory_layouts() -> None:
    feeds = images(1, 3, 8, 8)
    odd = [{"x": np.asfortranarray(sample["x"])[:, ::-1, :, ::-1][:, ::-1, :, ::-1]} for sample in feeds]
    big_endian = [{"x": sample["x"].astype(">f4")} for sample in feeds]
    expected = quantize(g09.conv(), feeds, options=ALL)
    for data in (odd, big_endian):
        assert quantize(g09.conv(), data, options=ALL).qparams == expected.qparams


def test_statistics_of_the_same_data_are_the_same() -> None:
    feeds = images(1, 3, 8, 8)
    statistics = calibrate(g09.conv(), feeds)
    saved = quantize(g09.conv(), statistics=statistics, options=ALL)
    direct = quantize(g09.conv(), feeds, options=ALL)
    assert saved.qparams == direct.qparams

"""Pictures: resize, crop, scale, normalize and layout, against numbers written out here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.calibration.data import open_data
from onnxq.errors import DataError, OptionError
from onnxq.options import ImageOptions
from onnxq.ort.inputs import InputInfo

Image = pytest.importorskip("PIL.Image")


def info(*shape: int | str | None, dtype: Any = np.float32) -> InputInfo:
    return InputInfo("x", np.dtype(dtype), shape)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pictures of 4 by 6 in plain colours, one in a subfolder."""
    (tmp_path / "sub").mkdir()
    for name, colour in (("b.png", (255, 128, 0)), ("sub/a.PNG", (10, 20, 30))):
        Image.new("RGB", (6, 4), colour).save(tmp_path / name)
    return tmp_path


def first(folder: Path, wanted: InputInfo, **options: Any) -> np.ndarray:
    data = list(open_data(folder, [wanted], image=ImageOptions(**options)))
    assert len(data) == 2
    return data[0]["x"]


def test_defaults_follow_the_models_input(folder: Path) -> None:
    x = first(folder, info("N", 3, 8, 10))
    assert (x.shape, x.dtype) == ((1, 3, 8, 10), np.dtype(np.float32))
    np.testing.assert_allclose(x[0, :, 3, 3], [1, 128 / 255, 0], atol=1e-6)
    assert x.flags.c_contiguous


def test_a_size_that_is_free_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, and not where the size is given by the model or the user."""
    assert first(folder, info("N", 3, "h", "w")).shape == (1, 3, 4, 6)
    (said,) = caplog.messages
    assert said.startswith("input 'x' leaves height or width free") and "4x6 is that of the first" in said
    assert "--image-resize" in said
    caplog.clear()
    first(folder, info("N", 3, 8, 10))
    first(folder, info("N", 3, "h", "w"), resize="8x10")
    first(folder, info("N", 3, "h", "w"), crop="2x2")
    assert not caplog.messages


def test_channels_last_is_seen_in_the_shape(folder: Path) -> None:
    x = first(folder, info(1, 8, 10, 3))
    assert x.shape == (1, 8, 10, 3)
    np.testing.assert_allclose(x[0, 3, 3], [1, 128 / 255, 0], atol=1e-6)


def test_mean_std_scale_and_channel_order(folder: Path) -> None:
    options = {"channels": "bgr", "scale": 1.0, "mean": (1.0, 2.0, 3.0), "std": (2.0, 4.0, 8.0)}
    x = first(folder, info("N", 3, 4, 6), **options)
    np.testing.assert_allclose(x[0, :, 0, 0], [(0 - 1) / 2, (128 - 2) / 4, (255 - 3) / 8])


def test_gray_for_one_channel(folder: Path) -> None:
    x = first(folder, info("N", 1, 4, 6))
    assert x.shape == (1, 1, 4, 6)
    luma = 0.299 * 255 + 0.587 * 128  # ITU-R 601-2, which Pillow documents for convert("L")
    np.testing.assert_allclose(x[0, 0, 0, 0] * 255, luma, atol=1)


@pytest.mark.parametrize(
    ("shape", "options", "told"),
    [
        ((1, 8, 10, 4), {}, "rgb pictures have 3 channels, and the input takes 8x10x4. Write the feeds as .npz files"),
        ((1, 8, 10, 4), {"layout": "nhwc"}, "and the input takes 8x10x4. Write the feeds as .npz files"),
        ((1, 8, 10, 3), {"layout": "nchw"}, "and the input takes 8x10x3. Set the picture layout"),
        (
            ("N", 3, "h", None),
            {"channels": "gray"},
            "gray pictures have 1 channel, and the input takes 3xhx?. Read them as rgb",
        ),
        (
            (1, 1, 8, 10),
            {"channels": "bgr"},
            "bgr pictures have 3 channels, and the input takes 1x8x10. Read them as gray",
        ),
    ],
)
def test_pictures_that_an_input_does_not_take(
    shape: tuple[int | str | None, ...], options: dict[str, str], told: str, folder: Path
) -> None:
    with pytest.raises(DataError) as caught:
        first(folder, info(*shape), **options)
    assert told in str(caught.value)


def test_bytes_for_an_integer_input(folder: Path) -> None:
    x = first(folder, info("N", 3, 4, 6, dtype=np.uint8))
    assert x.dtype == np.uint8
    assert x[0, :, 0, 0].tolist() == [255, 128, 0]


def test_the_shorter_side_then_the_crop(tmp_path: Path) -> None:
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, 30:50] = 255  # a white bar in the middle
    Image.fromarray(picture).save(tmp_path / "p.png")
    data = list(open_data(tmp_path, [info("N", 3, None, None)], image=ImageOptions(resize="20", crop="10")))
    x = data[0]["x"]
    assert x.shape == (1, 3, 10, 10)
    assert x.min() > 0.8  # 80 wide becomes 40, the bar 15 to 25, the crop 15 to 25
    whole = list(open_data(tmp_path, [info("N", 3, None, None)], image=ImageOptions(resize="20")))
    assert whole[0]["x"].shape == (1, 3, 20, 40)
    exact = list(open_data(tmp_path, [info("N", 3, None, None)], image=ImageOptions(resize="16x24")))
    assert exact[0]["x"].shape == (1, 3, 16, 24)
    fixed = list(open_data(tmp_path, [info("N", 3, 12, 14)], image=ImageOptions(resize="20")))
    assert fixed[0]["x"].shape == (1, 3, 12, 14)


def test_free_sizes_keep_the_pictures_own(folder: Path) -> None:
    assert first(folder, info("N", 3, None, None)).shape == (1, 3, 4, 6)


def test_what_does_not_fit(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="rank 4"):
        open_data(folder, [info("N", 12)])
    with pytest.raises(DataError, match="pictures feeds one input"):
        open_data(folder, [info("N", 3, 4, 6), info("N", 3, 4, 6)])
    with pytest.raises(DataError, match="the input takes 7x"):
        open_data(folder, [info("N", 7, 4, 6)])
    with pytest.raises(OptionError, match="2 numbers for 3 channels"):
        open_data(folder, [info("N", 3, 4, 6)], image=ImageOptions(mean=(1.0, 2.0)))
    with pytest.raises(DataError, match="smaller than the crop"):
        list(open_data(folder, [info("N", 3, None, None)], image=ImageOptions(crop="5")))


def test_a_file_that_is_no_picture_is_named(folder: Path) -> None:
    (folder / "c.jpg").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"c\.jpg.*cannot be read as a picture"):
        list(open_data(folder, [info("N", 3, 4, 6)]))


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
@pytest.mark.parametrize("channels", ["gray", "rgb", "bgr"])
def test_gray_of_16_bits_has_its_whole_range(channels: Any, ending: str, tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 24, dtype=np.uint16).reshape(4, 6)
    Image.fromarray(values).save(tmp_path / f"wide.{ending}")
    count = 1 if channels == "gray" else 3
    (feed,) = open_data(tmp_path, [info("N", count, 4, 6)], image=ImageOptions(channels=channels))
    for channel in feed["x"][0]:
        np.testing.assert_allclose(channel, values / 65535, atol=1e-6)
    (feed,) = open_data(tmp_path, [info("N", 1, 2, 3)])  # resized, still between the ends
    assert 0.0 <= feed["x"].min() < feed["x"].max() <= 1.0


def test_a_picture_whose_range_is_not_known_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 6), 300.0, np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(DataError, match="which of them is white"):
        list(open_data(tmp_path, [info("N", 1, 4, 6)]))


IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}


def test_a_mean_that_no_pixel_reaches_is_said_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first(folder, info("N", 3, 4, 6), **IMAGENET)
    (said,) = caplog.messages
    assert "123.675" in said and "--image-scale 1" in said and "divide both by 255" in said


@pytest.mark.parametrize(
    "options",
    [{**IMAGENET, "scale": 1.0}, {"mean": (0.485, 0.456, 0.406)}, {"mean": (1.0,), "scale": 1 / 127.5}, {"mean": 1.0}],
)
def test_a_mean_within_the_pixels_is_no_news(
    options: dict[str, Any], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first(folder, info("N", 3, 4, 6), **options)
    assert not caplog.messages


@pytest.mark.parametrize("scale", [1.0, 0.5, 1e-4])
def test_fractions_are_refused_not_cut_off(scale: float, tmp_path: Path) -> None:
    """A picture of floats up to 1 may be nearly black or go from black to white: Pillow makes zeros of either."""
    values = np.linspace(0, scale, 16, dtype=np.float32).reshape(4, 4)
    Image.fromarray(values).save(tmp_path / "a.tiff")
    with pytest.raises(DataError, match=r"a\.tiff: its values are 0 to .*, and the file does not tell"):
        list(open_data(tmp_path, [info("N", 1, 4, 4)]))
    Image.fromarray(values * np.float32(200 / scale)).save(tmp_path / "a.tiff")
    (feed,) = open_data(tmp_path, [info("N", 1, 4, 4)])
    np.testing.assert_allclose(feed["x"].reshape(4, 4), values * (200 / scale) / 255, atol=1 / 255)

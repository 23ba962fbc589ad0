"""What would be given in vain is refused by name: keys of other verbs, ways to read data that are not read so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import ImageOptions, OptionError, Options, OutputError
from onnxq.cli import main
from onnxq.searching.sources import images_for
from tests.models import feeds_for
from tests.targets import residual

Captured = pytest.CaptureFixture[str]
FAST = Options(effort="fast")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(residual(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    feeds = feeds_for(residual())
    arrays: dict[str, Any] = {name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]}
    np.savez(tmp_path / "d.npz", **arrays)
    return tmp_path / "d.npz"


@pytest.fixture
def statistics(tmp_path: Path) -> Path:
    onnxq.calibrate(residual(), feeds_for(residual()), output=tmp_path / "s.npz")
    return tmp_path / "s.npz"


def test_one_configuration_file_serves_all_verbs(model: Path, data: Path, capsys: Captured) -> None:
    config, output = model.with_name("c.toml"), model.with_name("q.onnx")
    config.write_text(f"data = '{data}'\noutput = '{output}'\neffort = 'fast'\nplacement = 'all'\n")
    known = str(model.with_name("s.npz"))
    for verb in (["plan"], ["sensitivity"], ["calibrate", "-o", known], ["quantize"]):
        assert main([verb[0], str(model), *verb[1:], "--config", str(config), "-q"]) == 0, verb
    assert output.is_file()
    config.write_text("max-drop = 1\n[image]\nmean = 1")
    assert main(["plan", str(model), "--config", str(config), "-q"]) == 0
    capsys.readouterr()
    for text, said in (
        ("outputs = 'q.onnx'", "unknown key 'outputs'. Did you mean 'output'"),
        ("[image]\nmaen = 1", "unknown key 'image.maen'. Did you mean 'mean'"),
    ):
        config.write_text(text)
        assert main(["plan", str(model), "--config", str(config)]) == 1
        assert said in capsys.readouterr().err


def test_statistics_are_not_written_over_a_model(model: Path, data: Path, capsys: Captured) -> None:
    config, output = model.with_name("c.toml"), model.with_name("q.onnx")
    config.write_text(f"model = '{model}'\ndata = '{data}'\noutput = '{output}'\neffort = 'fast'\n")
    assert main(["quantize", "--config", str(config), "-q"]) == 0
    before = output.read_bytes()
    assert main(["calibrate", "--config", str(config)]) == 1
    assert f"{output}': statistics are an .npz file. Give a file that ends in .npz" in capsys.readouterr().err
    assert output.read_bytes() == before


@pytest.mark.parametrize("kind", ["npz", "npy", "folder", "function", "list"])
def test_pictures_are_read_from_folders_of_them_alone(kind: str, data: Path) -> None:
    feeds = feeds_for(residual())
    (name,) = feeds[0]
    rows = np.stack([feed[name] for feed in feeds])
    np.save(data.with_name("d.npy"), rows)
    folder = data.with_name("folder")
    folder.mkdir()
    np.save(folder / "a.npy", rows[0])
    data.with_name("f.py").write_text("def f():\n    return []\n")
    source: Any = {
        "npz": data,
        "npy": data.with_name("d.npy"),
        "folder": folder,
        "function": f"{data.with_name('f.py')}:f",
        "list": feeds,
    }[kind]
    image = ImageOptions(mean=(0.5,), resize="8")
    message = r"^image resize, image mean: have no effect on this data, which is not a folder of pictures \("
    for call in (onnxq.calibrate, onnxq.quantize):
        with pytest.raises(OptionError, match=message):
            call(residual(), source, image=image)
    with pytest.raises(OptionError, match=r"^image std: has no effect"):
        onnxq.compare(residual(), residual(), source, image=ImageOptions(std=(2.0,)))
    errors = [f for f in onnxq.check(residual(), data=source, image=image) if f.level == "error"]
    assert [f.where for f in errors] == ["image resize, image mean"]
    if kind != "function":
        onnxq.calibrate(residual(), source, image=ImageOptions())  # nothing was asked for


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": Options(samples=3)}, r"^samples: has no effect on statistics"),
        ({"image": ImageOptions(resize="8")}, r"^image resize: has no effect on statistics"),
    ],
)
def test_statistics_were_made_already(given: dict[str, Any], message: str, statistics: Path, tmp_path: Path) -> None:
    for verb in (onnxq.quantize, onnxq.sensitivity):
        with pytest.raises(OptionError, match=message):
            verb(residual(), statistics=statistics, **given)
    with pytest.raises(OptionError, match=message):
        onnxq.quantize_all(residual(), statistics=statistics, backends=["snpe", "onnxruntime"], **given)
    with pytest.raises(OptionError, match=message):
        onnxq.search(residual(), statistics=statistics, max_drop=1.0, output=tmp_path / "q.onnx", **given)
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


def test_a_flag_for_statistics_puts_the_files_data_out_of_use(model: Path, data: Path, statistics: Path) -> None:
    """With all that says how they are read: one file serves calibrating and quantizing."""
    config = model.with_name("c.toml")
    config.write_text(f"data = '{data}'\nsamples = 3\neffort = 'fast'\n[image]\nresize = 8\n")
    command = ["quantize", str(model), "--config", str(config), "-o", str(model.with_name("q.onnx")), "-q"]
    assert main([*command, "--statistics", str(statistics)]) == 0
    assert main([*command, "--statistics", str(statistics), "--samples", "3"]) == 2
    config.write_text(f"statistics = '{statistics}'\nsamples = 3\n")
    assert main(command) == 1, "the file contradicts itself"


def test_a_search_heeds_the_number_of_samples_once(tmp_path: Path) -> None:
    feeds, options = feeds_for(residual()), Options(samples=3, effort="fast")
    found = onnxq.search(residual(), feeds, max_drop=1.0, output=tmp_path / "q.onnx", options=options)
    assert found.met
    assert not [attempt.failed for attempt in found.attempts if attempt.failed]


def test_pictures_of_one_of_two_data_are_enough(data: Path) -> None:
    folder, image = data.with_name("pictures"), ImageOptions(resize="8")
    folder.mkdir()
    (folder / "a.png").touch()
    assert images_for(folder, data, image) == (image, None)
    assert images_for(data, folder, image) == (None, image)
    assert images_for(folder, folder, image) == (image, image)
    assert images_for(data, data, image) == (image, None), "it is refused where the data is read"
    assert images_for(None, folder, image) == (None, image)
    assert images_for(data, None, image) == (image, None)


@pytest.mark.parametrize("verb", [onnxq.quantize, onnxq.calibrate])
def test_an_empty_output_is_not_the_current_folder(verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match=r"^output: the name is empty"):
        verb(residual(), feeds_for(residual()), output="")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["quantize", "calibrate", "deploy", "demo"])
def test_an_empty_output_is_wrong_usage(
    verb: str, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(model.parent)
    given = {"demo": [], "deploy": [str(model)]}.get(verb, [str(model), "--data", str(data)])
    assert main([verb, *given, "-o", ""]) == 2
    assert "-o is empty" in capsys.readouterr().err
    assert {path.name for path in model.parent.iterdir()} == {"m.onnx", "d.npz"}

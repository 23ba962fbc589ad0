"""Where results go: what cannot be written is found before the work."""

from __future__ import annotations

import errno
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import dynamic
from onnxq.catalog import backends
from onnxq.cli import main
from onnxq.errors import OptionError, OutputError
from onnxq.locations import find_artifact, require_folder, require_output
from tests.models import feeds_for, untouched
from tests.targets import BY_RUNTIMES, residual

SIDECARS = [
    (target.name, name, form.beside)
    for target in backends()
    for name, form in target.formats.items()
    if form.beside and (target.name, name) not in BY_RUNTIMES
]
"""Targets that write files beside the model: their formats, and the files' endings."""


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.EACCES, "Write to another folder"), (errno.ENOSPC, "Free some space, or write to another folder")],
)
def test_a_folder_that_takes_no_files_is_refused_before_any_work(
    number: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refused)
    monkeypatch.setattr(import_module("onnxq.quantize"), "observe", lambda *_: pytest.fail("it calibrated"))
    with pytest.raises(OutputError, match=r"q\.onnx': cannot be written, its folder takes no files: no") as raised:
        onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path / "q.onnx")
    assert raised.value.hint == hint


@pytest.mark.parametrize("output", ["q.onnx", "new", "there", "q.d", "new/one/more", "new/one/q.onnx"])
def test_nothing_is_left_of_the_trial(output: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    require_folder(tmp_path / output)
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


@pytest.mark.parametrize("output", ["out", "new/out", "new/out_v0.1"])
def test_folders_for_several_targets_are_made(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = residual()
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in feeds_for(model)]))
    onnxq.quantize(model, feeds_for(model), backend="tvm", output=tmp_path / "given.onnx")
    both = ["--backend", "rknn", "--backend", "tvm", "-o"]
    for folder, command in (
        (
            tmp_path / output,
            ["quantize", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "d.npz")],
        ),
        (tmp_path / "deployed" / output, ["deploy", str(tmp_path / "given.onnx")]),
    ):
        for _ in range(2):  # and into one that is there
            assert main([*command, *both, str(folder)]) == 0, capsys.readouterr().err
        assert sorted(path.name.rsplit("_", 1)[1] for path in folder.iterdir()) == ["rknn.onnx", "tvm.onnx"]


def test_a_file_beside_the_float_model_does_not_replace_it(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    onnx.save(residual(), source)
    before = source.read_bytes()
    with pytest.raises(OutputError, match=r"net\.onnx': this file is the model that is read") as raised:
        onnxq.quantize(source, feeds_for(residual()), backend="litert", output=tmp_path / "net.tflite")
    assert raised.value.hint == "Give another name"
    assert source.read_bytes() == before and [*tmp_path.iterdir()] == [source]


def test_a_folder_named_like_a_file_beside_a_model_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "net.tflite"
    folder.mkdir()
    made = onnxq.quantize(residual(), feeds_for(residual()), backend="litert", output=folder)
    assert find_artifact(folder, "litert", beside=[".tflite"]) == made.files[0] == folder / "model_litert.onnx"


def test_the_folder_of_one_result_is_made_with_what_it_lies_in(tmp_path: Path) -> None:
    made = onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path / "new" / "out")
    assert made.files == (tmp_path / "new" / "out" / "model_onnxruntime.onnx",) and made.files[0].is_file()


@pytest.mark.parametrize("backends", [["onnxruntime"], ["onnxruntime", "qnn"]])
def test_folders_made_for_a_result_that_cannot_be_written_go_again(
    backends: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "there").mkdir()
    monkeypatch.setattr("onnxq.graph.files.save.os.replace", full)
    with pytest.raises(OutputError, match="No space left"):
        onnxq.quantize_all(
            residual(), feeds_for(residual()), backends=backends, output=tmp_path / "there" / "new" / "out"
        )
    with pytest.raises(OutputError, match="No space left"):
        onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path / "there" / "new" / "q.onnx")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "v0.1").touch()
    with pytest.raises(OutputError, match=r"file': a file of that name exists.*or a file NAME\.onnx"):
        require_folder(tmp_path / "file" / "out")
    with pytest.raises(OutputError, match=r"file': a file of that name exists, so no folder can be made"):
        require_folder(tmp_path / "file" / "new" / "q.onnx")
    for name in ("v0.1", "q.onnx"):
        with pytest.raises(OptionError, match="is not a folder"):
            onnxq.quantize_all(residual(), feeds_for(residual()), backends=["snpe", "tvm"], output=tmp_path / name)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("there", r"there': this is a folder\. Give the path of the \.npz file"),
        ("new/", r"new/?': this is a folder"),
        ("file/s.npz", r"file': a file of that name exists, so no folder can be made"),
        ("file/new/s.npz", r"file': a file of that name exists, so no folder can be made"),
    ],
)
def test_statistics_that_cannot_be_written_are_refused_before_any_work(
    output: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=said):
        onnxq.calibrate(residual(), untouched(), output=output)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there"]


def test_the_folder_of_a_file_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = str(tmp_path / "net.onnx"), ["--data", str(tmp_path / "d.npz")]
    onnx.save(residual(), model)
    np.savez(data[1], x=np.stack([feed["x"] for feed in feeds_for(residual())]))
    quantized = str(tmp_path / "a" / "new" / "q.onnx")
    for place, command in (
        ("a/new/q.onnx", ["quantize", model, *data, "--placement", "all"]),
        ("b/new/s.npz", ["calibrate", model, *data]),
        ("c/new/q.onnx", ["deploy", quantized, "--backend", "tvm"]),
        ("d/new/q.onnx", ["quantize", model, *data, "--max-drop", "0.5"]),
        ("e/new/q.onnx", ["quantize", model, *data, "--algorithm", "weight_only"]),
        ("f/new/q.onnx", ["finetune", quantized, "--float", model, *data, "--steps", "1"]),
    ):
        assert main([*command, "-o", str(tmp_path / place), "-q"]) == 0, (place, capsys.readouterr().err)
        assert (tmp_path / place).is_file()


def test_statistics_are_not_written_over_a_sample_of_the_folder_they_are_made_of(tmp_path: Path) -> None:
    for index, feed in enumerate(feeds_for(residual())):
        np.savez(tmp_path / f"{index}.npz", **feed)  # type: ignore[arg-type]
    before = (tmp_path / "0.npz").read_bytes()
    with pytest.raises(OutputError, match="among the data that are read"):
        onnxq.calibrate(residual(), tmp_path, output=tmp_path / "0.npz")
    assert (tmp_path / "0.npz").read_bytes() == before
    (tmp_path / "made").mkdir()
    onnxq.calibrate(residual(), tmp_path, output=tmp_path / "made" / "0.npz")


def test_a_result_is_not_written_over_what_it_is_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = residual(), feeds_for(residual())
    path, array, known = tmp_path / "m.onnx", tmp_path / "d.npz", tmp_path / "s.npz"
    onnx.save(model, path, save_as_external_data=True, location="w.onnx", size_threshold=0)
    (name,) = data[0]
    np.savez(array, **{name: np.concatenate([feed[name] for feed in data])})  # type: ignore[arg-type]
    statistics = onnxq.calibrate(path, array, output=known)
    every = onnxq.Options(placement="all")
    quantized = onnxq.quantize(path, statistics=statistics, output=tmp_path / "q.onnx", options=every)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    monkeypatch.setattr(import_module("onnxq.quantize"), "observe", lambda *_: pytest.fail("it calibrated"))
    weights = tmp_path / "w.onnx"
    with pytest.raises(OutputError, match="is read"):
        onnxq.quantize(path, array, output=weights)
    for target in (path, weights):
        with pytest.raises(OutputError, match="is read"):
            onnxq.search(path, array, max_drop=1, output=target)
        with pytest.raises(OutputError, match="is read"):
            onnxq.finetune(tmp_path / "q.onnx", array, teacher=path, steps=1, output=target)
    with pytest.raises(OutputError, match="the file of the result and that of the state"):
        new = tmp_path / "new.onnx"
        onnxq.finetune(tmp_path / "q.onnx", array, teacher=path, steps=1, output=new, resume=new)
    for target in (path, weights, array):
        with pytest.raises(OutputError, match=r"(is|are) read"):
            dynamic.rewrite(path, array, output=target)
    with pytest.raises(OutputError, match="are read"):
        onnxq.calibrate(path, array, output=array)
    with pytest.raises(OutputError, match="belongs to the model that is read"):
        quantized.save(weights)
    with pytest.raises(OutputError, match=r"its name ends in '\.npz'"):
        onnxq.quantize(path, statistics=known, output=known)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before
    assert quantized.save(tmp_path / "q.onnx") == [tmp_path / "q.onnx"]  # an earlier result is replaced


def test_the_command_line_spares_the_data_file_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(residual(), "m.onnx", save_as_external_data=True, location="w.onnx", size_threshold=0)
    (feeds,) = feeds_for(residual())[:1]
    np.savez("d.npz", **feeds)  # type: ignore[arg-type]
    before = Path("w.onnx").read_bytes()
    assert main(["quantize", "m.onnx", "--data", "d.npz", "-o", "w.onnx", "-q"]) == 1
    assert "belongs to the model that is read" in capsys.readouterr().err
    assert Path("w.onnx").read_bytes() == before


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        *(("ncnn", "m.param"), ("snpe", "m.table"), ("tensorrt", "m.cache")),
        *(("tensorrt", "m.engine"), ("onnxruntime", "m.pb"), ("onnxruntime", "m.v2")),
    ],
)
def test_a_model_is_written_under_no_other_ending(
    backend: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of the files that are written would have that name."""
    model, feeds, place = tmp_path / "net.onnx", feeds_for(residual()), tmp_path / name
    onnx.save(residual(), model)
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in feeds]))
    given = onnxq.quantize(model, feeds, options=onnxq.Options(placement="all"), output=tmp_path / "q.onnx")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(import_module("onnxq.quantize"), "observe", lambda *_: pytest.fail("it calibrated"))
    monkeypatch.setattr(import_module("onnxq.deploy"), "in_form", lambda *_: pytest.fail("it worked"))
    ending = f"a model is written, and its name ends in '{place.suffix}'"
    for run in (
        lambda: onnxq.quantize(model, feeds, backend=backend, output=place),
        lambda: onnxq.deploy(given.files[0], backend=backend, output=place),
        lambda: onnxq.search(model, feeds, max_drop=1, backend=backend, output=place),
        lambda: onnxq.finetune(given.files[0], feeds, teacher=model, backend=backend, output=place),
    ):
        with pytest.raises(OutputError, match=ending) as raised:
            run()
        assert raised.value.hint == "Give NAME.onnx or a folder"
    with pytest.raises(OutputError, match=ending):
        given.save(place)
    data = ["--data", str(tmp_path / "d.npz"), "-o", str(place)]
    for command in (
        ["quantize", str(model), "--backend", backend, *data],
        ["quantize", str(model), "--algorithm", "dynamic", *data],
        ["deploy", str(tmp_path / "q.onnx"), "--backend", backend, "-o", str(place)],
        ["demo", "--backend", backend, "-o", str(place)],
    ):
        assert main(command) == 1, command
        assert "Give NAME.onnx or a folder" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_names_of_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "v1.2").mkdir()
    for name in ("q.onnx", "Q.ONNX", "new", "v1.2", "v1.3/"):
        require_output(f"{tmp_path}/{name}")
    with pytest.raises(OutputError, match=r"ends in '\.3'"):
        require_output(tmp_path / "v1.3")
    require_output(tmp_path / "v1.3", several=True)


@pytest.mark.parametrize(("backend", "form", "beside"), SIDECARS)
def test_every_file_is_written_once(backend: str, form: str, beside: tuple[str, ...], tmp_path: Path) -> None:
    """The model and what the format says lies beside it, also where the name is in capitals; next steps name these."""
    options = onnxq.Options(format=form)
    made = onnxq.quantize(
        residual(), feeds_for(residual()), backend=backend, options=options, output=tmp_path / "Q.ONNX"
    )
    assert [file.name for file in made.files] == ["Q.ONNX", *(f"Q{ending}" for ending in beside)]
    assert sorted(tmp_path.iterdir()) == sorted(made.files)
    onnx.checker.check_model(onnx.load(made.files[0]))
    for step in made.next_steps:
        assert str(made.files[0].with_suffix(".onnx")) not in step
    if made.next_steps:
        said = " ".join(made.next_steps)
        assert all(str(file) in said for file in made.files), said


@pytest.mark.parametrize(("backend", "ending"), [("ncnn", ".table"), ("nnie", "_gfpq_param_dict.json")])
def test_a_sidecar_is_not_written_over_what_is_read(
    backend: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither over the model, nor over the file that its weights lie in."""
    feeds, named, split = feeds_for(residual()), tmp_path / f"a{ending}", tmp_path / "m.onnx"
    onnx.save(residual(), named)
    onnx.save(residual(), split, save_as_external_data=True, location=f"b{ending}", size_threshold=0)
    full = onnxq.Options(placement="all")
    qdq = onnxq.quantize(residual(), feeds, options=full)
    qdq.save(tmp_path / "q.onnx")
    (tmp_path / "q.onnx").rename(tmp_path / f"c{ending}")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in feeds]))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(import_module("onnxq.quantize"), "observe", lambda *_: pytest.fail("it calibrated"))
    for model, place in ((named, "a.onnx"), (split, "b.onnx")):
        with pytest.raises(OutputError, match=f"{ending}'.* is read"):
            onnxq.quantize(model, feeds, backend=backend, output=tmp_path / place)
        with pytest.raises(OutputError, match=f"{ending}'.* is read"):
            onnxq.search(model, feeds, backend=backend, max_drop=1, output=tmp_path / place)
    with pytest.raises(OutputError, match=f"{ending}'.* is read"):
        onnxq.deploy(tmp_path / f"c{ending}", backend=backend, output=tmp_path / "c.onnx")
    command = ["deploy", str(tmp_path / f"c{ending}"), "--backend", backend, "-o", str(tmp_path / "c.onnx")]
    assert main(command) == 1 and "is read" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("backend", "name"),
    [("litert", "net.tflite"), ("litert", "net.TFLITE"), ("snpe", "net.encodings"), ("stpu", "net_minmax.json")],
)
def test_a_result_goes_by_the_name_of_any_of_its_files(backend: str, name: str, tmp_path: Path) -> None:
    made = onnxq.quantize(residual(), feeds_for(residual()), backend=backend, output=tmp_path / name)
    assert {file.name for file in made.files} == {"net.onnx", name.replace("TFLITE", "tflite")}
    found = onnxq.verify(tmp_path / name, feeds_for(residual()), backend=backend, simulation=True)
    assert found.ok
    assert onnxq.compare(residual(), tmp_path / name, feeds_for(residual()), backend=backend)

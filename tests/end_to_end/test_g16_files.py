"""Group 16: files, external data, and a file system that does not play along."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from onnxq import ModelError, Options, OutputError, calibrate, quantize
from tests.cases import g16
from tests.contract import ALL, assert_contract, infer, quantize_checked
from tests.running import open_session

FEEDS = g16.FEEDS


def external(folder: Path, location: str = "weights.bin") -> Path:
    """The model in two files."""
    proto = g16.model()
    convert_model_to_external_data(proto, all_tensors_to_one_file=True, location=location, size_threshold=1024)
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Every write beyond so many bytes of a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_output_equals_input(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(g16.model(), path)
    quantized = quantize(path, FEEDS, options=ALL, output=path)
    assert listing(tmp_path) == ["m.onnx"]
    assert_contract(g16.model(), onnx.load(path), quantized, FEEDS)


def test_output_equals_input_with_external_data(tmp_path: Path) -> None:
    """The data file that is still being read must not be cut off."""
    path = external(tmp_path)
    quantized = quantize(path, FEEDS, options=ALL, output=path)
    assert_contract(g16.model(), onnx.load(path), quantized, FEEDS)


def test_output_is_the_data_file_of_the_input(tmp_path: Path) -> None:
    """It may be the only one there is, and the model would be lost without it."""
    path = external(tmp_path, "weights.onnx")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(OutputError, match=r"weights\.onnx.*belongs to the model that is read"):
        quantize(path, FEEDS, options=ALL, output=tmp_path / "weights.onnx")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_external_data_in(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = external(tmp_path / "in")
    result = quantize_checked(path, FEEDS, output=tmp_path / "out" / "q.onnx")
    assert listing(tmp_path / "in") == ["m.onnx", "weights.bin"]
    for name in listing(tmp_path / "in"):  # the result must stand alone
        (tmp_path / "in" / name).unlink()
    moved = tmp_path / "moved"
    (tmp_path / "out").rename(moved)
    session = open_session(moved / "q.onnx")
    got = session.run(None, {"x": FEEDS[0]["x"]})[0]
    np.testing.assert_array_equal(got, infer(result.proto, FEEDS[:1], optimize=True)["y"][0])


def test_external_and_internal_weights_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    onnx.save(g16.model(), tmp_path / "one.onnx")
    quantize(tmp_path / "one.onnx", FEEDS, options=ALL, output=tmp_path / "q1.onnx")
    quantize(external(tmp_path / "a"), FEEDS, options=ALL, output=tmp_path / "q2.onnx")
    assert (tmp_path / "q1.onnx").read_bytes() == (tmp_path / "q2.onnx").read_bytes()


def test_excluded_layers_of_an_external_model_are_written_too(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = external(tmp_path / "in")
    quantize_checked(path, FEEDS, Options(placement="all", exclude=("c2",)), output=tmp_path / "q.onnx")
    (tmp_path / "in" / "weights.bin").unlink()
    open_session(tmp_path / "q.onnx")


def test_modelproto_input_not_mutated() -> None:
    proto = g16.model()
    before = proto.SerializeToString(deterministic=True)
    quantize(proto, FEEDS, options=ALL)
    assert proto.SerializeToString(deterministic=True) == before


def test_ir_model_input_not_mutated() -> None:
    given = ir.from_proto(g16.model())
    before = ir.to_proto(given).SerializeToString(deterministic=True)
    tensors = {name: value.const_value for name, value in given.graph.initializers.items()}
    quantize(given, FEEDS, options=ALL)
    assert ir.to_proto(given).SerializeToString(deterministic=True) == before
    assert {name: value.const_value for name, value in given.graph.initializers.items()} == tensors


def test_all_three_ways_in_give_the_same_bytes(tmp_path: Path) -> None:
    onnx.save(g16.model(), tmp_path / "m.onnx")
    files = []
    sources: list[Any] = [g16.model(), ir.from_proto(g16.model()), tmp_path / "m.onnx", str(tmp_path / "m.onnx")]
    for i, source in enumerate(sources):
        quantize(source, FEEDS, options=ALL, output=tmp_path / f"q{i}.onnx")
        files.append((tmp_path / f"q{i}.onnx").read_bytes())
    assert len(set(files)) == 1


def test_external_entry_without_offset_and_length(tmp_path: Path) -> None:
    """The whole file is meant where it has the right size."""
    proto = onnx.load(external(tmp_path), load_external_data=False)
    tensor = next(t for t in proto.graph.initializer if t.name == "w")
    data = next(t for t in g16.model().graph.initializer if t.name == "w").raw_data
    (tmp_path / "w.bin").write_bytes(data)
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value="w.bin")
    onnx.save(proto, tmp_path / "m.onnx")
    quantized = quantize(tmp_path / "m.onnx", FEEDS, options=ALL)
    assert quantized.qparams == quantize(g16.model(), FEEDS, options=ALL).qparams


@pytest.mark.parametrize("keep", [0, 100, 40_000])
def test_external_data_too_short(tmp_path: Path, keep: int) -> None:
    path = external(tmp_path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:keep])
    with pytest.raises(ModelError, match=rf"tensor '[wv]'.*needs \d+ bytes at offset \d+ of .*which has {keep} bytes"):
        quantize(path, FEEDS, options=ALL)


def test_external_data_missing(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"'weights\.bin' is missing"):
        quantize(path, FEEDS, options=ALL)


def test_external_data_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = external(tmp_path / "in")
    proto = onnx.load(path, load_external_data=False)
    (tmp_path / "in" / "weights.bin").rename(tmp_path / "weights.bin")
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../weights.bin" if entry.key == "location" else entry.value
    onnx.save(proto, path)
    with pytest.raises(ModelError, match="outside the model's folder"):
        quantize(path, FEEDS, options=ALL)


def test_symlinked_model_and_data(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "work").mkdir()
    real = external(tmp_path / "store")
    contents = {path: path.read_bytes() for path in (tmp_path / "store").iterdir()}
    link = tmp_path / "work" / "m.onnx"
    link.symlink_to(real)
    quantize_checked(real, FEEDS, output=tmp_path / "work" / "a.onnx")
    quantize(link, FEEDS, options=ALL, output=tmp_path / "work" / "b.onnx")
    (tmp_path / "work" / "weights.bin").symlink_to(tmp_path / "store" / "weights.bin")
    quantize(link, FEEDS, options=ALL, output=tmp_path / "work" / "c.onnx")
    files = {name: (tmp_path / "work" / name).read_bytes() for name in ("a.onnx", "b.onnx", "c.onnx")}
    assert len(set(files.values())) == 1
    assert link.is_symlink()
    assert {path: path.read_bytes() for path in contents} == contents


def test_output_that_is_a_link(tmp_path: Path) -> None:
    """What it points to is written; the link stays."""
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "q.onnx", tmp_path / "q.onnx"
    target.write_bytes(b"old")
    link.symlink_to(target)
    quantize(g16.model(), FEEDS, options=ALL, output=link)
    assert link.is_symlink()
    onnx.checker.check_model(onnx.load(target), full_check=True)


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_disk_full_half_way(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "q.onnx"
    if before is not None:
        path.write_bytes(before)
    with files_of_at_most(10_000), pytest.raises(OutputError, match=r"q\.onnx.*\d+ bytes"):
        quantize(g16.model(), FEEDS, options=ALL, output=path)
    assert listing(tmp_path) == ([] if before is None else ["q.onnx"]), "no part of a file may stay"
    assert before is None or path.read_bytes() == before


def test_disk_full_while_statistics_are_written(tmp_path: Path) -> None:
    with files_of_at_most(5_000), pytest.raises(OutputError, match=r"s\.npz"):
        calibrate(g16.model(), FEEDS, output=tmp_path / "s.npz")
    assert listing(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_found_before_calibration(tmp_path: Path) -> None:
    read: list[int] = []
    (tmp_path / "file").touch()

    def data() -> Iterator[dict[str, np.ndarray]]:
        read.append(1)
        yield from FEEDS

    with pytest.raises(OutputError, match=r"file': a file of that name exists, so no folder can be made"):
        quantize(g16.model(), data(), options=ALL, output=tmp_path / "file" / "new" / "q.onnx")
    assert not read


def test_output_is_a_folder(tmp_path: Path) -> None:
    """An output that is a folder, or has no ending, holds the result under the model's name and the target's."""
    onnx.save(g16.model(), tmp_path / "net.onnx")
    before = (tmp_path / "net.onnx").read_bytes()
    quantize(tmp_path / "net.onnx", FEEDS, options=ALL, output=tmp_path)
    quantize(g16.model(), FEEDS, options=ALL, output=tmp_path / "new")
    assert listing(tmp_path) == ["net.onnx", "net_onnxruntime.onnx", "new"]
    assert listing(tmp_path / "new") == ["model_onnxruntime.onnx"]
    assert (tmp_path / "net.onnx").read_bytes() == before


def test_odd_file_names(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "名前"
    folder.mkdir(parents=True)
    onnx.save(g16.model(), folder / "my model.v1.ONNX")
    quantize_checked(folder / "my model.v1.ONNX", FEEDS, output=folder / "out put.q.onnx")
    assert listing(folder) == ["my model.v1.ONNX", "out put.q.onnx"]


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    external(tmp_path)
    quantize("m.onnx", FEEDS, options=ALL, output="q.onnx")
    assert listing(tmp_path) == ["m.onnx", "q.onnx", "weights.bin"]


def test_permissions_of_the_result(tmp_path: Path) -> None:
    """As those of any new file, not of a private temporary one."""
    quantize(g16.model(), FEEDS, options=ALL, output=tmp_path / "q.onnx")
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "q.onnx").stat().st_mode & 0o777 == 0o666 & ~mask

"""Places that cannot be written, or read: nothing appears there, and what is there stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from onnxq import DataError, ModelError, Options, OutputError, calibrate, quantize
from tests.end_to_end.test_faults import contents, net
from tests.models import images


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that this process may read and not write; root gives its rights up for as long."""
    place = Path(tempfile.mkdtemp())
    (place / "kept.npz").write_bytes(b"of the user")
    place.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield place
    finally:
        if root:
            os.seteuid(0)
        place.chmod(0o755)
        shutil.rmtree(place)


@pytest.mark.parametrize("name", ["new", "kept"])
def test_folder_that_is_read_only(read_only: Path, name: str) -> None:
    there = contents(read_only)
    for run, file in ((quantize, f"{name}.onnx"), (calibrate, f"{name}.npz")):
        with pytest.raises(OutputError, match=f"{file}': cannot be written"):
            run(net(), images(1, 8, 8, 8, samples=1), output=read_only / file)
    assert contents(read_only) == there


@pytest.mark.parametrize("place", ["/proc/self/q.onnx", "/dev/full/q.onnx", "/dev/null/q.onnx"])
def test_place_that_takes_no_files(place: str) -> None:
    with pytest.raises(OutputError):
        quantize(net(), images(1, 8, 8, 8, samples=1), output=place)
    with pytest.raises(OutputError):
        calibrate(net(), images(1, 8, 8, 8, samples=1), output=place)


def test_file_system_that_is_full(tmp_path: Path) -> None:
    """A real one of 64 KB where the user may mount; what was there stays, and nothing else appears."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (place / "q.onnx").write_bytes(b"of the user")
        (place / "ballast").write_bytes(bytes(56_000))
        there = contents(place)
        feeds = images(1, 8, 8, 8, samples=2)
        with pytest.raises(OutputError, match=r"q\.onnx"):
            quantize(net(), feeds, options=Options(placement="all"), output=place / "q.onnx")
        with pytest.raises(OutputError, match=r"s\.npz"):
            calibrate(net(), feeds, output=place / "s.npz")
        assert contents(place) == there
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("fault", ["missing", "cut", "outside", "a folder"])
def test_external_data_at_fault(tmp_path: Path, fault: str) -> None:
    (tmp_path / "in").mkdir()
    model, data = net(), tmp_path / "in" / "w.bin"
    convert_model_to_external_data(model, location="w.bin", size_threshold=256)
    onnx.save(model, tmp_path / "in" / "m.onnx")
    if fault == "missing":
        data.unlink()
    elif fault == "cut":
        data.write_bytes(data.read_bytes()[:3000])
    elif fault == "outside":
        data.rename(tmp_path / "w.bin")
        proto = onnx.load(tmp_path / "in" / "m.onnx", load_external_data=False)
        for tensor in proto.graph.initializer:
            for entry in tensor.external_data:
                entry.value = "../w.bin" if entry.key == "location" else entry.value
        onnx.save(proto, tmp_path / "in" / "m.onnx")
    else:
        data.unlink()
        data.mkdir()
    there = contents(tmp_path)
    read: list[int] = []

    def feeds() -> list[dict[str, np.ndarray]]:
        read.append(1)
        return images(1, 8, 8, 8, samples=1)

    for run, output in ((quantize, "out.onnx"), (calibrate, "out.npz")):
        with pytest.raises(ModelError, match=r"tensor '[wv]'.*w\.bin"):
            run(tmp_path / "in" / "m.onnx", feeds, output=tmp_path / output)
    assert contents(tmp_path) == there
    assert not read, "the data was read before the model"


def test_data_that_changes_its_shape_half_way(tmp_path: Path) -> None:
    feeds = [*images(1, 8, 8, 8, samples=3), *images(1, 7, 8, 8, samples=1)]
    with pytest.raises(DataError, match="sample 3"):
        quantize(net(), feeds, output=tmp_path / "q.onnx")
    assert not contents(tmp_path)

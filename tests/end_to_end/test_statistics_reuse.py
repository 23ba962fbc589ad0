"""One pass over the data serves every bit width and range method, and the same run gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import Options, StatisticsError, calibrate, quantize
from onnxq.cli import main
from tests.models import build, images, normal

WAYS: dict[str, dict[str, Any]] = {
    "8-bit mse": {},
    "8-bit percentile": {"range": "percentile:99.9"},
    "8-bit minmax symmetric": {"range": "minmax", "symmetric": True},
    "8-bit per tensor": {"per_channel": False},
    "4-bit weights": {"weight_bits": 4},
    "16-bit activations": {"act_bits": 16},
}

CHILD = """
import sys
import numpy as np
from onnxq import Options, quantize

model, data, output = sys.argv[1:]
quantize(model, data, output=output, options=Options(placement="all"))
"""


def model() -> onnx.ModelProto:
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 10] y, float[1, 8, 8, 8] s) {
            [c1] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            [r1] r = Relu (a)
            [c2] b = Conv <pads = [1, 1, 1, 1]> (r, w2)
            [add] s = Add (r, b)
            [pool] p = GlobalAveragePool (s)
            [flat] f = Flatten (p)
            [fc] y = Gemm (f, w3, b3)
        }""",
        w1=normal(8, 4, 3, 3),
        b1=normal(8, seed=1, scale=0.3),
        w2=normal(8, 8, 3, 3, seed=2),
        w3=normal(8, 10, seed=3),
        b3=normal(10, seed=4, scale=0.3),
    )


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The model and its data as files."""
    path, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    onnx.save(model(), path)
    np.savez(data, x=np.concatenate([feed["x"] for feed in images(1, 4, 8, 8, samples=12)]))
    return path, data


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_statistics_serve_every_run(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Through a file and from memory, every way of quantizing gives the bytes of the run that read the data itself."""
    path, data = files
    kept = tmp_path / "statistics.npz"
    statistics = calibrate(path, data, output=kept)
    seen = set()
    for name, way in WAYS.items():
        options = Options(placement="all", **way)
        direct, loaded, held = (tmp_path / f"{name} {kind}.onnx" for kind in ("direct", "loaded", "held"))
        quantize(path, data, output=direct, options=options)
        quantize(path, statistics=kept, output=loaded, options=options)
        quantize(path, statistics=statistics, output=held, options=options)
        assert digest(direct) == digest(loaded) == digest(held), name
        seen.add(digest(direct))
    assert len(seen) == len(WAYS), "different options must give different models"


def test_statistics_serve_every_run_on_the_command_line(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = map(str, files)
    kept = str(tmp_path / "statistics.npz")
    assert main(["calibrate", path, "--data", data, "-o", kept, "-q"]) == 0
    for i, flags in enumerate(
        ([], ["--range", "percentile:99.9"], ["--weight-bits", "4"], ["--act-bits", "16", "--min-sqnr", "0"])
    ):
        direct, reused = tmp_path / f"direct{i}.onnx", tmp_path / f"reused{i}.onnx"
        common = ["quantize", path, "--placement", "all", "-q", *flags]
        assert main([*common, "--data", data, "-o", str(direct)]) in (0, 3)
        assert main([*common, "--statistics", kept, "-o", str(reused)]) in (0, 3)
        assert digest(direct) == digest(reused), flags
    capsys.readouterr()


def test_statistics_of_another_model_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    path, data = files
    statistics = calibrate(path, data, output=tmp_path / "s.npz")
    other = model()
    other.graph.initializer[0].raw_data = normal(8, 4, 3, 3, seed=77).tobytes()
    with pytest.raises(StatisticsError, match=r"^the statistics were made from another model"):
        quantize(other, statistics=statistics)
    with pytest.raises(StatisticsError, match=r"s\.npz': the statistics were made from another model"):
        quantize(other, statistics=tmp_path / "s.npz")


def test_same_run_gives_the_same_bytes(files: tuple[Path, Path], tmp_path: Path) -> None:
    """In one process twice, and in fresh ones whose sets iterate in other orders."""
    path, data = files
    options = Options(placement="all")
    results = [tmp_path / f"result{i}.onnx" for i in range(4)]
    for result in results[:2]:
        quantize(path, data, output=result, options=options)
    for result, seed in zip(results[2:], ("1", "4242"), strict=True):
        command = [sys.executable, "-c", CHILD, str(path), str(data), str(result)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    assert len({digest(result) for result in results}) == 1


def test_same_statistics_file_twice(files: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = tmp_path / "one.npz", tmp_path / "two.npz"
    calibrate(*files, output=one)
    calibrate(*files, output=two)
    assert digest(one) == digest(two)


@pytest.mark.parametrize("method", ["mse", "minmax", "percentile:99.9", "entropy"])
def test_order_of_samples_changes_no_range(method: str) -> None:
    feeds = images(1, 4, 8, 8, samples=12)
    options = Options(placement="all", range=method, bias_correction=False)
    forward = quantize(model(), feeds, options=options)
    backward = quantize(model(), feeds[::-1], options=options)
    assert forward.qparams.keys() == backward.qparams.keys()
    for name, qp in forward.qparams.items():
        np.testing.assert_array_equal(qp.scale, backward.qparams[name].scale, err_msg=name)
        np.testing.assert_array_equal(qp.zero_point, backward.qparams[name].zero_point, err_msg=name)

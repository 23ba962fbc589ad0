"""A target and a range method that another installed package brings work like the built-in ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.models import build, constants_of, images, normal

MODULE = '''
"""A chip that knows Conv alone, symmetric int8 and one scale a tensor, and a range method of half the extent."""

from dataclasses import replace

from onnxq import Backend, QuantSpec, plugins

base = plugins.find("onnxq.backends", "onnxruntime").BACKEND

BACKEND = replace(
    base,
    name="toychip",
    title="a toy chip",
    activation=QuantSpec(signed=True, symmetric=True),
    rules={"Conv": base.rules["Conv"]},
    per_channel=False,
    verified="",
)

NAME = "half"


def select(stats, spec, parameter=None):
    share = 0.5 if parameter is None else parameter
    return share * stats.min, share * stats.max
'''

ENTRY_POINTS = """\
[onnxq.backends]
toychip = toychip_plugin
broken = toychip_plugin_missing

[onnxq.ranges]
half = toychip_plugin
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder as pip would leave it: a module and the metadata of its distribution."""
    site = tmp_path / "site"
    info = site / "toychip_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "toychip_plugin.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toychip-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A model and its data."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 10] y) {
            [c1] a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            [r1] r = Relu (a)
            [c2] b = Conv <pads = [1, 1, 1, 1]> (r, w2)
            [pool] p = GlobalAveragePool (b)
            [flat] f = Flatten (p)
            [fc] y = Gemm (f, w3)
        }""",
        w1=normal(8, 4, 3, 3),
        w2=normal(8, 8, 3, 3, seed=1),
        w3=normal(8, 10, seed=2),
    )
    path, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    onnx.save(model, path)
    np.savez(data, x=np.concatenate([feed["x"] for feed in images(1, 4, 8, 8, samples=8)]))
    return str(path), str(data)


def onnxq(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own that also sees the packages in ``path``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "onnxq", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def scales(path: Path) -> dict[str, float]:
    """Tensor quantized at run time → its scale."""
    model = onnx.load(path)
    constants = constants_of(model)
    return {n.input[0]: float(constants[n.input[1]]) for n in model.graph.node if n.op_type == "QuantizeLinear"}


def test_backend_of_another_package(package: Path, files: tuple[str, str], tmp_path: Path) -> None:
    model, data = files
    output = tmp_path / "quantized.onnx"
    arguments = ["--data", data, "-o", str(output), "--placement", "all", "--json"]
    done = onnxq("quantize", model, "--backend", "toychip", *arguments, path=package)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["backend"] == "toychip"
    assert report["quantized_ops"] == {"Conv": 2}
    assert {"fc", "pool"} <= {kept["node"] for kept in report["kept_float"]}
    result = onnx.load(output)
    onnx.checker.check_model(result, full_check=True)
    constants = {t.name: t for t in result.graph.initializer}
    for node in result.graph.node:
        if node.op_type == "QuantizeLinear":
            zero_point = constants[node.input[2]]
            assert zero_point.data_type == onnx.TensorProto.INT8
            assert not numpy_helper.to_array(zero_point).any()
        if node.op_type == "DequantizeLinear":
            assert not list(constants[node.input[1]].dims), "one scale a tensor"


def test_range_of_another_package(package: Path, files: tuple[str, str], tmp_path: Path) -> None:
    model, data = files
    found = {}
    for method in ("minmax", "half", "half:0.25"):
        output = tmp_path / f"{method.replace(':', '_')}.onnx"
        arguments = ["--data", data, "-o", str(output), "--placement", "all", "--min-sqnr", "-100", "-q"]
        done = onnxq("quantize", model, "--range", method, *arguments, path=package)
        assert done.returncode == 0, done.stderr
        found[method] = scales(output)
    assert found["half"]["x"] == pytest.approx(found["minmax"]["x"] / 2, rel=1e-3)
    assert found["half:0.25"]["x"] == pytest.approx(found["minmax"]["x"] / 4, rel=1e-3)


def test_both_at_once(package: Path, files: tuple[str, str], tmp_path: Path) -> None:
    model, data = files
    output = tmp_path / "quantized.onnx"
    arguments = ["--data", data, "-o", str(output), "--placement", "all", "--min-sqnr", "-100", "-q"]
    done = onnxq("quantize", model, "--backend", "toychip", "--range", "half", *arguments, path=package)
    assert done.returncode == 0, done.stderr
    assert scales(output)


def test_plan_check_and_show_know_the_backend(package: Path, files: tuple[str, str]) -> None:
    model, data = files
    for arguments in (["plan", model], ["check", model, "--data", data]):
        done = onnxq(*arguments, "--backend", "toychip", path=package)
        assert done.returncode in (0, 3), done.stderr
        assert "Traceback" not in done.stderr


def test_backends_lists_it(package: Path) -> None:
    without_broken = (package / "toychip_plugin-1.0.dist-info" / "entry_points.txt").read_text().splitlines()
    (package / "toychip_plugin-1.0.dist-info" / "entry_points.txt").write_text(
        "\n".join(line for line in without_broken if not line.startswith("broken"))
    )
    done = onnxq("backends", path=package)
    assert done.returncode == 0, done.stderr
    assert "toychip" in done.stdout
    assert "onnxruntime" in done.stdout


def test_a_package_that_is_broken_hinders_no_other(package: Path, files: tuple[str, str], tmp_path: Path) -> None:
    """It is named where it is asked for; the rest goes on."""
    model, data = files
    asked = onnxq("plan", model, "--backend", "broken", path=package)
    assert asked.returncode == 1
    assert "toychip-plugin" in asked.stderr
    assert "Traceback" not in asked.stderr
    listed = onnxq("backends", path=package)
    assert listed.returncode == 0, listed.stderr
    assert "toychip" in listed.stdout
    output = tmp_path / "quantized.onnx"
    done = onnxq("quantize", model, "--data", data, "-o", str(output), "--placement", "all", path=package)
    assert done.returncode == 0, done.stderr


def test_unknown_names_list_those_of_other_packages(package: Path, files: tuple[str, str]) -> None:
    done = onnxq("plan", files[0], "--backend", "toychp", path=package)
    assert done.returncode == 1
    assert "Did you mean toychip" in done.stderr

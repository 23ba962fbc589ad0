"""The command line: every verb, what it writes and prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.console.terminal import bytes_text
from onnxq.demo.data import MODEL, load_digits
from tests import pairs
from tests.cli import Captured, digits, document, run
from tests.models import build, normal


@pytest.fixture
def data(tmp_path: Path) -> str:
    return digits(tmp_path)


def test_quantize_writes_a_model_and_one_summary(tmp_path: Path, data: str, capsys: Captured) -> None:
    assert run("quantize", MODEL, "--data", data, "-o", tmp_path / "q.onnx") == 0
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"), full_check=True)
    out, err = capsys.readouterr()
    for word in ("quantized", "SQNR", "size", "speed", "checked"):
        assert word in out
    assert "calibrate: 24 samples" in err


def test_statistics_give_the_same_bytes(tmp_path: Path, data: str, capsys: Captured) -> None:
    assert run("calibrate", MODEL, "--data", data, "-o", tmp_path / "s.npz", "-q") == 0
    assert run("quantize", MODEL, "--statistics", tmp_path / "s.npz", "-o", tmp_path / "a.onnx", "-q") == 0
    assert run("quantize", MODEL, "--data", data, "-o", tmp_path / "b.onnx", "-q") == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert run("show", tmp_path / "s.npz", "--json") == 0
    shown = document(capsys)
    assert (shown["kind"], shown["samples"]) == ("statistics", 24)
    assert run("show", tmp_path / "s.npz") == 0
    assert "image" in capsys.readouterr().out


def test_a_result_below_the_floor_is_code_3_and_names_layers(tmp_path: Path, data: str, capsys: Captured) -> None:
    arguments = ("quantize", MODEL, "--data", data, "-o", tmp_path / "q.onnx", "--act-bits", 2, "--weight-bits", 2)
    assert run(*arguments, "--placement", "all", "--min-sqnr", 60) == 3
    out, err = capsys.readouterr()
    assert "warning" not in err, "said once, in the report"
    assert "BELOW THE FLOOR" in out
    assert "--exclude" in out
    assert "below the floor" not in out and "output 'logits' has" not in out, "said once"
    assert out.count("--effort best tries") == 1
    assert run(*arguments, "--placement", "all", "--min-sqnr", 60, "-q") == 3
    quiet = capsys.readouterr()
    assert quiet.out == ""
    assert re.fullmatch(r"onnxq: warning: output 'logits' has -?[0-9.]+ dB, below --min-sqnr 60\n", quiet.err)
    assert run(*arguments, "--placement", "all", "--min-sqnr", 60, "--json") == 3
    shown = document(capsys)
    assert shown["below_floor"] is True
    assert shown["suspects"]
    assert any("below the floor of 60 dB" in text for text in shown["verification"]["warnings"])
    assert run(*arguments[:6], "--algorithm", "dynamic", "--min-sqnr", 90) == 3
    out = capsys.readouterr().out
    assert "BELOW THE FLOOR" in out and "below the floor" not in out


def test_a_result_of_no_numbers_is_told_like_any_below_the_floor(tmp_path: Path, capsys: Captured) -> None:
    """What the logarithm reads is 0 in integers, where the target has no float to keep it in."""
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { c = Conv (x, w) s = Sigmoid (c) y = Log (s) }",
        w=normal(4, 4, 1, 1),
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=normal(16, 4, 8, 8, scale=20.0))
    given = ("quantize", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx")
    assert run(*given, "--backend", "tengine") == 3
    assert "BELOW THE FLOOR: y has -inf dB, required: 10 dB" in capsys.readouterr().out
    assert run(*given, "--backend", "tengine", "-q") == 3
    below = "onnxq: warning: output 'y' has -inf dB, below --min-sqnr 10\n"
    assert capsys.readouterr().err == below
    given = (*given[:-1], tmp_path / "out")
    assert run(*given, "--backend", "tengine", "--backend", "rknn", "--opset", 20, "-q") == 1
    refused, told = capsys.readouterr().err.splitlines(keepends=True)
    assert "rknn: opset: " in refused and told == below, "of the target that took it"
    verified = ("verify", tmp_path / "q.onnx", "--data", tmp_path / "d.npz", "--backend", "tengine")
    assert run(*verified, "-q") == 3
    assert capsys.readouterr().err == "onnxq: warning: output 'y' has -inf dB, the floor is 10 dB\n"


def test_json_is_the_only_thing_on_stdout(tmp_path: Path, data: str, capsys: Captured) -> None:
    assert run("quantize", MODEL, "--data", data, "-o", tmp_path / "q.onnx", "--json") == 0
    shown = document(capsys)
    assert shown["output"] == str(tmp_path / "q.onnx")
    assert shown["verification"]["outputs"]["logits"]["sqnr"] > 20
    assert run("calibrate", MODEL, "--data", data, "-o", tmp_path / "s.npz", "--json") == 0
    assert document(capsys)["samples"] == 24
    assert run("plan", MODEL, "--json") == 0
    assert document(capsys)["sites"]
    assert run("backends", "--json") == 0
    assert "onnxruntime" in [b["name"] for b in document(capsys)["backends"]]
    assert run("check", MODEL, "--json") == 0
    assert document(capsys)["ok"] is True


def test_plan_show_and_backends_for_people(tmp_path: Path, capsys: Captured) -> None:
    assert run("plan", MODEL) == 0
    out = capsys.readouterr().out
    assert "second.conv.weight" in out
    assert "quantized" in out
    onnx.save(pairs.quantized_model(), tmp_path / "q.onnx")
    assert run("show", tmp_path / "q.onnx") == 0
    assert "w_q" in capsys.readouterr().out
    assert run("show", MODEL) == 0
    assert "nothing" in capsys.readouterr().out
    assert run("backends") == 0
    assert "onnxruntime" in capsys.readouterr().out


def test_flags_of_all_verbs_may_stand_in_front(tmp_path: Path, capsys: Captured) -> None:
    assert run("-q", "plan", MODEL) == 0
    assert capsys.readouterr() == ("", "")
    assert run("--json", "plan", MODEL) == 0
    assert document(capsys)["sites"]
    assert run("-v", "plan", MODEL) == run("plan", MODEL, "-v") == 0
    out = capsys.readouterr().out
    assert out[: len(out) // 2] == out[len(out) // 2 :]


def test_check_finds_problems_with_code_3(tmp_path: Path, data: str, capsys: Captured) -> None:
    assert run("check", MODEL, "--data", data) == 0
    assert "No problems found." in capsys.readouterr().out
    np.savez(tmp_path / "bad.npz", image=load_digits().calibration[:24] * 255)
    assert run("check", MODEL, "--data", tmp_path / "bad.npz") == 3
    out = capsys.readouterr().out
    assert "training data" in out
    assert "1 warning" in out
    assert run("check", tmp_path / "none.onnx", "--json") == 3
    assert document(capsys)["ok"] is False


def test_compare(tmp_path: Path, capsys: Captured) -> None:
    onnx.save(pairs.float_model(), tmp_path / "f.onnx")
    onnx.save(pairs.quantized_model(), tmp_path / "q.onnx")
    for i, feed in enumerate(pairs.data()):
        np.savez(tmp_path / f"{i}.npz", x=feed["x"])
    arguments = ("compare", tmp_path / "f.onnx", tmp_path / "q.onnx", "--data", tmp_path)
    assert run(*arguments, "--all") == 0
    out = capsys.readouterr().out
    assert "* h (MatMul)" in out
    assert "equal" in out  # the integer output
    assert run(*arguments, "--json", "--samples", 3) == 0
    shown = document(capsys)
    assert shown["samples"] == 3
    assert [t["tensor"] for t in shown["tensors"]] == ["h", "r", "y"]
    assert run(*arguments, "--outputs-only") == 0
    assert "most is lost" not in capsys.readouterr().out


def test_a_size_is_that_of_the_files(tmp_path: Path, data: str, capsys: Captured) -> None:
    """Not that of what is simulated in their place; a float model with a table says that it is one."""
    arguments = ("--json", "quantize", MODEL, "--data", data, "--backend", "ncnn", "-o", tmp_path / "q.onnx")
    assert run(*arguments) == 0
    document = json.loads(capsys.readouterr().out)
    size = sum(Path(name).stat().st_size for name in document["files"])
    assert len(document["files"]) == 2 and document["verification"]["quantized_bytes"] == size
    assert run(*arguments[1:]) == 0
    said = (
        f"{bytes_text(MODEL.stat().st_size)} → {bytes_text(size)}, in float: the target's own tools make integers of it"
    )
    assert said in capsys.readouterr().out


def test_check_tells_all_settings_that_are_wrong(capsys: Captured) -> None:
    wrong = ("--algorithm", "gptk", "--range", "minmx", "--format", "qdk", "--exclude", "Convv", "--include", "frist*")
    assert run("check", MODEL, *wrong) == 3
    out = capsys.readouterr().out
    for name in wrong[1::2]:
        assert out.count(f"'{name}'") == 1, out
    assert "5 errors" in out
    assert run("check", MODEL, "--exclude", "third*", "--algorithm", "gptq", "--range", "minmax") == 0


def test_best_says_what_it_had_no_time_for(tmp_path: Path, data: str, capsys: Captured) -> None:
    arguments = ("quantize", MODEL, "--data", data, "--effort", "best", "--max-minutes", "0")
    assert run(*arguments, "-o", tmp_path / "q.onnx") == 0
    out = capsys.readouterr().out
    assert re.search(r"\n  not tried +minmax, .*, bias_correction:method=empirical: the time was up\n", out)
    assert run(*arguments, "--backend", "snpe", "--backend", "qnn", "-o", tmp_path / "several") == 0
    assert "snpe, qnn: best, not tried: minmax, " in capsys.readouterr().out


def test_nothing_to_quantize_is_said_plainly(tmp_path: Path, data: str, capsys: Captured) -> None:
    arguments = ("quantize", MODEL, "--data", data, "--samples", 1, "-o", tmp_path / "q.onnx")
    assert run(*arguments, "--exclude", "*") == 0
    out, err = capsys.readouterr()
    assert "0 of 11 nodes\n" in out
    assert "SQNR         exact\n" in out
    assert "mse ranges" not in out, "nothing was done by anything"
    assert "calibrate: 1 sample in" in err


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(tmp_path: Path, given: str | None) -> None:
    (tmp_path / "d.py").write_text(
        "import os\n"
        "from onnxq.demo.data import load_digits\n"
        "def feeds():\n"
        "    print('policy', os.environ['OMP_WAIT_POLICY'])\n"
        "    return [{'image': x[None]} for x in load_digits().calibration[:2]]\n"
    )
    command = [sys.executable, "-m", "onnxq", "calibrate", str(MODEL), "--data", "d.py:feeds", "-o", "s.npz"]
    clean = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    given_too = clean if given is None else {**clean, "OMP_WAIT_POLICY": given}
    done = subprocess.run(command, cwd=tmp_path, env=given_too, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"policy {given or 'PASSIVE'}" in done.stderr


def test_version_and_help(capsys: Captured) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("onnxq 0.")
    for verb in ("", "quantize", "calibrate", "plan", "check", "compare", "show", "backends", "demo"):
        assert run(*[verb] if verb else [], "--help") == 0
        assert "usage: onnxq" in capsys.readouterr().out


def test_help_is_fast() -> None:
    """Of what one import of onnx takes, which processors differ in by far, and which it must do without."""
    seconds = {}
    for command in (["-m", "onnxq", "--help"], ["-c", "import onnx"]):
        times = []
        for _ in range(5):
            start = os.times()
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
            end = os.times()
            times.append(end.children_user + end.children_system - start.children_user - start.children_system)
        seconds[command[0]] = min(times)  # the least of five, since other work may share the machine
    assert seconds["-m"] < 0.9 * seconds["-c"]


def test_demo(tmp_path: Path, capsys: Captured) -> None:
    assert run("demo", "-o", tmp_path / "digits.int8.onnx") == 0
    out = capsys.readouterr().out
    for word in ("accuracy", "size", "batch of 64"):
        assert word in out
    assert run("demo", "--json", "-q") == 0
    shown = document(capsys)
    assert shown["float_accuracy"] > 0.98
    assert shown["int8_accuracy"] > shown["float_accuracy"] - 0.01
    assert shown["int8_bytes"] * 2 < shown["float_bytes"]


def test_below_the_floor_names_what_can_be_left_out(tmp_path: Path, capsys: Captured) -> None:
    """What is lost behind a float node is lost in the quantizer of its reader: the node itself is float already."""
    model = build(
        "(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { [root] a = Sqrt (x)\n [layer] y = Conv (a, w) }",
        w=normal(8, 8, 1, 1),
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.abs(normal(16, 8, 4, 4, scale=1.0)))
    files = (tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx")
    code = run("quantize", *files, "--placement", "all", "--act-bits", 4, "--min-sqnr", 90)
    out = capsys.readouterr().out
    assert code == 3
    assert "Try --exclude 'a', --override 'a=act_bits=8', another --range" in out
    several = ("--backend", "onnxruntime", "--backend", "tvm", "--placement", "all", "--min-sqnr", 90)
    assert run("quantize", *files[:-1], tmp_path / "out", *several) == 3
    out = capsys.readouterr().out
    assert out.count("BELOW THE FLOOR") == 2 and "below the floor" not in out and "output 'y' has" not in out
    assert out.count("--effort best tries") == 2, "once for each"

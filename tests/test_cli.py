"""The command line: every verb, exit codes, JSON, configuration, pipes and interrupts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.cli import main
from onnxq.console.terminal import bytes_text
from onnxq.demo.data import MODEL, load_digits
from tests import pairs
from tests.models import build, normal


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.savez(tmp_path / "d.npz", image=load_digits().calibration[:24])
    return str(tmp_path / "d.npz")


Captured = pytest.CaptureFixture[str]


def run(*args: object) -> int:
    try:
        return main([str(arg) for arg in args])
    except SystemExit as exit_:  # argparse
        assert isinstance(exit_.code, int)
        return exit_.code


def document(capsys: Captured) -> dict[str, Any]:
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    loaded = json.loads(out)
    assert isinstance(loaded, dict)
    return loaded


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
    assert out.count("  warning  ") >= 1
    assert run(*arguments, "--placement", "all", "--min-sqnr", 60, "-q") == 3
    quiet = capsys.readouterr()
    assert quiet.out == ""
    assert re.fullmatch(r"onnxq: warning: output 'logits' has -?[0-9.]+ dB, below --min-sqnr 60\n", quiet.err)
    assert run(*arguments, "--placement", "all", "--min-sqnr", 60, "--json") == 3
    shown = document(capsys)
    assert shown["below_floor"] is True
    assert shown["suspects"]


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


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "words"),
    [
        (("plan", "none.onnx"), 1, "ModelError", "no such file"),
        (("quantize", MODEL, "-o", "q.onnx"), 2, "UsageError", "--data DATA is missing: give samples, or --statistics"),
        (("plan", MODEL, "--weight-bits", "many"), 2, "UsageError", "argument --weight-bits"),
        (("plant", MODEL), 2, "UsageError", "invalid choice: 'plant'"),
    ],
)
def test_json_of_an_error(arguments: tuple[Any, ...], code: int, kind: str, words: str, capsys: Captured) -> None:
    assert run(*arguments, "--json") == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out.count("\n") == 1
    said = json.loads(captured.out)["error"]
    assert list(said) == ["kind", "what", "where", "hint"]
    assert said["kind"] == kind
    assert words in said["what"]
    assert run(*arguments) == code
    assert capsys.readouterr().out == ""


def test_json_of_an_error_says_where_and_what_to_do(tmp_path: Path, capsys: Captured) -> None:
    np.savez(tmp_path / "d.npz", image=np.zeros((4, 24, 24, 1), np.float32))
    assert run("quantize", MODEL, "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx", "--json") == 1
    said = document(capsys)["error"]
    assert said["where"] == "sample 0, input 'image'"
    assert "channels last" in said["hint"]
    assert not (tmp_path / "q.onnx").exists()


def test_data_and_statistics_are_not_mixed_up(tmp_path: Path, data: str, capsys: Captured) -> None:
    statistics, output = tmp_path / "s.npz", tmp_path / "q.onnx"
    assert run("calibrate", MODEL, "--data", data, "-o", statistics, "-q") == 0
    assert run("quantize", MODEL, "--data", data, "--statistics", statistics, "-o", output) == 2
    assert "--data or --statistics, not both" in capsys.readouterr().err
    assert run("quantize", MODEL, "--data", statistics, "-o", output) == 1
    assert "is a statistics file" in capsys.readouterr().err
    assert run("quantize", MODEL, "--statistics", data, "-o", output) == 1
    assert "holds arrays, not statistics" in capsys.readouterr().err
    (tmp_path / "c.toml").write_text(f"data = {json.dumps(data)}\n")
    arguments = ("quantize", MODEL, "--config", tmp_path / "c.toml", "-o", output, "-q")
    assert run(*arguments, "--statistics", statistics) == 0, "the flag wins over the file"
    assert run(*arguments) == 0
    (tmp_path / "c.toml").write_text(f"data = {json.dumps(data)}\nstatistics = {json.dumps(str(statistics))}\n")
    assert run(*arguments) == 2
    with pytest.raises(onnxq.OptionError, match="both data and statistics were given"):
        onnxq.quantize(MODEL, data, statistics=statistics)


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


def test_a_config_file_holds_the_same_keys_and_flags_win(tmp_path: Path, data: str, capsys: Captured) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        f'model = "{MODEL.as_posix()}"\ndata = "{Path(data).as_posix()}"\n'
        f'output = "{(tmp_path / "q.onnx").as_posix()}"\n'
        'range = "minmax"\nexclude = ["Gemm"]\nplacement = "all"\n'
    )
    assert run("quantize", "--config", config, "-q") == 0
    assert (tmp_path / "q.onnx").is_file()
    assert run("plan", "--config", config, "--json") == 0  # plan takes no data and no output
    assert set(document(capsys)["quantized"].values()) >= {"Conv"}
    assert run("plan", MODEL, "--config", config, "--exclude", "Conv", "--json") == 0
    assert "Conv" not in document(capsys)["quantized"].values()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("quantise", "m.onnx"),
        ("quantize",),
        ("quantize", "m.onnx", "-o", "q.onnx"),
        ("quantize", "m.onnx", "--data", "d.npz"),
        ("calibrate", "m.onnx", "--data", "d.npz"),
        ("quantize", "m.onnx", "--data", "d.npz", "-o", "q.onnx", "--weight-bits", "99"),
        ("quantize", "m.onnx", "--data", "d.npz", "-o", "q.onnx", "--symmetric", "--asymmetric"),
        ("quantize", "m.onnx", "--data", "d.npz", "-o", "q.onnx", "--image-std", "0"),
        ("plan", "m.onnx", "--range", "a b"),
        ("plan", "m.onnx", "--override", "Conv"),
        ("compare", "a.onnx", "b.onnx"),
    ],
)
def test_wrong_usage_is_code_2(arguments: tuple[str, ...], capsys: Captured) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--weight-bits", "eight"), "argument --weight-bits: 'eight' is not a whole number (onnxq plan --help)"),
        (("--min-sqnr", "high"), "argument --min-sqnr: 'high' is not a number (onnxq plan --help)"),
        (("--placement", "some"), "argument --placement: invalid choice: 'some' "),
        (("--min-sqnr", "nan"), "min_sqnr: nan is not a number of dB"),
        (("--statistics", "s.npz"), "onnxq plan does not take --statistics s.npz (onnxq plan --help)"),
    ],
)
def test_a_wrong_argument_takes_a_line(arguments: tuple[str, ...], said: str, capsys: Captured) -> None:
    assert run("plan", "m.onnx", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"onnxq: error: {said}")


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("compare", ("--keep", "--simplify", "--seed", "--weight-bits")),
        ("deploy", ("--keep", "--simplify", "--seed", "--effort")),
        ("sensitivity", ("--weight-bits", "--act-bits", "--effort", "--algorithm", "--format", "--min-sqnr")),
    ],
)
def test_a_verb_takes_no_flag_that_does_nothing_there(verb: str, flags: tuple[str, ...], capsys: Captured) -> None:
    models = ("a.onnx", "b.onnx") if verb == "compare" else ("a.onnx",)
    for flag in flags:
        assert run(verb, *models, flag) == 2
        assert f"onnxq {verb} does not take {flag}" in capsys.readouterr().err


def test_a_floor_that_is_no_number(capsys: Captured) -> None:
    assert run("verify", "m.onnx", "--min-sqnr", "nan") == 2
    assert "--min-sqnr is not a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("verify", "q.onnx", "--max-steps", "1"), "--max-steps needs --layers"),
        (("verify", "q.onnx", "--samples", "8"), "--samples needs --data"),
        (("verify", "q.onnx", "--layers", "--max-steps", "-1"), "--max-steps: -1 is not a whole number of at least 0"),
        (("verify", "q.onnx", "--simulation", "--timeout", "9"), "--timeout is for the runtime, which --simulation"),
        (("check", "m.onnx", "--image-mean", "0.5"), "--image-mean needs --data"),
        (("quantize", "m.onnx", "--data", "d", "-o", "q.onnx", "--metric", "m.py:f"), "--metric needs --max-drop"),
        (("quantize", "m.onnx", "--data", "d", "-o", "q.onnx", "--max-minutes", "5"), "--max-minutes needs --max-drop"),
        (
            ("quantize", "m.onnx", "--data=d", "-o=q.onnx", "--effort=best", "--algorithm=gptq", "--max-minutes=5"),
            "--max-minutes needs --max-drop, or --effort best without --algorithm",
        ),
    ],
)
def test_a_flag_that_says_nothing_without_another(arguments: tuple[str, ...], said: str, capsys: Captured) -> None:
    assert run(*arguments) == 2
    assert said in capsys.readouterr().err


def test_a_size_is_that_of_the_files(tmp_path: Path, data: str, capsys: Captured) -> None:
    """Not that of what is simulated in their place; a float model with a table says that it is one."""
    arguments = ("--json", "quantize", MODEL, "--data", data, "--backend", "ncnn", "-o", tmp_path / "q.onnx")
    assert run(*arguments) == 0
    document = json.loads(capsys.readouterr().out)
    size = sum(Path(name).stat().st_size for name in document["files"])
    assert len(document["files"]) == 2 and document["verification"]["quantized_bytes"] == size
    assert run(*arguments[1:]) == 0
    said = f"115 KB → {bytes_text(size)}, in float: the target's own tools make integers of it"
    assert said in capsys.readouterr().out


def test_check_tells_all_settings_that_are_wrong(capsys: Captured) -> None:
    wrong = ("--algorithm", "gptk", "--range", "minmx", "--format", "qdk", "--exclude", "Convv", "--include", "frist*")
    assert run("check", MODEL, *wrong) == 3
    out = capsys.readouterr().out
    for name in wrong[1::2]:
        assert out.count(f"'{name}'") == 1, out
    assert "5 errors" in out
    assert run("check", MODEL, "--exclude", "third*", "--algorithm", "gptq", "--range", "minmax") == 0


def test_an_artifact_that_is_none_says_why_once(tmp_path: Path, data: str, capsys: Captured) -> None:
    assert run("verify", MODEL, "--data", data, "--backend", "snpe") == 1
    err = capsys.readouterr().err
    table = str(MODEL).replace(".onnx", ".encodings")
    assert err.count(table) == 1 and "Errno" not in err
    said = (
        f"as encodings-1.0.0 or encodings-0.6.1 or encodings-2.0.0: '{table}': the table cannot be read: No such file"
    )
    assert said in err


def test_statistics_are_an_npz_file(tmp_path: Path, data: str, capsys: Captured) -> None:
    assert run("calibrate", MODEL, "--data", data, "-o", tmp_path / "stats") == 1
    assert "stats': statistics are an .npz file. Give a file that ends in .npz" in capsys.readouterr().err
    assert not list(tmp_path.glob("stats*"))
    assert run("calibrate", MODEL, "--data", data) == 2
    assert "-o STATS is missing" in capsys.readouterr().err


def test_text_is_told_to_be_text(tmp_path: Path, capsys: Captured) -> None:
    np.savez(tmp_path / "text.npz", image=np.array(["a", "b"]))
    assert run("quantize", MODEL, "--data", tmp_path / "text.npz", "-o", tmp_path / "q.onnx") == 1
    assert "input 'image': the data is str32, the model wants float32" in capsys.readouterr().err


def test_best_says_what_it_had_no_time_for(tmp_path: Path, data: str, capsys: Captured) -> None:
    arguments = ("quantize", MODEL, "--data", data, "--effort", "best", "--max-minutes", "0")
    assert run(*arguments, "-o", tmp_path / "q.onnx") == 0
    out = capsys.readouterr().out
    assert re.search(r"\n  not tried +minmax, .*, bias_correction:method=empirical\n", out)
    assert run(*arguments, "--backend", "snpe", "--backend", "qnn", "-o", tmp_path / "several") == 0
    assert "snpe, qnn: best, the time was up before: minmax, " in capsys.readouterr().out


def test_a_list_of_numbers_is_asked_for_as_such(capsys: Captured) -> None:
    assert run("calibrate", MODEL, "--data", "pictures", "-o", "s.npz", "--image-mean", "1,x") == 2
    assert "argument --image-mean: '1,x' is not a list of numbers" in capsys.readouterr().err


def test_the_result_is_not_written_over_what_it_is_made_from(tmp_path: Path, data: str, capsys: Captured) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(MODEL.read_bytes())
    before = model.read_bytes(), Path(data).read_bytes()
    assert run("quantize", model, "--data", data, "-o", tmp_path / "." / "m.onnx") == 2
    assert "overwrite the model" in capsys.readouterr().err
    assert run("calibrate", model, "--data", data, "-o", data) == 2
    assert "overwrite the data" in capsys.readouterr().err
    finetune = ("finetune", MODEL, "--float", model, "--data", data)
    assert run(*finetune, "-o", model) == 2
    assert "overwrite the float model" in capsys.readouterr().err
    assert (model.read_bytes(), Path(data).read_bytes()) == before


def test_nothing_to_quantize_is_said_plainly(tmp_path: Path, data: str, capsys: Captured) -> None:
    arguments = ("quantize", MODEL, "--data", data, "--samples", 1, "-o", tmp_path / "q.onnx")
    assert run(*arguments, "--exclude", "*") == 0
    out, err = capsys.readouterr()
    assert "0 of 11 nodes\n" in out
    assert "SQNR         exact\n" in out
    assert "mse ranges" not in out, "nothing was done by anything"
    assert "calibrate: 1 sample in" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "none.onnx"), "none.onnx"),
        (("plan", MODEL, "--exclude", "Cnov"), "Did you mean 'Conv'"),
        (("plan", MODEL, "--backend", "onnxruntim"), "onnxruntime"),
        (("plan", MODEL, "--config", "none.toml"), "none.toml"),
        (("show", "none.npz"), "none.npz"),
        (("quantize", MODEL, "--data", "none.npz", "-o", "q.onnx"), "none.npz"),
        (("compare", MODEL, MODEL, "--data", "none.npz"), "none.npz"),
    ],
)
def test_errors_are_code_1_in_one_line(arguments: tuple[object, ...], words: str, capsys: Captured) -> None:
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert run(*arguments, "-v") == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_reported_kindly(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("onnxq.verbs.backends", broken)
    assert run("backends") == 1
    err = capsys.readouterr().err
    assert "internal error" in err
    assert "Traceback" not in err


def test_an_interrupt_is_code_130(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxq.verbs.backends", stopped)
    assert run("backends") == 130
    assert "interrupted" in capsys.readouterr().err


def test_warnings_are_lines_on_stderr(tmp_path: Path, capsys: Captured) -> None:
    np.savez(tmp_path / "d.npz", image=load_digits().calibration[:12].astype(np.float64))
    arguments = ("calibrate", MODEL, "--data", tmp_path / "d.npz", "-o", tmp_path / "s.npz")
    assert run(*arguments, "--json") == 0
    captured = capsys.readouterr()
    assert "warning: input 'image': the data is float64, cast to float32\n" in captured.err
    json.loads(captured.out)
    assert run(*arguments, "-q") == 0
    assert capsys.readouterr().err == ""


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
    assert f"policy {given or 'PASSIVE'}" in done.stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "onnxq", "plan", str(MODEL)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_version_and_help(capsys: Captured) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("onnxq 0.")
    for verb in ("", "quantize", "calibrate", "plan", "check", "compare", "show", "backends", "demo"):
        assert run(*[verb] if verb else [], "--help") == 0
        assert "usage: onnxq" in capsys.readouterr().out


def test_help_is_fast() -> None:
    times = []
    for _ in range(5):
        start = os.times()
        subprocess.run([sys.executable, "-m", "onnxq", "--help"], check=True, stdout=subprocess.DEVNULL)
        end = os.times()
        times.append(end.children_user + end.children_system - start.children_user - start.children_system)
    assert min(times) < 0.15  # CPU seconds; the least of five, since other work may share the machine


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
    assert "Try what the hint above says, --exclude 'a', --override 'a=act_bits=8', another --range" in out

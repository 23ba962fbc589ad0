"""Flags and the configuration file: what is taken, and what is said of calls that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import onnxq
from onnxq.demo.data import MODEL
from tests.cli import Captured, digits, document, run


@pytest.fixture
def data(tmp_path: Path) -> str:
    return digits(tmp_path)


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("finetune", "q.onnx", "--float", "m.onnx", "--steps", "0"), "--steps: 0 is not a whole number of at least 1"),
        (("finetune", "q.onnx", "--float", "m.onnx", "--batch", "0"), "--batch: 0 is not a whole number of at least 1"),
        (("finetune", "q.onnx", "--float", "m.onnx", "--seed=-1"), "--seed: -1 is not a whole number of at least 0"),
        (("finetune", "q.onnx", "--float", "m.onnx", "--minutes=-1"), "--minutes: -1.0 is not a number of at least 0"),
        (("finetune", "q.onnx", "--float", "m.onnx", "--lr", "inf"), "--lr: inf is not a number of at least 0"),
        (("sensitivity", "m.onnx", "--bits", "8,1"), "--bits: 1 is not a number of bits from 2 to 16"),
        (("sensitivity", "m.onnx", "--runs", "0"), "--runs: 0 is not a whole number of at least 1"),
        (("quantize", "m.onnx", "--max-drop", "nan"), "--max-drop: nan is not a number of at least 0"),
        (("verify", "q.onnx", "--timeout", "0"), "--timeout: 0 is not a number of seconds above 0"),
        (("verify", "q.onnx", "--timeout", "nan"), "--timeout: nan is not a number of seconds above 0"),
    ],
)
def test_a_number_that_is_out_of_range_is_code_2_in_every_verb(
    arguments: tuple[str, ...], said: str, capsys: Captured
) -> None:
    assert run(*arguments) == 2
    assert capsys.readouterr().err == f"onnxq: error: {said}\n"


def test_stdout_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("quantize", MODEL, "--data", data, "-o", "-") == 2
    assert "nothing is written to stdout" in capsys.readouterr().err
    assert not Path("-").exists()


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
        (("quantize", "m.onnx", "--algorithm", "weight_only", "-o=q.onnx", "--samples=4"), "--samples needs --data"),
        (
            ("quantize", "m.onnx", "--statistics", "s.npz", "-o", "q.onnx", "--samples", "4"),
            "--samples needs --data, and does nothing to statistics",
        ),
        (
            ("sensitivity", "m.onnx", "--statistics", "s.npz", "--image-layout", "nhwc"),
            "--image-layout needs --data, and does nothing to statistics",
        ),
        (
            ("quantize", "m.onnx", "--data=d", "-o=q", "--max-drop=0", "--backend=qnn", "--backend=tvm"),
            "--max-drop takes one --backend",
        ),
        (
            ("quantize", "m.onnx", "--data=d", "-o=q", "--max-drop=0", "--metric=m.py:f", "--eval-data=e.npz"),
            "--eval-data is for the agreement, not for a --metric",
        ),
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


def test_statistics_are_an_npz_file(tmp_path: Path, data: str, capsys: Captured) -> None:
    assert run("calibrate", MODEL, "--data", data, "-o", tmp_path / "stats") == 1
    assert "stats': statistics are an .npz file. Give a file that ends in .npz" in capsys.readouterr().err
    assert not list(tmp_path.glob("stats*"))
    assert run("calibrate", MODEL, "--data", data) == 2
    assert "-o STATS is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('weight_bits = "x"', "weight_bits: 'x' is not a number of bits from 2 to 16"),
        ("exclude = [3]", "exclude: "),
        ("[image]\nscale = 'x'", "image scale: "),
    ],
)
def test_what_is_wrong_in_a_config_file_is_told_with_its_name(
    tmp_path: Path, data: str, capsys: Captured, text: str, said: str
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    assert run("quantize", MODEL, "--data", data, "--config", config, "-o", tmp_path / "o.onnx") == 1
    assert f"config file '{config}', {said}" in capsys.readouterr().err


def test_an_empty_name_of_a_config_file(capsys: Captured) -> None:
    assert run("plan", MODEL, "--config", "") == 1
    assert "config file '': this names no file" in capsys.readouterr().err


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

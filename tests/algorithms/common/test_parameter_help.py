"""What the parameters of algorithms mean can be read: a sentence for each, by ``onnxq algorithms NAME``."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

import onnxq
from onnxq.algorithm import Algorithm
from onnxq.algorithms.common.parameter_help import parameter_help
from onnxq.cli import main


def test_every_parameter_of_a_built_in_algorithm_has_a_sentence() -> None:
    found = {algorithm.NAME: parameter_help(algorithm) for algorithm in onnxq.installed_algorithms()}
    assert not [(name, key) for name, said in found.items() for key, text in said.items() if len(text) < 20]
    for algorithm in onnxq.installed_algorithms():
        assert set(algorithm.HELP) == set(algorithm.PARAMETERS), algorithm.NAME  # type: ignore[attr-defined]


def test_a_name_shows_the_default_of_each_parameter_and_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "gptq", "mixed-precision"]) == 0
    shown = capsys.readouterr().out
    assert "damping=0.01" in shown and "second moment" in shown
    assert "KIND:AMOUNT" in shown and "macs_bits: multiply-accumulates" in shown
    assert "adaround" not in shown
    assert main(["algorithms", "gptq", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["algorithms"]
    assert row["help"].keys() == row["parameters"].keys()


def test_the_list_of_all_says_where_parameters_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms"]) == 0
    shown = capsys.readouterr().out
    assert "onnxq algorithms NAME" in shown and "damping" not in shown


def test_an_unknown_name_and_an_unknown_parameter_are_errors_that_lead_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "gptg"]) != 0
    assert "Did you mean gptq?" in capsys.readouterr().err
    with pytest.raises(onnxq.OptionError) as caught:
        onnxq.plan("absent.onnx", options=onnxq.Options(algorithms=("gptq:dampin=1",)))
    assert "'onnxq algorithms gptq'" in (caught.value.hint or "")


def test_an_algorithm_of_another_package_need_not_explain_anything() -> None:
    silent = cast(Algorithm, SimpleNamespace(NAME="a", TITLE="", STAGE="float", PARAMETERS={"by": 1}))
    assert parameter_help(silent) == {"by": ""}

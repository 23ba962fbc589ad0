"""docs/json.md against what the verbs print."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.cli import main
from onnxq.demo.data import MODEL, load_digits
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
BY_NAME = frozenset(
    {
        "absorbed",
        "added",
        "against_float",
        "help",
        "inputs",
        "local",
        "lsb",
        "ops",
        "outputs",
        "parameters",
        "quantized",
    }
    | {"quantized_ops", "sqnr", "stored", "together", "unobservable", "weight_bytes"}
)
"""Keys of objects whose own keys are names or numbers of bits."""
CALIBRATED = ["digits.onnx", "--data", "digits.npz"]
QUANTIZE = ["quantize", *CALIBRATED, "-o"]


def sections() -> dict[str, list[set[str]]]:
    """Title → the keys of each table below it."""
    found: dict[str, list[set[str]]] = {}
    for part in PAGE.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        tables = re.split(r"\n\| key \| \|\n", body)[1:]
        found[title] = [set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) for table in tables]
    return found


def expanded(keys: set[str]) -> set[str]:
    """With the tables that keys refer to in their place."""
    shared = {"errors": 0, "result": 0, "attempt": 1}
    titles = {"errors": "Errors of an output or a tensor", "result": "A result", "attempt": "quantize --max-drop"}
    found: set[str] = set()
    for key in keys:
        base, _, of = key.partition("…")
        more = expanded(sections()[titles[of]][shared[of]]) if of else {""}
        found |= {f"{base}.{name}".strip(".") for name in more}
    return found


def walk(value: Any, path: str = "") -> Iterator[str]:
    """The keys of a document, names replaced by ``NAME`` and numbers of bits by ``N``."""
    last = path.rpartition(".")[2]
    if isinstance(value, dict):
        named = last in BY_NAME or (last in ("NAME", "N") and path.split(".")[-2] in ("together", "added", "outputs"))
        inner = path.split(".")[-2:-1] in (["outputs"],) and "elements" in value
        for key, item in value.items():
            shown = ("N" if key.isdigit() else "NAME") if named and not inner else key
            yield from walk(item, f"{path}.{shown}".strip("."))
    elif isinstance(value, list):
        for item in value or [None]:
            yield from walk(item, f"{path}[]")
    else:
        yield path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    shutil.copy(MODEL, folder / "digits.onnx")
    np.savez(folder / "digits.npz", image=load_digits().calibration[:32])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*QUANTIZE, "q.onnx", "-q"]) == 0
        assert main(["calibrate", *CALIBRATED, "-o", "s.npz", "-q"]) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("title", "table", "command"),
    [
        ("An error", 0, ["plan", "nothing.onnx"]),
        ("quantize", 0, [*QUANTIZE, "o.onnx"]),
        ("quantize --max-drop", 0, [*QUANTIZE, "o.onnx", "--max-drop", "0.5", "--algorithm", "bias_correction"]),
        ("deploy", 0, ["deploy", "q.onnx", "--backend", "openvino", "-o", "o.onnx"]),
        ("calibrate", 0, ["calibrate", *CALIBRATED, "-o", "t.npz"]),
        ("plan", 0, ["plan", "digits.onnx"]),
        ("check", 0, ["check", "digits.onnx"]),
        ("compare", 0, ["compare", "digits.onnx", "q.onnx", "--data", "digits.npz"]),
        ("verify", 0, ["verify", "q.onnx", "--data", "digits.npz", "--layers"]),
        ("show", 0, ["show", "q.onnx"]),
        ("show", 1, ["show", "s.npz"]),
        ("sensitivity", 0, ["sensitivity", *CALIBRATED, "--samples", "4"]),
        ("finetune", 0, ["finetune", "q.onnx", "--float", *CALIBRATED, "--steps", "1", "-o", "t.onnx"]),
        ("backends", 0, ["backends"]),
        ("algorithms", 0, ["algorithms"]),
        ("demo", 0, ["demo"]),
    ],
)
def test_the_keys_are_those_of_the_page(
    title: str, table: int, command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    main([*command, "--json"])
    printed = set(walk(json.loads(capsys.readouterr().out)))
    told = expanded(sections()[title][table])
    unsaid = {key for key in printed if not any(key == t or t.startswith((f"{key}.", f"{key}[]")) for t in told)}
    assert not unsaid, "on no page"
    parents = {key.rpartition(".")[0] for key in printed}
    absent = {key for key in told if key not in printed and key.rpartition(".")[0] in parents | {""}}
    assert not absent, "printed no more"


def test_several_targets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    main([*QUANTIZE, "targets", "--backend", "tvm", "--backend", "snpe", "--json"])
    printed = set(walk(json.loads(capsys.readouterr().out)))
    told = expanded(sections()["quantize"][1] | {"model", "output", "seconds", "below_floor"})
    assert {key for key in printed if not any(key == t or t.startswith(f"{key}.") for t in told)} == set()

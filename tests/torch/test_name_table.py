"""docs/qat.md: every name that it gives for one of MQBench's exists, with the parameters that it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnxq import plugins

pytest.importorskip("torch", reason="the extra torch is not installed")

import onnxq.torch as qat
from onnxq.torch.observers import OBSERVERS, observer_named
from onnxq.torch.parameters import parameters_of
from onnxq.torch.quantizers import QUANTIZERS, quantizer_named

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "qat.md").read_text(encoding="utf-8")
THEIRS = {
    "LearnableFakeQuantize", "NNIEFakeQuantize", "FixedFakeQuantize", "DoReFaFakeQuantize", "DSQFakeQuantize",
    "PACTFakeQuantize", "TqtFakeQuantize", "AdaRoundFakeQuantize", "QDropFakeQuantize",
    "MinMaxObserver", "EMAMinMaxObserver", "MinMaxFloorObserver", "PoTModeObserver", "EMAQuantileObserver",
    "ClipStdObserver", "LSQObserver", "LSQPlusObserver", "MSEObserver", "EMAMSEObserver", "KLDObserver",
}  # fmt: skip


def rows(section: str, width: int) -> list[list[str]]:
    part = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"]
    return [cells for cells in found if len(cells) == width and "`" in cells[0]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


NAMED = {names(cells[0])[0]: cells for cells in rows("Coming from MQBench", 4)}


def test_all_of_theirs_are_in_the_table() -> None:
    assert set(NAMED) == THEIRS


@pytest.mark.parametrize("theirs", sorted(THEIRS))
def test_ours_exist_with_these_parameters(theirs: str) -> None:
    kinds = QUANTIZERS if theirs.endswith("FakeQuantize") else OBSERVERS
    _, ours, parameters, defect = NAMED[theirs]
    assert names(ours) and set(names(ours)) <= set(kinds), ours
    given = dict(part.split("=") for part in names(parameters) if "=" in part)
    known = parameters_of(kinds[names(ours)[0]])
    assert {key: float(value) for key, value in given.items()} == known
    assert defect
    text = f"{names(ours)[0]}:{','.join(f'{k}={v}' for k, v in given.items())}" if given else names(ours)[0]
    named = (quantizer_named if kinds is QUANTIZERS else observer_named)(text)
    assert dict(getattr(named, "keywords", {})) == known


def test_the_lists_of_quantizers_and_observers_are_whole() -> None:
    assert [names(cells[0])[0] for cells in rows("Quantizers and observers", 3)] == list(QUANTIZERS)
    listed = TEXT.split("\nObservers find")[1].split("\n\n")[0]
    assert set(names(listed)) == set(OBSERVERS)


def test_calls_and_algorithms_exist() -> None:
    cells = " ".join(cells[1] for cells in rows("Coming from MQBench", 2))
    for name in re.findall(r"onnxq\.torch\.(\w+)", TEXT):
        assert callable(getattr(qat, name)), name
    algorithms = re.findall(r"--algorithm (\w+)", cells)
    assert len(algorithms) >= 3
    for name in algorithms:
        plugins.find("onnxq.algorithms", name)

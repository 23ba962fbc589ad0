"""The pages of the targets say what the tables say."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.backend import Backend
from onnxq.catalog import backends
from onnxq.rows import Never
from tests.tool import load_tool


def rows(target: Backend) -> dict[str, list[str]]:
    """Operator → the other columns of its row on the target's page."""
    lines = [line for line in load_tool("targets").page(target).splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {name.strip(): rest for name, *rest in cells}


def test_pages_are_those_of_the_tables() -> None:
    stale = [
        path.name
        for path, text in load_tool("targets").pages().items()
        if not path.exists() or path.read_text() != text
    ]
    assert not stale, "run python tools/targets.py"


@pytest.mark.parametrize("target", backends(), ids=lambda target: target.name)
def test_a_condition_is_told(target: Backend) -> None:
    """Readers see the first line of a condition's docstring: which nodes are quantized."""
    page = rows(target)
    for op, rule in target.rules.items():
        if rule.when is None:
            continue
        quantized, note = page[op]
        if isinstance(rule.when, Never):
            assert quantized == f"nothing: {rule.when.fate}" and note == rule.when.reason
        else:
            assert "data" in quantized or "weights" in quantized
            assert "only a " in note or "only an " in note or "only one " in note, f"{op}: {note}"


def test_a_row_that_refuses_all_is_marked() -> None:
    """Such a condition is a constant, and no function: then the page can tell."""
    node = ir.Node("", "Anything", [ir.Value(name="x")])
    assert Never("no kernel")(node) == "no kernel"
    assert rows_named("tensorrt")["Reshape"][0] == "nothing: passed through"
    assert rows_named("tensorrt_fp8")["ConvTranspose"][0] == "nothing: stays float"
    assert rows_named("nnie")["Softmax"][0] == "nothing: stays float"


def rows_named(name: str) -> dict[str, list[str]]:
    return rows(next(target for target in backends() if target.name == name))


def test_the_index_tells_grids_apart() -> None:
    index = next(text for path, text in load_tool("targets").pages().items() if path.name == "README.md")
    lines = {line.split("]")[0].removeprefix("| ["): line for line in index.splitlines() if line.startswith("| [")}
    assert "| float8 symmetric | float8 symmetric |" in lines["tensorrt_fp8"]
    assert lines["nnie"].count("int8 symmetric, logarithmic") == 2
    assert lines["vitis"].count("int8 symmetric, power of two") == 2


def test_every_format_is_explained_in_a_line() -> None:
    known = load_tool("targets").FORMATS
    assert not {name for target in backends() for name in target.formats if len(known.get(name, "")) < 20}

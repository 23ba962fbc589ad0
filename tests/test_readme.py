"""README.md tells the truth: its examples run, its tables are those of the parser, CI runs its test command."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from onnxq.config import Config

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_readme", ROOT / "tools" / "readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses ask for it
    spec.loader.exec_module(module)
    return module


def test_tables_are_those_of_the_parser(readme: ModuleType) -> None:
    assert readme.tables(TEXT) == TEXT, "run python tools/readme.py"
    assert "| `--weight-bits` N | `weight_bits` |" in TEXT
    assert "| 130 | interrupted |" in TEXT


def test_every_verb_has_an_example(readme: ModuleType) -> None:
    shown = {line.split()[1] for b in readme.blocks(TEXT) if b.language == "console" for line in readme.commands(b)}
    assert shown == set(readme.verb_parsers())


def test_examples_run(readme: ModuleType, tmp_path: Path) -> None:
    """Exit codes are 0, and labels and first words of the output are those that are printed in the file."""
    played = 0
    for block, results in readme.play(TEXT, tmp_path):
        played += 1
        if block.language == "console":
            assert [code for _, code, _ in results] == [0] * len(results), block.body
            assert _labels("".join(f"$ {line}\n{out}" for line, _, out in results)) == _labels(block.body)
    assert played > 10


def _labels(text: str) -> list[str]:
    """Commands whole; of other lines the label at their start, without numbers."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(line)
        elif label := re.match(r"  (\S+)  ", line):
            found.append(re.sub(r"[\d.,]+", "#", label[1]))
    return found


def test_configuration_has_only_keys_that_exist(readme: ModuleType, tmp_path: Path) -> None:
    block = next(b for b in readme.blocks(TEXT) if b.language == "toml")
    (tmp_path / "c.toml").write_text(block.body, encoding="utf-8")
    config = Config.read(tmp_path / "c.toml", run_keys=("model", "data", "output", "backend"))
    keys = set(re.findall(r"^(\w+) = ", block.body.partition("[override]")[0], re.M))
    assert set(config.run) | set(config.options) == keys | {"override"}


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_both_commands_start_from_nothing_and_ci_runs_the_second(readme: ModuleType) -> None:
    demo, test = readme.command(TEXT, "demo"), readme.command(TEXT, "test")
    for command in (demo, test):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert demo.endswith("onnxq demo")
    assert test.endswith("pytest")
    assert "<!-- command: test -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")

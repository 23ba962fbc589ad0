"""README.md and docs/ tell the truth: examples run, tables are those of the parser, links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import onnxq
from onnxq import plugins
from onnxq.calibration.ranges import select_range
from onnxq.calibration.statistics import TensorStatistics
from onnxq.cli import main
from onnxq.demo.data import MODEL, load_digits
from onnxq.options.config import Config
from onnxq.ort.overflow import products_overflow
from onnxq.spec import QuantSpec
from tests.tool import load_tool

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    return load_tool("docs")


def test_tables_are_those_of_the_parser(docs: ModuleType) -> None:
    for page in docs.TABLES:
        text = page.read_text(encoding="utf-8")
        assert docs.tables(text) == text, f"run python tools/docs.py: {page.name}"
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert "| `--weight-bits` N | `weight_bits` |" in text
    assert "| `--max-drop` X | `max_drop` |" in text
    assert "| 130 | interrupted |" in text


def test_every_verb_has_an_example(docs: ModuleType) -> None:
    shown = {line.split()[1] for b in docs.blocks() if b.language == "console" for line in docs.commands(b)}
    assert shown == set(docs.verb_parsers())


def test_examples_run(docs: ModuleType, tmp_path: Path) -> None:
    """Exit codes are 0, and labels and first words of the output are those that are printed in the file."""
    played = 0
    for block, results in docs.play(tmp_path, _in_this_process):
        played += 1
        if block.language == "console":
            usual = {0, 3} if products_overflow() else {0}  # 3: check warns of a model that stays float
            assert {code for _, code, _ in results} <= usual, block.body
            printed = _labels("".join(f"$ {line}\n{out}" for line, _, out in results))
            assert products_overflow() or printed == _labels(block.body), "the pages are of a processor with VNNI"
    assert played > 10


def _in_this_process(line: str, folder: Path) -> tuple[int, str]:
    """Exit code and stdout of an ``onnxq`` command, run in the current folder, which is this one."""
    program, *arguments = shlex.split(line)
    assert program == "onnxq" and Path.cwd() == folder
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
        code = main(arguments)
    return code, printed.getvalue()


def _labels(text: str) -> list[str]:
    """Commands whole; of other lines the label at their start, without numbers."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(line)
        elif label := re.match(r"  (\S+)  ", line):
            found.append(re.sub(r"[\d.,]+", "#", label[1]))
    return found


def test_configuration_has_only_keys_that_exist(docs: ModuleType, tmp_path: Path) -> None:
    block = next(b for b in docs.blocks() if b.language == "toml")
    (tmp_path / "c.toml").write_text(block.body, encoding="utf-8")
    config = Config.read(tmp_path / "c.toml", run_keys=("model", "data", "output", "backend"))
    keys = set(re.findall(r"^(\w+) = ", block.body.partition("[override]")[0], re.M))
    assert set(config.run) | set(config.options) == keys | {"override"}


def test_extensions_work(docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range method and the backend that are printed, installed as the entry points that are printed."""
    package, info = tmp_path / "my_package", tmp_path / "my_package-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    for block in docs.blocks():
        if block.name in ("half.py", "mychip.py", "shrink.py"):
            (package / block.name).write_text(block.body, encoding="utf-8")
    printed = next(b.body for b in docs.blocks() if "entry-points" in b.body)
    entry_points = re.sub(r'\[project\.entry-points\."(.+)"\]', r"[\1]", printed).replace('"', "")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.refresh()
    try:
        stats = TensorStatistics("t", count=1, min=-2.0, max=8.0)
        assert select_range(stats, QuantSpec(range="half")) == (-1.0, 4.0)
        assert select_range(stats, QuantSpec(range="half:0.25")) == (-0.5, 2.0)
        options = onnxq.Options(range="half", placement="all")
        data = load_digits().calibration[:8]
        quantized = onnxq.quantize(MODEL, data, backend="mychip", options=options, output=tmp_path / "out")
        plain = onnxq.Options(placement="all", effort="fast")
        before = onnxq.quantize(MODEL, data, options=plain)
        after = onnxq.quantize(MODEL, data, options=replace(plain, algorithms=("shrink:by=0.5",)))
    finally:
        plugins.refresh()
        for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
            del sys.modules[name]
    assert set(quantized.plan.quantized.values()) == {"Conv", "MaxPool"}
    activations = [site.name for site in quantized.plan.sites if site.role == "activation"]
    assert activations
    assert all(not quantized.qparams[name].zero_point.any() for name in activations)
    for site in before.plan.sites:
        by = {"activation": 1.0, "weight": 0.5, "bias": 0.5}[site.role]
        np.testing.assert_allclose(after.qparams[site.name].scale, by * before.qparams[site.name].scale, rtol=1e-6)
    assert "shrink: ranges of weights by 0.5" in after.notes
    scales = json.loads((tmp_path / "out" / "digits_mychip.scales.json").read_text())
    assert scales == {name: float(quantized.qparams[name].scale) for name in activations}


def test_links_lead_somewhere() -> None:
    """Files exist, and so do headings that are linked to."""
    links = [(page, link) for page in PAGES for link in _links(page) if "://" not in link]
    assert len(links) > 50
    for page, link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in _anchors(target), f"{page.name}: {link}"


def _links(page: Path) -> list[str]:
    return re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    )


def _anchors(page: Path) -> set[str]:
    """What a heading is linked by: its words in small letters with dashes between them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)}


def test_both_commands_start_from_nothing_and_ci_runs_the_second(docs: ModuleType) -> None:
    demo, test = docs.command("demo"), docs.command("test")
    for command in (demo, test):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert demo.endswith("onnxq demo")
    assert "python -m pytest" in test
    assert "<!-- command: test -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")

"""Models that ship with the onnx package: a sample of what ``tools/onnx_models.py`` runs in full."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import Quantized, quantize
from tests.foreign import Case, cases
from tests.models import build, normal
from tests.verdict import judge

TOOL = Path(__file__).resolve().parents[2] / "tools" / "onnx_models.py"
MODULES = ("conv", "gemm", "matmul", "softmax", "globalaveragepool", "if_", "splittosequence")


def outcomes(found: list[Case], backend: str = "onnxruntime") -> Counter[str]:
    """How many models came out how; none may be a fault."""
    verdicts = {case.name: judge(case, backend) for case in found}
    faults = [f"{name}: {verdict.text}" for name, verdict in verdicts.items() if verdict.outcome == "FAULT"]
    assert not faults, "\n".join(faults)
    return Counter(verdict.outcome for verdict in verdicts.values())


@pytest.mark.parametrize(("group", "step"), [("simple", 3), ("pytorch-operator", 3), ("pytorch-converted", 6)])
def test_models_on_disk(group: str, step: int) -> None:
    found = list(cases([group]))
    assert len(found) > 20
    counted = outcomes(found[::step])
    assert counted["quantized"]
    assert counted["quantized"] + counted["untouched"] > counted["refused"]


@pytest.mark.parametrize(("group", "step", "least"), [("node", 3, 3), ("node, constants", 3, 5)])
def test_node_tests(group: str, step: int, least: int) -> None:
    counted = outcomes(list(cases([group], MODULES))[::step])
    assert counted["quantized"] >= least


@pytest.mark.parametrize("backend", ["ppl", "ppl_cuda"])
def test_a_table_with_tensors_of_a_loop_is_read_back(backend: str) -> None:
    """What goes into the body of a Loop has a line of its own."""
    found = [case for case in cases(["node, constants"], ("loop",)) if case.name == "test_loop11"]
    assert outcomes(found, backend) == Counter(quantized=1)


def test_the_judge_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("(float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")
    feeds = ({"x": np.ones((2, 3), np.float32)},)
    case = Case("simple", "relu", model.SerializeToString(), feeds)
    assert judge(case).outcome == "untouched"
    undefined = onnx.ModelProto.FromString(model.SerializeToString())
    undefined.graph.node[0].input[0] = "nothing"
    verdict = judge(Case("simple", "undefined", undefined.SerializeToString(), feeds))
    assert verdict.outcome == "refused" and "nothing" in verdict.text

    def crash(*_: object, **__: object) -> Quantized:
        raise RuntimeError("a bug")

    def change(source: onnx.ModelProto, *args: Any, **more: Any) -> Quantized:
        source.doc_string = "changed"
        return quantize(source, *args, **more)

    def other(source: onnx.ModelProto, *args: Any, **more: Any) -> Quantized:
        wrong = build("(float[2, 3] x) => (float[2, 3] y) { y = Abs (x) }")
        return quantize(wrong, [{"x": -feeds[0]["x"]}], **more)

    for replaced, words in ((crash, "RuntimeError: a bug"), (change, "was changed"), (other, "differs")):
        monkeypatch.setattr("tests.verdict.quantize", replaced)
        verdict = judge(Case("simple", "relu", case.source, ({"x": -feeds[0]["x"]},)))
        assert verdict.outcome == "FAULT" and words in verdict.text, verdict


def test_the_judge_sees_what_other_verbs_do_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("(float[2, 8] x) => (float[2, 4] y) { y = MatMul (x, w) }", w=normal(8, 4))
    case = Case("simple", "product", model.SerializeToString(), ({"x": normal(2, 8, seed=1)},))
    assert judge(case).outcome == "quantized"

    def crash(*_: object, **__: object) -> Quantized:
        raise RuntimeError("a bug")

    def other(source: object, *, backend: str) -> Quantized:
        wrong = build("(float[2, 8] x) => (float[2, 4] y) { y = MatMul (x, w) }", w=-normal(8, 4))
        return quantize(wrong, list(case.feeds), backend=backend)

    for name in ("tests.verdict_verbs.verify", "tests.verdict_verbs.compare", "onnxq.show", "onnxq.plan"):
        with monkeypatch.context() as patch:
            patch.setattr(name, crash)
            verdict = judge(case)
        assert verdict.outcome == "FAULT" and "RuntimeError: a bug" in verdict.text, name
    for replaced, words in ((crash, "RuntimeError: a bug"), (other, "output 'y' has")):
        monkeypatch.setattr("tests.verdict_verbs.deploy", replaced)
        verdict = judge(case)
        assert verdict.outcome == "FAULT" and words in verdict.text, verdict


def test_the_program_writes_verdicts_and_reads_them(tmp_path: Path) -> None:
    def call(*arguments: str) -> str:
        done = subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    path = tmp_path / "verdicts.jsonl"
    text = call("--group", "simple", "--match", "test_si*", "--workers", "1", "--json", str(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = {case.name for case in cases(["simple"]) if case.name.startswith("test_si")}
    assert names and {(r["placement"], r["name"]) for r in rows} == {(p, n) for p in ("all", "auto") for n in names}
    for placement in ("all", "auto"):
        counted = Counter(row["outcome"] for row in rows if row["placement"] == placement)
        cells = [len(names), *(counted[outcome] for outcome in ("quantized", "untouched", "refused", "FAULT"))]
        assert f"| onnxruntime | {placement} | simple | {' | '.join(map(str, cells))} |" in text.splitlines()
    kept = "".join(path.read_text().splitlines(keepends=True)[:-1])
    path.write_text(kept)
    again = call("--group", "simple", "--match", "test_si*", "--workers", "1", "--json", str(path), "--resume")
    assert again == text
    assert path.read_text().startswith(kept), "what was there was run again"
    assert call("--read", str(path)) == text

"""Every model on which quantizers are known to fail, by the judge that ``tools/cases.py`` asks of others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxq import Options, quantize
from onnxq.options import Placement
from tests.cases import CASES, Case
from tests.cases.judge import VERDICTS, Judgement, Verdict, judge
from tests.cases.ours import onnxq
from tests.cases.report import GROUPS, PAGE, report

PLACEMENTS: tuple[Placement, ...] = ("auto", "all")
SOUND = next(case for case in CASES if case.name == "file_in")
IN_MEMORY = next(case for case in CASES if case.name == "modelproto_input_not_mutated")


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("case", CASES, ids=[f"{case.group}-{case.name}" for case in CASES])
def test_onnxq_gets_it_right(case: Case, placement: Placement) -> None:
    found = judge(case, onnxq(placement))
    assert found.verdict == "fine", f"{found.verdict}: {found.text}"


def test_names_are_unique_and_every_group_has_cases() -> None:
    assert max(Counter(case.name for case in CASES).values()) == 1
    assert {case.group for case in CASES} == set(GROUPS)
    assert all(case.about.endswith(".") for case in CASES)


Result = onnx.ModelProto


def raises(result: Result, given: Any) -> None:
    raise KeyError("a")


def no_scale(result: Result, given: Any) -> None:
    node = next(n for n in result.graph.node if n.op_type == "QuantizeLinear")
    node.input[1] = "nowhere"


def other_output(result: Result, given: Any) -> None:
    result.graph.node.append(helper.make_node("Identity", [result.graph.output[0].name], ["z"]))
    result.graph.output[0].name = "z"


def wrong_scale(result: Result, given: Any) -> None:
    node = next(n for n in result.graph.node if n.op_type == "DequantizeLinear" and n.input[0].startswith("w"))
    scale = next(t for t in result.graph.initializer if t.name == node.input[1])
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(2), scale.name))


def float_model(result: Result, given: Any) -> None:
    result.CopyFrom(onnx.load(given) if isinstance(given, Path) else given)


def changes_the_model(result: Result, given: Any) -> None:
    if isinstance(given, Path):
        given.write_bytes(given.read_bytes() + b"\x00")
    else:
        given.doc_string = "mine"


def leaves_a_file(result: Result, given: Any) -> None:
    (given.parent / "temporary").write_bytes(b"")


@pytest.mark.parametrize(
    ("case", "fault", "verdict"),
    [
        (SOUND, None, "fine"),
        (SOUND, raises, "crash"),
        (SOUND, no_scale, "invalid file"),
        (SOUND, other_output, "interface changed"),
        (SOUND, wrong_scale, "wrong numbers"),
        (SOUND, float_model, "silently less"),
        (SOUND, changes_the_model, "input changed"),
        (IN_MEMORY, changes_the_model, "input changed"),
        (SOUND, leaves_a_file, "files left"),
        (replace(SOUND, refuse="'b'"), raises, "crash"),
        (replace(SOUND, refuse="'a'"), raises, "files left"),
        (replace(SOUND, asked={"exclude": ("c1",)}), None, "silently less"),
        (replace(SOUND, median=1000.0, say="nobody says this"), None, "silently less"),
        (replace(SOUND, channel=1000.0), None, "silently less"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or getattr(value, "name", None) or str(value),
)
def test_the_judge_finds_every_kind_of_fault(
    case: Case, fault: Callable[[Result, Any], None] | None, verdict: Verdict
) -> None:
    """A quantizer that is right but for one fault, made on purpose."""

    def faulty(
        case: Case, source: onnx.ModelProto | Path, feeds: Sequence[Mapping[str, NDArray[Any]]], output: Path
    ) -> str:
        quantize(source, list(feeds), options=Options(placement="all"), output=output)
        if fault is not None:
            result = onnx.load(output)
            fault(result, source)
            onnx.save(result, output)
        return ""

    assert judge(case, faulty).verdict == verdict


def test_the_report_counts_and_explains() -> None:
    fine, crash = Judgement("fine"), Judgement("crash", "KeyError: 'a' | b")
    page = report([(SOUND, fine, fine, fine), (IN_MEMORY, fine, crash, crash)])
    assert "| G16 Files | 2 | 1 | 2 | 1 |" in page
    assert f"| crash | 1 | {VERDICTS['crash']} |" in page
    assert f"| `{IN_MEMORY.name}` | {IN_MEMORY.about} | **crash**: KeyError: 'a' \\| b |" in page
    assert SOUND.name not in page


def test_the_page_is_about_these_cases() -> None:
    """``python tools/cases.py --write`` brings it up to date."""
    page = PAGE.read_text(encoding="utf-8")
    found = {m[1]: (int(m[2]), int(m[3])) for m in re.finditer(r"^\| (G\d+) .*? \| (\d+) \| (\d+) \|", page, re.M)}
    counts = Counter(case.group for case in CASES)
    assert found == {group: (counts[group], counts[group]) for group in GROUPS}

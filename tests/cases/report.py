"""The page about all cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnxruntime

from tests.cases.case import Case
from tests.cases.judge import VERDICTS, Judgement

__all__ = ["GROUPS", "PAGE", "Row", "passed", "report"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cases.md"
GROUPS = {
    "G1": "Graph structure",
    "G2": "Opset, IR version, initializers as inputs",
    "G3": "Element types",
    "G4": "Shapes, empty and scalar tensors",
    "G5": "Shared and equal tensors",
    "G6": "Forms of constants",
    "G7": "Operators",
    "G8": "Numerical extremes",
    "G9": "Calibration data",
    "G10": "Algorithms",
    "G11": "Subgraphs and functions",
    "G12": "Names",
    "G13": "Models that are quantized already",
    "G14": "Outputs that are read inside",
    "G15": "Custom operators and domains",
    "G16": "Files",
}
Row = tuple[Case, Judgement, Judgement, Judgement | None]
"""A case, onnxq at its defaults, with placement "all", and onnxruntime's quantizer where it can be asked."""


def report(rows: Sequence[Row]) -> str:
    """The page: figures by group, what each verdict means, then every case on which onnxruntime's quantizer fails."""
    asked = [row for row in rows if row[3] is not None]
    theirs = sum(row[3].verdict == "fine" for row in asked if row[3])
    lines = [
        "# Hard cases",
        "",
        f"{len(rows)} tiny models on which quantizers are known to fail. onnxq and the quantizer of",
        f"onnxruntime {onnxruntime.__version__} get the same model and data, and one judge looks at what comes out. Of",
        f"the {len(asked)} that can be asked of both, onnxruntime's quantizer gets {theirs} right and onnxq",
        f"{sum(map(passed, asked))}. Made by `python tools/cases.py --write`, which says how each is asked;",
        "`tests/end_to_end/test_cases.py` holds onnxq to all of them.",
        "",
        "| group | cases | onnxq | asked of both | onnxruntime's quantizer |",
        "|---|--:|--:|--:|--:|",
    ]
    for group, title in (*GROUPS.items(), ("", "all")):
        some = [row for row in rows if row[0].group == group or not group]
        both = [row[3] for row in some if row[3] is not None]
        right = sum(found.verdict == "fine" for found in both)
        name = f"{group} {title}".strip()
        lines.append(f"| {name} | {len(some)} | {sum(map(passed, some))} | {len(both)} | {right} |")
    lines += [
        "",
        "onnxq passes a case if it is right at its defaults and with placement `all`; onnxruntime's quantizer if it is",
        "right with or without its pre-processing.",
        "",
        "## What goes wrong in onnxruntime's quantizer",
        "",
        "| verdict | cases | meaning |",
        "|---|--:|---|",
    ]
    for verdict, meaning in VERDICTS.items():
        count = sum(row[3].verdict == verdict for row in asked if row[3])
        if count and verdict != "fine":
            lines.append(f"| {verdict} | {count} | {meaning} |")
    for group, title in GROUPS.items():
        failed = [row for row in asked if row[0].group == group and row[3] and row[3].verdict != "fine"]
        if failed:
            lines += ["", f"### {group} {title}", "", "| case | what is right | what it does |", "|---|---|---|"]
            lines += [_failure(case, found) for case, _, _, found in failed if found]
    return "\n".join(lines) + "\n"


def passed(row: Row) -> bool:
    """Whether onnxq is right at its defaults and with placement "all"."""
    return row[1].verdict == row[2].verdict == "fine"


def _failure(case: Case, found: Judgement) -> str:
    text = found.text.replace("|", "\\|").replace("<", "\\<")
    return f"| `{case.name}` | {case.about} | **{found.verdict}**: {text} |"

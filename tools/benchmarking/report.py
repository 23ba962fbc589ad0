"""The results of a benchmark as a Markdown table and as JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["describe_machine", "markdown", "memory_markdown", "replace_section", "write_json"]

HEAD = (
    "model",
    "tool",
    "CPU s",
    "of float",
    "peak MB",
    "SQNR dB",
    "metric",
    "file MB",
    "latency",
    "remarks",
)
RIGHT = range(2, 9)
_LONGEST = 140


def markdown(models: Sequence[Mapping[str, Any]]) -> str:
    """A row for the float model, a row a tool.

    Args:
        models: what `tools/benchmark.py` found, a model each.
    """
    rows = []
    for model in models:
        base = model.get("float", {})
        name = f"{model['model']} ({model.get('samples', 0)})"
        if "error" in model:
            rows.append([name, "", *[""] * 7, model["error"]])
            continue
        metric = f"{model['metric']} {number(base.get('metric'), 3)}" if base.get("metric") is not None else ""
        rows.append(
            [name, "float", number(base.get("cpu"), 2), "1", "", "", metric, number(base.get("file_mb"), 2), "1", ""]
        )
        for tool in model["tools"]:
            remark = _remark(tool)
            if "cpu" not in tool:
                rows.append(["", tool["title"], *[""] * 7, remark])
                continue
            rows.append(
                [
                    "",
                    tool["title"],
                    number(tool["cpu"], 1),
                    number(tool.get("times_float"), 1),
                    number(tool["peak_mb"], 0),
                    number(tool.get("sqnr"), 1),
                    number(tool.get("metric"), 3),
                    number(tool.get("file_mb"), 2),
                    number(tool.get("latency"), 2),
                    remark,
                ]
            )
    return table(HEAD, rows, RIGHT)


def memory_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Peak memory by number of samples."""
    cells = []
    for row in rows:
        least = row["peak_mb"][0] if row["peak_mb"] and row["peak_mb"][0] else math.nan
        for count, peak, error in zip(row["counts"], row["peak_mb"], row["errors"], strict=True):
            change = "" if peak is None else f"{100 * (peak / least - 1):+.1f} %"
            cells.append([row["model"], str(count), number(peak, 0), change, error or ""])
    return table(("model", "samples", "peak MB", "change", "remarks"), cells, range(1, 4))


def describe_machine(threads: int) -> str:
    """Processor, cores and versions in a line, and the command line."""
    flags = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        flags = cpuinfo.read_text(encoding="utf-8", errors="replace")
    vector = next((t for f, t in (("avx512_vnni", "AVX512-VNNI"), ("avx_vnni", "AVX-VNNI")) if f in flags), "no VNNI")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("onnxq", "onnxruntime", "onnx", "numpy"))
    hidden = {"-o", "--output", "--page", "--section"}
    words = [w for i, w in enumerate(sys.argv[1:]) if w not in hidden and sys.argv[i] not in hidden]
    command = shlex.join(["python", f"tools/{Path(sys.argv[0]).name}", *words])
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {vector}; {threads} thread(s) a session; "
        f"Python {platform.python_version()}, {versions}.\n\n    {command}\n"
    )


def replace_section(page: Path, name: str, text: str) -> None:
    """Put a text between ``<!-- section: NAME -->`` and the ``<!-- end -->`` that follows.

    Raises:
        ValueError: the page has no such section.
    """
    before, mark, rest = page.read_text(encoding="utf-8").partition(f"<!-- section: {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not mark or not end:
        raise ValueError(f"{page} has no section {name!r}")
    page.write_text(f"{before}{mark}\n{text}\n{end}{after}", encoding="utf-8")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON without NaN and infinity, which become null and a large number's text."""
    path.write_text(json.dumps(_plain(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _remark(tool: Mapping[str, Any]) -> str:
    """Error and remark, shortened for a cell."""
    text = "; ".join(text for text in (tool.get("error"), tool.get("remark")) if text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def number(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    if not math.isfinite(value):
        return "exact" if value > 0 else "-"
    return f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "|".join("--:" if i in right else "---" for i in range(len(head))) + "|")
    lines += ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"

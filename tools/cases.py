"""Runs the models on which quantizers are known to fail through onnxq and onnxruntime's own quantizer.

Both get the same model and data and are judged by the same judge (`tests.cases.judge`):

    python tools/cases.py            # the table
    python tools/cases.py --write    # and docs/cases.md

onnxruntime's quantizer is `quantize_static` with uint8 activations and int8 weights. It is asked twice, behind
`quant_pre_process` as its documentation recommends (without symbolic shape inference where that fails) and alone; a
case counts as passed if either result is right. Exit code 1 if onnxq fails a case.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.cases import CASES, Case  # noqa: E402
from tests.cases.judge import Judgement, Quantizer, judge  # noqa: E402
from tests.cases.ours import onnxq  # noqa: E402
from tests.cases.report import PAGE, Row, passed, report  # noqa: E402


def theirs(*, prepared: bool) -> Quantizer:
    """onnxruntime's quantizer, behind its pre-processing or alone."""

    def run(
        case: Case, source: onnx.ModelProto | Path, feeds: Sequence[Mapping[str, NDArray[Any]]], output: Path
    ) -> str:
        from onnxruntime.quantization import QuantType, quantize_static

        from tests.reader import Reader

        asked = dict(case.asked)
        extra: dict[str, Any] = {"ActivationSymmetric": True} if asked.pop("symmetric", False) else {}
        method = _method("distribution" if asked.get("weight_bits") == "fp8" else str(asked.pop("range", "")), extra)
        types = {4: "QInt4", 8: "QInt8", "fp8": "QFLOAT8E4M3FN"}, {8: "QUInt8", 16: "QUInt16", "fp8": "QFLOAT8E4M3FN"}
        weight, activation = (
            QuantType[names[asked.pop(key, 8)]] for names, key in zip(types, ("weight_bits", "act_bits"), strict=True)
        )
        excluded = list(asked.pop("exclude", ()))
        with tempfile.TemporaryDirectory() as folder:
            quantize_static(
                _prepared(source, Path(folder)) if prepared else source,
                output,
                Reader(feeds),
                activation_type=activation,
                weight_type=weight,
                nodes_to_exclude=excluded,
                calibrate_method=method,
                extra_options=extra,
                **asked,
            )
        return ""

    return run


def _method(name: str, extra: dict[str, Any]) -> Any:
    from onnxruntime.quantization import CalibrationMethod

    if name.startswith("percentile"):
        extra["CalibPercentile"] = float(name.partition(":")[2])
    return CalibrationMethod[{"": "MinMax"}.get(name, name.partition(":")[0].title())]


def _prepared(source: onnx.ModelProto | Path, folder: Path) -> Path:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = folder / "prepared.onnx"
    for skip in (False, True):
        with suppress(Exception):
            quant_pre_process(source, path, skip_symbolic_shape=skip)
            return path
    raise RuntimeError("quant_pre_process fails")


def _run(index: int) -> tuple[Judgement, Judgement, Judgement | None]:
    case = CASES[index]
    auto, everything = judge(case, onnxq("auto")), judge(case, onnxq("all"))
    if case.theirs:
        return auto, everything, None
    logging.getLogger().setLevel(logging.WARNING)
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
        plain = judge(case, theirs(prepared=False))
        peer = plain if plain.verdict == "fine" else judge(case, theirs(prepared=True))
    recommended_fails = "quant_pre_process fails" in peer.text
    return auto, everything, plain if recommended_fails else peer


def run() -> list[Row]:
    """All cases, in a process of their own so that a crash ends none but that."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return [(case, *pool.submit(_run, index).result()) for index, case in enumerate(CASES)]


def main() -> int:
    """Print the table, write it where asked to; 1 if onnxq fails a case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/cases.md")
    arguments = parser.parse_args()
    rows = run()
    page = report(rows)
    print(page)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")
    wrong = [row for row in rows if not passed(row)]
    for case, auto, everything, _ in wrong:
        for how, found in (("auto", auto), ("all", everything)):
            if found.verdict != "fine":
                print(f"onnxq fails {case.group} {case.name} ({how}): {found.verdict}: {found.text}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

"""onnxq, as `tests.cases.judge` asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxq import Options, quantize
from onnxq.options import Placement
from tests.cases.case import Case
from tests.cases.judge import Quantizer

__all__ = ["onnxq"]


def onnxq(placement: Placement) -> Quantizer:
    """onnxq with everything at its defaults but what a case asks for, and the placement."""

    def run(
        case: Case, source: onnx.ModelProto | Path, feeds: Sequence[Mapping[str, NDArray[Any]]], output: Path
    ) -> str:
        options = Options(placement=placement, **case.asked)
        result = quantize(source, list(feeds), options=options, output=output)
        verification = result.verification
        said = [f"{kept.node}: {kept.reason}" for kept in result.plan.kept_float]
        said += [f"{name}: weights stored as integers" for name in result.plan.stored]
        said += [*result.notes, *(verification.warnings if verification else ())]
        return "\n".join(said)

    return run

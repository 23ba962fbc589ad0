"""Models that ship with the onnx package: a sample of what ``tools/onnx_models.py`` runs in full."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import Quantized, quantize
from tests.foreign import Case, cases
from tests.models import build
from tests.verdict import judge

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

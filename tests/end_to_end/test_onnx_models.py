"""Models that ship with the onnx package: a sample of what ``tools/onnx_models.py`` runs in full."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest

from tests.foreign import Case, cases, judge
from tests.models import build

MODULES = ("conv", "gemm", "matmul", "softmax", "globalaveragepool", "if", "qlinearmatmul", "split_to_sequence")


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


def test_node_tests_with_constants() -> None:
    found = list(cases(["node, constants"], MODULES))
    counted = outcomes(found)
    assert counted["quantized"] > 10
    assert counted["quantized"] > counted["refused"]


def test_what_is_broken_is_a_fault() -> None:
    good = build("(float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")
    wrong = onnx.ModelProto.FromString(good.SerializeToString())
    wrong.graph.node[0].input[0] = "nothing"
    named = Case("simple", "wrong", wrong.SerializeToString(), ({"x": [[0.0] * 3] * 2},))
    assert judge(named).outcome == "refused"
    assert judge(Case("simple", "good", good.SerializeToString(), ({"x": [[0.0] * 3] * 2},))).outcome != "FAULT"
    odd = Case("simple", "odd", good.SerializeToString(), ({"x": object()},))
    assert judge(odd).outcome in ("refused", "FAULT")

"""Both that refuse a model with such an operator, onnx's checker and onnxruntime, say the same."""

from __future__ import annotations

import onnx
import pytest

import onnxq
from onnxq.errors import ExecutionError, ModelError
from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.unknown_operator import unknown_operator
from onnxq.ort.session import Session
from tests.graph.helpers import build


def model(op: str, opset: int, name: str = "[left]") -> onnx.ModelProto:
    inputs = "x, x" if op == "Upsample" else "x"
    return build(f"tf2onnx (float[4] x) => (float[4] y) {{ {name} y = {op} ({inputs}) }}", opset=opset)


@pytest.mark.parametrize(
    ("op", "what", "hint"),
    [
        ("Erfc", "no opset of ONNX has an operator Erfc: the exporter left", "with other operators in the source"),
        ("Gelu", "opset 15, which the model is of, has no operator Gelu: it came with 20", "with opset 20 or above"),
        ("Upsample", "has no operator Upsample any more: 9 was the last one", "that writes opset 15 rightly"),
    ],
)
def test_what_it_is_and_what_to_do(op: str, what: str, hint: str) -> None:
    made = load(model(op, 15))
    with pytest.raises(ModelError) as checked:
        check(made)
    with pytest.raises(ExecutionError) as loaded:
        Session(made)
    for error in (checked.value, loaded.value):
        assert error.where == f"node 'left' ({op})"
        assert what in error.what
        assert error.hint is not None and hint in error.hint


def test_a_node_without_a_name() -> None:
    with pytest.raises(ExecutionError) as loaded:
        Session(model("Erfc", 15, name="").SerializeToString())
    assert loaded.value.where == "operator Erfc"


def test_it_is_one_finding_that_does_not_send_to_check() -> None:
    (found,) = [f for f in onnxq.check(model("Erfc", 15)) if f.level == "error"]
    assert found.where == "node 'left' (Erfc)"
    assert "onnxq check" not in found.hint


def test_other_messages() -> None:
    assert unknown_operator("Type Error: Type 'tensor(int64)' of input parameter (x) is invalid") is None

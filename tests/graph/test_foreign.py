from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.foreign import infer_foreign
from onnxq.graph.passes.normalize import normalize
from tests.models import build, normal


def types(model: ir.Model) -> dict[str, tuple[ir.DataType | None, list[object] | None]]:
    return {
        v.name or "": (v.dtype, None if v.shape is None else [d if isinstance(d, int) else d.value for d in v.shape])
        for node in model.graph
        for v in node.outputs
    }


def test_types_behind_an_operator_of_onnxruntime() -> None:
    model = load(
        build(
            """(float[N, 8] x) => (float[N, 4] y) {
                g = com.microsoft.Gelu (x)
                r = Relu (g)
                y = MatMul (r, w)
            }""",
            domains={"com.microsoft": 1},
            w=normal(8, 4),
        )
    )
    normalize(model)
    assert types(model)["g"][0] is None, "onnx knows nothing of it"
    notes = infer_foreign(model)
    assert [str(note) for note in notes] != []
    assert types(model)["g"] == (ir.DataType.FLOAT, ["N", 8])
    assert types(model)["r"] == (ir.DataType.FLOAT, ["N", 8])
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert infer_foreign(model) == []


@pytest.mark.parametrize("domain", ["", "my.ops."])
def test_nothing_to_do_or_nothing_that_can_be_done(domain: str) -> None:
    model = load(
        build(f"(float[N, 8] x) => (float[N, 8] y) {{ g = {domain}Relu (x)  y = Neg (g) }}", domains={"my.ops": 1})
    )
    normalize(model)
    assert infer_foreign(model) == []

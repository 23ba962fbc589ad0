from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.foreign import infer_foreign
from onnxq.graph.passes.normalize import normalize
from onnxq.graph.traverse import all_graphs, all_nodes
from tests.models import build, normal


def types(model: ir.Model) -> dict[str, tuple[ir.DataType | None, list[object] | None]]:
    return {
        v.name or "": (v.dtype, None if v.shape is None else [d if isinstance(d, int) else d.value for d in v.shape])
        for node in all_nodes(model)
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


def test_types_inside_branches_and_bodies() -> None:
    """A branch reads tensors and constants from outside, a body its own inputs; both hold such operators."""
    model = load(
        build(
            """(float[N, 8] x, bool c) => (float[N, 4] y) {
                o = com.microsoft.QuickGelu (x)
                y = If (c) <
                    then_branch = g1 () => (float[N, 4] t) {
                        g = com.microsoft.Gelu (o) \n r = Relu (g) \n t = MatMul (r, w)
                    },
                    else_branch = g2 () => (float[N, 4] e) {
                        l = Loop (trips, "", o) <
                            body = g3 (int64 i, bool go, float[N, 8] s) => (bool on, float[N, 8] z) {
                                on = Identity (go) \n k = com.microsoft.QuickGelu (s) \n z = Neg (k)
                            }
                        >
                        e = MatMul (l, w)
                    }
                >
            }""",
            domains={"com.microsoft": 1},
            w=normal(8, 4),
            trips=np.array(2),
        )
    )
    normalize(model)
    assert types(model)["g"][0] is None
    notes = infer_foreign(model)
    assert len([note for note in notes if note.pass_name == "foreign"]) == 3
    assert [types(model)[name] for name in ("o", "g", "r", "k")] == [(ir.DataType.FLOAT, ["N", 8])] * 4
    check(model)
    assert [[v.name for v in graph.outputs] for graph in all_graphs(model)] == [["y"], ["t"], ["e"], ["on", "z"]]


@pytest.mark.parametrize("domain", ["", "my.ops."])
def test_nothing_to_do_or_nothing_that_can_be_done(domain: str) -> None:
    model = load(
        build(f"(float[N, 8] x) => (float[N, 8] y) {{ g = {domain}Relu (x)  y = Neg (g) }}", domains={"my.ops": 1})
    )
    normalize(model)
    assert infer_foreign(model) == []


def test_shapes_where_only_types_are_written() -> None:
    """As onnxruntime's optimizer leaves a model that it converted to half precision."""
    proto = build(
        "(float[N, 8] x) => (float[N, 8] y) { g = com.microsoft.Gelu (x)  r = Relu (g)  y = Neg (r) }",
        domains={"com.microsoft": 1},
    )
    proto.graph.value_info.add(name="g").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model = load(proto)
    normalize(model)
    assert types(model)["g"] == (ir.DataType.FLOAT, None)
    assert infer_foreign(model) != []
    assert [types(model)[name] for name in ("g", "r")] == [(ir.DataType.FLOAT, ["N", 8])] * 2
    assert infer_foreign(model) == []

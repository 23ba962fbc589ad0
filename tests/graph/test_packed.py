"""A model in the flat form that is pickled, and back."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.packed import packed, unpacked
from tests.models import normal


def model() -> onnx.ModelProto:
    """Small and big initializers, one of them an output, one with a default's input; a branch; all that is said."""
    floats = onnx.TensorProto.FLOAT
    info = helper.make_tensor_value_info
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["h", "inner"], [f"{name}_out"], name=f"{name}_node")],
            name,
            [],
            [info(f"{name}_out", floats, [2, 40])],
            [numpy_helper.from_array(normal(2, 40), "inner")],
        )
        for name, op in (("then", "Add"), ("other", "Mul"))
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product", doc_string="said"),
        helper.make_node(
            "If", ["c"], ["y"], name="choice", then_branch=branches["then"], else_branch=branches["other"]
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [info("x", floats, [2, 40]), info("c", onnx.TensorProto.BOOL, [])],
        [info("y", floats, [2, 40]), info("w", floats, [40, 40])],
        [
            numpy_helper.from_array(np.array([1.0], np.float32), "small"),
            numpy_helper.from_array(normal(40, 40), "w"),
            numpy_helper.from_array(np.array(["a" * 2000, "b"], object), "words"),
        ],
        doc_string="of the graph",
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="someone")
    made.model_version, made.doc_string = 3, "of the model"
    helper.set_model_props(made, {"key": "value"})
    return made


def test_nothing_is_lost() -> None:
    given = ir.serde.deserialize_model(model())
    node = next(iter(given.graph))
    node.meta["note"] = ("a", 1)
    given.graph.initializers["w"].meta["of"] = "w"
    wanted = to_proto(given)
    found = unpacked(pickle.loads(pickle.dumps(packed(given))))
    assert to_proto(found) == wanted
    assert to_proto(given) == wanted
    assert next(iter(found.graph)).meta["note"] == ("a", 1)
    assert found.graph.initializers["w"].meta["of"] == "w"


def test_data_in_other_files_comes_along(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    given = load(tmp_path / "m.onnx")
    wanted = to_proto(given)
    flat = pickle.dumps(packed(given))
    for file in tmp_path.iterdir():
        file.unlink()
    found = unpacked(pickle.loads(flat))
    assert np.array_equal(
        numpy_helper.to_array(next(t for t in to_proto(found).graph.initializer if t.name == "w")),
        numpy_helper.to_array(next(t for t in wanted.graph.initializer if t.name == "w")),
    )

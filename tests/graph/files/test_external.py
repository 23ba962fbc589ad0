"""Tensors in data files, in whichever part of a model they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq import Options
from onnxq.graph.files.load import load
from onnxq.ort.session import Session
from tests.models import images, normal

Array = NDArray[Any]
SHAPE, OUT = [1, 8, 8, 8], [1, 16, 6, 6]


def constant(name: str, array: Array) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))


def info(name: str, shape: list[int], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def saved(
    folder: Path,
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    functions: list[onnx.FunctionProto] | None = None,
    opset: int = 17,
) -> Path:
    """A model whose tensors of 1 KiB and more, those of attributes too, are in a file beside it."""
    graph = helper.make_graph(nodes, "g", [info("x", SHAPE), info("c", [], TensorProto.BOOL)], outputs)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=8)
    path = folder / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="m.data", convert_attribute=True)
    assert (folder / "m.data").stat().st_size > 4000
    return path


def convolution(output: str = "y") -> list[onnx.NodeProto]:
    return [constant("w", normal(16, 8, 3, 3)), helper.make_node("Conv", ["x", "w"], [output], name="conv")]


def plain(folder: Path) -> Path:
    return saved(folder, convolution(), [info("y", OUT)])


def old(folder: Path) -> Path:
    return saved(folder, convolution(), [info("y", OUT)], opset=11)


def output(folder: Path) -> Path:
    nodes = [*convolution(), constant("k", normal(8, 64))]
    return saved(folder, nodes, [info("y", OUT), info("k", [8, 64])])


def branches(folder: Path) -> Path:
    weight = numpy_helper.from_array(normal(16, 8, 3, 3), "v")
    conv = helper.make_node("Conv", ["x", "v"], ["a"], name="conv")
    then = helper.make_graph([conv], "then", [], [info("a", OUT)], [weight])
    other = helper.make_graph([constant("b", normal(*OUT))], "other", [], [info("b", OUT)])
    return saved(folder, [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)], [info("y", OUT)])


def function(folder: Path) -> Path:
    body = convolution()
    made = helper.make_function("local", "Block", ["x"], ["y"], body, [helper.make_opsetid("", 17)])
    call = helper.make_node("Block", ["x"], ["y"], domain="local")
    return saved(folder, [call], [info("y", OUT)], [made])


@pytest.mark.parametrize("make", [plain, old, output, branches, function])
def test_a_model_with_data_files_is_quantized(make: Any, tmp_path: Path) -> None:
    path = make(tmp_path)
    feeds: list[dict[str, Array]] = [{**x, "c": np.array(k % 2 == 0)} for k, x in enumerate(images(*SHAPE))]
    made = onnxq.quantize(path, feeds, output=tmp_path / "q.onnx", options=Options(placement="all"))
    assert [*made.plan.quantized.values()] == ["Conv"]
    written = onnx.load(tmp_path / "q.onnx", load_external_data=False)
    onnx.checker.check_model(written, full_check=True)
    for feed in feeds[:2]:
        want, got = (Session(load(p), optimize=False).run(feed) for p in (path, tmp_path / "q.onnx"))
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, atol=0.05 * float(np.abs(array).max()))


def test_a_constant_of_the_main_graph_stays_on_disk(tmp_path: Path) -> None:
    model = load(plain(tmp_path))
    weight = model.graph.initializers["w"].const_value
    assert type(weight).__name__ == "ExternalTensor"
    assert [node.op_type for node in model.graph] == ["Conv"]

"""Tiny models and the one check that every pass must stand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.files.save import to_proto
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from tests.running import open_session

Array = NDArray[Any]
Feeds = dict[str, Array]


def build(text: str, *, opset: Any = 17, ir_version: Any = 8, **constants: Array) -> onnx.ModelProto:
    """A model from the text of its graph; ``constants`` become initializers."""
    proto = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n{text}')
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto


def run(proto: onnx.ModelProto | bytes, feeds: Feeds) -> list[Array]:
    """Outputs by onnxruntime with optimizations off."""
    outputs: list[Array] = open_session(proto, optimize=False).run(None, feeds)
    return outputs


def twice(body: str) -> str:
    """Nodes that make t of x, and such behind them that make the t of that t."""
    made = re.findall(r"(\w+) = ", body)
    first = re.sub(r"\bt\b", "between", body)
    second = re.sub(r"\w+", lambda word: f"{word[0]}2" if word[0] in made and word[0] != "t" else word[0], body)
    second = re.sub(r"\bx\b", "between", second)
    return f"{first} \n {second}"


def ops(model: ir.Model) -> list[str]:
    """Operators of a model and its subgraphs, in order."""
    return [node.op_type for node in all_nodes(model)]


def signature(proto: onnx.ModelProto) -> list[bytes]:
    """Names, types and shapes of graph inputs and outputs."""
    return [
        onnx.ValueInfoProto(name=info.name, type=info.type).SerializeToString(deterministic=True)
        for info in (*proto.graph.input, *proto.graph.output)
    ]


def apply(
    change: Callable[[ir.Model], list[Note]], proto: onnx.ModelProto, feeds: Feeds, *, tolerance: float = 1e-6
) -> tuple[ir.Model, list[Note]]:
    """Applies a pass and checks what every pass promises.

    The outputs stay (``tolerance``, relative to the largest number of the output), inputs and outputs keep names,
    types and shapes, the checker accepts the result, a second run changes nothing, the caller's protobuf is untouched.
    """
    original = proto.SerializeToString()
    model = load(proto)
    notes = change(model)
    check(model)
    once = to_proto(model)
    expected, got = run(original, feeds), run(once, feeds)
    for before, after in zip(expected, got, strict=True):
        assert before.dtype == after.dtype
        assert before.shape == after.shape
        if before.dtype.kind == "f":
            scale = max(float(np.abs(before[np.isfinite(before)]).max(initial=0)), 1e-30)
            np.testing.assert_allclose(after, before, rtol=0, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(after, before)
    assert signature(once) == signature(onnx.ModelProto.FromString(original))
    change(model)
    assert to_proto(model).SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)
    assert proto.SerializeToString() == original
    return model, notes


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

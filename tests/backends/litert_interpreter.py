"""Float models of one operator or a few, translated for LiteRT and computed there and by onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper

from onnxq.backends.litert.conversion import convert
from onnxq.backends.litert.packing import packed
from tests.contract import infer
from tests.models import build

__all__ = ["agrees", "computed", "drawn", "one", "refusal"]

Array = NDArray[Any]
_TOLERANCE = 1e-5
"""Of a float result, relative to its largest number."""


def one(node: str, *shapes: str, opset: int = 21, results: str = "float[] y", **constants: Array) -> onnx.ModelProto:
    """A model ``y = node`` of inputs ``x``, ``z``, ... of some shapes, as in ``"1, 4, 8"`` or ``"int64[3]"``.

    Args:
        node: or several, the last of which makes ``y`` unless they say what they make.
        *shapes: of the inputs, in order.
        opset: of the operators.
        results: what the graph gives.
        **constants: by name.
    """
    kinds = [shape if "[" in shape else f"float[{shape}]" for shape in shapes]
    inputs = ", ".join(f"{kind} {name}" for kind, name in zip(kinds, "xzuv", strict=False))
    lines = node if "=" in node.split("(")[0].split("<")[0] else f"y = {node}"
    return build(f"({inputs}) => ({results}) {{ {lines} }}", opset=opset, ir_version=10, **constants)


def drawn(model: onnx.ModelProto, seed: int = 3) -> dict[str, Array]:
    """Numbers for all inputs: standard normal ones, small integers, or truth values."""
    rng, feeds = np.random.default_rng(seed), {}
    defaults = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in defaults:
            shape = [size.dim_value or 1 for size in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            numbers = rng.integers(0, 2, shape) if dtype != np.float32 else rng.standard_normal(shape)
            feeds[value.name] = np.asarray(numbers, dtype)
    return feeds


def computed(content: bytes, feeds: dict[str, Array], *, reference: bool = False) -> dict[str, Array]:
    """What LiteRT's interpreter makes of a TensorFlow Lite model, with its fast or with its plain kernels."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kinds = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=kinds, num_threads=1)
    interpreter.allocate_tensors()
    made = interpreter.get_signature_runner()(**feeds)
    return {name: np.array(array) for name, array in made.items()}


def refusal(model: onnx.ModelProto) -> str:
    """Why a model is not translated; empty where it is."""
    return "; ".join(why for _, why in convert(ir.from_proto(model))[1])


def agrees(model: onnx.ModelProto, feeds: dict[str, Array] | None = None, tolerance: float = _TOLERANCE) -> None:
    """LiteRT computes all outputs of a model, with both of its kernels, as onnxruntime does without optimizations."""
    feeds = drawn(model) if feeds is None else feeds
    flat, refused = convert(ir.from_proto(model))
    assert not refused, refused
    content, wanted = packed(flat, "a test"), infer(model, [feeds], optimize=False)
    for reference in (False, True):
        made = computed(content, feeds, reference=reference)
        assert made.keys() == wanted.keys()
        for name, (want,) in wanted.items():
            have = made[name]
            assert (have.shape, have.dtype) == (want.shape, want.dtype), (name, reference)
            margin = tolerance * float(np.abs(want[np.isfinite(want)]).max(initial=0)) if want.dtype.kind == "f" else 0
            np.testing.assert_allclose(have, want, rtol=0, atol=margin, err_msg=f"{name}, reference: {reference}")

"""Models of one operator or a few, translated for LiteRT, and computed there and by onnxruntime."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import onnxq
from onnxq import Options
from onnxq.backends.litert.conversion import convert
from onnxq.backends.litert.packing import packed
from tests.contract import infer
from tests.models import build

__all__ = ["agrees", "agrees_in_integers", "computed", "drawn", "one", "refusal"]

Array = NDArray[Any]
_TOLERANCE = 1e-5
"""Of a float result, relative to its largest number."""
_ONLY_FAST = frozenset({"CEIL", "ELU", "LOCAL_RESPONSE_NORMALIZATION", "ROUND"})
"""Operators that LiteRT 2.3 has no plain kernels of, or, the third, one that leaves out the last neighbour."""
_ONLY_FAST_INTEGERS = frozenset({"DEPTH_TO_SPACE", "ELU", "TILE"})
"""The same of int8; the plain sum of integers leaves out their scales."""


def one(node: str, *shapes: str, opset: int = 21, results: str = "float[] y", **constants: Any) -> onnx.ModelProto:
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


def computed(content: bytes, feeds: Mapping[str, Array], *, reference: bool = False) -> dict[str, Array]:
    """What LiteRT's interpreter makes of a TensorFlow Lite model, with its fast or with its plain kernels."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kinds = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=kinds, num_threads=1)
    interpreter.allocate_tensors()
    made = interpreter.get_signature_runner()(**feeds)
    return {name: np.array(array) for name, array in made.items()}


def refusal(model: onnx.ModelProto) -> str:
    """Why a model is not translated; empty where it is."""
    return "; ".join(each.why for each in convert(ir.from_proto(model))[1])


def agrees(model: onnx.ModelProto, feeds: dict[str, Array] | None = None) -> None:
    """LiteRT computes all outputs of a model, with both of its kernels, as onnxruntime does without optimizations."""
    feeds = drawn(model) if feeds is None else feeds
    flat, refused = convert(ir.from_proto(model))
    assert not refused, refused
    content, wanted = packed(flat, "a test"), infer(model, [feeds], optimize=False)
    for reference in _kernels([operator.kind for operator in flat.operators], _ONLY_FAST):
        made = computed(content, feeds, reference=reference)
        assert made.keys() == wanted.keys()
        for name, (want,) in wanted.items():
            have = made[name]
            assert (have.shape, have.dtype) == (want.shape, want.dtype), (name, reference)
            margin = _TOLERANCE * float(np.abs(want[np.isfinite(want)]).max(initial=0)) if want.dtype.kind == "f" else 0
            np.testing.assert_allclose(have, want, rtol=0, atol=margin, err_msg=f"{name}, reference: {reference}")


def _kernels(kinds: Collection[str], only_fast: Collection[str]) -> tuple[bool, ...]:
    """Whether it computes with plain kernels: once with the fast ones, and where all have them with these, too."""
    return (False,) if set(kinds) & set(only_fast) else (False, True)


def agrees_in_integers(
    model: onnx.ModelProto, folder: Path, steps: float = 1, backend: str = "litert", weight_bits: int = 8
) -> None:
    """LiteRT computes all of a model in integers, as onnxruntime does the QDQ model beside it but for some steps."""
    feeds = [drawn(model, seed) for seed in range(6)]
    target = folder / "net.onnx"
    options = Options(placement="all", weight_bits=weight_bits)
    quantized = onnxq.quantize(model, feeds, backend=backend, options=options, output=target)
    assert not quantized.plan.kept_float
    content = target.with_suffix(".tflite").read_bytes()
    proto = onnx.load(target)
    wanted = infer(proto, feeds, optimize=False)
    scales = _scales(proto)
    for reference in _kernels(_integer_operators(content), _ONLY_FAST_INTEGERS):
        for index, sample in enumerate(feeds):
            for name, have in computed(content, sample, reference=reference).items():
                want = wanted[name][index]
                assert have.shape == want.shape
                off = np.abs(have.astype(np.float64) - want).max(initial=0) / scales.get(name, 1.0)
                assert off < steps + 0.01, (name, reference, off)


def _integer_operators(content: bytes) -> list[str]:
    """The operators of a file, none of which computes in float."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=plain)
    floats = {detail["index"] for detail in interpreter.get_tensor_details() if detail["dtype"] is np.float32}
    operators = [one for one in interpreter._get_ops_details() if one["op_name"] not in ("QUANTIZE", "DEQUANTIZE")]
    assert not [one for one in operators if floats & {*one["inputs"].tolist(), *one["outputs"].tolist()}], operators
    return [str(one["op_name"]) for one in operators]


def _scales(proto: onnx.ModelProto) -> dict[str, float]:
    """Of outputs that are made of integers."""
    numbers = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    numbers |= {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t)
        for node in proto.graph.node
        if node.op_type == "Constant"
    }
    makers = {node.output[0]: node for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    ends = {value.name for value in proto.graph.output} & makers.keys()
    return {name: float(numbers[makers[name].input[1]].reshape(-1)[0]) for name in ends}

"""Tiny graphs: a model from text with its constants, and data for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

from onnxq import Quantized, Rewritten
from tests.running import open_session

__all__ = [
    "build",
    "constants_of",
    "embedded_attention",
    "f16",
    "f32",
    "feeds_for",
    "i64",
    "images",
    "loads",
    "masked_attention",
    "normal",
    "renamed",
    "selecting",
    "untouched",
    "verified_sqnr",
]

Array = NDArray[Any]

_HE = np.sqrt(2.0)


def build(
    text: str, *, opset: int = 17, ir_version: int = 8, domains: dict[str, int] | None = None, **constants: Array
) -> onnx.ModelProto:
    """A model from the text of its graph, checked nowhere.

    Args:
        text: signature and nodes, as in ``(float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }``.
        opset: of the standard operators.
        ir_version: of the file.
        domains: other operator sets.
        constants: become initializers of these names.
    """
    imports = ", ".join(f'"{name}" : {version}' for name, version in {"": opset, **(domains or {})}.items())
    model = parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{imports}]>\ntiny {text}")
    for name, array in constants.items():
        model.graph.initializer.append(_initializer(np.asarray(array), name))
    helper.set_model_props(model, {"author": "someone", "labels": "[1, 2]"})
    model.doc_string = "a tiny model"
    return model


def _initializer(array: Array, name: str) -> onnx.TensorProto:
    if array.dtype.kind == "V":  # of ml_dtypes, which older releases of onnx do not take
        return onnx_ir.serde.serialize_tensor(onnx_ir.Tensor(array, name=name))
    return numpy_helper.from_array(array, name)


def f32(values: object) -> NDArray[np.float32]:
    """A float32 array of the numbers given."""
    return np.asarray(values, np.float32)


def f16(values: object) -> NDArray[np.float16]:
    """A float16 array of the numbers given."""
    return np.asarray(values, np.float16)


def i64(values: object) -> NDArray[np.int64]:
    """An int64 array of the numbers given."""
    return np.asarray(values, np.int64)


def normal(*shape: int, seed: int = 0, scale: float | None = None) -> NDArray[np.float32]:
    """Standard normal numbers; as a weight of three axes or more, or without ``scale`` of two, of He's size."""
    if scale is None:
        fan = {0: 1, 1: 1, 2: shape[0] if len(shape) == 2 else 1}.get(len(shape), int(np.prod(shape[1:])))
        scale = float(_HE / np.sqrt(fan))
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def images(*shape: int, samples: int = 6, seed: int = 9) -> list[dict[str, Array]]:
    """Feeds of an input ``x``: standard normal numbers of one shape."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(samples)]


def embedded_attention() -> dict[str, Any]:
    """Constants of an EmbedLayerNormalization of 200 words and of the Attention, of 32 channels, behind it."""
    return {
        "words": normal(200, 32),
        "places": normal(48, 32, seed=1),
        "gamma": np.ones(32, np.float32),
        "beta": np.zeros(32, np.float32),
        "qkv": normal(32, 96, seed=2),
        "qkv_bias": normal(96, seed=3),
    }


def masked_attention(masked: str, **more: Any) -> onnx.ModelProto:
    """Scores ``sc`` of ``x``, and ``sm``, what ``masked`` makes of them with the mask ``m``."""
    return build(
        f"""(float[1, 16, 32] x, float[1, 1, 16] m) => (float[1, 16, 32] y) {{
            q = MatMul (x, wq)
            k = MatMul (x, wk)
            v = MatMul (x, wv)
            kt = Transpose <perm = [0, 2, 1]> (k)
            s = MatMul (q, kt)
            sc = Mul (s, c)
            {masked}
            p = Softmax (sm)
            y = MatMul (p, v) }}""",
        wq=normal(32, 32, seed=1, scale=0.2),
        wk=normal(32, 32, seed=2, scale=0.2),
        wv=normal(32, 32, seed=3, scale=0.2),
        c=np.float32(32**-0.5),
        **more,
    )


def feeds_for(model: onnx.ModelProto, samples: int = 6, seed: int = 9, **dims: int) -> list[dict[str, Array]]:
    """Standard normal numbers for every input of a model that has no default; ``dims`` gives free dimensions."""
    rng = np.random.default_rng(seed)
    defaults = {t.name for t in model.graph.initializer}
    shapes = {}
    for value in model.graph.input:
        if value.name not in defaults:
            tensor = value.type.tensor_type
            shapes[value.name] = (
                [d.dim_value or dims.get(d.dim_param, 1) for d in tensor.shape.dim],
                helper.tensor_dtype_to_np_dtype(tensor.elem_type),
            )
    return [{n: rng.standard_normal(s).astype(t) for n, (s, t) in shapes.items()} for _ in range(samples)]


def selecting(rows: int, more: str = "", channels: int = 8, *, last: bool = True) -> onnx.ModelProto:
    """Two layers, and a third of those of their rows whose first number is positive: how many depends on the numbers.

    Args:
        rows: of the input ``x``, of ``channels`` numbers each.
        more: nodes behind ``s``, what is selected from; their output is named ``t``.
        channels: of the input and between the layers; the output has six.
        last: whether the third layer reads what is selected, as in a detector of two stages.
    """
    side = f", float[{rows}, 6] t" if more else ""
    return build(
        f"""(float[{rows}, {channels}] x) => (float[N, 6] y{side}) {{
            [l1] a = Gemm (x, w1, b1)
            b = Relu (a)
            [l2] s = Gemm (b, w2, b2)
            c = Slice (s, zero, one, one)
            d = Greater (c, level)
            e = Squeeze (d, one)
            r = Compress <axis = 0> (s, e)
            [l3] y = {"MatMul (r, w3)" if last else "Identity (r)"}
            {more}
        }}""",
        opset=21,
        ir_version=10,
        w1=normal(channels, channels, seed=1),
        b1=normal(channels, seed=2, scale=0.1),
        w2=normal(channels, 6, seed=3),
        b2=normal(6, seed=4, scale=0.1),
        w3=np.eye(6, dtype=np.float32),
        zero=np.array([0]),
        one=np.array([1]),
        level=np.float32(0),
    )


def renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """A copy with tensors renamed, which the text form could not write."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for thing in (*copy.graph.input, *copy.graph.output, *copy.graph.initializer):
        thing.name = names.get(thing.name, thing.name)
    return copy


def constants_of(model: onnx.ModelProto) -> dict[str, Array]:
    """The initializers of a model's main graph."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def verified_sqnr(made: Quantized | Rewritten) -> float:
    """dB of the output that has lost most, as it was verified."""
    assert made.verification is not None and made.verification.worst is not None
    return made.verification.worst[1].sqnr


def loads(model: onnx.ModelProto) -> bool:
    """Whether the installed onnxruntime loads a model; older ones lack kernels."""
    try:
        open_session(model)
    except Exception:
        return False
    return True


def untouched() -> Iterator[dict[str, Array]]:
    """Data that must not be looked at."""
    raise AssertionError("the data was read")
    yield {}

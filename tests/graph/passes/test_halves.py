"""Constants that half precision holds exactly: stored in it, and the same numbers when they come back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import onnxq
from onnxq import Options
from onnxq.graph.files.save import file_size, to_proto
from onnxq.graph.passes import halves
from onnxq.graph.passes.halves import store_in_half, widen_halves
from onnxq.graph.passes.upcast import upcast
from tests.models import build, constants_of, feeds_for, images, normal
from tests.running import open_session, optimized


def half(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float16]]:
    return normal(*shape, seed=seed).astype(np.float16)


def loaded(model: onnx.ModelProto) -> ir.Model:
    return ir.serde.deserialize_model(model)


def two_layers(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> onnx.ModelProto:
    text = "(float[N, 64] x) => (float[N, 64] y) { h = MatMul (x, w)\n y = MatMul (h, v) }"
    return build(text, w=first.astype(np.float32), v=second.astype(np.float32))


def run(model: onnx.ModelProto, feed: dict[str, Any], *, optimize: bool = True) -> np.ndarray[Any, Any]:
    return np.asarray(open_session(model, optimize=optimize).run(None, feed)[0])


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_numbers_of_half_precision_take_half_the_bytes_and_stay(kind: Any) -> None:
    source = two_layers(normal(64, 64).astype(kind), normal(64, 64, seed=1) * 1e-9)
    model = loaded(source)
    store_in_half(model)
    result = to_proto(model)
    types = {t.name: t.data_type for t in result.graph.initializer}
    assert types.pop("w_half") in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    assert types == {"v": TensorProto.FLOAT}, "what half precision cannot say stays as it is"
    (feed,) = images(4, 64, samples=1)
    for optimize in (True, False):
        np.testing.assert_array_equal(run(result, feed, optimize=optimize), run(source, feed, optimize=optimize))
    widen_halves(model)
    back = constants_of(to_proto(model))
    assert [n.op_type for n in model.graph] == ["MatMul", "MatMul"] and set(back) == {"w", "v"}
    np.testing.assert_array_equal(back["w"], onnx.numpy_helper.to_array(source.graph.initializer[0]))


def test_onnxruntime_widens_them_when_it_loads_the_model(tmp_path: Any) -> None:
    model = loaded(two_layers(half(64, 64), half(64, 64, seed=1)))
    store_in_half(model)
    assert "Cast" not in {n.op_type for n in optimized(to_proto(model), tmp_path).graph.node}


def test_signs_of_zero_and_what_is_no_number_stay() -> None:
    values = half(32, 32).astype(np.float32)
    values[0, :4] = [-0.0, np.inf, -np.inf, 6e-8]
    values[0, 3] = np.float32(np.float16(6e-8))
    model = loaded(build("(float[32, 32] x) => (float[32, 32] y) { y = Add (x, c) }", c=values))
    store_in_half(model)
    widen_halves(model)
    back = model.graph.initializers["c"].const_value
    assert back is not None
    np.testing.assert_array_equal(back.numpy().view(np.uint32), values.view(np.uint32))


def test_small_constants_outputs_and_parameters_of_quantizers_are_left() -> None:
    model = loaded(
        build(
            """(float[1, 2048] x) => (float[1, 2048] y, float[2048] big) {
                a = Add (x, small)
                q = QuantizeLinear <axis = 1> (a, scale, zero)
                y = DequantizeLinear <axis = 1> (q, scale, zero)
            }""",
            small=np.ones(1, np.float32),
            big=np.ones(2048, np.float32),
            scale=np.full(2048, 0.5, np.float32),
            zero=np.zeros(2048, np.uint8),
        )
    )
    before = to_proto(model).SerializeToString(deterministic=True)
    store_in_half(model)
    assert to_proto(model).SerializeToString(deterministic=True) == before


def in_half(kind: int = TensorProto.FLOAT16) -> onnx.ModelProto:
    """Two layers and a transposed convolution in half precision, inputs and outputs in float32."""
    model = build(
        f"""(float[1, 16, 12, 12] x) => (float[1, 16, 12, 12] y) {{
            h = Cast <to = {kind}> (x)
            [first] a = Conv <pads = [1, 1, 1, 1]> (h, w)
            r = Relu (a)
            [second] b = Conv <pads = [1, 1, 1, 1]> (r, v)
            y = Cast <to = 1> (b)
        }}"""
    )
    numpy = np.float16 if kind == TensorProto.FLOAT16 else ml_dtypes.bfloat16
    for seed, (name, shape) in enumerate({"w": (32, 16, 3, 3), "v": (16, 32, 3, 3)}.items()):
        raw = normal(*shape, seed=seed).astype(numpy).tobytes()
        model.graph.initializer.append(helper.make_tensor(name, kind, shape, raw, raw=True))
    return model


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_layers_that_stay_float_keep_their_bytes(kind: int) -> None:
    model, data = in_half(kind), feeds_for(in_half(kind), samples=2)
    result = onnxq.quantize(model, data, options=Options(exclude=("first", "second"))).rendered()
    plain = loaded(model)
    assert file_size(result) < 1.1 * file_size(plain)
    upcast(plain)
    assert file_size(result) < 0.6 * file_size(plain)


def test_what_was_written_is_read_as_it_was() -> None:
    made = onnxq.quantize(in_half(), feeds_for(in_half()), options=Options(placement="all", exclude=("first",)))
    again = onnxq.read(to_proto(made.rendered()))
    assert list(again.plan.quantized.values()) == ["Conv"]
    assert [n.op_type for n in again.model.graph].count("Cast") == [n.op_type for n in made.model.graph].count("Cast")
    np.testing.assert_array_equal(
        next(n for n in again.model.graph if n.name == "first").inputs[1].const_value.numpy(),  # type: ignore[union-attr]
        normal(32, 16, 3, 3).astype(np.float16).astype(np.float32),
    )
    feeds = feeds_for(in_half(), samples=1)[0]
    for model in (again.rendered(),):
        np.testing.assert_array_equal(run(to_proto(model), feeds), run(to_proto(made.rendered()), feeds))


def test_what_half_precision_cannot_say_is_looked_at_once_for_all_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search writes a model anew dozens of times, with the same weights."""
    model = loaded(two_layers(normal(64, 64), normal(64, 64, seed=1)))
    looked: list[int] = []
    exact = halves._exact

    def counted(array: np.ndarray[Any, Any], *, bfloat16: bool) -> np.ndarray[Any, Any] | None:
        looked.append(array.size)
        return exact(array, bfloat16=bfloat16)

    monkeypatch.setattr(halves, "_exact", counted)
    for _ in range(5):
        store_in_half(model.clone())
    assert looked == [64 * 64] * 2

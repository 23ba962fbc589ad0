from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxq.weight_only.grid import Coded, blocked, choose, decode, nearest, round_blocks
from onnxq.weight_only.hqq import hqq
from onnxq.weight_only.recipe import Recipe
from onnxq.weight_only.tensors import pack, packed_tensor
from tests.models import normal


def _recipes() -> list[Recipe]:
    return [Recipe(bits, 16, symmetric) for bits in (4, 8) for symmetric in (True, False)]


@pytest.mark.parametrize("recipe", _recipes(), ids=str)
def test_decode_is_what_onnx_says(recipe: Recipe) -> None:
    coded = nearest(normal(5, 40, scale=1.0), recipe.spec())
    names = {4: (TensorProto.INT4, TensorProto.UINT4), 8: (TensorProto.INT8, TensorProto.UINT8)}
    kind = names[recipe.bits][0 if recipe.symmetric else 1]
    tensors = [
        helper.make_tensor(name, kind, array.shape, packed_tensor(array, recipe.bits).tobytes(), raw=True)
        for name, array in (("q", coded.codes), ("z", coded.zero))
    ]
    node = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=1, block_size=16)
    # ReferenceEvaluator wants whole blocks: 40 = 2.5 * 16 is cut to 32
    whole = [
        helper.make_tensor("q", kind, (5, 32), packed_tensor(coded.codes[:, :32], recipe.bits).tobytes(), raw=True)
    ]
    whole.append(
        helper.make_tensor("z", kind, (5, 2), packed_tensor(coded.zero[:, :2], recipe.bits).tobytes(), raw=True)
    )
    whole.append(numpy_helper.from_array(np.ascontiguousarray(coded.scale[:, :2]), "s"))
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], whole)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    (expected,) = ReferenceEvaluator(model).run(None, {})
    np.testing.assert_array_equal(decode(coded)[:, :32], expected)
    for tensor, array in zip(tensors, (coded.codes, coded.zero), strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor).astype(int), array.astype(int))


def test_pack_is_what_onnx_packs() -> None:
    codes = np.array([[-8, 7, 3], [0, -1, 5]], np.int8)
    tensor = helper.make_tensor("x", TensorProto.INT4, codes.shape, codes.reshape(-1))
    assert pack(codes.reshape(-1)).tobytes() == helper_bytes(tensor)
    np.testing.assert_array_equal(pack(codes), [[0x78, 0x03], [0xF0, 0x05]])


def helper_bytes(tensor: onnx.TensorProto) -> bytes:
    """The packed bytes of a 4-bit tensor, whatever field helper put them in."""
    return tensor.raw_data or bytes(int(number) & 0xFF for number in tensor.int32_data)


@pytest.mark.parametrize("recipe", _recipes(), ids=str)
def test_nearest_is_nearest(recipe: Recipe) -> None:
    """Inside the range that was chosen no weight is further from its integer than half a step."""
    weight = normal(7, 48, scale=1.0)
    coded = nearest(weight, recipe.spec())
    step = np.repeat(coded.scale, 16, 1)
    clipped = np.isin(coded.codes, (coded.spec.qmin, coded.spec.qmax))
    error = np.abs(decode(coded) - weight)
    assert (error[~clipped] <= step[~clipped] * (0.5 + 1e-5)).all()


def test_search_never_loses_to_the_full_range() -> None:
    spec = Recipe(4, 32).spec()
    blocks = blocked(np.random.default_rng(0).standard_t(4, (64, 128)).astype(np.float32), 32)
    scale, zero = choose(blocks, spec)
    full = np.abs(blocks).max(axis=2) / 7

    def error(scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        return np.asarray(np.square(round_blocks(blocks, scale, zero, spec) * scale[..., None] - blocks).sum(axis=2))

    searched, plain = error(scale, zero), error(full, np.zeros_like(full))
    assert (searched <= plain * (1 + 1e-5)).all()
    assert searched.sum() < 0.95 * plain.sum()


@pytest.mark.parametrize(
    ("kind", "bits", "most"),
    [
        ("symmetric", 4, 1.024),
        ("asymmetric", 4, 1.012),
        ("either sign", 4, 1.018),
        ("asymmetric", 2, 1.02),
        ("either sign", 2, 1.02),
    ],
)
def test_a_finer_search_is_hardly_better(kind: str, bits: int, most: float) -> None:
    """Every block's best of 90 parts of its range, the squared error in exact arithmetic, against the eight tried."""
    spec = Recipe(bits, 32, kind != "asymmetric", format="matmulnbits").spec()
    blocks = blocked(np.random.default_rng(0).standard_normal((128, 128), np.float32), 32)
    low, high = blocks.min(axis=2), blocks.max(axis=2)
    furthest = np.where(high > -low, high, low)

    def error(scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        exact, step = blocks.astype(np.float64), scale.astype(np.float64)[..., None]
        codes = np.clip(np.rint(exact / step) + zero[..., None], spec.qmin, spec.qmax) - zero[..., None]
        return np.asarray(np.square(codes * step - exact).sum(axis=2))

    finest = np.full(low.shape, np.inf)
    for part in np.arange(0.4, 1.3, 0.01):
        if kind == "symmetric":
            scale, zero = np.abs(furthest) * part / spec.qmax, np.zeros_like(low)
        elif kind == "asymmetric":
            scale = (high - low) * part / spec.qmax
            zero = np.rint(-low * part / scale)
        else:
            scale, zero = furthest * part / spec.qmin, np.zeros_like(low)
        finest = np.minimum(finest, error(scale, zero))
    found = error(*choose(blocks, spec, either_sign=kind == "either sign"))
    assert found.sum() < most * finest.sum()


def test_scales_of_either_sign_use_all_integers() -> None:
    """4 bits have 16 integers, of which a scale above 0 leaves one unused where a block's largest number is above 0."""
    weight = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    recipe = Recipe(4, 32, format="matmulnbits")

    def power(coded: Coded) -> float:
        return float(np.square(decode(coded) - weight).sum())

    for quantized in (nearest, hqq):
        plain = quantized(weight, recipe.spec())
        mirrored = quantized(weight, recipe.spec(), either_sign=True)
        assert (plain.scale > 0).all()
        assert 0.4 < (mirrored.scale < 0).mean() < 0.6
        assert power(mirrored) < 0.92 * power(plain)
    assert recipe.either_sign and not Recipe().either_sign and not Recipe(symmetric=False).either_sign


@pytest.mark.parametrize("either_sign", [False, True])
def test_zeros_and_constants(either_sign: bool) -> None:
    for bits, symmetric in itertools.product((2, 4, 8), (True, False)):
        weight = np.zeros((3, 32), np.float32)
        weight[1], weight[2] = 3.0, -3.0
        coded = nearest(weight, Recipe(bits, 32, symmetric, format="matmulnbits").spec(), either_sign=either_sign)
        assert (coded.scale != 0).all() and np.isfinite(coded.scale).all()
        assert either_sign or (coded.scale > 0).all()
        np.testing.assert_allclose(decode(coded), weight, rtol=1e-6)


@pytest.mark.parametrize("symmetric", [True, False])
def test_hqq_fits_the_bulk_better(symmetric: bool) -> None:
    """The norm that it minimizes, |x|^0.7, is never larger than rounding to nearest leaves it, and smaller in all."""
    weight = np.random.default_rng(1).standard_t(3, (64, 256)).astype(np.float32)
    spec = Recipe(4, 64, symmetric).spec()

    def cost(coded: Coded) -> np.ndarray:
        error = np.abs(decode(coded) - weight).astype(np.float64)
        return np.asarray(np.power(error, 0.7).reshape(64, 4, 64).sum(axis=2))

    plain, made = cost(nearest(weight, spec)), cost(hqq(weight, spec))
    assert (made <= plain * (1 + 1e-4)).all()
    assert made.sum() < (0.98 if symmetric else 0.99) * plain.sum()

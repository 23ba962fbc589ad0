"""TensorRT: where quantizers stand and where none may, their numbers, and tables for TensorRT up to version 10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

import onnxq
from onnxq import Options, Quantized
from onnxq.errors import OptionError
from onnxq.plan import Plan
from onnxq.spec import PerChannel, PerTensor
from tests.contract import infer, sqnr
from tests.models import build, constants_of, f32, images, normal
from tests.planning.test_planner import concat, conv_relu, residual, transformer

Array = NDArray[Any]


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def plan(model: onnx.ModelProto, backend: str = "tensorrt", **options: Any) -> Plan:
    return onnxq.plan(model, backend=backend, options=Options(**options))


def quantized_inputs(found: Plan) -> set[str]:
    """``node:position`` of all inputs that read an activation through a quantizer."""
    return {f"{e.node}:{e.index}" for s in found.sites if s.role == "activation" for e in s.readers}


def reasons(found: Plan) -> dict[str, str]:
    return {kept.node: kept.reason for kept in found.kept_float}


def detector() -> onnx.ModelProto:
    """Convolutions with several activation functions, a downsampled residual, a transposed one, pools and a Concat."""
    return build(
        """(float[1, 3, 16, 16] x) => (float[1, 4] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            s = Sigmoid (a)
            h = Mul (a, s)
            m1 = Conv <pads = [1, 1, 1, 1]> (h, w2)
            m2 = LeakyRelu (m1)
            m3 = Conv <pads = [1, 1, 1, 1]> (m2, w3)
            d = Conv (h, w4)
            r = Add (m3, d)
            t = HardSwish (r)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t)
            u = ConvTranspose <strides = [2, 2]> (p, w5)
            c = Concat <axis = 1> (u, t)
            e = Conv (c, w6)
            k = Mul (e, two)
            g = GlobalAveragePool (k)
            f = Flatten (g)
            y = Gemm (f, w7, b7)
        }""",
        w1=normal(8, 3, 3, 3),
        b1=normal(8),
        w2=normal(8, 8, 3, 3, seed=1),
        w3=normal(8, 8, 3, 3, seed=2),
        w4=normal(8, 8, 1, 1, seed=3),
        w5=normal(8, 6, 2, 2, seed=4),
        w6=normal(4, 14, 1, 1, seed=5),
        w7=normal(4, 4, seed=6),
        b7=normal(4),
        two=f32(2),
    )


def mlp() -> onnx.ModelProto:
    return build(
        "(float[8, 32] x) => (float[8, 16] y) { h = Gemm <transB = 1> (x, w1, b)\n r = Relu (h)\n y = MatMul (r, w2) }",
        w1=normal(64, 32),
        w2=normal(64, 16),
        b=normal(64),
    )


# -- placement


def test_nothing_stands_between_a_convolution_and_what_its_kernel_computes() -> None:
    found = plan(detector())
    tensors = {s.tensor for s in found.sites if s.role == "activation"}
    assert tensors == {"x", "h", "m2", "d", "t", "p", "u", "c", "k", "f"}
    assert found.absorbed["LeakyRelu"] == "Conv_1"
    assert not any(s.role in ("bias", "constant") for s in found.sites)


def test_a_residual_add_is_quantized_at_its_identity_branch_alone() -> None:
    model = residual()  # s = Add (c, r), c a convolution's output
    assert "Add:1" in quantized_inputs(plan(model)) and "Add:0" not in quantized_inputs(plan(model))
    next(n for n in model.graph.node if n.op_type == "Add").input[:] = ["r", "c"]
    assert "Add:0" in quantized_inputs(plan(model)) and "Add:1" not in quantized_inputs(plan(model))


def test_of_two_convolutions_that_are_added_the_downsampling_one_is_quantized() -> None:
    found = plan(detector())
    (site,) = (s for s in found.sites if s.tensor == "d")
    assert [(e.node, e.index) for e in site.readers] == [("Add", 1)]


def test_an_add_that_no_convolution_computes_stays_float() -> None:
    model = build(
        """(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y, float[1, 8, 6, 6] z) {
            a = Conv (x, w)
            r = Relu (a)
            y = Add (a, r)
            b = Softmax (x)
            c = Sin (x)
            z = Add (b, c)
        }""",
        w=normal(8, 8, 1, 1),
    )
    found = plan(model)
    assert "Add" not in found.quantized.values()
    assert "neither branch" in reasons(found)["Add"] and "neither branch" in reasons(found)["Add_1"]


def test_concat_has_one_scale_and_none_where_no_integer_operator_reads_it() -> None:
    found = plan(concat())
    shared = {found.root(s).name for s in found.sites if s.tensor in ("a", "b", "c")}
    assert shared == {"c"}
    model = concat()
    del model.graph.node[3:]
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("c", TensorProto.FLOAT, [1, 32, 8, 8]))
    assert reasons(plan(model))["Concat"] == "no integer operator reads it"


def test_concat_is_float_where_its_own_output_is_not_quantized() -> None:
    model = build(
        """(float[1, 8, 6, 6] x) => (float[1, 16, 36] y) {
            a = Conv (x, w)
            c = Concat <axis = 1> (x, a)
            f = Reshape (c, shape)
            y = MatMul (f, v)
        }""",
        w=normal(8, 8, 1, 1),
        shape=ints(1, 16, 36),
        v=normal(36, 36),
    )
    found = plan(model)
    assert "Concat" not in found.quantized.values() and "MatMul:0" in quantized_inputs(found)


def test_pools_share_or_have_scales_of_their_own() -> None:
    found = plan(detector())
    roots = {s.tensor: found.root(s).name for s in found.sites}
    assert roots["p"] == roots["t"] != roots["k"] == "k"
    assert {"MaxPool:0", "GlobalAveragePool:0"} <= quantized_inputs(found)
    alone = build("(float[1, 8, 6, 6] x) => (float[1, 8, 1, 1] y) { s = Sin (x)\n y = GlobalAveragePool (s) }")
    assert "no operator before or after it runs in integers" in reasons(plan(alone))["GlobalAveragePool"]


def test_products_of_activations_are_quantized_at_both_inputs_softmax_is_not() -> None:
    found = plan(transformer())
    products = {n for n, op in found.quantized.items() if op == "MatMul"}
    sides = {e for e in quantized_inputs(found) if e.endswith(":1")}
    assert len(sides) == 2 and {e.split(":")[0] for e in sides} <= products
    assert "Softmax" not in found.quantized.values() and "Add" not in found.quantized.values()


def test_weights_have_a_scale_for_each_output_channel() -> None:
    axes = {s.tensor: s.spec.granularity for s in plan(detector()).sites if s.role == "weight"}
    assert axes["w1"] == PerChannel(0)
    assert axes["w5"] == PerChannel(1)
    assert axes["w7"] == PerChannel(1)  # Gemm (K, N)
    found = {s.tensor: s.spec.granularity for s in plan(mlp()).sites if s.role == "weight"}
    assert found == {"w1": PerChannel(0), "w2": PerChannel(1)}


def packed(text: str, **more: Any) -> onnx.ModelProto:
    return build(
        f"(float[1, 16, 64] x) => (float[1, 4, 16, 16] y) {{ h = MatMul (x, w)\n g = Add (h, b)\n {text}"
        "k2 = Transpose <perm = [0, 1, 3, 2]> (k)\n a = MatMul (q, k2)\n p = Softmax <axis = -1> (a)\n"
        "y = MatMul (p, v) }",
        w=normal(64, 192),
        b=normal(192),
        **more,
    )


def test_queries_keys_and_values_in_one_weight_have_one_scale() -> None:
    heads = packed(
        "r = Reshape (g, s)\n t = Transpose <perm = [2, 0, 3, 1, 4]> (r)\n"
        "q = Gather <axis = 0> (t, i0)\n k = Gather <axis = 0> (t, i1)\n v = Gather <axis = 0> (t, i2)\n",
        s=ints(1, 16, 3, 4, 16),
        i0=np.array(0),
        i1=np.array(1),
        i2=np.array(2),
    )
    split = packed(
        "a0, a1, a2 = Split <axis = -1> (g, s)\n r0 = Reshape (a0, r)\n r1 = Reshape (a1, r)\n r2 = Reshape (a2, r)\n"
        "q = Transpose <perm = [0, 2, 1, 3]> (r0)\n k = Transpose <perm = [0, 2, 1, 3]> (r1)\n"
        "v = Transpose <perm = [0, 2, 1, 3]> (r2)\n",
        s=ints(64, 64, 64),
        r=ints(1, 16, 4, 16),
    )
    for model in (heads, split):
        (weight,) = (s for s in plan(model).sites if s.role == "weight")
        assert weight.spec.granularity == PerTensor()
    gated = build(
        "(float[1, 16, 64] x) => (float[1, 16, 96] y) { h = MatMul (x, w)\n a, b = Split <axis = -1> (h, s)\n"
        "c = Sigmoid (a)\n y = Mul (b, c) }",
        w=normal(64, 192),
        s=ints(96, 96),
    )
    (weight,) = (s for s in plan(gated).sites if s.role == "weight")
    assert weight.spec.granularity == PerChannel(1)


# -- what is written


def written(model: onnx.ModelProto, feeds: list[dict[str, Array]], path: Path, **options: Any) -> Quantized:
    return onnxq.quantize(model, feeds, backend="tensorrt", output=path, options=Options(**options))


@pytest.mark.parametrize("opset", [13, 17])
def test_quantizers_are_int8_with_zero_points_of_zero(tmp_path: Path, opset: int) -> None:
    path, feeds = tmp_path / "q.onnx", images(1, 16, 8, 8)
    source = conv_relu()
    source.opset_import[0].version = opset
    written(source, feeds, path, opset=opset)
    model = onnx.load(path)
    assert model.opset_import[0].version == opset
    onnx.checker.check_model(model, full_check=True)
    have = constants_of(model)
    nodes = [n for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert nodes and all(len(n.input) == 3 for n in nodes)
    for node in nodes:
        assert have[node.input[2]].dtype == np.int8 and not have[node.input[2]].any()
        assert have[node.input[1]].dtype == np.float32 and (have[node.input[1]] > 0).all()
        assert have[node.input[1]].shape == have[node.input[2]].shape
    biases = [n.input[2] for n in model.graph.node if n.op_type == "Conv" and len(n.input) > 2]
    assert biases and all(have[name].dtype == np.float32 for name in biases)
    float_out = infer(source, feeds, optimize=False)["y"]
    assert sqnr(float_out, infer(model, feeds, optimize=False)["y"]) > 30


def test_weight_scales_are_the_largest_magnitude_over_127(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    written(mlp(), images(8, 32), path, bias_correction=False)
    have = constants_of(onnx.load(path))
    for name, axis in (("w1", 1), ("w2", 0)):
        weight = constants_of(mlp())[name]
        scale = np.abs(weight).max(axis=axis) / 127
        assert np.allclose(have[f"{name}_scale"], scale, rtol=1e-6)
        integers = np.rint(weight / np.expand_dims(have[f"{name}_scale"], axis))
        assert np.array_equal(have[f"{name}_quantized"], integers) and integers.min() == -127


def test_the_whole_net_is_as_good_in_every_format(tmp_path: Path) -> None:
    feeds = images(1, 3, 16, 16)
    reference = infer(detector(), feeds, optimize=False)["y"]
    for name in ("qdq", "fake-quantize"):
        path = tmp_path / f"{name}.onnx"
        written(detector(), feeds, path, format=name)
        assert sqnr(reference, infer(onnx.load(path), feeds, optimize=False)["y"]) > 25


@pytest.mark.parametrize("sizes", ["S, S, S, S", "N, S, S, W"])
def test_a_name_that_an_input_has_twice_is_no_number_of_channels(sizes: str, tmp_path: Path) -> None:
    """Some exporters give all free sizes one name, which onnxruntime takes in an input."""
    model = build(f"(float[{sizes}] x) => (float[A, B, C, D] y) {{ y = Conv (x, w) }}", w=normal(16, 3, 3, 3))
    onnxq.quantize(model, images(2, 3, 32, 32), backend="tensorrt", output=tmp_path / "q.onnx")
    (value,) = onnx.load(tmp_path / "q.onnx").graph.input
    assert [dim.dim_param for dim in value.type.tensor_type.shape.dim] == sizes.split(", ")


def test_a_name_of_which_convolutions_differ_is_no_number_of_channels(tmp_path: Path) -> None:
    """The inputs of two branches may have the same name for their channels, wrongly."""
    model = build(
        "(float[N, C, H, W] x, float[M, C, I, J] z) => (float[N, D, E, F] y, float[M, P, Q, R] u) "
        "{ y = Conv (x, w) u = Conv (z, v) }",
        w=normal(16, 3, 3, 3),
        v=normal(8, 4, 3, 3),
    )
    feeds = [{"x": normal(1, 3, 16, 16, seed=i), "z": normal(1, 4, 16, 16, seed=9 + i)} for i in range(2)]
    onnxq.quantize(model, feeds, backend="tensorrt", output=tmp_path / "q.onnx")
    inputs = onnx.load(tmp_path / "q.onnx").graph.input
    assert [value.type.tensor_type.shape.dim[1].dim_param for value in inputs] == ["C", "C"]


@pytest.mark.parametrize(
    "options",
    [
        {"symmetric": False},
        {"weight_bits": 4},
        {"act_bits": 16},
        {"opset": 12},
        {"override": ("x=symmetric=false",)},
        {"weight_symmetric": False},
    ],
)
def test_what_tensorrt_has_not_is_refused_before_any_work(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        onnxq.quantize(mlp(), images(8, 32), backend="tensorrt", options=Options(**options))

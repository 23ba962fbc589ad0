"""OpenVINO: where quantizers stand, and on which grids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

import onnxq
from onnxq import Options, Quantized
from onnxq.errors import OptionError
from onnxq.plan import Plan, Site
from tests.contract import infer
from tests.models import build, f32, feeds_for, normal
from tests.planning.test_planner import concat, residual
from tests.targets import GRAPHS

Array = NDArray[Any]


def shortcut_v1(pads: int = 0) -> onnx.ModelProto:
    """A block of ResNet v1: two convolutions of kernel 1 with strides are all that reads a tensor."""
    strided = f"strides = [2, 2], pads = [{', '.join([str(pads)] * 4)}]"
    size = 4 + pads
    return build(
        f"""(float[1, 8, 8, 8] x) => (float[1, 8, {size}, {size}] y) {{
            [a] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            [b] b = Conv <{strided}> (r, v)
            [c] c = Conv <{strided}> (r, u)
            s = Add (b, c)
            y = Relu (s)
        }}""",
        w=normal(8, 8, 3, 3),
        v=normal(8, 8, 1, 1, seed=1),
        u=normal(8, 8, 1, 1, seed=2),
    )


def quantized(model: onnx.ModelProto, path: Path | None = None, **options: Any) -> Quantized:
    return onnxq.quantize(model, feeds_for(model), backend="openvino", output=path, options=Options(**options))


def plan(model: onnx.ModelProto, **options: Any) -> Plan:
    return onnxq.plan(model, backend="openvino", options=Options(**options))


def sites(found: Plan, tensor: str) -> list[Site]:
    return [site for site in found.sites if site.tensor == tensor]


def reasons(found: Plan) -> dict[str, str]:
    return {kept.node: kept.reason for kept in found.kept_float}


def makers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in model.graph.node for name in node.output}


def test_activation_functions_stay_and_nothing_stands_before_them(tmp_path: Path) -> None:
    q = quantized(residual(), tmp_path / "q.onnx")
    model = onnx.load(tmp_path / "q.onnx")
    by, ops = makers(model), [n.op_type for n in model.graph.node]
    assert ops.count("Relu") == 1 and ops.count("Clip") == 1 and ops.count("Conv") == 3
    for node in model.graph.node:
        if node.op_type in ("Relu", "Clip"):
            assert by[node.input[0]].op_type in ("Conv", "Add")
        if node.op_type in ("Conv", "MaxPool"):
            assert by[node.input[0]].op_type in ("DequantizeLinear", "MaxPool")
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    for site in (s for s in q.plan.sites if s.tensor != "p"):  # behind the pool none is needed
        assert kinds[f"{site.name}_zero_point"] == (TensorProto.INT8 if site.role == "weight" else TensorProto.UINT8)
        if site.role == "weight":
            stored = next(t for t in model.graph.initializer if t.name == f"{site.tensor}_quantized")
            assert numpy_helper.to_array(stored).min() >= -127
    assert not [site for site in q.plan.sites if site.role == "bias"]


def test_of_a_residual_add_the_branch_is_quantized_that_no_convolution_computes_for_it() -> None:
    found = plan(residual())
    add = next(name for name, op in found.quantized.items() if op == "Add")
    read = {(site.tensor, edge.index) for site in found.sites for edge in site.readers if edge.node == add}
    assert read == {("r", 1)}


def test_sums_that_no_convolution_makes_stay_float() -> None:
    found = plan(GRAPHS["attention"]())
    assert {"Add", "Mul", "Softmax"} & set(found.quantized.values()) == set()
    assert "not a residual Add" in reasons(found)["skip"]


def test_no_zero_point_for_what_needs_none() -> None:
    """ConvTranspose and products of activations: uint8 where nothing is negative, whose zero point is 0, else int8."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 16, 16] y, float[1, 4, 16, 16] z, float[1, 4, 8, 8] p) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            y = ConvTranspose <strides = [2, 2]> (r, v)
            b = Conv <pads = [1, 1, 1, 1]> (x, w)
            z = ConvTranspose <strides = [2, 2]> (b, v)
            s = Softmax <axis = -1> (b)
            p = MatMul (s, b)
        }""",
        w=normal(4, 4, 3, 3),
        v=normal(4, 4, 2, 2, seed=1),
    )
    q = quantized(model)
    for tensor, kind in (("r", "uint8"), ("s", "uint8"), ("b", "int8")):
        (site,) = sites(q.plan, tensor)
        assert site.spec.dtype == kind
        assert not q.qparams[site.name].zero_point.any()
    (data,) = sites(q.plan, "x")
    assert q.qparams[data.name].zero_point.item() > 0


@pytest.mark.parametrize(("function", "kind"), [("Relu", "uint8"), ("Identity", "int8")])
def test_no_zero_point_where_a_concat_shares_the_grid_with_negative_numbers(function: str, kind: str) -> None:
    model = build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) {{
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            y = ConvTranspose <strides = [2, 2]> (p, v)
            b = Conv <pads = [1, 1, 1, 1]> (x, w2)
            n = {function} (b)
            c = Concat <axis = 1> (r, n)
            z = Conv (c, u)
        }}""",
        w=normal(4, 4, 3, 3),
        w2=normal(4, 4, 3, 3, seed=3),
        v=normal(4, 4, 2, 2, seed=1),
        u=normal(4, 8, 1, 1, seed=2),
    )
    q = quantized(model)
    (read,) = [
        s for s in q.plan.sites for e in s.readers if q.plan.quantized.get(e.node) == "ConvTranspose" and not e.index
    ]
    assert read.spec.dtype == kind
    assert not q.qparams[read.name].zero_point.any()


def test_a_zero_point_asked_for_is_said_to_cost_the_integer_kernel() -> None:
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 16, 16] y) { y = ConvTranspose <strides = [2, 2]> (x, v) }",
        v=normal(4, 4, 2, 2, seed=1),
    )
    assert not [note for note in quantized(model).notes if "zero point" in note]
    assert [note for note in quantized(model, symmetric=False).notes if "runs in float" in note and "'x'" in note]


def test_groups_of_a_transposed_convolution_stay_float() -> None:
    found = plan(GRAPHS["upsampling"]())
    assert "groups" in reasons(found)["grouped"]
    assert "linear" in reasons(found)["linear"]
    assert found.quantized["up"] == "ConvTranspose" and found.quantized["nearest"] == "Resize"


def test_scalars_are_never_quantized() -> None:
    model = build(
        "(float[1, 8, 16] x) => (float[1, 8, 8] y) { s = MatMul (x, w)\n y = Mul (s, half) }",
        w=normal(16, 8),
        half=f32(0.5),
    )
    assert not sites(plan(model, placement="all"), "half")
    attention = plan(GRAPHS["attention"](), placement="all")
    assert not sites(attention, "factor")


def test_data_movement_is_quantized_where_it_leads_to_integers_and_once(tmp_path: Path) -> None:
    model = build(
        """(float[1, 8, 8, 8] x) => (float[1, 4, 16] y, float[1, 64, 8] side) {
            a = Conv (x, w)
            f = Reshape (a, dims)
            t = Transpose <perm = [0, 2, 1]> (f)
            m = MatMul (t, v)
            y = Transpose <perm = [0, 2, 1]> (m)
            b = Conv (x, w)
            g = Reshape (b, dims)
            side = Transpose <perm = [0, 2, 1]> (g)
        }""",
        w=normal(8, 8, 1, 1),
        v=normal(8, 4, seed=1),
        dims=np.array([1, 8, 64]),
    )
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 64
    q = quantized(model, tmp_path / "q.onnx")
    assert sum(op in ("Reshape", "Transpose") for op in q.plan.quantized.values()) == 2
    written = onnx.load(tmp_path / "q.onnx")
    assert sum(n.op_type == "QuantizeLinear" for n in written.graph.node) == 2, "for x and a, none behind the movement"
    by = makers(written)
    product = next(n for n in written.graph.node if n.op_type == "MatMul")
    chain = [by[product.input[0]]]
    while chain[-1].op_type != "DequantizeLinear":
        chain.append(by[chain[-1].input[0]])
    assert [n.op_type for n in chain] == ["Transpose", "Reshape", "DequantizeLinear"]
    feeds = feeds_for(model)
    repeated = infer(ir.to_proto(q.qdq()), feeds, optimize=False)
    for name, arrays in infer(written, feeds, optimize=False).items():
        for got, want in zip(arrays, repeated[name], strict=True):
            np.testing.assert_array_equal(got, want)


def test_branches_of_a_concat_share_a_scale() -> None:
    q = quantized(concat())
    (a,), (b,) = sites(q.plan, "a"), sites(q.plan, "b")
    assert q.qparams[a.name] == q.qparams[b.name]


def test_pools_are_quantized_behind_integers_only() -> None:
    model = build(
        """(float[1, 8, 8, 8] x) => (float[1, 8, 1, 1] y, float[1, 8, 1, 1] z) {
            a = Conv (x, w)
            y = GlobalAveragePool (a)
            s = Sin (x)
            z = GlobalAveragePool (s)
        }""",
        w=normal(8, 8, 1, 1),
    )
    found = plan(model)
    assert list(found.quantized.values()) == ["Conv", "GlobalAveragePool"]
    assert "no operator before it runs in integers" in reasons(found).values()


@pytest.mark.parametrize("options", [{"act_bits": 16}, {"override": {"Conv": {"act_bits": 16}}}])
def test_16_bit_activations_are_refused_with_the_reason(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="removes 16-bit quantizers"):
        quantized(residual(), **options)


def test_widths_without_kernels_are_refused() -> None:
    with pytest.raises(OptionError, match="no weights of 4 bits"):
        quantized(residual(), weight_bits=4)


def test_scales_have_16_significant_bits() -> None:
    q = quantized(residual())
    for qp in q.qparams.values():
        mantissa, _ = np.frexp(qp.scale.astype(np.float64))
        assert (np.ldexp(mantissa, 16) % 1 == 0).all()


def test_a_pool_takes_the_strides_of_convolutions_of_kernel_1(tmp_path: Path) -> None:
    """Behind the DequantizeLinear, where OpenVINO would put it, both convolutions would run in float."""
    model = shortcut_v1()
    found = quantized(model, tmp_path / "q.onnx")
    onnxq.quantize(model, feeds_for(model), backend="tvm", output=tmp_path / "given.onnx")
    given = onnxq.deploy(tmp_path / "given.onnx", backend="openvino", output=tmp_path / "deployed.onnx")
    for q, path in ((found, "q.onnx"), (given, "deployed.onnx")):
        assert set(q.plan.quantized) >= {"a", "b", "c"}
        written = onnx.load(tmp_path / path)
        by = makers(written)
        for node in (n for n in written.graph.node if n.name in ("b", "c")):
            assert not any(step > 1 for a in node.attribute if a.name == "strides" for step in a.ints)
            assert by[node.input[0]].op_type == "MaxPool"
            assert by[by[node.input[0]].input[0]].op_type == "DequantizeLinear"


@pytest.mark.parametrize("step", [1, 2])
def test_a_pool_with_dilations_is_float_and_what_is_behind_it_quantized(step: int) -> None:
    model = build(
        f"""(float[1, 4, 12, 12] x) => (float[1, 4, a, b] y) {{
            c = Conv (x, w)
            [pool] p = MaxPool <kernel_shape = [2, 2], dilations = [{step}, {step}]> (c)
            [last] y = Conv (p, w)
        }}""",
        w=normal(4, 4, 3, 3),
    )
    plan = onnxq.plan(model, backend="openvino")
    assert ("pool" in plan.quantized) == (step == 1) and "last" in plan.quantized
    assert [s.tensor for s in plan.sites if any(e.node == "last" and e.index == 0 for e in s.readers)] == ["p"]


def test_a_part_of_what_no_integers_make_is_quantized_behind_the_pool() -> None:
    model = build(
        "(float[1, 8, 8, 8] x) => (float[1, 8, 4, 4] y) { y = Conv <strides = [2, 2]> (x, w) }", w=normal(8, 8, 1, 1)
    )
    found = plan(model)
    assert not sites(found, "x") and len(sites(found, "x_strided")) == 1

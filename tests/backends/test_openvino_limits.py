"""OpenVINO: what it would compute wrongly, or refuse, is written otherwise or stays float; see the runtime tests."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.openvino.multiplied import why_not_transposed
from onnxq.backends.openvino.scalar_indices import scalar_indices
from onnxq.graph.shapes import infer_shapes
from onnxq.ort.session import Session
from onnxq.plan import Plan
from tests.backends.openvino_cases import CASES
from tests.models import build, feeds_for, normal


def plan(model: onnx.ModelProto) -> Plan:
    return onnxq.plan(model, backend="openvino", options=Options(placement="all"))


def reasons(model: onnx.ModelProto) -> dict[str, str]:
    return {kept.node: kept.reason for kept in plan(model).kept_float}


def sites_of(found: Plan) -> dict[str, str | None]:
    """Tensors that are quantized, and what each shares its scale with."""
    return {site.tensor: site.tied_to for site in found.sites if site.role == "activation"}


def test_a_convolution_of_free_sizes_that_several_read_has_a_bias() -> None:
    """Of zeros, which changes nothing, until biases are corrected; of known sizes it is left as it is."""
    free = CASES["two readers"]()
    q = onnxq.quantize(free, feeds_for(free), backend="openvino", options=Options(effort="fast"))
    (conv,) = [node for node in q.model.graph if node.op_type == "Conv"]
    bias = conv.inputs[2]
    assert bias is not None and bias.const_value is not None and not bias.const_value.numpy().any()
    fixed = onnx.ModelProto.FromString(free.SerializeToString())
    for info in (*fixed.graph.input, *fixed.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = 2
    q = onnxq.quantize(fixed, feeds_for(fixed), backend="openvino", options=Options(effort="fast"))
    assert [len(node.inputs) for node in q.model.graph if node.op_type == "Conv"] == [2]


def test_a_product_of_free_sizes_that_several_read_stays_float() -> None:
    text = """(float[{size}, 4, 8] x) => (float[{size}, 4, 4] y) {{
        t = Transpose <perm = [0, 2, 1]> (x)
        [p] p = MatMul (x, t)
        a = Tanh (p)
        y = Add (p, a)
    }}"""
    assert "sizes are free" in reasons(build(text.format(size="N")))["p"]
    assert "p" in plan(build(text.format(size="2"))).quantized


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "GlobalMaxPool"])
def test_a_largest_element_is_taken_of_integers(op: str) -> None:
    """Its input has the quantizer, and its output shares the scale."""
    axes = "" if op == "GlobalMaxPool" else "<axes = [2, 3]>"
    model = build(
        f"""(float[1, 4, 6, 6] x) => (float[1, 3, 1, 1] y) {{
            [r] r = {op} {axes} (x)
            y = Conv (r, w)
        }}""",
        w=normal(3, 4, 1, 1),
    )
    found = plan(model)
    assert "r" in found.quantized
    assert sites_of(found) == {"x": None, "r": "x"}


def test_what_reads_a_largest_element_in_float_stays_float() -> None:
    """A product of two activations needs zero point 0, on which the numbers in front of a ReduceMax are not."""
    model = build(
        """(float[2, 4, 6, 8] x, float[2, 8, 6] z) => (float[2, 6, 6] y) {
            [r] r = ReduceMax <axes = [1], keepdims = 0> (x)
            [p] y = MatMul (r, z)
        }"""
    )
    assert "computes 'r' wrongly" in reasons(model)["p"]


@pytest.mark.parametrize(("strides", "kept"), [("3", True), ("2", False), ("3, 2", False), ("2, 3", True)])
def test_a_transposed_convolution_that_moves_by_3_along_the_last_axis_stays_float(strides: str, kept: bool) -> None:
    rank = strides.count(",") + 1
    model = build(
        f"""(float[1, 4{", 8" * rank}] x) => (float[1, 4{", N" * rank}] y) {{
            [d] y = ConvTranspose <strides=[{strides}]> (x, w)
        }}""",
        w=normal(4, 4, *[4] * rank),
    )
    assert ("strides of 3" in reasons(model).get("d", "")) == kept


@pytest.mark.parametrize(
    ("form", "why"), [("strides = [2, 2]", "beyond its kernel"), ("pads = [0, 1, 0, 0]", "cuts off")]
)
def test_a_transposed_convolution_without_an_integer_kernel_stays_float(form: str, why: str) -> None:
    text = f"(float[1, 4, 8, 8] x) => (float[1, 4, N, M] y) {{ [d] y = ConvTranspose <{form}> (x, w) }}"
    assert why in reasons(build(text, w=normal(4, 4, 3, 1)))["d"]


def test_weights_of_unknown_sizes() -> None:
    node = ir.node("ConvTranspose", [ir.Value(name="x"), ir.Value(name="w")], {"dilations": [2, 1]})
    assert why_not_transposed(node) is None


def test_a_product_of_a_vector_stays_float() -> None:
    model = build("(float[8] x) => (float[4] y) { [m] y = MatMul (x, w) }", w=normal(8, 4))
    assert "another shape" in reasons(model)["m"]


@pytest.mark.parametrize(
    ("shape", "function", "behind", "kept"),
    [
        ("2, 8", "", "[2, 8, 1]", False),
        ("2, 4, 8", "", "[2, 4, 8, 1]", True),
        ("2, 4, 8", "Neg", "[2, 4, 8, 1, 1]", True),
        ("2, 4, 8", "Relu", "[2, 4, 8, 1]", False),
        ("2, 4, 8", "zeros", "[2, 4, 8, 1]", True),
        ("2, 4, 8", "ones", "[2, 4, 8, 1]", False),
        ("2, 4, 8", "", "[2, 4, 1, 8]", False),
    ],
)
def test_matrices_with_an_axis_behind_their_last_stay_float(shape: str, function: str, behind: str, kept: bool) -> None:
    node = f"Add (m, {function})" if function in ("zeros", "ones") else f"{function} (m)"
    between, last = (f"n = {node}", "n") if function else ("", "m")
    text = f"(float[{shape}] x) => (float{behind} y) {{ [m] m = MatMul (x, w) {between} y = Reshape ({last}, s) }}"
    sizes = np.array([int(size) for size in behind.strip("[]").split(",")])
    zeros, ones = np.zeros(8, np.float32), np.ones(8, np.float32)
    model = build(text, w=normal(8, 8), s=sizes, zeros=zeros, ones=ones)
    assert ("along another axis" in reasons(model).get("m", "")) == kept


def test_a_convolution_that_a_loop_reads_has_a_bias() -> None:
    model = CASES["read by a loop"]()
    q = onnxq.quantize(model, feeds_for(model), backend="openvino", options=Options(effort="fast", placement="all"))
    assert [len(node.inputs) for node in q.model.graph if node.op_type == "Conv"] == [3]


@pytest.mark.parametrize(("axis", "kind"), [(1, "int8"), (2, "uint8")])
def test_a_product_behind_a_concat_has_no_zero_point_but_along_the_last_axis(axis: int, kind: str) -> None:
    """Tokens joined with others; the Concat itself is in integers where its zero points can be taken."""
    sizes = [1, 4, 8]
    sizes[axis] *= 2
    model = build(
        f"""(float[1, 4, 8] x, float[1, 4, 8] z) => (float[1, {sizes[1]}, 3] y) {{
            [c] c = Concat <axis = {axis}> (x, z)
            [m] y = MatMul (c, w)
        }}""",
        w=normal(sizes[2], 3),
    )
    found = plan(model)
    specs = {site.spec.signed for site in found.sites if site.role == "activation"}
    assert "m" in found.quantized and specs == {kind == "int8"}
    assert ("c" in found.quantized) == (axis == 2)


def test_a_convolution_behind_a_concat_along_another_axis_than_channels_stays_float() -> None:
    """But of numbers that are never negative, or where something reads the Concat in float."""
    text = """(float[1, 4, 8] x, float[1, 4, 8] z) => (float[1, 3, 16] y) {{
        a = {first} (x)
        b = {first} (z)
        c = Concat <axis = 2> (a, b)
        [d] y = Conv (c, w)
    }}"""
    assert "than channels" in reasons(build(text.format(first="Tanh"), w=normal(3, 4, 1)))["d"]
    assert "d" in plan(build(text.format(first="Relu"), w=normal(3, 4, 1))).quantized
    streaming = build(
        """(float[1, 4, 8] x, float[1, 4, 2] before) => (float[1, 3, 8] y, float[1, 4, 2] after) {
            c = Concat <axis = 2> (before, x)
            [d] y = Conv (c, w)
            after = Slice (c, begin, end, axis)
        }""",
        w=normal(3, 4, 3),
        begin=np.array([8]),
        end=np.array([10]),
        axis=np.array([2]),
    )
    assert "d" in plan(streaming).quantized


def test_reductions_whose_axes_it_reads_as_an_input_only_are_of_opset_18() -> None:
    for name, opset in (("sums along an axis", 18), ("spatial attention", 17)):
        model = CASES[name]()
        q = onnxq.quantize(model, feeds_for(model), backend="openvino")
        assert q.rendered().opset_imports[""] == opset


@pytest.mark.parametrize(
    ("inside", "shape", "picked"),
    [
        ("m = MatMul (x, w) y = Gather <axis = 1> (m, one)", "2, 24", 1),
        ("m = MatMul (x, w) n = Neg (m) h = Div (n, half) y = Gather <axis = -2> (h, one)", "2, 24", 1),
        ("m = MatMul (x, w) r = Relu (m) y = Gather <axis = 1> (r, vector)", "2, 1, 24", 0),
        ("m = MatMul (x, w) i = Sub (one, one) y = Gather <axis = 1> (m, i)", "2, 24", 1),
        ("t = Tanh (x) p = Gather <axis = 1> (t, one) y = MatMul (p, w)", "2, 24", 0),
    ],
)
def test_a_scalar_index_behind_integers_is_a_vector_and_its_axis_squeezed(inside: str, shape: str, picked: int) -> None:
    constants = {"one": np.array(-1), "vector": np.array([1]), "half": np.float32(0.5)}
    read = {name: array for name, array in constants.items() if f"{name})" in inside}
    source = build(f"(float[2, 8, 16] x) => (float[{shape}] y) {{ {inside} }}", w=normal(16, 24), **read)
    model = ir.from_proto(source)
    infer_shapes(model)
    assert len(scalar_indices(model)) == picked
    assert [node.op_type for node in model.graph][-2:] == ["Gather", "Squeeze"] or not picked
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for feed in feeds_for(source, samples=2):
        np.testing.assert_array_equal(Session(model).run(feed)["y"], Session(ir.from_proto(source)).run(feed)["y"])


@pytest.mark.parametrize(("axis", "biases"), [(0, 2), (1, 2), (2, 3)])
def test_a_convolution_in_front_of_a_matrix_of_indices_has_a_bias(axis: int, biases: int) -> None:
    model = CASES["unfolded"]()
    model.graph.node[-1].attribute[0].i = axis
    rows = np.array([[0, 1]])
    next(t for t in model.graph.initializer if t.name == "rows").CopyFrom(onnx.numpy_helper.from_array(rows, "rows"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    q = onnxq.quantize(model, feeds_for(model), backend="openvino", options=Options(effort="fast"))
    (conv,) = [node for node in q.model.graph if node.op_type == "Conv"]
    assert len(conv.inputs) == biases


@pytest.mark.parametrize(
    ("size", "sum_", "quantized"),
    [
        ("2, 8, 16", "ReduceMean <axes = [1]> (m)", False),
        ("N, 8, 16", "ReduceMean <axes = [-2, -1]> (m)", False),
        ("1, 8, 16", "ReduceMean <axes = [1]> (m)", True),
        ("2, 8, 16", "ReduceMean <axes = [2]> (m)", True),
        ("2, 8, 16", "ReduceMean <axes = [0, 1]> (m)", True),
        ("2, 8, 16", "ReduceMean (m)", True),
        ("2, 3, 8, 16", "ReduceMean <axes = [2]> (m)", True),
    ],
)
def test_a_sum_over_the_second_of_three_axes_stays_float(size: str, sum_: str, quantized: bool) -> None:
    model = build(f"(float[{size}] x) => (y) {{ m = MatMul (x, w)\n [sum] y = {sum_} }}", w=normal(16, 24))
    assert ("sum" in plan(model).quantized) is quantized, reasons(model)


@pytest.mark.parametrize(
    ("layer", "quantized"),
    [
        ("[conv] z = Conv (t, k)", []),
        ("u = Transpose <perm = [0, 2, 1]> (t) [product] z = MatMul (u, v)", []),
        ("u = Tanh (t) [conv] d = Conv (u, k) [add] z = Add (d, t)", ["conv"]),
    ],
)
def test_what_reads_a_tensor_of_such_a_sum_stays_float(layer: str, quantized: list[str]) -> None:
    """OpenVINO would have it compute the sum in integers too."""
    text = f"""(float[2, 8, 16] x) => (y, z) {{
        [first] m = MatMul (x, w)
        t = Transpose <perm = [0, 2, 1]> (m)
        [sum] y = GlobalAveragePool (t)
        {layer}
    }}"""
    constants = {"w": normal(16, 24), "k": normal(24, 24, 1), "v": normal(24, 4)}
    model = build(text, **{name: array for name, array in constants.items() if f"{name})" in text})  # type: ignore[arg-type]
    assert list(plan(model).quantized) == ["first", *quantized]
    assert "OpenVINO would compute 'sum' in integers, and wrongly" in reasons(model).values()


def squeezed(rows: str, axes: str = "") -> onnx.ModelProto:
    net = f"(float[{rows}, 8] x) => (float[{rows}] y) {{ a = MatMul (x, w) [s] s = Squeeze (a{axes}) y = Sigmoid (s) }}"
    return build(net, w=normal(8, 1), last=np.array([1]))


@pytest.mark.parametrize(("rows", "axes", "refused"), [("N", "", True), ("N", ", last", False), ("2", "", False)])
def test_a_squeeze_that_leaves_an_unknown_number_of_axes_is_warned_of(rows: str, axes: str, refused: bool) -> None:
    model = squeezed(rows, axes)
    found = [f for f in onnxq.check(model, backend="openvino") if "names no axes" in f.what]
    assert [finding.where for finding in found] == (["node 's' (Squeeze)"] if refused else [])
    made = onnxq.quantize(model, feeds_for(model), backend="openvino", options=Options(effort="fast"))
    assert made.verification is not None
    assert any("names no axes" in said for said in made.verification.warnings) == refused

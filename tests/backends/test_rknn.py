"""RKNN: what its loader asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from onnxq.options import Placement
from tests.models import build, images, normal, verified_sqnr
from tests.targets import residual, upsampling


@pytest.mark.parametrize(("graph", "shape"), [(residual, (1, 3, 16, 16)), (upsampling, (1, 4, 8, 8))])
def test_only_standard_operators_of_an_opset_it_reads(graph: object, shape: tuple[int, ...], tmp_path: Path) -> None:
    assert callable(graph)
    made = onnxq.quantize(graph(), images(*shape), backend="rknn", output=tmp_path)
    model = onnx.load(made.files[0])
    assert {o.domain: o.version <= 19 for o in model.opset_import} == {"": True}
    assert not model.functions
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            assert kinds[node.input[2]] == onnx.TensorProto.UINT8
        if node.op_type == "DequantizeLinear":
            allowed = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8, onnx.TensorProto.INT32)
            assert kinds[node.input[2]] in allowed


def test_only_8_bits() -> None:
    for options in (Options(weight_bits=4), Options(act_bits=16)):
        with pytest.raises(OptionError, match="rknn has no"):
            onnxq.quantize(residual(), images(1, 3, 16, 16), backend="rknn", options=options)


def test_a_newer_model_is_lowered(tmp_path: Path) -> None:
    """Where its operators are older ones, or can be written with them."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { [conv] a = Conv (x, w) g = Gelu (a) y = Conv (g, v) }",
        w=normal(4, 3, 1, 1),
        v=normal(4, 4, 1, 1, seed=1),
        opset=22,
    )
    made = onnxq.quantize(model, images(1, 3, 8, 8), backend="rknn", output=tmp_path)
    result = onnx.load(made.files[0])
    assert {o.domain: o.version for o in result.opset_import} == {"": 19}
    assert "Erf" in {node.op_type for node in result.graph.node} and "conv" in made.plan.quantized
    assert verified_sqnr(made) > 30
    given = onnxq.quantize(model, images(1, 3, 8, 8), options=Options(placement="all")).qdq()
    again = onnxq.deploy(given, backend="rknn")
    assert given.opset_imports[""] == 22
    assert again.model.opset_imports[""] == 19 and "conv" in again.plan.quantized


def test_a_newer_operator_is_refused() -> None:
    text = "(float[2, 8, 4] x, float[2, 1, 4] u) => (float[2, 8, 4] y) { [far] y = TensorScatter (x, u) }"
    with pytest.raises(OptionError, match="up to opset 19, this one, of 24, has newer operators: node 'far'"):
        onnxq.plan(build(text, opset=24, ir_version=10), backend="rknn")


def products() -> onnx.ModelProto:
    return build(
        """(float[4, 8] x) => (float[1, 4, 8] y) {
            [gemm] a = Gemm (x, w)
            [lift] b = Unsqueeze (a, axes)
            [rows] y = MatMul (b, v)
        }""",
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
        axes=onnx.numpy_helper.to_array(onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [0])),
    )


def steps() -> onnx.ModelProto:
    """Convolutions that move by 8 with and without a bias and by 7, a Transpose of an input, one of an inner tensor."""
    return build(
        """(float[1, 32, 3] x, float[1, 3, 32] z) => (float y, float v, float u) {
            [turn] t = Transpose <perm = [0, 2, 1]> (x)
            [far] y = Conv <kernel_shape = [8], strides = [8]> (t, w, b)
            [bare] v = Conv <kernel_shape = [8], strides = [8]> (z, w)
            [near] c = Conv <kernel_shape = [8], strides = [7]> (z, w, b)
            [inner] u = Transpose <perm = [0, 2, 1]> (c)
        }""",
        w=normal(4, 3, 8),
        b=normal(4, seed=1),
    )


def test_what_its_builder_crashes_or_hangs_on_quantized_stays_float() -> None:
    plan = onnxq.plan(steps(), backend="rknn")
    kept = {k.node: k.reason for k in plan.kept_float}
    assert "fails on a Conv of stride 8 with a bias in a model with quantizers" in kept["far"]
    assert "hangs on a quantized Transpose of a model input" in kept["turn"]
    assert set(plan.quantized) == {"bare", "near", "inner"}
    (found,) = [f for f in onnxq.check(steps(), backend="rknn") if "'far'" in f.where]
    assert found.level == "warning" and "stride 8" in found.what and "Cut the model" in found.hint


def test_long_windows_that_move_far_stay_float_and_are_told() -> None:
    """A Fourier transform written as a convolution is such: its builder fails on them without a bias too."""
    model = build(
        """(float[1, 1, 640] x) => (float a, float b, float c, float d) {
            [frames] a = Conv <strides = [16]> (x, long)
            [patches] b = Conv <strides = [32]> (x, short)
            [slow] c = Conv <strides = [7]> (x, long)
            [next] d = Conv <strides = [31]> (x, short)
        }""",
        long=normal(8, 1, 32),
        short=normal(8, 1, 31),
    )
    plan = onnxq.plan(model, backend="rknn")
    assert set(plan.quantized) == {"slow", "next"}
    told = {f.where: f.what for f in onnxq.check(model, backend="rknn") if f.level == "warning" and "RKNN" in f.what}
    assert ["stride 16 of side 32" in what for where, what in told.items() if "'frames'" in where] == [True]
    assert ["stride 32 of side 31" in what for where, what in told.items() if "'patches'" in where] == [True]
    assert len(told) == 2


def expected() -> onnx.ModelProto:
    """Where the peak of a map lies, by a Softmax over all of it: each number of that is small."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 8, 64] y) {
            c = Conv (x, w)
            m = Reshape (c, flat)
            p = Softmax (m)
            y = Mul (p, places)
        }""",
        w=normal(8, 4, 1, 1, scale=0.1),
        flat=np.array([1, 8, 64]),
        places=np.linspace(0.2, 1, 64, dtype=np.float32),
    )


def normed() -> onnx.ModelProto:
    """A norm behind a GELU, as ConvNeXt V2 has: the builder ends with a KeyError where the norm reads floats."""
    return build(
        """(float[1, 6, 6, 16] x) => (float[1, 6, 6, 16] y) {
            h = MatMul (x, w)
            g = Gelu (h)
            n = ReduceL2 (g, axes)
            y = Mul (g, n)
        }""",
        opset=20,
        w=normal(16, 16),
        axes=np.array([1, 2]),
    )


def test_a_norm_reads_integers() -> None:
    plan = onnxq.plan(normed(), backend="rknn")
    assert "ReduceL2" in plan.quantized.values()
    assert {site.tensor for site in plan.sites if site.role == "activation"} >= {"g", "n"}


def test_a_softmax_over_many_has_the_range_of_the_data() -> None:
    made = onnxq.quantize(expected(), images(1, 4, 8, 8), backend="rknn")
    assert float(made.qparams["p"].scale) < 0.1 / 255
    assert verified_sqnr(made) > 35


def test_check_names_an_input_that_it_takes_in_no_model() -> None:
    model = build(
        "(uint8[1, 3, 8, 8] x) => (float y) { f = Cast <to = 1> (x)\n y = Conv (f, w) }", w=normal(4, 3, 3, 3)
    )
    (found,) = [f for f in onnxq.check(model, backend="rknn") if "'x'" in f.where]
    assert "no uint8 input" in found.what and "Cast" in found.hint


def test_matrix_products_that_its_builder_hangs_on_quantized_stay_float() -> None:
    kept = {k.node: k.reason for k in onnxq.plan(products(), backend="rknn").kept_float}
    assert "a quantized Gemm of more than one row" in kept["gemm"]
    assert "a quantized MatMul of three axes" in kept["rows"]


def test_what_it_builds_in_float_is_no_fault_of_a_model() -> None:
    assert not [f for f in onnxq.check(products(), backend="rknn") if "gemm" in f.where or "rows" in f.where]


def test_a_layer_normalization_says_its_epsilon(tmp_path: Path) -> None:
    model = build(
        "(float[1, 4, 8] x) => (float[1, 4, 8] y) { n = LayerNormalization (x, s) y = Relu (n) }", s=normal(8), opset=17
    )
    made = onnxq.quantize(model, images(1, 4, 8), backend="rknn", output=tmp_path)
    (node,) = [n for n in onnx.load(made.files[0]).graph.node if n.op_type == "LayerNormalization"]
    assert {a.name: a.f for a in node.attribute if a.name == "epsilon"} == {"epsilon": pytest.approx(1e-5)}


def recurrent() -> onnx.ModelProto:
    """A recurrent layer of each kind as torch writes them: the layout said, though it is that of none said."""
    return build(
        """(float[6, 1, 8] x) => (float[6, 1, 8] y) {
            r = Relu (x)
            a = LSTM <hidden_size = 8, layout = 0> (r, w4, w4)
            b = GRU <hidden_size = 8, layout = 0> (r, w3, w3)
            c = RNN <hidden_size = 8, layout = 0> (r, w1, w1)
            d = Squeeze (a, one)
            e = Squeeze (b, one)
            f = Squeeze (c, one)
            y = Sum (d, e, f)
        }""",
        w4=normal(1, 32, 8, scale=0.3),
        w3=normal(1, 24, 8, seed=1, scale=0.3),
        w1=normal(1, 8, 8, seed=2, scale=0.3),
        one=np.array([1]),
        opset=18,
    )


def test_recurrent_layers_have_no_layout(tmp_path: Path) -> None:
    """The builder runs them as of an opset that has none: it ends at one that is written out, the default too."""
    made = onnxq.quantize(recurrent(), images(6, 1, 8), backend="rknn", output=tmp_path)
    nodes = [n for n in onnx.load(made.files[0]).graph.node if n.op_type in ("LSTM", "GRU", "RNN")]
    assert len(nodes) == 3 and not [a.name for n in nodes for a in n.attribute if a.name == "layout"]


def heads() -> onnx.ModelProto:
    """Attention of two heads over what convolutions make, a residual behind a MatMul and one behind a convolution."""
    return build(
        """(float[1, 8, 4, 4] x) => (float[1, 16, 8] y, float[1, 8, 4, 4] z) {
            [stem] a = Conv (x, w)
            [kept] z = Add (a, x)
            r = Reshape (z, rows)
            t = Transpose <perm = [0, 2, 1]> (r)
            h = Reshape (t, split)
            q = Transpose <perm = [0, 2, 1, 3]> (h)
            k = Transpose <perm = [0, 2, 3, 1]> (h)
            [scores] s = MatMul (q, k)
            [share] p = Softmax (s)
            [mix] m = MatMul (p, q)
            b = Transpose <perm = [0, 2, 1, 3]> (m)
            j = Reshape (b, join)
            [layer] l = MatMul (j, v)
            [bias] f = Add (l, n)
            [residual] y = Add (f, t)
        }""",
        w=normal(8, 8, 1, 1),
        v=normal(8, 8, seed=1),
        n=normal(8, seed=2),
        rows=np.array([1, 8, 16]),
        split=np.array([1, 16, 2, 4]),
        join=np.array([1, 16, 8]),
        opset=17,
    )


def test_attention_of_several_heads_stays_float_with_the_residuals_behind() -> None:
    plan = onnxq.plan(heads(), backend="rknn", options=Options(placement="all"))
    assert {"stem", "kept"} <= plan.quantized.keys()
    told = {kept.node: kept.reason for kept in plan.kept_float}
    assert all("multi-head" in told[name] for name in ("scores", "share", "mix"))
    assert all("what a MatMul in float makes" in told[name] for name in ("bias", "residual"))


@pytest.mark.parametrize(("placement", "told"), [("auto", ["scores", "mix"]), ("compute", [])])
def test_check_says_that_attention_of_several_heads_may_not_build(placement: Placement, told: list[str]) -> None:
    found = onnxq.check(heads(), backend="rknn", options=Options(placement=placement))
    warned = [f for f in found if f.level == "warning" and "multi-head" in f.what]
    assert [f.where for f in warned] == [f"node '{name}' (MatMul)" for name in told]
    assert all("--placement compute" in f.hint for f in warned)


def test_outputs_that_the_model_reads_have_a_dequantizer_of_their_own(tmp_path: Path) -> None:
    source = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] a, float[1, 4, 8, 8] b, float[1, 4, 8, 8] y) {
            [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [relu] b = Relu (a)
            [last] y = Conv <pads = [1, 1, 1, 1]> (b, v)
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    feeds = images(1, 3, 8, 8)
    made = onnxq.quantize(source, feeds, backend="rknn", output=tmp_path)
    model = onnx.load(made.files[0])
    read = {name for node in model.graph.node for name in node.input}
    assert [o.name for o in model.graph.output] == ["a", "b", "y"]
    assert not read & {"a", "b", "y"}
    dequantized = [out for node in model.graph.node if node.op_type == "DequantizeLinear" for out in node.output]
    assert all(sum(name in node.input for node in model.graph.node) <= 1 for name in dequantized)
    again = onnxq.deploy(made.files[0], backend="rknn", output=tmp_path / "again")
    assert {s.tensor: again.qparams[s.name] for s in again.plan.sites} == {
        s.tensor: made.qparams[s.name] for s in made.plan.sites
    }
    assert again.verification is not None and again.verification.against_source is not None
    assert again.verification.against_source.worst is not None
    assert again.verification.against_source.worst[1].sqnr > 100


def masked() -> onnx.ModelProto:
    """Attention of two heads that a Where masks, as exporters of causal transformers write it."""
    return build(
        """(float[1, 6, 16] x) => (float[1, 6, 16] y) {
            q = MatMul (x, w)
            r = Reshape (q, split)
            h = Transpose <perm = [0, 2, 1, 3]> (r)
            k = Transpose <perm = [0, 2, 3, 1]> (r)
            s = MatMul (h, k)
            [causal] m = Where (lower, s, low)
            p = Softmax (m)
            o = MatMul (p, h)
            t = Transpose <perm = [0, 2, 1, 3]> (o)
            j = Reshape (t, join)
            y = MatMul (j, v)
        }""",
        w=normal(16, 16, scale=0.2),
        v=normal(16, 16, seed=1, scale=0.2),
        split=np.array([1, 6, 2, 8]),
        join=np.array([1, 6, 16]),
        lower=np.tril(np.ones((1, 1, 6, 6), bool)),
        low=np.float32(-np.inf),
    )


def transposed() -> onnx.ModelProto:
    """A transposed convolution that names no padding."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 16, 16] y) {
            [up] y = ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER"> (x, w)
        }""",
        w=normal(4, 4, 3, 3),
    )


def test_masks_are_added_and_padding_is_explicit(tmp_path: Path) -> None:
    for k, (graph, shape) in enumerate([(masked(), (1, 6, 16)), (transposed(), (1, 4, 8, 8))]):
        made = onnxq.quantize(graph, images(*shape), backend="rknn", output=tmp_path / str(k))
        nodes = onnx.load(made.files[0]).graph.node
        assert not [n for n in nodes if n.op_type == "Where" or "auto_pad" in {a.name for a in n.attribute}]
        assert verified_sqnr(made) > 30


IN_NO_MODEL = (
    ('y = Resize <mode = "cubic"> (x, , scales)', "cubic Resize"),
    ("c = Unsqueeze (x, two) y = MaxPool <kernel_shape = [1, 2, 2]> (c)", "MaxPool of five"),
    ("y, a, b = BatchNormalization <training_mode = 1> (x, one, zero, zero, one)", "training mode"),
    ("y = Mul (x, s)", "input without axes"),
    ("n = NonZero (x) y = Cast <to = 1> (n)", "NonZero"),
    ("y = Unique <axis = 1> (x)", "with Unique in it"),
    ("i = Cast <to = 6> (x) j = BitwiseOr (i, three) y = Cast <to = 1> (j)", "BitwiseOr with a constant"),
    ("y = LayerNormalization <axis = 1, epsilon = 0.00001> (x, block)", "LayerNormalization over several axes"),
    (
        "j = Concat <axis = 3> (x, x) r = Reshape (j, parted) t = Transpose <perm = [0, 2, 1, 3]> (r) "
        "c = Conv (t, single) q = Reshape (c, flat) a, b = Split <axis = 1, num_outputs = 2> (q) "
        "d = Sub (a, b) y = Unsqueeze (d, one_axis)",
        "Conv of one channel between Reshapes",
    ),
    ("c = Conv (x, square) g = Gather <axis = 1> (c, first) y = Unsqueeze (g, one_axis)", "Gather of a single index"),
)


def in_no_model(node: str) -> onnx.ModelProto:
    """A float model with one of these."""
    inputs = "float[1, 4, 8, 8] x" + (", float s" if "(x, s)" in node else "")
    return build(
        f"({inputs}) => (float[a, b, c, d] y) {{ {node} }}",
        opset=18,
        scales=np.asarray([1, 1, 2, 2], np.float32),
        two=np.array([2]),
        one=np.ones(4, np.float32),
        zero=np.zeros(4, np.float32),
        three=np.array(3, np.int32),
        block=normal(4, 8, 8),
        square=normal(4, 4, 1, 1),
        first=np.array(1),
        one_axis=np.array([1]),
        parted=np.array([1, 2, 4, -1]),
        flat=np.array([1, 2, -1]),
        single=normal(1, 4, 1, 1),
    )


@pytest.mark.parametrize(("node", "what"), IN_NO_MODEL)
def test_check_names_what_it_builds_in_no_model(node: str, what: str) -> None:
    told = [f for f in onnxq.check(in_no_model(node), backend="rknn") if f.level == "warning" and "RKNN" in f.what]
    assert [what in f.what for f in told] == [True] and "in float neither" in told[0].what


@pytest.mark.parametrize(
    ("source", "weight", "split"),
    [
        ("float[1, 8, 16] x", normal(2, 4, 1, 1), "a, b = Split <axis = 1, num_outputs = 2> (q) y = Sub (a, b)"),
        ("float[1, 4, 8, 4] x", normal(2, 4, 1, 1), "a, b = Split <axis = 1, num_outputs = 2> (q) y = Sub (a, b)"),
        ("float[1, 4, 8, 4] x", normal(1, 4, 1, 1), "y = Neg (q)"),
        ("float[1, 8, 16] x", normal(1, 4, 1, 1), "a, b = Split <axis = 1, num_outputs = 2> (q) y = Sub (a, b)"),
    ],
)
def test_a_conv_between_reshapes_that_it_builds_is_not_told(source: str, weight: np.ndarray, split: str) -> None:
    model = build(
        f"({source}) => (float[a, b, c] y) {{ r = Reshape (x, parted) t = Transpose <perm = [0, 2, 1, 3]> (r) "
        f"c = Conv (t, w) q = Reshape (c, flat) {split} }}",
        opset=18,
        w=weight,
        parted=np.array([1, 2, 4, -1]),
        flat=np.array([1, 2, -1]),
    )
    assert not [f for f in onnxq.check(model, backend="rknn") if f.level == "warning" and "RKNN" in f.what]


def test_bits_of_two_tensors_and_an_index_with_an_axis_are_not_told() -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 1, 8, 8] y, float[1, 4, 8, 8] z) {
            c = Conv (x, w)
            y = Gather <axis = 1> (c, i)
            a = Cast <to = 6> (c)
            b = Cast <to = 6> (x)
            d = BitwiseAnd (a, b)
            e = Cast <to = 1> (d)
            z = LayerNormalization (e, s)
        }""",
        opset=18,
        w=normal(4, 4, 1, 1),
        i=np.array([1]),
        s=normal(8),
    )
    assert not [f for f in onnxq.check(model, backend="rknn") if f.level == "warning" and "RKNN" in f.what]


def gate() -> onnx.ModelProto:
    """A HardSigmoid that leaves its numbers to the standard."""
    return build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { c = Conv (x, w) h = HardSigmoid (c) y = Mul (c, h) }",
        w=normal(4, 3, 3, 3),
    )


def test_a_hard_sigmoid_says_its_numbers(tmp_path: Path) -> None:
    made = onnxq.quantize(gate(), images(1, 3, 8, 8), backend="rknn", output=tmp_path)
    (node,) = [n for n in onnx.load(made.files[0]).graph.node if n.op_type == "HardSigmoid"]
    said = {a.name: a.f for a in node.attribute}
    assert said == {"alpha": pytest.approx(0.2), "beta": pytest.approx(0.5)}


@pytest.mark.parametrize("axis", [-1, 2])
def test_the_last_axis_of_a_normalization_is_taken_by_either_of_its_numbers(axis: int) -> None:
    text = f"(float[1, 4, 8] x) => (float[1, 4, 8] y) {{ n = LayerNormalization <axis = {axis}> (x, s) y = Relu (n) }}"
    found = onnxq.check(build(text, s=normal(8), opset=17), backend="rknn")
    assert not [finding for finding in found if "several axes" in finding.what]

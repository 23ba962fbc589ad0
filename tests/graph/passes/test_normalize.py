from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.errors import OptionError
from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.files.save import save, to_proto
from onnxq.graph.passes.normalize import normalize
from tests.counting import lines_of
from tests.graph.helpers import Array, apply, build, ops, random, run, signature
from tests.models import f32, i64

BN = {"s": 1 + random(6, seed=1), "b": random(6, seed=2), "mean": random(6, seed=3), "var": 1 + random(6, seed=4) ** 2}


def test_exporter_style_graph() -> None:
    text = """g (float[n,4,8,8] x) => (float[n,6] y) {
        i = Identity(x)
        c = Conv<pads = [1,1,1,1]>(i, w)
        n1 = BatchNormalization(c, s, b, mean, var)
        k = Constant<value_float = 2.0>() \n k2 = Mul(k, k)
        d = Div(n1, k2)
        r = Relu(d)
        p = GlobalAveragePool(r)
        sh = Shape(p) \n zero = Constant<value_int = 0>() \n one = Constant<value_ints = [-1]>()
        ax = Constant<value_ints = [0]>()
        n0 = Gather(sh, zero) \n n00 = Unsqueeze(n0, ax) \n to = Concat<axis = 0>(n00, one)
        y = Reshape(p, to) }"""
    proto = build(text, opset=13, w=random(6, 4, 3, 3), **BN)
    model, _ = apply(normalize, proto, {"x": random(2, 4, 8, 8)}, tolerance=5e-6)
    assert "Constant" not in ops(model)
    assert "BatchNormalization" not in ops(model)
    assert "Div" not in ops(model)
    assert model.opset_imports == {"": 17}


def test_affine_and_batchnorm_in_turns() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,6,6,6] y) {
        c = Conv(x, w) \n d = Add(c, bias) \n e = BatchNormalization(d, s, b, mean, var) \n f = Mul(e, bias)
        g1 = BatchNormalization(f, s, b, mean, var) \n y = Sub(g1, bias) }"""
    proto = build(text, w=random(6, 4, 3, 3), bias=random(1, 6, 1, 1, seed=9), **BN)
    model, _ = apply(normalize, proto, {"x": random(1, 4, 8, 8)}, tolerance=5e-6)
    assert ops(model) == ["Conv"]
    assert model.graph[0].outputs[0].name == "y"


def test_input_that_is_an_output_and_output_that_is_read() -> None:
    proto = build("g (float[4] x) => (float[4] a, float[4] y) { a = Identity(x) \n y = Relu(a) }")
    info = onnx.ValueInfoProto()
    info.CopyFrom(proto.graph.input[0])
    proto.graph.output.append(info)
    model = load(proto)
    normalize(model)
    check(model)
    assert signature(to_proto(model)) == signature(proto)
    for got in run(to_proto(model), {"x": f32([1, -1, 2, 0])})[::2]:
        np.testing.assert_array_equal(got, [1, -1, 2, 0])


def test_opset_is_never_lowered() -> None:
    with pytest.raises(OptionError, match="never lowered"):
        normalize(load(build("g (float[4] x) => (float[4] y) { y = Relu(x) }", opset=18)), opset=17)


def test_custom_operator_between_two_layers() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,6,8,8] y) {
        c = Conv<pads = [1,1,1,1]>(x, w) \n n = BatchNormalization(c, s, b, mean, var) \n t = Relu(n)
        y = Conv(t, v) }"""
    proto = build(text, opset=13, w=random(6, 4, 3, 3), v=random(6, 6, 1, 1), **BN)
    proto.graph.node[2].op_type, proto.graph.node[2].domain = "Thing", "com.example"
    proto.opset_import.add(domain="com.example", version=1)
    model = load(proto)
    normalize(model)
    check(model)
    assert ops(model) == ["Conv", "Thing", "Conv"]
    assert model.opset_imports == {"": 17, "com.example": 1}


def test_unused_optional_outputs_run() -> None:
    text = "g (float[1,1,4] x) => (float[1,1,2] y) { m, i = MaxPool<kernel_shape=[2], strides=[2]>(x) \n y = Relu(m) }"
    proto = build(text)
    proto.graph.node[0].output[1] = ""
    apply(normalize, proto, {"x": random(1, 1, 4)})


def test_shape_that_is_known_only_once_numbers_are_computed() -> None:
    text = """g (float[2,4] x) => (int64[3] y) {
        h = Cast<to = 7>(two) \n t = Concat<axis = 0>(h, h, h1) \n r = Reshape(x, t) \n s = Shape(r) \n y = Neg(s) }"""
    proto = build(text, two=f32([2]), h1=i64([2]))
    model, _ = apply(normalize, proto, {"x": random(2, 4)})
    assert ops(model) == ["Neg"]


def test_what_nothing_reads_hides_nothing_from_the_passes() -> None:
    text = """g (float[3, 4] x) => (float[3, 1, 5] y) {
        a = MatMul(x, w) \n dead = Neg(a) \n u = Unsqueeze(a, one) \n y = Mul(u, s) }"""
    proto = build(text, w=random(4, 5), one=np.array([1]), s=random(1, 5))
    model, _ = apply(normalize, proto, {"x": random(3, 4)})
    assert "Mul" not in ops(model)
    assert normalize(model) == []


def test_a_bias_behind_a_product_by_a_vector_computes_in_front_of_its_squeeze_at_once() -> None:
    text = """g (float[2, 12, 7] x) => (float[2, 7] y) {
        t = Transpose <perm = [0, 2, 1]> (x) \n p = MatMul(t, w) \n y = Add(p, b) }"""
    model, _ = apply(normalize, build(text, w=random(12), b=random(7)), {"x": random(2, 12, 7)})
    assert ops(model)[-1] == "Squeeze"
    assert normalize(model) == []


def test_a_prelu_of_channels_last_is_one_node_beside_its_layer_at_once() -> None:
    # as tf2onnx writes a Keras PReLU, with a slope for each place, behind a one-dimensional convolution
    text = """g (float[n, 1, 9] x) => (float[n, 1, 4, 6] y) {
        u = Unsqueeze(x, two) \n c = Conv(u, w) \n s = Squeeze(c, two)
        r = Relu(s) \n tr = Transpose <perm = [0, 2, 1]> (r)
        n = Neg(s) \n rn = Relu(n) \n tn = Transpose <perm = [0, 2, 1]> (rn) \n m = Mul(tn, slope)
        a = Add(tr, m) \n v = Unsqueeze(a, two) \n y = Transpose <perm = [0, 2, 3, 1]> (v) }"""
    proto = build(text, w=random(4, 1, 1, 4), slope=random(6, 4), two=np.array([2]))
    model, _ = apply(normalize, proto, {"x": random(2, 1, 9)})
    assert ops(model)[:3] == ["Unsqueeze", "Conv", "PRelu"]
    assert [note for note in normalize(model) if not note.node] == []


def chain(length: int) -> onnx.ModelProto:
    constants: dict[str, Array] = {"w": random(4, 4, 1, 1), **{name: array[:4] for name, array in BN.items()}}
    lines, last = [], "x"
    for i in range(length):
        lines.append(
            f"c{i} = Conv({last}, w) \n n{i} = BatchNormalization(c{i}, s, b, mean, var) \n s{i} = Sigmoid(n{i})"
        )
        lines.append(f"k{i} = Constant<value_float = 0.5>() \n l{i} = Neg(k{i}) \n y{i} = Mul(s{i}, l{i})")
        last = f"y{i}"
    return build(f"g (float[1,4,2,2] x) => (float[1,4,2,2] {last}) {{ {' '.join(lines)} }}", **constants)


def test_a_normalization_that_has_become_a_bias_is_in_nobodys_way(tmp_path: Path) -> None:
    """As LeViT has it: what is normalized is made flat first, and an activation function follows the way back."""
    text = """g (float[1,4,6] x) => (float[1,4,6] y) {
        v = MatMul(x, w)
        f = Reshape(v, flat) \n n = BatchNormalization(f, s, b, mean, var) \n r = Reshape(n, back)
        y = HardSwish(r) }"""
    proto = build(text, w=random(6, 6), flat=i64([-1, 6]), back=i64([1, -1, 6]), **BN)
    model, _ = apply(normalize, proto, {"x": random(1, 4, 6)}, tolerance=5e-6)
    assert ops(model)[:3] == ["MatMul", "Add", "HardSwish"]
    save(model, tmp_path / "once.onnx")
    assert normalize(model) == []
    save(model, tmp_path / "twice.onnx")
    assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "twice.onnx").read_bytes()


def test_work_grows_with_the_nodes_and_no_faster() -> None:
    short, long = (
        lines_of(partial(normalize, load(chain(length))), "onnxq/graph/", "/onnx_ir/") for length in (25, 100)
    )
    assert long < 4.1 * short


ZOO = Path(os.environ.get("ONNXQ_ZOO", ""))


@pytest.mark.zoo
@pytest.mark.skipif("ONNXQ_ZOO" not in os.environ, reason="ONNXQ_ZOO names no folder of models")
@pytest.mark.parametrize(
    "path", sorted(ZOO.glob("models/*/model.onnx")) if "ONNXQ_ZOO" in os.environ else [], ids=lambda p: p.parent.name
)
def test_real_models(path: Path, tmp_path: Path) -> None:
    model = load(path)
    normalize(model)
    check(model)
    save(model, tmp_path / "once.onnx")
    normalize(model)
    save(model, tmp_path / "twice.onnx")
    assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "twice.onnx").read_bytes()
    original = onnx.load(path)
    assert signature(onnx.load(tmp_path / "once.onnx")) == signature(original)
    data = np.load(path.with_name("calib.npz"))
    feeds = {info.name: np.asarray(data[info.name][0]) for info in original.graph.input}
    for before, after in zip(run(original, feeds), run((tmp_path / "once.onnx").read_bytes(), feeds), strict=True):
        scale = float(np.abs(before).max())
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-4 * scale)

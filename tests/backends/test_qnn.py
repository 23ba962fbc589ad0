"""What QDQ models for the HTP look like: complete units, widths, limits."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxq
from onnxq import Options
from onnxq.backends.qnn import BACKEND
from onnxq.errors import ModelError, OptionError, VerificationError
from onnxq.ort.session import Session
from tests.contract import infer, sqnr
from tests.models import build, f32, feeds_for, images, normal, untouched, verified_sqnr
from tests.planning.test_planner import residual, transformer

GELU = """(float[1, 8, 32] x) => (float[1, 8, 16] y) {
    m = ReduceMean <axes = [-1]> (x)
    d = Sub (x, m)
    q = Mul (d, d)
    v = ReduceMean <axes = [-1]> (q)
    e = Add (v, eps)
    r = Sqrt (e)
    n = Div (d, r)
    g = Mul (n, gamma)
    l = Add (g, beta)
    h = MatMul (l, w)
    a = Div (h, root)
    f = Erf (a)
    p = Add (f, one)
    t = Mul (h, p)
    u = Mul (t, half)
    y = MatMul (u, w2)
}"""


def block() -> onnx.ModelProto:
    """A layer normalization and a GELU, both written out."""
    return build(
        GELU,
        eps=f32(1e-5),
        gamma=1 + normal(32, scale=0.1),
        beta=normal(32, scale=0.1),
        w=normal(32, 64),
        w2=normal(64, 16),
        root=f32(2**0.5),
        one=f32(1),
        half=f32(0.5),
    )


def incomplete(model: onnx.ModelProto) -> list[str]:
    """Tensors between float nodes that no pair of quantizers separates, and float inputs and outputs without one."""
    graph = model.graph
    maker = {name: node for node in graph.node for name in node.output}
    floats = {v.name for v in graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    found = []
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        bare = floats | {name for name, before in maker.items() if before.op_type != "DequantizeLinear"}
        found += [name for name in node.input if name in bare]
    return found + [v.name for v in graph.output if maker[v.name].op_type != "DequantizeLinear"]


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("symmetric", [None, True])
@pytest.mark.parametrize("make", [residual, transformer, block])
def test_every_operator_is_a_complete_unit(make: object, bits: int, symmetric: bool | None) -> None:
    model = make()  # type: ignore[operator]
    feeds = feeds_for(model, samples=2)
    q = onnxq.quantize(model, feeds, backend="qnn", options=Options(act_bits=bits, symmetric=symmetric, effort="fast"))
    proto = ir.to_proto(q.qdq())
    onnx.checker.check_model(proto, full_check=True)
    assert not incomplete(proto)
    assert {k.op for k in q.plan.kept_float} <= {"Erf"}
    types = {t.name: t.data_type for t in proto.graph.initializer}
    stored = {"int8", "uint8", "uint16", "int32"} - ({"uint16"} if bits == 8 else set())
    zeros = {types[n.input[2]] for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    assert zeros == {onnx.TensorProto.UINT8 if bits == 8 else onnx.TensorProto.UINT16}
    assert {s.spec.dtype for s in q.plan.sites} <= stored
    if symmetric:
        acts = [q.qparams[s.name] for s in q.plan.sites if s.role == "activation"]
        assert {int(a.zero_point) for a in acts} == {1 << (bits - 1)}


@pytest.mark.parametrize(("opset", "domain"), [(20, "com.microsoft"), (21, "")])
def test_16_bits_are_written_in_a_domain_that_has_them(tmp_path: Path, opset: int, domain: str) -> None:
    model, feeds = residual(), images(1, 16, 8, 8, samples=2)
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, backend="qnn", output=path, options=Options(act_bits=16, opset=opset))
    proto = onnx.load(path)
    wide = [n for n in proto.graph.node if n.op_type == "QuantizeLinear"]
    assert {n.domain for n in wide} == {domain}
    assert {n.domain for n in proto.graph.node if n.op_type == "Conv"} == {""}
    again = onnxq.read(path, backend="qnn")
    numbers = {s.tensor: q.qparams[s.name] for s in q.plan.sites if s.role == "activation"}
    assert numbers["r"].scale == next(again.qparams[s.name] for s in again.plan.sites if s.tensor.startswith("r")).scale
    expected, got = Session(q.fake_quantize()).run(feeds[0])["y"], Session(ir.from_proto(proto)).run(feeds[0])["y"]
    assert sqnr([expected], [got]) > 60


def test_8_bits_need_no_other_domain() -> None:
    q = onnxq.quantize(residual(), images(1, 16, 8, 8, samples=2), backend="qnn")
    assert {n.domain for n in q.qdq().graph} == {""}


@pytest.mark.parametrize("act_bits", [8, 16])
def test_a_function_that_stays_has_a_pair_in_front(act_bits: int) -> None:
    """The zero point of [-1, 1] cannot be exact, so that this Clip stays; the pair must not change its result."""
    model = build(
        "(float[1, 8, 6, 6] x) => (float[1, 4, 6, 6] y) { a = Conv (x, w)\n y = Clip (a, low, high) }",
        w=normal(4, 8, 1, 1),
        low=f32(0.2),
        high=f32(1),
    )
    feeds = images(1, 8, 6, 6, samples=2)
    q = onnxq.quantize(model, feeds, backend="qnn", options=Options(act_bits=act_bits))
    assert dict(q.plan.absorbed)
    rendered = q.qdq()
    ops = [n.op_type for n in rendered.graph]
    assert ops[ops.index("Conv") :][:4] == ["Conv", "QuantizeLinear", "DequantizeLinear", "Clip"]
    step = float(q.qparams["y"].scale)
    for feed in feeds:
        plain, simulated = Session(rendered, optimize=False).run(feed)["y"], Session(q.fake_quantize()).run(feed)["y"]
        np.testing.assert_allclose(plain, simulated, rtol=0, atol=1.01 * step)


def test_wide_sigmoid_and_tanh_have_the_scales_of_the_htp() -> None:
    model = build(
        """(float[1, 8] x) => (float[1, 16] y, float[1, 16] z, float[1, 16] a) {
            h = MatMul (x, w)
            s = Sigmoid (h)
            g = HardSigmoid (h)
            a = MatMul (g, v)
            t = Tanh (h)
            y = Reshape (s, shape)
            z = MatMul (t, v)
        }""",
        w=normal(8, 16),
        v=normal(16, 16),
        shape=np.array([1, 16]),
    )
    feeds = images(1, 8, samples=3)
    wide = onnxq.quantize(model, feeds, backend="qnn", options=Options(act_bits=16))
    for name, scale, zero in (("s", 2.0**-16, 0), ("y", 2.0**-16, 0), ("g", 2.0**-16, 0), ("t", 2.0**-15, 32768)):
        assert (float(wide.qparams[name].scale), int(wide.qparams[name].zero_point)) == (scale, zero)
    narrow = onnxq.quantize(model, feeds, backend="qnn")
    assert float(narrow.qparams["s"].scale) <= 1 / 255


@pytest.mark.parametrize("length", [5, 64, 2000])
def test_the_scale_of_a_softmax_is_the_next_multiple_that_the_htp_keeps(length: int) -> None:
    model = build(
        "(float[1, 6, 8] x) => (float[1, 6, n] s) { h = MatMul (x, w)\n s = Softmax (h) }", w=normal(8, length)
    )
    feeds = images(1, 6, 8, samples=3)
    largest = max(float(rows.max()) for rows in infer(model, feeds, optimize=False)["s"])
    scales = {}
    for bits in (8, 16):
        options = Options(act_bits=bits, range="minmax", effort="fast")
        scales[bits] = float(onnxq.quantize(model, feeds, backend="qnn", options=options).qparams["s"].scale)
    assert scales[8] == math.ceil(largest / 255 * 65536) / 65536
    assert scales[16] == pytest.approx(largest / 65535, rel=1e-5)


def test_ranges_are_never_below_their_least_width() -> None:
    model = build(
        "(float[1, 8, 6, 6] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w, b) }",
        w=normal(4, 8, 1, 1, scale=1e-7),
        b=normal(4, scale=1e-3),
    )
    feeds = [{"x": sample["x"] * np.float32(1e-6)} for sample in images(1, 8, 6, 6, samples=2)]
    q = onnxq.quantize(model, feeds, backend="qnn")
    assert float(q.qparams["x"].hi - q.qparams["x"].lo) >= 1e-4 * 0.999
    assert float(q.qparams["w"].scale.min()) >= 1e-4 / 254 * 0.999
    bias = next(s for s in q.plan.sites if s.role == "bias")
    np.testing.assert_array_equal(q.qparams[bias.name].scale, q.qparams["x"].scale * q.qparams["w"].scale)


def test_chains_become_operators_and_scales_of_norms_are_unsigned() -> None:
    q = onnxq.quantize(block(), feeds_for(block(), samples=2), backend="qnn")
    ops = [n.op_type for n in q.model.graph]
    assert ops == ["LayerNormalization", "MatMul", "Gelu", "MatMul"]
    norm = next(n for n in q.model.graph if n.op_type == "LayerNormalization")
    specs = {s.tensor: s.spec for s in q.plan.sites}
    gamma, beta = (v.name or "" for v in norm.inputs[1:3] if v is not None)
    assert specs[gamma].dtype == "uint8"
    assert specs[beta].dtype == "int32"
    assert verified_sqnr(q) > 30


def test_a_reciprocal_divides_a_one_of_its_own_grid() -> None:
    model = build("(float[1, 8] x) => (float[1, 8] y) { y = Reciprocal (x) }")
    q = onnxq.quantize(model, [{"x": np.linspace(0.01, 0.14, 8, dtype=np.float32)[None]}], backend="qnn")
    (node,) = q.model.graph
    assert (node.op_type, q.plan.kept_float) == ("Div", ())
    one = q.qparams[node.inputs[0].name or ""]  # type: ignore[union-attr]
    assert float(one.scale) * (255 - int(one.zero_point)) == pytest.approx(1)


def test_matmul_has_no_4_bits() -> None:
    model = build(
        "(float[2, 16] x) => (float[2, 8] y, float[2, 8] z) { y = MatMul (x, w)\n z = Gemm (x, v) }",
        w=normal(16, 8),
        v=normal(16, 8, seed=1),
    )
    plan = onnxq.plan(model, backend="qnn", options=Options(weight_bits=4))
    specs = {s.tensor: s.spec for s in plan.sites}
    assert str(specs["w"]) == "int8 symmetric per channel (axis 1), narrow"
    assert str(specs["v"]) == "int4 symmetric per channel (axis 1), narrow"


@pytest.mark.parametrize(("op", "lacking"), [("PRelu", 16), ("Log", 16), ("Relu", None)])
def test_kernels_of_one_width_only(op: str, lacking: int | None) -> None:
    inputs = "x, s" if op == "PRelu" else "x"
    model = build(f"(float[2, 16] x) => (float[2, 16] y) {{ y = {op} ({inputs}) }}", s=f32(0.1))
    for bits in (8, 16):
        kept = onnxq.plan(model, backend="qnn", options=Options(act_bits=bits)).kept_float
        assert [k.reason for k in kept] == (
            [f"{op} has no integer kernel for 16 bits on qnn"] if bits == lacking else []
        )


def test_what_the_htp_lacks_is_said_before() -> None:
    model = build("(float[N, 16] x) => (float[N, 16] y) { e = Erf (x)\n y = Relu (e) }")
    said = "\n".join(f"{f.where} {f.what}" for f in onnxq.check(model, backend="qnn"))
    assert "the HTP has no Erf" in said
    assert "input 'x' free sizes" in said
    fixed = build("(float[1, 16] x) => (float[1, 16] y) { y = Relu (x) }")
    assert not [f for f in onnxq.check(fixed, backend="qnn") if "HTP" in f.what]


def test_a_detector_with_its_selection_inside_is_told_where_to_cut() -> None:
    model = build(
        """(float[1, 8, 4] b, float[1, 2, 8] s) => (int64[N, 3] y) {
            c = Relu (s)
            [nms] y = NonMaxSuppression (b, c, m)
        }""",
        m=np.array([3], np.int64),
    )
    (finding,) = [f for f in onnxq.check(model, backend="qnn") if "NonMaxSuppression" in f.what and "HTP" in f.what]
    assert finding.level == "warning" and "nms" in finding.where and finding.hint.startswith("Cut the model before")


@pytest.mark.parametrize("dims", [4, 5])
@pytest.mark.parametrize(
    "call",
    ["MaxPool <kernel_shape = [KERNEL]> (a)", "GlobalMaxPool (a)", "InstanceNormalization (a, s, b)"],
)
def test_what_has_five_dimensions_stays_float_and_is_told(call: str, dims: int) -> None:
    size = ", ".join(["1", "4", *["8"] * (dims - 2)])
    named = call.replace("KERNEL", ", ".join(["1"] * (dims - 2)))
    model = build(
        f"(float[{size}] x) => (float[{', '.join('abcde'[:dims])}] y) {{ a = Relu (x) [node] y = {named} }}",
        s=normal(4),
        b=normal(4, seed=1),
    )
    told = [f.where for f in onnxq.check(model, backend="qnn") if "five dimensions" in f.what and f.level == "warning"]
    plan = onnxq.plan(model, backend="qnn")
    reasons = {kept.node: kept.reason for kept in plan.kept_float}
    assert bool(told) == (dims == 5) == ("five dimensions" in reasons.get("node", ""))
    assert ("node" in plan.quantized) == (dims == 4)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(
    ("call", "opset"),
    [
        ("MaxPool <kernel_shape = [2, 2], dilations = [STEP, STEP]> (a)", 17),
        ("AveragePool <kernel_shape = [2, 2], dilations = [STEP, STEP]> (a)", 19),
        ("ConvTranspose <dilations = [STEP, STEP]> (a, w)", 17),
    ],
)
def test_what_has_dilations_stays_float_and_is_told(call: str, opset: int, step: int) -> None:
    named = call.replace("STEP", str(step))
    model = build(
        f"(float[1, 4, 8, 8] x) => (float[a, b, c, d] y) {{ a = Relu (x) [node] y = {named} }}",
        opset=opset,
        w=normal(4, 4, 2, 2),
    )
    told = [f.where for f in onnxq.check(model, backend="qnn") if "dilations" in f.what and f.level == "warning"]
    plan = onnxq.plan(model, backend="qnn")
    reasons = {kept.node: kept.reason for kept in plan.kept_float}
    assert bool(told) == (step == 2) == ("dilations" in reasons.get("node", ""))
    assert ("node" in plan.quantized) == (step == 1)


@pytest.mark.parametrize(("shape", "integer"), [((5,), True), ((), True), ((1, 5), True), ((3, 5), False)])
def test_a_gemm_that_adds_a_matrix_stays_float(shape: tuple[int, ...], integer: bool) -> None:
    model = build("(float[3, 8] x) => (float[3, 5] y) { [gemm] y = Gemm (x, w, b) }", w=normal(8, 5), b=normal(*shape))
    plan = onnxq.plan(model, backend="qnn")
    assert ("gemm" in plan.quantized) == integer
    assert any(site.role == "bias" for site in plan.sites) == integer


def test_a_model_with_nodes_that_read_nothing(tmp_path: Path) -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y, float k) {
            c = Conv (x, w)
            y = Relu (c)
            k = Constant <value_float = 2.0> ()
        }""",
        w=normal(4, 4, 3, 3),
    )
    assert not [f for f in onnxq.check(model, backend="qnn") if f.level == "error"]
    made = onnxq.quantize(model, images(1, 4, 8, 8), backend="qnn", output=tmp_path)
    assert "Conv" in made.plan.quantized.values()


def mixed() -> onnx.ModelProto:
    """What reads a tensor with an operator that is asked for in another width, and a model output."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 6, 6, 6] y, float[1, 8, 6, 6] a) {
            a = Conv (x, w)
            [other] s = Softplus (a)
            r = Relu (a)
            c = Add (s, r)
            y = Conv (c, v)
        }""",
        w=normal(8, 4, 3, 3),
        v=normal(6, 8, 1, 1),
    )


@pytest.mark.parametrize(("bits", "change"), [(16, "act_bits=8"), (8, "act_bits=16"), (8, "range=percentile:99")])
def test_operators_have_one_width_and_what_another_reads_is_converted(bits: int, change: str, tmp_path: Path) -> None:
    options = Options(act_bits=bits, override=[f"other={change}"])
    feeds = images(1, 4, 8, 8)
    made = onnxq.quantize(mixed(), feeds, backend="qnn", output=tmp_path, options=options)
    model = onnx.load(made.files[0])
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    maker = {name: node for node in model.graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in model.graph.node:
        if node.op_type.endswith("eLinear"):
            continue
        before = {kinds[maker[n].input[2]] for n in node.input if n in maker and maker[n].input[0] not in kinds}
        (behind,) = readers[node.output[0]]
        assert behind.op_type == "QuantizeLinear" and before == {kinds[behind.input[2]]}, node
    assert [o.name for o in model.graph.output] == ["y", "a"]
    assert verified_sqnr(made) > 20


def test_other_widths_are_refused() -> None:
    with pytest.raises(OptionError, match="no activations of 4 bits"):
        onnxq.plan(residual(), backend="qnn", options=Options(act_bits=4))
    assert BACKEND.formats.keys() == {"qdq", "fake-quantize", "context", "dlc"}


@pytest.mark.parametrize("form", ["context", "dlc"])
@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is not None, reason="onnxruntime-qnn is installed")
def test_compiling_without_the_runtime_says_so_and_writes_nothing(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXQ_QNN_PYTHON", sys.executable)

    with pytest.raises(VerificationError, match="is not installed"):
        onnxq.quantize(residual(), untouched(), backend="qnn", output=tmp_path / "q.onnx", options=Options(format=form))
    assert not list(tmp_path.iterdir())


def test_stored_weights_are_the_rounded_ones() -> None:
    w = normal(8, 16, 1, 1)
    model = build("(float[1, 16, 4, 4] x) => (float[1, 8, 4, 4] y) { y = Conv (x, w) }", w=w)
    q = onnxq.quantize(model, images(1, 16, 4, 4, samples=2), backend="qnn", options=Options(effort="fast"))
    proto = ir.to_proto(q.qdq())
    stored = next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == "w_quantized")
    scale = np.abs(w).reshape(8, -1).max(axis=1) / np.float32(127)
    np.testing.assert_array_equal(stored, np.rint(w / scale.reshape(-1, 1, 1, 1)).astype(np.int8))


@pytest.mark.parametrize("form", ["context", "dlc"])
def test_free_sizes_are_refused_before_any_data_is_run(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.backends.qnn.require", lambda runtime: None)
    model = build("(float[N, 8, 4, 4] x) => (float[N, 8, 4, 4] y) { y = Conv (x, w) }", w=normal(8, 8, 1, 1))
    options = Options(format=form)

    def data() -> Iterator[dict[str, np.ndarray]]:
        raise AssertionError("data was asked for")
        yield {}

    with pytest.raises(ModelError, match=r"input 'x' has the sizes \[N,8,4,4\].*Fix them .* or use the format qdq"):
        onnxq.quantize(model, data, backend="qnn", options=options)
    (found,) = (f for f in onnxq.check(model, backend="qnn", options=options) if f.level == "error")
    assert "input 'x'" in found.what and "--shape x=SIZE0x8x4x4" in found.hint
    quantized = onnxq.quantize(model, images(1, 8, 4, 4, samples=2), backend="qnn").qdq()
    with pytest.raises(ModelError, match="fixed sizes"):
        onnxq.deploy(ir.to_proto(quantized), backend="qnn", options=options)


def test_check_names_free_sizes_and_a_missing_runtime_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXQ_QNN_PYTHON", "/nowhere/python")
    model = build("(float[N, 8, 4, 4] x) => (float[N, 8, 4, 4] y) { y = Conv (x, w) }", w=normal(8, 8, 1, 1))
    found = [f.what for f in onnxq.check(model, backend="qnn", options=Options(format="context")) if f.level == "error"]
    assert len(found) == 2
    assert any("not installed" in what for what in found) and any("input 'x'" in what for what in found)


def test_sizes_that_depend_on_the_data_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.backends.qnn.require", lambda runtime: None)
    model = build(
        "(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y, int64[4, M] i) { y = Conv (x, w)\n i = NonZero (y) }",
        w=normal(8, 8, 1, 1),
    )
    model.graph.node[1].name = "where"
    with pytest.raises(ModelError, match=r"'where'.*'i' whose size depends on the data"):
        onnxq.plan(model, backend="qnn", options=Options(format="context"))
    assert onnxq.plan(model, backend="qnn").quantized


def test_scales_per_channel_of_a_product_by_one_matrix() -> None:
    """The provider makes a FullyConnected of it; of a product by more matrices it makes QNN's MatMul."""
    model = build(
        "(float[2, 6, 16] x) => (float[2, 6, 8] y) { h = MatMul (x, w)\n y = MatMul (h, v) }",
        w=normal(16, 12, scale=0.2) * np.geomspace(0.01, 3, 12, dtype=np.float32),
        v=normal(2, 12, 8, scale=0.2),
    )
    feeds = images(2, 6, 16)
    q = onnxq.quantize(model, feeds, backend="qnn", options=Options(act_bits=16))
    assert q.qparams["w"].scale.shape == (12,) and q.qparams["v"].scale.shape == ()
    one = onnxq.quantize(model, feeds, backend="qnn", options=Options(act_bits=16, per_channel=False))
    assert one.qparams["w"].scale.shape == ()


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_what_is_said_of_recurrent_layers(op: str, gates: int) -> None:
    model = build(
        f"(float[6, 1, 8] x) => (float[6, 1, 1, 8] y) {{ y = {op} <hidden_size = 8> (x, w, r) }}",
        w=normal(1, 8 * gates, 8),
        r=normal(1, 8 * gates, 8, seed=1),
    )
    (said,) = (f for f in onnxq.check(model, backend="qnn") if "HTP" in f.what)
    assert (
        "half precision" in said.what and "no session can be created" in said.what and "soc_model" in (said.hint or "")
    )


def test_what_is_said_of_short_time_spectra() -> None:
    model = build(
        "(float[1, 256] x) => (float[1, 13, 33, 2] y) { y = STFT (x, step, window) }",
        step=np.array(16),
        window=np.hanning(64).astype(np.float32),
    )
    (said,) = (f for f in onnxq.check(model, backend="qnn") if "HTP" in f.what)
    assert said.level == "warning" and "the HTP computes STFT in half precision" in said.what


@pytest.mark.parametrize("strides", [2, 1])
def test_padding_that_a_mean_pool_counts_is_a_pad_where_its_windows_lie_side_by_side(
    strides: int, tmp_path: Path
) -> None:
    how = f"kernel_shape = [2, 2], strides = [{strides}, {strides}], pads = [1, 1, 1, 1], count_include_pad = 1"
    model = build(f"(float[1, 8, 12, 12] x) => (float[1, 8, h, w] y) {{ a = Relu (x)\n y = AveragePool <{how}> (a) }}")
    q = onnxq.quantize(model, feeds_for(model), backend="qnn", output=tmp_path / "q.onnx")
    assert sorted(q.plan.quantized.values()) == ["AveragePool", *["Pad"] * (strides == 2), "Relu"]
    deployed = onnxq.deploy(tmp_path / "q.onnx", backend="qnn")
    assert deployed.plan.quantized.keys() == q.plan.quantized.keys()
    pool = f"p = AveragePool <{how}> (d)"
    pairs = [f"{b} = QuantizeLinear ({a}, s, z)\n {c} = DequantizeLinear ({b}, s, z)" for a, b, c in ("xqd", "pry")]
    other = build(
        f"(float[1, 8, 12, 12] x) => (float[1, 8, h, w] y) {{ {pairs[0]}\n {pool}\n {pairs[1]} }}",
        s=f32(0.02),
        z=np.uint8(128),
    )
    given = onnxq.deploy(other, backend="qnn")
    assert len(given.plan.quantized) == (2 if strides == 2 else 1) and not given.plan.kept_float

"""SmoothQuant: the float model stays what it is, outliers of channels no longer decide the scale."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import OptionError, Options
from onnxq.algorithm import FloatDraft
from onnxq.algorithms.smoothquant import apply, smoothing_scale
from onnxq.backend_choice import backend_named
from onnxq.calibration.collect import collect
from onnxq.calibration.roles import to_learn_from
from onnxq.calibration.statistics import KeptSample
from onnxq.console.progress import LineReporter
from onnxq.graph.files.load import load
from onnxq.graph.passes.normalize import normalize
from onnxq.observe import observable
from tests.algorithms.test_equalize import assert_same
from tests.contract import infer, quantize_checked, sqnr
from tests.models import build, normal, verified_sqnr

Feeds = list[dict[str, NDArray[Any]]]

PLAIN = Options(placement="all", algorithms=("bias_correction",))
SMOOTH = Options(placement="all", algorithms=("smoothquant", "bias_correction"))

OUTLIER = 5
"""The channel that is 200 times as large as the others."""


def tokens(channels: int = 64, samples: int = 12, factor: float = 200.0) -> Feeds:
    rng = np.random.default_rng(1)
    feeds: Feeds = []
    for _ in range(samples):
        x = rng.standard_normal((1, 24, channels)).astype(np.float32)
        x[..., OUTLIER] *= factor
        feeds.append({"x": x})
    return feeds


def weight(rows: int = 64, columns: int = 64, seed: int = 0, factor: float = 200.0) -> NDArray[np.float32]:
    """Reads the outlier channel with small weights, as trained models do."""
    made = normal(rows, columns, seed=seed)
    made[OUTLIER] /= factor
    return made


def gains() -> NDArray[np.float32]:
    made = np.ones(64, np.float32)
    made[OUTLIER] = 200.0
    return made


def matmul() -> onnx.ModelProto:
    return build("(float[1, 24, 64] x) => (float[1, 24, 64] y) { y = MatMul (x, w) }", w=weight())


def smoothed(model: onnx.ModelProto, feeds: Feeds, options: Options = SMOOTH, **parameters: float) -> FloatDraft:
    """A float draft that was smoothed."""
    made = load(model)
    normalize(made, min_opset=14)
    statistics = collect(made, observable(made, options), feeds, keep=len(feeds))
    draft = FloatDraft(made, backend_named("onnxruntime"), options, statistics)
    apply(draft, **parameters)
    return draft


def test_a_channel_200_times_as_large_no_longer_ruins_a_matmul() -> None:
    feeds = tokens()
    before = quantize_checked(matmul(), feeds, PLAIN, least=None)
    after = quantize_checked(matmul(), feeds, SMOOTH, least=25.0)
    assert before.worst < 3.0
    assert after.worst >= 25.0
    assert after.quantized.plan.quantized == before.quantized.plan.quantized
    assert "1 by a Mul of its own" in after.notes


def test_it_helps_in_the_default_placement() -> None:
    q = onnxq.quantize(matmul(), tokens(), options=Options(include=("MatMul",), algorithms=("smoothquant",)))
    assert verified_sqnr(q) >= 25.0


def test_new_data_gains_as_well() -> None:
    q = onnxq.quantize(matmul(), tokens()[:6], options=SMOOTH)
    feeds = tokens()[6:]
    want, got = (infer(m, feeds, optimize=True)["y"] for m in (matmul(), ir.to_proto(q.rendered())))
    assert sqnr(want, got) >= 25.0


NORMALIZED = {
    "op": "l = LayerNormalization (x, g, h)",
    "decomposed": """
        m = ReduceMean <axes = [-1]> (x)
        d = Sub (x, m)
        d2 = Mul (d, d)
        v = ReduceMean <axes = [-1]> (d2)
        ve = Add (v, eps)
        s = Sqrt (ve)
        n = Div (d, s)
        ng = Mul (n, g)
        l = Add (ng, h)""",
    "linear": """
        a = MatMul (x, u)
        b = Add (a, h)
        l = Relu (b)""",
    "gate": """
        a = MatMul (x, u)
        z = Sigmoid (x)
        l = Mul (a, z)""",
}


@pytest.mark.parametrize("before", NORMALIZED)
def test_it_is_folded_into_what_makes_the_input(before: str) -> None:
    text = f"(float[1, 24, 64] x) => (float[1, 24, 64] q, float[1, 24, 32] k) {{ {NORMALIZED[before]}\n"
    text += "q = MatMul (l, w)\n k = MatMul (l, w2) }"
    constants: dict[str, Any] = {"w": weight(), "w2": weight(64, 32, seed=3)}
    constants |= {"u": normal(64, 64, seed=4) * gains()} if "u)" in text else {"g": gains()}
    constants |= {"h": normal(64, seed=5, scale=0.1)} if "h)" in text else {}
    constants |= {"eps": np.float32(1e-5)} if "eps" in text else {}
    model = build(text, **constants)
    feeds = tokens(factor=1.0)
    options = Options(include=("q", "k"), algorithms=("smoothquant", "bias_correction"))
    draft = smoothed(model, feeds, options)
    assert_same(model, draft, feeds)
    assert [n.op_type for n in draft.model.graph] == [n.op_type for n in load(model).graph]
    assert "1 inputs of 2 layers smoothed" in draft.notes[0]
    assert "0 by a Mul of its own" in draft.notes[0]
    plain = onnxq.quantize(model, feeds, options=Options(include=("q", "k"), algorithms=("bias_correction",)))
    made = onnxq.quantize(model, feeds, options=options)
    scores = [q.verification.worst[1].sqnr for q in (plain, made) if q.verification and q.verification.worst]
    assert scores[1] > scores[0] + 15


def test_an_input_with_other_readers_gets_a_mul() -> None:
    model = build(
        """(float[1, 24, 64] x) => (float[1, 24, 64] y) {
            l = LayerNormalization (x, g)
            q = MatMul (l, w)
            y = Add (q, l) }""",
        w=weight(),
        g=gains(),
    )
    feeds = tokens(factor=1.0)
    draft = smoothed(model, feeds, Options(include=("MatMul",), algorithms=("smoothquant",)))
    assert_same(model, draft, feeds)
    assert [n.op_type for n in draft.model.graph] == ["LayerNormalization", "Mul", "MatMul", "Add"]
    assert all(name in {n.name for n in draft.model.graph} for name in draft.keep_float)


def test_a_gelu_stays_whole() -> None:
    model = build(
        """(float[1, 24, 64] x) => (float[1, 24, 64] y) {
            d = Div (x, c)
            e = Erf (d)
            f = Add (e, one)
            g = Mul (x, f)
            h = Mul (g, half)
            y = MatMul (h, w) }""",
        w=weight(),
        c=np.float32(np.sqrt(2)),
        one=np.float32(1),
        half=np.float32(0.5),
    )
    feeds = tokens()
    draft = smoothed(model, feeds, Options(include=("MatMul",), algorithms=("smoothquant",)))
    assert_same(model, draft, feeds)
    assert [n.op_type for n in draft.model.graph] == ["Div", "Erf", "Add", "Mul", "Mul", "Mul", "MatMul"]


def test_a_pointwise_conv_is_smoothed_too() -> None:
    u, w = normal(16, 8, 1, 1), normal(8, 16, 1, 1, seed=1)
    u[OUTLIER] *= 100
    w[:, OUTLIER] /= 100
    model = build(
        """(float[1, 8, 8, 8] x) => (float[1, 8, 8, 8] y) {
            a = Conv (x, u, b)
            r = Relu (a)
            y = Conv (r, w) }""",
        u=u,
        w=w,
        b=normal(16, scale=0.1),
    )
    rng = np.random.default_rng(0)
    feeds: Feeds = [{"x": rng.standard_normal((1, 8, 8, 8)).astype(np.float32)} for _ in range(8)]
    draft = smoothed(model, feeds)
    assert_same(model, draft, feeds)
    assert "smoothed" in draft.notes[0] and "0 by a Mul of its own" in draft.notes[0]
    before, after = (quantize_checked(model, feeds, o, least=None) for o in (PLAIN, SMOOTH))
    assert after.worst > before.worst + 3


def test_shared_weights_are_left_alone_and_counted() -> None:
    model = build(
        "(float[1, 24, 64] x) => (float[1, 24, 64] y) { a = MatMul (x, w)\n r = Relu (a)\n y = MatMul (r, w) }",
        w=weight(),
    )
    draft = smoothed(model, tokens())
    assert "shared weights (2)" in draft.notes[0]
    assert [n.op_type for n in draft.model.graph] == ["MatMul", "Relu", "MatMul"]


def test_where_nothing_is_gained_nothing_is_changed() -> None:
    model = build("(float[1, 24, 64] x) => (float[1, 24, 64] y) { y = MatMul (x, w) }", w=normal(64, 64))
    draft = smoothed(model, tokens(factor=1.0))
    assert [n.op_type for n in draft.model.graph] == ["MatMul"]
    np.testing.assert_array_equal(draft.model.graph.initializers["w"].const_value.numpy(), normal(64, 64))  # type: ignore[union-attr]
    assert "0 inputs" in draft.notes[0]
    assert "no gain" in draft.notes[0]


def test_the_scale_is_the_papers_and_dead_channels_keep_theirs() -> None:
    x, w = np.array([1.0, 100.0, 4.0, 0.0, 3.0]), np.array([1.0, 0.5, 2.0, 1.0, 0.0])
    scale = smoothing_scale(x, w, 0.5)
    exact = np.sqrt(x[:3]) / np.sqrt(w[:3])
    np.testing.assert_allclose(scale[:3] / scale[0], exact / exact[0])
    np.testing.assert_array_equal(scale[3:], 1.0)


def test_zero_weights_and_zero_channels() -> None:
    w = weight()
    w[7] = 0.0
    w[:, 9] = 0.0
    model = build("(float[1, 24, 64] x) => (float[1, 24, 64] y) { y = MatMul (x, w) }", w=w)
    feeds = tokens()
    for sample in feeds:
        sample["x"][..., 11] = 0.0
    assert_same(model, smoothed(model, feeds), feeds)
    assert quantize_checked(model, feeds, SMOOTH).worst >= 25.0


def test_progress_is_shown_input_by_input() -> None:
    stream = io.StringIO()
    onnxq.quantize(matmul(), tokens(), options=SMOOTH, reporter=LineReporter(stream))
    assert "\nsmoothquant: 1 input in " in stream.getvalue()


def test_the_same_twice_and_given_alpha() -> None:
    feeds = tokens()
    first, second = (ir.to_proto(smoothed(matmul(), feeds).model).SerializeToString(deterministic=True) for _ in "12")
    assert first == second
    draft = smoothed(matmul(), feeds, alpha=0.8)
    factors = next(v for n, v in draft.model.graph.initializers.items() if n.endswith("smoothing")).const_value
    assert factors is not None
    learned = [feeds[k.index] for k in to_learn_from([KeptSample(k, {}, {}) for k in range(len(feeds))])]
    kept = np.max([np.abs(f["x"]).max(axis=(0, 1)) for f in learned], axis=0).astype(np.float64)
    exact = smoothing_scale(kept, np.abs(weight()).max(axis=1).astype(np.float64), 0.8)
    np.testing.assert_allclose(factors.numpy(), 1 / exact, rtol=1e-6)


@pytest.mark.parametrize("text", ["smoothquant:alpha=1.5", "smoothquant:insert=-1"])
def test_parameters_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="smoothquant"):
        onnxq.quantize(matmul(), tokens(), options=Options(algorithms=(text,)))

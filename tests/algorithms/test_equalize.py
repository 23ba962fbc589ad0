"""Cross-layer equalization: the float model stays what it is, badly scaled channels no longer hurt."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from onnxq import Options
from onnxq.algorithm import FloatDraft
from onnxq.algorithms.channels.absorb import Absorption
from onnxq.algorithms.channels.pairs import find_pairs
from onnxq.algorithms.common.keep_what_helps import Change
from onnxq.algorithms.equalize import _Chain, apply
from onnxq.backend_choice import backend_named
from onnxq.calibration.collect import collect
from onnxq.graph.files.load import load
from onnxq.graph.namer import Namer
from onnxq.graph.passes.normalize import normalize
from onnxq.observe import observable
from tests.contract import infer, quantize_checked
from tests.models import build, images, normal

Feeds = list[dict[str, NDArray[Any]]]
Weights = dict[str, Any]

PER_TENSOR = Options(placement="all", per_channel=False, algorithms=("bias_correction",))
EQUALIZED = Options(placement="all", per_channel=False, algorithms=("equalize", "bias_correction"))
SIZE = 16


def mobile_net(spread: float, activation: str = "Relu", blocks: int = 2) -> onnx.ModelProto:
    """Depthwise and pointwise convolutions; channels between layers are scaled by 2**[-spread, spread]."""
    rng = np.random.default_rng(7)
    lines: list[str] = []
    weights: Weights = {}
    before, behind, channels = "x", np.ones(3), 3

    def conv(name: str, outputs: int, kernel: int, group: int, scaled: bool) -> None:
        nonlocal before, behind, channels
        w = normal(outputs, channels // group, kernel, kernel, seed=len(weights)).astype(np.float64)
        factors = 2.0 ** rng.uniform(-spread, spread, outputs) if scaled else np.ones(outputs)
        w /= behind[:, None, None, None] if group > 1 else behind[:, None, None]
        bias = 0.1 * normal(outputs, seed=len(weights))
        weights[f"{name}w"] = (w * factors[:, None, None, None]).astype(np.float32)
        weights[f"{name}b"] = (bias * factors).astype(np.float32)
        pad = kernel // 2
        lines.append(
            f"{name}c = Conv <group = {group}, pads = [{pad}, {pad}, {pad}, {pad}]> ({before}, {name}w, {name}b)"
        )
        lines.append(f"{name}r = {activation} ({name}c)")
        before, behind, channels = f"{name}r", factors, outputs

    conv("stem", SIZE, 3, 1, True)
    for block in range(blocks):
        conv(f"d{block}", SIZE, 3, SIZE, True)
        conv(f"p{block}", SIZE, 1, 1, block < blocks - 1)
    weights |= {"fw": normal(SIZE, 10), "fb": normal(10)}
    lines += [f"g = GlobalAveragePool ({before})", "h = Flatten (g)", "y = Gemm (h, fw, fb)"]
    return build("(float[1, 3, 12, 12] x) => (float[1, 10] y) {" + "\n".join(lines) + "}", **weights)


def drafted(model: onnx.ModelProto, feeds: Feeds, options: Options) -> FloatDraft:
    """A float draft with statistics that keep all samples."""
    made = load(model)
    normalize(made, min_opset=14)
    statistics = collect(made, observable(made, options), feeds, keep=len(feeds))
    return FloatDraft(made, backend_named("onnxruntime"), options, statistics)


def equalized(model: onnx.ModelProto, feeds: Feeds, options: Options = EQUALIZED, absorb: bool = False) -> FloatDraft:
    """A float draft that was equalized."""
    draft = drafted(model, feeds, options)
    apply(draft, absorb)
    return draft


def assert_same(model: onnx.ModelProto, draft: FloatDraft, feeds: Feeds) -> None:
    """The float model computes what it did, to 1e-5."""
    before, after = (infer(m, feeds, optimize=False) for m in (model, ir.to_proto(draft.model)))
    for name, arrays in before.items():
        for want, got in zip(arrays, after[name], strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5 * float(np.abs(want).max()), rtol=0)


def constants(draft: FloatDraft) -> dict[str, NDArray[Any]]:
    return {n: v.const_value.numpy() for n, v in draft.model.graph.initializers.items() if v.const_value is not None}


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu"])
def test_badly_scaled_channels_gain_5_db_with_a_scale_a_tensor(activation: str) -> None:
    model, feeds = mobile_net(4.0, activation), images(1, 3, 12, 12, samples=12)
    before = quantize_checked(model, feeds, PER_TENSOR, least=None)
    after = quantize_checked(model, feeds, EQUALIZED, least=25.0)
    assert after.worst >= before.worst + 5.0
    assert_same(model, equalized(model, feeds), images(1, 3, 12, 12, samples=4, seed=77))


def test_with_a_scale_a_channel_only_the_activations_count() -> None:
    model, feeds = mobile_net(4.0), images(1, 3, 12, 12, samples=12)
    scores = [
        quantize_checked(model, feeds, Options(placement="all", algorithms=names), least=None).worst
        for names in (("bias_correction",), ("equalize", "bias_correction"))
    ]
    assert scores[1] >= scores[0] + 5.0


def test_well_scaled_channels_lose_nothing() -> None:
    model, feeds = mobile_net(0.0), images(1, 3, 12, 12, samples=16)
    for per_channel in (False, True):
        scores = [
            quantize_checked(
                model, feeds, Options(placement="all", per_channel=per_channel, algorithms=names), least=None
            ).worst
            for names in (("bias_correction",), ("equalize", "bias_correction"))
        ]
        assert scores[1] >= scores[0] - 0.5


def test_two_layers_with_known_factors_are_put_right() -> None:
    """Weights of equal rows scaled by known factors: the scale found takes them out again."""
    factors = 2.0 ** np.arange(-4, 4)
    u = np.outer(np.ones(8), np.linspace(-1, 1, 8))
    model = build(
        """(float[4, 8] x) => (float[4, 8] y) {
            a = Gemm <transB = 1> (x, u)
            r = Relu (a)
            y = Gemm <transB = 1> (r, w) }""",
        u=(u * factors[:, None]).astype(np.float32),
        w=(u.T / factors).astype(np.float32),
    )
    feeds = images(4, 8, samples=8)
    draft = equalized(model, feeds)
    assert_same(model, draft, feeds)
    for array, axis in ((constants(draft)["u"], 1), (constants(draft)["w"], 0)):
        peaks = np.abs(array).max(axis=axis)
        np.testing.assert_allclose(peaks, peaks[0], rtol=1e-5)


LAYERS = {
    "grouped": ("Conv <group = 2>", (8, 4, 1, 1), "Conv <group = 4>", (8, 2, 1, 1)),
    "transposed": ("ConvTranspose <group = 2>", (8, 4, 2, 2), "Conv", (8, 8, 1, 1)),
    "into a transposed one": ("Conv", (8, 8, 1, 1), "ConvTranspose <group = 2, strides = [2, 2]>", (8, 4, 2, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_groups_and_transposed_convolutions(name: str) -> None:
    first, shape1, second, shape2 = LAYERS[name]
    factors = (2.0 ** np.linspace(-4, 4, 8)).astype(np.float32)
    u, w = normal(*shape1), normal(*shape2, seed=1)
    if first.startswith("ConvT"):
        u = (u.reshape(2, 4, 4, 2, 2) * factors.reshape(2, 1, 4, 1, 1)).reshape(shape1)
    else:
        u = u * factors[:, None, None, None]
    model = build(
        f"""(float[1, 8, 6, 6] x) => (float[1, 8, M, N] y) {{
            a = {first} (x, u, b)
            r = PRelu (a, slope)
            y = {second} (r, w) }}""",
        u=u,
        w=w,
        b=normal(8),
        slope=normal(8, 1, 1, seed=4),
    )
    feeds = images(1, 8, 6, 6, samples=8)
    draft = equalized(model, feeds)
    assert_same(model, draft, feeds)
    assert "1 pairs scaled" in draft.notes[0], draft.notes


def test_a_matmul_with_its_bias_and_a_conv_in_front_of_a_classifier() -> None:
    factors = (2.0 ** np.linspace(-5, 5, 8)).astype(np.float32)
    model = build(
        """(float[1, 6, 8] x) => (float[1, 6, 8] y) {
            a = MatMul (x, u)
            b = Add (a, c)
            r = Relu (b)
            y = MatMul (r, w) }""",
        u=normal(8, 8) * factors,
        c=normal(8) * factors,
        w=normal(8, 8, seed=2) / factors[:, None],
    )
    feeds = images(1, 6, 8, samples=8)
    draft = equalized(model, feeds)
    assert_same(model, draft, feeds)
    assert "1 pairs scaled" in draft.notes[0]
    pooled = mobile_net(4.0, blocks=1)
    draft = equalized(pooled, images(1, 3, 12, 12, samples=8))
    assert "3 pairs scaled" in draft.notes[0]


def pair(between: str, outputs: str = "float[1, 8, 6, 6] y") -> onnx.ModelProto:
    """Two badly scaled convolutions with something between ``a`` and ``r``."""
    factors = (2.0 ** np.linspace(-5, 5, 8)).astype(np.float32)
    u, w = normal(8, 8, 1, 1) * factors[:, None, None, None], normal(8, 8, 1, 1, seed=1) / factors[:, None, None]
    rest: Weights = {"shared": normal(8, 8, 1, 1, seed=3)} if "shared" in between else {}
    limits: Weights = {"low": np.float32(0), "high": np.float32(6)} if "Clip" in between else {}
    return build(
        f"(float[1, 8, 6, 6] x) => ({outputs}) {{ a = Conv (x, u)\n {between}\n y = Conv (r, w) }}",
        u=u,
        w=w,
        **rest,
        **limits,
    )


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        ("r = Clip (a, low, high)", "after Clip (1)"),
        ("r = Sigmoid (a)", "after Sigmoid (1)"),
        ("r = Relu (a)\n z = Neg (a)", "its input has other readers (1)"),
        ("c = Conv (a, shared)\n d = Relu (c)\n e = Conv (d, shared)\n r = Add (e, a)", "shared weights"),
    ],
)
def test_what_cannot_be_scaled_is_counted_with_its_reason(between: str, reason: str) -> None:
    outputs = "float[1, 8, 6, 6] y" + (", float[1, 8, 6, 6] z" if "z =" in between else "")
    model = pair(between, outputs)
    feeds = images(1, 8, 6, 6)
    draft = equalized(model, feeds)
    assert reason in draft.notes[0], draft.notes
    np.testing.assert_array_equal(constants(draft)["u"], onnx.numpy_helper.to_array(model.graph.initializer[0]))


def test_a_graph_output_between_keeps_its_numbers() -> None:
    model = pair("r = Relu (a)", "float[1, 8, 6, 6] y, float[1, 8, 6, 6] r")
    draft = equalized(model, images(1, 8, 6, 6))
    assert "its input is a model output (1)" in draft.notes[0]
    assert_same(model, draft, images(1, 8, 6, 6))


def test_dead_channels_stay_as_they_are() -> None:
    model = pair("r = Relu (a)")
    arrays = {t.name: onnx.numpy_helper.to_array(t).copy() for t in model.graph.initializer}
    arrays["u"][2] = 0.0
    arrays["w"][:, 3] = 0.0
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(arrays[tensor.name], tensor.name))
    feeds = images(1, 8, 6, 6, samples=8)
    draft = equalized(model, feeds)
    assert "1 pairs scaled" in draft.notes[0]
    assert_same(model, draft, feeds)
    made = constants(draft)
    np.testing.assert_array_equal(made["u"][2], 0.0)
    np.testing.assert_array_equal(made["w"][:, 2], arrays["w"][:, 2])
    np.testing.assert_array_equal(made["u"][3], arrays["u"][3])


def test_biases_are_absorbed_where_a_channel_never_falls_to_zero() -> None:
    bias = normal(8, scale=0.1)
    bias[[1, 4]] = 200.0
    model = build(
        """(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {
            a = Conv (x, u, b)
            r = Relu (a)
            y = Conv (r, w, c) }""",
        u=normal(8, 8, 1, 1),
        b=bias,
        w=normal(8, 8, 1, 1, seed=1),
        c=normal(8, seed=2),
    )
    feeds = images(1, 8, 6, 6, samples=12)
    draft = equalized(model, feeds, absorb=True)
    assert "biases absorbed in 1 of 1 pairs (2 channels)" in draft.notes[1]
    assert_same(model, draft, feeds)
    a, c = (constants(d)["b"] for d in (equalized(model, feeds), draft))
    assert np.count_nonzero(c != a) == 2
    assert (c < a)[[1, 4]].all()


def test_nothing_is_told_in_figures_where_there_are_no_biases_to_absorb() -> None:
    draft = equalized(pair("r = Relu (a)", "float[1, 8, 6, 6] y, float[1, 8, 6, 6] r"), images(1, 8, 6, 6), absorb=True)
    assert draft.notes[1] == "equalize: no biases to absorb"


def test_the_same_twice() -> None:
    model, feeds = mobile_net(4.0, blocks=1), images(1, 3, 12, 12, samples=6)
    first, second = (ir.to_proto(equalized(model, feeds).model).SerializeToString(deterministic=True) for _ in "12")
    assert first == second


def test_changes_look_a_model_up_once_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each walks to its own layers from there: hundreds of pairs are no trouble."""
    text = " ".join(f"c{i} = Conv (r{i}, w{i})  r{i + 1} = Relu (c{i})" for i in range(9))
    weights = {f"w{i}": np.abs(normal(4, 4, 1, 1, seed=i)) for i in range(9)}
    model = build(f"(float[1, 4, 3, 3] r0) => (float[1, 4, 3, 3] y) {{ {text}  y = Neg (r9) }}", **weights)  # type: ignore[arg-type]
    feeds = [{"r0": np.abs(normal(1, 4, 3, 3, seed=s)) + np.float32(0.5)} for s in range(4)]
    made = load(model)
    normalize(made, min_opset=14)
    draft = FloatDraft(made, backend_named("onnxruntime"), EQUALIZED, collect(made, [], feeds, keep=4))
    pairs, _ = find_pairs(draft.model)
    scaled = [_Chain({pair.name: np.geomspace(0.5, 2, 4)}) for pair in pairs]
    moved = [Absorption(pair.name, np.full(4, 1e-3)) for pair in pairs]
    looked: list[Any] = []
    looking = Namer.__init__

    def counted(self: Namer, model: ir.Model) -> None:
        looked.append(model)
        looking(self, model)

    monkeypatch.setattr(Namer, "__init__", counted)
    monkeypatch.setattr("onnxq.algorithms.channels.pairs.all_nodes", None)
    changes: list[Change] = [*scaled, *moved]
    for change in changes:
        assert set(change.apply(draft)) <= {v.name for node in draft.model.graph for v in node.outputs}
    assert len(pairs) == 8 and looked == [draft.model]
    assert_same(model, draft, feeds)

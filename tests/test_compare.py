"""Comparing: figures against the same computation in numpy, tensors behind their quantizers, models that differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxq
from onnxq import Options
from onnxq.cli import main
from onnxq.compare import compare
from onnxq.errors import DataError, ExecutionError, ModelError
from onnxq.measuring import paired
from onnxq.measuring.metrics import sqnr
from onnxq.ort.session import Session
from tests import pairs
from tests.installed import needs
from tests.models import build, constants_of, f32, images, normal


def by_hand() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Tensor → (float, as its readers see it in the quantized model), over all samples, in float64."""
    w = numpy_helper.to_array(pairs.float_model().graph.initializer[0]).astype(np.float64)
    stored = constants_of(pairs.quantized_model())
    x = np.concatenate([feed["x"] for feed in pairs.data()]).astype(np.float64)
    h = x @ w
    hq = np.clip(np.rint(x @ (stored["w_q"] * stored["w_s"].astype(np.float64)) / pairs.SCALE), -128, 127) * pairs.SCALE
    y, yq = (1 / (1 + np.exp(-np.maximum(v, 0))) for v in (h, hq))
    return {"h": (h, hq), "r": (np.maximum(h, 0), np.maximum(hq, 0)), "y": (y, yq)}


def test_figures_are_those_of_numpy() -> None:
    found = compare(pairs.float_model(), pairs.quantized_model(), pairs.data())
    expected = by_hand()
    assert found.samples == 6
    assert found.outputs["y"].sqnr == pytest.approx(sqnr(*expected["y"]), abs=0.01)
    assert found.outputs["y"].max_error == pytest.approx(np.abs(np.subtract(*expected["y"])).max(), abs=1e-5)
    top = [values.argmax(axis=1) for values in expected["y"]]
    assert found.outputs["top"].agreement == pytest.approx((top[0] == top[1]).mean())
    tensors = {t.tensor: t for t in found.tensors}
    assert list(tensors) == ["h", "r", "y"]
    for name, (reference, result) in expected.items():
        assert tensors[name].errors.sqnr == pytest.approx(sqnr(reference, result), abs=0.01)
    assert [t.quantized for t in found.tensors] == [True, False, False]
    assert [(t.node, t.op) for t in found.tensors] == [("mm", "MatMul"), ("act", "Relu"), ("out", "Sigmoid")]


def test_drops_say_where_the_error_arises() -> None:
    found = compare(pairs.float_model(), pairs.quantized_model(), pairs.data())
    level = {t.tensor: t.errors.sqnr for t in found.tensors}
    drop = {t.tensor: t.drop for t in found.tensors}
    assert drop["h"] == pytest.approx(40 - level["h"]), "computed from the input alone"
    assert drop["r"] == pytest.approx(min(40, level["h"]) - level["r"])
    assert drop["y"] == pytest.approx(min(40, level["r"]) - level["y"])
    assert found.largest_drops(1)[0].drop == max(d for d in drop.values() if not math.isnan(d))


def test_the_same_model_is_exact() -> None:
    found = compare(pairs.float_model(), pairs.float_model(), pairs.data())
    assert found.outputs["y"].sqnr == math.inf
    assert found.outputs["top"].agreement == 1.0
    assert found.largest_drops() == []


def test_groups_under_a_memory_budget_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    once = compare(pairs.float_model(), pairs.quantized_model(), pairs.data())
    monkeypatch.setattr(paired, "_BUDGET", 1)
    grouped = compare(pairs.float_model(), pairs.quantized_model(), pairs.data())
    assert grouped.to_dict() == once.to_dict()
    assert [t.errors.samples for t in grouped.tensors] == [6, 6, 6]


def test_a_long_model_is_loaded_no_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = " ".join(f"t{i + 1} = Sigmoid (t{i})" for i in range(100))
    model = build(f"(float[2, 3] t0) => (float[2, 3] y) {{ {chain} y = Neg (t100) }}")
    loaded = []
    opened = Session.__init__

    def counted(self: Session, *args: Any, **options: Any) -> None:
        loaded.append(args)
        opened(self, *args, **options)

    monkeypatch.setattr(Session, "__init__", counted)
    found = compare(model, model, [{"t0": normal(2, 3)}, {"t0": normal(2, 3, seed=1)}])
    assert len(found.tensors) == 101
    assert len(loaded) == 4, "both models, each as it is and with all tensors shown"


def test_outputs_only() -> None:
    found = compare(pairs.float_model(), pairs.quantized_model(), pairs.data(), tensors=False)
    assert found.tensors == ()
    assert set(found.outputs) == {"y", "top"}


def test_tensors_that_are_gone_are_listed() -> None:
    found = compare(pairs.float_model(), pairs.renamed(pairs.quantized_model(), "r", "other"), pairs.data())
    assert found.unmatched == ("r",)
    assert [t.tensor for t in found.tensors] == ["h", "y"]
    assert not math.isnan(found.tensors[1].drop)  # looks past the tensor that is gone


def test_the_worst_sample_has_the_index_of_the_data() -> None:
    feeds = pairs.data(9)
    feeds[6]["x"] *= 100  # saturates h
    found = compare(pairs.float_model(), pairs.quantized_model(), feeds, samples=3)  # 0, 3, 6
    tensor = next(t for t in found.tensors if t.tensor == "h")
    assert tensor.errors.worst_sample == 6


def test_samples_come_one_at_a_time() -> None:
    alive = 0

    def stream() -> Iterator[dict[str, np.ndarray]]:
        nonlocal alive
        for feed in pairs.data(5):
            alive += 1
            yield feed

    assert compare(pairs.float_model(), pairs.quantized_model(), stream(), samples=3).samples == 3
    assert alive == 3


def test_other_models_are_refused() -> None:
    with pytest.raises(ModelError, match="different outputs: 'top', 'y' and 'top', 'z'"):
        compare(pairs.float_model(), pairs.renamed(pairs.quantized_model(), "y", "z"), pairs.data())
    with pytest.raises(ModelError, match="different inputs"):
        compare(pairs.float_model(), pairs.renamed(pairs.quantized_model(), "x", "z"), pairs.data())
    with pytest.raises(DataError, match="no samples"):
        compare(pairs.float_model(), pairs.quantized_model(), [])


def test_models_are_left_unchanged_and_json_is_strict() -> None:
    models = pairs.float_model(), pairs.quantized_model()
    before = [m.SerializeToString(deterministic=True) for m in models]
    found = compare(*models, pairs.data())
    assert [m.SerializeToString(deterministic=True) for m in models] == before
    json.loads(json.dumps(found.to_dict(), allow_nan=False))
    worst = found.worst
    assert worst is not None
    assert worst[0] == "y"


def test_a_float_model_too_old_for_onnxruntime() -> None:
    old = build(
        "(float[2, 3] x) => (float[2, 3] y) { y = Mul <broadcast = 1> (x, w) }",
        opset=6,
        w=np.array([1, 2, 3], np.float32),
    )
    with pytest.raises(ExecutionError, match="Mul"):
        Session(old.SerializeToString())
    new = build("(float[2, 3] x) => (float[2, 3] y) { y = Mul (x, w) }", w=np.array([1, 2, 4], np.float32))
    x = np.full((2, 3), 0.5, np.float32)
    found = compare(old, new, [{"x": x}])
    assert found.outputs["y"].sqnr == pytest.approx(10 * math.log10((1 + 4 + 9) / 1), abs=1e-3)
    assert [t.tensor for t in found.tensors] == ["y"]


@needs("onnxruntime", "1.28")
def test_a_quantized_model_that_the_optimizations_of_onnxruntime_break() -> None:
    """int8 of another runtime: onnxruntime's own pair of quantizers behind the Slice has two types."""
    begin, end, axis = (np.array([value]) for value in (1, 4, 2))
    reference = build(
        "(float[1, 2, 8] x) => (float[1, 2, 3] y) { y = Slice (x, b, e, a) }", opset=21, b=begin, e=end, a=axis
    )
    quantized = build(
        """(float[1, 2, 8] x) => (float[1, 2, 3] y) {
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            y = Slice (d, b, e, a)
        }""",
        opset=21,
        s=np.float32(0.1),
        z=np.int8(0),
        b=begin,
        e=end,
        a=axis,
    )
    with pytest.raises(ExecutionError, match="y_zero_point"):
        Session(quantized.SerializeToString())
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 2, 8)
    found = compare(reference, quantized, [{"x": x}])
    rounded = np.rint(x.astype(np.float64) / 0.1) * 0.1
    assert found.outputs["y"].sqnr == pytest.approx(sqnr(x[..., 1:4].astype(np.float64), rounded[..., 1:4]), abs=1e-3)


def test_models_whose_declared_inner_shapes_are_wrong() -> None:
    """onnxruntime puts a tensor where another of the same declared shape was; builders of decoders declare such."""
    shapes = "<float[b, s, 4] k, float[b, s, 4] all, float[b, s, 4] u>"
    model = build(
        f"""(float[b, s, 4] x, float[b, p, 4] past) => (float[b, t, 4] y) {shapes}
        {{ k = Exp (x)  all = Concat <axis = 1> (past, k)  u = MatMul (all, w)  y = Tanh (u) }}""",
        w=normal(4, 4),
    )
    feeds = [{"x": np.ones((1, 1, 4), np.float32), "past": np.ones((1, size, 4), np.float32)} for size in (0, 5)]
    with pytest.raises(ExecutionError, match="re-use buffer"):
        Session(model.SerializeToString()).run(feeds[1])
    assert compare(model, model, feeds).outputs["y"].sqnr == math.inf


@pytest.mark.parametrize("declared", [True, False])
def test_models_in_half_precision_are_compared_as_they_are(declared: bool) -> None:
    """Not the float32 that quantizing makes of the first, whose tensors the second has not."""
    inner = "<float16[4, 64] a, float16[4, 64] b>" if declared else ""
    model = build(
        f"""(float16[4, 64] x) => (float16[4, 64] y) {inner}
        {{ a = MatMul (x, w)  b = Relu (a)  y = MatMul (b, w) }}""",
        w=normal(64, 64).astype(np.float16),
    )
    found = compare(model, model, [{"x": normal(4, 64).astype(np.float16)}])
    assert found.outputs["y"].sqnr == math.inf and found.unmatched == ()


def test_models_that_look_swapped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given, made = pairs.float_model(), pairs.quantized_model()
    (said,) = compare(made, given, pairs.data()).warnings
    assert "look swapped" in said and "DequantizeLinear" in said
    for first, second in ((given, made), (made, made), (given, given)):
        assert not compare(first, second, pairs.data(), tensors=False).warnings
    onnx.save(given, tmp_path / "float.onnx")
    onnx.save(made, tmp_path / "int8.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in pairs.data()]))
    assert main(["compare", *(str(tmp_path / f"{n}") for n in ("int8.onnx", "float.onnx")), "--data",
                 str(tmp_path / "d.npz")]) == 0  # fmt: skip
    assert "look swapped" in capsys.readouterr().out


def test_tensors_between_transposes_that_were_taken_out_are_compared(tmp_path: Path) -> None:
    """Their axes are in another order then, and their names are others."""
    model = build(
        """(float[1, 8, 9, 9] x) => (float[1, 8, 9, 9] y) {
            a = Conv (x, w)
            t = Transpose <perm = [0, 2, 3, 1]> (a)
            s = Mul (t, scale)
            r = Relu (s)
            u = Transpose <perm = [0, 3, 1, 2]> (r)
            b = Conv (u, w)
            y = Neg (b)
        }""",
        w=normal(8, 8, 1, 1),
        scale=np.linspace(0.5, 2, 8, dtype=np.float32),
    )
    path = tmp_path / "q.onnx"
    onnxq.quantize(model, images(1, 8, 9, 9), output=path, options=Options(placement="all"))
    made = onnxq.compare(model, path, images(1, 8, 9, 9))
    compared = {tensor.tensor for tensor in made.tensors}
    assert "b" in compared and "r_permuted" in compared
    assert all(tensor.errors.sqnr > 25 for tensor in made.tensors)


def test_tensors_that_an_algorithm_rescaled_are_left_out_and_counted(tmp_path: Path) -> None:
    """What they hold is not wrong: only a model that was scaled alike shows how good they are."""
    factors = np.geomspace(1, 1000, 16, dtype=np.float32)
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 8, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            r = Relu (a)
            y = Conv <pads = [1, 1, 1, 1]> (r, w2)
        }""",
        w1=normal(16, 3, 3, 3) * factors[:, None, None, None],
        w2=normal(8, 16, 3, 3, seed=1) / factors[None, :, None, None],
    )
    feeds = images(1, 3, 8, 8, samples=16)
    options = Options(placement="all", per_channel=False, algorithms=("equalize",))
    made = onnxq.quantize(model, feeds, options=options, output=tmp_path / "q.onnx")
    assert any("1 pairs scaled" in note for note in made.notes)
    found = compare(model, tmp_path / "q.onnx", feeds)
    assert [t.tensor for t in found.tensors] == ["x", "y"] and found.unmatched == ("a",)
    assert found.warnings == (
        "1 tensor in between not compared, since an algorithm rescaled or turned it "
        "(equalize, rotate or smoothquant, say): 'r'",
    )
    alike = compare(made.model, tmp_path / "q.onnx", feeds)
    assert alike.warnings == () and min(t.errors.sqnr for t in alike.tensors if t.tensor == "r") > 25


def test_a_model_in_half_precision_is_compared_inside(tmp_path: Path) -> None:
    text = "(float16[1, 8] x) => (float16[1, 8] y) { a = MatMul (x, w)\n b = Relu (a)\n y = MatMul (b, w) }"
    model = build(text, w=normal(8, 8).astype(np.float16))
    data = [{"x": normal(1, 8, seed=seed).astype(np.float16)} for seed in range(4)]
    made = onnxq.quantize(model, data)
    names = {t.tensor for t in compare(model, made, data).tensors}
    assert names >= {"a", "b"}


def test_masks_that_mask_in_both_models_are_no_loss() -> None:
    text = """(float[1, 8, 8] s, float[1, 1, 8] m) => (float[1, 8, 8] y) {
        t = Add (s, m)
        p = Softmax (t)
        y = MatMul (p, w) }"""
    model = build(text, w=normal(8, 8))
    rng = np.random.default_rng(0)
    mask = np.array([0, 0, 0, 0, 0, -1e4, -1e4, -1e4], np.float32).reshape(1, 1, 8)
    data = [{"s": rng.standard_normal((1, 8, 8)).astype(np.float32), "m": mask} for _ in range(8)]
    made = onnxq.quantize(model, data, backend="qnn")
    found = {t.tensor: t for t in compare(model, made, data).tensors}
    assert found["t"].errors.sqnr > 25.0
    assert found["t"].errors.skipped == 8 * 8 * 3
    broken = [{**feed, "m": mask / 1e4} for feed in data]
    ignoring = {t.tensor: t for t in compare(model, onnxq.quantize(model, broken, backend="vitis"), data).tensors}
    assert ignoring["t"].errors.sqnr < 10.0


def test_a_mask_that_is_picked_in_another_place_is_no_loss_of_the_node_that_picks() -> None:
    def picks(factor: float) -> onnx.ModelProto:
        return build(
            """(float[1, 8] x) => (float[1, 8] y, float[1, 1] l) {
                [loses] z = Mul (x, factor)
                [masks] m = Where (below, z, mask)
                f = ReduceMax <axes = [1]> (z)
                i = Cast <to = 7> (f)
                [picks] p = GatherElements <axis = 1> (m, i)
                [moves] t = Transpose (p)
                e = Exp (t)
                y = Add (x, e)
                r = Relu (z)
                [makes] l = Log (r)
            }""",
            factor=np.array([factor], np.float32),
            mask=np.array([-np.inf], np.float32),
            below=np.array([True] * 6 + [False] * 2),
        )

    rows = [np.arange(1.0, 6.0, 5 / 8, dtype=np.float32)[None] for _ in range(4)]
    found = onnxq.compare(picks(1.0), picks(1.2), [{"x": row} for row in rows])
    drops = {t.node: t.drop for t in found.tensors}
    levels = {t.node: t.errors.sqnr for t in found.tensors}
    assert levels["picks"] == -np.inf and np.isnan(drops["picks"]) and np.isnan(drops["moves"])
    assert found.largest_drops()[0].node == "loses"
    given = [{"x": row - 1.0} for row in rows]  # the logarithm of 0 in both; of 0 in the other alone:
    for row in given:
        row["x"][0, 1] = 1e-3
    other = picks(1.0)
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([0.0], np.float32), "factor"))
    (made,) = [t for t in onnxq.compare(picks(1.0), other, given).tensors if t.node == "makes"]
    assert made.errors.sqnr == -np.inf and made.drop == np.inf, "what makes infinity of numbers has lost them"


def test_branches_whose_tensors_bear_the_same_names() -> None:
    """As optimum merges a decoder with and without its cache: of the sizes in one branch, those in the other were."""
    text = """(bool c, float[4, 48] x, int64[M] k) => (float[?, ?] y) {
        y = If (c) <
            then_branch = first () => (float[?, ?] t) {
                s = Shape (x)
                z = ConstantOfShape (s)
                t = MatMul (x, w)
            },
            else_branch = second () => (float[?, ?] u) {
                s = Shape (k)
                z = ConstantOfShape (s)
                e = Equal (z, five)
                n = Cast <to = 1> (e)
                r = ReduceSum <keepdims = 0> (n)
                p = MatMul (x, w)
                u = Add (p, r)
            }
        >
    }"""
    w, five = normal(48, 48), np.arange(5, dtype=np.float32)
    model, rounded = build(text, w=w, five=five), build(text, w=np.round(w, 2), five=five)
    data = [{"c": np.array(taken), "x": normal(4, 48, scale=1.0), "k": np.arange(5)} for taken in (True, False)]
    found = compare(model, rounded, data)
    assert {"t", "p", "n"} <= {tensor.tensor for tensor in found.tensors}


def test_what_is_said_of_all_samples_holds_for_all() -> None:
    """A cache is empty in the prompts that come first."""
    model = build("(float[1, n, 4] past, float[1, 1, 4] x) => (float[1, m, 4] y) { y = Concat <axis = 1> (past, x) }")
    samples = [
        {"past": normal(1, 3, 4, seed=k)[:, : 0 if k < 9 else 3], "x": normal(1, 1, 4, seed=k)} for k in range(12)
    ]
    assert not onnxq.compare(model, model, samples).warnings
    assert any("empty in all samples" in text for text in onnxq.compare(model, model, samples[:9]).warnings)


def test_data_that_holds_no_numbers_compares_nothing() -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y) { y = Relu (x) }")
    empty, numbers = np.full((1, 4), np.nan, np.float32), np.ones((1, 4), np.float32)
    with pytest.raises(DataError, match="no sample can be used: each holds NaN or infinity"):
        onnxq.compare(model, model, [empty, empty])
    assert onnxq.compare(model, model, [empty, numbers]).outputs["y"].skipped == 4


@pytest.mark.parametrize(
    "behind",
    [
        "y = Mul (a, g)",
        "r = Reshape (a, four) y = Mul (r, half)",
        "r = Reshape (a, four) t = Transpose <perm = [0, 2, 1, 3]> (r) y = Mul (t, half)",
    ],
    ids=["channels", "reshaped", "heads"],
)
def test_a_factor_folded_into_a_layer_is_no_loss_of_what_was_between(behind: str) -> None:
    """The product and its heads are scaled in the result: they are other tensors than those of the float model."""
    shape = "[2, 5, 16]" if behind == "y = Mul (a, g)" else "[2, 5, 4, 4]" if "t =" not in behind else "[2, 4, 5, 4]"
    model = build(
        f"(float[2, 5, 16] x) => (float{shape} y) {{ p = MatMul (x, w) a = Add (p, b) {behind} }}",
        w=normal(16, 16, scale=1.0),
        b=normal(16, seed=1),
        g=f32([0.5] * 8 + [0.25] * 8),
        half=f32(0.5),
        four=np.array([2, 5, 4, 4]),
    )
    data = [{"x": normal(2, 5, 16, seed=k)} for k in range(8)]
    made = onnxq.quantize(model, data, options=Options(placement="all"), backend="openvino")
    found = compare(model, made.rendered(), data)
    assert found.tensors and min(t.errors.sqnr for t in found.tensors) > 30


def test_a_model_that_draws_numbers_is_said_to_be_two_draws(tmp_path: Path) -> None:
    model = build(
        "(float[1, 4, 64] x) => (float[1, 4, 64] y) { n = RandomNormalLike (x) s = Add (x, n) y = MatMul (s, w) }",
        w=normal(64, 64, scale=1.0),
    )
    data = [{"x": normal(1, 4, 64, seed=k)} for k in range(8)]
    onnxq.quantize(model, data, output=tmp_path / "q.onnx", backend="openvino")
    (said,) = (text for text in compare(model, tmp_path / "q.onnx", data).warnings if "random" in text)
    assert said.startswith("1 RandomNormalLike draws random numbers")
    assert said in onnxq.verify(tmp_path / "q.onnx", data, backend="openvino", simulation=True).remarks


def test_models_of_other_sizes_are_refused_with_both_sizes() -> None:
    one, other = (build(f"(float[N, {size}] x) => (float[N, M] y) {{ y = Relu (x) }}") for size in (8, 16))
    with pytest.raises(ModelError, match="different inputs: 'x' is Nx8 and Nx16"):
        onnxq.compare(one, other, [{"x": normal(2, 8)}])

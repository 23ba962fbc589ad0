"""What the summary of a result suggests: layers that do most of the arithmetic, and run in integers another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.cli import main
from tests.models import build, normal, verified_sqnr

REASON = "in integers only with --algorithm dynamic"


def _model(inner: int) -> onnx.ModelProto:
    """An LSTM of 32 inputs and 24 states, then a MatMul of ``inner`` outputs."""
    return build(
        f"""(float[6, 1, 32] x) => (float[6, 1, 1, {inner}] y) {{
            [recurrent] s, h, c = LSTM <hidden_size = 24> (x, w, r)
            [head] y = MatMul (s, m)
        }}""",
        w=normal(1, 96, 32),
        r=normal(1, 96, 24, seed=1),
        m=normal(24, inner, seed=2),
    )


def _feeds() -> list[dict[str, np.ndarray]]:
    return [{"x": normal(6, 1, 32, seed=k, scale=1.0)} for k in range(8)]


def test_an_lstm_says_how_it_runs_in_integers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = onnxq.quantize(_model(16), _feeds())
    assert [k.reason.startswith(REASON) for k in result.plan.kept_float if k.op == "LSTM"] == [True]
    assert len(result.hints) == 1
    assert result.hints[0].startswith("1 LSTM, 93% of the arithmetic: in integers only with --algorithm dynamic")
    assert result.report()["hints"] == list(result.hints)
    onnx.save(_model(16), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([f["x"] for f in _feeds()]))
    arguments = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    assert main([*arguments, "-o", str(tmp_path / "q.onnx")]) == 0
    assert "hint         1 LSTM, 93% of the arithmetic" in capsys.readouterr().out


def test_nothing_is_said_where_it_does_little_or_was_left_out() -> None:
    assert onnxq.quantize(_model(4096), _feeds()).hints == ()
    assert onnxq.quantize(_model(16), _feeds(), options=Options(exclude=("LSTM",))).hints == ()
    assert onnxq.quantize(_model(16), _feeds(), backend="tvm").hints == (), "no target without such a way"


def test_weights_of_a_free_declared_shape() -> None:
    """An input that is a constant as well may be declared with names for sizes."""
    model = _model(16)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        dims = [f"{tensor.name}_{axis}" for axis in range(len(tensor.dims))]
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.FLOAT, dims))
    assert len(onnxq.quantize(model, _feeds()).hints) == 1


def test_what_a_target_needs_for_nodes_that_stay_float() -> None:
    model = build(
        "(float[2, 8] x) => (float[2, 8] y) { a = Relu (x)\n [odd] b = Sub (a, v)\n y = MatMul (b, w) }",
        v=normal(8, scale=0.3),
        w=normal(8, 8),
    )
    feeds = [{"x": normal(2, 8, seed=k, scale=1.0)} for k in range(8)]
    assert onnxq.quantize(model, feeds, backend="qnn").hints == ()
    excluding = Options(exclude=("odd",))
    (hint,) = onnxq.quantize(model, feeds, backend="qnn", options=excluding).hints
    assert hint.startswith("odd stays float: the HTP computes that in half precision")
    assert onnxq.quantize(model, feeds, backend="rknn", options=excluding).hints == ()


def test_what_a_target_has_in_no_type_needs_nothing_to_run_there_in_float() -> None:
    model = build(
        """(float[1, 2, 4, 8, 8] x) => (float[1, 3, 1, 3, 3] y) {
            a = Conv (x, w1)
            [pool] b = MaxPool <kernel_shape = [2, 2, 2]> (a)
            [odd] y = Conv <strides = [1, 2, 2]> (b, w2)
        }""",
        w1=normal(3, 2, 1, 1, 1),
        w2=normal(3, 3, 3, 3, 3),
    )
    feeds = [{"x": normal(1, 2, 4, 8, 8, seed=k, scale=1.0)} for k in range(8)]
    made = onnxq.quantize(model, feeds, backend="qnn")
    assert [kept.node for kept in made.plan.kept_float] == ["pool"] and made.hints == ()
    assert made.verification is not None and any("'pool' (MaxPool)" in said for said in made.verification.warnings)
    (hint,) = onnxq.quantize(model, feeds, backend="qnn", options=Options(exclude=("odd",))).hints
    assert hint.startswith("odd stays float: the HTP computes that in half precision")


def test_weights_of_few_bits_suggest_to_learn_their_rounding() -> None:
    model = build("(float[N, 64] x) => (float[N, 16] y) { y = MatMul (x, w) }", w=normal(64, 16))
    feeds = [{"x": normal(1, 64, seed=k, scale=1.0)} for k in range(32)]
    rounded = onnxq.quantize(model, feeds, options=Options(weight_bits=4))
    (hint,) = rounded.hints
    assert hint.startswith("1 weight of 4 bits, rounded without data: --algorithm gptq:prefix=true")
    asked = ("gptq:prefix=true", "bias_correction")
    learned = onnxq.quantize(model, feeds, options=Options(weight_bits=4, algorithms=asked))
    assert learned.hints == ()
    assert onnxq.quantize(model, feeds).hints == (), "8 bits need nothing of it"


def test_a_low_result_whose_rounding_is_learned_is_told_of_more_bits_and_of_training() -> None:
    model = build("(float[N, 64] x) => (float[N, 16] y) { y = MatMul (x, w) }", w=normal(64, 16))
    feeds = [{"x": normal(1, 64, seed=k, scale=1.0)} for k in range(32)]
    learners = ("gptq", "bias_correction")
    low = onnxq.quantize(model, feeds, options=Options(weight_bits=2, algorithms=learners))
    assert verified_sqnr(low) < 20
    (hint,) = low.hints
    assert "dB: --algorithm mixed_precision:budget=size:0.7 gives the layers that hurt most 8 bits; onnxq fine" in hint
    best = onnxq.quantize(model, feeds, options=Options(weight_bits=2, effort="best"))
    assert "size:0.7 --algorithm gptq:prefix=true --algorithm bias_correction gives" in " ".join(best.hints)
    mixed = ("mixed_precision:budget=size:0.9", *learners)
    assert onnxq.quantize(model, feeds, options=Options(weight_bits=2, algorithms=mixed)).hints == ()
    assert onnxq.quantize(model, feeds, options=Options(weight_bits=4, algorithms=learners, min_sqnr=0)).hints == ()


def _loud() -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """A matrix product of which 8 bits leave little: one column of what it reads is a thousand times the others."""
    scale = np.ones(32, np.float32)
    scale[0] = 1000
    weight = normal(32, 64)
    weight[0] = 0
    model = build("(float[4, 32] x) => (float[4, 64] y) { y = MatMul (x, w) }", w=weight)
    return model, [{"x": normal(4, 32, seed=k, scale=1.0) * scale} for k in range(8)]


@pytest.mark.parametrize(("loud", "said"), [(60.0, True), (1.0, False)])
def test_a_transformer_with_a_poor_sample_is_told_of_ranges_at_each_run(loud: float, said: bool) -> None:
    """One range for all samples gives quiet ones few steps; the total, made by the loud ones, does not show it."""
    model = build("(float[64, 64] x) => (float[64, 64] y) { y = MatMul (x, w) }", w=normal(64, 64))
    data = [{"x": normal(64, 64, seed=k, scale=loud if k % 2 else 1.0)} for k in range(8)]
    result = onnxq.quantize(model, data, options=Options(include=("MatMul",)))
    assert verified_sqnr(result) > 30
    (start,) = (h for h in result.hints if "--algorithm dynamic" in h) if said else ("",)
    assert not said or (start.startswith("output 'y' has ") and " dB in sample " in start)
    assert any("--algorithm dynamic" in hint for hint in result.hints) is said
    assert not any("--effort best" in hint for hint in result.hints)


def test_arithmetic_that_stays_float_does_not_hide_matrix_products() -> None:
    """A stored ConvTranspose does most of the arithmetic; of what runs in integers, all is a matrix product."""
    scale = np.ones(32, np.float32)
    scale[0] = 1000
    weight = normal(32, 64)
    weight[0] = 0
    model = build(
        """(float[4, 32] x, float[1, 32, 8, 8] z) => (float[4, 64] y, float[1, 32, 16, 16] image) {
            y = MatMul (x, w)
            image = ConvTranspose <strides = [2, 2]> (z, v)
        }""",
        w=weight,
        v=normal(32, 32, 2, 2),
    )
    data = [{"x": normal(4, 32, seed=k, scale=1.0) * scale, "z": normal(1, 32, 8, 8, seed=k)} for k in range(8)]
    result = onnxq.quantize(model, data, options=Options(effort="fast", include=("MatMul",)))
    assert set(result.plan.quantized.values()) == {"MatMul"}
    assert any("--algorithm dynamic" in hint for hint in result.hints)


def test_a_poor_result_is_told_of_scales_for_channels_where_the_target_has_them_and_takes_one() -> None:
    """Channels a thousand times apart: one scale for the whole weight rounds the small ones away."""
    loud, small = normal(16, 8, 1, 1), normal(16, 1, 1, 1, seed=1)
    loud[:8] *= 1000
    small[:8] /= 1000
    net = "(float[1, 8, 6, 6] x) => (float[1, 16, 6, 6] y) { c = Conv (x, loud)\n y = Conv <group = 16> (c, small) }"
    model = build(net, loud=loud, small=small)
    data = [{"x": normal(1, 8, 6, 6, seed=k, scale=1.0)} for k in range(8)]
    said = "--per-channel gives each output channel of a weight a scale of its own"

    def made(backend: str, per_channel: bool | None = None, override: str = "") -> tuple[float, bool]:
        options = Options(effort="fast", per_channel=per_channel, override=(override,) if override else ())
        result = onnxq.quantize(model, data, backend=backend, options=options)
        assert result.verification is not None and result.verification.worst is not None
        return result.verification.worst[1].sqnr, any(said in hint for hint in result.hints)

    before, told = made("ppl")
    after, again = made("ppl", per_channel=True)
    assert before < 20 and told and not again
    assert after > before + 6, "what it suggests helps"
    assert not made("ppl", per_channel=False)[1], "asked for"
    assert not made("ppl", override="Conv=per_channel=false")[1], "asked for"
    assert not made("vitis")[1], "it has no such scales"


def test_a_poor_result_says_what_may_give_more() -> None:
    model, data = _loud()
    qnn = onnxq.quantize(model, data, backend="qnn", options=Options(act_bits=8))
    smoothing = "--algorithm smoothquant --algorithm bias_correction moves outliers of what matrix products read"
    ways = ["--act-bits 16 gives activations finer steps", f"{smoothing} into their weights"]
    assert qnn.hints[-1].endswith("; ".join([*ways, "--effort best tries range methods and algorithms"]))
    few = onnxq.quantize(model, data, backend="qnn", options=Options(weight_bits=4))
    assert not any("smoothquant" in hint for hint in few.hints), "weights of 4 bits have no room for outliers"
    wide = onnxq.quantize(model, data, backend="qnn", options=Options(act_bits=16))
    assert verified_sqnr(wide) > 20
    assert not any("--act-bits" in hint for hint in wide.hints)
    home = onnxq.quantize(model, data, options=Options(effort="fast", include=("MatMul",)))
    assert f"{smoothing} into their weights; --algorithm dynamic takes the ranges of what they read" in home.hints[-1]
    assert "--act-bits" not in home.hints[-1], "onnxruntime has no kernels of 16 bits"
    other = onnxq.quantize(model, data, backend="onnx_qnn", options=Options(effort="fast"))
    assert smoothing in other.hints[-1] and "dynamic" not in other.hints[-1], "it writes models for onnxruntime alone"


def test_finer_activations_are_no_way_out_of_coarse_weights() -> None:
    model, data = _loud()
    for weights, told in ((8, True), (3, False)):
        options = Options(weight_bits=weights, act_bits=8, effort="fast")
        made = onnxq.quantize(model, data, backend="qonnx", options=options)
        assert made.verification is not None and made.verification.worst is not None
        assert made.verification.worst[1].sqnr < 20
        assert any("--act-bits 16" in hint for hint in made.hints) == told

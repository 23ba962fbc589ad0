from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import OptionError, Options, OutputError, VerificationError, dynamic
from onnxq.calibration.chance import drawn
from onnxq.cli import main
from onnxq.console.progress import Silent
from onnxq.measuring.final_check import FirstLook
from onnxq.measuring.metrics import sqnr
from onnxq.measuring.verification import Verification
from onnxq.ort.overflow import products_overflow
from onnxq.prepare import Prepared
from tests.installed import needs
from tests.models import build, feeds_for, normal, renamed, verified_sqnr
from tests.running import infer


def _model() -> onnx.ModelProto:
    return build(
        """(float[N, 32] x, float[1, 3, 8, 8] image) => (float[N, 10] y, float[N, N] p, float[1, 4, 8, 8] z) {
            h = MatMul (x, a)
            r = Relu (h)
            t = Transpose <perm = [1, 0]> (r)
            p = MatMul (r, t)
            g = Gemm <transB = 1> (r, b, c)
            k = MatMul (g, d)
            y = Gemm (k, e, c)
            z = Conv <pads = [1, 1, 1, 1]> (image, kernel)
        }""",
        a=normal(32, 64),
        b=normal(16, 64, seed=1),
        c=normal(1, seed=2, scale=1.0),
        d=normal(16, 16, seed=3),
        e=normal(16, 10, seed=4),
        kernel=normal(4, 3, 3, 3),
    )


def _run(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: arrays[0] for name, arrays in infer(path, [feeds], optimize=True).items()}


@pytest.mark.parametrize("per_channel", [True, False])
def test_contract(per_channel: bool, tmp_path: Path) -> None:
    proto, source, output = _model(), tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, source)
    before = hashlib.sha256(source.read_bytes()).digest()
    feeds = feeds_for(proto, 12, N=5)
    result = dynamic.rewrite(source, feeds, output=output, per_channel=per_channel)
    assert hashlib.sha256(source.read_bytes()).digest() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "q.onnx"]
    made = onnx.load(output)
    onnx.checker.check_model(made, full_check=True)
    for ours, theirs in ((made.graph.input, proto.graph.input), (made.graph.output, proto.graph.output)):
        assert [v.SerializeToString() for v in ours] == [v.SerializeToString() for v in theirs]
    assert {p.key: p.value for p in made.metadata_props} == {p.key: p.value for p in proto.metadata_props}
    assert sorted(result.quantized.values()) == ["Gemm", "Gemm", "MatMul", "MatMul"]
    assert sum(node.op_type == "MatMulInteger" for node in made.graph.node) == 4
    assert sorted(f"{k.op}: {k.reason}" for k in result.kept_float) == [
        "Conv: slower with ranges taken at run time than in float (--include quantizes it all the same)",
        "MatMul: it has no constant weight on the right",
    ]
    told = result.verification.outputs["y"]
    want, got = ([_run(path, f)["y"] for f in feeds] for path in (source, output))
    assert told.samples == 12 and told.sqnr > 25
    assert sqnr(np.stack(want), np.stack(got)) == pytest.approx(told.sqnr, abs=0.1)


def test_figures_of_few_samples_that_differ_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.measuring.samples_to_judge._SECONDS", 0.0)
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    weight = normal(64, 64)
    weight[0] = 0
    onnx.save(build("(float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", w=weight), source)
    data = np.random.default_rng(0).normal(size=(128, 64)).astype(np.float32)
    data[drawn(16, 32), 0] = 1e3  # leaves one step for all others
    result = dynamic.rewrite(source, data, output=output)
    (told,) = [text for text in result.verification.warnings if "differs much from sample to sample" in text]
    assert "these figures are of 8 of 128: onnxq compare runs them all" in told


@pytest.mark.usefixtures("speed_is_told")
@pytest.mark.parametrize(("speedup", "slow"), [(0.6, True), (1.3, False)])
def test_a_result_slower_than_the_float_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speedup: float, slow: bool
) -> None:
    completed = FirstLook.completed

    def measured(look: FirstLook) -> Verification:
        return replace(completed(look), speedup=speedup, float_seconds=1e-3)

    monkeypatch.setattr(FirstLook, "completed", measured)
    proto = build("(float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", w=normal(64, 64))
    result = dynamic.rewrite(proto, output=tmp_path / "q.onnx")
    told = [text for text in result.verification.warnings if text.startswith("it runs at 0.60 of the float model's")]
    assert len(told) == slow and all("--exclude MatMul" in text for text in told)


def test_why_nothing_is_quantized(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(build("(float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", w=normal(64, 64)), source)
    result = dynamic.rewrite(source, output=tmp_path / "q.onnx", options=Options(exclude=("MatMul",)))
    (told,) = result.verification.warnings
    assert told.startswith("nothing was quantized: the result is the float model; 1 MatMul: excluded by 'MatMul'. ")


@needs("onnxruntime", "1.24")
def test_chosen_and_left_out(tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(renamed(_model(), {"h": "first"}), source)
    result = dynamic.rewrite(source, output=output, options=Options(exclude=("first",)))
    assert "excluded by 'first'" in [k.reason for k in result.kept_float]
    assert len(result.quantized) == 3 and not result.verification.samples
    only = dynamic.rewrite(source, output=output, options=Options(include=("Conv",)))
    assert set(only.quantized.values()) == {"Conv"}
    assert "ConvInteger" in [node.op_type for node in onnx.load(output).graph.node]
    with pytest.raises(OptionError, match="matches no"):
        dynamic.rewrite(source, output=output, options=Options(exclude=("nowhere",)))
    with pytest.raises(OptionError, match="act_bits: has no effect"):
        dynamic.rewrite(source, output=output, options=Options(act_bits=16))


def test_a_convolution_that_this_onnxruntime_has_no_kernel_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.23.2")
    source = tmp_path / "m.onnx"
    onnx.save(_model(), source)
    result = dynamic.rewrite(source, output=tmp_path / "q.onnx", options=Options(include=("Conv", "MatMul")))
    assert set(result.quantized.values()) == {"MatMul"}
    said = {kept.reason for kept in result.kept_float if kept.op == "Conv"}
    assert said == {"onnxruntime 1.23.2 has no kernel of it for int8 weights, 1.24 has"}


def test_bodies(tmp_path: Path) -> None:
    proto = build(
        """(float[N, 32] x, bool c) => (float[N, 32] y) {
            y = If (c) <
                then_branch = g1 () => (float[N, 32] t) { t = MatMul (x, a) },
                else_branch = g2 () => (float[N, 32] f) { f = Relu (x) }
            >
        }""",
        a=normal(32, 32),
    )
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, source)
    feeds = [{"x": normal(4, 32, scale=1.0), "c": np.array(k == 0)} for k in range(2)]
    result = dynamic.rewrite(source, feeds, output=output)
    assert list(result.quantized.values()) == ["MatMul"]
    assert verified_sqnr(result) > 30


def test_nothing_to_quantize(tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(build("(float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }"), source)
    result = dynamic.rewrite(source, output=output)
    assert not result.quantized and "nothing was quantized" in result.verification.warnings[0]
    assert output.exists()


def test_failures_are_told_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(_model(), source)
    with pytest.raises(OutputError, match="is the model that is read"):
        dynamic.rewrite(source, output=source)
    with pytest.raises(OutputError, match="folder does not exist"):
        dynamic.rewrite(source, output=tmp_path / "no" / "q.onnx")

    def fail(*args: object, **kwargs: object) -> None:
        raise VerificationError("the quantized model failed its final check")

    monkeypatch.setattr(dynamic, "first_look", fail)
    with pytest.raises(VerificationError, match="failed its final check"):
        dynamic.rewrite(source, output=output)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_tables_and_weights_of_float_layers_are_stored_as_integers(tmp_path: Path) -> None:
    """As by default: a table of embeddings, a GRU. What is small stays, and a Conv, of which no bias is corrected."""
    proto = build(
        """(int64[N] ids) => (float[N, 1, 1, 8] y, float[1, 8, N, 32] z, float[1, 200, N, 32] unused) {
            [rows] e = Gather (table, ids)
            u = Unsqueeze (e, one)
            [recurrent] s, h = GRU <hidden_size = 24> (u, w, r)
            [head] y = MatMul (s, m)
            v = Unsqueeze (e, axes)
            [image] z = Conv <pads = [1, 1, 1, 1]> (v, kernel)
            [wide] unused = Conv (z, many)
        }""",
        table=normal(1000, 32),
        one=np.array([1]),
        axes=np.array([0, 1]),
        w=normal(1, 72, 32, seed=1),
        r=normal(1, 72, 24, seed=2),
        m=normal(24, 8, seed=3),
        kernel=normal(8, 1, 3, 3, seed=4).repeat(16, 0)[:8],
        many=normal(200, 8, 1, 1, seed=5),
    )
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, source)
    feeds = [{"ids": np.arange(k, k + 20)} for k in range(8)]
    result = dynamic.rewrite(source, feeds, output=output)
    assert dict(result.quantized) == {"head": "MatMul"}
    assert dict(result.stored) == {"rows": "Gather", "recurrent": "GRU"}
    assert result.report()["stored_nodes"] == 2
    made = onnx.load(output)
    large = {t.name: t.data_type for t in made.graph.initializer if np.prod(t.dims) >= 1024}
    assert large.pop("many") == onnx.TensorProto.FLOAT
    assert len(large) == 3 and set(large.values()) == {onnx.TensorProto.INT8}
    assert {k.node for k in result.kept_float} == {"rows", "recurrent", "image", "wide"}
    assert output.stat().st_size < source.stat().st_size / 3
    worst = result.verification.worst
    assert worst is not None and worst[1].sqnr > 30
    assert set(result.stored) <= set(onnxq.quantize(source, feeds).plan.stored)


@needs("onnxruntime", "1.24")
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("reduce_range", [True, False])
def test_every_kind_of_layer_computes_what_the_float_one_does(
    per_channel: bool, reduce_range: bool, tmp_path: Path
) -> None:
    proto = build(
        """(float[6, 2, 32] x, float[1, 4, 8, 8] image) => (float[6, 2, 64] y, float[1, 8, 8, 8] z, float[2, 6, 32] a) {
            [recurrent] s, h, c = LSTM <hidden_size = 32, direction = "bidirectional"> (x, w, r, b)
            t = Transpose <perm = [0, 2, 1, 3]> (s)
            y = Reshape (t, shape)
            [image] z = Conv <pads = [1, 1, 1, 1]> (image, kernel, bias)
            d = Transpose <perm = [1, 0, 2]> (x)
            [attention] a = com.microsoft.Attention <num_heads = 4> (d, qkv, qkv_bias, ends)
        }""",
        w=normal(2, 128, 32),
        r=normal(2, 128, 32, seed=1),
        b=normal(2, 256, seed=2),
        shape=np.array([6, 2, 64]),
        kernel=normal(8, 4, 3, 3, seed=3),
        bias=normal(8, seed=4, scale=1.0),
        qkv=normal(32, 96, seed=5),
        qkv_bias=normal(96, seed=6),
        ends=np.array([6, 6, 0, 0], np.int32),  # with which an Attention stays one operator
    )
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, source)
    feeds = [{"x": normal(6, 2, 32, seed=k, scale=1.0), "image": normal(1, 4, 8, 8, seed=k)} for k in range(4)]
    result = dynamic.rewrite(
        source, feeds, output=output, per_channel=per_channel,
        options=Options(include=("LSTM", "Conv", "Attention"), reduce_range=reduce_range),
    )  # fmt: skip
    assert dict(result.quantized) == {"recurrent": "LSTM", "image": "Conv", "attention": "Attention"}
    made = onnx.load(output)
    kinds = {node.op_type for node in made.graph.node}
    assert {"DynamicQuantizeLSTM", "ConvInteger", "QAttention"} <= kinds and not kinds & {"LSTM", "Conv", "Attention"}
    for name, errors in result.verification.outputs.items():
        assert errors.sqnr > 30 or (not reduce_range and products_overflow()), name
    weights = {t.name: onnx.numpy_helper.to_array(t).astype(int) for t in made.graph.initializer if t.data_type == 3}
    summed = [w for w in weights.values() if w.ndim in (2, 3) and w.any()]
    pairs = [np.abs(w[..., 0::2, :] + w[..., 1::2, :]).max() for w in summed]
    assert len(pairs) == 3 and (max(pairs) <= 128) == reduce_range
    assert max(np.abs(w).max() for w in weights.values() if w.ndim == 4) == 127, "a ConvInteger does not overflow"


def test_it_is_as_accurate_as_onnxruntimes_own(tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    proto = build(
        """(float[N, 64] x) => (float[N, 16] y) {
            a = MatMul (x, u)
            r = Relu (a)
            y = Gemm (r, v, b)
        }""",
        u=normal(64, 128),
        v=normal(128, 16, seed=1),
        b=normal(16, seed=2),
    )
    source, output, theirs = tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "ort.onnx"
    onnx.save(proto, source)
    feeds = [{"x": normal(4, 64, seed=k, scale=1.0)} for k in range(8)]
    dynamic.rewrite(source, feeds, output=output)
    quantize_dynamic(source, theirs, per_channel=True, weight_type=QuantType.QInt8)
    want = np.stack([_run(source, f)["y"] for f in feeds])
    ours, other = (sqnr(want, np.stack([_run(path, f)["y"] for f in feeds])) for path in (output, theirs))
    assert ours > other - 0.5


def test_what_cannot_be_stored_stays_float_with_the_reason(tmp_path: Path) -> None:
    broken = normal(32, 32)
    broken[3, 4] = np.inf
    proto = build(
        """(float[N, 32] x, float[N, 4, 32] s) => (float[N, 32] y, float[N, 4, 1, 8] z) {
            [broken] y = MatMul (x, w)
            [recurrent] z, h, c = LSTM <hidden_size = 8, layout = 1> (s, u, r)
        }""",
        w=broken,
        u=normal(1, 32, 32, seed=1),
        r=normal(1, 32, 8, seed=2),
    )
    source = tmp_path / "m.onnx"
    onnx.save(proto, source)
    table = dynamic._table(per_channel=True)
    made = dynamic._made(Prepared(source, Options()).model, table, Options(), Silent())  # onnxruntime cannot run it
    reasons = {kept.node: kept.reason for kept in made.refused}
    assert not made.quantized and "holds NaN or infinite" in reasons["broken"]
    assert "no attribute 'layout'" in reasons["recurrent"]


def test_a_poor_result_is_warned_of_and_its_layers_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One column a million times larger than the others, which the weight takes out again."""
    weight = normal(32, 16)
    weight[7] = 0.0
    proto = build("(float[1, 32] x) => (float[1, 16] y) { [lost] a = MatMul (x, w)\n y = Relu (a) }", w=weight)
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, source)
    feeds = [{"x": normal(1, 32, seed=k, scale=1.0)} for k in range(4)]
    for feed in feeds:
        feed["x"][:, 7] = 1e6
    result = dynamic.rewrite(source, feeds, output=output)
    assert any("below the floor of 10 dB" in warning for warning in result.verification.warnings)
    np.savez(tmp_path / "d.npz", x=np.stack([f["x"] for f in feeds]))
    arguments = ["quantize", str(source), "--data", str(tmp_path / "d.npz"), "--algorithm", "dynamic"]
    assert main([*arguments, "-o", str(output)]) == 3
    text = capsys.readouterr().out
    assert "Most is lost here" in text and "Try --exclude 'lost' or --algorithm dynamic left out." in text


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(_model(), source)
    level = logging.getLogger().level
    assert main(["quantize", str(source), "-o", str(output), "--algorithm", "dynamic:per_channel=no"]) == 0
    text = capsys.readouterr()
    assert "int8 weights per tensor" in text.out and "slower with ranges taken at run time" in text.out
    assert "pre-processing" not in text.err and logging.getLogger().level == level

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxq import OptionError, Options, OutputError, dynamic, quantize
from onnxq.calibration.chance import one_of_each_pair
from onnxq.cli import main
from onnxq.errors import VerificationError
from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from onnxq.weight_only.grid import decode, nearest
from onnxq.weight_only.hqq import hqq
from onnxq.weight_only.pipeline import rewrite_weights
from onnxq.weight_only.recipe import Recipe
from onnxq.weight_only.remarks import why_slow
from tests.installed import needs
from tests.models import build, normal, renamed

LOSS = {4: 12.0, 8: 35.0}
"""dB that rounding weights to so many bits keeps at least, in these models."""


def _layers() -> onnx.ModelProto:
    """A table, a MatMul, both kinds of Gemm, a Conv, and inputs that are no multiple of any block."""
    return build(
        """(int64[N] tokens, float[N, 72] x) => (float[N, 8] y, float[N, 40] g) {
            e = Gather (table, tokens)
            s = Add (e, x)
            m = MatMul (s, a)
            r = Relu (m)
            g = Gemm <transB = 1> (r, b, c)
            h = Gemm (g, d)
            y = Add (h, one)
        }""",
        table=normal(50, 72, scale=1.0),
        a=normal(72, 40, seed=1),
        b=normal(40, 40, seed=2),
        c=normal(40, seed=3, scale=1.0),
        d=normal(40, 8, seed=4),
        one=normal(8, seed=5, scale=1.0),
    )


def _feeds(samples: int = 6, rows: int = 32) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((9, 72))
    return [
        {
            "tokens": rng.integers(0, 50, rows),
            "x": (rng.standard_normal((rows, 9)) @ mixing).astype(np.float32),
        }
        for _ in range(samples)
    ]


def run(path: Path, feeds: dict[str, np.ndarray], *, optimize: bool = False) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def save(proto: onnx.ModelProto, path: Path, *, external: bool = False) -> Path:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)  # onnx.save takes the data out of what it is given
    onnx.save(copy, path, save_as_external_data=external, size_threshold=1024, location=f"{path.name}.weights")
    return path


def _digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.is_file()}


def _rounded(proto: onnx.ModelProto, recipe: Recipe) -> onnx.ModelProto:
    """The float model with weights rounded in it: what any rendering must compute."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in copy.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.name in ("a", "b", "table"):
            bits = 8 if tensor.name == "table" else recipe.bits
            turned = array.T if tensor.name == "a" else array
            block = recipe.block if tensor.name == "table" else recipe.fitting_block(turned.shape[1], bits)
            made = decode(nearest(turned, recipe.spec(bits, block), either_sign=recipe.either_sign))
            tensor.CopyFrom(numpy_helper.from_array(made.T.copy() if tensor.name == "a" else made, tensor.name))
    return copy


_WIDTHS = [(4, True, 32), (4, False, 16), (8, True, 64), (8, False, 128)]
_FEWEST = [
    pytest.param("matmulnbits", 2, *rest, marks=needs("onnxruntime", "1.26")) for rest in ((True, 32), (False, 64))
]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(
    ("format", "bits", "symmetric", "block"),
    [*(("qdq", *width) for width in _WIDTHS), *(("matmulnbits", *width) for width in _WIDTHS), *_FEWEST],
)
def test_result_computes_with_the_rounded_weights(
    bits: int, symmetric: bool, block: int, format: str, external: bool, tmp_path: Path
) -> None:
    proto = _layers()
    source = save(proto, tmp_path / "m.onnx", external=external)
    before = _digests(tmp_path)
    output = tmp_path / "out" / "q.onnx"
    output.parent.mkdir()
    level = 4 if format == "qdq" else 0  # MatMulNBits that multiplies in float32
    result = quantize_weights(
        source, output, bits=bits, symmetric=symmetric, block=block, format=format, accuracy_level=level
    )
    assert _digests(tmp_path) == before
    assert sorted(p.name for p in output.parent.iterdir()) == (["q.onnx", "q.onnx.data"] if external else ["q.onnx"])
    assert sorted(map(str, result.files)) == sorted(map(str, output.parent.iterdir()))
    made = onnx.load(output)
    onnx.checker.check_model(str(output), full_check=True)
    for ours, theirs in ((made.graph.input, proto.graph.input), (made.graph.output, proto.graph.output)):
        assert [v.SerializeToString() for v in ours] == [v.SerializeToString() for v in theirs]
    assert {p.key: p.value for p in made.metadata_props} == {p.key: p.value for p in proto.metadata_props}
    assert Counter(result.quantized.values()) == {"Gather": 1, "MatMul": 1, "Gemm": 1}
    held = {t.name: t for t in made.graph.initializer}
    assert bits > 2 or np.prod(held["a_quantized"].dims) == 40 * 96 * bits // 8  # 72 inputs, filled up to blocks of 32
    assert [k.reason for k in result.kept_float] == ["its weight has fewer than 1024 numbers"]
    expected = save(_rounded(proto, Recipe(bits, block, symmetric, format=format)), tmp_path / "rounded.onnx")
    for feeds in _feeds(2):
        want, plain, fast = run(expected, feeds), run(output, feeds), run(output, feeds, optimize=True)
        for name, array in want.items():
            np.testing.assert_allclose(plain[name], array, rtol=1e-4, atol=1e-4)
            assert sqnr(array, fast[name]) > 30  # onnxruntime rounds activations to 8 bits where it fuses the pairs


@pytest.mark.parametrize("method", ["rtn", "hqq", "gptq"])
@pytest.mark.parametrize("external", [False, True])
def test_methods_on_data(method: str, external: bool, tmp_path: Path) -> None:
    source = save(_layers(), tmp_path / "m.onnx", external=external)
    result = quantize_weights(source, tmp_path / "q.onnx", method=method, data=_feeds(12))
    worst = result.verification.worst
    assert worst is not None and worst[1].sqnr > LOSS[4]
    assert result.verification.samples == 6
    measured = (
        [run(source, f)["y"] for f in _feeds(12)],
        [run(tmp_path / "q.onnx", f, optimize=True)["y"] for f in _feeds(12)],
    )
    held = one_of_each_pair(12)[1]
    told = result.verification.outputs["y"].sqnr
    assert told == pytest.approx(sqnr(*(np.stack([outputs[k] for k in held]) for outputs in measured)), abs=0.5)
    if method == "gptq":
        (note,) = [note for note in result.notes if note.startswith("gptq")]
        assert "2 matrices" in note and "undone in" in note


@pytest.mark.parametrize("first", [0, 1])
def test_kinds_of_samples_in_turn_are_all_learned_from(first: int, tmp_path: Path) -> None:
    """Learning from one kind and judging by the other would find nothing worth keeping."""
    rng = np.random.default_rng(0)
    turns = [np.linalg.qr(rng.standard_normal((256, 256)))[0] for _ in range(4)]
    mixed = [a * np.exp(-np.arange(256) / 12)[:, None] * 16 @ b for a, b in (turns[:2], turns[2:])]
    feeds = [{"x": (rng.standard_normal((64, 256)) @ mixed[(k + first) % 2]).astype(np.float32)} for k in range(32)]
    model = build("(float[64, 256] x) => (float[64, 256] y) { y = MatMul (x, w) }", w=normal(256, 256, scale=0.06))
    source = save(model, tmp_path / "m.onnx")
    result = quantize_weights(source, tmp_path / "q.onnx", method="gptq", data=feeds)
    plain = quantize_weights(source, tmp_path / "r.onnx", method="rtn", data=feeds)
    assert result.verification.outputs["y"].sqnr > plain.verification.outputs["y"].sqnr + 5
    assert "undone in 0" in result.notes[0]


def test_figures_of_few_samples_that_differ_much(tmp_path: Path) -> None:
    weight = normal(64, 64, scale=0.01)
    weight[0] = 10  # leaves nothing of the rest of its block
    source = save(build("(float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", w=weight), tmp_path / "m.onnx")
    data = np.zeros((128, 64), np.float32)
    data[:, 0] = np.linspace(1, 2, 128)
    data[::8, 1:] = 100
    result = quantize_weights(source, tmp_path / "q.onnx", data=data)
    assert any("these figures are of 8 of 128: onnxq compare runs" in text for text in result.verification.warnings)


def test_gptq_beats_nearest_at_the_output(tmp_path: Path) -> None:
    proto = build("(float[N, 128] x) => (float[N, 64] y) { y = MatMul (x, a) }", a=normal(128, 64))
    rng = np.random.default_rng(3)
    mixing = rng.standard_normal((16, 128))

    def draw() -> dict[str, np.ndarray]:
        return {"x": (rng.standard_normal((64, 16)) @ mixing).astype(np.float32)}

    data, fresh = [draw() for _ in range(8)], draw()
    source = save(proto, tmp_path / "m.onnx")
    error = {}
    for method in ("rtn", "gptq"):
        quantize_weights(source, tmp_path / "q.onnx", method=method, data=data, format="matmulnbits")
        error[method] = np.linalg.norm(run(tmp_path / "q.onnx", fresh)["y"] - run(source, fresh)["y"])
    assert error["gptq"] <= 0.8 * error["rtn"]


def test_streamed_result_equals_the_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of one layer each, checks of big models, arrays on the disk: the same integers."""
    from onnxq.weight_only import activations, examine, segments

    whole = save(_layers(), tmp_path / "m.onnx")
    quantize_weights(whole, tmp_path / "a.onnx", method="gptq", data=_feeds(4))
    monkeypatch.setattr(segments, "_BYTES", 0)
    monkeypatch.setattr(examine, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(activations, "_BUDGET", 0)
    apart = save(_layers(), tmp_path / "n.onnx", external=True)
    result = quantize_weights(apart, tmp_path / "b.onnx", method="gptq", data=_feeds(4))
    assert result.verification.worst is not None and result.verification.worst[1].sqnr > LOSS[4]
    first, second = ({t.name: t for t in onnx.load(tmp_path / f).graph.initializer} for f in ("a.onnx", "b.onnx"))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(second[name]))


def test_what_stays_float_and_why(tmp_path: Path) -> None:
    broken = normal(64, 32)
    broken[3, 3] = np.nan
    proto = build(
        """(float[N, 64] x, float[1, 4, 8, 8] image) => (float[N, 32] y, float[?, ?, ?, ?] z, float[64, N] l) {
            p = MatMul (x, a)
            q = MatMul (x, broken)
            t = Transpose <perm = [1, 0]> (x)
            l = MatMul (left, t)
            pq = Add (p, q)
            u = MatMul (x, named)
            y = Add (pq, u)
            z = Conv (image, kernel)
        }""",
        a=normal(64, 32),
        broken=broken,
        left=normal(64, 64),
        named=normal(64, 32, seed=7),
        kernel=normal(16, 4, 3, 3),
    )
    proto = renamed(proto, {"u": "special"})
    source = save(proto, tmp_path / "m.onnx")
    result = quantize_weights(source, tmp_path / "q.onnx", exclude=["special"])
    reasons = sorted(f"{k.op}: {k.reason}" for k in result.kept_float)
    assert reasons == [
        "Conv: only weights of MatMul, Gemm and Gather are stored in blocks",
        "MatMul: excluded by 'special'",
        "MatMul: its constant is the left operand",
        "MatMul: its weight holds NaN or infinite values",
    ]
    assert len(result.quantized) == 1
    assert result.report()["quantized_ops"] == {"MatMul": 1}
    only = quantize_weights(source, tmp_path / "q.onnx", include=["special"])
    assert len(only.quantized) == 1 and "not among what 'include' names" in [k.reason for k in only.kept_float]
    with pytest.raises(OptionError, match="matches no"):
        quantize_weights(source, tmp_path / "q.onnx", exclude=["nothing"])


def test_bytes_are_multiplied_in_integers_and_a_slow_choice_is_told_of(tmp_path: Path) -> None:
    proto = build("(float[N, 1024] x) => (float[N, 1024] y) { y = MatMul (x, w) }", w=normal(1024, 1024))
    source = save(proto, tmp_path / "m.onnx")
    feeds = [{"x": normal(128, 1024, seed=seed, scale=1.0)} for seed in range(4)]  # milliseconds: it has to be told of
    quick = quantize_weights(source, tmp_path / "4.onnx", bits=8, format="matmulnbits", data=feeds)
    exact = quantize_weights(source, tmp_path / "0.onnx", bits=8, format="matmulnbits", data=feeds, accuracy_level=0)
    (node,) = onnx.load(tmp_path / "4.onnx").graph.node
    assert {a.name: a.i for a in node.attribute}["accuracy_level"] == 4
    assert (quick.verification.speedup or 0.0) > 2 * (exact.verification.speedup or 1.0)
    assert any("accuracy_level=4 in integers" in text for text in exact.verification.warnings)
    said = why_slow(Recipe(), exact.quantized)
    assert "with one at a time, as decoders generate, it mostly gains" in said and "--exclude MatMul" in said


@pytest.mark.parametrize("external", [False, True])
def test_what_stays_float_of_a_float16_model_stays_as_small(external: bool, tmp_path: Path) -> None:
    proto = build(
        "(float16[N, 48] x) => (float16[N, 40] y) { a = MatMul (x, w) \n y = MatMul (a, v) }",
        w=normal(48, 48).astype(np.float16),
        v=normal(48, 40, seed=1).astype(np.float16),
    )
    proto.graph.node[0].name = "first"
    path = save(proto, tmp_path / "m.onnx", external=external)
    feeds = [{"x": normal(32, 48, seed=seed, scale=1.0).astype(np.float16)} for seed in range(4)]
    result = quantize_weights(path, tmp_path / "q.onnx", bits=8, exclude=["first"], data=feeds)
    assert [file.name for file in result.files] == (["q.onnx", "q.onnx.data"] if external else ["q.onnx"])
    assert any("came in half precision and computes in float32 now" in note for note in result.notes)
    assert result.verification.worst is not None and result.verification.worst[1].sqnr > 35
    stored = {t.name: t for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    np.testing.assert_array_equal(numpy_helper.to_array(stored["w_half"]), normal(48, 48).astype(np.float16))
    held = {name: tensor.data_type for name, tensor in stored.items()}
    assert all(kind != onnx.TensorProto.FLOAT or "scale" in name for name, kind in held.items())


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_matrices_of_experts(symmetric: bool, external: bool, tmp_path: Path) -> None:
    """With DequantizeLinear, unpacking them takes ten times as long as all else."""
    table = normal(6, 40, 48)
    proto = build(
        "(int64[N] e, float[N, 1, 40] x) => (float[N, 1, 48] y) { w = Gather (t, e) \n y = MatMul (x, w) }", t=table
    )
    source = save(proto, tmp_path / "m.onnx", external=external)
    made = quantize_weights(source, tmp_path / "q.onnx", bits=8, symmetric=symmetric, format="matmulnbits")
    assert list(made.quantized.values()) == ["Gather"]
    feeds = {"e": np.array([5, 0, 3]), "x": normal(3, 1, 40, seed=1, scale=1.0)}
    rounded = decode(nearest(table.reshape(-1, 48), Recipe(8, 32, symmetric).spec())).reshape(table.shape)
    np.testing.assert_allclose(
        run(tmp_path / "q.onnx", feeds)["y"], feeds["x"] @ rounded[feeds["e"]], rtol=1e-4, atol=1e-4
    )
    (kept,) = rewrite_weights(source, None, Recipe(8), output=tmp_path / "o.onnx", options=Options()).kept_float
    assert "its table has 3 axes" in kept.reason and "weight_only:format=matmulnbits" in kept.reason


@pytest.mark.parametrize(("inputs", "block"), [(160, 32), (384, 128), (512, 256), (24, 32)])
def test_blocks_are_no_larger_than_what_fills_them(inputs: int, block: int, tmp_path: Path) -> None:
    """MatMulNBits stores whole blocks: of 256, 160 inputs would take 1.5 times the bytes that they take in 32."""
    w = normal(inputs, 64, scale=0.1)
    source = save(
        build(f"(float[N, {inputs}] x) => (float[N, 64] y) {{ y = MatMul (x, w) }}", w=w), tmp_path / "m.onnx"
    )
    sizes = {}
    for asked in (256, block):
        output = tmp_path / f"{asked}.onnx"
        result = quantize_weights(source, output, format="matmulnbits", block=asked)
        (node,) = onnx.load(output).graph.node
        assert onnx.helper.get_node_attr_value(node, "block_size") == block
        assert any("smaller blocks" in note for note in result.notes) is (asked != block)
        sizes[asked] = output.stat().st_size
    assert sizes[256] == sizes[block]
    feeds = {"x": normal(8, inputs, seed=3, scale=1.0)}
    assert sqnr(run(source, feeds)["y"], run(tmp_path / "256.onnx", feeds, optimize=True)["y"]) > LOSS[4]


@pytest.mark.parametrize(("inputs", "block"), [(160, 32), (384, 128), (72, 256)])
def test_blocks_are_whole_where_they_can_be(inputs: int, block: int, tmp_path: Path) -> None:
    """OpenVINO reads no DequantizeLinear whose last block is not full."""
    w = normal(inputs, 64, scale=0.1)
    source = save(
        build(f"(float[N, {inputs}] x) => (float[N, 64] y) {{ y = MatMul (x, w) }}", w=w), tmp_path / "m.onnx"
    )
    quantize_weights(source, tmp_path / "q.onnx", block=256)
    dequantize, _ = onnx.load(tmp_path / "q.onnx").graph.node
    assert onnx.helper.get_node_attr_value(dequantize, "block_size") == block
    feeds = {"x": normal(8, inputs, seed=3, scale=1.0)}
    assert sqnr(run(source, feeds)["y"], run(tmp_path / "q.onnx", feeds, optimize=True)["y"]) > LOSS[4]


@pytest.mark.parametrize("format", ["qdq", "matmulnbits"])
def test_tables_take_8_bits(format: str, tmp_path: Path) -> None:
    """In both formats, as the summary says: in 4 bits they lose more than products do."""
    source = save(_layers(), tmp_path / "m.onnx")
    result = quantize_weights(source, tmp_path / "q.onnx", format=format)
    assert "1 table that rows are picked from takes 8 bits: no sum evens out the rounding of a row" in result.notes
    assert not any("half precision" in note for note in result.notes)
    table = next(t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if t.name == "table_quantized")
    assert table.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    assert onnx.numpy_helper.to_array(table).shape == (50, 72)


def test_tables_are_rounded_to_nearest_whatever_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty times the work for a quarter of a dB at 45, on what is most of a model of sentences."""
    seen: list[tuple[int, ...]] = []

    def fitted(matrix: np.ndarray, *args: Any, **others: Any) -> Any:
        seen.append(matrix.shape)
        return hqq(matrix, *args, **others)

    monkeypatch.setattr("onnxq.weight_only.learn.hqq", fitted)
    quantize_weights(save(_layers(), tmp_path / "m.onnx"), tmp_path / "q.onnx", method="hqq")
    assert seen == [(40, 72), (40, 40)]


def test_nothing_is_overwritten_or_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(_layers(), tmp_path / "m.onnx", external=True)
    taken = tmp_path / "m.onnx.data"
    (tmp_path / "m.onnx.weights").rename(taken)
    proto = onnx.load(source, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            entry.value = taken.name if entry.key == "location" else entry.value
    source = tmp_path / "other.onnx"
    source.write_bytes(proto.SerializeToString())
    (tmp_path / "m.onnx").unlink()
    before = _digests(tmp_path)
    for output in ("other.onnx", "m.onnx"):  # the model itself; a name whose data file is that of the model
        with pytest.raises(OutputError, match="belongs to the model"):
            quantize_weights(source, tmp_path / output)
    with pytest.raises(OutputError, match="does not exist"):
        quantize_weights(source, tmp_path / "nowhere" / "q.onnx")
    from onnxq.weight_only import pipeline

    def fail(*args: object, **kwargs: object) -> None:
        raise VerificationError("on purpose")

    monkeypatch.setattr(pipeline, "examine", fail)
    with pytest.raises(VerificationError):
        quantize_weights(source, tmp_path / "q.onnx")
    assert _digests(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, "bits: 3 is not one of 2, 4, 8"),
        ({"bits": 2}, "bits: opset 21 has no integers of 2 bits"),
        ({"bits": 2, "format": "matmulnbits", "block": 16}, "does not multiply with 2 bits in blocks of 16"),
        ({"block": 48}, "block: 48"),
        ({"method": "awq"}, "method: 'awq'"),
        ({"format": "int4"}, "format"),
        ({"accuracy_level": 1}, "only format=matmulnbits"),
        ({"method": "gptq"}, "learns from data"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str, tmp_path: Path) -> None:
    source = save(_layers(), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=message):
        quantize_weights(source, tmp_path / "q.onnx", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "q.onnx").exists()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = save(_layers(), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    command = ["quantize", str(source), "-o", str(output), "--algorithm"]
    assert main([*command, "weight_only:bits=8,block=64,symmetric=no"]) == 0
    text = capsys.readouterr().out
    assert "weights in 8 bits, asymmetric, blocks of 64, rtn, qdq" in text
    assert "1 Gather, 1 MatMul, 1 Gemm" in text and "fewer than 1024 numbers" in text and "times smaller" in text
    assert main([*command, "weight_only", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["quantized_nodes"] == 3 and document["below_floor"] is False
    assert main([*command, "weight_only", "--weight-bits", "4"]) == 1
    assert (
        "weight_bits: has no effect on the algorithm 'weight_only'. Write weight_only:bits=4" in capsys.readouterr().err
    )
    assert main([*command, "weight_only:method=gptq"]) == 1
    assert "learns from data" in capsys.readouterr().err
    assert main([*command, "weight_only", "--algorithm", "bias_correction"]) == 2  # data is needed for the other one
    with pytest.raises(OptionError, match="pipeline of its own"):
        quantize(source, _feeds(2), options=Options(algorithms=("weight_only",)))


def test_of_many_outputs_the_worst_are_shown_and_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A decoder gives its logits first, and then two caches a layer, which are often worse."""
    caches = [f"c{k}" for k in range(20)]
    lines = "logits = Add (x, h) \n" + "\n".join(f"{name} = MatMul (h, v)" for name in caches)
    outputs = ", ".join(f"float[N, 64] {name}" for name in caches)
    proto = build(
        f"(float[N, 64] x) => (float[N, 64] logits, {outputs}) {{ h = MatMul (x, w) \n {lines} }}",
        w=normal(64, 64, scale=0.01),
        v=normal(64, 64, seed=1),
    )
    np.savez(tmp_path / "d.npz", x=normal(40, 64, scale=1.0))
    argv = [
        "quantize",
        str(save(proto, tmp_path / "m.onnx")),
        "-o",
        str(tmp_path / "q.onnx"),
        "--algorithm",
        "weight_only",
    ]
    assert main([*argv, "--data", str(tmp_path / "d.npz")]) == 0
    short = capsys.readouterr().out
    assert "logits: " in short and sum(f"{name}: " in short for name in caches) == 7 and "13 more outputs" in short
    assert main([*argv, "--data", str(tmp_path / "d.npz"), "-v"]) == 0
    long = capsys.readouterr().out
    assert all(f"{name}: " in long for name in caches) and "more output" not in long


@pytest.mark.parametrize("algorithm", ["weight_only", "dynamic"])
def test_integers_that_come_out_are_counted(algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = build(
        "(float[N, 64] x) => (int64[N] y) { p = MatMul (x, w) \n y = ArgMax <axis = 1, keepdims = 0> (p) }",
        w=normal(64, 64),
    )
    source = save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=normal(40, 64, scale=1.0))
    argv = ["quantize", str(source), "-o", str(tmp_path / "q.onnx"), "--algorithm", algorithm]
    assert main([*argv, "--data", str(tmp_path / "d.npz")]) == 0
    assert "agreement" in capsys.readouterr().out


def test_a_model_of_which_nothing_is_quantized_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = build("(float[1, 4, 8, 8] x) => (float[1, 16, 6, 6] y) { y = Conv (x, w) }", w=normal(16, 4, 3, 3))
    source, output = str(save(proto, tmp_path / "m.onnx")), str(tmp_path / "q.onnx")
    assert main(["quantize", source, "-o", output, "--algorithm", "weight_only"]) == 0
    shown = capsys.readouterr()
    assert "nothing was quantized: the result is the float model; 1 Conv: only weights" in " ".join(
        (shown.out + shown.err).split()
    )


@pytest.mark.parametrize("pipeline", ["weight_only", "dynamic"])
def test_what_has_no_weights_or_quantized_ones_is_told_apart(pipeline: str, tmp_path: Path) -> None:
    """A table of cosines is no weight, and the DequantizeLinear of given integers is none of the layers."""
    proto = build(
        """(float[1, 4, 6, 32] x, int64[1, 6] ids) => (float[1, 4, 6, 64] y) {
            [turn] r = com.microsoft.RotaryEmbedding (x, ids, cos, sin)
            w = DequantizeLinear <axis = 1> (ints, scale)
            [given] a = MatMul (r, w)
            [mine] y = MatMul (a, v)
        }""",
        opset=21,
        ir_version=10,
        domains={"com.microsoft": 1},
        cos=np.cos(normal(64, 16)),
        sin=np.sin(normal(64, 16)),
        ints=(normal(32, 64) * 100).astype(np.int8),
        scale=np.full(64, 0.01, np.float32),
        v=normal(64, 64),
    )
    source, output = save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    result = quantize_weights(source, output) if pipeline == "weight_only" else dynamic.rewrite(source, output=output)
    assert list(result.quantized) == ["mine"]
    assert {kept.node: kept.reason for kept in result.kept_float} == {
        "turn": "it has no weights, but tables of cosines and sines",
        "given": "already quantized in the input model",
    }


def test_what_onnxruntime_rounds_is_said(tmp_path: Path) -> None:
    source = save(_layers(), tmp_path / "m.onnx")
    option = "session.qdq_matmulnbits_accuracy_level=0"
    assert any(option in note for note in quantize_weights(source, tmp_path / "q.onnx", bits=8).notes)
    assert not any(option in note for note in quantize_weights(source, tmp_path / "q.onnx").notes)

"""What is said of a result: reasons, remarks, warnings, figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq import ExecutionError, OptionError, dynamic
from onnxq.cli import main
from onnxq.options import Options
from onnxq.weight_only import quantize_weights
from onnxq.weight_only.pipeline import rewrite_weights
from onnxq.weight_only.recipe import Recipe
from onnxq.weight_only.remarks import why_slow
from tests.contract import infer, sqnr
from tests.installed import needs
from tests.models import build, normal, renamed
from tests.weight_only.layers import feeds_of_layers, layers, save


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


@pytest.mark.usefixtures("speed_is_told")
def test_bytes_are_multiplied_in_integers_and_a_slow_choice_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = build("(float[N, 1024] x) => (float[N, 1024] y) { y = MatMul (x, w) }", w=normal(1024, 1024))
    source = save(proto, tmp_path / "m.onnx")
    feeds = [{"x": normal(16, 1024, seed=seed, scale=1.0)} for seed in range(4)]
    monkeypatch.setattr("onnxq.measuring.final_check.glance", lambda *_: (2e-3, 5e-3))
    quick = quantize_weights(source, tmp_path / "4.onnx", bits=8, format="matmulnbits", data=feeds)
    exact = quantize_weights(source, tmp_path / "0.onnx", bits=8, format="matmulnbits", data=feeds, accuracy_level=0)
    (node,) = onnx.load(tmp_path / "4.onnx").graph.node
    assert {a.name: a.i for a in node.attribute}["accuracy_level"] == 4
    integers, floats = (infer(onnx.load(made.files[0]), feeds, optimize=True)["y"] for made in (quick, exact))
    assert 35 < sqnr(floats, integers) < 60, "the bits of what is multiplied with are 8 as well"
    assert any("accuracy_level=4 in integers" in text for text in exact.verification.warnings)
    said = why_slow(Recipe(), exact.quantized)
    assert "with one at a time, as decoders generate, it mostly gains" in said and "--exclude MatMul" in said


def test_a_model_that_is_quantized_already(tmp_path: Path) -> None:
    proto = build("(float[N, 64] x) => (float[N, 64] y) { y = MatMul (x, w) }", w=normal(64, 64))
    given, output = tmp_path / "q.onnx", tmp_path / "r.onnx"
    quantize_weights(save(proto, tmp_path / "m.onnx"), given, format="matmulnbits")
    for result in (quantize_weights(given, output), dynamic.rewrite(given, output=output)):
        (told,) = result.verification.warnings
        assert told.endswith("1 MatMulNBits: already quantized in the input model. Give the float model")


@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=needs("onnxruntime", "1.26"))])
def test_a_result_below_the_floor_is_told_what_gives_it_more_bits(
    bits: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is told can be done and is better; where weights have 8 bits, they are left float."""
    proto = build(
        "(float[N, 64] x) => (float[N, 48] y) { [first] h = MatMul (x, a)\n r = Relu (h)\n [last] y = MatMul (r, b) }",
        a=normal(64, 64),
        b=normal(64, 48, seed=1),
    )
    np.savez(tmp_path / "d.npz", x=normal(32, 64, seed=2, scale=1.0))
    argv = ["quantize", str(save(proto, tmp_path / "m.onnx")), "--data", str(tmp_path / "d.npz"), "--min-sqnr", "90"]
    argv += ["-o", str(tmp_path / "q.onnx")]
    said, found = [], []
    for flags in (
        [f"weight_only:bits={bits}"],
        ["weight_only", "--override", "first=weight_bits=8"],
        ["weight_only:bits=8"],
    ):
        assert main([*argv, "--algorithm", *flags]) == 3
        out = capsys.readouterr().out
        said.append(next(line for line in out.splitlines() if line.startswith("Try ")))
        found.append(float(out.split("SQNR ")[1].split()[0]))
    if bits == 8:
        assert said[0].startswith("Try --exclude '") and said[0].endswith("' or --algorithm weight_only left out.")
        return
    assert said[0] == "Try --override 'first=weight_bits=8' or --algorithm weight_only:bits=8."
    assert said[1] == "Try --override 'last=weight_bits=8' or --algorithm weight_only:bits=8."
    assert found[0] + 1 < found[1] < found[2] - 10


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
    argv = ["compare", str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx"), "--data", str(tmp_path / "d.npz")]
    assert main(argv) == main([*argv, "--all"]) == 0
    short, long = capsys.readouterr().out.split("outputs  ")[1:]
    assert "logits " in short and sum(f"{name} " in short for name in caches) == 7 and "and 13 more (--all)" in short
    assert all(f"  {name} " in long for name in caches) and "more (--all)" not in long
    argv = ["verify", str(tmp_path / "q.onnx"), "--data", str(tmp_path / "d.npz")]
    assert main(argv) == main([*argv, "-v"]) == 0
    short, long = capsys.readouterr().out.split("agreement ")[1:]
    assert "logits: " in short and "13 more outputs (-v lists all)" in short
    assert all(f"{name}: " in long for name in caches)


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


@needs("onnx", "1.20")
def test_a_model_of_which_nothing_is_quantized_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = build("(float[1, 4, 8, 8] x) => (float[1, 16, 6, 6] y) { y = Conv (x, w) }", w=normal(16, 4, 3, 3))
    source, output = str(save(proto, tmp_path / "m.onnx")), str(tmp_path / "q.onnx")
    assert main(["quantize", source, "-o", output, "--algorithm", "weight_only"]) == 0
    shown = capsys.readouterr()
    asked = quantize_weights(source, output, avg_bits=3.5)
    assert asked.notes == [], "no bits were chosen"
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
    source = save(layers(), tmp_path / "m.onnx")
    option = "session.qdq_matmulnbits_accuracy_level=0"
    assert any(option in note for note in quantize_weights(source, tmp_path / "q.onnx", bits=8).notes)
    assert not any(option in note for note in quantize_weights(source, tmp_path / "q.onnx").notes)


def test_for_a_provider_that_is_not_here(tmp_path: Path) -> None:
    """A model that onnxruntime fused for a GPU has no kernels on a CPU: what is written says that it was not loaded."""
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    text = (
        "(float[N, 16, 128] x) => (float[N, 16, 64] y) { s = com.microsoft.BiasSplitGelu (x, b)\n y = MatMul (s, w) }"
    )
    onnx.save(build(text, domains={"com.microsoft": 1}, b=normal(128), w=normal(64, 64)), source)
    recipe, cuda = Recipe(format="matmulnbits"), Options(providers=("cuda",))
    with pytest.raises(ExecutionError, match="--providers cuda"):
        rewrite_weights(source, None, recipe, output=output, options=Options())
    with pytest.raises(OptionError, match="no provider 'cdua'"):
        rewrite_weights(source, None, recipe, output=output, options=Options(providers=("cdua",)))
    assert not output.exists()
    result = rewrite_weights(source, None, recipe, output=output, options=cuda)
    assert not result.verification.loaded
    assert any("not loaded" in said and "CUDAExecutionProvider" in said for said in result.verification.warnings)
    assert [node.op_type for node in onnx.load(output).graph.node] == ["BiasSplitGelu", "MatMulNBits"]
    with pytest.raises(OptionError, match="no provider 'cuda'"):  # with data it would have to run
        rewrite_weights(source, [{"x": normal(2, 16, 128)}], recipe, output=output, options=cuda)


def test_a_poor_result_with_data_says_what_gives_more_and_has_not_been_asked_for(tmp_path: Path) -> None:
    source, feeds = save(layers(), tmp_path / "m.onnx"), feeds_of_layers(12)

    def told(recipe: Recipe, data: object = feeds) -> tuple[float, list[str]]:
        made = rewrite_weights(source, data, recipe, output=tmp_path / "q.onnx", options=Options())
        worst = made.verification.worst
        return worst[1].sqnr if worst else np.nan, [note for note in made.notes if note.startswith("output '")]

    before, (said,) = told(Recipe())
    learned, more = "method=gptq learns the rounding from the data", "avg_bits=4.5 in place of bits gives more"
    assert before < 25 and learned in said and more in said
    after, others = told(Recipe(method="gptq"))
    assert after > before and not any(learned in other for other in others)
    (budget,) = told(Recipe(avg_bits=4.5))[1]
    assert learned in budget and more not in budget
    assert not told(Recipe(), None)[1], "without data nothing is known, and nothing can be learned"
    assert not told(Recipe(bits=8))[1]

"""Some weights in other bits than the rest: a head in 8, say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import OptionError
from onnxq.cli import main
from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from tests.installed import needs
from tests.models import build, normal
from tests.running import optimized
from tests.weight_only.layers import run, save
from tests.weight_only.test_experts import _FEEDS, _experts


def _layers() -> onnx.ModelProto:
    return build(
        """(int64[N] tokens) => (float[N, 40] h, float[N, 50] y) {
            e = Gather (table, tokens)
            [body] h = MatMul (e, a)
            [relu] r = Relu (h)
            [head] y = Gemm <transB = 1> (r, b, c)
        }""",
        table=normal(50, 64, scale=1.0),
        a=normal(64, 40, seed=1),
        b=normal(50, 40, seed=2),
        c=normal(50, seed=3, scale=1.0),
    )


def _feeds(samples: int = 4) -> list[dict[str, np.ndarray]]:
    return [{"tokens": np.random.default_rng(seed).integers(0, 50, 32)} for seed in range(samples)]


@pytest.mark.parametrize("pattern", ["head", "b", "Gemm"])
@pytest.mark.parametrize("method", ["rtn", "gptq"])
@pytest.mark.parametrize("format", ["qdq", "matmulnbits"])
def test_some_weights_take_other_bits(format: str, method: str, pattern: str, tmp_path: Path) -> None:
    source, plain, wide = save(_layers(), tmp_path / "m.onnx"), tmp_path / "plain.onnx", tmp_path / "wide.onnx"
    quantize_weights(source, plain, format=format, method=method, data=_feeds())
    override = {pattern: {"weight_bits": 8}}
    result = quantize_weights(source, wide, format=format, method=method, data=_feeds(), override=override)
    assert "1 weight takes 8 bits, as asked" in result.notes
    made = onnx.load(wide)
    if format == "qdq":
        kinds = {t.name: t.data_type for t in made.graph.initializer}
        assert (kinds["a_quantized"], kinds["b_quantized"]) == (onnx.TensorProto.INT4, onnx.TensorProto.INT8)
    else:
        bits = [a.i for n in made.graph.node for a in n.attribute if n.op_type == "MatMulNBits" and a.name == "bits"]
        assert bits == [4, 8]
    (feeds,) = _feeds(1)
    want, before, after = run(source, feeds), run(plain, feeds), run(wide, feeds)
    assert np.array_equal(before["h"], after["h"])
    assert sqnr(want["y"], after["y"]) > sqnr(want["y"], before["y"]) + 1


@needs("onnx", "1.20")
@needs("onnxruntime", "1.26")
@pytest.mark.parametrize("asked", [{"override": "head=weight_bits=2"}, {"bits": 2, "override": "body=weight_bits=4"}])
def test_two_bits_of_the_standard_format_are_of_opset_25(asked: dict[str, Any], tmp_path: Path) -> None:
    """onnxruntime multiplies with them as packed, as it does with those of 4 bits."""
    model = build(
        "(float[N, 64] x) => (float[N, 32] y) { [body] h = MatMul (x, a) \n [head] y = Gemm <transB = 1> (h, b, c) }",
        a=normal(64, 64),
        b=normal(32, 64, seed=1),
        c=normal(32, seed=2),
    )
    source, output = save(model, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    quantize_weights(source, output, symmetric=False, **asked)
    made = onnx.load(output)
    assert made.opset_import[0].version == 25
    kinds = {t.name: onnx.TensorProto.DataType.Name(t.data_type) for t in made.graph.initializer}
    assert (kinds["a_quantized"], kinds["b_quantized"]) == ("UINT4", "UINT2")
    operators = Counter(node.op_type for node in optimized(output, tmp_path).graph.node)
    assert operators["MatMulNBits"] == 2
    x = {"x": normal(8, 64, seed=3, scale=1.0)}
    assert sqnr(run(source, x)["y"], run(output, x)["y"]) > 5


def test_an_onnx_without_two_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.weight_only.recipe._onnx_has_two_bits", lambda: False)
    source = save(_layers(), tmp_path / "m.onnx")
    refused: list[dict[str, Any]] = [{"bits": 2}, {"override": "head=weight_bits=2"}]
    for asked in refused:
        with pytest.raises(OptionError, match=r"the onnx installed has no integers of 2 bits. Install onnx 1.20"):
            quantize_weights(source, tmp_path / "q.onnx", **asked)
    with pytest.raises(OptionError, match=r"3 is not from 4 to 8. Install onnx 1.20 or later, or write .*=matmulnbits"):
        quantize_weights(source, tmp_path / "q.onnx", avg_bits=3)
    with pytest.raises(OptionError, match=r"Blocks of 32, 64, 128 have 2 bits as well. Install onnx 1.20"):
        quantize_weights(source, tmp_path / "q.onnx", avg_bits=3, block=16)


def test_a_weight_of_two_readers_in_different_bits(tmp_path: Path) -> None:
    model = build(
        "(float[N, 64] x) => (float[N, 32] y, float[N, 32] z) { [f] y = MatMul (x, w) [s] z = MatMul (x, w) }",
        w=normal(64, 32),
    )
    source, x = save(model, tmp_path / "m.onnx"), {"x": normal(8, 64, seed=1, scale=1.0)}
    quantize_weights(source, tmp_path / "q.onnx", override="s=weight_bits=8")
    want, got = run(source, x), run(tmp_path / "q.onnx", x)
    assert sqnr(want["y"], got["y"]) < 30 < sqnr(want["z"], got["z"])


@needs("onnxruntime", "1.23.2")
def test_experts_of_other_bits_stay_whole(tmp_path: Path) -> None:
    """QMoE has one width for both weights of an expert."""
    source = save(_experts(), tmp_path / "m.onnx")
    result = quantize_weights(source, tmp_path / "q.onnx", format="matmulnbits", override="second=weight_bits=8")
    assert "MoE" in {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert not any("QMoE" in note for note in result.notes)
    assert sqnr(run(source, _FEEDS)["y"], run(tmp_path / "q.onnx", _FEEDS)["y"]) > 12


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("head=weight_bits=3", "override 'head': 3 is not one of 2, 4, 8"),
        ("head=bits=8", "override 'head': act_bits has no effect"),
        ("head=range=minmax", "override 'head': range has no effect"),
        ("nothing=weight_bits=8", "'nothing' matches no"),
        ("relu=weight_bits=8", "override 'relu': it names no weight that is stored in blocks"),
    ],
)
def test_what_weights_in_blocks_do_not_have_is_refused(override: str, message: str, tmp_path: Path) -> None:
    source = save(_layers(), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=message):
        quantize_weights(source, tmp_path / "q.onnx", override=override)
    assert not (tmp_path / "q.onnx").exists()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(_layers(), tmp_path / "m.onnx")
    flags = ["--algorithm", "weight_only", "--override", "head=weight_bits=8", "--override", "body=float"]
    assert main(["quantize", str(source), *flags, "-o", str(tmp_path / "q.onnx")]) == 0
    out = capsys.readouterr().out
    assert "1 weight takes 8 bits, as asked" in out and "1 MatMul: excluded by 'body'" in out

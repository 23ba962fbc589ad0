"""Weights of 2 bits in the standard format: those that onnxruntime multiplies with rightly, and the others in 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from onnxq import OptionError, Options
from onnxq.cli import main
from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from onnxq.weight_only.pipeline import rewrite_weights
from onnxq.weight_only.recipe import Recipe
from tests.installed import needs
from tests.models import build, normal
from tests.weight_only.layers import run, save

_STANDARD = needs("onnx", "1.20")
_RUNS = needs("onnxruntime", "1.26")
_X = normal(6, 128, seed=9, scale=1.0)


def _model(outputs: int = 10) -> onnx.ModelProto:
    """A ``body`` of 128 outputs, and a ``head`` of others."""
    return build(
        f"""(float[N, 128] x) => (float[N, {outputs}] y) {{
            [body] h = MatMul (x, a)
            [head] y = Gemm <transB = 1> (h, b, c)
        }}""",
        a=normal(128, 128),
        b=normal(outputs, 128, seed=1),
        c=normal(outputs, seed=2),
    )


def _unpacked(model: onnx.ModelProto, base: str) -> NDArray[np.float64]:
    """A weight of the result, (inputs, outputs), from its integers, scales and zero points in exact arithmetic."""
    (node,) = (n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == f"{base}_quantized")
    size = onnx.helper.get_node_attr_value(node, "block_size")
    held = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    codes, *others = (held[name] for name in node.input)
    scale, *zero = (np.repeat(part, size, axis=0)[: len(codes)] for part in others)
    return np.asarray((codes - (zero[0] if zero else 0)) * scale)


def _kinds(model: onnx.ModelProto) -> dict[str, str]:
    """Weight → type of its integers, signed or not."""
    kind = onnx.TensorProto.DataType.Name
    ending = "_quantized"
    return {
        t.name.removesuffix(ending): kind(t.data_type).removeprefix("U")
        for t in model.graph.initializer
        if t.name.endswith(ending)
    }


_ASKED: list[dict[str, Any]] = [{"bits": 2}, {"override": "*=weight_bits=2"}, {"avg_bits": 2}, {"avg_bits": 2.2}]


@_STANDARD
@_RUNS
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("asked", _ASKED, ids=str)
def test_outputs_that_do_not_fill_bytes_take_4_bits(asked: dict[str, Any], symmetric: bool, tmp_path: Path) -> None:
    source, output = save(_model(), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    result = quantize_weights(source, output, symmetric=symmetric, **asked)
    made = onnx.load(output)
    a, b, c = _unpacked(made, "a"), _unpacked(made, "b"), normal(10, seed=2)
    got = run(output, {"x": _X}, optimize=True)["y"]
    assert sqnr(_X.astype(np.float64) @ a @ b + c, got) > 25, "activations are rounded to 8 bits twice"
    assert _kinds(made) == {"a": "INT2", "b": "INT4"}
    assert [note for note in result.notes if "wrongly" in note] == [
        "1 weight takes 4 bits and not 2, which onnxruntime multiplies with wrongly in the format qdq where outputs "
        "are no multiple of 4: head (10). format=matmulnbits has 2 bits there"
    ]
    if "avg_bits" in asked:
        over = " and not 2, since they have no fewer" if asked["avg_bits"] == 2 else ""
        assert f"2 weights, 1 in 2 bits, 1 in 4 bits: 2.14 on average{over}, by" in result.notes[0]


@_STANDARD
@needs("onnxruntime", "1.24")
@pytest.mark.parametrize("asked", [{"bits": 2}, {"override": "head=weight_bits=2"}, {"avg_bits": 2}], ids=str)
@pytest.mark.parametrize(("outputs", "opset"), [(10, 21), (12, 25)])
def test_the_opset_is_raised_for_what_is_stored_in_2_bits(
    outputs: int, opset: int, asked: dict[str, Any], tmp_path: Path
) -> None:
    """Runtimes that know opset 21 alone read a result whose weights all take 4 bits."""
    model = build(
        f"(float[N, 128] x) => (float[N, {outputs}] y) {{ [head] y = MatMul (x, b) }}", b=normal(128, outputs)
    )
    result = quantize_weights(save(model, tmp_path / "m.onnx"), tmp_path / "q.onnx", **asked)
    made = onnx.load(tmp_path / "q.onnx")
    assert made.opset_import[0].version == opset
    assert _kinds(made) == {"b": "INT4" if opset == 21 else "INT2"}
    assert any("and not 2, which onnxruntime multiplies with wrongly" in note for note in result.notes) == (opset == 21)


@_RUNS
@pytest.mark.parametrize(
    ("outputs", "options"),
    [
        pytest.param(12, {"bits": 2}, marks=_STANDARD),
        pytest.param(12, {"avg_bits": 2}, marks=_STANDARD),
        (10, {"bits": 2, "format": "matmulnbits"}),
        (10, {"avg_bits": 2, "format": "matmulnbits"}),
        (10, {"bits": 4}),
    ],
    ids=str,
)
def test_others_take_what_was_asked(outputs: int, options: dict[str, Any], tmp_path: Path) -> None:
    source, output = save(_model(outputs), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    result = quantize_weights(source, output, **options)
    assert not any("wrongly" in note or "and not" in note for note in result.notes)
    made, bits = onnx.load(output), options.get("bits", 2)
    if "format" in options:
        taken = [a.i for node in made.graph.node for a in node.attribute if a.name == "bits"]
        assert taken == [bits, bits]
    else:
        assert _kinds(made) == {"a": f"INT{bits}", "b": f"INT{bits}"}
    plain, fused = (run(output, {"x": _X}, optimize=optimize)["y"] for optimize in (False, True))
    assert sqnr(plain, fused) > 25


@_STANDARD
@pytest.mark.parametrize(
    ("flags", "lacking", "least"),
    [
        (["weight_only:bits=2", "--opset", "21"], "21 has no integers of 2 bits", 25),
        (["weight_only", "--override", "body=weight_bits=2", "--opset", "23"], "23 has no integers of 2 bits", 25),
        (["weight_only", "--opset", "19"], "19 has no DequantizeLinear with blocks", 21),
    ],
)
def test_an_older_opset_asked_for(
    flags: list[str], lacking: str, least: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = save(_model(), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    assert main(["quantize", str(source), "-o", str(output), "--algorithm", *flags]) == 1
    said = " ".join(capsys.readouterr().err.split())
    hint = "Leave --opset out, or write weight_only:format=matmulnbits"
    assert f"opset: {lacking}: at least {least} is needed. {hint}" in said and not output.exists()
    with pytest.raises(OptionError, match="at least 25 is needed"):
        rewrite_weights(source, None, Recipe(2), output=output, options=Options(opset=24))

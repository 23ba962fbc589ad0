"""Models as pnnx takes them: what is written otherwise computes the same, and what is not is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.errors import VerificationError
from onnxq.runtimes.child import examine, missing
from onnxq.runtimes.ncnn import RUNTIME
from tests.contract import infer
from tests.models import build, normal

WHY = missing(RUNTIME)
IN_NCNN = [pytest.mark.runtime, pytest.mark.skipif(WHY is not None, reason=f"no ncnn: {WHY}")]

Feeds = list[dict[str, Any]]


def _i(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def told(model: onnx.ModelProto) -> list[str]:
    return [f.what for f in onnxq.check(model, backend="ncnn") if f.level == "warning" and f.where.startswith("node")]


def tokens(axis: str, *, table: tuple[int, ...] = (20, 8), shape: str = "1, 12") -> onnx.ModelProto:
    """Rows of a table."""
    rank = len(table) + shape.count(",") + (1 if shape else 0) - 1
    sizes, indices = ", ".join("abcdef"[:rank]), f"[{shape}]" if shape else ""
    text = f"(int64{indices} i) => (float[{sizes}] y) {{ e = Gather {axis} (table, i) y = Tanh (e) }}"
    return build(text, table=normal(*table))


def ids(*shape: int) -> Feeds:
    return [{"i": np.random.default_rng(k).integers(0, 20, shape)} for k in range(3)]


def folded(*, behind: str = "[0, 1, 3, 5, 2, 4]") -> onnx.ModelProto:
    """A PixelUnshuffle as torch exports it, in steps."""
    return build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 16, 4, 4] y) {{
            a = Sigmoid (x)
            b = Unsqueeze (a, three)
            c = Reshape (b, rows)
            d = Reshape (c, both)
            e = Transpose <perm = {behind}> (d)
            f = Reshape (e, pieces)
            g = Squeeze (f, two)
            y = Neg (g)
        }}""",
        three=_i(3),
        rows=_i(0, 0, -1, 2, 0),
        both=_i(0, 0, 0, 0, -1, 2),
        pieces=_i(0, -1, 1, 1, 0, 0),
        two=_i(2, 3),
    )


def windows() -> onnx.ModelProto:
    """Windows of 4 by 4 of a picture, as transformers of windows take them apart."""
    return build(
        """(float[1, 8, 8, 4] x) => (float[4, 16, 4] y) {
            a = Sigmoid (x)
            b = Reshape (a, six)
            c = Transpose <perm = [0, 1, 3, 2, 4, 5]> (b)
            d = Reshape (c, rows)
            y = Neg (d)
        }""",
        six=_i(1, 2, 4, 2, 4, 4),
        rows=_i(4, 16, 4),
    )


def floats(*shape: int) -> Feeds:
    return [{"x": normal(*shape, seed=k)} for k in range(3)]


FORMS: dict[str, tuple[onnx.ModelProto, Feeds]] = {
    "rows of a table": (tokens(""), ids(1, 12)),
    "rows of a table along axis 0": (tokens("<axis = 0>"), ids(1, 12)),
    "rows of a table along axis -2": (tokens("<axis = -2>"), ids(1, 12)),
    "PixelUnshuffle": (folded(), floats(1, 4, 8, 8)),
    "windows": (windows(), floats(1, 8, 8, 4)),
}
"""Models that ncnn runs once they are written for it."""


@pytest.mark.parametrize("name", FORMS)
def test_nothing_is_told_of_what_is_written_for_it_and_the_numbers_are_the_same(name: str) -> None:
    model, feeds = FORMS[name]
    assert told(model) == []
    made = onnxq.quantize(model, feeds, backend="ncnn").rendered()
    for want, got in zip(*(infer(m, feeds, optimize=False)["y"] for m in (model, ir.to_proto(made))), strict=True):
        np.testing.assert_array_equal(got, want)


def test_no_tensor_between_views_has_more_axes_than_ncnn() -> None:
    made = onnxq.quantize(folded(), floats(1, 4, 8, 8), backend="ncnn").model
    nodes = [node for node in made.graph if node.op_type != "Constant"]
    assert [node.op_type for node in nodes] == ["Sigmoid", "Reshape", "Transpose", "Reshape", "Neg"]
    made = onnxq.quantize(windows(), floats(1, 8, 8, 4), backend="ncnn").model
    assert max(len(v.shape) for node in made.graph for v in node.outputs if v.shape is not None) == 4


@pytest.mark.parametrize("front", ["Sigmoid (x)", "Conv (x, w)"])
def test_five_axes_are_four_and_the_batch(front: str) -> None:
    constants: dict[str, Any] = {"w": normal(4, 4, 1, 1)} if "w" in front else {}
    model = build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{
            a = {front}
            b = Reshape (a, five)
            c = Tanh (b)
            y = Reshape (c, four)
        }}""",
        five=_i(1, 4, 4, 2, 8),
        four=_i(1, 4, 8, 8),
        **constants,
    )
    assert any("cannot tell the batch" in what for what in told(model)) == ("w" not in front)


@pytest.mark.parametrize(
    ("model", "feeds"),
    [
        (tokens("", table=(20, 4, 3)), ids(1, 12)),
        (tokens("", table=(20,)), ids(1, 12)),
        (tokens("", shape=""), ids()),
    ],
)
@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=IN_NCNN)])
def test_a_gather_of_what_is_no_table_of_rows(model: onnx.ModelProto, feeds: Feeds, runs: bool, tmp_path: Path) -> None:
    if not runs:
        assert any("a constant that is no table of rows" in what for what in told(model))
        return
    path = onnxq.quantize(model, feeds, backend="ncnn", output=tmp_path / "m.onnx").files[0]
    want = infer(model, feeds, optimize=False)["y"][0]
    try:
        got = examine(RUNTIME, path, feeds).outputs[0]["y"]
    except VerificationError:
        return
    assert got.shape != want.shape


def steps(front: str, *, width: int = 2) -> onnx.ModelProto:
    """A recurrent layer whose steps come first, behind something."""
    return build(
        f"""(float[12, {width}, 8] x) => (float[12, {width}, 6] y) {{
            {front}
            h = LSTM <hidden_size = 6> (q, wx, r)
            y = Squeeze (h, one)
        }}""",
        wx=normal(1, 24, 8),
        r=normal(1, 24, 6),
        one=_i(1),
        k=normal(8, 8),
        flat=_i(12 * width, 8),
        deep=_i(12, width, 8),
    )


RIGHT = {
    "an input": "q = Tanh (x)",
    "parts of inputs": "a = Tanh (x) q = Concat <axis = 0> (a, x)",
    "a Transpose": "a = Transpose <perm = [1, 0, 2]> (x) b = MatMul (a, k) q = Transpose <perm = [1, 0, 2]> (b)",
    "a Reshape": "a = Reshape (x, flat) b = Gemm (a, k) q = Reshape (b, deep)",
}
WRONG = {
    "a MatMul": "q = MatMul (x, k)",
    "a MatMul and Relu": "a = MatMul (x, k) q = Relu (a)",
    "arithmetic": "a = Tanh (x) q = Add (a, x)",
    "a function": "q = Exp (x)",
}


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("front", [*RIGHT, *WRONG])
def test_steps_that_pnnx_takes_for_samples_are_told(front: str, width: int) -> None:
    found = told(steps({**RIGHT, **WRONG}[front], width=width))
    assert any("LSTM the steps of which are the first axis" in what for what in found) == (front in WRONG)


def _run(model: onnx.ModelProto, feeds: Feeds, folder: Path) -> list[tuple[Any, Any]]:
    path = onnxq.quantize(model, feeds, backend="ncnn", output=folder / "m.onnx").files[0]
    outputs = [sample["y"] for sample in examine(RUNTIME, path, feeds).outputs]
    return list(zip(infer(onnx.load(path), feeds, optimize=False)["y"], outputs, strict=True))


@pytest.mark.runtime
@pytest.mark.skipif(WHY is not None, reason=f"no ncnn: {WHY}")
@pytest.mark.parametrize("name", FORMS)
def test_ncnn_runs_what_is_written_for_it(name: str, tmp_path: Path) -> None:
    for want, got in _run(*FORMS[name], tmp_path):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.runtime
@pytest.mark.skipif(WHY is not None, reason=f"no ncnn: {WHY}")
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("front", [*RIGHT, *WRONG])
def test_steps_in_ncnn(front: str, width: int, tmp_path: Path) -> None:
    pairs = _run(steps({**RIGHT, **WRONG}[front], width=width), floats(12, width, 8), tmp_path)
    right = all(want.shape == got.shape and np.allclose(got, want, atol=1e-3) for want, got in pairs)
    assert right == (front in RIGHT)

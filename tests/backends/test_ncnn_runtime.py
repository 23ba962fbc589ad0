"""ncnn itself: pnnx converts, the layers of the table are int8, and the outputs are those of the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import VerificationError
from onnxq.runtimes.child import examine, missing
from onnxq.runtimes.ncnn import RUNTIME
from tests.backends.test_ncnn_lacks import (
    ABSENT_FORMS,
    ONE_AXIS,
    WRONG_FORMS,
    model_with,
    of_doubles,
    picked,
    reduction,
    steps_of_a_line,
)
from tests.contract import infer
from tests.models import build, f32, feeds_for, normal
from tests.targets import GRAPHS

WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(WHY is not None, reason=f"no ncnn: {WHY}")]

LAYERS: dict[str, tuple[str, dict[str, Any], int]] = {
    "every activation between convolutions": (
        """(float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y) {
            [a] a1 = Conv (x, w1, b)
            a2 = Relu (a1)
            [b] b1 = Conv <group = 8, pads = [1, 1, 1, 1]> (a2, w2)
            b2 = LeakyRelu <alpha = 0.2> (b1)
            [c] c1 = Conv (b2, w3)
            c2 = Clip (c1, low, high)
            [d] d1 = Conv (c2, w3)
            d2 = Sigmoid (d1)
            [e] e1 = Conv <group = 2> (d2, w4)
            e2 = HardSwish (e1)
            [f] y = Conv (e2, w3)
        }""",
        {
            "w1": normal(8, 4, 1, 1),
            "b": normal(8, seed=1),
            "w2": normal(8, 1, 3, 3, seed=2),
            "w3": normal(8, 8, 1, 1, seed=3),
            "w4": normal(8, 4, 1, 1, seed=4),
            "low": f32(-0.5),
            "high": f32(0.5),
        },
        6,
    ),
    "strides, dilations and padding on one side": (
        """(float[1, 4, 9, 9] x) => (float[1, 8, 5, 4] y, float[1, 8, 5, 5] z) {
            [a] y = Conv <strides = [2, 2], pads = [1, 0, 1, 0]> (x, w)
            [b] z = Conv <dilations = [2, 2]> (x, w)
        }""",
        {"w": normal(8, 4, 3, 3)},
        2,
    ),
    "weights that two layers share": (
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 4, 4] z) {
            [a] a1 = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            r = Relu (a1)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            [b] z = Conv <pads = [1, 1, 1, 1]> (p, w, b)
            [c] y = Conv <pads = [1, 1, 1, 1]> (r, w, b)
        }""",
        {"w": normal(4, 4, 3, 3), "b": normal(4)},
        3,
    ),
    "two samples at once": (
        "(float[2, 4, 6, 6] x) => (float[2, 8, 4, 4] y) { [a] y = Conv (x, w) }",
        {"w": normal(8, 4, 3, 3)},
        1,
    ),
    "fully connected": (
        """(float[N, 4, 3, 3] x) => (float[N, 3] y) {
            f = Flatten (x)
            [a] a1 = Gemm (f, w1, b)
            r = Relu (a1)
            [b] b1 = Gemm <transB = 1> (r, w2)
            [c] y = MatMul (b1, w3)
        }""",
        {"w1": normal(36, 5), "b": normal(5), "w2": normal(4, 5, seed=1), "w3": normal(4, 3, seed=2)},
        3,
    ),
}
"""Model, weights, number of int8 layers."""


def agrees(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Hold ncnn's outputs to the simulation's; the layers that ncnn computes in integers."""
    feeds = feeds_for(model, samples=3, N=1)
    q = onnxq.quantize(model, feeds, backend="ncnn", output=folder / "q.onnx", options=Options(placement="all"))
    seen = examine(RUNTIME, folder / "q.onnx", feeds, packing=False)
    assert seen.remarks == ()
    assert {line.split()[1] for line in seen.integer} == set(q.plan.quantized)
    for output, arrays in infer(ir.to_proto(q.rendered()), feeds, optimize=False).items():
        for want, got in zip(arrays, (sample[output] for sample in seen.outputs), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))
    return list(seen.integer)


@pytest.mark.parametrize("name", GRAPHS)
def test_numbers(name: str, tmp_path: Path) -> None:
    agrees(GRAPHS[name](), tmp_path)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, tmp_path: Path) -> None:
    text, weights, count = LAYERS[name]
    assert len(agrees(build(text, **weights), tmp_path)) == count


def test_kernels_of_many_channels(tmp_path: Path) -> None:
    """Those that ncnn packs: the depthwise one multiplies by an approximate reciprocal, and only that differs."""
    model = build(
        """(float[1, 32, 10, 10] x) => (float[1, 32, 8, 8] y, float[1, 48, 10, 10] z) {
            [a] y = Conv <group = 32> (x, w1)
            [b] z = Conv (x, w2)
        }""",
        w1=normal(32, 1, 3, 3),
        w2=normal(48, 32, 1, 1),
    )
    feeds = feeds_for(model, samples=2)
    q = onnxq.quantize(model, feeds, backend="ncnn", output=tmp_path / "q.onnx")
    reference = infer(ir.to_proto(q.rendered()), feeds, optimize=False)
    for packing in (False, True):
        seen = examine(RUNTIME, tmp_path / "q.onnx", feeds, packing=packing)
        for name, arrays in reference.items():
            for want, got in zip(arrays, (sample[name] for sample in seen.outputs), strict=True):
                atol = (5e-4 if packing and name == "y" else 1e-6) * float(np.abs(want).max())
                np.testing.assert_allclose(got, want, rtol=0, atol=atol)


def test_what_is_left_in_float_has_no_scales_in_ncnn(tmp_path: Path) -> None:
    """Lines of the table that are no layer with scales, as ncnn2int8 passes over them, are remarked."""
    for text, weights in (
        ("(float[1, 4, 16] x) => (float[1, 8, 14] y) { [a] y = Conv (x, w) }", normal(8, 4, 3)),
        ("(float[1, 4, 6, 6, 6] x) => (float[1, 8, 4, 4, 4] y) { [a] y = Conv (x, w) }", normal(8, 4, 3, 3, 3)),
        ("(float[4, 8] x) => (float[4, 3] y) { [a] y = Gemm (x, w) }", normal(8, 3)),
        ("(float[1, 5, 8] x) => (float[1, 5, 3] y) { [a] y = MatMul (x, w) }", normal(8, 3)),
    ):
        model = build(text, w=weights)
        assert not onnxq.quantize(model, feeds_for(model), backend="ncnn").plan.quantized
        onnx.save(model, tmp_path / "m.onnx")
        scales = " ".join(["100.0"] * (3 if weights.shape[-1:] == (3,) and weights.ndim == 2 else 8))
        (tmp_path / "m.table").write_text(f"a_param_0 {scales}\na 100.0\n")
        seen = examine(RUNTIME, tmp_path / "m.onnx", feeds_for(model, samples=1))
        assert seen.integer == () and [line.split(":")[0] for line in seen.remarks] == ["a"]


def test_the_int8_model(tmp_path: Path) -> None:
    """Its files are a quarter of the float ones, integers stay integers between convolutions, and ncnn loads them."""
    model = GRAPHS["residual"]()
    feeds = feeds_for(model, samples=2)
    made = onnxq.quantize(model, feeds, backend="ncnn", output=tmp_path / "q.onnx", options=Options(format="int8"))
    assert [file.name for file in made.files] == ["q.onnx", "q.table", "q.param", "q.bin"]
    assert sorted(tmp_path.iterdir()) == sorted(made.files)
    assert made.verification is not None
    assert made.verification.quantized_bytes == sum(file.stat().st_size for file in made.files[2:]), "what ncnn loads"
    lines = {line.split()[0] + line.split()[1][-1]: line for line in made.files[2].read_text().splitlines()[2:]}
    assert " 8=101" in lines["ConvolutionDepthWise0"], "the convolution behind it reads its integers"
    assert " 8=2" in lines["Convolution0"] and " 8=2" in lines["Convolution5"], "an Add reads their numbers too"
    weights = 8 * 3 * 9 + 8 * 9 + 64 + 80
    rest = 4 * (4 + (8 + 8 + 10) + (8 + 8 + 8 + 10) + 4 + 1)
    assert made.files[3].stat().st_size == weights + rest, "tags, biases, scales of weights, of data, and between"
    agreement = onnxq.verify(tmp_path / "q.onnx", feeds, backend="ncnn")
    assert agreement.ok and agreement.worst is not None and agreement.worst[1].sqnr > 100


def test_a_layer_that_ncnn_lacks_is_named(tmp_path: Path) -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 8, 6, 6] y, float[1, 8, 6, 6] z) {
            y = Conv (x, w)
            z = Hardmax (y)
        }""",
        w=normal(8, 4, 3, 3),
    )
    feeds = feeds_for(model, samples=1)
    q = onnxq.quantize(model, feeds, backend="ncnn", output=tmp_path / "q.onnx")
    assert q.plan.quantized
    with pytest.raises(VerificationError, match="needs layers that ncnn lacks: Hardmax"):
        examine(RUNTIME, tmp_path / "q.onnx", feeds)


def test_a_step_off_would_be_seen(tmp_path: Path) -> None:
    """Another scale in the table gives other outputs: the runtime reads it."""
    model = GRAPHS["residual"]()
    feeds = feeds_for(model, samples=1)
    onnxq.quantize(model, feeds, backend="ncnn", output=tmp_path / "q.onnx")
    (before,) = examine(RUNTIME, tmp_path / "q.onnx", feeds).outputs
    table = tmp_path / "q.table"
    lines = table.read_text().splitlines()
    lines[-1] = f"{lines[-1].split()[0]} {float(lines[-1].split()[1]) * 1.5}"
    table.write_text("\n".join(lines) + "\n")
    (after,) = examine(RUNTIME, tmp_path / "q.onnx", feeds).outputs
    assert np.abs(before["y"] - after["y"]).max() > 1e-3


@pytest.mark.parametrize(("source", "axis"), [("table", 1), ("x", 0)])
def test_a_gather_at_computed_indices_is_refused(source: str, axis: int, tmp_path: Path) -> None:
    model, path = picked(source, axis), tmp_path / "m.onnx"
    onnx.save(model, path)
    path.with_suffix(".table").write_text("")
    with pytest.raises(VerificationError, match=r"lacks: Gather|pnnx ends with code"):
        examine(
            RUNTIME, path, [{"i": np.array([2, 0]), "x": normal(4, 4)} if source == "x" else {"i": np.array([2, 0])}]
        )


@pytest.mark.parametrize("form", ABSENT_FORMS)
def test_what_check_says_that_ncnn_lacks(form: str, tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="ncnn"):
        in_float(model_with(form), tmp_path)


def test_what_check_says_of_inputs_of_doubles(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="ncnn"):
        in_float(of_doubles(), tmp_path)


@pytest.mark.parametrize("form", WRONG_FORMS)
def test_what_check_says_that_pnnx_converts_wrongly(form: str, tmp_path: Path) -> None:
    """Without a word; another version may do better."""
    model = model_with(form)
    want, got = infer(model, feeds_for(model, samples=1), optimize=False)["y"][0], in_float(model, tmp_path)
    assert want.shape != got.shape or not np.allclose(want, got, atol=1e-2)


def test_a_recurrent_layer_behind_one_sample_is_right(tmp_path: Path) -> None:
    model = steps_of_a_line()
    want = infer(model, feeds_for(model, samples=1), optimize=False)["y"][0]
    np.testing.assert_allclose(want, in_float(model, tmp_path), atol=1e-4)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("op", ONE_AXIS)
def test_reductions_of_one_axis_are_right_as_they_are_written(
    op: str, axis: int, keepdims: int, tmp_path: Path
) -> None:
    model = reduction(op, axis, keepdims)
    feeds = feeds_for(model, samples=1)
    onnxq.quantize(model, feeds, backend="ncnn", output=tmp_path / "m.onnx", options=Options(exclude=("Conv",)))
    (seen,) = examine(RUNTIME, tmp_path / "m.onnx", feeds).outputs
    np.testing.assert_allclose(seen["y"], infer(model, feeds, optimize=False)["y"][0], rtol=1e-4, atol=1e-4)
    if op == "ReduceMean":
        assert in_float(model, tmp_path).shape != seen["y"].shape, "pnnx sees a single axis by now"


@pytest.mark.parametrize(
    "text", ["y = LayerNormalization (a, s)", "y = Pad (a, p)"], ids=["LayerNormalization without a bias", "Pad"]
)
def test_what_pnnx_wants_written_out(text: str, tmp_path: Path) -> None:
    model = build(
        f"(float[1, 3, 8, 8] x) => (float[b, c, d, e] y) {{ a = Conv (x, w) {text} }}",
        w=normal(4, 3, 1, 1),
        s=normal(8),
        p=np.array([0, 0, 1, 1, 0, 0, 1, 2]),
    )
    feeds = feeds_for(model, samples=1)
    with pytest.raises(VerificationError, match="needs layers that ncnn lacks"):
        in_float(model, tmp_path)
    onnxq.quantize(model, feeds, backend="ncnn", output=tmp_path / "m.onnx", options=Options(exclude=("Conv",)))
    (seen,) = examine(RUNTIME, tmp_path / "m.onnx", feeds).outputs
    np.testing.assert_allclose(seen["y"], infer(model, feeds, optimize=False)["y"][0], rtol=1e-4, atol=1e-4)


def in_float(model: onnx.ModelProto, folder: Path) -> Any:
    """The first output of a float model in ncnn, of the first sample."""
    onnx.save(model, folder / "float.onnx")
    (folder / "float.table").write_text("")
    (seen,) = examine(RUNTIME, folder / "float.onnx", feeds_for(model, samples=1)).outputs
    return seen["y"]

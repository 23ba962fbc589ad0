"""What OpenVINO makes of the results: which layers compute in integers, and how the numbers agree with onnxruntime."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import onnxq
from onnxq import Options
from onnxq.errors import VerificationError
from onnxq.runtimes.child import examine, missing
from onnxq.runtimes.openvino import RUNTIME
from onnxq.runtimes.runtime import Examination
from tests.backends.layers import all_but_ties_agree
from tests.backends.openvino_cases import CASES
from tests.backends.test_openvino import shortcut_v1
from tests.contract import infer
from tests.models import build, feeds_for, images, normal
from tests.planning.test_planner import concat, residual, transformer
from tests.targets import GRAPHS

_WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(_WHY is not None, reason=f"no OpenVINO: {_WHY}")]

FORMATS = ("qdq", "openvino-fake-quantize")
MULTIPLY = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
MODELS = {**GRAPHS, "concat": concat, "joined residual": residual, "transformer": transformer}
MODELS |= {"strided shortcut": shortcut_v1, "padded shortcut": lambda: shortcut_v1(pads=1)}


def floating(seen: Examination) -> list[str]:
    """Multiply-accumulates and Concats that run in float."""
    return [line for line in seen.floating if line.startswith((*MULTIPLY, "Concatenation"))]


def equal_but_for_ties(expected: dict[str, list[NDArray[Any]]], seen: Examination) -> int:
    """The number of samples whose outputs are all equal to 1e-5; the others must be near."""
    equal = 0
    for index, outputs in enumerate(seen.outputs):
        assert all(a[index].shape == outputs[n].shape for n, a in expected.items())
        errors = [np.abs(a[index] - outputs[n]).max() / np.abs(a[index]).max() for n, a in expected.items()]
        assert max(errors) < 0.05
        equal += max(errors) <= 1e-5
    return equal


@pytest.mark.parametrize("form", FORMATS)
def test_sums_of_weights_of_a_reduced_range_are_exact_on_any_processor(form: str, tmp_path: Path) -> None:
    """Half of the numbers are the largest there is, where pairs of products overflow if any do."""
    model = build(
        "(float[1, 16, 10, 10] x) => (float[1, 24, 8, 8] y) { a = Conv (x, w)\n y = Relu (a) }", w=normal(24, 16, 3, 3)
    )
    rng = np.random.default_rng(0)
    feeds = [{"x": np.where(rng.random((1, 16, 10, 10)) < 0.5, 1.0, 0.1).astype(np.float32)} for _ in range(6)]
    path = tmp_path / "m.onnx"
    options = Options(reduce_range=True, format=form)
    quantized = onnxq.quantize(model, feeds, backend="openvino", output=path, options=options)
    seen = examine(RUNTIME, path, feeds)
    assert not floating(seen)
    assert equal_but_for_ties(infer(ir.to_proto(quantized.qdq()), feeds, optimize=False), seen) >= 4


def test_a_bias_that_convolutions_share_is_added_in_their_kernels(tmp_path: Path) -> None:
    """Two levels of a pyramid with one head: besides it only the quantizer of the input is a float kernel."""
    model = build(
        """(float[1, 4, 16, 16] x) => (float[1, 4, 16, 16] y, float[1, 4, 8, 8] z) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            c = Relu (a)
            b = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (c, u)
            d = Relu (b)
            e = Conv <pads = [1, 1, 1, 1]> (c, v, k)
            f = Relu (e)
            y = Conv <pads = [1, 1, 1, 1]> (f, u, n)
            g = Conv <pads = [1, 1, 1, 1]> (d, v, k)
            h = Relu (g)
            z = Conv <pads = [1, 1, 1, 1]> (h, u, n)
        }""",
        w=normal(4, 4, 3, 3),
        u=normal(4, 4, 3, 3, seed=1),
        v=normal(4, 4, 3, 3, seed=2),
        k=normal(4, seed=3),
        n=normal(4, seed=4),
    )
    feeds = feeds_for(model, samples=2)
    onnxq.quantize(model, feeds, backend="openvino", output=tmp_path / "q.onnx")
    seen = examine(RUNTIME, tmp_path / "q.onnx", feeds)
    assert len(seen.integer) == 6 and len(seen.floating) == 1, seen


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_what_it_computes_wrongly_is_written_otherwise(name: str, form: str, tmp_path: Path) -> None:
    """Each of them was refused, of another shape, or off by a quarter and more."""
    model = CASES[name]()
    feeds = feeds_for(model, samples=3)
    options = Options(format=form, placement="all")
    q = onnxq.quantize(model, feeds, backend="openvino", output=tmp_path / "q.onnx", options=options)
    seen = examine(RUNTIME, tmp_path / "q.onnx", feeds)
    assert equal_but_for_ties(infer(ir.to_proto(q.rendered()), feeds, optimize=False), seen) >= 2


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_and_numbers(name: str, form: str, tmp_path: Path) -> None:
    """Equal, but for samples with a code so near to a tie that it goes the other way: they differ by a few steps."""
    model = MODELS[name]()
    feeds = feeds_for(model, samples=4)
    q = onnxq.quantize(model, feeds, backend="openvino", output=tmp_path / "q.onnx", options=Options(format=form))
    seen = examine(RUNTIME, tmp_path / "q.onnx", feeds)
    assert equal_but_for_ties(infer(ir.to_proto(q.rendered()), feeds, optimize=False), seen) >= 2
    grouped = sum(kept.op == "ConvTranspose" for kept in q.plan.kept_float)
    assert len(floating(seen)) == grouped, floating(seen)
    assert any(line.startswith(MULTIPLY) for line in seen.integer)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_agrees(name: str) -> None:
    all_but_ties_agree(MODELS[name](), "openvino", RUNTIME)


def test_weights_may_not_be_unsigned(tmp_path: Path) -> None:
    """Why the table has int8 weights: the same model with uint8 ones runs in float."""
    model = build("(float[1, 8, 8, 8] x) => (float[1, 8, 8, 8] y) { y = Conv (x, w) }", w=normal(8, 8, 1, 1))
    onnxq.quantize(model, images(1, 8, 8, 8), backend="openvino", output=tmp_path / "q.onnx")
    assert not floating(examine(RUNTIME, tmp_path / "q.onnx"))
    written = onnx.load(tmp_path / "q.onnx")
    for tensor in written.graph.initializer:
        if tensor.name in ("w_quantized", "w_zero_point"):
            numbers = onnx.numpy_helper.to_array(tensor).astype(np.int32) + 128
            tensor.CopyFrom(onnx.numpy_helper.from_array(numbers.astype(np.uint8), tensor.name))
    onnx.save(written, tmp_path / "unsigned.onnx")
    assert len(floating(examine(RUNTIME, tmp_path / "unsigned.onnx"))) == 1


def test_a_zero_point_puts_a_transposed_convolution_into_float(tmp_path: Path) -> None:
    model = build(
        "(float[1, 8, 8, 8] x) => (float[1, 8, 16, 16] y) { y = ConvTranspose <strides = [2, 2]> (x, w) }",
        w=normal(8, 8, 2, 2),
    )
    for symmetric, count in ((None, 0), (False, 1)):
        options = Options(symmetric=symmetric)
        onnxq.quantize(model, images(1, 8, 8, 8), backend="openvino", output=tmp_path / "q.onnx", options=options)
        assert len(floating(examine(RUNTIME, tmp_path / "q.onnx"))) == count


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("static", [False, True])
def test_free_dimensions(form: str, static: bool, tmp_path: Path) -> None:
    model = build(
        """(float[N, 4, H, W] x) => (float[N, 4, H, W] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            u = ConvTranspose <strides = [2, 2]> (p, v)
            c = Concat <axis = 1> (u, r)
            y = Conv (c, z)
        }""",
        w=normal(4, 4, 3, 3),
        v=normal(4, 4, 2, 2, seed=1),
        z=normal(4, 8, 1, 1, seed=2),
    )
    feeds = [*images(1, 4, 8, 8, samples=2), *images(2, 4, 12, 16, samples=2)]
    q = onnxq.quantize(model, feeds, backend="openvino", output=tmp_path / "q.onnx", options=Options(format=form))
    seen = examine(RUNTIME, tmp_path / "q.onnx", feeds, static=static)
    assert not floating(seen)
    assert sum(line.startswith(MULTIPLY) for line in seen.integer) == 3
    assert equal_but_for_ties(infer(ir.to_proto(q.rendered()), feeds, optimize=False), seen) >= 2


def test_a_squeeze_that_leaves_an_unknown_number_of_axes_is_refused(tmp_path: Path) -> None:
    net = "(float[N, 8] x) => (float[N] y) {{ a = MatMul (x, w) s = Squeeze (a{axes}) y = Sigmoid (s) }}"
    for axes in ("", ", last"):
        model = build(net.format(axes=axes), w=normal(8, 1), last=np.array([1]))
        feeds = feeds_for(model)
        onnxq.quantize(model, feeds, backend="openvino", output=tmp_path / "q.onnx", options=Options(effort="fast"))
        with pytest.raises(VerificationError, match="dynamic rank") if not axes else nullcontext():
            examine(RUNTIME, tmp_path / "q.onnx", feeds)


def test_verify_reads_both_formats(tmp_path: Path) -> None:
    model = residual()
    feeds = feeds_for(model)
    for form in FORMATS:
        onnxq.quantize(model, feeds, backend="openvino", output=tmp_path / "q.onnx", options=Options(format=form))
        agreement = onnxq.verify(tmp_path / "q.onnx", feeds, backend="openvino")
        assert agreement.runtime is not None and agreement.runtime.startswith("OpenVINO 20")
        assert agreement.format == (form if form != "qdq" else "onnx")
        assert agreement.worst is not None and agreement.worst[1].sqnr > 40


def test_what_it_cannot_read_is_said(tmp_path: Path) -> None:
    node = helper.make_node("Unheard", ["x"], ["y"], domain="nowhere")
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy"]
    graph = helper.make_graph([node], "g", info[:1], info[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(VerificationError, match="does not take the artifact"):
        examine(RUNTIME, tmp_path / "m.onnx")

"""TVM as an independent interpreter of QDQ models: the numbers of onnxruntime without optimizations."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.tvm import ABSENT
from onnxq.errors import VerificationError
from onnxq.runtimes.child import examine, interpreter, missing
from onnxq.runtimes.tvm import RUNTIME
from tests.backends.layers import all_but_ties_agree
from tests.backends.test_tvm import RESIZED_ALIKE, RESIZED_OTHERWISE, refused, resizing
from tests.contract import infer, sqnr
from tests.models import build, feeds_for, images, normal
from tests.targets import GRAPHS

_WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(_WHY is not None, reason=f"no TVM: {_WHY}")]


@pytest.mark.parametrize(("weights", "bits"), [(8, 8), (8, 16), (16, 16)])
@pytest.mark.parametrize("name", GRAPHS)
def test_numbers(name: str, weights: int, bits: int, tmp_path: Path) -> None:
    model = GRAPHS[name]()
    feeds = feeds_for(model, samples=2)
    options = Options(weight_bits=weights, act_bits=bits)
    q = onnxq.quantize(model, feeds, backend="tvm", output=tmp_path / "q.onnx", options=options)
    seen = examine(RUNTIME, tmp_path / "q.onnx", feeds)
    steps = {s.tensor: float(q.qparams[s.name].scale) for s in q.plan.sites if s.role == "activation" and s.produced}
    for output, arrays in infer(ir.to_proto(q.rendered()), feeds, optimize=False).items():
        for want, got in zip(arrays, (sample[output] for sample in seen.outputs), strict=True):
            assert got.dtype == want.dtype
            size = float(np.abs(want).max())
            allowed = 1e-5 * size if bits == 8 else max(2 * steps.get(output, 0.0), 1e-3 * size)
            np.testing.assert_allclose(got, want, rtol=0, atol=allowed)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_layer_agrees(name: str) -> None:
    all_but_ties_agree(GRAPHS[name](), "tvm", RUNTIME)


def test_every_new_shape_is_compiled(tmp_path: Path) -> None:
    model = build(
        "(float[N, 4, H, W] x) => (float[N, 8, H, W] y) { a = Conv <pads = [1, 1, 1, 1]> (x, w)\n y = Relu (a) }",
        w=normal(8, 4, 3, 3),
    )
    feeds = [*images(1, 4, 8, 8, samples=1), *images(2, 4, 6, 10, samples=1)]
    q = onnxq.quantize(model, feeds, backend="tvm", output=tmp_path / "q.onnx")
    seen = examine(RUNTIME, tmp_path / "q.onnx", feeds)
    for want, got in zip(infer(ir.to_proto(q.rendered()), feeds, optimize=False)["y"], seen.outputs, strict=True):
        np.testing.assert_allclose(got["y"], want, rtol=0, atol=1e-5 * float(np.abs(want).max()))


def test_a_transposed_convolution_of_a_size_that_is_named(tmp_path: Path) -> None:
    model = build(
        """(float[1, 4, 6, 6] x) => (float[1, 4, 12, 13] y) {
            y = ConvTranspose <strides = [2, 2], output_shape = [12, 13]> (x, w)
        }""",
        w=normal(4, 4, 3, 3),
    )
    feeds = images(1, 4, 6, 6, samples=2)
    made = onnxq.quantize(model, feeds, backend="tvm", output=tmp_path / "q.onnx")
    agreement = onnxq.verify(made, feeds, backend="tvm")
    assert agreement.ok and agreement.worst is not None and agreement.worst[1].sqnr > 100


def test_verify(tmp_path: Path) -> None:
    model = GRAPHS["residual"]()
    feeds = feeds_for(model, samples=2)
    onnxq.quantize(model, feeds, backend="tvm", output=tmp_path / "q.onnx")
    agreement = onnxq.verify(tmp_path / "q.onnx", feeds, backend="tvm")
    assert agreement.runtime is not None and agreement.runtime.startswith("Apache TVM 0.")
    assert agreement.worst is not None and agreement.worst[1].sqnr > 100


def test_the_operators_that_it_has_not() -> None:
    """As its importer lists what it has; another version may have more."""
    script = "from tvm.relax.frontend.onnx import onnx_frontend as f; print(*f._get_convert_map())"
    done = subprocess.run([interpreter(RUNTIME), "-c", script], capture_output=True, text=True, check=True)
    has = {*done.stdout.split(), "Constant", "If"}
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert standard - has == ABSENT & standard
    assert not ABSENT & has


@pytest.mark.parametrize(
    ("name", "said"),
    [("indices", "importer fails: .*MaxPool"), ("topk", "importer fails on TopK: "), ("nms", "cannot compile it")],
)
def test_what_it_refuses_is_said_in_a_sentence(name: str, said: str, tmp_path: Path) -> None:
    model = refused(name)
    onnx.save(model, tmp_path / "m.onnx")
    feeds = [{"x": normal(1, 1, 4, 4) if name == "indices" else normal(4, 9), "k": np.array([3])}]
    feeds = feeds_for(model, samples=1) if name == "nms" else [{i.name: feeds[0][i.name] for i in model.graph.input}]
    with pytest.raises(VerificationError, match=f"TVM does not take the artifact: its? .*{said}") as caught:
        examine(RUNTIME, tmp_path / "m.onnx", feeds)
    assert "Traceback" not in str(caught.value) and "\n" not in str(caught.value)


def test_what_reads_an_nms_gets_a_row_for_every_box(tmp_path: Path) -> None:
    """Why check warns of it; another version may do better."""
    model = refused("nms")
    model.graph.node[1].CopyFrom(onnx.helper.make_node("Shape", ["i"], ["y"]))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2]))
    onnx.save(model, tmp_path / "m.onnx")
    (got,) = examine(RUNTIME, tmp_path / "m.onnx", feeds_for(model, samples=1)).outputs
    assert got["y"].tolist() == [40, 3]


@pytest.mark.parametrize(("mode", "given", "what"), RESIZED_OTHERWISE)
def test_scales_that_lead_to_no_whole_size_give_other_numbers(
    mode: str, given: dict[str, Any], what: str, tmp_path: Path
) -> None:
    assert sqnr(*in_both(resizing(mode, **given), tmp_path)) < 20


@pytest.mark.parametrize(("mode", "given"), RESIZED_ALIKE)
def test_other_resizes_agree(mode: str, given: dict[str, Any], tmp_path: Path) -> None:
    assert sqnr(*in_both(resizing(mode, **given), tmp_path)) > 80


def test_corners_of_a_single_element_cannot_be_compiled(tmp_path: Path) -> None:
    mode = 'mode = "linear", coordinate_transformation_mode = "align_corners"'
    with pytest.raises(VerificationError, match="Divide by zero"):
        in_both(resizing(mode, sizes=np.array([1, 3, 1, 5])), tmp_path)


def in_both(model: onnx.ModelProto, folder: Path) -> tuple[list[Any], list[Any]]:
    """The output of a float model in onnxruntime and in TVM, of one sample."""
    onnx.save(model, folder / "m.onnx")
    feeds = feeds_for(model, samples=1)
    seen = examine(RUNTIME, folder / "m.onnx", feeds).outputs
    return infer(model, feeds, optimize=False)["y"], [outputs["y"] for outputs in seen]

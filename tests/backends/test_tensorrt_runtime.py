"""What TensorRT-RTX makes of the results: parsed, compiled for a GPU ahead of time, with which kernels."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.tensorrt.lacks import ABSENT
from onnxq.errors import VerificationError
from onnxq.nvfp4 import quantize_nvfp4
from onnxq.runtimes.child import examine, interpreter, missing
from onnxq.runtimes.runtime import Examination
from onnxq.runtimes.tensorrt import RUNTIME
from onnxq.weight_only.algorithm import rewrite
from tests.backends.test_tensorrt import detector, ints, mlp, packed
from tests.backends.test_tensorrt_lacks import FORMS, Form
from tests.backends.test_tensorrt_nlp import encoder
from tests.models import build, feeds_for, images, normal
from tests.nvfp4.reference import mlp as nvfp4_mlp
from tests.planning.test_planner import residual, transformer

_WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(_WHY is not None, reason=f"no TensorRT-RTX: {_WHY}")]


def compiled(model: onnx.ModelProto, path: Path, backend: str = "tensorrt", **dims: int) -> Examination:
    feeds = feeds_for(model, **dims)
    onnxq.quantize(model, feeds, backend=backend, output=path)
    return examine(RUNTIME, path, feeds)


def of_kind(found: tuple[str, ...], kind: str) -> int:
    return sum(entry.startswith(f"{kind} ") for entry in found)


def test_convolutions_with_what_stands_behind_them_compute_in_integers(tmp_path: Path) -> None:
    seen = compiled(residual(), tmp_path / "q.onnx")
    assert of_kind(seen.integer, "convolution") == 3 and not seen.floating
    assert any("kernel" in entry for entry in seen.integer)  # the pool


def test_of_a_net_with_many_operators_only_the_transposed_convolution_stays_float(tmp_path: Path) -> None:
    seen = compiled(detector(), tmp_path / "q.onnx")
    assert of_kind(seen.integer, "convolution") == 5 and of_kind(seen.integer, "matrix_multiply") == 1
    assert [entry for entry in seen.floating if "kernel" not in entry] == ["deconvolution ConvTranspose"]


def test_linear_layers_and_products_of_activations_compute_in_integers(tmp_path: Path) -> None:
    for index, model in enumerate((mlp(), transformer())):
        seen = compiled(model, tmp_path / f"{index}.onnx")
        assert of_kind(seen.integer, "matrix_multiply") >= 2
        assert not of_kind(seen.floating, "matrix_multiply")


def test_queries_keys_and_values_in_one_weight_compute_in_integers(tmp_path: Path) -> None:
    model = packed(
        "r = Reshape (g, s)\n t = Transpose <perm = [2, 0, 3, 1, 4]> (r)\n q5, k5, v5 = Split <axis = 0> (t, i)\n"
        "q = Squeeze (q5, z)\n k = Squeeze (k5, z)\n v = Squeeze (v5, z)\n",
        s=ints(1, 16, 3, 4, 16),
        i=ints(1, 1, 1),
        z=ints(0),
    )
    seen = compiled(model, tmp_path / "q.onnx")
    assert of_kind(seen.integer, "matrix_multiply") == 3 and not seen.floating


def test_the_placement_for_transformers_is_taken_too(tmp_path: Path) -> None:
    model, path = encoder(), tmp_path / "q.onnx"
    feeds = [{**f, "ids": abs(f["ids"]) % 32} for f in feeds_for(model)]
    onnxq.quantize(model, feeds, backend="tensorrt_nlp", output=path)
    seen = examine(RUNTIME, path)
    assert of_kind(seen.integer, "matrix_multiply") >= 4 and not seen.floating


def test_floating_point_of_8_bits(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(residual(), images(1, 16, 8, 8), backend="tensorrt_fp8", output=path)
    seen = examine(RUNTIME, path)
    assert of_kind(seen.integer, "convolution") == 3 and not of_kind(seen.floating, "convolution")
    assert any("compiled for SM89" in remark for remark in seen.remarks)
    onnxq.quantize(encoder(), [{**f, "ids": abs(f["ids"]) % 32} for f in feeds_for(encoder())],
                   backend="tensorrt_fp8", output=path)  # fmt: skip
    seen = examine(RUNTIME, path)
    assert of_kind(seen.integer, "matrix_multiply") >= 4 and not seen.floating


@pytest.mark.parametrize("opset", [13, 19, 21, 25])
def test_opsets(tmp_path: Path, opset: int) -> None:
    model, path = residual(), tmp_path / "q.onnx"
    model.opset_import[0].version = opset
    model.ir_version = 13 if opset == 25 else 10
    onnxq.quantize(model, images(1, 16, 8, 8), backend="tensorrt", output=path, options=Options(opset=opset))
    assert onnx.load(path).opset_import[0].version == opset
    assert of_kind(examine(RUNTIME, path).integer, "convolution") == 3


def test_a_float_model_computes_in_float(tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    onnx.save(residual(), path)
    seen = examine(RUNTIME, path)
    assert not seen.integer and of_kind(seen.floating, "convolution") == 3


def test_the_model_beside_a_calibration_cache_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnxq.quantize(
        residual(), images(1, 16, 8, 8), backend="tensorrt", output=path, options=Options(format="calibration-cache")
    )
    assert of_kind(examine(RUNTIME, path).floating, "convolution") == 3


def test_free_dimensions_take_sizes_from_samples(tmp_path: Path) -> None:
    model = build(
        "(float[N, 3, H, W] x) => (float[N, 8, H, W] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }", w=normal(8, 3, 3, 3)
    )
    path = tmp_path / "q.onnx"
    assert compiled(model, path, N=1, H=8, W=8).integer == ("convolution Conv",)
    with pytest.raises(VerificationError, match="free dimensions"):
        examine(RUNTIME, path)


@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt_nlp"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_numbers_of_channels_that_are_free_are_those_of_the_weights(op: str, backend: str, tmp_path: Path) -> None:
    """TensorRT counts one channel, which no groups divide, or refuses the layer."""
    model = build(
        f"(float[1, C, 8, 8] x) => (float[1, D, H, W] y) {{ a = Cos (x) y = {op} <group = 2> (a, w) }}",
        w=normal(4, 2, 3, 3),
    )
    feeds = feeds_for(model, C=4)
    q = onnxq.quantize(model, feeds, backend=backend, output=tmp_path / "q.onnx", options=Options(placement="all"))
    (size,) = [value.type.tensor_type.shape.dim[1] for value in onnx.load(tmp_path / "q.onnx").graph.input]
    assert size.dim_value == 4 and len(q.plan.quantized) == 1
    assert examine(RUNTIME, tmp_path / "q.onnx", feeds).remarks


def test_a_model_for_another_target_is_rejected_with_the_parsers_words(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(residual(), images(1, 16, 8, 8), output=path, options=Options(placement="all"))
    with pytest.raises(VerificationError, match="does not take the artifact"):
        examine(RUNTIME, path)


def test_blocks_of_4_bit_weights_stay_in_4_bits(tmp_path: Path) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "q.onnx"
    model = build(
        "(float[1, 16, 64] x) => (float[1, 16, 64] y) { h = MatMul (x, w1)\n r = Relu (h)\n y = MatMul (r, w2) }",
        w1=normal(64, 128),
        w2=normal(128, 64, seed=1),
    )
    onnx.save(model, source)
    rewrite(source, None, output=path, options=Options())
    assert sum("Float x Int4" in remark for remark in examine(RUNTIME, path).remarks) == 2


def test_nvfp4_multiplies_in_4_bit_floating_point_numbers(tmp_path: Path) -> None:
    """In tensors of two and three axes, of free sizes, with weights of any number of outputs."""
    nets: list[tuple[onnx.ModelProto, dict[str, int]]] = [(mlp(), {}), (transformer(), {}), (nvfp4_mlp(), {"N": 7})]
    for index, (model, dims) in enumerate(nets):
        source, path = tmp_path / f"{index}.onnx", tmp_path / f"{index}.q.onnx"
        onnx.save(model, source)
        feeds = feeds_for(model, **dims)
        result = quantize_nvfp4(source, path, data=feeds)
        seen = examine(RUNTIME, path, feeds)
        assert result.quantized and {f"matrix_multiply {name}" for name in result.quantized} == set(seen.integer)
        assert "compiled for SM120" in seen.remarks


def test_nvfp4_of_tensors_whose_size_is_computed(tmp_path: Path) -> None:
    """As behind attention where an exporter computes the shape in which heads come together."""
    model = build(
        """(float[N, T, 4, 16] x) => (float[N, T, 96] y) {
            sizes = Shape <end = 2> (x)
            halves = Div (sizes, one)
            rest = Constant <value_ints = [-1]> ()
            computed = Concat <axis = 0> (halves, rest)
            flat = Reshape (x, computed)
            y = MatMul (flat, w)
        }""",
        one=np.array([1, 1]),
        w=normal(64, 96),
    )
    onnx.save(model, tmp_path / "m.onnx")
    feeds = feeds_for(model, N=2, T=5)
    quantize_nvfp4(tmp_path / "m.onnx", tmp_path / "q.onnx", data=feeds)
    assert examine(RUNTIME, tmp_path / "q.onnx", feeds).integer == ("matrix_multiply MatMul",)


def test_nvfp4_of_weights_alone_multiplies_in_float(tmp_path: Path) -> None:
    onnx.save(nvfp4_mlp(), tmp_path / "m.onnx")
    quantize_nvfp4(tmp_path / "m.onnx", tmp_path / "q.onnx", activations=False)
    seen = examine(RUNTIME, tmp_path / "q.onnx", feeds_for(nvfp4_mlp(), N=7))
    assert of_kind(seen.floating, "matrix_multiply") == 3 and not seen.integer


def test_what_has_four_axes_is_not_rounded_at_run_time(tmp_path: Path) -> None:
    """Which is why :mod:`onnxq.nvfp4` leaves such products float."""
    path = tmp_path / "q.onnx"
    model = build("(float[8, 64] x) => (float[8, 96] y) { y = MatMul (x, w) }", w=normal(64, 96))
    onnx.save(model, tmp_path / "m.onnx")
    quantize_nvfp4(tmp_path / "m.onnx", path, data=feeds_for(model))
    made = onnx.load(path)
    for value, width in ((made.graph.input[0], 64), (made.graph.output[0], 96)):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, [1, 2, 4, width]))
    onnx.save(made, path)
    with pytest.raises(VerificationError, match="must be 2D or 3D"):
        examine(RUNTIME, path)


_ASK = """
import json, sys
import tensorrt_rtx_bindings as trt

class Silent(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
    def log(self, severity, message):
        pass

logger = Silent()
network = trt.Builder(logger).create_network(0)
parser = trt.OnnxParser(network, logger)
print(json.dumps([name for name in json.loads(sys.argv[1]) if not parser.supports_operator(name)]))
"""


def test_the_operators_that_the_parser_has_not() -> None:
    """As it says itself; another version may have more."""
    standard = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
    command = [interpreter(RUNTIME), "-c", _ASK, json.dumps(standard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == ABSENT & set(standard)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.text)
def test_forms_that_are_refused(form: Form, tmp_path: Path) -> None:
    onnx.save(form.model(), tmp_path / "m.onnx")
    if form.said:
        with pytest.raises(VerificationError, match="does not take the artifact"):
            examine(RUNTIME, tmp_path / "m.onnx")
    else:
        assert examine(RUNTIME, tmp_path / "m.onnx").version


@pytest.mark.parametrize("op", ["NonMaxSuppression", "NonZero"])
def test_operators_without_a_kernel(op: str, tmp_path: Path) -> None:
    call, shape = ("NonMaxSuppression (b, s, m)", "N, 3") if op == "NonMaxSuppression" else ("NonZero (s)", "3, N")
    text = f"(float[1, 8, 4] b, float[1, 2, 8] s) => (int64[{shape}] y) {{ y = {call} }}"
    onnx.save(build(text, m=np.array([3], np.int64)), tmp_path / "m.onnx")
    with pytest.raises(VerificationError, match="does not take the artifact"):
        examine(RUNTIME, tmp_path / "m.onnx")

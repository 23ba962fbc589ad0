"""LiteRT: the file that is written, read and run by the interpreter itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backends import litert
from onnxq.errors import BackendError
from onnxq.measuring.in_runtime import InRuntime
from onnxq.runtimes.litert import RUNTIME
from tests.models import build, f32, feeds_for, images, normal
from tests.targets import GRAPHS

pytest.importorskip("ai_edge_litert")


def written(model: onnx.ModelProto, folder: Path, form: str = "", **options: Any) -> Any:
    """The interpreter of what is written of a model."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    target = folder / "net.onnx"
    asked = Options(format=form or None, placement="all", **options)
    onnxq.quantize(model, feeds_for(model), backend="litert", output=target, options=asked)
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return Interpreter(str(target.with_suffix(".tflite")), experimental_op_resolver_type=plain)


def kinds(interpreter: Any) -> list[str]:
    """The operators of a file, in order."""
    return [str(operator["op_name"]) for operator in interpreter._get_ops_details()]


def residual_of_rows(batch: str = "N") -> onnx.ModelProto:
    """A net with a batch of free size: a product of tokens with its bias, and one of rows."""
    return build(
        f"""(float[{batch}, 4, 8] x) => (float[{batch}, 6] y) {{
            [tokens] m = MatMul (x, w1)
            [bias] a = Add (m, b1)
            [act] r = Relu (a)
            [mean] g = ReduceMean <axes = [1], keepdims = 0> (r)
            [head] y = Gemm (g, w2, b2)
        }}""",
        w1=normal(8, 16),
        b1=normal(16, seed=1, scale=0.1),
        w2=normal(16, 6, seed=2),
        b2=normal(6, seed=3, scale=0.1),
    )


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_litert_computes_is_what_was_simulated(graph: str, tmp_path: Path) -> None:
    model = GRAPHS[graph]()
    target = tmp_path / "net.onnx"
    onnxq.quantize(model, feeds_for(model), backend="litert", output=target, options=Options(placement="all"))
    found = onnxq.verify(target, feeds_for(model, seed=3), backend="litert", layers=True)
    assert found.runtime is not None and found.runtime.startswith("LiteRT ")
    assert found.layers and max(layer.steps for layer in found.layers) <= 1
    assert max(found.lsb.values(), default=0) <= 4 and not found.layers_missing
    assert found.integer and found.speedup is not None


def test_a_net_of_convolutions_is_in_integers_as_a_whole(tmp_path: Path) -> None:
    interpreter = written(GRAPHS["residual"](), tmp_path)
    floats = {d["index"] for d in interpreter.get_tensor_details() if d["dtype"] is np.float32}
    for operator in interpreter._get_ops_details():
        inside = operator["op_name"] not in ("QUANTIZE", "DEQUANTIZE")
        assert not (inside and floats & {*operator["inputs"].tolist(), *operator["outputs"].tolist()}), operator


def test_inputs_and_outputs_keep_names_types_order_and_axes(tmp_path: Path) -> None:
    model = build(
        """(int64[3] at, float[1, 3, 8, 8] picture) => (float[3, 4] rows, float[1, 8, 4, 4] maps) {
            rows = Gather (table, at)
            maps = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (picture, w)
        }""",
        table=normal(9, 4, scale=1.0),
        w=normal(8, 3, 3, 3),
    )
    feeds = [{**feed, "at": np.array([0, 8, 2])} for feed in feeds_for(model)]
    target = tmp_path / "net.onnx"
    onnxq.quantize(model, feeds, backend="litert", output=target)
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(target.with_suffix(".tflite"))).get_signature_runner()
    taken, made = runner.get_input_details(), runner.get_output_details()
    assert {*taken} == {"at", "picture"} and {*made} == {"rows", "maps"}
    given = Interpreter(str(target.with_suffix(".tflite")))
    assert [detail["name"] for detail in given.get_input_details()] == ["at", "picture"]
    assert [detail["name"] for detail in given.get_output_details()] == ["rows", "maps"]
    assert taken["at"]["dtype"] is np.int64 and tuple(taken["picture"]["shape"]) == (1, 3, 8, 8)
    assert made["maps"]["dtype"] is np.float32 and tuple(made["maps"]["shape"]) == (1, 8, 4, 4)


def test_int8_inputs_and_outputs_on_their_grids(tmp_path: Path) -> None:
    model = GRAPHS["residual"]()
    interpreter = written(model, tmp_path, "tflite-int8")
    (taken,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    assert taken["dtype"] is np.int8 and made["dtype"] is np.int8 and taken["quantization"][0] > 0
    assert not {"QUANTIZE", "DEQUANTIZE"} & {*kinds(interpreter)}
    found = onnxq.verify(tmp_path / "net.onnx", feeds_for(model, seed=3), backend="litert")
    assert max(found.lsb.values()) <= 4


def test_what_stays_float_of_int8_inputs_and_outputs_is_said(tmp_path: Path) -> None:
    model = GRAPHS["attention"]()
    made = onnxq.quantize(
        model, feeds_for(model), backend="litert", options=Options(format="tflite-int8", exclude=("norm",))
    )
    assert any("float in the TensorFlow Lite file, too: 'x'" in note for note in made.notes), made.notes


def test_a_batch_of_free_size_is_one_and_samples_of_several_rows_are_run_one_by_one(tmp_path: Path) -> None:
    model = residual_of_rows()
    target = tmp_path / "net.onnx"
    asked = Options(placement="all")
    made = onnxq.quantize(model, feeds_for(model, N=3), backend="litert", output=target, options=asked)
    assert any("the first axis of 'x', of free size, is 1" in note for note in made.notes)
    found = onnxq.verify(target, feeds_for(model, seed=3, N=5), backend="litert")
    assert found.outputs["y"].elements == 6 * 5 * 6 and max(found.lsb.values()) <= 2


def test_a_product_of_tokens_has_its_bias_in_it(tmp_path: Path) -> None:
    found = kinds(written(residual_of_rows("1"), tmp_path))
    assert found.count("FULLY_CONNECTED") == 2 and "ADD" not in found and "RESHAPE" not in found


def test_hard_functions_are_sums_and_products_of_integers(tmp_path: Path) -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = Conv (x, w)
            h = HardSwish (a)
            p = GlobalAveragePool (h)
            c = Conv (p, v)
            s = HardSigmoid <alpha = 0.16666667> (c)
            m = Mul (h, s)
            g = HardSigmoid (m)
            y = Conv (g, w)
        }""",
        w=normal(4, 4, 1, 1),
        v=normal(4, 4, 1, 1, seed=1),
    )
    found = kinds(written(model, tmp_path))
    assert not {"HARD_SWISH", "DEQUANTIZE", "MAXIMUM"} & {*found[:-1]}
    assert found.count("CONV_2D") == 3 and found.count("ADD") == 2
    agreed = onnxq.verify(tmp_path / "net.onnx", feeds_for(model, seed=3), backend="litert", layers=True)
    assert max(layer.steps for layer in agreed.layers) <= RUNTIME.steps


def test_kernels_that_write_one_grid_have_it() -> None:
    model = build(
        """(float[1, 8] x) => (float[1, 8] y, float[1, 8] z, float[1, 8] p) {
            a = Gemm (x, w)
            y = Sigmoid (a)
            z = Tanh (a)
            p = Softmax (a)
        }""",
        w=normal(8, 8),
    )
    made = onnxq.quantize(model, feeds_for(model), backend="litert", options=Options(placement="all"))
    grids = {name: (float(qp.scale), int(qp.zero_point)) for name, qp in made.qparams.items() if name in "yzp"}
    assert grids == {"y": (1 / 256, -128), "z": (1 / 128, 0), "p": (1 / 256, -128)}


def test_an_output_that_is_an_input_or_another_output_is_a_tensor_of_its_own(tmp_path: Path) -> None:
    model = build(
        """(float[1, 8] x) => (float[1, 8] same, float[1, 8] y, float[1, 8] again) {
            same = Identity (x)
            y = Gemm (x, w)
            again = Identity (y)
        }""",
        w=normal(8, 8),
    )
    written(model, tmp_path)
    found = onnxq.verify(tmp_path / "net.onnx", feeds_for(model, seed=3), backend="litert")
    assert [*found.outputs] == ["same", "y", "again"] and max(found.lsb.values()) <= 1


def test_an_output_that_is_a_constant_is_there(tmp_path: Path) -> None:
    model = build(
        """(float[1, 8] x) => (float[1, 8] y, float[2, 3] fixed) {
            y = Gemm (x, w)
            fixed = Identity (numbers)
        }""",
        w=normal(8, 8),
        numbers=normal(2, 3, seed=1, scale=1.0),
    )
    written(model, tmp_path)
    found = onnxq.verify(tmp_path / "net.onnx", feeds_for(model, seed=3), backend="litert")
    assert found.outputs["fixed"].sqnr > 40


def test_a_bias_in_float_is_rounded_to_the_product_of_the_scales(tmp_path: Path) -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear <axis = 0> (w, t, u)
            c = Conv (xd, wd, b)
            cq = QuantizeLinear (c, s, z)
            y = DequantizeLinear (cq, s, z)
        }""",
        w=np.random.default_rng(0).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8),
        b=f32([0.5, -0.25, 1.0, -1.0]),
        s=f32(0.04),
        z=np.int8(3),
        t=f32([0.01, 0.02, 0.005, 0.01]),
        u=np.zeros(4, np.int8),
    )
    import onnx_ir as ir

    target = tmp_path / "net.onnx"
    onnx.save(model, target)
    litert.BACKEND.runtime_file(ir.from_proto(model), target)  # type: ignore[misc]
    found = onnxq.verify(target, feeds_for(model, seed=3), backend="litert")
    assert max(found.lsb.values()) == pytest.approx(1, abs=1e-3)


def test_what_is_shared_is_stored_once_and_aligned(tmp_path: Path) -> None:
    from ai_edge_litert import schema_py_generated as schema

    model = build(
        "(float[1, 64] x) => (float[1, 64] y) { a = MatMul (x, w) \n b = MatMul (a, w) \n y = MatMul (b, w) }",
        w=normal(64, 64),
    )
    written(model, tmp_path)
    content = (tmp_path / "net.tflite").read_bytes()
    assert len(content) < 3 * 64 * 64
    found = schema.Model.GetRootAs(content)
    buffers = [found.Buffers(k) for k in range(found.BuffersLength())]
    data = [buffer._tab.Vector(buffer._tab.Offset(4)) for buffer in buffers if not buffer.DataIsNone()]
    assert data and all(place % 16 == 0 for place in data)


def test_a_model_that_picks_is_compared_by_what_it_picks_from(tmp_path: Path) -> None:
    model = build(
        """(float[1, 16] x) => (float[1, 3] best, int64[1, 3] at) {
            s = Gemm (x, w)
            best, at = TopK (s, k)
        }""",
        w=normal(16, 12),
        k=np.array([3]),
    )
    target = tmp_path / "net.onnx"
    onnxq.quantize(model, feeds_for(model), backend="litert", output=target)
    found = onnxq.verify(target, feeds_for(model, seed=3), backend="litert")
    assert found.outputs["best"].sqnr > 30 and found.outputs["at"].agreement == 1.0


def test_a_float_model_that_cannot_be_said_is_not_timed(tmp_path: Path) -> None:
    def refuses(model: Any, path: Path) -> None:
        raise BackendError("no")

    model = GRAPHS["residual"]()
    target = tmp_path / "net.onnx"
    made = onnxq.quantize(model, feeds_for(model), backend="litert", output=target)
    asked = InRuntime(RUNTIME, feeds_for(model), 60.0, onnxq.verify.__globals__["Silent"](), refuses)
    assert asked.whole(target, beside=made.model).remarks == ("not timed: no",)


def test_a_sum_far_smaller_than_what_it_adds_has_a_scale_that_the_kernel_takes(tmp_path: Path) -> None:
    """ADD ends the program where its output's scale is less than a 2^19th of an input's."""
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv (x, w) \n s = Add (a, zero) \n y = Conv (s, w) }",
        w=normal(4, 4, 1, 1) * f32(1e-9),
        zero=np.zeros((1, 4, 8, 8), np.float32),
    )
    interpreter = written(model, tmp_path)
    interpreter.allocate_tensors()
    assert "ADD" in kinds(interpreter)


def test_attention_stays_float_where_that_is_faster_and_not_where_all_is_wanted(tmp_path: Path) -> None:
    model = build(
        """(float[1, 64, 64] x) => (float[1, 64, 64] y) {
            q = MatMul (x, a)
            k = MatMul (x, b)
            t = Transpose <perm = [0, 2, 1]> (k)
            s = MatMul (q, t)
            p = Softmax (s)
            m = MatMul (p, q)
            y = MatMul (m, a)
        }""",
        a=normal(64, 64),
        b=normal(64, 64, seed=1),
    )
    plan = onnxq.plan(model, backend="litert")
    assert [*plan.quantized.values()].count("MatMul") == 3 and "Softmax" not in plan.quantized.values()
    whole = onnxq.plan(model, backend="litert", options=Options(placement="all"))
    assert [*whole.quantized.values()].count("MatMul") == 5 and "Softmax" in whole.quantized.values()


def test_constants_of_grids_and_images_of_one_row() -> None:
    """A weight with one scale for all channels, and samples that are pictures."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv (x, w) \n y = Mul (a, f) }",
        w=normal(4, 3, 1, 1),
        f=f32(2.5),
    )
    made = onnxq.quantize(model, images(1, 3, 8, 8), backend="litert", options=Options(per_channel=False))
    assert made.verification is not None and made.verification.worst is not None
    assert made.verification.worst[1].sqnr > 30

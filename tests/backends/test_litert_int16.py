"""LiteRT with int16 activations: operators in its interpreter, and what users are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.litert_int16 import BACKEND
from tests.backends.litert_interpreter import agrees_in_integers, computed, drawn, one
from tests.backends.test_litert_integers import CASES
from tests.models import build, f32, feeds_for, normal

pytest.importorskip("ai_edge_litert")

NAME = "litert_int16"
ALL = Options(placement="all")
_FLOAT = ("Elu", "PRelu behind a layer", "PRelu of steep slopes")
"""Cases of int8 that have no kernels of int16."""
_NEAR = ('Resize mode = "linear"', 'Resize mode = "linear", coordinate_transformation_mode = "align_corners"')
"""Those whose places are no multiples of 1/1024 of an element, but nearly."""
_CASES = {name: model for name, model in CASES.items() if name not in (*_FLOAT, *_NEAR)}
for _mode, _size in (("half_pixel", 2), ("asymmetric", 4), ("half_pixel", 0.5)):
    _node = f'Resize <mode = "linear", coordinate_transformation_mode = "{_mode}"> (x, , s)'
    _CASES[f"Resize {_mode} {_size}"] = one(_node, "1, 3, 8, 6", s=f32([1, 1, _size, _size]))


@pytest.mark.parametrize("name", _CASES)
def test_an_operator_computes_in_int16_as_onnxruntime_does(name: str, tmp_path: Path) -> None:
    """A step for each of two kernels; up to three for functions, which lie between numbers of a table."""
    agrees_in_integers(_CASES[name], tmp_path, steps=3, backend=NAME)


@pytest.mark.parametrize("name", _NEAR)
def test_a_resize_to_places_that_are_nearly_right_is_nearly_right(name: str, tmp_path: Path) -> None:
    """The kernel is up to 1/128 of an element beside them; noise is where that shows most."""
    target, feeds = tmp_path / "net.onnx", [drawn(CASES[name], seed) for seed in range(4)]
    onnxq.quantize(CASES[name], feeds, backend=NAME, options=ALL, output=target)
    found = onnxq.verify(target, feeds, backend=NAME)
    assert not found.floating and found.outputs["y"].sqnr > 40


def test_each_row_of_the_table_has_a_case() -> None:
    shown = {node.op_type for model in _CASES.values() for node in model.graph.node}
    assert {row.partition(":")[0] for row in BACKEND.rules} <= shown


def net() -> onnx.ModelProto:
    """Layers with functions behind them, some of which are a part of the layer."""
    return build(
        """(float[1, 3, 12, 12] x) => (float[1, 5] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            r = Relu (a)
            d = Conv <group = 8, pads = [1, 1, 1, 1], strides = [2, 2]> (r, w2, b2)
            c = Clip (d, zero, six)
            p = Conv (c, w3)
            s = Add (p, c)
            h = Relu (s)
            g = GlobalAveragePool (h)
            f = Flatten (g)
            y = Gemm (f, w4, b4)
        }""",
        w1=normal(8, 3, 3, 3),
        b1=normal(8),
        w2=normal(8, 1, 3, 3),
        b2=normal(8, seed=1),
        w3=normal(8, 8, 1, 1),
        w4=normal(8, 5),
        b4=normal(5),
        zero=f32(0),
        six=f32(6),
    )


def test_a_net_is_nearer_to_float_than_in_8_bits(tmp_path: Path) -> None:
    """Of numbers that are far apart, most of them small."""
    model, found = net(), {}
    feeds, others = ([{"x": each["x"] ** 5} for each in feeds_for(model, seed=seed)] for seed in (0, 3))
    for name in (NAME, "litert"):
        target = tmp_path / f"{name}.onnx"
        onnxq.quantize(model, feeds, backend=name, options=ALL, output=target)
        found[name] = onnxq.verify(target, others, backend=name, layers=True)
        assert not found[name].floating and max(layer.steps for layer in found[name].layers) <= 1
    assert found[NAME].outputs["y"].sqnr > 65, "LiteRT and onnxruntime agree"
    against = {name: each.against_float["y"].runtime for name, each in found.items()}
    assert against[NAME] > against["litert"] + 20
    kinds = [line.split()[0] for line in found[NAME].integer]
    assert not {"RELU", "RELU6", "MAXIMUM", "MINIMUM"} & {*kinds}, "the operators in front have them"


def test_inputs_and_outputs_are_int16_for_a_microcontroller(tmp_path: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    model, target = net(), tmp_path / "net.onnx"
    options = Options(placement="all", format="tflite-int16")
    onnxq.quantize(model, feeds_for(model), backend=NAME, options=options, output=target)
    interpreter = Interpreter(str(target.with_suffix(".tflite")))
    ends = [*interpreter.get_input_details(), *interpreter.get_output_details()]
    assert [(end["dtype"], end["quantization"][1]) for end in ends] == [(np.int16, 0)] * 2
    types = {one["index"]: one["dtype"] for one in interpreter.get_tensor_details()}
    layers = [one for one in interpreter._get_ops_details() if len(one["inputs"]) == 3 and "CONV" in one["op_name"]]
    assert [[types[k] for k in layer["inputs"]] for layer in layers] == [[np.int16, np.int8, np.int64]] * 3
    assert onnxq.verify(target, feeds_for(model, seed=3), backend=NAME).outputs["y"].sqnr > 65


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (CASES["Elu"], "not among the operators"),
        (CASES["PRelu of steep slopes"], "its slopes are above 1"),
        (
            one('Resize <mode = "linear"> (x, , s)', "1, 1, 200, 9", s=f32([1, 1, 1.5, 1])),
            "counts its places in 1024ths",
        ),
        (one("GlobalAveragePool (x)", "1, 1, 300, 300"), "more than 65536 numbers"),
    ],
)
def test_what_has_no_kernel_of_int16_stays_float_and_says_why(model: onnx.ModelProto, why: str, tmp_path: Path) -> None:
    """Behind an operator in integers, whose numbers it then reads as floats."""
    target, feeds = tmp_path / "net.onnx", [drawn(model, seed) for seed in range(4)]
    made = onnxq.quantize(model, feeds, backend=NAME, options=ALL, output=target)
    (kept,) = made.plan.kept_float
    assert why in kept.reason
    result = computed(target.with_suffix(".tflite").read_bytes(), feeds[0])
    assert np.isfinite(result["y"]).all()


def test_sums_and_means_of_up_to_65536_numbers_are_right(tmp_path: Path) -> None:
    """At their largest, where 32 bits just hold them."""
    for kind in ("y = GlobalAveragePool (x)", "a = Constant <value_ints = [2, 3]> ()\n y = ReduceSum (x, a)"):
        model = one(kind, "1, 1, 256, 256")
        feeds = [{"x": np.full((1, 1, 256, 256), number, np.float32)} for number in (-1.0, 1.0, 0.5)]
        target = tmp_path / "net.onnx"
        onnxq.quantize(model, feeds, backend=NAME, options=ALL, output=target)
        found = onnxq.verify(target, feeds, backend=NAME)
        assert not found.floating and found.outputs["y"].sqnr > 80


def test_other_widths_of_activations_are_refused() -> None:
    with pytest.raises(onnxq.OnnxqError, match="litert_int16 has no activations of 8 bits"):
        onnxq.quantize(net(), feeds_for(net()), backend=NAME, options=Options(act_bits=8))

"""Free sizes of inputs, fixed: by an input's name, or by the size's own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir
import pytest

from onnxq import OptionError, Options, quantize
from onnxq.graph.files.load import load
from onnxq.graph.passes.fix_shapes import fix_shapes
from onnxq.prepare import Prepared
from tests.contract import infer
from tests.models import build, images, normal

TWO = "(float[N, 3, H, W] x, float[N, H] m) => (float[N, 3, H, W] y, float[N, H] z) { y = Relu (x) \n z = Relu (m) }"
FLATTENED = """(float[N, 3, H, W] x) => (float[N, K] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    s = Shape <start = 0, end = 1> (c)
    rest = Constant <value = int64[1] {-1}> ()
    to = Concat <axis = 0> (s, rest)
    y = Reshape (c, to)
}"""


def shapes_of(model: onnx.ModelProto) -> dict[str, list[object]]:
    ends = [*model.graph.input, *model.graph.output]
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in ends}


def fixed(model: onnx.ModelProto, *shapes: tuple[str, Sequence[int | None]]) -> dict[str, list[object]]:
    made = load(model)
    fix_shapes(made, shapes)
    return {v.name or "": [s if isinstance(s, int) else s.value for s in v.shape or ()] for v in made.graph.inputs}


def test_an_input_by_its_name() -> None:
    assert fixed(build(TWO), ("x", (1, 3, None, 8))) == {"x": [1, 3, "H", 8], "m": ["N", "H"]}


def test_a_size_by_its_name_wherever_it_is() -> None:
    assert fixed(build(TWO), ("N", (1,)), ("H", (6,))) == {"x": [1, 3, 6, "W"], "m": [1, 6]}


def test_an_input_of_one_axis_comes_before_a_size_of_its_name() -> None:
    model = build("(float[n] n, float[n, m] x) => (float[n] y) { y = Relu (n) }")
    assert fixed(model, ("n", (4,))) == {"n": [4], "x": ["n", "m"]}


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (("x", (1,)), r"'x': 1 size was given"),
        (("x", (1, 3, 8)), r"'x': 3 sizes were given, the input has \[N,3,H,W\]"),
        (("x", (1, 4, 8, 8)), r"'x': axis 1 cannot be 4, the input has \[N,3,H,W\]"),
        (("X", (1, 3, 8, 8)), r"no input and no free size 'X'. Its inputs: 'x' \[N,3,H,W\], 'm' \[N,H\]"),
        (("batch", (1,)), r"no input and no free size 'batch'"),
    ],
)
def test_what_the_model_has_not_is_refused(shape: tuple[str, Sequence[int | None]], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        fixed(build(TWO), shape)


def test_what_follows_is_known() -> None:
    model = build(FLATTENED, w=normal(4, 3, 3, 3))
    prepared = Prepared(model, Options(shapes="x=2x3x8x8")).model
    assert [node.op_type for node in prepared.graph] == ["Conv", "Reshape"]
    assert list(prepared.graph.outputs[0].shape or ()) == [2, 256]


def test_the_result_has_them_and_computes_the_same() -> None:
    model, feeds = build(FLATTENED, w=normal(4, 3, 3, 3)), images(1, 3, 8, 8, samples=6)
    options = Options(shapes={"x": (1, 3, 8, 8)}, placement="all")
    made = ir.to_proto(quantize(model, feeds, options=options).rendered())
    assert shapes_of(made) == {"x": [1, 3, 8, 8], "y": [1, 256]}
    assert shapes_of(model) == {"x": ["N", 3, "H", "W"], "y": ["N", "K"]}
    free = ir.to_proto(quantize(model, feeds, options=Options(placement="all")).rendered())
    for one, other in zip(
        infer(made, feeds, optimize=False)["y"], infer(free, feeds, optimize=False)["y"], strict=True
    ):
        assert (one == other).all()

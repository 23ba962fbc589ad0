"""A Resize or Pad of some axes is one of all axes, with the same numbers, and stands between integer layers."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.graph.note import Note
from onnxq.graph.passes.every_axis import every_axis
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from tests.graph.helpers import Array, Feeds, apply, build, random
from tests.models import build as built
from tests.models import f32, i64, images, loads, normal, verified_sqnr

CROP = 'coordinate_transformation_mode = "tf_crop_and_resize"'


def change(model: ir.Model) -> list[Note]:
    return [*infer_shapes(model), *every_axis(model)]


def named(model: ir.Model) -> list[ir.Node]:
    """Nodes that name axes still."""
    nodes = [node for node in all_nodes(model) if node.op_type in ("Resize", "Pad")]
    return [node for node in nodes if "axes" in node.attributes or (node.op_type == "Pad" and len(node.inputs) > 3)]


@pytest.mark.parametrize(
    ("dims", "attributes", "inputs", "constants"),
    [
        ("2,3,4,5", 'axes = [2, 3], mode = "linear"', "x, , v", {"v": f32([2, 3])}),
        ("2,3,4,5", "axes = [-1, 1]", "x, , v", {"v": f32([2, 1.5])}),
        ("2,3,4,5", "axes = [2, 3]", "x, , , v", {"v": i64([7, 9])}),
        ("n,3,h,5", "axes = [2]", "x, , , v", {"v": i64([7])}),
        (
            "n,3,4,5",
            f'axes = [3, 2], mode = "linear", {CROP}',
            "x, r, , v",
            {"r": f32([0, 0.2, 0.5, 0.8]), "v": i64([7, 9])},
        ),
        ("2,3,4,5", "axes = [2, 3]", "x, r, v", {"r": f32([]), "v": f32([2, 3])}),
    ],
)
def test_a_resize_of_some_axes(dims: str, attributes: str, inputs: str, constants: dict[str, Array]) -> None:
    text = f"g (float[{dims}] x) => (float[a,b,c,d] y) {{ y = Resize <{attributes}> ({inputs}) }}"
    given = build(text, opset=18, **constants)
    if not loads(given):
        pytest.skip("this onnxruntime cannot run the model: older ones take no negative axes")
    model, notes = apply(change, given, {"x": random(2, 3, 4, 5)})
    assert named(model) == [] and "1 Resize and Pad nodes" in notes[-1].message


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (
            "float[n,3,4,5] x, float[2] v) => (float[a,b,c,d] y) { y = Resize <axes = [3, 2]> (x, , v) }",
            {"v": f32([2, 3])},
        ),
        (
            "float[n,3,4,5] x, int64[2] v) => (float[a,b,c,d] y) { y = Resize <axes = [3, 2]> (x, , , v) }",
            {"v": i64([7, 9])},
        ),
        ("float[n,3,4,5] x, int64[4] v) => (float[a,b,c,d] y) { y = Pad (x, v, , axes) }", {"v": i64([1, 2, 3, 4])}),
    ],
)
def test_numbers_that_are_computed(text: str, feeds: Feeds) -> None:
    proto = build(f"g ({text}", opset=18, axes=i64([-1, 2]))
    model, _ = apply(change, proto, {"x": random(2, 3, 4, 5), **feeds})
    assert named(model) == []


def test_a_pad_of_some_axes() -> None:
    text = 'g (float[2,3,4,5] x) => (float[2,3,c,d] y) { y = Pad <mode = "reflect"> (x, v, , axes) }'
    model, _ = apply(change, build(text, opset=18, v=i64([1, 2, 3, 0]), axes=i64([-1, 2])), {"x": random(2, 3, 4, 5)})
    assert named(model) == []


@pytest.mark.parametrize("policy", ["stretch", "not_larger"])
def test_what_is_left_is_as_it_was(policy: str) -> None:
    text = f"""g (float[2,3,4,5] x) => (float[a,b,c,d] y, float[e,f,g,h] z) {{
        y = Resize <axes = [2, 3], keep_aspect_ratio_policy = "{policy}"> (x, , , v)
        z = Pad (x, p)
    }}"""
    model, _ = apply(change, build(text, opset=18, v=i64([8, 9]), p=i64([0, 0, 1, 1] * 2)), {"x": random(2, 3, 4, 5)})
    assert [node.op_type for node in named(model)] == (["Resize"] if policy != "stretch" else [])


def test_some_axes_between_integer_layers_run() -> None:
    """onnxruntime reorders the numbers of all axes where it moves a Transpose through."""
    text = """g (float[1, 64, 20, 20] x) => (float[1, 64, 44, 44] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        r = Resize <mode = "nearest", axes = [2, 3]> (a, , scales)
        b = Conv <pads = [1, 1, 1, 1]> (r, v)
        p = Pad <mode = "reflect"> (b, pads, , axes)
        y = Conv <pads = [1, 1, 1, 1]> (p, u)
    }"""
    weights = {name: normal(64, 64, 3, 3, scale=0.05, seed=seed) for seed, name in enumerate("wvu")}
    proto = build(text, opset=18, scales=f32([2, 2]), pads=i64([2, 2, 2, 2]), axes=i64([2, 3]), **weights)
    onnx.checker.check_model(proto, full_check=True)
    result = onnxq.quantize(proto, images(1, 64, 20, 20))
    assert list(result.plan.quantized.values()).count("Conv") == 3
    assert verified_sqnr(result) > 25


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        ('y = Resize <axes = [2, 2], mode = "nearest"> (x, , factors)', {"factors": f32([2, 2])}),
        ('y = Resize <axes = [2, 7], mode = "nearest"> (x, , factors)', {"factors": f32([2, 2])}),
        ('y = Resize <axes = [2, 3], mode = "nearest"> (x, , factors)', {"factors": f32([2, 2, 2])}),
        ("y = Pad (x, pads, , axes)", {"pads": i64([1, 1]), "axes": i64([2, 3])}),
        ("y = Pad (x, pads, , axes)", {"pads": i64([1, 1, 1, 1]), "axes": i64([2, 2])}),
        ("y = Pad (x, pads, , axes)", {"pads": i64([1, 1, 1, 1]), "axes": i64([2, 3]).astype("int32")}),
    ],
)
def test_what_is_wrong_is_not_made_right(node: str, constants: dict[str, Array]) -> None:
    text = f"(float[1, 3, 8, 8] x) => (float[N, C, H, W] y) {{ {node} }}"
    model = built(text, opset=18, ir_version=8, domains=None, **constants)
    with pytest.raises(onnxq.ModelError, match="invalid model"):
        onnxq.quantize(model, images(1, 3, 8, 8))

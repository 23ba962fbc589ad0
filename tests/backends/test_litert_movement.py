"""What moves elements, picks some or puts others in, as LiteRT's interpreter computes it, against onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.backends.litert_interpreter import agrees, one, refusal
from tests.models import f32, normal

pytest.importorskip("ai_edge_litert")

_CONVOLVED = "c = Conv (x, k)\n"
_KERNEL = normal(4, 3, 1, 1)


def behind(node: str, results: str = "float[] y", **constants: Any) -> None:
    """A node behind a convolution, whose channels are at the end, agrees; and so does another reader behind it."""
    agrees(one(f"{_CONVOLVED} y = {node}", "2, 3, 5, 6", results=results, k=_KERNEL, **constants))
    if results == "float[] y":
        more = f"{_CONVOLVED} m = {node}\n r = Relu (m)\n n = Neg (m)\n y = Add (n, r)"
        agrees(one(more, "2, 3, 5, 6", k=_KERNEL, **constants))


@pytest.mark.parametrize("shape", [(2, -1), (2, 20, 6), (0, 0, -1), (-1,), (2, 2, 2, 5, 6), (1, 2, 4, 5, 6)])
def test_shapes_are_changed_in_onnx_order(shape: tuple[int, ...]) -> None:
    behind("Reshape (c, s)", s=np.array(shape))


def test_axes_are_put_in_and_taken_out() -> None:
    behind("Flatten <axis = 2> (c)")
    behind("Unsqueeze (c, a)", a=np.array([0, 2]))
    behind("Unsqueeze (c, a)", a=np.array([-1]))
    agrees(one(f"{_CONVOLVED} g = GlobalMaxPool (c)\n y = Squeeze (g, a)", "2, 3, 5, 6", k=_KERNEL, a=np.array([2, 3])))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_axes_are_transposed(order: tuple[int, ...]) -> None:
    """Once, and in a chain whose last link is read by an operator that wants the last axis."""
    behind(f"Transpose <perm = {list(order)}> (c)")
    chain = f"t = Transpose <perm = {list(order)}> (c)\n u = Relu (t)\n v = Transpose <perm = [1, 2, 0, 3]> (u)"
    agrees(one(f"{_CONVOLVED} {chain}\n y = Softmax (v)", "2, 3, 5, 6", k=_KERNEL))


def test_more_axes_are_transposed() -> None:
    agrees(one("Transpose <perm = [0, 3, 1, 4, 2]> (x)", "1, 2, 3, 2, 3"))
    agrees(one("Transpose <perm = [0, 3, 6, 1, 4, 2, 5]> (x)", "1, 2, 3, 2, 3, 4, 2"))


@pytest.mark.parametrize(
    ("start", "end", "axes", "steps"),
    [
        ([1], [3], [2], [1]),
        ([0], [2**40], [1], [2]),
        ([-3], [-1], [-1], [1]),
        ([-1], [-(2**40)], [3], [-1]),
        ([4], [0], [2], [-2]),
        ([1, 0], [4, 3], [1, 3], [2, 1]),
        ([-1, -1], [-(2**60), -(2**60)], [2, 3], [-1, -2]),
    ],
)
def test_parts_of_a_tensor(start: list[int], end: list[int], axes: list[int], steps: list[int]) -> None:
    lists = [np.array(numbers) for numbers in (start, end, axes, steps)]
    behind("Slice (c, s, u, a, t)", s=lists[0], u=lists[1], a=lists[2], t=lists[3])


def test_a_part_between_computed_places_is_refused() -> None:
    assert refusal(one("Slice (x, z, u)", "5", "int64[1]", "int64[1]")) == "where it begins or ends is computed"


@pytest.mark.parametrize("axis", range(4))
def test_a_tensor_is_split(axis: int) -> None:
    sizes = np.array([1, (2, 4, 5, 6)[axis] - 1])
    two = f"{_CONVOLVED} y, q = Split <axis = {axis}> (c, s)"
    agrees(one(two, "2, 3, 5, 6", results="float[] y, float[] q", k=_KERNEL, s=sizes))


def test_a_tensor_is_split_evenly_and_into_parts_that_nobody_reads() -> None:
    agrees(one("a, b, c = Split <axis = 1, num_outputs = 3> (x)", "2, 8", results="float[] a, float[] b, float[] c"))
    agrees(one("a, b, c = Split <axis = 1> (x, s)", "2, 8", results="float[] b", s=np.array([2, 3, 3])))


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("indices", [1, -1, [1, 0, -1], [[0, 1], [-1, 0]]])
def test_elements_are_gathered(indices: Any, axis: int) -> None:
    behind(f"Gather <axis = {axis}> (c, i)", i=np.array(indices))


def test_rows_are_gathered_by_computed_indices() -> None:
    agrees(one("Gather (w, x)", "int64[1, 7]", w=normal(9, 4)))
    agrees(one("Gather (w, x)", "int32[1, 7]", w=normal(9, 4)))
    agrees(one("g = ArgMax <keepdims = 0> (x)\n y = Gather (w, g)", "5", w=normal(9, 4)))


@pytest.mark.parametrize("indices", [[[0, 1], [-1, 2]], [[[1, 0, 1]]]])
def test_slices_are_gathered(indices: Any) -> None:
    behind("GatherND (c, i)", i=np.array(indices))
    agrees(one("GatherND (x, z)", "2, 3, 4", "int64[2, 2]"))
    batches = one("GatherND <batch_dims = 1> (x, i)", "2, 3, 4", i=np.array([[1], [2]]))
    assert refusal(batches) == "TensorFlow Lite has no GatherND with batch_dims"


@pytest.mark.parametrize("axis", range(4))
def test_elements_are_gathered_one_by_one(axis: int) -> None:
    sizes = [2, 4, 5, 6]
    sizes[axis] = 3
    indices = np.random.default_rng(0).integers(-2, 2, sizes)
    behind(f"GatherElements <axis = {axis}> (c, i)", i=indices)
    behind_given = ", ".join(map(str, sizes))
    agrees(one(f"GatherElements <axis = {axis}> (x, z)", "2, 4, 5, 6", f"int64[{behind_given}]"))
    fewer = one("GatherElements <axis = 1> (x, z)", "2, 4", "int64[1, 3]")
    assert refusal(fewer).startswith("its indices are fewer")


@pytest.mark.parametrize("indices", [[[0, 1]], [[0, 1, 2, 3], [1, -1, 0, 0]], [[1]]])
def test_slices_are_put_in(indices: Any) -> None:
    places = np.array(indices)
    updates = normal(len(places), *(2, 4, 5, 6)[places.shape[-1] :])
    behind("ScatterND (c, i, u)", i=places, u=updates)
    if places.shape[-1] < 4:
        sizes = ", ".join(map(str, updates.shape))
        agrees(one("ScatterND (x, i, z)", "2, 4, 5, 6", sizes, i=places))


def test_elements_are_put_in_one_by_one() -> None:
    indices = np.array([[0, -1, 1], [2, 1, 0]])
    agrees(one("ScatterElements <axis = 1> (x, i, z)", "2, 4", "2, 3", i=indices))
    agrees(one("ScatterElements <axis = 0> (x, i, z)", "4, 3", "2, 3", i=indices))


def test_elements_are_not_added_to_others_nor_put_in_at_computed_places() -> None:
    place = np.array([[1]])
    added = one('ScatterND <reduction = "add"> (x, i, z)', "3", "1", i=place)
    assert refusal(added) == "TensorFlow Lite has no scattering onto what is there"
    assert refusal(one("ScatterND (x, u, z)", "3", "1", "int64[1, 1]")) == "where it puts elements is computed"
    twice = one("ScatterND (x, i, z)", "3", "2", i=np.array([[1], [-2]]))
    assert refusal(twice) == "it puts several elements at one place"


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_of_several_classes(axis: int) -> None:
    feeds = {"x": np.array([[0, 3, -1], [2, 5, -4]])}
    values = f32([-1, 2])
    agrees(one(f"OneHot <axis = {axis}> (x, d, v)", "int64[2, 3]", d=np.array(5), v=values), feeds)


@pytest.mark.parametrize("axis", range(4))
def test_tensors_are_joined_in_whatever_order_they_are(axis: int) -> None:
    sizes = [2, 4, 5, 6]
    sizes[axis] = 2
    behind(f"Concat <axis = {axis}> (w, c, c)", w=normal(*sizes))
    if axis == 1:
        agrees(one(f"{_CONVOLVED} r = Relu (x)\n y = Concat <axis = 1> (r, c, x)", "2, 3, 5, 6", k=_KERNEL))


def test_truth_values_and_indices_are_joined() -> None:
    for kind in ("int64", "bool"):
        agrees(one("Concat <axis = 0> (x, z)", f"{kind}[2]", f"{kind}[3]", results=f"{kind}[] y"))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("block", [2, 3])
def test_channels_are_space_and_back(block: int, mode: str) -> None:
    spread = f'DepthToSpace <blocksize = {block}, mode = "{mode}">'
    agrees(one(f"{spread} (x)", f"2, {block * block * 3}, 2, 3"))
    agrees(one(f"c = Conv (x, k)\n y = {spread} (c)", "2, 3, 2, 3", k=normal(block * block * 2, 3, 1, 1)))
    agrees(one(f"SpaceToDepth <blocksize = {block}> (x)", f"2, 3, {2 * block}, {3 * block}"))


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (3, 2, 4, 5, 6), (1, 1, 1, 1)])
def test_tensors_are_expanded(shape: tuple[int, ...]) -> None:
    behind("Expand (c, s)", s=np.array(shape))
    agrees(one("Expand (x, s)", "3, 1", s=np.array([2, 1, 4])))


def test_tensors_are_repeated() -> None:
    behind("Tile (c, s)", s=np.array([1, 2, 1, 3]))


_SIDES = ([0, 0, 1, 1, 0, 0, 1, 2], [0, 1, 0, 0, 0, 2, 0, 0], [1, 0, 0, 1, 0, 0, 1, 0], [0, 0, -1, 1, 0, 0, 1, -2])


@pytest.mark.parametrize("sides", _SIDES)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_padding(mode: str, sides: list[int]) -> None:
    behind(f'Pad <mode = "{mode}"> (c, p)', p=np.array(sides))


def test_padding_of_other_numbers_and_along_named_axes() -> None:
    behind("Pad (c, p, v)", p=np.array(_SIDES[0]), v=f32(0.7))
    behind("Pad (c, p, v, a)", p=np.array([1, 2]), v=f32(-1), a=np.array([-1]))
    for kind in ("int64", "bool"):
        agrees(one("Pad (x, p)", f"{kind}[2, 3]", p=np.array([0, 1, 0, 1]), results=f"{kind}[] y"))


def test_padding_that_is_refused() -> None:
    six = one("Pad (x, p)", "1, 2, 3, 4, 5, 2", p=np.array([0, 0, 1, 1, 0, 0] * 2))
    assert refusal(six) == "TensorFlow Lite's PAD has 5 axes at most"
    computed = one("m = ReduceMax <keepdims = 0> (z)\n y = Pad (x, p, m)", "2", "4", p=np.array([1, 1]))
    assert refusal(computed) == "what it fills in is computed"


_WAYS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


@pytest.mark.parametrize("scales", [(2, 2), (1.5, 2), (0.5, 0.5), (0.2, 0.2)])
@pytest.mark.parametrize("way", _WAYS)
def test_resizing(way: str, scales: tuple[float, float]) -> None:
    """To the nearest by every rule; in between where the rule is TensorFlow Lite's."""
    given, sizes = f32([1, 1, *scales]), "1, 2, 10, 10"
    for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
        named = f'coordinate_transformation_mode = "{way}", nearest_mode = "{rounding}"'
        agrees(one(f"Resize <{named}> (x, , s)", sizes, s=given))
    agrees(one(f'Resize <mode = "linear", coordinate_transformation_mode = "{way}"> (x, , s)', sizes, s=given))


@pytest.mark.parametrize("size", [(1, 2, 9, 11), (1, 2, 12, 14), (1, 2, 3, 7), (1, 3, 6, 7), (2, 2, 6, 5)])
def test_resizing_to_sizes(size: tuple[int, ...]) -> None:
    agrees(one("Resize (x, , , s)", "1, 2, 6, 7", s=np.array(size)))
    if size[:2] == (1, 2):
        agrees(one('Resize <mode = "linear"> (x, , , s)', "1, 2, 6, 7", s=np.array(size)))


def test_resizing_of_lines_volumes_and_channels_last() -> None:
    for mode in ("nearest", "linear"):
        agrees(one(f'Resize <mode = "{mode}"> (x, , s)', "2, 3, 6", s=f32([1, 1, 2])))
        agrees(one(f'Resize <mode = "{mode}"> (x, , s)', "1, 6, 7, 2", s=f32([1, 2, 2, 1])))
        agrees(one(f'Resize <mode = "{mode}", axes = [2, 3]> (x, , s)', "1, 2, 6, 6", s=f32([2, 1.5])))
    agrees(one("Resize (x, , s)", "1, 2, 3, 4, 5", s=f32([1, 1, 2, 2, 2])))


@pytest.mark.parametrize(
    ("attributes", "scales", "why"),
    [
        ('mode = "cubic"', (2, 2), "no cubic interpolation"),
        ('mode = "linear", antialias = 1', (0.5, 0.5), "with antialias"),
        ('mode = "linear"', (1.7, 0.6), "by the ratio of the sizes, 1.66667, not by 1.7"),
        ('coordinate_transformation_mode = "half_pixel_symmetric"', (1.7, 0.6), "what its scale leaves out"),
    ],
)
def test_resizing_that_is_refused(attributes: str, scales: tuple[float, float], why: str) -> None:
    assert why in refusal(one(f"Resize <{attributes}> (x, , s)", "1, 2, 6, 7", s=f32([1, 1, *scales])))


@pytest.mark.parametrize("last", ["d = Abs (m)", "b = Reshape (m, q)\n d = Abs (b)"])
@pytest.mark.parametrize("first", ["c = Add (a, k)", "c = Softmax (a)"])
def test_what_is_still_read_is_not_written_over(first: str, last: str) -> None:
    """LiteRT's plain kernels add in the place of what a RESHAPE behind a product shares with others."""
    node = f"s = Abs (x)\n m = Mul (s, w)\n a = Reshape (m, p)\n {first}\n {last}\n y = Neg (c)\n z = Neg (d)"
    results = "float[] y, float[] z"
    agrees(
        one(
            node,
            "2, 6",
            results=results,
            w=normal(1, 6),
            k=normal(1, 4, seed=1),
            p=np.array([3, 4]),
            q=np.array([4, 3]),
        )
    )

"""Operators alone on the HTP emulator of onnxruntime-qnn: what each needs for its numbers to agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.measuring.layerwise import compare_layers
from onnxq.ort.session import Session
from onnxq.runtimes.child import examine, missing
from onnxq.runtimes.qnn import RUNTIME
from tests.backends.test_qnn import mixed
from tests.contract import sqnr
from tests.models import build, f32, feeds_for, images, normal

WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(WHY is not None, reason=f"no onnxruntime-qnn: {WHY}")]

SILU = "s = Sigmoid (a)\n y = Mul (a, s)"


def test_a_product_of_five_dimensions() -> None:
    """As it stands the HTP computes it wrongly, in 8 bits."""
    model = build("(float[2, 2, 4, 3, 8] x, float[2, 2, 4, 8, 5] z) => (float[2, 2, 4, 3, 5] y) { y = MatMul (x, z) }")
    feeds = feeds_for(model, samples=2)
    layers = compare_layers(onnxq.quantize(model, feeds, backend="qnn").qdq(), RUNTIME, feeds, timeout=120)
    assert {layer.tensor for layer in layers} >= {"x", "z", "y"}
    assert max(layer.steps for layer in layers) <= 1


@pytest.mark.parametrize("bits", [8, 16])
def test_what_the_htp_has_for_four_dimensions_alone(bits: int, tmp_path: Path) -> None:
    """Of five it refuses each of these."""
    model = build(
        """(float[2, 4, 2, 3, 8] x) => (float[2, 4, 4, 6, 10] y) {
            e = Elu (x)
            t = Tanh (e)
            n = LayerNormalization (t, s, b)
            m = MatMul (n, w)
            g = Gelu (m)
            l = LogSoftmax (g)
            y = Resize <mode = "nearest"> (l, , twice)
        }""",
        opset=20,
        s=1 + normal(8, scale=0.1),
        b=normal(8),
        w=normal(8, 5),
        twice=f32([1, 1, 2, 2, 2]),
    )
    feeds = feeds_for(model, samples=2)
    made = onnxq.quantize(model, feeds, backend="qnn", output=tmp_path, options=Options(act_bits=bits))
    assert not made.plan.kept_float
    assert onnxq.verify(made, feeds, backend="qnn", timeout=120).ok


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    "before", ["AveragePool <kernel_shape = [2, 2]> (x)", 'Resize <mode = "linear"> (x, , twice)', "LRN <size = 3> (x)"]
)
def test_channels_added_to_what_goes_below_0(before: str, bits: int, tmp_path: Path) -> None:
    """A Pad of them behind these the HTP fills with the lowest number."""
    constants: dict[str, Any] = {"twice": f32([1, 1, 2, 2])} if "twice" in before else {}
    model = build(
        f"(float[1, 4, 6, 8] x) => (float[b, c, d, e] y) {{ p = {before} y = Pad (p, more) }}",
        more=np.array([0, 0, 0, 0, 0, 2, 0, 0]),
        **constants,
    )
    feeds = feeds_for(model, samples=2)
    made = onnxq.quantize(model, feeds, backend="qnn", output=tmp_path, options=Options(act_bits=bits))
    assert onnxq.verify(made, feeds, backend="qnn", timeout=120).ok


def test_a_row_resized_to_the_nearest(tmp_path: Path) -> None:
    """Of three dimensions the HTP refuses it, but for one kind."""
    model = build(
        '(float[1, 4, 6] x) => (float[1, 4, 12] y) { y = Resize <mode = "nearest"> (x, , twice) }', twice=f32([1, 1, 2])
    )
    feeds = feeds_for(model, samples=2)
    made = onnxq.quantize(model, feeds, backend="qnn", output=tmp_path)
    assert onnxq.verify(made, feeds, backend="qnn", timeout=120).ok


@pytest.mark.parametrize("bits", [8, 16])
def test_a_shuffle_of_channels_in_front_of_a_concat(bits: int, tmp_path: Path) -> None:
    """As it stands, in five dimensions, the HTP computes it wrongly without a word."""
    model = build(
        """(float[1, 6, 7, 8] x, float[1, 6, 7, 8] z) => (float[1, 12, 7, 8] y) {
            a = Reshape (x, groups)
            b = Transpose <perm = [0, 2, 1, 3, 4]> (a)
            c = Reshape (b, whole)
            y = Concat <axis = 1> (c, z)
        }""",
        groups=np.array([1, 2, 3, 7, 8]),
        whole=np.array([1, 6, 7, 8]),
    )
    feeds = [{**feed, "z": 3 * feed["z"] + 1} for feed in feeds_for(model, samples=2)]
    made = onnxq.quantize(model, feeds, backend="qnn", output=tmp_path, options=Options(act_bits=bits))
    assert onnxq.verify(made, feeds, backend="qnn", timeout=120).ok


def test_a_16_bit_normalization_a_little_beyond_what_calibration_saw() -> None:
    """The emulator wraps around just below the grid."""
    model = build("(float[1, 6] x) => (float[1, 6] y) { y = LpNormalization <axis = 1> (x) }")
    rest = np.array([0.5, -0.4, 0.6, -0.3, 0.1])
    feeds = []
    for least in (0.896, 0.8964, 0.897):
        others = rest * np.sqrt((1 - least**2) / (rest**2).sum())
        feeds.append({"x": np.concatenate([[-least], others])[None].astype(np.float32) * 7})
    q = onnxq.quantize(model, feeds[:1], backend="qnn", options=Options(act_bits=16, range="minmax"))
    for feed in feeds[1:]:
        assert max(one.steps for one in compare_layers(q.qdq(), RUNTIME, [feed], timeout=120)) <= 1


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_takes_the_elements_it_should(coordinates: str, rounding: str) -> None:
    """As they stand, half of these the HTP computes wrongly without a word."""
    how = f'coordinate_transformation_mode = "{coordinates}", nearest_mode = "{rounding}"'
    model = build(
        f"""(float[1, 3, 6, 6] x) => (float[1, 3, 12, 12] y, float[1, 3, 9, 3] z) {{
            y = Resize <{how}> (x, , twice)
            z = Resize <{how}> (x, , other)
        }}""",
        twice=f32([1, 1, 2, 2]),
        other=f32([1, 1, 1.5, 0.5]),
    )
    feeds = feeds_for(model, samples=2)
    q = onnxq.quantize(model, feeds, backend="qnn")
    assert not q.plan.kept_float
    assert max(one.differing for one in compare_layers(q.qdq(), RUNTIME, feeds, timeout=120)) == 0


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ("y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 0], ceil_mode = 1> (r)", {}),
        ("y = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (r)", {}),
        ("y = Gather <axis = 2> (r, i)", {"i": np.array(-1)}),
        ("y = Gather <axis = 1> (r, i)", {"i": np.array([[0, -1], [-2, 1]])}),
    ],
)
def test_what_is_written_otherwise(nodes: str, constants: dict[str, Any]) -> None:
    """As they stand, the HTP computes these wrongly without a word."""
    model = build(f"(float[1, 3, 9, 7] x) => (float y) {{ r = Neg (x)\n {nodes} }}", **constants)
    feeds = feeds_for(model, samples=2)
    q = onnxq.quantize(model, feeds, backend="qnn")
    assert not q.plan.kept_float
    assert max(one.steps for one in compare_layers(q.qdq(), RUNTIME, feeds, timeout=120)) <= 1


@pytest.mark.parametrize(
    ("nodes", "opset", "constants"),
    [
        ("y = GroupNormalization <num_groups = 2> (c, s, b)", 21, {"s": 1 + normal(4, scale=0.1), "b": normal(4)}),
        ("y = Swish <alpha = 1.5> (c)", 24, {}),
        ("g = GlobalAveragePool (c) f = Flatten (g) y = Gemm (f, m, one)", 17, {"m": normal(4, 3), "one": f32(0.25)}),
        ("f = Reshape (c, rows) y = Gemm (f, m, many)", 17, {"m": normal(36, 3), "many": normal(4, 3)}),
    ],
)
def test_what_the_htp_refuses_as_it_stands(nodes: str, opset: int, constants: dict[str, Any], tmp_path: Path) -> None:
    model = build(
        f"(float[1, 3, 8, 8] x) => (float y) {{ c = Conv (x, w)\n {nodes} }}",
        opset=opset,
        ir_version=10,
        w=normal(4, 3, 3, 3),
        rows=np.array([4, 36]),
        **constants,
    )
    feeds = feeds_for(model, samples=2)
    made = onnxq.quantize(model, feeds, backend="qnn", output=tmp_path)
    assert onnxq.verify(made, feeds, backend="qnn", timeout=120).ok


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("side", [2, 3, 4, 6, 8])
def test_mean_pools_side_by_side(tmp_path: Path, side: int, bits: int) -> None:
    """With a scale of its own a pool of even sides above 2 is cut at its result's range, inside."""
    how = f"kernel_shape = [{side}, {side}], strides = [{side}, {side}]"
    model, path = build(f"(float[1, 3, 24, 24] x) => (float[1, 3, h, w] y) {{ y = AveragePool <{how}> (x) }}"), "q.onnx"
    feeds = feeds_for(model, samples=4)
    q = onnxq.quantize(model, feeds, backend="qnn", output=tmp_path / path, options=Options(act_bits=bits))
    seen, session = examine(RUNTIME, tmp_path / path, feeds), Session(q.qdq(), optimize=False)
    assert not seen.floating
    most = (1.01 if bits == 8 else 4.01) * float(q.qparams["y"].scale)
    for feed, got in zip(feeds, seen.outputs, strict=True):
        assert np.abs(session.run(feed)["y"] - got["y"]).max() <= most


@pytest.mark.parametrize(("arch", "soc"), [("68", "30"), ("73", "43")])
@pytest.mark.parametrize("length", [5, 64, 200, 500])
def test_a_softmax_over_many_that_are_much_alike(tmp_path: Path, length: int, arch: str, soc: str) -> None:
    """With the scale that its range asks for, rows of 64 come out 2 % too large, those of 500 15 %."""
    call = "h = MatMul (x, w)\n y = Softmax (h)"
    model = build(f"(float[1, 6, 8] x) => (float[1, 6, {length}] y) {{ {call} }}", w=normal(8, length, scale=0.2))
    feeds, path = images(1, 6, 8, samples=3), tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, backend="qnn", output=path)
    seen, session = examine(RUNTIME, path, feeds, arch=arch, soc=soc), Session(q.qdq(), optimize=False)
    assert sqnr([session.run(f)["y"] for f in feeds], [o["y"] for o in seen.outputs]) >= 40


@pytest.mark.parametrize(("arch", "soc"), [("68", "30"), ("73", "43")])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("shape", [(16,), (3, 5, 16), (2, 3, 5, 16)])
def test_scales_per_channel_of_a_product(
    tmp_path: Path, shape: tuple[int, ...], bits: int, arch: str, soc: str
) -> None:
    """In 16 bits an HTP 68 is less precise, with one scale as well."""
    weight = normal(16, 12, scale=0.3) * np.geomspace(0.02, 2, 12, dtype=np.float32)
    model = build(f"(float[{', '.join(map(str, shape))}] x) => (float y) {{ y = MatMul (x, w) }}", w=weight)
    feeds, path = images(*shape, samples=2), tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, backend="qnn", output=path, options=Options(act_bits=bits))
    assert q.qparams["w"].scale.shape == (12,)
    seen = examine(RUNTIME, path, feeds, arch=arch, soc=soc)
    assert not seen.floating
    session, step = Session(q.qdq(), optimize=False), float(q.qparams["y"].scale)
    for feed, got in zip(feeds, seen.outputs, strict=True):
        assert (
            np.abs(session.run(feed)["y"] - got["y"]).max() <= {8: 1.01, 16: 2.01 if arch == "73" else 25}[bits] * step
        )


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("op", "rows"), [("Gather", (4,)), ("GatherElements", (4, 6))])
def test_what_is_gathered_has_the_scale_of_its_table(tmp_path: Path, op: str, rows: tuple[int, ...], bits: int) -> None:
    """With another one the HTP compiles no graph."""
    table = normal(9, 6, scale=1.0)
    table[-1] *= 4  # no sample asks for it
    signature = f"(float[4, 6] x, int64[{', '.join(map(str, rows))}] i) => (float[4, 6] y)"
    model = build(f"{signature} {{ t = {op} (table, i)\n y = Add (t, x) }}", table=table)
    feeds: list[dict[str, Any]] = [{"x": normal(4, 6, scale=1.0), "i": np.random.default_rng(0).integers(0, 5, rows)}]
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, backend="qnn", output=path, options=Options(act_bits=bits))
    assert not q.plan.kept_float
    (got,) = (seen["y"] for seen in examine(RUNTIME, path, feeds).outputs)
    want = Session(q.qdq(), optimize=False).run(feeds[0])["y"]
    assert np.abs(got - want).max() <= 1.01 * float(q.qparams["y"].scale)


@pytest.mark.parametrize("least", [1e-4, 0.1, 30.0])
def test_one_divided_by_small_and_large_numbers(least: float) -> None:
    """onnxruntime-qnn takes the 1 of a Reciprocal on the grid of what divides it, which may end below 1."""
    model = build("(float[1, 64] x) => (float[1, 64] y) { y = Reciprocal (x) }")
    feeds = [{"x": np.linspace(least, 4 * least, 64, dtype=np.float32)[None]}]
    q = onnxq.quantize(model, feeds, backend="qnn")
    assert not q.plan.kept_float
    assert max(one.steps for one in compare_layers(q.qdq(), RUNTIME, feeds, timeout=120)) <= 1


@pytest.mark.parametrize("value", [-5.0, 0.5, 8.0])
def test_a_border_beyond_the_range_of_what_is_padded(value: float) -> None:
    model = build(
        "(float[1, 3, 6, 6] x) => (float[1, 3, 8, 8] y) { r = Relu (x)\n y = Pad (r, pads, value) }",
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        value=f32(value),
    )
    feeds = feeds_for(model, samples=2)
    layers = compare_layers(onnxq.quantize(model, feeds, backend="qnn").qdq(), RUNTIME, feeds, timeout=120)
    assert max(one.steps for one in layers) <= 1


@pytest.mark.parametrize(
    ("before", "rows", "columns"),
    [("Conv <pads = [1, 1, 1, 1]> (x, w)", rows, 8) for rows in (8, 10, 12, 24, 40)]
    + [
        ("Conv <pads = [1, 1, 1, 1]> (x, w)", 12, 12),
        ("MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)", 24, 8),
        ("InstanceNormalization (x, g, g)", 24, 8),
        ("MatMul (x, m)", 24, 8),
    ],
)
def test_a_picture_times_its_sigmoid_in_16_bits(before: str, rows: int, columns: int, tmp_path: Path) -> None:
    """Without the Abs between them most of these have 1 to 6 dB."""
    size = f"float[1, 8, {rows}, {columns}]"
    constants = {"w": normal(8, 8, 3, 3), "g": normal(8), "m": normal(8, 8)}
    model = build(
        f"({size} x) => (float[1, 8, h, k] y) {{ a = {before}\n {SILU} }}",
        **{name: array for name, array in constants.items() if f", {name}" in before},  # type: ignore[arg-type]
    )
    feeds, path = feeds_for(model, samples=2), tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, backend="qnn", output=path, options=Options(act_bits=16))
    seen, session = examine(RUNTIME, path, feeds), Session(q.qdq(), optimize=False)
    assert not seen.floating
    assert sqnr([session.run(f)["y"] for f in feeds], [o["y"] for o in seen.outputs]) > 60


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("pads", ["1, 1, 1, 1", "0, 1, 0, 0"])
@pytest.mark.parametrize("side", [2, 3, 4])
def test_a_mean_pool_side_by_side_that_counts_its_padding(tmp_path: Path, side: int, pads: str, bits: int) -> None:
    """As it stands one has -2 to 0 dB, whatever its sides. Of 4 by 4 the HTP rounds twice."""
    how = f"kernel_shape = [{side}, {side}], strides = [{side}, {side}], pads = [{pads}], count_include_pad = 1"
    model = build(f"(float[1, 8, 12, 12] x) => (float[1, 8, h, w] y) {{ y = AveragePool <{how}> (x) }}")
    feeds, path = feeds_for(model, samples=2), tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, backend="qnn", output=path, options=Options(act_bits=bits))
    seen, session = examine(RUNTIME, path, feeds), Session(q.qdq(), optimize=False)
    assert not seen.floating
    assert sqnr([session.run(f)["y"] for f in feeds], [o["y"] for o in seen.outputs]) > 20


@pytest.mark.parametrize(("bits", "change"), [(16, "act_bits=8"), (8, "act_bits=16"), (8, "range=percentile:99")])
def test_an_operator_in_another_width(bits: int, change: str, tmp_path: Path) -> None:
    feeds = images(1, 4, 8, 8, samples=2)
    options = Options(act_bits=bits, override=[f"other={change}"])
    made = onnxq.quantize(mixed(), feeds, backend="qnn", output=tmp_path, options=options)
    found = onnxq.verify(made, feeds, backend="qnn", timeout=120)
    assert found.ok and not found.floating

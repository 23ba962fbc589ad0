"""Scales given that meet where a target has one for several tensors: nothing is cut off that the model given holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.deploying.shared import share_grids
from onnxq.plan import Edge, Plan, Site
from onnxq.qparams import QParams
from onnxq.spec import QuantSpec
from tests.contract import infer, sqnr
from tests.models import build, f32, images, normal

SMALL, LARGE = 0.002, 0.03


def joined(
    *, small: float = SMALL, large: float = LARGE, out: float | None = LARGE, middle: int = 0, more: str = ""
) -> onnx.ModelProto:
    """A Concat of two Relus on grids of their own, the first one's finer.

    Args:
        small: scale of the first.
        large: scale of the second.
        out: scale behind the Concat, if any.
        middle: zero point of the second.
        more: what else is computed, of output ``e``.
    """
    pairs = "c" if out is None else "cd"
    behind = "" if out is None else "cq = QuantizeLinear (c, so, z)  cd = DequantizeLinear (cq, so, z)"
    return build(
        f"""(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y{", float[1, 4, 6, 6] e" if more else ""}) {{
            xq = QuantizeLinear (x, sx, zx)  xd = DequantizeLinear (xq, sx, zx)
            u = DequantizeLinear (ku, sw, zw)  v = DequantizeLinear (kv, sw, zw)  w = DequantizeLinear (kw, sw, zw)
            a0 = Conv (xd, u)  a = Relu (a0)
            aq = QuantizeLinear (a, sa, z)  ad = DequantizeLinear (aq, sa, z)
            b0 = Conv (xd, v)  b = Relu (b0)
            bq = QuantizeLinear (b, sb, zb)  bd = DequantizeLinear (bq, sb, zb)
            c = Concat <axis = 1> (ad, bd)
            {behind}
            y = Conv ({pairs}, w)
            {more}
        }}""",
        ku=np.clip(np.rint(normal(4, 4, 1, 1, scale=3.0)), -127, 127).astype(np.int8),
        kv=np.clip(np.rint(normal(4, 4, 1, 1, scale=60.0, seed=1)), -127, 127).astype(np.int8),
        kw=np.clip(np.rint(normal(4, 8, 1, 1, scale=60.0, seed=2)), -127, 127).astype(np.int8),
        sx=f32(0.03),
        zx=np.uint8(128),
        sw=f32(0.02),
        zw=np.int8(0),
        z=np.uint8(0),
        zb=np.uint8(middle),
        sa=f32(small),
        sb=f32(large),
        so=f32(out or 1.0),
    )


def agreement(given: onnx.ModelProto, made: onnxq.Quantized) -> float:
    """SQNR in dB of the worst output against that of the model given."""
    feeds = images(1, 4, 6, 6)
    want, got = infer(given, feeds, optimize=False), infer(ir.to_proto(made.rendered()), feeds, optimize=False)
    return min(sqnr(want[name], got[name]) for name in want)


def scales(made: onnxq.Quantized) -> dict[str, float]:
    return {s.tensor: float(made.qparams[s.name].scale) for s in made.plan.sites if s.role == "activation"}


@pytest.mark.parametrize("turned", [False, True])
def test_what_a_concat_joins_gets_the_grid_that_holds_all(turned: bool) -> None:
    """Behind the Concat the model given has none."""
    given = joined(small=LARGE, large=SMALL * 50, out=None) if turned else joined(out=None)
    made = onnxq.deploy(given, backend="openvino")
    assert "c" not in {kept.node for kept in made.plan.kept_float}
    found, widest = scales(made), SMALL * 50 if turned else LARGE
    assert [found[t] for t in "abc"] == pytest.approx([widest] * 3, rel=1e-4)
    (told,) = [note for note in made.notes if "that of" in note]
    assert "openvino" in told and "'a'" in told
    assert agreement(given, made) > 30


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tvm", "rknn"])
@pytest.mark.parametrize(
    ("small", "large", "out"), [(SMALL, LARGE, LARGE), (LARGE, SMALL, LARGE), (SMALL, LARGE, SMALL)]
)
def test_grids_given_to_all_are_kept(backend: str, small: float, large: float, out: float) -> None:
    given = joined(small=small, large=large, out=out)
    made = onnxq.deploy(given, backend=backend)
    found = scales(made)
    wanted = {"a": small, "b": large, "c": out}
    assert {tensor: found[tensor] for tensor in wanted} == pytest.approx(wanted, rel=1e-4)
    assert agreement(given, made) > 50, "OpenVINO's scales are rounded"


def averaged(given: bool) -> onnx.ModelProto:
    """A layer's output, with numbers or without, by a MaxPool into a mean, whose own grid ends at a tenth of it."""
    quantizer = "aq = QuantizeLinear (a, t, z)  ad = DequantizeLinear (aq, t, z)" if given else "ad = Identity (a)"
    return build(
        f"""(float[1, 4, 6, 6] x) => (float[1, 4] y) {{
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear (w, sw, zw)
            a = Conv (xd, wd)
            {quantizer}
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (ad)
            [mean] g = GlobalAveragePool (p)
            f = Flatten (g)
            fq = QuantizeLinear (f, u, z)
            fd = DequantizeLinear (fq, u, z)
            vd = DequantizeLinear (v, sw, zw)
            b = MatMul (fd, vd)
            bq = QuantizeLinear (b, t, z)
            y = DequantizeLinear (bq, t, z)
        }}""",
        w=np.arange(-8, 8, dtype=np.int8).reshape(4, 4, 1, 1) * np.int8(15),
        v=np.arange(16, dtype=np.int8).reshape(4, 4),
        sw=f32(0.01),
        zw=np.int8(0),
        s=f32(0.03),
        t=f32(0.06),
        u=f32(0.006),
        z=np.uint8(128),
    )


@pytest.mark.parametrize("given", [True, False])
def test_a_mean_says_nothing_of_the_range_of_what_it_is_taken_of(given: bool) -> None:
    """RKNN computes means on the grid of their input: with that of the output all beyond it would be cut off."""
    model = averaged(given)
    made = onnxq.deploy(model, backend="rknn")
    found = scales(made)
    assert found.get("a", 0.06) == pytest.approx(0.06)
    assert ("mean" in {kept.node for kept in made.plan.kept_float}) != given
    assert given or agreement(model, made) > 100


def test_one_scale_already_is_left_as_it_is() -> None:
    given = joined(small=LARGE)
    made = onnxq.deploy(given, backend="openvino")
    assert scales(made)["a"] == pytest.approx(LARGE, rel=1e-4)
    assert not [note for note in made.notes if "several" in note]
    assert agreement(given, made) > 50, "OpenVINO's scales are rounded"


def test_ranges_none_of_which_holds_all_become_one_over_all() -> None:
    given = joined(small=LARGE, large=LARGE, out=None, middle=128)
    made = onnxq.deploy(given, backend="openvino")
    numbers = [made.qparams[s.name] for s in made.plan.sites if s.tensor in ("a", "b", "c")]
    assert len({float(n.scale) for n in numbers}) == 1
    assert float(numbers[0].lo) <= -128 * LARGE * 0.99 and float(numbers[0].hi) >= 255 * LARGE * 0.99


def test_other_widths_keep_their_own_numbers() -> None:
    """8 bits in front of a MaxPool, 16 behind it: no grid can take the place of both."""
    given = build(
        """(float[1, 4, 6, 6] x) => (float[1, 4, 3, 3] y) {
            xq = QuantizeLinear (x, sx, zx)  xd = DequantizeLinear (xq, sx, zx)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (xd)
            pq = QuantizeLinear (p, sp, zp)  y = DequantizeLinear (pq, sp, zp)
        }""",
        opset=21,
        ir_version=10,
        sx=f32(0.03),
        zx=np.uint8(128),
        sp=f32(0.0001),
        zp=np.uint16(30000),
    )
    made = onnxq.deploy(given, backend="qnn")
    assert all(site.tied_to is None for site in made.plan.sites)
    assert agreement(given, made) > 60


def grid(scale: float, bits: int = 8) -> QParams:
    """Numbers from 0 on."""
    return QParams(
        QuantSpec(bits, signed=False, symmetric=False), np.float32(scale).reshape(()), np.int64(0).reshape(())
    )


def between(nodes: str, outputs: str = "q", *, bits: int = 8) -> tuple[dict[str, float], list[str]]:
    """``a`` (0 to 25.5) becomes ``p``, without numbers, and that ``q`` (0 to 12.75), by operators that copy codes.

    Returns:
        The scales of ``a`` and ``q`` where the numbers are shared, and the tensors that were told of.
    """
    ends = ", ".join(f"float[1, 4, 6, 6] {name}" for name in outputs)
    return shared(f"(float[1, 4, 6, 6] x) => ({ends}) {{ a = Relu (x)\n {nodes} }}", bits=bits)


def shared(text: str, bits: int = 8) -> tuple[dict[str, float], list[str]]:
    """As :func:`between`, of a whole graph."""
    model = ir.from_proto(build(text, k=np.ones(4, np.float32)))
    spec = QuantSpec(signed=False, symmetric=False)
    sites = tuple(
        Site(name, name, "activation", spec, tuple(Edge(node, 0) for node in readers), tied_to=tied)
        for name, readers, tied in (("a", ("first", "side"), "q"), ("p", ("second",), "q"), ("q", (), None))
    )
    known = {node.name for node in model.graph.all_nodes()}
    sites = tuple(replace(s, readers=tuple(e for e in s.readers if e.node in known)) for s in sites)
    numbers = {"a": grid(0.1, bits), "q": grid(0.05)}
    told = share_grids(model, Plan("any", sites, {}), numbers)
    return {name: round(float(qp.scale), 6) for name, qp in numbers.items()}, told


POOL = "MaxPool <kernel_shape = [1, 1]>"


@pytest.mark.parametrize("last", [POOL, "Resize"])
def test_what_only_the_tie_reads_is_clipped_as_its_output_is(last: str) -> None:
    more = ", , k" if last == "Resize" else ""
    scales, told = between(f"[first] p = {POOL} (a)\n [second] q = {last} (p{more})")
    assert scales == {"a": 0.05, "q": 0.05} and told == ["a"]


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"[first] p = {POOL} (a)\n [second] q = AveragePool <kernel_shape = [1, 1]> (p)", "q"),
        (f"[first] p = AveragePool <kernel_shape = [1, 1]> (a)\n [second] q = {POOL} (p)", "q"),
        (f'[first] p = {POOL} (a)\n [second] q = Resize <mode = "linear"> (p, , k)', "q"),
        (f'[first] p = Resize <mode = "cubic"> (a, , k)\n [second] q = {POOL} (p)', "q"),
        (f"[first] p = {POOL} (a)\n [second] q = {POOL} (p)\n [side] s = Relu (a)", "qs"),
        (f"[first] p = {POOL} (a)\n [second] q = {POOL} (p)", "qp"),
        (f"[first] p = {POOL} (a)\n [second] q = {POOL} (p)", "qa"),
    ],
)
def test_what_is_averaged_or_seen_elsewhere_is_held_as_a_whole(nodes: str, outputs: str) -> None:
    scales, told = between(nodes, outputs)
    assert scales == {"a": 0.1, "q": 0.1} and told == ["q"]


def test_what_a_branch_gives_is_held_as_a_whole() -> None:
    ends = ", ".join(f"float[1, 4, 6, 6] {name}" for name in "qp")
    other = ", ".join(f"float[1, 4, 6, 6] {name}" for name in "rs")
    scales, told = shared(
        f"""(float[1, 4, 6, 6] x, bool c) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] z) {{
            y, z = If (c) <
                then_branch = one () => ({ends}) {{ a = Relu (x)
                    [first] p = {POOL} (a)
                    [second] q = {POOL} (p) }},
                else_branch = two () => ({other}) {{ r = Relu (x)
                    s = Neg (x) }}
            >
        }}"""
    )
    assert scales == {"a": 0.1, "q": 0.1} and told == ["q"]


def test_grids_of_other_widths_are_not_shared() -> None:
    scales, told = between(f"[first] p = {POOL} (a)\n [second] q = {POOL} (p)", bits=16)
    assert scales == {"a": 0.1, "q": 0.05} and told == []

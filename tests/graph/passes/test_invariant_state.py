from __future__ import annotations

import numpy as np
import onnx

from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.passes.normalize import normalize
from tests.graph.helpers import build, random, run
from tests.models import f32

LOOP = """g (float[1,4] x) => (float[m,n] y, float[k,m,n] all) {
    last, weight_end, y, all = Loop (trips, , x, w, b) <body = step
        (int64 i, bool c, float[1,4] h, float[4,4] u, float[4] v) =>
        (bool c_out, float[1,4] h_out, float[4,4] u_out, float[4] v_out, float[1,4] seen)
        { c_out = Identity(c) p = MatMul(h, u) q = Add(p, v) h_out = Tanh(q) t = Identity(u) u_out = Identity(t)
          v_out = Identity(v) seen = Identity(h_out) }>
    }"""


def model(text: str) -> onnx.ModelProto:
    return build(text, w=random(4, 4), b=random(4), trips=np.array(3, np.int64))


def test_states_that_never_change_are_read_from_outside() -> None:
    text = LOOP.replace("float[m,n] y,", "float[m,n] end,").replace("last, weight_end, y,", "last, weight_end, b_end,")
    proto = model(text.replace("\n    }", " end = MatMul(last, weight_end) }"))
    normal = load(proto)
    notes = normalize(normal)
    assert "2 states" in next(note.message for note in notes if note.pass_name == "invariant_state")
    loop = next(node for node in normal.graph if node.op_type == "Loop")
    body = loop.attributes["body"].as_graph()
    assert (len(loop.inputs), len(loop.outputs)) == (3, 2)
    assert (len(body.inputs), len(body.outputs)) == (3, 3)
    product = next(node for node in body if node.op_type in ("MatMul", "Gemm"))
    assert product.inputs[1] is normal.graph.initializers["w"]
    feeds = {"x": f32(random(1, 4))}
    for before, after in zip(run(proto, feeds), run(to_proto(normal), feeds), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


def test_a_state_whose_end_is_a_graph_output_stays() -> None:
    text = LOOP.replace("float[m,n] y", "float[m] y")
    proto = model(text)
    normal = load(proto)
    normalize(normal)
    loop = next(node for node in normal.graph if node.op_type == "Loop")
    assert (len(loop.inputs), len(loop.outputs)) == (4, 3)
    feeds = {"x": f32(random(1, 4))}
    for before, after in zip(run(proto, feeds), run(to_proto(normal), feeds), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


def test_states_that_change_places_or_become_a_constant_are_no_invariants() -> None:
    proto = build(
        """g (float[1,4] x, float[1,4] z) => (float[1,4] y) {
            a_end, b_end, c_end = Loop (trips, , x, z, x) <body = step
                (int64 i, bool c, float[1,4] a, float[1,4] b, float[1,4] d) =>
                (bool c_out, float[1,4] a_out, float[1,4] b_out, float[1,4] d_out)
                { c_out = Identity(c) a_out = Identity(b) b_out = Identity(a) d_out = Identity(one) }>
            s = Sub(a_end, b_end)  y = Add(s, c_end) }""",
        trips=np.array(3, np.int64),
        one=random(1, 4, seed=7),
    )
    normal = load(proto)
    normalize(normal)
    loop = next(node for node in normal.graph if node.op_type == "Loop")
    assert (len(loop.inputs), len(loop.outputs)) == (5, 3)
    feeds = {"x": f32(random(1, 4)), "z": f32(random(1, 4, seed=3))}
    for before, after in zip(run(proto, feeds), run(to_proto(normal), feeds), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-6)

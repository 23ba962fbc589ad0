"""What onnxq made for a target, deployed to that target again: nothing is refused, and no number moves."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import BackendError
from onnxq.measuring.metrics import Errors
from onnxq.measuring.verification import SourceAgreement
from tests.models import build, normal

FEEDS = [{"x": normal(2, 8, 16, seed=k, scale=1.0)} for k in range(4)]


def _net() -> onnx.ModelProto:
    """Operators whose weights some targets store otherwise than those of layers."""
    return build(
        """(float[2, 8, 16] x) => (float[2, 8, 16] y, float[2, 8, 1, 16] z) {
            a = MatMul (x, w)
            l = LayerNormalization <axis = -1> (a, g, b)
            i = InstanceNormalization (l, gi, bi)
            p = PRelu (i, s)
            c = Conv (p, wc, bc)
            q = MatMul (c, w2)
            y = Add (q, a)
            u = Unsqueeze (i, two)
            z = Conv (u, wz)
        }""",
        two=np.array([2]),
        wz=normal(8, 8, 1, 1, seed=11),
        w=normal(16, 16),
        g=normal(16, seed=3) + 1,
        b=normal(16, seed=4),
        gi=normal(8, seed=5) + 1,
        bi=normal(8, seed=6),
        s=normal(8, 1, seed=7),
        wc=normal(8, 8, 1, seed=8),
        bc=normal(8, seed=9),
        w2=normal(16, 16, seed=10),
    )


@pytest.mark.parametrize("name", [target.name for target in onnxq.backends()])
def test_numbers_are_kept(name: str) -> None:
    (target,) = (t for t in onnxq.backends() if t.name == name)
    form = next(name for name in target.formats if name in ("qdq", "fake-quantize"))
    options = Options(placement="all", format=form)
    made = onnxq.quantize(_net(), FEEDS, backend=name, options=options)
    again = onnxq.deploy(made.rendered(), backend=name, options=options)
    new = {(site.role, site.tensor): again.qparams[site.name] for site in again.plan.sites}
    kept = [site for site in made.plan.sites if site.role != "bias"]
    assert kept
    for site in kept:
        old, found = made.qparams[site.name], new[site.role, site.tensor]
        assert found.scale.tolist() == old.scale.tolist(), site.name
        assert found.zero_point.tolist() == old.zero_point.tolist(), site.name


def _with_open_ends() -> ir.Model:
    """Quantizers in front of convolutions only, as TensorRT likes them: the last one's output has no scale."""
    net = build(
        "(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) { a = Conv (x, v)\n r = Relu (a)\n y = Conv (r, w) }",
        v=normal(8, 8, 1, 1),
        w=normal(8, 8, 1, 1, seed=1),
    )
    feeds = [{"x": normal(1, 8, 6, 6, seed=k, scale=1.0)} for k in range(4)]
    options = Options(placement="all", per_channel=False)
    return onnxq.quantize(net, feeds, backend="tensorrt", options=options).rendered()


@pytest.mark.parametrize("name", ["qnn", "stpu", "tengine"])
def test_what_needs_a_scale_behind_it_stays_float_without(name: str) -> None:
    """The HTP refuses a convolution without, and the tables of the others need a line for each tensor."""
    made = onnxq.deploy(_with_open_ends(), backend=name)
    assert list(made.plan.quantized.values()) == ["Conv"]
    (kept,) = (k for k in made.plan.kept_float if k.op == "Conv")
    assert kept.reason == "tensor 'y' is not quantized in the model given"


@pytest.mark.parametrize("name", ["snpe", "ppl_cuda"])
def test_a_table_without_an_entry_is_told_of(name: str) -> None:
    made = onnxq.deploy(_with_open_ends(), backend=name)
    assert list(made.plan.quantized.values()) == ["Conv", "Conv"]
    assert "deploy: the model given has no scale for 'y': the table has no entry" in made.notes


def test_where_nothing_is_left_the_reasons_are_told() -> None:
    net = build("(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) { y = Conv (x, w) }", w=normal(8, 8, 1, 1))
    feeds = [{"x": normal(1, 8, 6, 6, seed=k, scale=1.0)} for k in range(4)]
    given = onnxq.quantize(net, feeds, backend="tensorrt", options=Options(placement="all")).rendered()
    with pytest.raises(
        BackendError, match=r"qnn quantizes none .* \(1 node: tensor 'y' is not quantized in the model given\)"
    ):
        onnxq.deploy(given, backend="qnn")


def test_what_is_read_from_a_quantized_table_has_its_scale() -> None:
    """Only the table has a quantizer in the model given; rows of it are on the same grid."""
    net = build(
        "(int64[2, 4] i) => (float[2, 4, 16] y) { e = Gather (t, i)\n l = LayerNormalization <axis = -1> (e, g, b)\n"
        " y = MatMul (l, w) }",
        t=normal(10, 16),
        g=normal(16, seed=1) + 1,
        b=normal(16, seed=2),
        w=normal(16, 16, seed=3),
    )
    feeds = [{"i": np.random.default_rng(k).integers(0, 10, (2, 4))} for k in range(8)]
    made = onnxq.quantize(net, feeds, backend="qnn", options=Options(placement="all"))
    given = ir.to_proto(made.rendered())
    (table,) = (qp for site in made.plan.sites if site.tensor == "t" for qp in [made.qparams[site.name]])
    _drop_pair_behind(given, "e")
    again = onnxq.deploy(given, backend="qnn")
    assert "LayerNormalization" in again.plan.quantized.values()
    (rows,) = (again.qparams[site.name] for site in again.plan.sites if site.tensor == "e")
    assert rows.scale == table.scale and rows.zero_point == table.zero_point


def _drop_pair_behind(model: onnx.ModelProto, tensor: str) -> None:
    """Leave out a quantizer and the dequantizer behind it."""
    (quantize,) = (n for n in model.graph.node if n.op_type == "QuantizeLinear" and tensor in n.input[0])
    (dequantize,) = (n for n in model.graph.node if n.input and n.input[0] == quantize.output[0])
    for node in model.graph.node:
        for at, name in enumerate(node.input):
            if name == dequantize.output[0]:
                node.input[at] = quantize.input[0]
    model.graph.node.remove(quantize)
    model.graph.node.remove(dequantize)


def test_quantizers_that_a_target_leaves_out_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTP computes a GELU from integers to integers, onnxruntime in float."""
    net = build(
        """(float[1, 8, 16] x) => (float[1, 8, 16] y) {
            a = MatMul (x, w)
            d = Div (a, root)
            e = Erf (d)
            p = Add (e, one)
            m = Mul (a, p)
            h = Mul (m, half)
            y = MatMul (h, v)
        }""",
        w=normal(16, 16),
        v=normal(16, 16, seed=1),
        root=np.float32(2**0.5).reshape(1),
        one=np.ones(1, np.float32),
        half=np.full(1, 0.5, np.float32),
    )
    feeds = [{"x": normal(1, 8, 16, seed=k, scale=3.0)} for k in range(8)]
    given = onnxq.quantize(net, feeds, backend="qnn", options=Options(placement="all")).rendered()
    (told,) = _left_out(onnxq.deploy(given, backend="onnxruntime"))
    assert "2 quantizers of activations in the model given are left out" in told
    assert "where onnxruntime computes in float: 'a', 'y'; the result rounds less often" in told
    losing = SourceAgreement(3, {"y": Errors(samples=3, sqnr=2.0, score=2.0)}, warnings=("it loses more",))
    monkeypatch.setattr(sys.modules["onnxq.deploy"], "against_source", lambda *_: losing)
    (told,) = _left_out(onnxq.deploy(given, backend="onnxruntime"))
    assert "rounds less often" not in told
    monkeypatch.undo()
    monkeypatch.setattr(sys.modules["onnxq.deploying.unlike"], "_ALIKE", 0.0)
    assert not _left_out(onnxq.deploy(given, backend="onnxruntime")), "it makes next to no difference"


def _left_out(made: onnxq.Quantized) -> list[str]:
    assert made.verification is not None
    return [text for text in made.verification.warnings if "left out" in text]

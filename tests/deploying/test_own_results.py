"""What onnxq made for a target, deployed to that target again: nothing is refused, and no number moves."""

from __future__ import annotations

import onnx
import pytest

import onnxq
from onnxq import Options
from tests.models import build, normal

FEEDS = [{"x": normal(2, 8, 16, seed=k, scale=1.0)} for k in range(4)]


def _net() -> onnx.ModelProto:
    """Operators whose weights some targets store otherwise than those of layers."""
    return build(
        """(float[2, 8, 16] x) => (float[2, 8, 16] y) {
            a = MatMul (x, w)
            l = LayerNormalization <axis = -1> (a, g, b)
            i = InstanceNormalization (l, gi, bi)
            p = PRelu (i, s)
            c = Conv (p, wc, bc)
            q = MatMul (c, w2)
            y = Add (q, a)
        }""",
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

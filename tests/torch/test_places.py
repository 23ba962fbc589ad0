"""Sites that share numbers are found in time that grows with the graph, and no faster."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import onnxq
from onnxq import Options
from onnxq.plan import Edge, Plan, Site
from onnxq.spec import QuantSpec, Scheme
from tests.counting import lines_of
from tests.models import build, feeds_for, normal

pytest.importorskip("torch", reason="the extra torch is not installed")

from onnxq.torch import GraphModule
from onnxq.torch.places import shared_numbers
from onnxq.torch.student import Student

CLIP = QuantSpec(scheme=Scheme.LOGARITHMIC)


def site(name: str, *nodes: str, tied_to: str | None = None, spec: QuantSpec = CLIP) -> Site:
    return Site(name, name, "activation", spec, tuple(Edge(node, 0) for node in nodes), tied_to=tied_to)


def test_what_meets_in_a_layer_shares_its_numbers() -> None:
    sites = (
        site("a", "n"),
        site("b", "m"),
        site("c", "k"),
        site("d", "n", "m"),  # joins a and b
        site("e", tied_to="c"),
        site("f", "l", tied_to="e"),
        site("g", "l", "m"),  # joins what is tied to c
        site("h", "o"),
        site("u", "n", spec=QuantSpec()),
    )
    found = shared_numbers(Plan("x", sites, {}))
    assert len({found[name] for name in "abcdefg"}) == 1
    assert found["h"] == "h" and found["u"] == "u"
    assert all(found[root] == root for root in found.values())


def chain(count: int) -> Any:
    body = "\n".join(f"a{k} = MatMul (t{k}, w{k})\nt{k + 1} = Tanh (a{k})" for k in range(count))
    text = f"(float[1, 4] t0) => (float[1, 4] y) {{ {body}\ny = Relu (t{count}) }}"
    weights: dict[str, Any] = {f"w{k}": normal(4, 4, seed=k) for k in range(count)}
    return build(text, **weights)


def steps(count: int) -> dict[str, int]:
    """Lines of Python run in onnxq/torch to make each of the two that train a model."""
    model = chain(count)
    options = Options(placement="all", effort="fast", min_sqnr=-99)
    quantized = onnxq.quantize(model, feeds_for(model, samples=2), options=options)
    return {kind.__name__: lines_of(partial(kind, quantized), "onnxq/torch/") for kind in (GraphModule, Student)}


def test_long_graphs_are_made_in_linear_time() -> None:
    short, long = steps(8), steps(32)
    for name, lines in long.items():
        assert lines < 4.5 * short[name], (name, lines, short[name])

"""Targets of Reshape that are computed from shapes become constants that mean the same."""

from __future__ import annotations

import time

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.passes.normalize import normalize
from onnxq.graph.passes.reshape_targets import fold_targets
from tests.contract import infer
from tests.graph.helpers import build, ops
from tests.models import feeds_for, i64

NUMBERS = {
    "at": np.array(0, np.int64),
    "zero": i64([0]),
    "one": i64([1]),
    "two": i64([2]),
    "three": i64([3]),
    "rest": i64([-1]),
    "front": i64([0, 1]),
    "swapped": i64([1, 0]),
    "last": i64([128]),
}

KNOWN = {
    # TensorFlow's dense layer of several axes, which counts in 32 bits
    "dense": (
        "h = Cast <to = 6> (d)  g = Gather (h, front)  l = Cast <to = 6> (last)  c = Concat <axis = 0> (g, l)  "
        "t = Cast <to = 7> (c)",
        [-1, 6, 128],
    ),
    # its einsum: axes in front multiplied, one left to the Reshape
    "einsum": (
        "g = Gather (d, front)  p = ReduceProd <keepdims = 1> (g)  k = Gather (d, three)  "
        "t = Concat <axis = 0> (p, rest, k)",
        [-1, 8, 16],
    ),
    "slice": ("b = Slice (d, zero, one)  t = Concat <axis = 0> (b, rest)", [-1, 768]),
    "scalar": ("b = Gather (d, at)  u = Unsqueeze (b, zero)  t = Concat <axis = 0> (u, rest)", [-1, 768]),
    "largest": ("g = Gather (d, front)  m = Max (g, g)  t = Concat <axis = 0> (m, last)", [-1, 6, 128]),
    "product": ("b = Gather (d, zero)  s = Mul (b, two)  t = Concat <axis = 0> (s, rest)", [-1, 384]),
    "copied": ("b = Gather (d, zero)  t = Concat <axis = 0> (b, zero, last)", [-1, 6, 128]),
    "counted": ("c = ReduceSum <keepdims = 0> (x)  z = Mul (c, c)  i = Cast <to = 7> (z)  s = Sub (i, i)  "
                "o = Unsqueeze (s, zero)  e = Add (o, one)  t = Concat <axis = 0> (e, rest, last)", None),
}  # fmt: skip


def _target(model: ir.Model) -> list[int] | None:
    """The constant target of the only Reshape."""
    node = next(node for node in model.graph if node.op_type == "Reshape")
    held = node.inputs[1].const_value if node.inputs[1] is not None else None
    return None if held is None else held.numpy().tolist()


def _normalized(body: str, sizes: str, rank: int, attribute: str = "", **free: int) -> ir.Model:
    """The model with what is computed in front of a Reshape, normalized, that gives the same for several sizes."""
    ends = ", ".join("PQRS"[:rank])
    text = f"g (float[{sizes}] x) => (float[{ends}] y) {{ d = Shape (x)  {body}  r = Reshape {attribute} (x, t)  "
    proto = build(text + "y = Relu (r) }", **NUMBERS)
    model = load(proto)
    normalize(model)
    for times in (1, 3):
        feeds = feeds_for(proto, **{name: times * size for name, size in free.items()})
        got, want = (infer(each, feeds, optimize=False)["y"] for each in (ir.to_proto(model), proto))
        np.testing.assert_array_equal(got, want)
    return model


@pytest.mark.parametrize("name", KNOWN)
def test_one_size_is_free(name: str) -> None:
    body, wanted = KNOWN[name]
    model = _normalized(body, "B, 6, 8, 16", 3 if wanted is None else len(wanted), B=1)
    assert _target(model) == wanted
    if wanted is not None:
        assert ops(model) == ["Reshape", "Relu"]


def test_what_is_behind_has_a_known_shape() -> None:
    model = _normalized(KNOWN["dense"][0], "B, 6, 8, 16", 3, B=1)
    shape = next(node for node in model.graph if node.op_type == "Reshape").outputs[0].shape
    assert shape is not None
    assert list(shape)[1:] == [6, 128]


def test_two_free_sizes_of_which_one_is_copied() -> None:
    body = "g = Gather (d, front)  t = Concat <axis = 0> (g, last)"
    assert _target(_normalized(body, "B, T, 8, 16", 3, B=2, T=5)) == [0, -1, 128]


@pytest.mark.parametrize(("places", "attribute"), [("swapped", ""), ("front", "<allowzero = 1>")])
def test_two_free_sizes_stay_computed(places: str, attribute: str) -> None:
    body = f"g = Gather (d, {places})  t = Concat <axis = 0> (g, last)"
    assert _target(_normalized(body, "B, T, 8, 16", 3, attribute, B=2, T=5)) is None


def test_no_samples() -> None:
    """A batch of none has the sizes behind it that it had."""
    proto = build(
        "g (float[B, 6, 8, 16] x) => (float[P, Q, R] y) { d = Shape (x)  g = Gather (d, front)  "
        "t = Concat <axis = 0> (g, last)  r = Reshape (x, t)  y = Relu (r) }",
        **NUMBERS,
    )
    model = load(proto)
    normalize(model)
    assert _target(model) == [-1, 6, 128]
    given = [{"x": np.zeros((0, 6, 8, 16), np.float32)}]
    assert infer(ir.to_proto(model), given, optimize=False)["y"][0].shape == (0, 6, 128)


def test_random_numbers_stay_computed() -> None:
    """What is made of no input is no size that is known."""
    body = "r = RandomUniform <shape = [2], low = 1.0, high = 2.0> ()  t = Cast <to = 7> (r)"
    model = load(build(f"g (float[B, 6] x) => (float[P, Q] y) {{ {body}  y = Reshape (x, t) }}"))
    normalize(model)
    assert _target(model) is None


@pytest.mark.parametrize("step", ["Mul ({0}, {0})", "Concat <axis = 0> ({0}, {0})", "Max ({0}, {0})"])
@pytest.mark.parametrize("place", ["zero", "one"])
def test_a_chain_that_doubles_takes_no_longer_than_it_is(place: str, step: str) -> None:
    chain = "  ".join(f"s{k + 1} = {step.format(f's{k}')}" for k in range(28))
    body = f"d = Shape (x)  s0 = Gather (d, {place})  {chain}  g = Gather (s28, zero)"
    text = f"g (float[B, 6] x) => (float[P, Q] y) {{ {body}  t = Concat <axis = 0> (g, rest)  y = Reshape (x, t) }}"
    model = load(build(text, **NUMBERS))
    start = time.process_time()
    fold_targets(model)
    assert time.process_time() - start < 1

"""Inputs for models without data."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq.errors import ModelError
from onnxq.graph.files.load_named import load_named
from onnxq.measuring.random_inputs import random_inputs
from tests.models import build, normal


def test_numbers_lie_in_the_range_of_what_the_input_becomes() -> None:
    model = load_named(
        build(
            "(float[N, 8, 8, 3] x, float[N, 5] z) => (float[N, 3, 8, 8] y) { y = Transpose <perm = [0, 3, 1, 2]> (x) }"
        )
    )
    first, second, third = random_inputs(model, {"y": (-2.0, 6.0)}, 7, 3)
    assert first["x"].shape == (1, 8, 8, 3) and first["x"].dtype == np.float32 and first["z"].shape == (1, 5)
    assert -2 <= first["x"].min() < -1.8 and 5.8 < first["x"].max() <= 6
    assert second["x"].min() >= 0 and second["x"].max() <= 4 and third["x"].min() >= 1
    (again, *_) = random_inputs(model, {"y": (-2.0, 6.0)}, 7, 3)
    assert np.array_equal(first["x"], again["x"])


def test_free_sizes_and_rows_of_a_table() -> None:
    text = """(int64[N, T] k, bool[T] m, uint8[2, T] p) => (float[N, T, 4] y) {
        j = Unsqueeze (k, axes)
        i = Squeeze (j, axes)
        y = Gather (table, i)
    }"""
    model = load_named(build(text, table=normal(9, 4, scale=1.0), axes=np.array([2])))
    (feeds,) = random_inputs(model, {}, 64, 1)
    assert feeds["k"].shape == (1, 64) and feeds["k"].max() == 8 and feeds["k"].min() == 0
    assert feeds["m"].all() and feeds["p"].max() > 200 and feeds["p"].dtype == np.uint8


def test_strings_have_none() -> None:
    model = load_named(build("(string[2] s) => (string[2] y) { y = Identity (s) }"))
    with pytest.raises(ModelError, match=r"input 's': no random values can be made for its type"):
        list(random_inputs(model, {}, 1, 1))


def test_a_decoder_runs_with_an_empty_cache() -> None:
    """Its mask is as long as the cache and the new tokens together, which no one size fits."""
    text = """(int64[N, S] ids, int64[N, T] mask, float[N, P, 8] past) => (float[N, 1, 8] y, float[N, T, 8] present) {
        x = Gather (table, ids)
        new = MatMul (x, w)
        present = Concat <axis = 1> (past, new)
        row = Unsqueeze (mask, one)
        kept = Cast <to = 1> (row)
        y = MatMul (kept, present)
    }"""
    model = build(text, table=normal(9, 8, scale=1.0), w=normal(8, 8), one=np.array([1]))
    random = np.random.default_rng(0)
    feeds = [
        {
            "ids": random.integers(0, 9, (1, 4)),
            "mask": np.ones((1, 7), np.int64),
            "past": random.normal(size=(1, 3, 8)).astype(np.float32),
        }
        for _ in range(4)
    ]
    made = onnxq.quantize(model, feeds, backend="tensorrt").rendered()
    checked = onnxq.deploy(ir.serde.serialize_model(made), backend="tensorrt").verification
    assert checked is not None and checked.against_source is not None
    assert checked.against_source.samples == 3 and not checked.against_source.skipped


def test_places_in_a_graph_are_those_that_it_has() -> None:
    """A graph of as many nodes as the first axis, which is 1: an edge between others than the first is none."""
    text = """(float[N, 8] x, int64[E] ends) => (float[N, 8] y) {
        at = Gather (x, ends)
        sent = MatMul (at, w)
        none = Sub (x, x)
        there = Unsqueeze (ends, one)
        got = ScatterND <reduction = "add"> (none, there, sent)
        both = Add (x, got)
        y = MatMul (both, w)
    }"""
    model = build(text, opset=18, w=normal(8, 8), one=np.array([1]))
    random = np.random.default_rng(0)
    feeds = [
        {"x": random.normal(size=(5, 8)).astype(np.float32), "ends": random.integers(0, 5, (9,))} for _ in range(4)
    ]
    made = onnxq.quantize(model, feeds, backend="openvino").rendered()
    checked = onnxq.deploy(ir.serde.serialize_model(made), backend="openvino").verification
    assert checked is not None and checked.against_source is not None
    assert checked.against_source.samples == 3 and not checked.against_source.skipped

"""The default effort turns the channels of transformers, and of others where the result is poor, if that is better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from onnxq import Options, Quantized, quantize
from tests.contract import quantize_checked
from tests.models import images, verified_sqnr
from tests.turnable import blocks, bottlenecks

ALONE = ("bias_correction",)


def test_a_transformer_is_turned() -> None:
    model, feeds = blocks(outlier=40.0), images(1, 16, 12, samples=24)
    options = Options(placement="all")
    plain, turned = (
        quantize_checked(model, feeds, o, least=None) for o in (replace(options, algorithms=ALONE), options)
    )
    assert turned.worst >= plain.worst + 6.0


@pytest.mark.parametrize("target", ["openvino", "qnn", "tensorrt", "vitis"])
def test_for_every_target(target: str) -> None:
    model, feeds = blocks(outlier=40.0), images(1, 16, 12, samples=24)
    options = Options(placement="all")
    plain, turned = (
        quantize(model, feeds, backend=target, options=o).verification
        for o in (replace(options, algorithms=ALONE), options)
    )
    assert plain is not None and plain.worst is not None
    assert turned is not None and turned.worst is not None
    assert turned.worst[1].sqnr >= plain.worst[1].sqnr + 3.0


def test_what_was_done_is_said_and_can_be_asked_for() -> None:
    model, feeds = blocks(outlier=40.0), images(1, 16, 12, samples=24)
    made = quantize(model, feeds, options=Options(placement="all"))
    assert made.recipe[1:] == ("rotate", "bias_correction")
    assert any(note.startswith("rotate: 1 place turned, worst output ") for note in made.notes), made.notes
    asked = quantize(model, feeds, options=Options(placement="all", algorithms=made.recipe[1:]))
    for mine, theirs in zip(_arrays(made), _arrays(asked), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_gains_nothing_stays_as_it_is() -> None:
    model, feeds = blocks(outlier=1.0), images(1, 16, 12, samples=24)
    made = quantize(model, feeds, options=Options(placement="all"))
    assert made.recipe[1:] == ALONE
    assert not [note for note in made.notes if "rotate" in note]
    plain = quantize(model, feeds, options=Options(placement="all", algorithms=ALONE))
    for mine, theirs in zip(_arrays(made), _arrays(plain), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("bits", "turned"), [(4, True), (8, False)])
def test_others_are_turned_only_where_the_result_is_poor(bits: int, turned: bool) -> None:
    model, feeds = bottlenecks(outliers=True), images(1, 3, 8, 8, samples=24)
    made = quantize(model, feeds, options=Options(placement="all", weight_bits=bits, weight_symmetric=True))
    assert ("rotate" in made.recipe) is turned, made.notes


@pytest.mark.parametrize("target", ["qnn", "snpe"])
def test_others_are_turned_for_onnxruntime_alone(target: str) -> None:
    """Where several targets are asked for, trials that seldom gain would take most of the time."""
    model, feeds = bottlenecks(outliers=True), images(1, 3, 8, 8, samples=24)
    made = quantize(model, feeds, backend=target, options=Options(placement="all", weight_bits=4))
    assert verified_sqnr(made) < 20 and "rotate" not in made.recipe


def test_effort_fast_and_algorithms_of_ones_own_turn_nothing() -> None:
    model, feeds = blocks(outlier=40.0), images(1, 16, 12, samples=24)
    for options in (Options(placement="all", effort="fast"), Options(placement="all", algorithms=ALONE)):
        assert "rotate" not in quantize(model, feeds, options=options).recipe


def _arrays(made: Quantized) -> list[NDArray[Any]]:
    return [onnx.numpy_helper.to_array(tensor) for tensor in ir.to_proto(made.rendered()).graph.initializer]

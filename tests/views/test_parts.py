"""How accuracy is told: what a mean hides, and what is nothing but rounding; and how long names are."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.measuring.metrics import ErrorMeter
from onnxq.options.patterns import Names, match
from onnxq.plan import Kept
from onnxq.views.parts import accuracy_text, kept_rows, shortened
from tests.models import f32


def said(reference: np.ndarray, result: np.ndarray) -> str:
    meter = ErrorMeter()
    meter.update(reference, result)
    return accuracy_text(meter.result())


def test_a_mean_that_hides_the_loss_is_told_with_what_varies() -> None:
    rng = np.random.default_rng(0)
    signal, error = rng.standard_normal((2, 4096)).astype(np.float32)
    assert said(signal + 10, signal + 10 + error / 10) == "40.0 dB, 19.9 dB of what varies"
    assert said(signal, signal + error / 10) == "19.9 dB"


def test_rounding_of_the_last_bit_is_no_loss() -> None:
    signal = np.random.default_rng(0).standard_normal(4096)
    assert said(signal, signal * (1 + 1e-15)) == "exact but for rounding of the last bit"
    assert said(f32(signal), f32(signal)) == "exact"
    assert said(signal, signal * (1 + 1e-6)).endswith(" dB")


ROOT = "StatefulPartitionedCall/mobilenetv2_1.00_224/"
LONG = [
    f"{ROOT}block_{k}_expand_BN/FusedBatchNormV3;{ROOT}block_{k}_expand/Conv2D[{k}];{ROOT}block_{k}_expand/BiasAdd"
    for k in range(3)
]


def test_long_names_are_told_as_patterns_that_match_them_alone() -> None:
    named = [*LONG, *(f"{ROOT}block_{k}_add/add" for k in range(3))]
    brief = shortened(named)
    assert all(len(text) <= 61 for text in brief) and brief[3] == "*/block_0_add/add"
    names = Names(dict.fromkeys(named, "Conv"), [f"{name}:0" for name in named])
    for name, text in zip(named, brief, strict=True):
        (found,) = match([text], names)
        assert found.nodes == {name} and not found.tensors


TOWER = "/model/vision_tower/"
LAYERS = [f"{TOWER}transformer/layers.{k}/attention/self_attention/query_projection_with_norm/MatMul" for k in range(4)]


@pytest.mark.parametrize("named", [[f"{TOWER}stem", *LAYERS], [f"{TOWER}head/a", f"{TOWER}head/b/head/a"], LAYERS])
def test_no_pattern_matches_two_names(named: list[str]) -> None:
    names = Names(dict.fromkeys(named, "Conv"), [])
    for name, text in zip(named, shortened(named), strict=True):
        assert match([text], names)[0].nodes == {name}


def test_a_long_name_is_told_apart_from_those_it_is_told_with() -> None:
    (text,) = shortened(LAYERS[1:2], LAYERS)
    assert match([text], Names(dict.fromkeys(LAYERS, "MatMul"), []))[0].nodes == {LAYERS[1]}


def test_names_that_are_short_or_have_nothing_in_common_stay_whole() -> None:
    for names in (["block/conv", "block/add"], [f"{ROOT}conv"], [f"{ROOT}conv", "sum"], []):
        assert shortened(names) == names


def test_what_stays_float_is_readable_and_whole_when_verbose() -> None:
    kept = [Kept(name, "Conv", f"tensor '{name}' has no usable values") for name in LONG]
    rows = kept_rows(kept, verbose=False)
    assert all(len(text) < 200 for _, text in rows) and "FusedBatchNormV3" not in rows[0][1]
    whole = kept_rows(kept, verbose=True)
    assert [text.strip() for _, text in whole[1:]] == LONG and LONG[0] in whole[0][1]

"""What is said of calibration data of models that keep a cache: empty where a sequence begins."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.checks.constant import constant_outputs
from onnxq.checks.data import Looker
from onnxq.graph.files.load_named import load_named
from onnxq.ort.inputs import inputs_of
from tests.models import build, normal

LAYERS = 5


def cached() -> onnx.ModelProto:
    """The cache of each layer grows by what the layer makes of the tokens."""
    names = [f"past.{layer}" for layer in range(LAYERS)]
    inputs = ", ".join(f'float[1, P, 8] "{name}"' for name in names)
    outputs = ", ".join(f'float[1, T, 8] "present.{layer}"' for layer in range(LAYERS))
    body = "".join(f'"present.{k}" = Concat <axis = 1> ("past.{k}", y) ' for k in range(LAYERS))
    return build(
        f"(float[1, S, 8] x, {inputs}) => (float[1, S, 8] y, {outputs}) {{ y = MatMul (x, w) {body} }}", w=normal(8, 8)
    )


def feeds(lengths: list[int]) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(0)

    def array(length: int) -> np.ndarray:
        return random.normal(size=(1, length, 8)).astype(np.float32)

    return [{"x": array(4), **{f"past.{k}": array(length) for k in range(LAYERS)}} for length in lengths]


def looked(lengths: list[int]) -> list[str]:
    looker = Looker(inputs_of(load_named(cached())), {f"past.{k}": True for k in range(LAYERS)})
    for index, feed in enumerate(feeds(lengths)):
        looker.look(feed, index)
    return [f"{f.where}: {f.what}" for f in looker.findings()]


@pytest.mark.parametrize("lengths", [[0, 3, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2], [0] * 11 + [3]])
def test_an_empty_cache_is_no_repeated_sample(lengths: list[int]) -> None:
    assert looked(lengths) == []
    found = onnxq.check(cached(), data=feeds(lengths))
    assert [f.what for f in found if f.where.startswith(("input", "output"))] == []
    assert onnxq.calibrate(cached(), feeds(lengths)).warnings() == []


def test_caches_that_repeat_are_still_told() -> None:
    random = feeds([3])
    looker = Looker(inputs_of(load_named(cached())), {})
    for index, feed in enumerate([*random * 4, *feeds([0, 0])]):
        looker.look(feed, index)
    assert {f.what for f in looker.findings() if "past" in f.where} == {"all samples are identical"}


def test_an_input_that_rests_beside_others_is_no_warning() -> None:
    """A transition matrix, say; where all rest, the sample is one."""
    model = build(
        "(float[1, 4] x, float[4, 4] m) => (float[1, 4] y) { h = MatMul (x, w)\n y = MatMul (h, m) }", w=normal(4, 4)
    )
    matrix = normal(4, 4, seed=1)
    moving = [{"x": normal(1, 4, seed=k), "m": matrix} for k in range(4)]
    alike = {f.where: f.level for f in onnxq.check(model, data=moving) if "identical" in f.what}
    assert alike == {"input 'm'": "note"}
    assert not [text for text in onnxq.calibrate(model, moving).warnings() if "identical" in text]
    still = [f.level for f in onnxq.check(model, data=moving[:1] * 4) if "identical" in f.what]
    assert still and set(still) == {"warning"}


def test_a_pair_of_equal_sizes_beside_a_picture_is_no_warning() -> None:
    model = build("(float[1, 4] x, float[1, 2] size) => (float[1, 6] y) { y = Concat <axis = 1> (x, size) }")
    moving = [{"x": normal(1, 4, seed=k), "size": np.full((1, 2), 32 * (k + 1), np.float32)} for k in range(4)]
    found = {f.where: f.level for f in onnxq.check(model, data=moving) if "all values are the same" in f.what}
    assert found == {"input 'size'": "note"}
    alone = [{"x": feed["x"], "size": normal(1, 2)} for feed in moving]
    alone[1]["x"] = np.ones((1, 4), np.float32)
    assert not any("all values" in f.what for f in onnxq.check(model, data=alone) if "size" in f.where)


def test_caches_that_are_always_empty_are_told_once_for_all_layers() -> None:
    assert looked([0, 0]) == [f"input 'past.{k}': empty in all samples" for k in range(LAYERS)]
    texts = onnxq.calibrate(cached(), feeds([0] * 12)).warnings()
    (said,) = (text for text in texts if "empty" in text)
    assert said.startswith("inputs 'past.0', 'past.1', 'past.2' and 2 more: empty in all samples. Is it a cache?")


def test_shapes_of_caches_are_shown_once() -> None:
    (note,) = (f.what for f in onnxq.check(cached(), data=feeds([2, 3] * 6)) if "calibration data" in f.where)
    assert note.endswith("x 1x4x8; past.0, past.1, past.2 and 2 more 1x2x8, 1x3x8")


def test_layers_that_read_an_empty_cache_say_so() -> None:
    made = onnxq.quantize(cached(), feeds([0] * 12), backend="qnn")
    reasons = {kept.reason for kept in made.plan.kept_float if kept.op == "Concat"}
    assert "tensor 'past.0' was empty on the calibration data" in reasons


def test_what_is_empty_for_most_samples_is_not_the_same_for_all() -> None:
    """A branch of an exporter's merged decoder gives nothing where the other one gives the cache."""
    model, given = load_named(cached()), feeds([0, 0, 0])
    empty, full = np.zeros((1, 0, 8), np.float32), np.ones((1, 4, 8), np.float32)
    assert constant_outputs(model, given, [{"present.0": y} for y in (empty, full, empty)]) == {}
    (found,) = constant_outputs(model, given, [{"present.0": y} for y in (empty, full, full)]).values()
    assert found.where == "output 'present.0'" and "the same on 2 different samples" in found.what


def test_a_score_that_is_zero_on_most_samples_is_not_the_same_for_all() -> None:
    """A detector gives exactly 0 on all samples but one."""
    model = build(
        "(float[N, 4] x) => (float[N, 1] y) { s = MatMul (x, w) y = Relu (s) }", w=np.ones((4, 1), np.float32)
    )
    data = -np.abs(np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    assert [f.where for f in onnxq.check(model, data=data) if f.where.startswith("output")] == ["output 'y'"]
    for at in range(20):
        rare = data.copy()
        rare[at] *= -1
        assert [f.where for f in onnxq.check(model, data=rare) if f.where.startswith("output")] == []


@pytest.mark.parametrize(
    ("number", "said"), [(1, "all samples are identical"), (4, "only 4 of 12 samples differ"), (8, ""), (12, "")]
)
def test_texts_that_are_the_same_are_told_and_a_mask_that_rests_is_not(number: int, said: str) -> None:
    model = build(
        "(int64[N, L] ids, int64[N, L] mask) => (float[N, L, 4] y)"
        " { e = Gather (w, ids) m = Cast <to = 1> (mask) a = Constant <value_ints = [2]> () u = Unsqueeze (m, a)"
        " y = Mul (e, u) }",
        w=normal(50, 4),
    )
    rng, mask = np.random.default_rng(0), np.ones((1, 9), np.int64)
    feeds = [{"ids": rng.integers(0, 50, (1, 9)), "mask": mask} for _ in range(number)] * (12 // number)
    feeds += feeds[: 12 - len(feeds)]
    found = [f.what for f in onnxq.check(model, data=feeds) if f.level == "warning" and f.where == "calibration data"]
    told = [text for text in onnxq.calibrate(model, feeds).warnings() if text.startswith("calibration data: ")]
    assert found == ([said] if said else []) and len(told) == len(found)

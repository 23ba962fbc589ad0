from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxq
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.demo.data import MODEL, load_digits
from onnxq.measuring.metrics import Errors
from onnxq.measuring.verification import OtherSize, Verification
from onnxq.notes.cautions import cautions, poor, slow, vague
from onnxq.options import Options, Placement
from onnxq.plan import Kept, Plan
from onnxq.planning.weightless import ALREADY
from tests.models import build, feeds_for, normal


@pytest.mark.parametrize(("room", "said"), [(4, True), (64, False)])
def test_figures_of_the_samples_that_decided_are_called_so(
    room: int, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large samples few are held back, and all of those decide and verify."""
    data = load_digits().calibration
    size = data[0].nbytes + 4 * 10
    monkeypatch.setattr("onnxq.observe._KEEP_BYTES", room * size)
    checked = onnxq.quantize(MODEL, data).verification
    assert checked is not None and (checked.samples <= 8) is said
    start = f"the figures are of {checked.samples} of {len(data)} samples"
    assert any(text.startswith(start) for text in checked.warnings) is said
    if not said:
        (few,) = onnxq.quantize(MODEL, data[:6]).report()["verification"]["warnings"]
        assert few.startswith("the ranges come from 6 samples only"), "there are no others"


@pytest.mark.parametrize("backend", ["onnxruntime", "tvm"])
def test_nothing_was_quantized(backend: str) -> None:
    data = load_digits().calibration[:16]
    result = onnxq.quantize(MODEL, data, backend=backend, options=Options(exclude=("*",)))
    said = result.report()["verification"]["warnings"]
    assert len(said) == 1
    assert said[0].startswith("nothing was quantized: the result is the float model; 3 Conv,")
    assert said[0].endswith("excluded by '*'")
    usual = onnxq.quantize(MODEL, data, backend=backend).report()["verification"]["warnings"]
    assert not [text for text in usual if "nothing was quantized" in text]


def test_the_reason_is_that_of_what_computes() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 6, 6] x, float[4, 2, 3, 3] w) => (float[1, 4, 4, 4] y) {
            a = Conv (x, w)
            b = Sin (a)
            c = Cos (b)
            y = Sin (c)
        }"""
    )
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 2, 6, 6)), "w": rng.normal(size=(4, 2, 3, 3))} for _ in range(12)]
    given = [{name: array.astype(np.float32) for name, array in feed.items()} for feed in feeds]
    result = onnxq.quantize(model, given)
    assert result.verification is not None
    assert any(text.endswith("1 Conv: its weight is computed at run time") for text in result.verification.warnings)


def test_slow_convolutions_are_not_sent_to_algorithms_of_products() -> None:
    kept = [
        Kept(name, op, "slower in integers than in float")
        for name, op in {"c": "Conv", "d": "Conv", "m": "MatMul"}.items()
    ]
    plan = Plan("onnxruntime", (), {}, kept_float=tuple(kept))
    (said,) = cautions(plan, Verification(), Options(), Statistics("", samples=8, kept=[KeptSample(0, {}, {})]))
    assert said.startswith("nothing was quantized") and "--placement all" in said and "--algorithm" not in said


def test_what_is_slower_can_be_had_all_the_same() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 8] x) => (float[1, 4] y) { [m] y = MatMul (x, w) }"""
    )
    rng = np.random.default_rng(0)
    model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=(8, 4)).astype(np.float32), "w"))
    data = rng.normal(size=(16, 8)).astype(np.float32)
    for reduce_range, end in (
        (False, "--placement all quantizes what can be all the same, for a processor where it is not"),
        (True, "with VNNI, where they are faster; --placement all quantizes what can be all the same"),
    ):
        made = onnxq.quantize(model, data, options=Options(reduce_range=reduce_range))
        (said,) = made.report()["verification"]["warnings"]
        assert said.startswith("nothing was quantized: the result is the float model; 1 MatMul: slower")
        assert f"{end}. Large products of few rows" in said
        assert "--algorithm dynamic" in said and "--algorithm weight_only:bits=4,format=matmulnbits" in said
    assert onnxq.quantize(model, data, options=Options(placement="all")).plan.quantized == {"m": "MatMul"}


@pytest.mark.parametrize(
    ("uncertainty", "samples", "said"),
    [(4.3, 128, True), (4.3, 8, False), (1.2, 128, False), (math.nan, 128, False)],
)
def test_few_samples_that_differ_much(uncertainty: float, samples: int, said: bool) -> None:
    """Figures of a wake word detector: 42.6 dB over 8 samples, and 29.9 dB over all 128."""
    errors = Errors(samples=8, elements=8, sqnr=42.6, worst=34.5, worst_sample=48, median=43.6, uncertainty=uncertainty)
    run = Verification({"y": errors}, samples=8)
    seen = Statistics("", samples=samples, kept=[KeptSample(k, {}, {}) for k in range(min(samples, 16))])
    found = list(cautions(Plan("onnxruntime", (), {"c": "Conv"}), run, Options(), seen))
    expected = "output 'y' differs much from sample to sample, and these figures are of 8 of 128: "
    assert found == ([expected + "onnxq compare runs them all"] if said else [])


def test_outputs_that_differ_are_told_in_one_warning() -> None:
    """A language model gives back two caches a layer."""
    errors = Errors(samples=3, elements=8, sqnr=15.0, worst=5.8, worst_sample=0, median=28.9, uncertainty=4.3)
    names = [f"present.{layer}.{half}" for layer in range(24) for half in ("key", "value")]
    (said,) = vague(Verification(dict.fromkeys(["logits", *names], errors), samples=3), None)
    shown = "'logits', 'present.0.key', 'present.0.value' and 46 more"
    assert said.startswith(f"outputs {shown} differ much from sample to sample, and these figures are of 3 samples: ")


def test_outputs_whose_mean_hides_the_rest_are_told_in_one_warning() -> None:
    first, second = (
        Errors(samples=3, elements=8, sqnr=30.0, sqnr_centred=centred, worst=20.0, worst_sample=0, median=29.0)
        for centred in (6.0, 4.0)
    )
    (said,) = poor(Verification({"a": first, "b": second, "c": first}, samples=3), Options())
    assert said.startswith("output 'b' has 30.0 dB, but 4.0 dB with its mean removed, ")
    assert "(2 more outputs alike)" in said


def test_rounding_in_float_differs_from_sample_to_sample_as_well() -> None:
    errors = Errors(samples=8, elements=8, sqnr=146.3, worst=136.8, worst_sample=4, median=160.1, uncertainty=4.3)
    assert list(vague(Verification({"y": errors}, samples=8), 128)) == []


@pytest.mark.usefixtures("speed_is_told")
@pytest.mark.parametrize(("speed", "seconds", "said"), [(0.6, 0.02, True), (0.6, 1e-4, False), (0.95, 0.02, False)])
def test_a_result_slower_than_the_float_model(speed: float, seconds: float, said: bool) -> None:
    run = Verification(samples=8, speedup=speed, float_seconds=seconds)
    plan = Plan("onnxruntime", (), {"a": "Add", "m": "MatMul", "n": "MatMul"})
    found = list(cautions(plan, run, Options(), Statistics("", samples=8)))
    slow = [text for text in found if text.startswith("it runs at 0.60 of the float model's speed here (20.0 ms, one")]
    assert len(slow) == said
    assert all(text.endswith("--exclude MatMul, say, leaves operators in float") for text in slow), "what there is"


@pytest.mark.usefixtures("speed_is_told")
@pytest.mark.parametrize(
    ("speeds", "where"),
    [((1.4, 0.6), " on sample 5 (ids 1x54, 40.0 ms, one thread): why"), ((0.7, 0.6), " (20.0 ms, one thread): why")],
)
def test_a_result_slower_on_samples_of_another_size_says_where(speeds: tuple[float, float], where: str) -> None:
    other = OtherSize(5, "ids", (1, 54), speeds[1], 0.04)
    run = Verification(samples=8, speedup=speeds[0], float_seconds=0.02, other_size=other)
    (said,) = slow(run, "why")
    assert said.endswith(f"of the float model's speed here{where}")


@pytest.mark.usefixtures("speed_is_told")
def test_a_result_faster_on_samples_of_both_sizes_is_not_warned_of() -> None:
    other = OtherSize(5, "ids", (1, 54), 1.1, 0.04)
    assert not list(slow(Verification(samples=8, speedup=1.4, float_seconds=0.02, other_size=other), "why"))


@pytest.mark.usefixtures("speed_is_told")
@pytest.mark.parametrize("overflow", [True, False])
def test_a_processor_slow_in_integers_is_named_as_the_cause(overflow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.notes.cautions.products_overflow", lambda: overflow)
    run = Verification(samples=8, speedup=0.6, float_seconds=0.02)
    found = cautions(Plan("onnxruntime", (), {"m": "MatMul"}), run, Options(), Statistics("", samples=8))
    (slow,) = (text for text in found if "of the float model's speed" in text)
    assert ("integers gain little on this processor (x86 without VNNI)" in slow) == overflow


@pytest.mark.usefixtures("speed_is_told")
@pytest.mark.parametrize(("placement", "way"), [("all", "without --placement all"), ("auto", "--exclude MatMul, say,")])
def test_a_slow_result_is_told_to_undo_what_was_asked_for(placement: Placement, way: str) -> None:
    run = Verification(samples=8, speedup=0.6, float_seconds=0.02)
    plan, options = Plan("onnxruntime", (), {"m": "MatMul"}), Options(placement=placement)
    (said,) = (text for text in cautions(plan, run, options, Statistics("", samples=8)) if "model's speed" in text)
    assert way in said


@pytest.mark.usefixtures("speed_is_told")
@pytest.mark.parametrize(("op", "said"), [("Gather", True), ("GRU", False)])
def test_rows_that_are_unpacked_at_every_run(op: str, said: bool) -> None:
    """A recurrent layer's weights are unpacked once: a slow run has another cause then, noise most likely."""
    run = Verification(samples=8, speedup=0.7, float_seconds=2e-4)
    found = list(cautions(Plan("onnxruntime", (), {}, stored={"t": op}), run, Options(), Statistics("", samples=8)))
    slow = [text for text in found if text.startswith("it runs at 0.70 of the float model's speed here (0.2 ms, one")]
    assert len(slow) == said
    assert all("--exclude Gather" in text for text in slow)


@pytest.mark.usefixtures("speed_is_told")
def test_tables_beside_what_runs_in_integers_may_be_what_is_slow() -> None:
    """The experts of a mixture, of which a Gather picks whole matrices."""
    run = Verification(samples=8, speedup=0.6, float_seconds=2e-4)
    for stored, tables in ({"t": "Gather"}, True), ({"t": "GRU"}, False):
        plan = Plan("onnxruntime", (), {"m": "MatMul"}, stored=stored)
        (said,) = [t for t in cautions(plan, run, Options(), Statistics("", samples=8)) if t.startswith("it runs at")]
        assert "--exclude MatMul, say, leaves operators in float" in said
        assert ("--exclude Gather leaves tables in float" in said) == tables


def test_what_was_compared_with_merged_statistics_is_compared() -> None:
    """A part of the data that holds nothing back says nothing of a result from all of it."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 8] x) => (float[1, 8] y) { a = Log (x)
            b = Neg (a)
            y = Add (a, b) }"""
    )
    good = np.full((4, 1, 8), 2.0, np.float32) + np.arange(4, dtype=np.float32)[:, None, None]
    bad = good.copy()
    bad[:, :, 0] = -1.0  # its logarithm is no number
    alone = onnxq.calibrate(model, bad)
    options = Options(placement="all")
    said = onnxq.quantize(model, statistics=alone, options=options).report()["verification"]["warnings"]
    assert any("not compared with the float model" in text for text in said)
    merged = onnxq.calibrate(model, good)
    merged.merge(alone)
    said = onnxq.quantize(model, statistics=merged, options=options).report()["verification"]["warnings"]
    assert not any("not compared with the float model" in text for text in said)


def test_a_model_in_float64_is_told_once_to_be_exported_in_float32() -> None:
    model = build(
        "(double[2, 16] x) => (double[2, 8] y) { h = MatMul (x, w)\n r = Relu (h)\n y = Gemm (r, v) }",
        w=normal(16, 16, seed=1).astype(np.float64),
        v=normal(16, 8, seed=2).astype(np.float64),
    )
    made = onnxq.quantize(model, [{"x": np.random.default_rng(i).standard_normal((2, 16))} for i in range(12)])
    assert made.verification is not None
    said = "1 MatMul, 1 Relu, 1 Gemm: it computes in float64: export the model in float32 to quantize it"
    assert [w for w in made.verification.warnings if "float" in w] == [
        f"nothing was quantized: the result is the float model; {said}"
    ]
    assert {kept.op for kept in made.plan.kept_float} == {"MatMul", "Relu", "Gemm"}


@pytest.mark.parametrize(
    ("backend", "options"), [("snpe", Options()), ("academic", Options()), ("tvm", Options(format="fake-quantize"))]
)
def test_artifacts_that_are_float_by_design_are_not_said_to_be_large(backend: str, options: Options) -> None:
    model = build("(float[1, 600] x) => (float[1, 600] y) { y = MatMul (x, w) }", w=normal(600, 600))
    made = onnxq.quantize(model, feeds_for(model), backend=backend, options=options)
    assert made.verification is not None
    assert made.verification.quantized_bytes > made.verification.float_bytes > 1 << 20
    assert not [text for text in made.verification.warnings if "the file is" in text]


def test_a_file_that_grew() -> None:
    plan, few = Plan("onnxruntime", (), {"m": "MatMul"}), Statistics("", samples=2, kept=[KeptSample(0, {}, {})])
    grew = Verification(float_bytes=2_000_000, quantized_bytes=3_000_000)
    (said,) = cautions(plan, grew, Options(), few)
    assert said.startswith("the file is larger than the model given, 2.0 MB → 3.0 MB")
    (said,) = cautions(plan, Verification(float_bytes=69_100_000, quantized_bytes=69_100_400), Options(), few)
    assert said.startswith("the file is as large as before, 69.1 MB")
    assert not list(cautions(plan, grew, Options(), few, packed=False)), "a float model with a table grows by design"
    came = Plan("onnxruntime", (), {}, kept_float=(Kept("c", "ConvInteger", ALREADY),))
    (said,) = cautions(came, grew, Options(), few)
    assert "quantized already, and 1 ConvInteger" in said, "it is all in 8 bits: none of it is too little"
    small = Verification(float_bytes=2_000, quantized_bytes=3_000)
    assert not list(cautions(plan, small, Options(), few)), "quantizers of a small model take some bytes"


def test_a_model_that_is_quantized_already_is_called_so() -> None:
    data = load_digits().calibration[:16]
    given = onnxq.quantize(MODEL, data, options=Options(placement="all"))
    result = onnxq.quantize(given.qdq(), data)
    assert result.verification is not None
    (said,) = [text for text in result.verification.warnings if "quantized already" in text]
    assert "3 Conv" in said and "'onnxq deploy'" in said and "'onnxq finetune'" in said
    assert not any("the result is the float model" in text for text in result.verification.warnings)

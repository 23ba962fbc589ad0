"""A poor result is mended by what is measured: who judges, how far is searched, and what becomes of the weights."""

from __future__ import annotations

import re
from importlib import import_module

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.calibration.roles import few, samples_to_verify, spread
from onnxq.calibration.statistics import KeptSample
from onnxq.deciding.rescue import FEW, GROUPS, Blame, extent, to_keep_float
from onnxq.notes.reasons import by_reason
from tests.models import build, f32, images, normal, verified_sqnr
from tests.running import open_session

HUGE = f32([1e4] + [1] * 31).reshape(1, 32, 1, 1)
DATA = [{"x": feed["x"] * HUGE} for feed in images(1, 32, 24, 24)]


def ruined(heeded: float = 0.0) -> onnx.ModelProto:
    """The first channel holds huge values, ``heeded`` little or not at all: integers of the input lose all others."""
    weight = normal(32, 32, 3, 3)
    weight[:, 0] *= heeded
    return build(
        """(float[1, 32, 24, 24] x) => (float[1, 32, 24, 24] y) {
            [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            [second] b = Conv <pads = [1, 1, 1, 1]> (r, v)
            q = Relu (b)
            y = Conv <pads = [1, 1, 1, 1]> (q, u)
        }""",
        w=weight,
        v=normal(32, 32, 3, 3, seed=1),
        u=normal(32, 32, 3, 3, seed=2),
    )


def test_effort_fast_takes_ranges_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("onnxq.job"), "mend", None)
    poor = onnxq.quantize(ruined(), DATA, options=Options(effort="fast"))
    assert verified_sqnr(poor) < 12 and "first" in poor.plan.quantized


def test_layers_to_blame_are_found_behind_a_large_mean() -> None:
    model = ruined()
    last = model.graph.node[-1]
    last.output[0] = "varies"
    model.graph.initializer.append(onnx.numpy_helper.from_array(f32(10.0), "mean"))
    model.graph.node.append(onnx.helper.make_node("Add", ["varies", "mean"], ["y"]))
    poor = onnxq.quantize(model, DATA, options=Options(effort="fast"))
    assert poor.verification is not None
    assert poor.verification.outputs["y"].sqnr > 14 > 9 > poor.verification.outputs["y"].sqnr_centred
    result = onnxq.quantize(model, DATA)
    assert result.verification is not None and result.verification.outputs["y"].sqnr_centred > 18
    assert "second" in result.plan.quantized, "not weights alone"
    assert "quantized alone it leaves" in {k.node: k.reason for k in result.plan.kept_float}["first"]


def test_a_layer_whose_integers_pay_only_beside_others_is_found_to_blame() -> None:
    """By itself it would stay float, and do no harm."""
    weight = normal(32, 32, 1, 1)
    weight[:, 0] = 0
    model = build(
        """(float[1, 32, 24, 24] x) => (float[1, 32, 24, 24] y) {
            [narrow] a = Conv (x, w)
            r = Relu (a)
            [second] b = Conv <pads = [1, 1, 1, 1]> (r, v)
            q = Relu (b)
            y = Conv <pads = [1, 1, 1, 1]> (q, u)
        }""",
        w=weight,
        v=normal(32, 32, 3, 3, seed=1),
        u=normal(32, 32, 3, 3, seed=2),
    )
    alone = onnxq.plan(model, options=Options(exclude=("second", "y")))
    assert "narrow" not in alone.quantized and "narrow" in onnxq.plan(model).quantized
    result = onnxq.quantize(model, DATA)
    assert "second" in result.plan.quantized and verified_sqnr(result) > 18
    assert "quantized alone it leaves" in {k.node: k.reason for k in result.plan.kept_float}["narrow"]


def test_a_layer_kept_float_has_its_weight_stored_where_its_input_is_to_blame() -> None:
    noisier = Options(override=("second=weight_bits=7",))  # beside which 8 bits of the first weight are next to nothing
    result = onnxq.quantize(ruined(), DATA, options=noisier)
    kept = {k.node: k.reason for k in result.plan.kept_float}
    assert "quantized alone it leaves" in kept["first"] and verified_sqnr(result) > 18
    assert result.plan.stored == {"first": "Conv"}
    assert onnxq.quantize(ruined(1e-4), DATA).plan.stored == {}, "a scale cannot hold what reads huge values and small"
    assert onnxq.quantize(ruined(), DATA, backend="openvino").plan.stored == {}, "that target stores none"


def test_sums_to_blame_stay_float_where_a_target_has_no_costs() -> None:
    """What a residual Add hands on holds huge values of one channel, which no layer reads at that size."""
    model = build(
        """(float[1, 32, 24, 24] x) => (float[1, 32, 24, 24] y) {
            n = Mul (x, small)
            [first] a = Conv <pads = [1, 1, 1, 1]> (n, w)
            [sum] s = Add (x, a)
            m = Mul (s, small)
            [second] y = Conv <pads = [1, 1, 1, 1]> (m, v)
        }""",
        w=normal(32, 32, 3, 3),
        v=normal(32, 32, 3, 3, seed=1),
        small=1 / HUGE,
    )
    assert verified_sqnr(onnxq.quantize(model, DATA, backend="tensorrt", options=Options(effort="fast"))) < 12
    result = onnxq.quantize(model, DATA, backend="tensorrt")
    assert {"first", "second"} <= result.plan.quantized.keys() and verified_sqnr(result) > 18
    assert "quantized alone it leaves" in {k.node: k.reason for k in result.plan.kept_float}["sum"]


def dark() -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Two branches; what the second reads is next to nothing in the samples that decide and those that verify."""
    model = build(
        """(float[1, 32, 24, 24] x, float[1, 32, 24, 24] z) => (float[1, 32, 24, 24] y, float[1, 32, 24, 24] side) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            y = Conv <pads = [1, 1, 1, 1]> (r, v)
            [dark] b = Conv <pads = [1, 1, 1, 1]> (z, w2)
            q = Relu (b)
            [darker] side = Conv <pads = [1, 1, 1, 1]> (q, v2)
        }""",
        w=normal(32, 32, 3, 3),
        v=normal(32, 32, 3, 3, seed=1),
        w2=normal(32, 32, 3, 3, seed=2),
        v2=normal(32, 32, 3, 3, seed=3),
    )
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((64, 2, 1, 32, 24, 24)).astype(np.float32)
    samples = [KeptSample(k, {}, {}) for k in range(64)]
    verified, deciding = ({kept.index for kept in of} for of in (samples_to_verify(samples, False), few(samples)))
    scale = [1e-3 if k in verified | deciding else 1.0 for k in range(64)]
    return model, [{"x": a, "z": b * np.float32(s)} for (a, b), s in zip(noise, scale, strict=True)]


def test_an_output_that_is_dark_in_the_samples_decides_nothing() -> None:
    model, data = dark()
    result = onnxq.quantize(model, data)
    assert {"dark", "darker"} <= result.plan.quantized.keys()
    assert verified_sqnr(result) < 10, "the report says what was measured"
    assert result.verification is not None
    (said,) = [text for text in result.verification.warnings if "next to nothing" in text]
    assert said.startswith("output 'side' is next to nothing in the samples compared (57 dB below all the data)")


def test_layers_are_blamed_by_samples_that_are_not_next_to_empty() -> None:
    """Those drawn by lot to measure on are: there is nothing in them that integers could lose."""
    feeds = images(1, 32, 24, 24, samples=64)
    empty = {kept.index for kept in spread(few([KeptSample(k, {}, {}) for k in range(64)]), FEW)}
    data = [{"x": feed["x"] * HUGE * np.float32(1e-3 if k in empty else 1)} for k, feed in enumerate(feeds)]
    result = onnxq.quantize(ruined(), data, options=Options(keep=64))
    assert "first" not in result.plan.quantized and "second" in result.plan.quantized and verified_sqnr(result) > 18


def test_heavy_models_are_searched_in_fewer_groups_on_fewer_samples() -> None:
    assert extent(10**9, 16) == (GROUPS, FEW), "a light one, however little was calibrated"
    assert extent(10**12, 128) == (GROUPS, FEW), "calibration took longer"
    assert extent(10**12, 8) == (8, 2)
    assert extent(10**12, 1) == (8, 2), "not fewer"
    assert extent(10**9, 16, 2000) == (GROUPS, FEW)
    assert extent(10**9, 16, 7000) == (8, FEW), "one that takes long to load"
    assert 8 < extent(10**11, 64, 3000)[0] < GROUPS
    groups, samples = extent(10**12, 30)
    assert 8 < groups < GROUPS and groups * samples <= 2 * 30, "calibration takes two runs a sample"


def test_layers_that_leave_40_db_alone_are_never_to_blame() -> None:
    records = [Blame(("loud",), 0.09, 10.0), Blame(("louder",), 0.095, 9.0)]
    quiet = [Blame((f"quiet{k}",), 9e-5, 1e-9) for k in range(8)]
    assert to_keep_float([*records, *quiet]) == ["louder"]


def test_neighbours_measured_together_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.deciding.decider.extent", lambda macs, calibrated, nodes: (2, 2))
    result = onnxq.quantize(ruined(), DATA)
    reasons = [reason for reason, _ in by_reason(result.plan.kept_float)]
    assert any(r.startswith("quantized alone with the layers around it, it leaves") for r in reasons), reasons


def test_many_outputs_are_said_to_decide() -> None:
    model = ruined()
    for name in ("y1", "y2", "y3", "y4"):
        model.graph.node.append(onnx.helper.make_node("Neg", ["y"], [name]))
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, [1, 32, 24, 24]))
    (hint,) = onnxq.quantize(model, DATA).hints
    assert hint.startswith("5 outputs are judged, and the worst of them decides what stays float")


def coarse(opset: int = 17) -> onnx.ModelProto:
    """Two recurrent layers that share nothing; the first has huge weights on an input that is silent."""
    weight = normal(1, 64, 16)
    weight[:, :, 0] *= 1000
    return build(
        """(float[6, 1, 16] x) => (float[6, 1, 1, 16] y) {
            [first] a, ah, ac = LSTM <hidden_size = 16> (x, w, r)
            s = Reshape (a, shape)
            [second] y, yh, yc = LSTM <hidden_size = 16> (s, w2, r2)
        }""",
        opset=opset,
        shape=np.array([6, 1, 16]),
        w=weight,
        r=normal(1, 64, 16, seed=1, scale=0.1),
        w2=normal(1, 64, 16, seed=2, scale=0.3),
        r2=normal(1, 64, 16, seed=3, scale=0.1),
    )


def silent() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((16, 6, 1, 16)).astype(np.float32)
    data[..., 0] = 0
    return [{"x": x} for x in data]


def widths(result: onnxq.Quantized) -> dict[str, set[int]]:
    weights = [site for site in result.plan.sites if site.role == "weight"]
    return {node: {s.spec.bits for s in weights for e in s.readers if e.node == node} for node in result.plan.stored}


@pytest.mark.parametrize("opset", [17, 21])
def test_stored_weights_that_8_bits_would_spoil_take_16(opset: int) -> None:
    result = onnxq.quantize(coarse(opset), silent())
    assert widths(result) == {"first": {16}, "second": {8}} and verified_sqnr(result) > 35
    assert any(
        note.startswith("16 bits for the stored weights of 'first': 8 bits leave output 'y'") for note in result.notes
    )
    as_asked = onnxq.quantize(coarse(opset), silent(), options=Options(weight_bits=8))
    assert widths(as_asked) == {"first": {8}, "second": {8}} and verified_sqnr(as_asked) < verified_sqnr(result) - 10


def test_no_weight_takes_16_bits_where_the_opset_asked_for_has_none() -> None:
    result = onnxq.quantize(coarse(), silent(), options=Options(opset=17))
    assert widths(result) == {"first": {8}, "second": {8}}


@pytest.mark.parametrize("turned", [False, True])
def test_layers_to_blame_are_found_in_sorted_data(turned: bool) -> None:
    """One kind of samples after the other; only the second kind reaches the layer that ruins it."""
    ruin = f32([3000] + [1] * 31).reshape(32, 1, 1, 1)
    model = build(
        """(float[1, 64, 8, 8] x) => (float[1, 8, 8, 8] y) {
            a, b = Split <axis = 1> (x, halves)
            a1 = Conv <pads = [1, 1, 1, 1]> (a, wa)
            a2 = Relu (a1)
            b1 = Conv <pads = [1, 1, 1, 1]> (b, wb)
            b2 = Relu (b1)
            [blamed] b3 = Conv <pads = [1, 1, 1, 1]> (b2, vb)
            b4 = Relu (b3)
            c = Concat <axis = 1> (a2, b4)
            y = Conv <pads = [1, 1, 1, 1]> (c, u)
        }""",
        halves=np.array([32, 32]),
        wa=normal(32, 32, 3, 3),
        wb=normal(32, 32, 3, 3, seed=1) * ruin,
        vb=normal(32, 32, 3, 3, seed=2) / ruin.reshape(1, 32, 1, 1) / f32([30] + [1] * 31).reshape(1, 32, 1, 1),
        u=normal(8, 64, 3, 3, seed=3),
    )
    data = images(1, 64, 8, 8, samples=32)
    for k, feed in enumerate(data):
        feed["x"][:, slice(32, 64) if (k < 16) != turned else slice(0, 32)] = 0
    result = onnxq.quantize(model, data, backend="tensorrt")
    assert "blamed" not in result.plan.quantized and verified_sqnr(result) > 25


def drowned(layers: int = 8) -> onnx.ModelProto:
    """In front of every layer a channel is loud that no layer heeds: each alone loses something, all together most."""
    constants = {}
    for k in range(layers):
        weight = normal(32, 32, 3, 3, seed=k)
        weight[:, 0] = 0
        weight[0] *= 25
        constants[f"w{k}"] = weight
    body = "\n".join(f"t{k + 1} = Conv <pads = [1, 1, 1, 1]> (t{k}, w{k})" for k in range(layers))
    return build(
        f"""(float[1, 32, 24, 24] x) => (float[1, 31, 24, 24] y) {{
            t0 = Identity (x)
            {body}
            y = Slice (t{layers}, begin, end, axes)
        }}""",
        begin=np.array([1]),
        end=np.array([32]),
        axes=np.array([1]),
        **constants,  # type: ignore[arg-type]
    )


def test_where_integers_leave_nothing_only_weights_are_stored() -> None:
    feeds = list(images(1, 32, 24, 24))
    result = onnxq.quantize(drowned(), feeds)
    assert not result.plan.quantized and len(result.plan.stored) == 8 and verified_sqnr(result) > 25
    assert result.verification is not None
    (told,) = (text for text in result.verification.warnings if text.startswith("nothing was quantized"))
    assert "in integers, " in told and "dB are left of output 'y'" in told
    (hint,) = (text for text in result.hints if "--min-sqnr" in text)
    said = re.search(r"save about (\d+)%.*--min-sqnr (-?\d+)", hint)
    assert said is not None and 0 < int(said[1]) < 100
    lower = onnxq.quantize(drowned(), feeds, options=Options(min_sqnr=int(said[2])))
    assert lower.plan.quantized and verified_sqnr(lower) < 10, "who wants integers all the same lowers the floor"
    openvino = onnxq.quantize(drowned(), feeds, backend="openvino")
    assert openvino.plan.quantized, "a target that stores no weights keeps what it has"


def test_integers_that_leave_no_number_are_given_up_without_a_hint() -> None:
    """No floor takes them. One element is 0 in integers and not in float, in a sample that the search does not see."""
    body = "\n".join(f"t{k + 1} = Conv <pads = [1, 1, 1, 1]> (t{k}, w)" for k in range(4))
    same = np.zeros((32, 32, 3, 3), np.float32)
    same[range(32), range(32), 1, 1] = 1.0
    model = build(
        f"""(float[1, 32, 24, 24] x) => (float[1, 32, 24, 24] y) {{
            t0 = Identity (x)
            {body}
            y = Reciprocal (t4)
        }}""",
        w=same,
    )
    random = np.random.default_rng(0)
    feeds = [{"x": random.uniform(2.0, 10.0, (1, 32, 24, 24)).astype(np.float32)} for _ in range(64)]
    feeds[21]["x"][0, 3, 4, 5] = 1e-3
    result = onnxq.quantize(model, feeds)
    assert {kept.reason for kept in result.plan.kept_float} >= {"in integers, nothing is left of output 'y'"}
    assert not [text for text in result.hints if "--min-sqnr" in text]
    assert verified_sqnr(result) > 18.0


def test_that_a_mean_hides_what_integers_lose_is_said() -> None:
    model = drowned()
    (slice_,) = (node for node in model.graph.node if node.op_type == "Slice")
    slice_.output[0] = "small"
    feeds = list(images(1, 32, 24, 24))
    reference = open_session(drowned())
    far = 3 * np.std([reference.run(None, feed)[0] for feed in feeds], dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(far, "far"))
    model.graph.node.append(onnx.helper.make_node("Add", ["small", "far"], ["y"], name="shifted"))
    result = onnxq.quantize(model, feeds)
    (why,) = {k.reason for k in result.plan.kept_float if k.reason.startswith("in integers, ")}
    assert why.endswith("dB are left of what varies in output 'y'")


def drowned_beside(side: int) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """A poor branch, and one of a few channels of ``side`` by ``side``, which is faster in float."""
    return beside(drowned(2), side)


def beside(model: onnx.ModelProto, side: int) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """A model with a branch of a few channels of ``side`` by ``side``, which is faster in float."""
    for name, of in (("p", model.graph.input), ("side", model.graph.output)):
        of.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4, side, side]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 4, 3, 3), "s"))
    model.graph.node.append(onnx.helper.make_node("Conv", ["p", "s"], ["side"], name="aside", pads=[1, 1, 1, 1]))
    feeds = [{**feed, "p": normal(1, 4, side, side, seed=k)} for k, feed in enumerate(images(1, 32, 24, 24))]
    return model, feeds


def test_a_poor_result_stays_in_integers_only_where_they_save_time() -> None:
    result = onnxq.quantize(*drowned_beside(8))
    assert result.plan.quantized and 10 < verified_sqnr(result) < 18
    model, feeds = drowned_beside(256)
    slow = onnxq.quantize(model, feeds)
    assert not slow.plan.quantized and verified_sqnr(slow) > 30
    (why,) = {k.reason for k in slow.plan.kept_float if k.reason.startswith("in integers, ")}
    assert "of output 'y', and they save 7% of the time at most" in why
    for options in (Options(placement="compute"), Options(min_sqnr=5)):
        asked = onnxq.quantize(model, feeds, options=options)
        assert asked.plan.quantized and 10 < verified_sqnr(asked) < 18, "who wants integers all the same gets them"


def test_a_fair_result_stays_in_integers_only_where_they_save_time() -> None:
    louder = f32([10] + [1] * 31).reshape(1, 32, 1, 1)
    results = {}
    for side in (8, 400):
        model, feeds = beside(ruined(heeded=0.01), side)
        data = [{**feed, "x": feed["x"] * louder} for feed in feeds]
        results[side] = onnxq.quantize(model, data)
    assert {"first", "second"} <= results[8].plan.quantized.keys() and 18 < verified_sqnr(results[8]) < 30
    slow = results[400]
    assert not slow.plan.quantized and verified_sqnr(slow) > verified_sqnr(results[8]) + 10
    (why,) = {k.reason for k in slow.plan.kept_float if k.reason.startswith("in integers, ")}
    assert why.endswith("dB are left of output 'y', and they save 4% of the time")
    asked = onnxq.quantize(model, data, options=Options(placement="compute"))
    assert "second" in asked.plan.quantized, "who wants integers all the same gets them"


def coarse_behind(layers: int, huge: int) -> onnx.ModelProto:
    """Layers whose inputs are to blame, and one whose weights are: they are huge for a channel that is silent."""
    model = drowned(layers)
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            weight = onnx.numpy_helper.to_array(tensor).copy()
            weight[1] = 0
            tensor.CopyFrom(onnx.numpy_helper.from_array(weight, tensor.name))
    last = normal(31, 40, 1, 1, seed=99)
    last[0] *= huge
    del model.graph.output[:]
    model.graph.node[-1].output[0] = "cut"
    model.graph.node.append(onnx.helper.make_node("ConvTranspose", ["cut", "last"], ["y"], name="last"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(last, "last"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", 1, [1, 40, 24, 24]))
    return model


def test_integers_stay_where_weights_alone_are_hardly_better() -> None:
    feeds, options = list(images(1, 32, 24, 24)), Options(opset=17)
    result = onnxq.quantize(coarse_behind(2, 150), feeds, options=options)
    assert result.plan.quantized and 7 < verified_sqnr(result) < 10
    assert any(hint.startswith("weights alone as integers would leave 10.") for hint in result.hints), result.hints
    other = onnxq.quantize(coarse_behind(3, 100), feeds, options=options)
    assert not other.plan.quantized and verified_sqnr(other) > 13, "there inputs are to blame for most"


def test_weights_that_are_all_that_is_left_take_16_bits_where_8_spoil_them() -> None:
    """Beside integers they were not to blame, so they are looked at again once these are given up."""
    result = onnxq.quantize(coarse_behind(3, 100), list(images(1, 32, 24, 24)))
    assert not result.plan.quantized
    assert widths(result)["last"] == {16} and verified_sqnr(result) > 25

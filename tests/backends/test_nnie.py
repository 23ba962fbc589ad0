"""NNIE: the table and the weights, held against runs of the float model and the formula, layer by layer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import onnxq
from onnxq import Options
from onnxq.backends.nnie import BACKEND, table_path
from onnxq.errors import BackendError, OptionError, OutputError
from onnxq.ort.session import Session
from tests.contract import infer, sqnr
from tests.models import build, constants_of, f32, images, normal, verified_sqnr

Array = NDArray[Any]


def net() -> onnx.ModelProto:
    """Conv, Relu, pools, a residual Add, Concat, ConvTranspose, upsampling, Sigmoid, a depthwise layer, a Gemm."""
    return build(
        """(float[1, 3, 16, 16] x) => (float[1, 5] y) {
            [stem] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            [act] r = Relu (a)
            [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            [mean] m = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            [body] c = Conv <pads = [1, 1, 1, 1]> (p, w2)
            [sum] s = Add (c, m)
            [join] j = Concat <axis = 1> (s, c)
            [down] d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (j)
            [double] u = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                                 nearest_mode = "floor"> (d, , scales)
            [deconv] t = ConvTranspose <strides = [2, 2], kernel_shape = [2, 2]> (u, w3)
            [gate] g = Sigmoid (t)
            [depthwise] h = Conv <group = 4> (g, w4)
            [middle] e = GlobalAveragePool (h)
            [flat] f = Flatten (e)
            [head] y = Gemm <transB = 1> (f, w5, b5)
        }""",
        w1=normal(8, 3, 3, 3),
        b1=normal(8, seed=1, scale=0.1),
        w2=normal(8, 8, 3, 3, seed=2),
        w3=normal(16, 4, 2, 2, seed=3),
        w4=normal(4, 1, 3, 3, seed=4),
        w5=normal(5, 4, seed=5),
        b5=normal(5, seed=6, scale=0.1),
        scales=f32([1, 1, 2, 2]),
    )


FEEDS = images(1, 3, 16, 16, samples=4)


def snap(value: float) -> float:
    """The nearest power of ``2**(1/16)``."""
    return float(2.0 ** (round(16 * math.log2(value)) / 16))


def log8(x: Array, clip: float) -> NDArray[np.float32]:
    """The formula of the hardware's page, number by number."""
    z = round(16 * math.log2(clip)) - 127

    def one(v: float) -> float:
        if v >= 2.0 ** (z / 16 - 1):
            return float(2.0 ** ((min(max(round(16 * math.log2(v)) - z, 0), 127) + z) / 16))
        if v < -(2.0 ** ((z + 1) / 16 - 1)):
            return -float(2.0 ** ((min(max(round(16 * math.log2(-v)) - z, 1), 127) + z) / 16))
        return 0.0

    return np.array([one(float(v)) for v in x.reshape(-1)], np.float32).reshape(x.shape)


def simulated(model: onnx.ModelProto, clips: dict[str, list[float]], feed: dict[str, Array]) -> dict[str, Array]:
    """A model run node by node in onnxruntime, the inputs of the nodes in the table quantized by the formula."""
    values = constants_of(model) | feed
    constants = set(values) - set(feed)
    for node in model.graph.node:
        given = {name: values[name] for name in node.input if name}
        names = [name for name in node.input if name and name not in constants]
        for name, clip in zip(names, clips.get(node.name, []), strict=False):
            given[name] = log8(given[name], clip)
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in given.items()
        ]
        outputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in node.output]
        graph = helper.make_graph([node], "one", inputs, outputs)
        one = helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)
        for name, arrays in infer(one, [given], optimize=False).items():
            values[name] = arrays[0]
    return {output.name: values[output.name] for output in model.graph.output}


def written(tmp_path: Path, model: onnx.ModelProto | None = None, **options: Any) -> tuple[onnxq.Quantized, Any]:
    """A result written to a folder, and its table."""
    q = onnxq.quantize(model or net(), FEEDS, backend="nnie", output=tmp_path / "m.onnx", options=Options(**options))
    return q, json.loads((tmp_path / "m_gfpq_param_dict.json").read_text())["nnie"]["gfpq_param_dict"]


def test_the_table_holds_the_largest_magnitudes_of_layer_inputs(tmp_path: Path) -> None:
    q, table = written(tmp_path)
    assert [path.name for path in q.files] == ["m.onnx", "m_gfpq_param_dict.json"]
    model = net()
    for name in ("r", "p", "m", "c", "s", "j", "d", "u", "f"):
        model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    outputs = infer(model, FEEDS, optimize=False) | {"x": [feed["x"] for feed in FEEDS]}
    top = {name: max(float(np.abs(a).max()) for a in arrays) for name, arrays in outputs.items()}
    meeting = snap(max(top["c"], top["m"], top["s"]))  # in the Add, and again in the Concat
    expected = {
        "stem": [snap(top["x"])],
        "pool": [snap(top["r"])],
        "mean": [snap(top["r"])],
        "body": [snap(top["p"])],
        "sum": [meeting, meeting],
        "join": [meeting, meeting],
        "down": [snap(top["j"])],
        "double": [snap(top["d"])],
        "double_permute_0": [snap(top["d"])],
        "deconv": [snap(top["u"])],
        "head": [snap(top["f"])],
    }
    assert table.keys() == expected.keys()
    for name, clips in expected.items():
        assert table[name] == pytest.approx(clips, rel=1e-12), name


def test_what_is_not_in_the_table_says_why(tmp_path: Path) -> None:
    q, table = written(tmp_path)
    reasons = {kept.node: kept.reason for kept in q.plan.kept_float}
    assert q.plan.absorbed == {"act": "stem"}
    assert {*table} - {"double_permute_0"} == {*q.plan.quantized}
    assert {*reasons} == {"gate", "depthwise", "middle", "flat"}
    assert "groups" in reasons["depthwise"]
    assert all("no entry" in reasons[name] for name in ("gate", "middle", "flat"))


def test_weights_are_numbers_of_their_grids(tmp_path: Path) -> None:
    written(tmp_path, bias_correction=False)
    model, source = onnx.load(tmp_path / "m.onnx"), net()
    before, after = (constants_of(m) for m in (source, model))
    for name in ("w1", "w2", "w3", "w5"):
        clip = snap(float(np.abs(before[name]).max()))
        np.testing.assert_array_equal(after[name], log8(before[name], clip))
        assert float(np.abs(after[name]).max()) == np.float32(clip), "a tool finds the clip value in the weights"
    for name in ("w4", "b1", "b5"):
        np.testing.assert_array_equal(after[name], before[name])


def test_the_simulation_is_the_formula_applied_layer_by_layer(tmp_path: Path) -> None:
    q, table = written(tmp_path)
    artifact = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(artifact, full_check=True)
    for feed in FEEDS[:2]:
        got = Session(q.rendered(), optimize=False).run(feed)["y"]
        np.testing.assert_array_equal(got, simulated(artifact, table, feed)["y"])
    reference = infer(net(), FEEDS, optimize=False)["y"]
    assert 25 < sqnr(reference, [Session(q.rendered(), optimize=False).run(feed)["y"] for feed in FEEDS]) < 60


def test_it_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    q, _ = written(tmp_path, exclude=("body",))
    back = BACKEND.formats["gfpq"].read(tmp_path / "m.onnx")  # type: ignore[misc]
    assert back.plan.sites == q.plan.sites
    assert dict(back.qparams) == dict(q.qparams)
    assert back.plan.quantized == q.plan.quantized and "body" not in back.plan.quantized
    for feed in FEEDS[:2]:
        a, b = (Session(m.rendered(), optimize=False).run(feed)["y"] for m in (q, back))
        assert a.tobytes() == b.tobytes()


def test_the_fake_quantize_format_is_one_file_and_is_read_back(tmp_path: Path) -> None:
    q = onnxq.quantize(
        net(), FEEDS, backend="nnie", output=tmp_path / "f.onnx", options=Options(format="fake-quantize")
    )
    assert [path.name for path in tmp_path.iterdir()] == ["f.onnx"]
    model = onnx.load(tmp_path / "f.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {n.op_type for n in model.graph.node if n.domain == "onnxq"} == {"NNIEQuantize"}
    back = onnxq.read(tmp_path / "f.onnx", backend="nnie")
    assert {s.name: s.role for s in back.plan.sites} == {s.name: s.role for s in q.plan.sites}
    assert dict(back.qparams) == dict(q.qparams)
    on, off = (infer(model, FEEDS, optimize=o)["y"] for o in (True, False))
    np.testing.assert_allclose(on, off, rtol=1e-4, atol=1e-5)
    table = {t.tensor: t.dtype for t in onnxq.show(tmp_path / "f.onnx").quantized}  # type: ignore[union-attr]
    assert table["x"] == table["w1"] == "log8"


def test_a_table_by_mqbench_is_read_with_its_clip_values_rounded(tmp_path: Path) -> None:
    _, table = written(tmp_path)
    table["stem"] = [table["stem"][0] * 1.01]
    path = table_path(tmp_path / "m.onnx")
    path.write_text(json.dumps({"nnie": {"gfpq_param_dict": table}}))
    back = BACKEND.formats["gfpq"].read(tmp_path / "m.onnx")  # type: ignore[misc]
    assert float(back.qparams["x"].scale) == np.float32(snap(table["stem"][0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nowhere": [1.0]}, "'nowhere'"),
        ({"stem": [1.0, 2.0]}, "1 inputs"),
        ({"stem": [-1.0]}, "positive"),
        ({"depthwise": [1.0]}, "does not quantize"),
        ({"pool": [0.5]}, "several clip values"),
    ],
)
def test_tables_that_make_no_sense(change: dict[str, list[float]], message: str, tmp_path: Path) -> None:
    _, table = written(tmp_path)
    document = {"nnie": {"gfpq_param_dict": {**table, **change}}}
    table_path(tmp_path / "m.onnx").write_text(json.dumps(document))
    with pytest.raises(BackendError, match=message):
        BACKEND.formats["gfpq"].read(tmp_path / "m.onnx")  # type: ignore[misc]


def test_a_missing_table(tmp_path: Path) -> None:
    written(tmp_path)
    table_path(tmp_path / "m.onnx").unlink()
    with pytest.raises(BackendError, match="cannot be read"):
        BACKEND.formats["gfpq"].read(tmp_path / "m.onnx")  # type: ignore[misc]


@pytest.mark.parametrize(
    "options",
    [
        Options(symmetric=False),
        Options(per_channel=True),
        Options(weight_bits=4),
        Options(act_bits=16),
        Options(range="entropy"),
        Options(override=("stem=symmetric=false",)),
    ],
)
def test_options_without_meaning_are_refused_before_any_work(options: Options) -> None:
    with pytest.raises(OptionError):
        onnxq.quantize(net(), [{"x": np.zeros(1)}], backend="nnie", options=options)


def test_a_file_in_the_way_of_a_folder_is_told_and_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "no").write_text("")
    with pytest.raises(OutputError):
        onnxq.quantize(net(), FEEDS, backend="nnie", output=tmp_path / "no" / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["no"]


def test_what_the_hardware_lacks_is_found_by_check() -> None:
    model = build(
        """(float[1, 4, 9, 9] x) => (float[1, 4, 12, 12] y, float[1, 4, 3, 3] z) {
            [depthwise] a = Conv <group = 4> (x, w)
            [odd] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
            [even] z = AveragePool <kernel_shape = [1, 1]> (p)
            [triple] y = Resize <mode = "nearest"> (z, , scales)
        }""",
        w=normal(4, 1, 3, 3),
        scales=f32([1, 1, 4, 4]),
    )
    found = {f.where: f.what for f in onnxq.check(model, backend="nnie") if f.level == "warning"}
    assert "groups" in found["node 'depthwise' (Conv)"]
    assert "by 2" in found["node 'triple' (Resize)"]
    assert "node 'odd' (MaxPool)" in found and "rounds up" in found["node 'odd' (MaxPool)"]
    assert "node 'even' (AveragePool)" not in found


@pytest.mark.parametrize(
    ("attributes", "taken"),
    [
        ('coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"', True),
        ('coordinate_transformation_mode = "half_pixel"', True),
        ('coordinate_transformation_mode = "asymmetric", nearest_mode = "ceil"', False),
        ('coordinate_transformation_mode = "align_corners"', True),
        ('coordinate_transformation_mode = "align_corners", nearest_mode = "floor"', False),
    ],
)
def test_only_resizes_that_repeat_every_element_are_upsamplings(attributes: str, taken: bool) -> None:
    model = build(
        f"""(float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y) {{
            [up] y = Resize <mode = "nearest", {attributes}> (x, , scales)
        }}""",
        scales=f32([1, 1, 2, 2]),
    )
    x = normal(1, 2, 4, 4)
    repeats = np.array_equal(infer(model, [{"x": x}], optimize=False)["y"][0], x.repeat(2, 2).repeat(2, 3))
    assert repeats == taken, "what onnxruntime does"
    assert ("up" in onnxq.plan(model, backend="nnie").quantized) == taken


@pytest.mark.parametrize(
    ("node", "reason"),
    [("Add (x, k)", "constant"), ("Add (x, r)", "broadcasts"), ("Concat <axis = 1> (x, k)", "constant")],
)
def test_only_feature_maps_are_added(node: str, reason: str) -> None:
    channels = 8 if "Concat" in node else 4
    model = build(
        f"""(float[1, 4, 2, 2] x, float[1, 4, 1, 1] r) => (float[1, {channels}, 2, 2] y) {{
            [it] y = {node}
        }}""",
        k=normal(1, 4, 2, 2),
    )
    plan = onnxq.plan(model, backend="nnie")
    assert not plan.quantized
    assert reason in plan.kept_float[0].reason


@pytest.mark.parametrize(
    "algorithm",
    ["gptq", "adaround", "seqmse", "equalize", "smoothquant", "outliers", "bias_correction:method=empirical"],
)
def test_algorithms_run_or_say_why_not(algorithm: str) -> None:
    q = onnxq.quantize(net(), FEEDS, backend="nnie", options=Options(algorithms=(algorithm,)))
    note = next(note for note in q.notes if note.startswith(algorithm.partition(":")[0]))
    if algorithm in ("gptq", "adaround", "seqmse"):
        assert "logarithmic" in note
    assert verified_sqnr(q) > 25


def test_algorithms_that_need_torch_say_why_not() -> None:
    pytest.importorskip("torch")
    for name in ("adaquant", "reconstruct"):
        q = onnxq.quantize(net(), FEEDS, backend="nnie", options=Options(algorithms=(f"{name}:iterations=2",)))
        assert any("logarithmic" in note for note in q.notes), q.notes


def test_sensitivity_is_measured_at_the_only_width_there_is() -> None:
    with pytest.raises(OptionError, match="no 4 bits"):
        onnxq.sensitivity(net(), FEEDS, backend="nnie")
    found = onnxq.sensitivity(net(), FEEDS, backend="nnie", bits=(8,))
    assert all(row.sqnr[8] > 25 for row in found.rows)


def test_the_best_effort_works() -> None:
    q = onnxq.quantize(net(), FEEDS, backend="nnie", options=Options(effort="best"))
    assert any(note.startswith("best: entropy failed") for note in q.notes)
    assert verified_sqnr(q) > 25

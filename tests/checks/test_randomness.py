"""Models exported in training mode, and models that draw numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.checks.randomness import is_random
from onnxq.graph.files.load import load
from onnxq.prepare import Prepared
from tests.models import build, f32, feeds_for, images, normal

TWICE = "outputs are random, so figures of accuracy compare two draws, and are not judged"


def net(between: str) -> onnx.ModelProto:
    return build(
        f"""(float[2, 16] x) => (float[2, 8] y) {{
            h = MatMul (x, w)
            {between}
            y = MatMul (d, v) }}""",
        w=normal(16, 16, seed=1),
        v=normal(16, 8, seed=2),
        ratio=np.float32(0.5),
        none=np.float32(0.0),
        yes=np.array(True),
        no=np.array(False),
        s=f32(np.ones(16)),
        b=f32(np.zeros(16)),
    )


DROPOUT = "d = Dropout (h, ratio, yes)"


@pytest.mark.parametrize(
    ("between", "said"),
    [
        (DROPOUT, f"1 Dropout node has training_mode=true: {TWICE}"),
        (
            f"e = Dropout (h, ratio, yes)\n {DROPOUT.replace('(h', '(e')}",
            f"2 Dropout nodes have training_mode=true: {TWICE}",
        ),
        ("d = Dropout (h, , yes)", f"1 Dropout node has training_mode=true: {TWICE}"),
        (
            "d, mean, var = BatchNormalization <training_mode = 1> (h, s, b, b, s)",
            "1 BatchNormalization node is in training mode: it normalizes by the batch at hand, "
            "not by what training found",
        ),
        ("r = RandomNormalLike (h)\n d = Add (h, r)", f"1 RandomNormalLike draws random numbers: {TWICE}"),
    ],
)
def test_what_is_random_is_said_by_check_and_by_quantize(between: str, said: str) -> None:
    model = net(between)
    assert said in [f.what for f in onnxq.check(model) if f.level == "warning"]
    made = onnxq.quantize(model, images(2, 16), backend="qnn")
    assert made.verification is not None
    (warning,) = [w for w in made.verification.warnings if w.startswith(said)]
    assert not any("what was rewritten" in w for w in made.verification.warnings)
    assert ("model.eval()" in warning) == ("training" in said)


TRAINING = "d, mean, var = BatchNormalization <training_mode = 1> (h, s, b, b, s)"


@pytest.mark.parametrize(
    ("between", "opset"), [(TRAINING, 17), ("d, mean, var, bm, bv = BatchNormalization (h, s, b, b, s)", 13)]
)
def test_compare_says_it_of_a_model_as_it_came(between: str, opset: int) -> None:
    model = net(between)
    model.opset_import[0].version = opset
    feeds = images(2, 16)
    made = onnxq.quantize(model, feeds, options=onnxq.Options(placement="all"))
    found = onnxq.compare(model, made, feeds)
    assert any("is in training mode: it normalizes by the batch at hand" in warning for warning in found.warnings)
    assert found.outputs["y"].sqnr > 15, "what is quantized is in training mode too"


def test_compare_says_it_of_what_lies_in_a_function() -> None:
    model = net(TRAINING)
    made = onnxq.quantize(model, images(2, 16))
    nodes = list(model.graph.node)
    (norm,) = (node for node in nodes if node.op_type == "BatchNormalization")
    function = onnx.helper.make_function(
        "mine", "Norm", [*norm.input], [norm.output[0]], [norm], [onnx.helper.make_opsetid("", 17)]
    )
    call = onnx.helper.make_node("Norm", [*norm.input], [norm.output[0]], domain="mine")
    nodes[nodes.index(norm)] = call
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    assert any("in training mode" in warning for warning in onnxq.compare(model, made, images(2, 16)).warnings)


@pytest.mark.parametrize("between", ["d = Dropout (h, ratio, no)", "d = Dropout (h, none, yes)", "d = Dropout (h)"])
def test_what_drops_nothing_is_no_news(between: str) -> None:
    model = net(between)
    assert not any("training" in f.what for f in onnxq.check(model))
    assert not is_random(Prepared(model, onnxq.Options()).model)


def test_what_the_caller_decides_is_no_news() -> None:
    model = net(DROPOUT.replace("yes", "flag"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []))
    assert not is_random(load(model))


def test_a_poor_result_of_random_outputs_is_not_blamed_on_rewriting() -> None:
    made = onnxq.quantize(net(DROPOUT), images(2, 16))
    assert made.verification is not None
    assert made.verification.worst is None and made.verification.outputs["y"].sqnr < 12.0
    assert not any("what was rewritten" in w for w in made.verification.warnings)


@pytest.mark.parametrize("simulation", [False, True])
def test_an_output_that_is_drawn_is_not_judged_and_others_are(simulation: bool, tmp_path: Path) -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) {
            z = Conv (x, w)
            n = RandomNormalLike <scale = 9.0> (z)
            y = Add (z, n)
        }""",
        w=normal(4, 3, 3, 3),
    )
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("pads", [1, 1, 1, 1]))
    made = onnxq.quantize(model, feeds_for(model), output=tmp_path / "q.onnx", options=Options(placement="all"))
    assert made.verification is not None and made.verification.worst is not None
    assert made.verification.outputs["y"].drawn and not made.verification.outputs["z"].drawn
    assert made.verification.worst[0] == "z" and made.verification.outputs["y"].sqnr < 10
    found = onnxq.verify(tmp_path / "q.onnx", feeds_for(model), simulation=simulation)
    assert found.ok and found.outputs["y"].sqnr < 10
    assert any("'z'" in fault for fault in found.faults(min_sqnr=300)) or found.outputs["z"].sqnr > 300
    assert not any("'y'" in fault for fault in found.faults(min_sqnr=300))

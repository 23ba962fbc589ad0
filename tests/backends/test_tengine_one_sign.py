"""Weights of one sign: the tool's zero point for them is none of their integers, and onnxq reads what it wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import BackendError, ModelError
from onnxq.verify import verify
from tests.models import build, f32, images, normal

FEEDS = images(3, 8, 8, samples=32)


def net(sign: float) -> onnx.ModelProto:
    """A convolution whose weights lie far from 0, on one side of it."""
    weights = f32(sign * (np.abs(normal(6, 3, 3, 3, seed=1)) + 0.5))
    return build("(float[1, 3, 8, 8] x) => (float[1, 6, 6, 6] y) { [conv] y = Conv (x, w) }", w=weights)


@pytest.mark.parametrize("form", ["tengine", "fake-quantize"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_written_is_read_again(sign: float, form: str, tmp_path: Path) -> None:
    made = onnxq.quantize(net(sign), FEEDS, backend="tengine", options=Options(format=form))
    zero = int(made.qparams["w"].zero_point)
    assert not 0 <= zero <= 255
    path = made.save(tmp_path / "q.onnx")[0]
    found = onnxq.compare(net(sign), path, FEEDS, backend="tengine")
    wanted = onnxq.compare(net(sign), made, FEEDS)
    assert found.outputs["y"].sqnr == pytest.approx(wanted.outputs["y"].sqnr, abs=0.01)
    assert verify(path, FEEDS, backend="tengine").outputs["y"].sqnr > 35


def test_a_target_whose_integers_hold_no_such_zero_point_says_so(tmp_path: Path) -> None:
    options = Options(format="fake-quantize")
    path = onnxq.quantize(net(1.0), FEEDS, backend="tengine", options=options).save(tmp_path / "q.onnx")[0]
    assert onnxq.read(path).qparams["w"].zero_point < 0
    with pytest.raises(BackendError, match=r"'w': its zero point -\d+ is none of its integers"):
        onnxq.deploy(path, backend="onnxruntime")
    assert onnxq.deploy(path, backend="tengine").plan.quantized == {"conv": "Conv"}


def test_an_activation_has_its_zero_point_on_the_grid(tmp_path: Path) -> None:
    options = Options(format="fake-quantize")
    path = onnxq.quantize(net(1.0), FEEDS, backend="tengine", options=options).save(tmp_path / "q.onnx")[0]
    model = onnx.load(path)
    (node,) = (n for n in model.graph.node if n.op_type == "FakeQuantize" and n.input[0] == "x")
    (zero,) = (t for t in model.graph.initializer if t.name == node.input[2])
    zero.CopyFrom(onnx.numpy_helper.from_array(f32(300.0), zero.name))
    with pytest.raises(ModelError, match="a zero point is not one of 256 integers from 0"):
        onnxq.read(model)


def test_only_the_tools_own_weights_have_another(tmp_path: Path) -> None:
    made = onnxq.quantize(net(1.0), FEEDS, backend="tengine")
    path = made.save(tmp_path / "q.onnx")[0]
    table = path.with_suffix(".scale")
    table.write_text(table.read_text().replace("x ", "x 0.01 300\nleft_out ", 1))
    with pytest.raises(BackendError, match="entry of tensor 'x': a zero point is not one of 256 integers from 0"):
        onnxq.compare(net(1.0), path, FEEDS, backend="tengine")

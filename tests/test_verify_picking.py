"""`onnxq verify` of a model that picks: what it picks from is compared, in the runtime and in simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.measuring.metrics import sqnr
from onnxq.options import Placement
from tests.measuring.test_chosen_rows import detector as best_first
from tests.models import images
from tests.picking_nets import detector, labels, picked_from

FEEDS = list(images(1, 16, 8, 8, samples=24))
OTHERS = list(images(1, 16, 8, 8, samples=6, seed=99))


@pytest.mark.parametrize("target", ["onnxruntime", "vitis", "openvino", "snpe", "tengine"])
def test_what_is_picked_from_is_compared(tmp_path: Path, target: str) -> None:
    made = onnxq.quantize(
        detector(), FEEDS, backend=target, options=Options(placement="all"), output=tmp_path / "made.onnx"
    )
    before = [file.read_bytes() for file in made.files]
    found = onnxq.verify(made, OTHERS, simulation=target != "onnxruntime")
    assert found.outputs.keys() == {"boxes", "scores"}
    assert found.agrees(min_sqnr=20), found.outputs
    assert not any(errors.reshaped for errors in found.outputs.values())
    (said,) = (remark for remark in found.remarks if "picked" in remark)
    assert said.startswith("output 'found_boxes', 'found_scores': picked among many")
    assert [file.read_bytes() for file in made.files] == before and len(list(tmp_path.iterdir())) == len(before)


@pytest.mark.parametrize("placement", ["compute", "all"])
def test_the_figures_are_those_of_these_tensors(tmp_path: Path, placement: Placement) -> None:
    """With onnxruntime's optimizations against without: what NonMaxSuppression reads in both."""
    made = onnxq.quantize(detector(), FEEDS, options=Options(placement=placement), output=tmp_path / "made.onnx")
    found = onnxq.verify(made, OTHERS)
    for name in ("boxes", "scores"):
        wanted, got = (
            np.stack(picked_from(made.files[0], name, OTHERS, optimize=optimize)) for optimize in (False, True)
        )
        assert found.outputs[name].sqnr == pytest.approx(sqnr(wanted, got), abs=0.01)


def test_what_an_argmax_reads_is_compared_beside_labels(tmp_path: Path) -> None:
    made = onnxq.quantize(labels(), FEEDS, options=Options(placement="all"), output=tmp_path / "made.onnx")
    found = onnxq.verify(made, OTHERS)
    assert found.outputs.keys() >= {"logits"}
    assert found.worst is not None and found.worst[0] == "logits"


def test_rows_that_a_top_k_picked_may_change_places(tmp_path: Path) -> None:
    """A detector that has them in its output, best first: 5 dB place by place."""
    data = images(1, 16, 12, 12, samples=24)
    made = onnxq.quantize(best_first(), data, options=Options(placement="compute"), output=tmp_path / "made.onnx")
    found = onnxq.verify(made, data, simulation=True)
    assert found.worst is not None and found.worst[1].sqnr > 25
    assert "output 'y': a TopK picks its rows, and each is compared with the nearest of the result" in found.remarks
    loss = onnxq.verify(made, data).against_float["y"]
    assert min(loss.simulation, loss.runtime) > 25

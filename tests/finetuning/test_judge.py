"""What a trained model and the one given are judged by."""

from __future__ import annotations

import re

import onnxq
from onnxq import Options
from onnxq.finetuning.judge import Judge
from onnxq.finetuning.teacher import teacher_of
from onnxq.prepare import Prepared
from tests.measuring.test_chosen_rows import detector
from tests.models import images


def test_rows_that_a_top_k_picked_are_matched() -> None:
    """Place by place a detector of 25 dB and more has 5 dB, of which training could be told to make anything."""
    model, data = detector(), list(images(1, 16, 12, 12, samples=12))
    given = onnxq.quantize(model, data, options=Options(placement="compute"))
    judge = Judge(given, teacher_of(given, Prepared(model, Options())), data, range(len(data)))
    note = judge.better_of(given, "", any_gain=False).notes[-1]
    found = re.match(r"([\d.]+) to ([\d.]+) dB, not .* better: the model given is kept", note)
    assert found is not None and float(found[1]) == float(found[2]) > 25

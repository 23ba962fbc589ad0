"""A classifier that ends in a Softmax, compared by what the Softmax reads.

Probabilities of a classifier that is sure of itself are 0 and 1 but for rounding, in both models, whatever the noise
is; until it turns a sample whose classes were close, and all of that sample is wrong. With one of 24 turned so their
SQNR is some 11 dB, with none it is exact, and neither says what rounding does. The numbers that the Softmax reads do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.calibration.statistics import KeptSample
from onnxq.graph.shown import show
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.measuring.simulation import simulation
from onnxq.ort.session import Session
from onnxq.quantized import Quantized

__all__ = ["Classes", "classes_of", "softmax_inputs"]


class Classes(NamedTuple):
    """How the classes of a result compare with the float model's.

    Attributes:
        errors: of the numbers that the Softmax reads.
        same: rows in which the largest probability is that of the same class.
        rows: that were compared.
    """

    errors: Errors
    same: int
    rows: int


def softmax_inputs(model: ir.Model) -> dict[str, str]:
    """Output of two axes that a Softmax makes → the tensor that this reads.

    Args:
        model: shapes known.
    """
    found = {}
    for output in model.graph.outputs:
        node = output.producer()
        if node is None or node.op_type != "Softmax" or node.domain != "" or output.shape is None:
            continue
        read = node.inputs[0]
        if len(output.shape) == 2 and read is not None and read.producer() is not None and output.name and read.name:
            found[output.name] = read.name
    return found


def classes_of(
    model: ir.Model,
    quantized: Quantized,
    output: str,
    read: str,
    samples: Sequence[KeptSample],
    options: Mapping[str, Any],
) -> Classes:
    """Run a float model and a result of it.

    Args:
        model: the float model; left as it is.
        quantized: the result.
        output: that a Softmax makes.
        read: what the Softmax reads.
        samples: to run.
        options: of :class:`onnxq.ort.session.Session`.

    Raises:
        ExecutionError: onnxruntime cannot load or run one of the two.
    """
    shown = model.clone()
    show(shown, [read])
    base, other = Session(shown, **options), simulation(quantized, shown=[read], **options)
    meter, same, rows = ErrorMeter(), 0, 0
    for sample in samples:
        wanted, got = (session.run(sample.feeds, [output, read]) for session in (base, other))
        meter.update(wanted[read], got[read], sample.place)
        top = [np.argmax(found[output], axis=1) for found in (wanted, got)]
        same += int(np.count_nonzero(top[0] == top[1]))
        rows += len(top[0])
    return Classes(meter.result(), same, rows)

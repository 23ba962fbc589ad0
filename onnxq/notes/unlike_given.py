"""What a model is made before it is calibrated is to give what the model given gives: results are compared with it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample
from onnxq.console.terminal import decibels, listed
from onnxq.errors import OnnxqError
from onnxq.graph.files.load import ModelSource, load
from onnxq.graph.passes.write_out import COMPOSITE
from onnxq.graph.traverse import all_nodes, full_type
from onnxq.measuring.metrics import ErrorMeter
from onnxq.options import Options
from onnxq.ort.session import Session

__all__ = ["unlike_given", "unlike_unconverted"]

_SAMPLES = 2
_ROUNDING = 50.0
"""dB: float rounding leaves more."""
_NAMED = 4


def unlike_given(model: ir.Model, kept: Sequence[KeptSample], options: Options) -> tuple[str, ...]:
    """A warning for each output that the model with operators written out gives otherwise than with them whole.

    Args:
        model: with the operators whole.
        kept: samples with the outputs of the model in which they are written out.
        options: providers, custom-op library.
    """
    operators = sorted({full_type(node) for node in all_nodes(model)} & COMPOSITE)
    return tuple(
        f"output {name!r} is {far} from that of the model given once {listed(operators, _NAMED)} are written out, and "
        "is measured against what it is then; onnxq compare takes the model given"
        for name, far in _apart(model, kept, options).items()
    )


def unlike_unconverted(source: ModelSource, kept: Sequence[KeptSample], options: Options) -> tuple[str, ...]:
    """A warning for each output that a model whose opset onnx's converter has raised gives otherwise than before.

    Nothing where onnxruntime does not run what was given.

    Args:
        source: what was given.
        kept: samples with the outputs of what became of it.
        options: providers, custom-op library.
    """
    try:
        found = _apart(load(source, again=True), kept, options)
    except OnnxqError:
        return ()
    return tuple(
        f"output {name!r} is {far} from that of the model given since its opset was raised, and is measured against "
        "what it is now: export it anew with a newer opset, and report this"
        for name, far in found.items()
    )


def _apart(model: ir.Model, kept: Sequence[KeptSample], options: Options) -> dict[str, str]:
    """How far outputs of a model are from those of some samples, where that is more than rounding leaves."""
    session, meters = Session(model, optimize=False, **options.session), dict[str, ErrorMeter]()
    for sample in spread(kept, _SAMPLES):
        given = session.run(sample.feeds)
        for name, values in sample.outputs.items():
            if name in given and (values.dtype.kind == "f" or values.shape != given[name].shape):
                meters.setdefault(name, ErrorMeter()).update(given[name], values, sample.place)
    found = {name: meter.result() for name, meter in meters.items()}
    return {name: decibels(errors.sqnr) for name, errors in found.items() if errors.reshaped or errors.sqnr < _ROUNDING}

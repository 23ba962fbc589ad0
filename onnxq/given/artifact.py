"""What an artifact is that was handed to a verb, and what to say where it is not what it was taken for."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.catalog import backends
from onnxq.errors import OnnxqError, OptionError
from onnxq.given.carried import quantizing
from onnxq.quantized import Quantized

__all__ = ["no_quantizers", "readers_of", "rewritten_before", "written_file"]


def written_file(result: Quantized) -> Path:
    """The ONNX model of a result that was written.

    Raises:
        OptionError: it was not.
    """
    if not result.files:
        hint = "Give quantize() an output, or the path that save() wrote to"
        raise OptionError("the result was not written, and what is verified is a file", where="artifact", hint=hint)
    return result.files[0]


def readers_of(path: Path, other: Backend) -> list[str]:
    """Targets but one for which a float model and a table beside it are a quantized model."""
    found = []
    for target in backends():
        if target.name == other.name:
            continue
        for form in target.formats.values():
            try:
                if form.read is not None and form.read(path).qparams:
                    found.append(target.name)
                    break
            except OnnxqError:
                continue  # no table of this target, or one of another model
    return found


def no_quantizers(quantized: Quantized, model: ir.Model) -> list[str]:
    """What to say of an artifact in which nothing is quantized: all figures are then those of a float model."""
    if quantized.qparams or quantizing(model):
        return []
    return ["the model carries no quantizers: a float model was compared with itself"]


def rewritten_before(target: Backend) -> str:
    """What the float model inside an artifact is, where it need not compute what the model given computed."""
    if target.rewrite is None:
        return ""
    return f", which was rewritten for {target.name} first: what that cost is not in these figures"

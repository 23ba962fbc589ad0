"""What an artifact is that was handed to a verb, and what to say where it is not what it was taken for."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.catalog import backends
from onnxq.errors import BackendError, OnnxqError, OptionError
from onnxq.given.unfolded import unfolded
from onnxq.graph.files.load import load
from onnxq.integer_operators import quantizing
from onnxq.quantized import Quantized
from onnxq.read import read
from onnxq.render.formats import write_rendered

__all__ = ["no_quantizers", "read_artifact", "refuse_table", "rewritten_before", "written_file"]


def written_file(result: Quantized) -> Path:
    """The ONNX model of a result that was written.

    Raises:
        OptionError: it was not.
    """
    if not result.files:
        hint = "Give quantize() an output, or the path that save() wrote to"
        raise OptionError("the result was not written, and only files are verified", where="artifact", hint=hint)
    return result.files[0]


def _readers_of(path: Path, other: Backend | None = None) -> list[str]:
    """Targets, but for one, for which a float model and a table beside it are a quantized model."""
    found = []
    for target in backends():
        if other is not None and target.name == other.name:
            continue
        for form in target.formats.values():
            if not all(file.is_file() for file in form.sidecars(path)):
                continue
            try:
                if form.read is not None and form.read(path).qparams:
                    found.append(target.name)
                    break
            except OnnxqError:
                continue  # no table of this target, or one of another model
    return found


def read_artifact(path: Path, target: Backend) -> tuple[str, Quantized]:
    """An artifact as a quantized model, and the format it was read in: ``"onnx"`` for a model with quantizers in it.

    Args:
        path: of the ONNX model that was written.
        target: the target it was made for.

    Raises:
        BackendError: none of the target's formats fits.
    """
    reasons: dict[str, list[str]] = {}
    for name, form in target.formats.items():
        if form.read is None:
            continue
        try:
            return name, form.read(path)
        except OnnxqError as error:
            reasons.setdefault(str(error), []).append(name)
    complaints = [f"as {' or '.join(names)}: {reason}" for reason, names in reasons.items()]
    quantized = unfolded(read(path, backend=target.name))
    unread = [n for n, form in target.formats.items() if form.read is None and form.write is not write_rendered]
    if not quantized.qparams and unread and target.runtime is None:
        raise BackendError(
            f"it holds no quantizers, and {target.name} has no way to read its format {unread[0]!r} back",
            where=f"'{path}'",
            hint=f"Give that Format of the backend {target.name} a 'read'",
        )
    others = [] if quantized.qparams else _readers_of(path, target)
    nothing = not quantized.qparams and not quantizing(quantized.model)
    if nothing and (complaints or others or target.runtime is None):
        complaints.append("as a model with quantizers in it: it has none")
        complaints += [f"a table lies beside it that {' and '.join(others)} would read"] if others else []
    elif _has_integers(load(path)) and not any(form.integers for form in target.formats.values()):
        complaints.append(f"it holds QuantizeLinear and DequantizeLinear, which {target.name} does not take")
    else:
        return "onnx", quantized
    hint = f"If it was made for another target than {target.name}, name that one: --backend {(*others, 'NAME')[0]}"
    hint += "; where nothing was quantized there is nothing to verify" if nothing and not others else ""
    what = f"this is not an artifact of {target.name}: {'; '.join(complaints)}"
    raise BackendError(what, where=f"'{path}'", hint=hint)


def refuse_table(path: Path, model: ir.Model, do: str = "") -> None:
    """Refuse to take a model without quantizers for all of an artifact whose numbers lie in a table beside it.

    Args:
        path: the model's file.
        model: what it holds.
        do: what to do, else the target is to be named.

    Raises:
        BackendError: a table lies beside it that some target would read.
    """
    if quantizing(model) or not (targets := _readers_of(path)):
        return
    named = " or ".join(f"--backend {name}" for name in targets)
    what = f"it has no quantizers, and a table lies beside it that {' and '.join(targets)} would read"
    raise BackendError(what, where=f"'{path}'", hint=do or f"Name the target, so that the table counts: {named}")


def no_quantizers(quantized: Quantized, model: ir.Model) -> list[str]:
    """What to say of an artifact in which nothing is quantized: all figures are then those of a float model."""
    if quantized.qparams or quantizing(model):
        return []
    return ["the model carries no quantizers: a float model was compared with itself"]


def rewritten_before(target: Backend) -> str:
    """What the float model inside an artifact is, where it need not compute what the model given computed."""
    if target.rewrite is None:
        return ""
    return f", which was rewritten for {target.name} first: what that costs is not in these figures"


def _has_integers(model: ir.Model) -> bool:
    return any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.all_nodes())

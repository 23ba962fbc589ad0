"""Shapes of the inputs that a user gives, held against the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxq.errors import OptionError
from onnxq.options.one_value import plain

__all__ = ["check_shapes"]


def check_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse shapes that the inputs of a model cannot have.

    Args:
        model: left unchanged.
        shapes: input name → shape.

    Raises:
        OptionError: there is no such input, or it cannot have that shape.
    """
    inputs = {value.name: value.shape for value in model.graph.inputs if value.name}
    for name, given in shapes.items():
        if name not in inputs:
            hint = f"The model's inputs: {', '.join(map(repr, inputs))}"
            raise OptionError(f"the model has no input {name!r}", where="shapes", hint=hint)
        wanted = inputs[name]
        if not _fits(given, wanted):
            said = "any rank" if wanted is None else "x".join(map(str, wanted)) or "scalar"
            raise OptionError(f"{given!r} is no shape of input {name!r} ({said})", where="shapes")


def _fits(given: object, wanted: ir.Shape | None) -> bool:
    """Whether something is a shape, and one that an input can have."""
    if not isinstance(given, Sequence) or not all(isinstance(plain(dim), int) and dim >= 0 for dim in given):
        return False
    if wanted is None:
        return True
    return len(given) == len(wanted) and all(
        not isinstance(want, int) or want == dim for want, dim in zip(wanted, given, strict=True)
    )

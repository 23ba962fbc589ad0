"""Give inputs of free sizes the sizes that are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxq.errors import OptionError
from onnxq.graph.note import Note
from onnxq.graph.shapes import SIZES_TO_FIND

__all__ = ["fix_shapes"]

_WHERE = "shapes"


def fix_shapes(model: ir.Model, shapes: Iterable[tuple[str, Sequence[int | None]]]) -> list[Note]:
    """Fix free sizes of a model's inputs. What follows from them is found by shape inference.

    Args:
        model: changed in place.
        shapes: names with sizes: an input's, one for each axis, None for one that stays as it is; or one size for all
            axes of inputs whose free size has that name.

    Returns:
        A note for each input that was changed.

    Raises:
        OptionError: there is no such input or free size, or it has another rank or other sizes.
    """
    inputs = [
        value for value in model.graph.inputs if not value.is_initializer() and isinstance(value.type, ir.TensorType)
    ]
    before = {value: _said(value) for value in inputs}
    for name, sizes in shapes:
        value = next((v for v in inputs if v.name == name), None)
        axes = [(v, axis) for v in inputs for axis, size in enumerate(v.shape or ()) if _name(size) == name]
        if len(sizes) == 1 and axes and (value is None or value.shape is None or len(value.shape) != 1):
            for each, axis in axes if sizes[0] is not None else ():
                each.shape = _with(each, {axis: sizes[0]})
        elif value is not None:
            _fix(value, sizes)
        else:
            raise _unknown(name, inputs)
    for value in model.graph.outputs if any(_said(value) != old for value, old in before.items()) else ():
        value.meta[SIZES_TO_FIND] = True
    return [
        Note("fix_shapes", value.name or "", f"{old} fixed to {_said(value)}")
        for value, old in before.items()
        if _said(value) != old
    ]


def _fix(value: ir.Value, sizes: Sequence[int | None]) -> None:
    shape = value.shape if value.shape is not None else ir.Shape([None] * len(sizes))
    where, has = f"{_WHERE}, {value.name!r}", f"the input has {_said(value)}"
    if len(shape) != len(sizes):
        were = "1 size was" if len(sizes) == 1 else f"{len(sizes)} sizes were"
        raise OptionError(f"{were} given, {has}", where=where)
    for axis, (old, new) in enumerate(zip(shape, sizes, strict=True)):
        if isinstance(old, int) and new is not None and old != new:
            hint = "Only free sizes can be fixed: export the float model for another"
            raise OptionError(f"axis {axis} cannot be {new}, {has}", where=where, hint=hint)
    value.shape = _with(value, dict(enumerate(sizes)), shape)


def _with(value: ir.Value, sizes: dict[int, int | None], shape: ir.Shape | None = None) -> ir.Shape:
    """The shape of a tensor with some sizes fixed."""
    given = shape if shape is not None else value.shape
    assert given is not None
    return ir.Shape([size if (new := sizes.get(axis)) is None else new for axis, size in enumerate(given)])


def _said(value: ir.Value) -> str:
    return str(value.shape) if value.shape is not None else "any shape"


def _name(size: int | ir.SymbolicDim) -> str:
    return "" if isinstance(size, int) else size.value or ""


def _unknown(name: str, inputs: Sequence[ir.Value]) -> OptionError:
    known = ", ".join(f"{value.name!r} {_said(value)}" for value in inputs)
    what = f"the model has no input and no free size {name!r}"
    return OptionError(what, where=_WHERE, hint=f"Its inputs: {known}")

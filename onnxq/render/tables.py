"""What writers and readers of tables of numbers share: the model beside the table, weights in it, signs of grids."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backend import Backend
from onnxq.errors import BackendError, ModelError
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import input_of, is_constant
from onnxq.plan import Site
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.spec import PerChannel, PerTensor, QuantSpec

__all__ = [
    "float32s",
    "granularity",
    "only_for",
    "qparams_of",
    "read_json",
    "read_lines",
    "rename_blanks",
    "require_no_blanks",
    "symmetric_only",
    "unsigned",
    "weighted",
    "weights",
    "width",
]

_INTEGERS = 2.0**31
"""No zero point of a table is as large."""


def qparams_of(
    name: str, table: Path, spec: QuantSpec, scale: Any, zero_point: Any = 0, *, divisor: float = 1.0
) -> QParams:
    """The numbers that an entry of a table has for a tensor.

    Whether they can be computed with is asked when they meet the model, see
    :func:`onnxq.render.reading.sound_numbers.check_table_numbers`.

    Args:
        name: of the tensor.
        table: the file, named in the errors.
        spec: how the tensor is quantized; its bits as they stand in the table.
        scale: as it stands there: a number, or a list of them.
        zero_point: likewise, as many.
        divisor: what a scale of the table is divided by.

    Raises:
        BackendError: the bits are no width, the scales no numbers, or the zero points no whole numbers.
    """
    try:
        width(spec.bits)
        zeros = np.asarray(zero_point, np.float64)
        if not ((np.abs(zeros) < _INTEGERS) & (zeros == np.rint(zeros))).all():  # also where one is NaN
            raise ValueError(f"not a whole number: {zero_point!r:.80}")
        return QParams(spec, float32s(scale, divisor), zeros.astype(np.int64))
    except (OverflowError, TypeError, ValueError) as error:
        what = f"the entry of {name!r} does not hold a valid scale, zero point or number of bits: {error}"
        raise BackendError(what, where=f"'{table}'", hint="The file is damaged, or made for something else") from error


def width(bits: Any) -> int:
    """A number of bits as a table has it.

    Raises:
        ValueError: there is no grid of so many.
    """
    if not isinstance(bits, int) or not (2 <= bits <= 16 or bits == 32):
        raise ValueError(f"not a number of bits: {bits!r:.80}")
    return bits


def float32s(numbers: Any, divisor: float = 1.0) -> NDArray[np.float32]:
    """What a table holds, a number or lists of them, divided and then rounded to float32; infinite where it is beyond.

    Raises:
        ValueError: it is no number.
    """
    try:
        with np.errstate(over="ignore"):
            return np.asarray(np.asarray(numbers, np.float64) / divisor, np.float32)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"not a number: {numbers!r:.80}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a table that are not blank.

    Raises:
        BackendError: there is no such table, or it is no text.
    """
    try:
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BackendError(f"the table cannot be read: {why}", where=f"'{path}'") from error


def read_json(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    """A JSON table: an object that has the keys given, each an object.

    Raises:
        BackendError: there is no such table, or it is of another kind.
    """
    text = "\n".join(read_lines(path))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BackendError(f"the table is not JSON: {error}", where=f"'{path}'") from error
    if not isinstance(document, dict):
        raise BackendError("the table is not a JSON object", where=f"'{path}'")
    for key in keys:
        if not isinstance(document.get(key), dict):
            raise BackendError(f"the table does not hold the object {key!r}", where=f"'{path}'")
    return document


def weighted(model: ir.Model, backend: Backend) -> Iterator[tuple[ir.Node, int]]:
    """Nodes with a constant that the backend's table calls a weight, and its position."""
    for node in all_nodes(model):
        rule = backend.rules.get(node.op_type) if node.domain == "" else None
        for position in rule.weights if rule is not None else ():
            if is_constant(input_of(node, position)):
                yield node, position


def weights(model: ir.Model, backend: Backend) -> dict[str, tuple[ir.Node, int]]:
    """Weights by name: the first node that reads each, and its position there."""
    found: dict[str, tuple[ir.Node, int]] = {}
    for node, position in weighted(model, backend):
        value = node.inputs[position]
        assert value is not None
        found.setdefault(value.name or "", (node, position))
    return found


def granularity(node: ir.Node, position: int, backend: Backend, *, per_channel: bool) -> PerTensor | PerChannel:
    """Of a weight with one scale, or with one for each channel."""
    axis = backend.rules[node.op_type].weight_axis
    found = axis(node, position) if per_channel and axis is not None else None
    return PerTensor() if found is None else PerChannel(found)


def only_for(quantized: Quantized, nodes: Collection[str]) -> Quantized:
    """The same with tensors quantized behind and in front of some operators only, all others float."""
    producers = {v.name: node.name for node in all_nodes(quantized.model) for v in node.outputs}
    sites: list[Site] = []
    for site in quantized.plan.sites:
        readers = tuple(edge for edge in site.readers if edge.node in nodes)
        sites.append(replace(site, readers=readers, produced=producers.get(site.tensor) in nodes))
    chosen = {name: op for name, op in quantized.plan.quantized.items() if name in nodes}
    return replace(quantized, plan=replace(quantized.plan, sites=tuple(sites), quantized=chosen))


def unsigned(numbers: QParams) -> QParams:
    """The same grid written with unsigned integers: a symmetric one gets the middle as its zero point."""
    spec = numbers.spec
    if not spec.signed:
        return numbers
    shifted = numbers.zero_point + (1 << (spec.bits - 1))
    return replace(numbers, spec=replace(spec, signed=False, symmetric=False, narrow_range=False), zero_point=shifted)


def symmetric_only(numbers: Mapping[str, QParams], target: str) -> None:
    """Refuse numbers with a zero point.

    Raises:
        BackendError: a tensor has one.
    """
    for name, qp in numbers.items():
        if not qp.spec.signed or qp.zero_point.any():
            raise BackendError(f"tensor {name!r} has a zero point, which {target} has not", where=target)


def require_no_blanks(model: ir.Model) -> None:
    """Refuse a model whose inputs or outputs have names that a table separated by blanks cannot hold.

    Raises:
        ModelError: it is such a model.
    """
    for value in (*model.graph.inputs, *model.graph.outputs):
        if len((value.name or "").split()) != 1 or (value.name or "").strip() != value.name:
            raise ModelError(
                "the name holds blanks, which separate the columns of the target's table",
                where=f"model input or output {value.name!r}",
                hint="Rename it",
            )


def rename_blanks(model: ir.Model) -> dict[str, str]:
    """Give tensors other names where a table separated by blanks could not hold theirs; in place.

    Returns:
        Old name → new name.
    """
    namer = Namer(model)
    fixed = {*model.graph.inputs, *model.graph.outputs}
    renamed: dict[str, str] = {}
    values = [v for node in all_nodes(model) for v in node.outputs]
    for value in values:
        name = value.name or ""
        if name and name.split() != [name] and value not in fixed:
            value.name = renamed[name] = namer.fresh("_".join(name.split()) or "tensor")
    return renamed

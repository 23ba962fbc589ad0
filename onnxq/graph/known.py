"""What was found out about a constant, for models that are planned and written again with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["array_once", "once"]

_Found = TypeVar("_Found")

_KNOWN: MutableMapping[ir.TensorProtocol, dict[Hashable, Any]] = WeakKeyDictionary()
"""Tensor → question → answer; forgotten with the tensor. Nobody changes the numbers of a tensor: it is replaced."""


def once(value: ir.Value, question: Hashable, find: Callable[[], _Found]) -> _Found:
    """An answer about the numbers of a constant, looked for once as long as its tensor lives.

    Args:
        value: the constant; copies of a model share its tensor.
        question: what is asked, with all that the answer depends on besides the numbers. An answer is small, and is not
            changed by whoever gets it.
        find: looks for the answer.
    """
    answers = _answers(value)
    if question not in answers:
        answers[question] = find()
    found: _Found = answers[question]
    return found


def array_once(value: ir.Value, question: Hashable, find: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Like :func:`once` for answers as large as the constant: known only as long as somebody else holds them."""
    answers = _answers(value)
    known = answers.get(question)
    found = known() if known is not None else None
    if found is None:
        found = find()
        answers[question] = ref(found)
    return found


def _answers(value: ir.Value) -> dict[Hashable, Any]:
    """What is known of a constant; to be added to."""
    tensor = value.const_value
    if tensor is None:
        return {}
    try:
        return _KNOWN.setdefault(tensor, {})
    except TypeError:  # another package's tensor, that cannot be referred to weakly
        return {}

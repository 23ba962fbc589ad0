"""One width for each tensor, where the target has a table with one entry for all that read and write it.

A node that is asked to compute in 16 bits then gives its width to the tensors that it reads, and so to the nodes that
make them; a tensor of 8 bits beside it stays as it is for its other readers, who convert.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.backend import Kind
from onnxq.planning.carry import carry
from onnxq.planning.question import Decisions, Question
from onnxq.planning.specs import activation_spec
from onnxq.planning.table_rows import activations_read

__all__ = ["share_widths"]


def share_widths(asked: Question, decided: Decisions) -> None:
    """Note in ``widths`` the widest that is asked for of a tensor, where several are, none below the general one.

    A width below it, which an override asks for of one reader alone, is not overruled: no table can say it, and the
    writer of the table says so.

    Args:
        asked: the question.
        decided: in ``rules``, what runs in integers; ``carried`` is brought up to date.
    """
    if not (asked.backend.one_entry and asked.options.override):
        return
    while True:
        widths: dict[ir.Value, set[int]] = {}
        for value, bits in _asked_for(asked, decided):
            widths.setdefault(value, set()).add(bits)
        torn = {value: max(b) for value, b in widths.items() if len(b) > 1 and min(b) >= asked.act_bits}
        if not torn:
            return
        decided.widths.update(torn)
        carry(asked, decided, kernels=True)


def _asked_for(asked: Question, decided: Decisions) -> Iterator[tuple[ir.Value, int]]:
    """Tensors with the widths in which nodes read and write them."""
    for node, rule in decided.rules.items():
        for value in activations_read(rule, node):
            yield value, activation_spec(asked, decided, node, value, rule.reads(value)).bits
        for value in node.outputs if rule.kind is Kind.MOVEMENT else (decided.output(node),):
            yield value, activation_spec(asked, decided, node, value).bits

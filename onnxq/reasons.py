"""Why nodes stay float, put together for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from onnxq.plan import Kept

__all__ = ["by_reason", "counts", "to_exclude"]


_OF_MANY = {"is none of ": "not among ", "has no ": "no ", "is ": ""}
"""How a sentence about one operator goes on → the same said of several nodes, behind a colon."""


def by_reason(kept: Iterable[Kept]) -> list[tuple[str, list[Kept]]]:
    """Reason → nodes, most frequent first. Reasons that differ only in the operator they begin with are one."""
    groups: dict[str, list[Kept]] = {}
    for item in kept:
        groups.setdefault(_of_many(item), []).append(item)
    return sorted(groups.items(), key=lambda pair: -len(pair[1]))


def _of_many(item: Kept) -> str:
    said = item.reason.removeprefix(f"{item.op} ")
    if said == item.reason:
        return said
    verb = next((verb for verb in _OF_MANY if said.startswith(verb)), None)
    return said if verb is None else _OF_MANY[verb] + said.removeprefix(verb)


def counts(ops: Iterable[str], most: int = 6) -> str:
    """Operator types with their numbers: ``3 Conv, 1 Add``."""
    found = Counter(ops).most_common()
    most = len(found) if len(found) <= most + 1 else most
    rest = f" and {sum(n for _, n in found[most:])} others" if len(found) > most else ""
    return ", ".join(f"{count} {op}" for op, count in found[:most]) + rest


def to_exclude(ops: Mapping[str, int]) -> str:
    """What to do about a result that is slow, naming the operator type that is quantized most often.

    Args:
        ops: type → quantized nodes of it.
    """
    named = f" {max(ops, key=ops.__getitem__)}, say," if ops else ""
    return f"--exclude{named} leaves operators in float"

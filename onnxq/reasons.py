"""Why nodes stay float, put together for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from onnxq.plan import Kept

__all__ = ["by_reason", "counts"]


def by_reason(kept: Iterable[Kept]) -> list[tuple[str, list[Kept]]]:
    """Reason → nodes, most frequent first. Reasons that differ only in the operator they begin with are one."""
    groups: dict[str, list[Kept]] = {}
    for item in kept:
        groups.setdefault(item.reason.removeprefix(f"{item.op} "), []).append(item)
    return sorted(groups.items(), key=lambda pair: -len(pair[1]))


def counts(ops: Iterable[str], most: int = 6) -> str:
    """Operator types with their numbers: ``3 Conv, 1 Add``."""
    found = Counter(ops).most_common()
    most = len(found) if len(found) <= most + 1 else most
    rest = f" and {sum(n for _, n in found[most:])} others" if len(found) > most else ""
    return ", ".join(f"{count} {op}" for op, count in found[:most]) + rest

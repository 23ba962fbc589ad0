"""What was probably meant, for messages about a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path

__all__ = ["nearest", "nearest_file"]

_ALIKE = 0.7
"""Of file names without what follows the dot, as difflib measures it: two letters in seven may differ."""


def nearest(name: str, known: Collection[str], *, title: str = "known") -> str:
    """A hint that names what was probably meant.

    Args:
        name: what was asked for.
        known: the names there are.
        title: what the names are called in the hint, e.g. ``"the model's inputs"``.

    Returns:
        ``"Did you mean 'a', 'b'?"``, or the list of names when none is near and the list is short, or ``""``.
    """
    lower = {k.lower(): k for k in known}
    close = [lower[k] for k in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.55)]
    close += [k for k in known if name and name.strip("*?").lower() in k.lower() and k not in close and len(name) > 2][
        : 3 - len(close)
    ]
    if close:
        return "Did you mean " + ", ".join(map(repr, close)) + "?"
    return f"{title[:1].upper()}{title[1:]}: {', '.join(map(repr, sorted(known)))}." if 0 < len(known) <= 20 else ""


def nearest_file(path: Path) -> str:
    """A hint that names the files of its folder and kind that were probably meant by a path; ``""`` where none is near.

    Their endings are no likeness: all data ends in ``.npz``.
    """
    if not path.parent.is_dir():
        return ""
    stems = {entry.stem.lower(): entry.name for entry in path.parent.iterdir() if entry.suffix == path.suffix}
    close = difflib.get_close_matches(path.stem.lower(), stems, n=3, cutoff=_ALIKE)
    return f"Did you mean {', '.join(repr(stems[stem]) for stem in close)}?" if close else ""

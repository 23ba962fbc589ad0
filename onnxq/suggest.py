"""What was probably meant, for messages about a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Collection

__all__ = ["nearest"]


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

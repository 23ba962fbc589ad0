"""A sensitivity as a picture: plain SVG, a line a layer, a dot a width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxq.measuring.sensitivities import Sensitivity, SensitivityRow

__all__ = ["draw"]

_COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#b9770e", "#7d3c98", "#34495e")
_ROW, _HEAD, _LEFT, _WIDTH, _MARGIN = 16, 46, 330, 520, 24
_NAME = 46
"""Characters of a name that fit; the end says more than the start."""
_STEP = 10
"""dB between grid lines."""


def draw(made: Sensitivity) -> str:
    """The picture as the text of an SVG file.

    Args:
        made: the sensitivity.
    """
    roles = [(role, [row for row in made.rows if row.role == role]) for role in ("weights", "activations")]
    panels = [(title, rows) for title, rows in roles if rows]
    finite = [v for row in made.rows for v in row.sqnr.values() if math.isfinite(v)] or [0.0, float(_STEP)]
    low = _STEP * math.floor(min(finite) / _STEP)
    high = max(_STEP * math.ceil(max(finite) / _STEP), low + _STEP)
    width = _LEFT + _WIDTH + _MARGIN
    height = sum(_HEAD + _ROW * len(rows) + _MARGIN for _, rows in panels) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    top = _MARGIN
    for role, rows in panels:
        parts += _panel(role, rows, made.bits, low, high, top)
        top += _HEAD + _ROW * len(rows) + _MARGIN
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    role: str, rows: Sequence[SensitivityRow], widths: Sequence[int], low: float, high: float, top: int
) -> list[str]:
    def across(value: float) -> float:
        return _LEFT + _WIDTH * (min(max(value, low), high) - low) / (high - low)

    bottom = top + _HEAD + _ROW * len(rows)
    parts = [f'<text x="{_MARGIN}" y="{top}" font-weight="bold">{role} alone: SQNR at the worst output, dB</text>']
    for k, bits in enumerate(widths):
        x = _LEFT + 70.0 * k
        parts.append(f'<circle cx="{x}" cy="{top - 4}" r="4" fill="{_COLOURS[k % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{x + 8}" y="{top}">{bits} bits</text>')
    for value in range(int(low), int(high) + 1, _STEP):
        x = across(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + _HEAD - 14}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{top + _HEAD - 18}" text-anchor="middle" fill="#666">{value}</text>')
    for position, row in enumerate(rows):
        y = top + _HEAD + _ROW * position + _ROW // 2 - 4
        name = row.name if len(row.name) <= _NAME else f"…{row.name[1 - _NAME :]}"
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}" stroke="#eee"/>')
        for k, bits in enumerate(widths):
            sqnr = row.sqnr[bits]
            title = f"{escape(row.name)}, {bits} bits: {sqnr:.1f} dB"
            colour = _COLOURS[k % len(_COLOURS)]
            parts.append(
                f'<circle cx="{across(sqnr):.1f}" cy="{y}" r="4" fill="{colour}"><title>{title}</title></circle>'
            )
    return parts

"""Bars as SVG, with the standard library. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

__all__ = ["COLOURS", "bars", "stacked"]

#: Apart from each other also without colours: dark to light.
COLOURS = ("#1f4e79", "#2e8b57", "#e0a030", "#c9ccd1")
_WIDTH, _LABEL, _NUMBER, _ROW, _BAR, _TOP = 760, 230, 90, 24, 15, 34


def bars(title: str, rows: Sequence[tuple[str, float, bool]]) -> str:
    """One bar a row: label, value, and whether it is ours."""
    parts = [(label, [(value, COLOURS[0] if ours else COLOURS[3])]) for label, value, ours in rows]
    return _chart(title, parts, [])


def stacked(title: str, groups: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> str:
    """One bar a row, in parts: label, and a value for each group."""
    parts = [(label, list(zip(values, COLOURS, strict=False))) for label, values in rows]
    return _chart(title, parts, list(zip(groups, COLOURS, strict=False)))


def _chart(title: str, rows: Sequence[tuple[str, list[tuple[float, str]]]], key: list[tuple[str, str]]) -> str:
    most = max((sum(value for value, _ in parts) for _, parts in rows), default=0.0) or 1.0
    scale = (_WIDTH - _LABEL - _NUMBER) / most
    top = _TOP + (_ROW if key else 0)
    drawn = [f'<text x="0" y="18" font-size="14" font-weight="bold">{escape(title)}</text>']
    for place, (name, colour) in enumerate(key):
        drawn.append(f'<rect x="{_LABEL + place * 110}" y="{_TOP - 4}" width="12" height="12" fill="{colour}"/>')
        drawn.append(f'<text x="{_LABEL + place * 110 + 17}" y="{_TOP + 7}">{escape(name)}</text>')
    for number, (label, parts) in enumerate(rows):
        y, x = top + number * _ROW, float(_LABEL)
        drawn.append(f'<text x="{_LABEL - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>')
        for value, colour in parts:
            drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{value * scale:.1f}" height="{_BAR}" fill="{colour}"/>')
            x += value * scale
        total = sum(value for value, _ in parts)
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 12}">{total:,.0f}</text>')
    height = top + len(rows) * _ROW + 6
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="12">', '<rect width="100%" height="100%" fill="#fff"/>', *drawn, "</svg>\n"])

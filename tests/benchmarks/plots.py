"""Plots as SVG, written by hand: horizontal bars, and lines over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 760
LABELS: Final = 300  # of the width, for the names of bars
ROW: Final = 26
COLOURS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5")
_OTHERS: Final = "#a0aec0"


def bars(title: str, values: Mapping[str, float], *, unit: str, ours: str) -> str:
    """One bar a value, longest at the bottom.

    Args:
        title: Above them.
        values: By name.
        unit: Of the values.
        ours: How the names begin whose bars stand out.
    """
    ordered = sorted(values.items(), key=lambda item: item[1])
    scale = (WIDTH - LABELS - 90) / max(*values.values(), 1.0)
    shapes = [_text(10, 24, title, size=15)]
    for place, (name, value) in enumerate(ordered):
        top, length = 42 + place * ROW, max(value, 0) * scale
        colour = COLOURS[0] if name.startswith(ours) else _OTHERS
        shapes.append(_text(LABELS - 8, top + 14, name, anchor="end"))
        shapes.append(f'<rect x="{LABELS}" y="{top}" width="{length:.1f}" height="{ROW - 8}" fill="{colour}"/>')
        shapes.append(_text(LABELS + length + 6, top + 14, f"{value:,.0f} {unit}"))
    return _svg(42 + len(ordered) * ROW + 8, shapes)


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], *, across: str, up: str) -> str:
    """One line a series, over a logarithmic axis.

    Args:
        title: Above them.
        series: Points by name, each x at least 1.
        across: What x is.
        up: What y is.
    """
    points = [point for line in series.values() for point in line]
    widest = max(10.0, *(x for x, _ in points))
    highest = max(1.0, *(y for _, y in points))

    def at(x: float, y: float) -> tuple[float, float]:
        return 70 + 480 * math.log10(x) / math.log10(widest), 300 - 230 * y / highest

    shapes = [_text(10, 24, title, size=15), '<path d="M70 60V300H560" fill="none" stroke="#4a5568"/>']
    shapes += [_text(315, 338, across, anchor="middle"), _text(64, 58, up, anchor="end")]
    shapes += [
        _text(at(10**power, 0)[0], 318, f"{10**power:,}", anchor="middle")
        for power in range(int(math.log10(widest)) + 1)
    ]
    shapes += [_text(64, at(1, highest * part)[1] + 4, f"{highest * part:,.0f}", anchor="end") for part in (0, 0.5, 1)]
    for colour, (name, line) in zip(COLOURS, series.items(), strict=False):
        places = [at(x, y) for x, y in line]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        shapes.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        shapes.append(_text(places[-1][0] + 6, places[-1][1] + 4, name, colour=colour))
    return _svg(350, shapes)


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#1a202c") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )


def _svg(height: int, shapes: Sequence[str]) -> str:
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'  # pages may be dark
    return "\n".join((opening, ground, *shapes, "</svg>\n"))

"""Line plots as SVG text: axes with ticks, lines with bands, a legend. Nothing but strings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 190, 30, 46
# Okabe and Ito's colours, told apart also by most who see few; dashes tell apart those that come round again.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c00")
DASHES = ("", "7 3", "2 3")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a plot, with a band between `low` and `high` where they are given. What is None is left out."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


def line_plot(lines: Sequence[Line], *, title: str, x_label: str, y_label: str, y_from: float | None = None) -> str:
    """The plot as an SVG document.

    Args:
        y_from: nothing below is shown; None: everything is.
    """
    shown = [line for line in lines if any(value is not None for value in line.y)]
    xs = [x for line in shown for x in line.x] or [0.0, 1.0]
    ys = [y for line in shown for y in (*line.y, *line.low, *line.high) if y is not None] or [0.0, 1.0]
    x_axis = _Axis(min(xs), max(xs), start=LEFT, end=WIDTH - RIGHT)
    y_low = min(ys) if y_from is None else max(min(ys), y_from)
    y_axis = _Axis(min(y_low, max(ys)), max(ys), start=HEIGHT - BOTTOM, end=TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="14" fill="#111">{escape(title)}</text>',
        *_frame(x_axis, y_axis, x_label=x_label, y_label=y_label),
        f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP - 2}" width="{WIDTH - RIGHT - LEFT}" '
        f'height="{HEIGHT - BOTTOM - TOP + 4}"/></clipPath>',
        '<g clip-path="url(#inside)">',
    ]
    parts += [_band(line, x_axis, y_axis, number) for number, line in enumerate(shown)]
    parts += [_line(line, x_axis, y_axis, number) for number, line in enumerate(shown)]
    parts.append("</g>")
    for number, line in enumerate(shown):
        y = TOP + 10 + number * 19
        parts.append(f'<path d="M{WIDTH - RIGHT + 14} {y}h24" {_stroke(number)}/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 44}" y="{y + 4}" fill="#111">{escape(line.label)}</text>')
    return "\n".join(part for part in [*parts, "</svg>"] if part) + "\n"


class _Axis:
    """Values between two ends, as places in the drawing."""

    def __init__(self, low: float, high: float, *, start: float, end: float) -> None:
        margin = 0.5 if high == low else 0.0
        self.low, self.high = low - margin, high + margin
        self._start, self._end = start, end

    def at(self, value: float) -> str:
        return f"{self._start + (value - self.low) / (self.high - self.low) * (self._end - self._start):.1f}"

    def ticks(self, *, least: float = 0.0) -> list[float]:
        """Round values, four to nine of them, no nearer to each other than `least`."""
        rough = max(least, (self.high - self.low) / 5)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(step * i, 10) for i in range(first, last + 1)]


def _frame(x_axis: _Axis, y_axis: _Axis, *, x_label: str, y_label: str) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#444"/>']
    for tick in x_axis.ticks(least=1.0):  # epochs and trials are whole
        x = x_axis.at(tick)
        parts.append(f'<path d="M{x} {bottom}v4" stroke="#444"/>')
        parts.append(f'<text x="{x}" y="{bottom + 17}" text-anchor="middle" fill="#333">{tick:g}</text>')
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        parts.append(f'<path d="M{LEFT} {y}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{y}" dy="4" text-anchor="end" fill="#333">{tick:g}</text>')
    parts.append(
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#333">{escape(x_label)}</text>'
    )
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text x="15" y="{middle}" text-anchor="middle" fill="#333" transform="rotate(-90 15 {middle})">'
        f"{escape(y_label)}</text>"
    )
    return parts


def _stroke(number: int) -> str:
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="1.8"{dashes}'


def _line(line: Line, x_axis: _Axis, y_axis: _Axis, number: int) -> str:
    points = [f"{x_axis.at(x)} {y_axis.at(y)}" for x, y in zip(line.x, line.y, strict=True) if y is not None]
    return f'<path d="M{"L".join(points)}" {_stroke(number)}/>'


def _band(line: Line, x_axis: _Axis, y_axis: _Axis, number: int) -> str:
    if not line.low:
        return ""
    edges = [
        (x, low, high)
        for x, low, high in zip(line.x, line.low, line.high, strict=True)
        if low is not None and high is not None
    ]
    if len(edges) < 2:
        return ""
    there = [f"{x_axis.at(x)} {y_axis.at(high)}" for x, _, high in edges]
    back = [f"{x_axis.at(x)} {y_axis.at(low)}" for x, low, _ in reversed(edges)]
    return f'<path d="M{"L".join(there + back)}Z" fill="{COLOURS[number % len(COLOURS)]}" fill-opacity="0.12"/>'

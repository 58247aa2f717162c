"""Curves as small SVG pictures, for pages that run no scripts: the Prefect UI and whatever else shows markdown."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import escape

from kdgat.report.style import BLACK, FONT, GREY, GRID, Picture

WIDTH, HEIGHT = 560, 240  # of the picture
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 30, 36  # of what is drawn in it
MOST_POINTS: Final = 200  # of a line: no more can be told apart in this width
DASHES: Final = {"dash": "6 4", "dot": "2 4"}


@dataclass(frozen=True)
class _Line:
    """One trace of a figure; `y` has None where there is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str
    dash: str
    has_line: bool


def as_svg(picture: Picture) -> str:
    """Draw the lines of a figure that are shown at once, with axes and a legend; "" where it has none."""
    hidden = {key.label for key in picture.keys if key.is_hidden}
    lines = [line for line in _lines(picture) if line.name not in hidden]
    is_log = picture.figure.layout.yaxis.type == "log"
    points = [
        (x, y) for line in lines for x, y in zip(line.x, line.y, strict=True) if y is not None and (y > 0 or not is_log)
    ]
    if not points:
        return ""
    across = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    up = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, is_log=is_log)
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *_frame(picture, across, up)]
    for line in lines:
        parts.extend(_drawn(line, across, up))
    parts.extend(_legend(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="{escape(FONT)}" font-size="12">{"".join(parts)}</svg>'
    )


def as_data_uri(svg: str) -> str:
    """Return the picture as an address that holds it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


class _Axis:
    """Where values lie in the picture, and which of them are written beside it."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, is_log: bool = False) -> None:
        self.is_log, self._begin, self._end = is_log, begin, end
        self._is_whole = not is_log and all(float(value).is_integer() for value in values)
        low, high = self._scaled(min(values)), self._scaled(max(values))
        margin = 0.04 * (high - low) or max(abs(high) * 0.1, 0.1)
        self._low, self._high = low - margin, high + margin

    def __call__(self, value: float) -> float:
        share = (self._scaled(value) - self._low) / (self._high - self._low)
        return round(self._begin + share * (self._end - self._begin), 1)

    def ticks(self) -> list[float]:
        """Return about five round values between the ends."""
        step = (self._high - self._low) / 5
        size = 10.0 ** math.floor(math.log10(step))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= step)
        if self._is_whole:  # epochs
            step = max(step, 1.0)
        first = math.ceil(self._low / step)
        found = [step * number for number in range(first, math.floor(self._high / step) + 1)]
        return [10**value for value in found] if self.is_log else found

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.is_log else value


def _lines(picture: Picture) -> Iterator[_Line]:
    for trace in picture.figure.data:
        if trace.type != "scatter" or trace.x is None or trace.y is None:
            continue
        x, y = _thinned([float(value) for value in trace.x], list(trace.y))
        has_line = "lines" in (trace.mode or "lines")
        colour = (trace.line.color if has_line else trace.marker.color) or BLACK
        yield _Line(trace.name or "", x, y, colour, DASHES.get(trace.line.dash or "", ""), has_line)


def _thinned(x: list[float], y: list[Any]) -> tuple[list[float], list[Any]]:
    step = math.ceil(len(x) / MOST_POINTS)
    kept = sorted({*range(0, len(x), step), len(x) - 1}) if x else []
    return [x[row] for row in kept], [y[row] for row in kept]


def _frame(picture: Picture, across: _Axis, up: _Axis) -> Iterator[str]:
    for value in up.ticks():
        y = up(value)
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end" fill="{GREY}">{value:.3g}</text>'
    for value in across.ticks():
        place = f'x="{across(value)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle"'
        yield f'<text {place} fill="{GREY}">{value:g}</text>'
    yield f'<path d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="{GREY}"/>'
    layout = picture.figure.layout
    name = escape(layout.xaxis.title.text or "")
    yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end" fill="{GREY}">{name}</text>'


def _drawn(line: _Line, across: _Axis, up: _Axis) -> Iterator[str]:
    """Draw a line with its gaps, and a dot where a value stands alone."""
    runs: list[list[str]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if y is None or (up.is_log and y <= 0):
            runs.append([])
        else:
            runs[-1].append(f"{across(x)},{up(y)}")
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    for run in filter(None, runs):
        if line.has_line and len(run) > 1:
            yield f'<polyline points="{" ".join(run)}" fill="none" stroke="{line.colour}" stroke-width="1.6"{dash}/>'
        else:
            for point in run:
                across_at, _, up_at = point.partition(",")
                yield f'<circle cx="{across_at}" cy="{up_at}" r="4" fill="{line.colour}"/>'


def _legend(lines: Sequence[_Line]) -> Iterator[str]:
    x = float(LEFT)
    for name, line in {line.name: line for line in reversed(lines)}.items():
        width = 30 + 6.6 * len(name)
        if x + width > WIDTH:
            return
        yield f'<rect x="{x}" y="12" width="14" height="3" fill="{line.colour}"/>'
        yield f'<text x="{x + 19}" y="17" fill="{BLACK}">{escape(name)}</text>'
        x += width

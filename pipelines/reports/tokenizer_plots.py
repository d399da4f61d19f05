"""Plots as inline SVG: lines on plain or logarithmic axes, bars side by side, bars upright."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

_WIDTH, _HEIGHT = 540, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 14, 42
_BAR_WIDTH, _BAR, _LABEL_WIDTH, _VALUE_WIDTH = 720, 13, 210, 56
_LABEL_CHARACTERS = 30
# Where the plotted area begins and ends, in pixels: from left to right, and from the floor up.
ACROSS, UP = (_LEFT, _WIDTH - _RIGHT), (_HEIGHT - _BOTTOM, _TOP)

Points = Sequence[Sequence[float]]


class Series(NamedTuple):
    """Points with the name of what they are of; `style` is the class that colours them: `ours` or `reference`."""

    name: str
    points: Points
    style: str


class Axis(NamedTuple):
    """What is along an axis; whether equal distances are equal ratios; whether it begins at 0 or at the least."""

    title: str
    is_log: bool = False
    is_percent: bool = False
    from_zero: bool = True


class Scale(NamedTuple):
    """Where numbers stand between two ends of an axis, in pixels, and which of them are marked."""

    place: Callable[[float], float]
    ticks: list[float]


def line_plot(title: str, about: str, series: Sequence[Series], x: Axis, y: Axis, *, with_dots: bool = False) -> str:
    """Draw one line for each series; on a logarithmic axis all numbers must be above 0."""
    drawn = [each for each in series if each.points]
    xs = [point[0] for each in drawn for point in each.points]
    ys = [point[1] for each in drawn for point in each.points]
    if not drawn:
        return nothing(title)
    across, up = scale(xs, x, *ACROSS), scale(ys, y, *UP)
    # The reference lies under ours where they cross.
    lines = "".join(draw_line(each, across, up, with_dots) for each in reversed(drawn))
    return figure(title, about, grid(across, up, x, y) + lines, drawn if len(drawn) > 1 else [])


def histogram(title: str, about: str, series: Sequence[Series], x: Axis, y: Axis, most: int) -> str:
    """Draw how many there are of each whole number from 1 to `most`, greater ones with the last; side by side."""
    drawn = [Series(each.name, _gathered(each.points, most), each.style) for each in series if each.points]
    if not drawn:
        return nothing(title)
    up = scale([0, *(count for each in drawn for _, count in each.points)], y, *UP)
    step = (_WIDTH - _LEFT - _RIGHT) / most
    marked = [number for number in range(1, most + 1) if number == 1 or number % 4 == 0]
    across = Scale(lambda number: _LEFT + (number - 0.5) * step, [float(number) for number in marked])
    width = 0.8 * step / len(drawn)
    bars = "".join(
        f'<rect class="{each.style}" x="{across.place(number) - 0.4 * step + place * width:.1f}" '
        f'y="{up.place(count):.1f}" width="{width:.1f}" height="{up.place(0) - up.place(count):.1f}"><title>'
        f"{escaped(each.name)}: {count:,.0f} of {number:.0f}{' or more' if number == most else ''}</title></rect>"
        for place, each in enumerate(drawn)
        for number, count in each.points
        if count
    )
    last = f'<text class="tick" x="{across.place(most) + 8:.1f}" y="{_HEIGHT - _BOTTOM + 16}">+</text>'
    return figure(title, about, grid(across, up, x, y) + bars + last, drawn if len(drawn) > 1 else [])


class Bars(NamedTuple):
    """One group of bars: its label and a value for each series, None where there is none."""

    label: str
    values: tuple[float | None, ...]


def bar_plot(title: str, about: str, names: Sequence[tuple[str, str]], groups: Sequence[Bars]) -> str:
    """Draw horizontal bars from 0, one for each (name, style) in each group."""
    most = max((value for group in groups for value in group.values if value), default=0.0)
    if not most:
        return nothing(title)
    a_group = _BAR * len(names) + 10
    bars = "".join(_bars(group, names, 4 + place * a_group, most) for place, group in enumerate(groups))
    legend = [Series(name, [], style) for name, style in names] if len(names) > 1 else []
    return figure(title, about, bars, legend, _BAR_WIDTH, 8 + a_group * len(groups), "wide")


def _bars(group: Bars, names: Sequence[tuple[str, str]], top: int, most: float) -> str:
    label = group.label if len(group.label) <= _LABEL_CHARACTERS else group.label[: _LABEL_CHARACTERS - 1] + "…"
    parts = [
        f'<g><title>{escaped(group.label)}</title><text class="label" x="{_LABEL_WIDTH - 10}" '
        f'y="{top + _BAR * len(names) / 2 + 3:.1f}">{escaped(label)}</text></g>'
    ]
    for number, ((name, style), value) in enumerate(zip(names, group.values, strict=True)):
        if value is None:
            continue
        width = (_BAR_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH) * value / most
        y = top + number * _BAR
        parts.append(
            f'<rect class="{style}" x="{_LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" rx="2"><title>'
            f'{escaped(group.label)}, {escaped(name)}: {value:.3f}</title></rect><text class="value" '
            f'x="{_LABEL_WIDTH + width + 6:.1f}" y="{y + 10}">{value:.2f}</text>'
        )
    return "".join(parts)


def figure(
    title: str,
    about: str,
    drawing: str,
    legend: Sequence[Series],
    width: int = _WIDTH,
    height: int = _HEIGHT,
    style: str = "",
) -> str:
    """Put a drawing, of SVG, below its caption and the names of its series."""
    names = "".join(f'<li class="{each.style}">{escaped(each.name)}</li>' for each in legend)
    return (
        f'<figure class="{style}"><figcaption><strong>{escaped(title)}</strong> {escaped(about)}</figcaption>'
        + (f'<ul class="legend">{names}</ul>' if names else "")
        + f'<svg viewBox="0 0 {width} {height}" role="img"><title>{escaped(title)}</title><desc>{escaped(about)}</desc>'
        f"{drawing}</svg></figure>"
    )


def nothing(title: str) -> str:
    """Return what stands in the place of a plot without data."""
    caption = f"<figcaption><strong>{escaped(title)}</strong></figcaption>"
    return f'<figure>{caption}<p class="note">Nothing to draw.</p></figure>'


def draw_line(series: Series, across: Scale, up: Scale, with_dots: bool) -> str:
    """Draw one series, a single point always as a dot."""
    places = [(across.place(x), up.place(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = f'<polyline class="{series.style}" points="{path}"><title>{escaped(series.name)}</title></polyline>'
    if not with_dots and len(places) > 1:
        return line
    return line + "".join(
        f'<circle class="{series.style}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{_number(px)}: {_number(py)}</title>'
        "</circle>"
        for (x, y), (px, py) in zip(places, series.points, strict=True)
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


def grid(across: Scale, up: Scale, x: Axis, y: Axis) -> str:
    """Draw the marks along both axes, and lines at those of the upright one."""
    floor, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    lines = "".join(
        f'<line x1="{_LEFT}" y1="{(at := up.place(tick)):.1f}" x2="{right}" y2="{at:.1f}"/>' for tick in up.ticks
    )
    lefts = "".join(
        f'<text class="tick side" x="{_LEFT - 7}" y="{up.place(tick) + 4:.1f}">{tick_text(tick, y)}</text>'
        for tick in up.ticks
    )
    feet = "".join(
        f'<text class="tick" x="{across.place(tick):.1f}" y="{floor + 16}">{tick_text(tick, x)}</text>'
        for tick in across.ticks
    )
    middle = (_LEFT + right) / 2
    titles = f'<text class="tick" x="{middle}" y="{_HEIGHT - 7}">{escaped(x.title)}</text>'
    # What stands up the side is said in the caption: turned text is hard to read.
    return (
        f'<g>{lines}<line class="floor" x1="{_LEFT}" y1="{floor}" x2="{right}" y2="{floor}"/>{lefts}{feet}{titles}</g>'
    )


def tick_text(value: float, axis: Axis) -> str:
    """Write a number at an axis: `250`, `10k`, `2.5M`, `40%`."""
    if axis.is_percent:
        return f"{100 * value:.0f}%"
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{name}"
    return f"{value:g}"


def scale(values: Sequence[float], axis: Axis, first: float, last: float) -> Scale:
    """Return where values stand between two places, in pixels."""
    low, high = min(values), max(values)
    if axis.is_log:
        ticks = _powers(low, high)
        return Scale(_between(min(low, ticks[0]), max(high, ticks[-1]), first, last, math.log), ticks)
    ticks = _steps(0.0 if axis.from_zero else low, high)
    return Scale(_between(ticks[0], max(high, ticks[-1]), first, last, float), ticks)


def _between(
    low: float, high: float, first: float, last: float, of: Callable[[float], float]
) -> Callable[[float], float]:
    lowest, span = of(low), (of(high) - of(low)) or 1.0
    return lambda value: first + (of(value) - lowest) / span * (last - first)


def _powers(low: float, high: float) -> list[float]:
    """Return powers of ten, or 1, 2 and 5 times such, from the last one up to `low` to the last one up to `high`.

    Both must be above 0. The first is there to begin the axis; there are at most nine. Where the numbers are so close
    that there would be less than three, they are at equal distances.
    """
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)]
    finer = [part * power for power in powers for part in (1, 2, 5) if part * power <= high]
    chosen = powers[:: 1 + len(powers) // 9] if len(powers) > 3 else finer
    begin = max(at for at, tick in enumerate(chosen) if tick <= low)
    if len(chosen) - begin >= 3 or low == high:
        return chosen[begin:]
    step = _step(high - low)
    first = max(1, math.floor(low / step))
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def _steps(low: float, high: float) -> list[float]:
    """Return the multiples of a step from the last that is not above `low` to the first that is not below `high`."""
    step = _step(high - low) if high > low else _step(abs(high)) if high else 1.0
    first = math.floor(low / step + 1e-9)
    return [number * step for number in range(first, max(first + 1, math.ceil(high / step - 1e-9)) + 1)]


def _step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten, of which a span holds three to six."""
    size = 10.0 ** math.floor(math.log10(span))
    return next(size * part for part in (0.2, 0.5, 1.0, 2.0) if span / (size * part) <= 6)


def _gathered(points: Points, most: int) -> list[tuple[float, float]]:
    counts = [0.0] * (most + 1)
    for number, count in points:
        counts[min(int(number), most)] += count
    return [(float(number), counts[number]) for number in range(1, most + 1)]


def escaped(text: str) -> str:
    """Return text as HTML that shows it: characters that have no sign, such as ESC, as `\\x1b`."""
    signs = (each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return html.escape("".join(signs), quote=True)

"""Charts of the reports: computes the SVG shapes that the `figure` macro of `templates/macros.html` draws.

Horizontal positions are percentages of the plot's width and vertical ones pixels, so that a chart takes the width of
the page and its text keeps its size. Labels lie in the padding around the plot.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipelines.format import plural

# How many classes `color-N` the style sheet has, for curves of any number of things; further ones repeat them.
COLORS = 8
_WIDTH, _HEIGHT = 100, 234
# Histograms of percentages.
_BINS_HEIGHT = 126
# Of a value with its interval, and of its name above.
_ROW_HEIGHT = 36
# The share of a bin that its bar takes.
_BAR = 0.85


class Series(NamedTuple):
    """A named curve; `style` is the CSS class that colors it. A single point is always drawn as a dot.

    `band` has the x, low and high of an area around the curve.
    """

    name: str
    points: Sequence[Sequence[float]]
    style: str = "primary"
    has_dots: bool = False
    band: Sequence[tuple[float, float, float]] = ()


class Interval(NamedTuple):
    """A named value with its interval, None without one; `style` is the CSS class that colors it."""

    name: str
    value: float
    low: float | None
    high: float | None
    style: str = "primary"


class Axis(NamedTuple):
    """An axis: its title, whether it is logarithmic, a percentage, and whether it starts at 0 or at the minimum."""

    title: str = ""
    is_log: bool = False
    is_percent: bool = False
    from_zero: bool = True


class Shape(NamedTuple):
    """An SVG element: its tag, attributes (None for absent ones), tooltip and text."""

    tag: str
    attributes: dict[str, str | None]
    tooltip: str = ""
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Chart:
    """A figure with its caption and legend; one without shapes has no data. `description` is for screen readers."""

    title: str
    caption: str
    shapes: Sequence[Shape] = ()
    legend: Sequence[Series] = ()
    height: int = _HEIGHT
    style: str = ""
    description: str = ""


class _Scale(NamedTuple):
    """Maps values to pixels; `ticks` are the labeled values."""

    position: Callable[[float], float]
    ticks: list[float]


def line_chart(
    title: str,
    caption: str,
    series: Sequence[Series],
    x_axis: Axis,
    y_axis: Axis,
    *,
    markers: Sequence[tuple[str, float]] = (),
    chance: float | None = None,
) -> Chart:
    """Draw the series, vertical lines at named `markers`, a horizontal one at `chance`; log axes need positives."""
    drawn = [curve for curve in series if curve.points]
    if not drawn:
        return Chart(title, caption)
    xs = [point[0] for curve in drawn for point in curve.points]
    ys = [point[1] for curve in drawn for point in curve.points] + ([] if chance is None else [chance])
    ys += [y for curve in drawn for _, *ends in curve.band for y in ends]
    x_scale = _scale(xs, x_axis, 0, _WIDTH)
    y_scale = _scale(ys, y_axis, _HEIGHT, 0)
    shapes = _grid(x_scale, y_scale, x_axis, y_axis)
    for name, value in markers:
        if min(xs) <= value <= max(xs):
            x = x_scale.position(value)
            shapes.append(_line((x, 0), (x, _HEIGHT), "marker", name))
    if chance is not None:
        y = y_scale.position(chance)
        shapes += [_line((0, y), (_WIDTH, y), "threshold"), _text(_WIDTH, y - 5, "chance", "tick before")]
    # The first series lies on top of the others.
    for curve in reversed(drawn):
        shapes += _curve(curve, x_scale, y_scale)
    return Chart(title, caption, shapes, drawn if len(drawn) > 1 else ())


def interval_chart(
    title: str, caption: str, intervals: Sequence[Interval], unit: str, legend: Sequence[Series] = ()
) -> Chart:
    """Draw values with their intervals, one row each, and a line at 0."""
    ends = [x for row in intervals for x in (row.low, row.value, row.high) if x is not None]
    axis = Axis(unit, from_zero=False)
    scale = _scale([0.0, *ends], axis, 0, _WIDTH)
    height = _ROW_HEIGHT * len(intervals)
    shapes = [_text(_WIDTH / 2, height + 35, unit, "tick")]
    for tick in scale.ticks:
        x = scale.position(tick)
        shapes.append(_line((x, 0), (x, height), None if tick else "floor"))
        shapes.append(_text(x, height + 16, _tick_label(tick, axis), "tick"))
    for index, row in enumerate(intervals):
        x, y, about = scale.position(row.value), (index + 0.7) * _ROW_HEIGHT, f"{row.value:.4g}"
        if row.low is not None and row.high is not None:
            about += f" ({row.low:.4g} to {row.high:.4g})"
            shapes.append(_line((scale.position(row.low), y), (scale.position(row.high), y), row.style, about))
        shapes.append(_text(0, y - 11, row.name, "after"))
        shapes.append(_dot(x, y, row.style, about))
    return Chart(title, caption, shapes, legend, height)


def funnel_chart(title: str, caption: str, steps: Sequence[tuple[str, float, Mapping[str, int]]]) -> Chart:
    """Draw a bar per step, named, of what it kept and what it dropped for each reason, as shares of the largest."""
    largest = max((kept + sum(dropped.values()) for _, kept, dropped in steps), default=0)
    shapes = []
    for index, (name, kept, dropped) in enumerate(steps):
        x, top = 0.0, index * _ROW_HEIGHT
        shapes.append(_text(0, top + 13, name, "after"))
        for reason, count in (("kept", kept), *sorted(dropped.items(), key=lambda item: -item[1])):
            width = _WIDTH * count / (largest or 1)
            size = {"x": _percent(x), "y": _px(top + 18), "width": _percent(width), "height": _px(10)}
            style = "primary" if reason == "kept" else "reference"
            shapes.append(Shape("rect", {"class": style, **size}, f"{name}; {reason}: {count:,.0f}"))
            x += width
    legend = [Series("kept", ()), Series("dropped", (), "reference")]
    return Chart(title, caption, shapes, legend, len(steps) * _ROW_HEIGHT, "funnel", "; ".join(n for n, *_ in steps))


def percent_histogram(
    title: str, caption: str, counts: Sequence[int], *, noun: str, x_title: str, thresholds: Sequence[int] = ()
) -> Chart:
    """Draw counts in bins of equal width over 0 to 100%, each including its upper end, and lines at `thresholds`."""
    if not any(counts):
        return Chart(title, caption)
    shapes = []
    for threshold in thresholds:
        shapes.append(_line((threshold, -18), (threshold, _BINS_HEIGHT), "threshold"))
        shapes.append(_text(threshold, -10, f"≥ {threshold}%", "tick after"))
    shapes.append(_line((0, _BINS_HEIGHT), (_WIDTH, _BINS_HEIGHT), "floor"))
    described = []
    width = _WIDTH / len(counts)
    for index, count in enumerate(counts):
        if count:
            name = f"over {index * width:g}% and up to {(index + 1) * width:g}%"
            described.append(f"{name}: {count:,}")
            # The smallest counts stay visible.
            height = max(1.5, _BINS_HEIGHT * count / max(counts))
            x, y, tooltip = (index + (1 - _BAR) / 2) * width, _BINS_HEIGHT - height, f"{name}: {plural(count, noun)}"
            size = {"x": _percent(x), "y": _px(y), "width": _percent(_BAR * width), "height": _px(height)}
            shapes.append(Shape("rect", {"class": "primary", **size}, tooltip))
            label = f"{count}" if count < 1000 else _tick_label(float(f"{count:.2g}"), Axis())
            shapes.append(_text((index + 0.5) * width, y - 5, label, "count"))
    shapes += [_text(percent, _BINS_HEIGHT + 15, f"{percent}%", "tick") for percent in range(0, 101, 20)]
    shapes.append(_text(_WIDTH / 2, _BINS_HEIGHT + 34, x_title, "tick"))
    return Chart(title, caption, shapes, height=_BINS_HEIGHT, style="bins", description="; ".join(described))


def _curve(series: Series, x_scale: _Scale, y_scale: _Scale) -> list[Shape]:
    positions = [(x_scale.position(x), y_scale.position(y)) for x, y in series.points]
    path = " ".join(f"{x:.2f},{y:.1f}" for x, y in positions)
    shapes = [Shape("polyline", {"class": series.style, "points": path}, series.name)]
    if series.band:
        edges = [(x, high) for x, _, high in series.band] + [(x, low) for x, low, _ in reversed(series.band)]
        area = " ".join(f"{x_scale.position(x):.2f},{y_scale.position(y):.1f}" for x, y in edges)
        shapes.insert(0, Shape("polygon", {"class": series.style, "points": area}, series.name))
    if series.has_dots or len(positions) == 1:
        for (x, y), (x_value, y_value) in zip(positions, series.points, strict=True):
            shapes.append(_dot(x, y, series.style, f"{_exact(x_value)}: {_exact(y_value)}"))
    return shapes


def _grid(x_scale: _Scale, y_scale: _Scale, x_axis: Axis, y_axis: Axis) -> list[Shape]:
    """Draw tick labels, horizontal grid lines and the title of the x axis; the caption names the y axis."""
    shapes = []
    for tick in y_scale.ticks:
        y = y_scale.position(tick)
        shapes.append(_line((0, y), (_WIDTH, y)))
        shapes.append(_text(0, y + 4, _tick_label(tick, y_axis), "tick before"))
    shapes.append(_line((0, _HEIGHT), (_WIDTH, _HEIGHT), "floor"))
    x_labels = [
        _text(x_scale.position(tick), _HEIGHT + 16, _tick_label(tick, x_axis), "tick") for tick in x_scale.ticks
    ]
    return [*shapes, *x_labels, _text(_WIDTH / 2, _HEIGHT + 35, x_axis.title, "tick")]


def _line(start: tuple[float, float], end: tuple[float, float], style: str | None = None, tooltip: str = "") -> Shape:
    (x1, y1), (x2, y2) = start, end
    ends = {"x1": _percent(x1), "y1": _px(y1), "x2": _percent(x2), "y2": _px(y2)}
    return Shape("line", {"class": style, **ends}, tooltip)


def _dot(x: float, y: float, style: str, tooltip: str) -> Shape:
    return Shape("circle", {"class": style, "cx": _percent(x), "cy": _px(y), "r": "3.5"}, tooltip)


def _text(x: float, y: float, text: str, style: str) -> Shape:
    return Shape("text", {"class": style, "x": _percent(x), "y": _px(y)}, text=text)


def _percent(value: float) -> str:
    return f"{value:.2f}%"


def _px(value: float) -> str:
    return f"{value:.1f}"


def _exact(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


def _tick_label(value: float, axis: Axis) -> str:
    """Format a number for an axis: `250`, `10k`, `2.5M`, `1B`, `40%`."""
    if axis.is_percent:
        return f"{value:.0%}"
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def _scale(values: Sequence[float], axis: Axis, start: float, end: float) -> _Scale:
    """Return the scale that maps the values, and the ticks around them, to pixels from `start` to `end`."""
    low, high = min(values), max(values)
    ticks = _log_ticks(low, high) if axis.is_log else _linear_ticks(0.0 if axis.from_zero else low, high)
    transform = math.log if axis.is_log else float
    first = transform(min(low, ticks[0]) if axis.is_log else ticks[0])
    span = (transform(max(high, ticks[-1])) - first) or 1.0
    return _Scale(lambda value: start + (transform(value) - first) / span * (end - start), ticks)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return at most nine powers of ten, or 1, 2 and 5 times such, from the last one up to `low` to that up to `high`.

    Values must be positive. If they are so close that fewer than three ticks result, ticks are equidistant.
    """
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)]
    finer = [part * power for power in powers for part in (1, 2, 5) if part * power <= high]
    ticks = powers[:: 1 + len(powers) // 9] if len(powers) > 3 else finer
    begin = max(index for index, tick in enumerate(ticks) if tick <= low)
    if len(ticks) - begin >= 3 or low == high:
        return ticks[begin:]
    step = _tick_step(high - low)
    return [number * step for number in range(max(1, math.floor(low / step)), math.floor(high / step) + 1)]


def _linear_ticks(low: float, high: float) -> list[float]:
    """Return multiples of a round step, from the last one up to `low` to the first one from `high`."""
    step = _tick_step(high - low if high > low else abs(high) or 1.0)
    first = math.floor(low / step + 1e-9)
    return [number * step for number in range(first, max(first + 1, math.ceil(high / step - 1e-9)) + 1)]


def _tick_step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten that divides a span into three to six steps."""
    size = 10.0 ** math.floor(math.log10(span))
    return next(size * part for part in (0.2, 0.5, 1.0, 2.0) if span / (size * part) <= 6)

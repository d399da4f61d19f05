"""Charts of the reports: computes the SVG shapes that the `figure` macro of `templates/macros.html` draws."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipelines.format import plural

# The plot area within a chart of 540 by 290 pixels.
_WIDTH, _HEIGHT = 540, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 524, 14, 248
# Histograms of percentages.
_BINS_WIDTH, _BINS_HEIGHT, _BINS_TOP, _BINS_BOTTOM = 540, 190, 24, 150

Points = Sequence[Sequence[float]]


class Series(NamedTuple):
    """A named curve; `style` is the CSS class that colors it. A single point is always drawn as a dot."""

    name: str
    points: Points
    style: str = "primary"
    has_dots: bool = False


class Axis(NamedTuple):
    """An axis: its title, whether it is logarithmic, a percentage, and whether it starts at 0 or at the minimum."""

    title: str = ""
    is_log: bool = False
    is_percent: bool = False
    from_zero: bool = True


class Mark(NamedTuple):
    """A line across the whole chart at one value, such as the step of a spike."""

    name: str
    value: float


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
    width: int = _WIDTH
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
    markers: Sequence[Mark] = (),
) -> Chart:
    """Draw one curve per series, vertical lines at `markers`; log axes require positive values."""
    drawn = [curve for curve in series if curve.points]
    if not drawn:
        return Chart(title, caption)
    xs = [point[0] for curve in drawn for point in curve.points]
    ys = [point[1] for curve in drawn for point in curve.points]
    x_scale = _scale(xs, x_axis, _LEFT, _RIGHT)
    y_scale = _scale(ys, y_axis, _BOTTOM, _TOP)
    shapes = _grid(x_scale, y_scale, x_axis, y_axis)
    for name, value in markers:
        if min(xs) <= value <= max(xs):
            x = x_scale.position(value)
            shapes.append(_line((x, _TOP), (x, _BOTTOM), "marker", name))
    # The first series lies on top of the others.
    for curve in reversed(drawn):
        shapes += _curve(curve, x_scale, y_scale)
    return Chart(title, caption, shapes, drawn if len(drawn) > 1 else ())


def percent_histogram(
    title: str, caption: str, counts: Sequence[int], *, noun: str, x_title: str, thresholds: Sequence[int] = ()
) -> Chart:
    """Draw counts in bins of equal width over 0 to 100%, each including its upper end, and lines at `thresholds`."""
    if not any(counts):
        return Chart(title, caption)
    shapes = []
    for threshold in thresholds:
        x = _BINS_WIDTH * threshold / 100
        shapes.append(_line((x, _BINS_TOP - 18), (x, _BINS_BOTTOM), "threshold"))
        shapes.append(_text(x + 5, _BINS_TOP - 10, f"≥ {threshold}%", "tick anchor-start"))
    shapes.append(_line((0, _BINS_BOTTOM), (_BINS_WIDTH, _BINS_BOTTOM), "floor"))
    described = []
    width, bin_percent = _BINS_WIDTH / len(counts), 100 / len(counts)
    for index, count in enumerate(counts):
        if count:
            name = f"over {index * bin_percent:g}% and up to {(index + 1) * bin_percent:g}%"
            described.append(f"{name}: {count:,}")
            # The smallest counts stay visible.
            height = max(1.5, (_BINS_BOTTOM - _BINS_TOP) * count / max(counts))
            x, y, tooltip = index * width, _BINS_BOTTOM - height, f"{name}: {plural(count, noun)}"
            shapes.append(_rect(x + 2, y, width - 4, height, style="primary", tooltip=tooltip))
            label = f"{count}" if count < 1000 else _tick_label(float(f"{count:.2g}"), Axis())
            shapes.append(_text(x + width / 2, y - 5, label))
    for percent in range(0, 101, 20):
        anchor = {0: " anchor-start", 100: " anchor-end"}.get(percent, "")
        shapes.append(_text(_BINS_WIDTH * percent / 100, _BINS_BOTTOM + 15, f"{percent}%", f"tick{anchor}"))
    shapes.append(_text(_BINS_WIDTH / 2, _BINS_HEIGHT - 6, x_title, "tick"))
    return Chart(
        title, caption, shapes, width=_BINS_WIDTH, height=_BINS_HEIGHT, style="bins", description="; ".join(described)
    )


def _curve(series: Series, x_scale: _Scale, y_scale: _Scale) -> list[Shape]:
    positions = [(x_scale.position(x), y_scale.position(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
    shapes = [Shape("polyline", {"class": series.style, "points": path}, series.name)]
    if series.has_dots or len(positions) == 1:
        for (x, y), (x_value, y_value) in zip(positions, series.points, strict=True):
            attributes: dict[str, str | None] = {"class": series.style, "cx": _px(x), "cy": _px(y), "r": "3.5"}
            shapes.append(Shape("circle", attributes, f"{_exact(x_value)}: {_exact(y_value)}"))
    return shapes


def _grid(x_scale: _Scale, y_scale: _Scale, x_axis: Axis, y_axis: Axis) -> list[Shape]:
    """Draw tick labels, horizontal grid lines and the title of the x axis; the caption names the y axis."""
    shapes = []
    for tick in y_scale.ticks:
        y = y_scale.position(tick)
        shapes.append(_line((_LEFT, y), (_RIGHT, y)))
        shapes.append(_text(_LEFT - 7, y + 4, _tick_label(tick, y_axis), "tick anchor-end"))
    shapes.append(_line((_LEFT, _BOTTOM), (_RIGHT, _BOTTOM), "floor"))
    x_labels = [
        _text(x_scale.position(tick), _BOTTOM + 16, _tick_label(tick, x_axis), "tick") for tick in x_scale.ticks
    ]
    return [*shapes, *x_labels, _text((_LEFT + _RIGHT) / 2, _HEIGHT - 7, x_axis.title, "tick")]


def _line(start: tuple[float, float], end: tuple[float, float], style: str | None = None, tooltip: str = "") -> Shape:
    (x1, y1), (x2, y2) = start, end
    return Shape("line", {"class": style, "x1": _px(x1), "y1": _px(y1), "x2": _px(x2), "y2": _px(y2)}, tooltip)


def _rect(x: float, y: float, width: float, height: float, *, style: str, tooltip: str) -> Shape:
    size: dict[str, str | None] = {"x": _px(x), "y": _px(y), "width": _px(width), "height": _px(height)}
    return Shape("rect", {"class": style, **size}, tooltip)


def _text(x: float, y: float, text: str, style: str | None = None) -> Shape:
    return Shape("text", {"class": style, "x": _px(x), "y": _px(y)}, text=text)


def _px(value: float) -> str:
    return f"{value:.1f}"


def _exact(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


def _tick_label(value: float, axis: Axis) -> str:
    """Format a number for an axis: `250`, `10k`, `2.5M`, `40%`."""
    if axis.is_percent:
        return f"{value:.0%}"
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
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

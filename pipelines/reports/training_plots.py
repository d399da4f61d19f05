"""Curves of a training run as inline SVG, of ten steps or of a million: thinned so that no peak is lost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.reports.tokenizer_plots import (
    ACROSS,
    UP,
    Axis,
    Scale,
    Series,
    draw_line,
    escaped,
    figure,
    grid,
    nothing,
    scale,
)

Points = list[tuple[float, float]]

# A plot is about 470 pixels wide; each part keeps its least and its greatest number.
_PARTS = 400
_SMOOTHED_SHARE = 50
_LABEL_PIXELS = 12
_MOST_DOTS = 60
DOTTED = "held-out"


class Level(NamedTuple):
    """A line across a plot at one height, such as a published loss."""

    name: str
    value: float


def curve(rows: Sequence[Mapping[str, Any]], name: str) -> Points:
    """Return (step, number) of all rows that have a finite number of a name."""
    is_finite = math.isfinite
    return [(row["step"], value) for row in rows if (value := row.get(name)) is not None and is_finite(value)]


def thinned(points: Points) -> Points:
    """Return at most some 800 points: of each of 400 parts the least and the greatest, in their order."""
    if len(points) <= 2 * _PARTS:
        return points
    values = _values(points)
    ends = np.linspace(0, len(points), _PARTS + 1).astype(int)
    kept = {0, len(points) - 1}
    for first, last in itertools.pairwise(ends):
        kept |= {first + int(values[first:last].argmin()), first + int(values[first:last].argmax())}
    return [points[at] for at in sorted(kept)]


def _values(points: Points) -> npt.NDArray[np.float64]:
    return np.fromiter((value for _, value in points), np.float64, len(points))


def smoothing_steps(points: Points) -> int:
    """Return over how many steps a curve is averaged: a fiftieth of it."""
    return max(1, len(points) // _SMOOTHED_SHARE)


def smoothed(points: Points) -> Points:
    """Return at most some 800 points, each the mean of the steps up to it; none for a curve too short to smooth."""
    steps = smoothing_steps(points)
    if steps == 1:
        return []
    sums = np.concatenate([[0.0], np.cumsum(_values(points))])
    taken = np.unique(np.linspace(0, len(points) - 1, min(2 * _PARTS, len(points))).astype(int))
    first = np.maximum(0, taken + 1 - steps)
    means = (sums[taken + 1] - sums[first]) / (taken + 1 - first)
    return [(points[at][0], float(mean)) for at, mean in zip(taken, means, strict=True)]


def raw_and_smoothed(points: Points, name: str, from_step: float = 0, cut_share: float = 0.0) -> list[Series]:
    """Return a curve as a thin line of every step, and a thick one of its mean where there are enough steps.

    Only what is after `from_step`; of the thin line the greatest numbers, such a share of them, are cut off.
    """
    means = smoothed(points)
    raw = thinned(_cut(after(points, from_step), cut_share))
    if not means:
        return [Series(name, raw, "ours")]
    averaged = Series(f"mean of {smoothing_steps(points):,} steps", after(means, from_step), "ours")
    return [averaged, Series("every step", raw, "raw")]


def after(points: Points, step: float) -> Points:
    """Return the part of a curve from a step on."""
    return [point for point in points if point[0] >= step] if step else points


def _cut(points: Points, share: float) -> Points:
    if not points or not share:
        return points
    most = float(np.quantile(_values(points), 1 - share, method="lower"))
    return [(step, min(value, most)) for step, value in points]


def curve_plot(
    title: str,
    about: str,
    series: Sequence[Series],
    y: Axis,
    *,
    levels: Sequence[Level] = (),
    spikes: Sequence[float] = (),
    from_first_step: bool = True,
) -> str:
    """Draw curves over the steps; `levels` are lines across, `spikes` the steps that are marked."""
    drawn = [each for each in series if each.points]
    if not drawn:
        return nothing(title)
    x = Axis("step", from_zero=from_first_step)
    steps = [step for each in drawn for step, _ in each.points]
    across = scale(steps, x, *ACROSS)
    up = scale([*(value for each in drawn for _, value in each.points), *(each.value for each in levels)], y, *UP)
    marks = "".join(_mark(step, across) for step in spikes if min(steps) <= step <= max(steps))
    lines = "".join(draw_line(each, across, up, _has_dots(each)) for each in reversed(drawn))
    return figure(
        title, about, grid(across, up, x, y) + _levels(levels, up) + marks + lines, drawn if len(drawn) > 1 else []
    )


def _has_dots(series: Series) -> bool:
    return series.style == DOTTED and len(series.points) <= _MOST_DOTS


def _mark(step: float, across: Scale) -> str:
    at = across.place(step)
    return (
        f'<line class="spike" x1="{at:.1f}" y1="{UP[1]}" x2="{at:.1f}" y2="{UP[0]}"><title>spike at step {step:,.0f}'
        "</title></line>"
    )


def _levels(levels: Sequence[Level], up: Scale) -> str:
    """Draw lines across, with their names above them where there is room."""
    parts, free = [], math.inf
    for each in sorted(levels, key=lambda level: level.value):
        at = up.place(each.value)
        name = f"{escaped(each.name)} {each.value:.2f}"
        parts.append(
            f'<line class="level" x1="{ACROSS[0]}" y1="{at:.1f}" x2="{ACROSS[1]}" y2="{at:.1f}"><title>{name}</title>'
            "</line>"
        )
        if at <= free:
            parts.append(f'<text class="tick side" x="{ACROSS[1]}" y="{at - 3:.1f}">{name}</text>')
            free = at - _LABEL_PIXELS
    return "".join(parts)

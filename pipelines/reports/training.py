"""The page of a training run, `training.html`: its loss curves, progress, spikes and recipe."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.format import format_duration, format_percent
from pipelines.reports.charts import COLORS, Axis, Chart, Series, line_chart
from pipelines.reports.render import render

Rows = Sequence[Mapping[str, Any]]
Curve = list[tuple[float, float]]

# A chart is about 470 pixels wide; each bin keeps its minimum and maximum.
_BINS = 400
_SMOOTHED_SHARE = 50
# Shorter runs have no second loss chart of their second half.
_MIN_STEPS_FOR_HALF = 20
# The share of the highest losses that the chart of the second half cuts off.
_CLIPPED_SHARE = 0.005
# A curve with a larger ratio of maximum to minimum has a logarithmic axis.
_MAX_LINEAR_RATIO = 20
_MAX_DOTS = 60
_MAX_SPIKES = 100
# The metrics of the sources of a mixture.
_SOURCE_LOSS = "held_out_loss."


class Tile(NamedTuple):
    """A figure at the top of the page; empty notes are not shown."""

    name: str
    value: str
    notes: tuple[str, ...] = ()


def render_training_page(
    rows: Rows, timing: Rows, about: Mapping[str, Any], spikes: Rows = (), template: str = "training.html", **more: Any
) -> str:
    """Return the page of a run, finished or not.

    `rows` are those of `metrics.jsonl`, `timing` those of `timing.jsonl`. `about` has `title`, `parameters`,
    `vocab_size`, `recipe` (a mapping) and `facts` (values by name, such as the device). `spikes` have `step`, `what`,
    `value`, `mean`, `z`, and may have `file`, the saved batch. The loss is in nats per `unit` of `about`, "token" if it
    has none. A `template` that extends the page has `more` values.
    """
    unit = f"nats per {about.get('unit', 'token')}"
    tiles, charts = training_figures(rows, timing, about["recipe"], spikes, unit)
    return render(template, about=about, tiles=tiles, charts=charts, spikes=spikes, max_spikes=_MAX_SPIKES, **more)


def training_figures(
    rows: Rows, timing: Rows, recipe: Mapping[str, Any], spikes: Rows = (), unit: str = "nats per token"
) -> tuple[list[Tile], list[Chart]]:
    """Return the figures at the top of the page of a run, and its charts."""
    steps = sorted({float(spike["step"]) for spike in spikes})[:_MAX_SPIKES]
    tiles = [
        _step_tile(rows, recipe),
        _loss_tile(rows, unit),
        _held_out_tile(rows, unit),
        _speed_tile(timing),
        _gradient_tile(rows, recipe["grad_clip"]),
        _time_tile(timing, recipe["steps"]),
    ]
    return tiles, _charts(rows, timing, recipe, unit, markers=[(f"spike at step {step:,.0f}", step) for step in steps])


def extract_curve(rows: Rows, name: str) -> Curve:
    """Return (step, value) of the rows that have a finite value of a metric."""
    return [(row["step"], value) for row in rows if (value := row.get(name)) is not None and math.isfinite(value)]


def thin(curve: Curve) -> Curve:
    """Return at most about 800 points of a curve: the minimum and maximum of each of 400 bins, and both ends."""
    if len(curve) <= 2 * _BINS:
        return curve
    values = _values(curve)
    edges = np.linspace(0, len(curve), _BINS + 1).astype(int)
    kept = {0, len(curve) - 1}
    for start, end in itertools.pairwise(edges):
        kept |= {start + int(values[start:end].argmin()), start + int(values[start:end].argmax())}
    return [curve[index] for index in sorted(kept)]


def window_steps(curve: Curve) -> int:
    """Return the window of the moving average: a fiftieth of the curve."""
    return max(1, len(curve) // _SMOOTHED_SHARE)


def smooth(curve: Curve) -> Curve:
    """Return at most 800 points, each the mean of the window that ends there; empty for a curve that is too short."""
    window = window_steps(curve)
    if window == 1:
        return []
    sums = np.concatenate([[0.0], np.cumsum(_values(curve))])
    ends = np.unique(np.linspace(0, len(curve) - 1, min(2 * _BINS, len(curve))).astype(int))
    starts = np.maximum(0, ends + 1 - window)
    means = (sums[ends + 1] - sums[starts]) / (ends + 1 - starts)
    return [(curve[end][0], float(mean)) for end, mean in zip(ends, means, strict=True)]


def raw_and_smoothed(curve: Curve, name: str, from_step: float = 0, clipped_share: float = 0.0) -> list[Series]:
    """Return a curve as a thin line of all steps and, if it is long enough, a thick line of its moving average.

    Only steps from `from_step` on; the highest `clipped_share` of the thin line's values are cut off.
    """
    raw = _from_step(curve, from_step)
    if raw and clipped_share:
        highest = float(np.quantile(_values(raw), 1 - clipped_share, method="lower"))
        raw = [(step, min(value, highest)) for step, value in raw]
    average = smooth(curve)
    if not average:
        return [Series(name, thin(raw))]
    average_name = f"mean of {window_steps(curve):,} steps"
    return [Series(average_name, _from_step(average, from_step)), Series("every step", thin(raw), "raw")]


def _values(curve: Curve) -> npt.NDArray[np.float64]:
    return np.fromiter((value for _, value in curve), np.float64, len(curve))


def _from_step(curve: Curve, step: float) -> Curve:
    return [point for point in curve if point[0] >= step]


def _step_tile(rows: Rows, recipe: Mapping[str, Any]) -> Tile:
    step = rows[-1]["step"] if rows else 0
    done = step * recipe["batch_size"] * recipe.get("context", 1)
    size = f"{done:,} {'tokens' if 'context' in recipe else 'examples'}"
    return Tile("Step", f"{step:,}", (f"of {recipe['steps']:,}", size if done else ""))


def _loss_tile(rows: Rows, unit: str) -> Tile:
    curve = extract_curve(rows, "loss")
    if not curve:
        return Tile("Training loss", "–", (unit,))
    steps = window_steps(curve)
    mean = statistics.fmean(value for _, value in curve[-steps:])
    return Tile("Training loss", f"{mean:.3f}", (unit, f"mean of the last {steps:,} steps" if steps > 1 else ""))


def _held_out_tile(rows: Rows, unit: str) -> Tile:
    row = next((row for row in reversed(rows) if extract_curve([row], "held_out_loss")), None)
    if row is None:
        return Tile("Held-out loss", "–", ("not measured yet",))
    bits, tokens = row.get("held_out_bits_per_byte"), row.get("held_out_tokens")
    measured = f"at step {row['step']:,}" + (f", on {tokens:,} tokens" if tokens is not None else "")
    per_byte = f"{bits:.3f} bits per byte" if bits is not None else ""
    return Tile("Held-out loss", f"{row['held_out_loss']:.3f}", (unit, measured, per_byte))


def _speed_tile(timing: Rows) -> Tile:
    second_half = timing[len(timing) // 2 :]
    speeds = [value for _, value in extract_curve(second_half, "tokens_per_second")]
    if not speeds:
        return Tile("Tokens per second", "–")
    shares = [value for _, value in extract_curve(second_half, "utilisation")]
    peak = f"{format_percent(statistics.median(shares))} of peak FLOP/s" if shares else "share of peak FLOP/s unknown"
    return Tile("Tokens per second", f"{statistics.median(speeds):,.0f}", (peak, "medians of the second half"))


def _gradient_tile(rows: Rows, clip: float) -> Tile:
    norms = [value for _, value in extract_curve(rows, "gradient_norm")]
    if not norms:
        return Tile("Gradient norm", "–")
    clipped = f"{sum(norm > clip for norm in norms) / len(norms):.0%} of the steps clipped at {clip:g}" if clip else ""
    return Tile("Gradient norm", f"{norms[-1]:.3g}", (clipped,))


def _time_tile(timing: Rows, steps: int) -> Tile:
    seconds = extract_curve(timing, "seconds")
    if not seconds:
        return Tile("Time", "–")
    total = sum(value for _, value in seconds)
    left = (steps - seconds[-1][0]) * statistics.median(value for _, value in seconds)
    remaining = f"about {format_duration(left)} left" if left > 0 else ""
    return Tile("Time", format_duration(total), ("in steps, without evaluations", remaining))


def _charts(
    rows: Rows, timing: Rows, recipe: Mapping[str, Any], unit: str, markers: Sequence[tuple[str, float]]
) -> list[Chart]:
    gradients, clip, x_axis = extract_curve(rows, "gradient_norm"), recipe["grad_clip"], Axis("step")
    rates, speeds = extract_curve(rows, "learning_rate"), extract_curve(timing, "tokens_per_second")
    return [
        *_loss_charts(rows, unit, markers),
        *_held_out_charts(rows, _SOURCE_LOSS, "Held-out loss by source", "In nats per token.", Axis()),
        *_held_out_charts(rows, "held_out_score", "Held-out score", "After each epoch.", Axis(from_zero=False)),
        line_chart(
            "Gradient norm",
            f"Before clipping{f' at {clip:g}' if clip else ''}.",
            series=raw_and_smoothed(gradients, "gradient norm"),
            x_axis=x_axis,
            y_axis=Axis(is_log=is_wide(gradients)),
            markers=markers,
        ),
        line_chart("Learning rate", "", series=[Series("learning rate", thin(rates))], x_axis=x_axis, y_axis=Axis()),
        line_chart(
            "Tokens per second", "", series=raw_and_smoothed(speeds, "tokens per second"), x_axis=x_axis, y_axis=Axis()
        ),
    ]


def _loss_charts(rows: Rows, unit: str, markers: Sequence[tuple[str, float]]) -> list[Chart]:
    """Return the chart of the whole run and, of a run that is long enough, one of its second half."""
    losses, held_out = extract_curve(rows, "loss"), extract_curve(rows, "held_out_loss")
    series = [_held_out_series(held_out), *raw_and_smoothed(losses, "training, every step")]
    whole = line_chart("Loss", f"In {unit}.", series=series, x_axis=Axis("step"), y_axis=Axis(), markers=markers)
    if len(losses) < _MIN_STEPS_FOR_HALF:
        return [whole]
    middle = losses[len(losses) // 2][0]
    series = [
        _held_out_series(_from_step(held_out, middle)),
        *raw_and_smoothed(losses, "training, every step", middle, _CLIPPED_SHARE),
    ]
    second_half = line_chart(
        "Loss, second half",
        "The axis starts at the minimum; the highest 0.5% of the steps are cut off.",
        series=series,
        x_axis=Axis("step", from_zero=False),
        y_axis=Axis(from_zero=False),
        markers=markers,
    )
    return [whole, second_half]


def _held_out_charts(rows: Rows, prefix: str, title: str, caption: str, y_axis: Axis) -> list[Chart]:
    """Return the chart of the metrics with a prefix, such as those of the sources of a mixture, if there are any."""
    names = sorted({name for row in rows for name in row if name.startswith(prefix)})
    series = [
        Series(name.removeprefix(prefix), thin(extract_curve(rows, name)), f"color-{number % COLORS}")
        for number, name in enumerate(names)
    ]
    return [line_chart(title, caption, series, x_axis=Axis("step"), y_axis=y_axis)] if series else []


def _held_out_series(curve: Curve) -> Series:
    points = thin(curve)
    return Series("held out", points, "held-out", has_dots=len(points) <= _MAX_DOTS)


def is_wide(curve: Curve) -> bool:
    """Return whether the values of a curve are positive and so far apart that they need a logarithmic axis."""
    values = [value for _, value in curve]
    return bool(values) and min(values) > 0 and max(values) / min(values) > _MAX_LINEAR_RATIO

"""The plots of the overlap page, as inline SVG: examples by overlap, and the share of texts up to an overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.reports.overlap_words import distribution_rows
from pipelines.reports.tokenizer_plots import Axis, Series, line_plot, tick_text

_WIDTH, _HEIGHT, _TOP, _BOTTOM = 720, 190, 24, 40
# What the columns "at least 15%" and "at least 50%" of the table begin at.
_THRESHOLDS = (15, 50)
_NUMBER = Axis("")
_AXIS_ENDS = (5, 10, 20, 50, 100)
_ALMOST_ALL = 0.995


def examples_plot(histogram: Sequence[int], n: int) -> str:
    """Draw examples by the share of their n-grams in the corpus; the first number, those without any, is not drawn.

    The others are for steps of equal width up to 100%, each with its upper end. Nothing is drawn where all are 0.
    """
    counts = histogram[1:]
    if not any(counts):
        return ""
    floor = _HEIGHT - _BOTTOM
    steps = list(_steps(counts))
    described = "; ".join(f"{name}: {count:,}" for name, count in steps if count)
    about = f"The examples with any overlap, by the share of their {n}-grams that is in the corpus."
    return (
        f'<figure class="examples"><figcaption>{about}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>Examples by overlap</title><desc>{described}</desc>'
        f'{_thresholds(floor)}<line class="floor" x1="0" y1="{floor}" x2="{_WIDTH}" y2="{floor}"/>'
        f"{_bars(steps, floor)}{_ticks(floor)}</svg></figure>"
    )


def _steps(counts: Sequence[int]) -> list[tuple[str, int]]:
    return [
        (f"over {100 * step / len(counts):g}% and up to {100 * (step + 1) / len(counts):g}%", count)
        for step, count in enumerate(counts)
    ]


def _bars(steps: Sequence[tuple[str, int]], floor: int) -> str:
    width = _WIDTH / len(steps)
    most = max(count for _, count in steps)
    drawn = []
    for step, (name, count) in enumerate(steps):
        if not count:
            continue
        height = max(1.5, (floor - _TOP) * count / most)
        left = step * width
        drawn.append(
            f'<g><title>{name}: {count:,} example{"" if count == 1 else "s"}</title><rect class="ours" '
            f'x="{left + 2:.1f}" y="{floor - height:.1f}" width="{width - 4:.1f}" height="{height:.1f}" rx="2"/>'
            f'<text x="{left + width / 2:.1f}" y="{floor - height - 5:.1f}">{_short(count)}</text></g>'
        )
    return "".join(drawn)


def _short(count: int) -> str:
    """Write a number so that it fits above a bar: `9,999`, `12k`, `3.4M`."""
    return f"{count:,}" if count < 10_000 else tick_text(float(f"{count:.2g}"), _NUMBER)


def _thresholds(floor: int) -> str:
    return "".join(
        f'<line class="threshold" x1="{_WIDTH * at / 100:.0f}" y1="{_TOP - 18}" x2="{_WIDTH * at / 100:.0f}" '
        f'y2="{floor}"/><text class="tick beside" x="{_WIDTH * at / 100 + 5:.0f}" y="{_TOP - 10}">≥ {at}%</text>'
        for at in _THRESHOLDS
    )


def _ticks(floor: int) -> str:
    ends = {0: "start", 100: "end"}
    marked = "".join(
        f'<text class="tick" x="{_WIDTH * at / 100:.0f}" y="{floor + 15}" '
        f'style="text-anchor:{ends.get(at, "middle")}">{at}%</text>'
        for at in range(0, 101, 10)
    )
    title = "share of an example’s n-grams in the corpus; above the bars, how many examples"
    return f'{marked}<text class="tick" x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6}">{title}</text>'


def samples_plot(samples: Mapping[str, Any]) -> str:
    """Draw which share of the model's samples, and of held-out text, overlaps by at most so much. Paper, figure 5."""
    named = distribution_rows(samples)
    end = _axis_end([each["cumulative"] for _, each in named if each["cumulative"]])
    series = [
        Series(f"{name}{dashed}", [(at / 100, share) for at, share in enumerate(each["cumulative"][: end + 1])], style)
        for (name, each), style, dashed in zip(named, ("ours", "reference"), ("", " (dashed)"), strict=False)
    ]
    ends = "" if end == 100 else f" The axis ends at {end}%: hardly any overlap by more."
    return line_plot(
        "Texts by overlap, added up",
        f"Upwards: the share of the texts of which at most so much is in the corpus.{ends}",
        series,
        Axis("at most this share of a text’s n-grams is in the corpus", is_percent=True),
        Axis("share of the texts", is_percent=True),
    )


def _axis_end(curves: Sequence[Sequence[float]]) -> int:
    """Return the first end of an axis, in percent, by which all curves have come near 1."""
    return next((end for end in _AXIS_ENDS if all(curve[end] >= _ALMOST_ALL for curve in curves)), 100)

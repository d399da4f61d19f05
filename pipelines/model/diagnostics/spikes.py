"""Spikes: a loss or a gradient norm that stands far above those of the steps before it, or is no number at all.

Whether a step is a spike follows from the metrics of the steps before it and from nothing else, so that a resumed run
comes to the same decisions as a whole one.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

WATCHED = {"loss": "the loss", "gradient_norm": "the gradient norm"}
WINDOW_STEPS = 128
THRESHOLD = 6.0
# The eighth at either end of a window is left out, so that a spike in it does not hide the next one. Of normal noise,
# what is left has 0.607 times the standard deviation of all.
_LEFT_OUT = 1 / 8
_LEFT_DEVIATION = 0.607
# The least deviation, as a share of the mean: a curve may become flatter than any change that would matter, and of
# gradient norms one and a half times the mean is nothing special.
_LEAST_DEVIATION = {"loss": 0.01, "gradient_norm": 0.3}


@dataclasses.dataclass(frozen=True)
class Spike:
    """One step whose loss or gradient norm is out of the ordinary.

    `mean` and `deviation` are those of the steps before it, without the extremes, NaN where those are too few; `z` is
    how many deviations `value` stands above the mean, infinite for a value that is no number.
    """

    step: int
    what: str
    value: float
    mean: float
    deviation: float
    z: float

    @property
    def finite(self) -> bool:
        """Whether the value is a number."""
        return math.isfinite(self.value)

    def describe(self) -> str:
        """Return the spike as one line."""
        start = f"step {self.step:,}: {WATCHED[self.what]} is {self.value:.4g}"
        if not self.finite or not math.isfinite(self.mean):
            return start
        return f"{start}, {self.z:.1f} deviations above the {self.mean:.4g} of the steps before"

    def to_json(self) -> dict[str, Any]:
        """Return the spike as JSON values; what cannot be computed is null, a value that is no number is a text."""
        computed = {"mean": self.mean, "deviation": self.deviation, "z": self.z}
        return {
            "step": self.step,
            "what": self.what,
            "value": json_value(self.value),
            **{name: number if math.isfinite(number) else None for name, number in computed.items()},
        }


class SpikeWatch:
    """Tells of each step whether it is a spike.

    A step is compared with the `window` steps before it, only upwards, once half as many are known. The first of
    several high steps is the spike: the next one of the same kind needs a quiet stretch, an eighth of a window, before
    it. Built from the rows of `metrics.jsonl` so far.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]] = (), window: int = WINDOW_STEPS, threshold: float = THRESHOLD
    ) -> None:
        self._quiet_steps = window // 8
        self._kinds = {what: _Kind(window, threshold, _LEAST_DEVIATION[what]) for what in WATCHED}
        # What was before these rows cannot change a decision to come.
        for row in rows[-(window + self._quiet_steps) :]:
            self.observe(row)

    def observe(self, row: Mapping[str, Any]) -> Spike | None:
        """Take in the metrics of a step; return what is out of the ordinary, the worse where both are."""
        found = [
            Spike(row["step"], what, row[what], *scored)
            for what, kind in self._kinds.items()
            if what in row and (scored := kind.score(row[what], self._quiet_steps))
        ]
        return max(found, key=lambda spike: spike.z, default=None)


class _Kind:
    """The last values of one metric."""

    def __init__(self, window: int, threshold: float, least_deviation: float) -> None:
        self._values: collections.deque[float] = collections.deque(maxlen=window)
        self._enough = max(4, window // 2)
        self._threshold = threshold
        self._least_deviation = least_deviation
        self._steps_since_high: float = math.inf

    def score(self, value: float, quiet_steps: int) -> tuple[float, float, float] | None:
        """Take in a value; return mean, deviation and z-score if it is a spike."""
        mean, deviation = math.nan, math.nan
        if len(self._values) >= self._enough:
            mean, deviation = _without_extremes(self._values)
            deviation = max(deviation, self._least_deviation * abs(mean))
        if not math.isfinite(value):
            return mean, deviation, math.inf
        self._values.append(value)
        self._steps_since_high += 1
        # Not a division, which a mean and a deviation of 0 would forbid; NaN compares as False.
        if not value - mean > self._threshold * deviation:
            return None
        first = self._steps_since_high > quiet_steps
        self._steps_since_high = 0
        return (mean, deviation, (value - mean) / deviation if deviation else math.inf) if first else None


def json_value(value: Any) -> Any:
    """Return a value as JSON can hold it: floats that are no numbers become the texts `nan`, `inf` and `-inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: json_value(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(part) for part in value]
    return value


def spike_report(
    spike: Spike,
    *,
    norms: Sequence[Mapping[str, Any]],
    blocks: Sequence[Mapping[str, Any]],
    recipe: Mapping[str, Any],
    replay: str,
) -> bytes:
    """Return what there is to know of a spike as the bytes of a JSON file.

    spike   `step`, `what` ("loss" or "gradient_norm"), `value`; `mean` and `deviation` of the steps before, null where
            those are too few; `z`, null also for a value that is no number
    replay  the command that comes to this step again
    recipe  the values of the run
    norms   one entry a part of the model, see `layer_norms`
    blocks  the batch of the step: each block with its documents and their text

    Numbers that are none are the texts `nan`, `inf` and `-inf`, so that any reader of JSON takes the file.
    """
    report = {
        "spike": spike.to_json(),
        "replay": replay,
        "recipe": json_value(recipe),
        "norms": json_value(norms),
        "blocks": json_value(blocks),
    }
    return (json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _without_extremes(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and deviation of the middle of some values, as they would be of all if those were normal noise."""
    cut = int(len(values) * _LEFT_OUT)
    middle = sorted(values)[cut : len(values) - cut]
    mean = statistics.fmean(middle)
    deviation = math.sqrt(statistics.fmean((value - mean) ** 2 for value in middle)) / _LEFT_DEVIATION
    return mean, deviation

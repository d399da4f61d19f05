"""Spikes: a loss or gradient norm far above those of the preceding steps, or one that is not finite.

Whether a step is a spike follows from the metrics of the preceding steps only, so a resumed run finds the same spikes
as an uninterrupted one.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

FOLDER = "spikes"
WATCHED = {"loss": "the loss", "gradient_norm": "the gradient norm"}
WINDOW_STEPS = 128
THRESHOLD = 6.0
# The highest and lowest eighth of a window are trimmed, so that a spike in it does not hide the next one. The middle
# of normal noise has 0.607 times the standard deviation of all of it.
_TRIMMED_SHARE = 1 / 8
_TRIMMED_DEVIATION = 0.607
# The minimum deviation, relative to the mean: a curve may become flatter than any change that matters, and a gradient
# norm one and a half times the mean is normal.
_MIN_DEVIATION = {"loss": 0.01, "gradient_norm": 0.3}


@dataclasses.dataclass(frozen=True)
class Spike:
    """A step with an outlier in `what`, "loss" or "gradient_norm".

    `mean` and `deviation` are the trimmed statistics of the preceding steps, NaN if those are too few; `z` is the
    number of deviations above the mean, infinite for a value that is not finite.
    """

    step: int
    what: str
    value: float
    mean: float
    deviation: float
    z: float

    @property
    def is_finite(self) -> bool:
        """Whether the value is finite."""
        return math.isfinite(self.value)

    def describe(self) -> str:
        """Return the spike as one line."""
        start = f"step {self.step:,}: {WATCHED[self.what]} is {self.value:.4g}"
        if not self.is_finite or not math.isfinite(self.mean):
            return start
        return f"{start}, {self.z:.1f} deviations above the mean {self.mean:.4g} of the preceding steps"

    def to_json(self) -> dict[str, Any]:
        """Return the spike as JSON values; unknown numbers are null, a value that is not finite is a string."""
        values = dataclasses.asdict(self)
        unknown = {name: None for name in ("mean", "deviation", "z") if not math.isfinite(values[name])}
        return {**values, "value": json_value(self.value), **unknown}


class SpikeDetector:
    """Decides for each step whether it is a spike.

    A step is compared with the `window` preceding steps, upwards only, once half of them are known. Of several high
    steps in a row the first is the spike: the next one of the same metric needs an eighth of a window without any
    before it. `rows` are the metrics so far.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]] = (), window: int = WINDOW_STEPS) -> None:
        self._quiet_steps = window // 8
        self._metrics = {what: _Metric(window, _MIN_DEVIATION[what]) for what in WATCHED}
        # Earlier rows cannot affect a later decision.
        for row in rows[-(window + self._quiet_steps) :]:
            self.observe(row)

    def observe(self, row: Mapping[str, Any]) -> Spike | None:
        """Add the metrics of a step; return its spike, of two the one with the higher z-score."""
        spikes = [
            Spike(row["step"], what, row[what], *scores)
            for what, metric in self._metrics.items()
            if what in row and (scores := metric.score(row[what], self._quiet_steps))
        ]
        return max(spikes, key=lambda spike: spike.z, default=None)


class _Metric:
    """The last values of one metric."""

    def __init__(self, window: int, min_deviation: float) -> None:
        self._values: collections.deque[float] = collections.deque(maxlen=window)
        self._min_values = max(4, window // 2)
        self._min_deviation = min_deviation
        self._steps_since_high: float = math.inf

    def score(self, value: float, quiet_steps: int) -> tuple[float, float, float] | None:
        """Add a value; return mean, deviation and z-score if it is a spike."""
        mean, deviation = math.nan, math.nan
        if len(self._values) >= self._min_values:
            mean, deviation = _trimmed_statistics(self._values)
            deviation = max(deviation, self._min_deviation * abs(mean))
        if not math.isfinite(value):
            return mean, deviation, math.inf
        self._values.append(value)
        self._steps_since_high += 1
        # A product, not a quotient: mean and deviation may be 0. Comparisons with NaN are False.
        if not value - mean > THRESHOLD * deviation:
            return None
        is_first = self._steps_since_high > quiet_steps
        self._steps_since_high = 0
        return (mean, deviation, (value - mean) / deviation if deviation else math.inf) if is_first else None


def _trimmed_statistics(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation, estimated from the middle of the values as if they were normal noise."""
    cut = int(len(values) * _TRIMMED_SHARE)
    middle = sorted(values)[cut : len(values) - cut]
    mean = statistics.fmean(middle)
    deviation = math.sqrt(statistics.fmean((value - mean) ** 2 for value in middle)) / _TRIMMED_DEVIATION
    return mean, deviation


def json_value(value: Any) -> Any:
    """Return a value that JSON can hold: floats that are not finite become the strings `nan`, `inf` and `-inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return value


def spike_file(step: int) -> str:
    """Return the path of a spike's report within the training folder."""
    return f"{FOLDER}/step-{step:07d}.json"


def spike_report(spike: Spike, *, blocks: Sequence[Mapping[str, Any]], recipe: Mapping[str, Any], replay: str) -> bytes:
    """Return the report of a spike as a JSON file; docs/pretrain.md describes it.

    `blocks` are the batch of the step, `replay` the command that recomputes it. Numbers that are not finite are the
    strings `nan`, `inf` and `-inf`, so that every JSON parser accepts the file.
    """
    report = json_value({"spike": spike.to_json(), "replay": replay, "recipe": recipe, "blocks": blocks})
    return (json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()

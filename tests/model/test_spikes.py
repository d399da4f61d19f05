"""Spike detection, its independence of resumes, and the report."""

from __future__ import annotations

import json
import math
import random
import statistics
from typing import Any

import pytest

from pipelines.model.diagnostics.spikes import Spike, SpikeDetector, spike_report


def curve(steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """Metrics as those of a training: a falling loss and gradient norm, with noise."""
    source = random.Random(seed)
    return [
        {
            "step": step,
            "loss": 3.0 + 7.0 * math.exp(-step / 150) + source.gauss(0, 0.05),
            "learning_rate": 1e-3,
            "gradient_norm": (0.4 + 3.0 * math.exp(-step / 60)) * math.exp(source.gauss(0, 0.15)),
        }
        for step in range(1, steps + 1)
    ]


def spikes(rows: list[dict[str, Any]], **config: Any) -> list[Spike]:
    watch = SpikeDetector((), **config)
    return [spike for row in rows if (spike := watch.observe(row))]


@pytest.mark.parametrize("seed", range(5))
def test_a_falling_noisy_curve_has_no_spikes(seed: int) -> None:
    assert spikes(curve(3000, seed)) == []


def test_a_high_loss_is_a_spike_and_does_not_hide_the_next() -> None:
    rows = curve(1000)
    rows[699]["loss"] += 40.0
    rows[749]["loss"] += 1.0
    result = spikes(rows)
    assert [(spike.step, spike.what) for spike in result] == [(700, "loss"), (750, "loss")]
    assert result[0].value == rows[699]["loss"]
    assert result[1].mean == pytest.approx(3.05, abs=0.05)
    assert result[1].deviation < 0.1
    assert result[1].z > 6
    assert result[1].z == pytest.approx((result[1].value - result[1].mean) / result[1].deviation)


def test_only_high_values_are_spikes() -> None:
    rows = curve(400)
    rows[299]["loss"] = 0.5
    rows[349]["gradient_norm"] = 0.0
    assert spikes(rows) == []


def test_the_worse_of_two_in_one_step_is_reported() -> None:
    rows = curve(400)
    rows[299] |= {"loss": 6.0, "gradient_norm": 5000.0}
    assert [spike.what for spike in spikes(rows)] == ["gradient_norm"]


@pytest.mark.parametrize("extremes", [0, 40])
def test_the_deviation_is_robust_against_outliers(extremes: int) -> None:
    source = random.Random(3)
    values = [source.gauss(2, 0.3) for _ in range(2000)]
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    values[1000 : 1000 + extremes] = [1000.0] * extremes
    spike = spikes([{"step": n, "loss": value} for n, value in enumerate([*values, 99.0])], window=2000)[-1]
    assert (spike.step, spike.mean) == (2000, pytest.approx(mean, abs=0.01))
    assert spike.deviation == pytest.approx(deviation, rel=0.05)


def test_a_plateau_after_a_jump_is_one_spike() -> None:
    rows = [{"step": n, "loss": 3.0 + 0.01 * (n % 7) + (4.0 if n > 300 else 0.0)} for n in range(1, 900)]
    assert [spike.step for spike in spikes(rows)] == [301]


def test_an_oscillating_run_is_reported_rarely() -> None:
    rows = [{"step": n, "loss": 3.0 + 0.01 * (n % 7) + (4.0 if n > 300 and n % 10 == 0 else 0.0)} for n in range(900)]
    assert [spike.step for spike in spikes(rows)] == [310]
    assert len(spikes(rows, window=64)) > 20  # the quiet stretch is an eighth of the window


def test_with_few_steps_only_values_that_are_not_finite_are_spikes() -> None:
    rows: list[dict[str, Any]] = [{"step": n, "loss": 3.0 if n != 20 else 300.0} for n in range(40)]
    assert spikes(rows) == []
    for value in (math.nan, math.inf, -math.inf):
        (spike,) = spikes([{"step": 1, "loss": value, "gradient_norm": 1.0}])
        assert (spike.step, spike.what, spike.z, spike.is_finite) == (1, "loss", math.inf, False)
        assert math.isnan(spike.mean)


def test_every_value_that_is_not_finite_is_a_spike_outside_the_window() -> None:
    rows = curve(300)
    rows[200]["loss"] = rows[201]["loss"] = math.nan
    rows[250]["loss"] = 9.0
    assert [spike.step for spike in spikes(rows)] == [201, 202, 251]


def test_a_flat_curve_does_not_divide_by_zero() -> None:
    assert spikes([{"step": n, "loss": 2.0, "gradient_norm": 0.0} for n in range(500)]) == []
    flat = [{"step": n, "loss": 2.0} for n in range(200)]
    assert spikes([*flat, {"step": 200, "loss": 2.1}]) == []  # a deviation is a percent at least
    assert [spike.step for spike in spikes([*flat, {"step": 200, "loss": 2.2}])] == [200]
    norms = [{"step": n, "gradient_norm": 0.5} for n in range(200)]
    assert spikes([*norms, {"step": 200, "gradient_norm": 1.3}]) == []
    assert [spike.step for spike in spikes([*norms, {"step": 200, "gradient_norm": 1.5}])] == [200]
    zeros = [{"step": n, "gradient_norm": 0.0} for n in range(200)]
    (spike,) = spikes([*zeros, {"step": 200, "gradient_norm": 1.0}])
    assert spike.z == math.inf
    assert spike.to_json()["z"] is None


def test_rows_without_metrics_are_skipped() -> None:
    watch = SpikeDetector([{"step": 0, "held_out_loss": 10.8}])
    assert watch.observe({"step": 0}) is None


@pytest.mark.parametrize("window", [16, 128])
def test_a_detector_rebuilt_at_any_step_finds_the_same_spikes(window: int) -> None:
    rows = curve(700)
    source = random.Random(5)
    for _ in range(25):
        at = source.randrange(100, 690)
        rows[at]["loss"] += source.choice([0.3, 1.0, 50.0])
        rows[at + source.randrange(10)]["gradient_norm"] *= source.choice([3, 100])
    whole = spikes(rows, window=window)
    assert len(whole) > 5
    for split in range(0, 700, 37):
        watch = SpikeDetector(rows[:split], window=window)
        resumed = [spike for row in rows[split:] if (spike := watch.observe(row))]
        assert resumed == [spike for spike in whole if spike.step > split]


def test_a_spike_is_described_in_one_line() -> None:
    assert Spike(1234, "loss", 7.31234, 3.4, 0.425, 9.2).describe() == (
        "step 1,234: the loss is 7.312, 9.2 deviations above the mean 3.4 of the preceding steps"
    )
    assert Spike(3, "gradient_norm", math.nan, 0.5, 0.1, math.inf).describe() == "step 3: the gradient norm is nan"


def test_the_report_is_strict_json() -> None:
    spike = Spike(7, "loss", math.nan, math.nan, math.nan, math.inf)
    blocks = [{"number": 3, "pieces": [{"id": "a", "url": None, "text": "größer\n"}]}]
    data = spike_report(spike, blocks=blocks, recipe={"seed": 1, "x": (math.nan, -math.inf)}, replay="webtext ...")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(data, parse_constant=refuse) == {
        "spike": {"step": 7, "what": "loss", "value": "nan", "mean": None, "deviation": None, "z": None},
        "replay": "webtext ...",
        "recipe": {"seed": 1, "x": ["nan", "-inf"]},
        "blocks": blocks,
    }
    assert "größer" in data.decode()


def test_a_report_of_a_finite_spike_has_its_figures() -> None:
    spike = Spike(7, "gradient_norm", 9.0, 1.0, 0.5, 16.0)
    report = json.loads(spike_report(spike, blocks=[], recipe={}, replay=""))
    assert report["spike"] == {
        "step": 7, "what": "gradient_norm", "value": 9.0, "mean": 1.0, "deviation": 0.5, "z": 16.0
    }  # fmt: skip

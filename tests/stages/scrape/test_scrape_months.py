"""The counts and reports of months, and what scrape does about scores that were recorded too early."""

from __future__ import annotations

import calendar
import datetime as dt
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrape_run import Notes, read_links, read_table, records, run_scrape, second, write_dump

from pipelines.engine.config import Tables, read_toml
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.stages.scrape.reports import KNOWN_MONTHS, SCORE_LABELS, DayCounts, FileStats, make_month_reports
from pipelines.stages.scrape.submission import Submission

_UNKNOWN = "2017-03"
_KNOWN = "2023-08"

_ROWS = st.lists(
    st.tuples(
        st.integers(0, 253402300799) | st.integers(1672531200, 1680307200),
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 12) | st.sampled_from([99, 100, 999, 1000]),
        st.booleans(),
    ),
    max_size=40,
)


def _counted(rows: Sequence[tuple[int, int | None, bool]]) -> DayCounts:
    counts = DayCounts()
    counts.add(
        [Submission(id="x", created_utc=time, score=score, is_self=not is_link) for time, score, is_link in rows]
    )
    return counts


def _label(score: int) -> str:
    for label, most in (("0", 0), ("1", 1), ("2", 2), ("3-9", 9), ("10-99", 99), ("100-999", 999)):
        if score <= most:
            return label
    return "1000+"


def _plain_months(rows: list[tuple[int, int | None, bool]]) -> list[dict[str, Any]]:
    """Count the rows of each month by the calendar of the standard library."""
    by_month: dict[str, list[tuple[int, int | None, bool]]] = {}
    for row in rows:
        by_month.setdefault((dt.datetime(1970, 1, 1) + dt.timedelta(seconds=row[0])).strftime("%Y-%m"), []).append(row)
    made = []
    for month in sorted(by_month, key=lambda month: month.rjust(7, "0")):
        those = by_month[month]
        days = {(dt.datetime(1970, 1, 1) + dt.timedelta(seconds=time)).day for time, _, _ in those}
        scores = [score for _, score, _ in those if score is not None]
        labels = Counter(map(_label, scores))
        year, number = map(int, month.split("-"))
        made.append(
            {
                "submissions": len(those),
                "links": sum(is_link for _, _, is_link in those),
                "without_score": len(those) - len(scores),
                "histogram": [labels[label] for label in SCORE_LABELS],
                "sum": sum(max(-(10**6), min(10**6, score)) for score in scores),
                "scored": len(scores),
                "days": (min(days), max(days)),
                "empty_days": calendar.monthrange(year, number)[1] - len(days),
            }
        )
    return made


@settings(max_examples=100, deadline=None)
@given(_ROWS, st.integers(0, 40))
def test_counts_match_a_plain_count(rows: list[tuple[int, int | None, bool]], cut: int) -> None:
    counts = _counted(rows[:cut])
    counts.update(_counted(rows[cut:]))
    stats = FileStats.from_json(FileStats(days=counts).to_json())
    months = make_month_reports([("RS", stats)], "dump")
    found = [
        {
            "submissions": month["submissions"],
            "links": month["links"],
            "without_score": month["without_score"],
            "histogram": [month[f"score_{label}"] for label in SCORE_LABELS],
            "sum": round(month["mean_score"] * (month["submissions"] - month["without_score"])),
            "scored": month["submissions"] - month["without_score"],
            "days": (month["first_day"], month["last_day"]),
            "empty_days": month["empty_days"],
        }
        for month in months
    ]
    assert found == _plain_months(rows)
    assert [month["month"] for month in months] == sorted(month["month"] for month in months)


def test_the_stats_of_a_file_round_trip_as_json() -> None:
    stats = FileStats(lines=5, kept=2, damaged_at=7, damage="cut", days=_counted([(second(_KNOWN), 3, True)]))
    stats.dropped["low_score"] += 3
    again = FileStats.from_json(stats.to_json())
    assert again.to_json() == stats.to_json()
    assert str(again.days.by_day()) == str(stats.days.by_day())
    assert again.problem("x") == stats.problem("x") is not None


def _problem(month: str, scores: list[Any], days: int = 28, source: str = "dump") -> str | None:
    rows = [(record["created_utc"], record["score"], True) for record in records(month, scores, days=days)]
    (report,) = make_month_reports([("RS", FileStats(days=_counted(rows)))], source)
    assert report["month"] == month
    return report["problem"]


def test_a_month_of_ones_is_fresh_and_an_ordinary_one_is_not() -> None:
    problem = _problem(_UNKNOWN, [1] * 2000)
    assert problem == (
        "0.0% of 2,000 submissions have 3 points or more, mean score 1.0; in other months several in a hundred do"
    )
    chance = random.Random(3)
    for good in (0.04, 0.1, 0.4):
        scores = [30 if chance.random() < good else 1 for _ in range(3000)]
        assert _problem(_UNKNOWN, scores) is None


@pytest.mark.parametrize(
    ("good", "bad", "fresh"),
    [
        (0, 999, False),
        (0, 1000, True),
        (29, 971, True),
        (30, 970, False),
        (59, 1941, True),
        (60, 1940, False),
        (0, 0, False),
    ],
)
def test_minimum_number_of_scores(good: int, bad: int, fresh: bool) -> None:
    # Missing scores are no evidence.
    assert (_problem(_UNKNOWN, [3] * good + [2] * bad + [None] * 1200) is not None) == fresh


def test_a_month_with_some_fresh_days() -> None:
    rows = [(second(_UNKNOWN, day) + n, 1, True) for day in (5, 6) for n in range(1100)]
    rows += [(second(_UNKNOWN, day) + n, 50, True) for day in range(7, 29) for n in range(1100)]
    (report,) = make_month_reports([("RS", FileStats(days=_counted(rows)))], "dump")
    assert report["problem"].startswith(
        "on 2 of its days (first: 5) almost no submission has 3 points; 91.7% of 26,400 submissions have 3 points"
    )
    # A day of few submissions may well have no good one.
    rows = [(second(_UNKNOWN, 5) + n, 1, True) for n in range(900)] + rows[2200:]
    (report,) = make_month_reports([("RS", FileStats(days=_counted(rows)))], "dump")
    assert report["problem"] is None


def test_known_months_are_refused() -> None:
    known_months = read_toml(KNOWN_MONTHS, Tables)
    assert sorted(known_months) == ["2023-07", "2023-08", "2023-09", "2023-10", "2024-03"]
    for month, known in known_months.items():
        problem = _problem(month, [1] * 25)
        assert problem == f"0.0% of 25 submissions have 3 points or more, mean score 1.0; {known['what']}"
        assert _problem(month, [40] * 25) is None
        # Too little to tell, and of an API the scores are those of today.
        assert _problem(month, [1] * 19) is None
        assert _problem(month, [1] * 25, source="arctic-shift") is None
        assert _problem(month, [1] * 2000, source="praw") is not None
    # The mean counts, as most of a good month has few points as well.
    assert _problem(_KNOWN, [1] * 70 + [100] * 30) is None
    assert _problem("2023-07", [1] * 70 + [31] * 30) is not None
    assert _problem("2023-06", [1] * 25) is None


def test_a_month_that_ends_early() -> None:
    def truncated(month: str, count: int, days: int) -> str | None:
        rows = [(record["created_utc"], 9, True) for record in records(month, [9] * count, days=days)]
        return make_month_reports([("RS", FileStats(days=_counted(rows)))], "dump")[0]["truncated"]

    assert truncated("2017-01", 700, 20) == "nothing after day 20 of 31"
    assert truncated("2016-02", 700, 28) == "nothing after day 28 of 29"
    assert truncated("2016-02", 700, 29) is None
    assert truncated("2017-02", 700, 28) is None
    assert truncated("2017-01", 619, 20) is None
    assert truncated("2017-01", 620, 20) is not None


def test_a_damaged_file_ends_its_last_month() -> None:
    both = _counted([(second("2017-01", 30), 9, True), (second("2017-02", 3), 9, True)])
    other = _counted([(second("2017-02", 4), 9, False), (second("2017-02", 28), None, True)])
    reports = make_month_reports(
        [("RS_1", FileStats(days=both, damaged_at=77)), ("RS_2", FileStats(days=other)), ("RS_3", FileStats())], "dump"
    )
    assert [(report["month"], report["files"], report["truncated"]) for report in reports] == [
        ("2017-01", ["RS_1"], None),
        ("2017-02", ["RS_1", "RS_2"], "RS_1 is damaged near compressed byte 77"),
    ]


def test_a_fresh_month_stops_a_run_and_can_be_accepted(tmp_path: Path) -> None:
    chance = random.Random(1)
    good = write_dump(tmp_path, "RS_2017-02.zst", records("2017-02", [chance.randrange(40) for _ in range(1500)]))
    fresh = write_dump(tmp_path, "RS_2017-03.zst", records(_UNKNOWN, [1] * 1990 + [7] * 10))
    known = write_dump(tmp_path, "RS_2023-08.zst", records(_KNOWN, [1] * 29 + [4], days=30))
    with pytest.raises(InputError) as raised:
        run_scrape([good, fresh, known], tmp_path / "out")
    message = str(raised.value)
    for part in (
        "a minimum of 3 points keeps almost nothing: 2017-03: 0.5% of 2,000 submissions have 3 points or more, mean",
        "; 2023-08: 3.3% of 30 submissions have 3 points or more, mean score 1.1; the public archives hold 2023-08",
        "--refresh-scores arctic-shift",
        "--accept-fresh-scores",
    ):
        assert part in message
    assert "2017-02" not in message
    assert not list((tmp_path / "out").glob("*.parquet"))

    notes = Notes()
    summary = run_scrape([good, fresh, known], tmp_path / "out", RunOptions(progress=notes), accept_fresh_scores=True)
    assert summary.extra["months_with_fresh_scores"] == 2
    accepted = [line for line in notes.lines if line.endswith("; accepted")]
    assert [line.split(":")[0] for line in accepted] == ["2017-03", "2023-08"]
    ids = [id for link in read_links(tmp_path / "out").values() for id in link["submission_ids"]]
    assert len([id for id in ids if id.startswith("1703")]) == 10
    assert [id for id in ids if id.startswith("2308")] == [f"2308{29:04x}"]

    table = read_table(tmp_path / "out", "months")
    assert [row["month"] for row in table] == ["2017-02", "2017-03", "2023-08"]
    assert [row["files"] for row in table] == [["RS_2017-02.zst"], ["RS_2017-03.zst"], ["RS_2023-08.zst"]]
    assert [row["problem"] is None for row in table] == [True, False, False]
    march = table[1]
    assert {name: march[name] for name in march if name not in ("problem", "files")} == {
        "month": "2017-03",
        "submissions": 2000,
        "links": 2000,
        "without_score": 0,
        "mean_score": 1.03,
        "score_0": 0,
        "score_1": 1990,
        "score_2": 0,
        "score_3-9": 10,
        "score_10-99": 0,
        "score_100-999": 0,
        "score_1000+": 0,
        "first_day": 1,
        "last_day": 28,
        "empty_days": 3,
        "truncated": "nothing after day 28 of 31",
    }
    # What was accepted is said of the finished result too.
    assert run_scrape([good, fresh, known], tmp_path / "out").extra["months_with_fresh_scores"] == 2


def test_month_counts_use_the_written_scores(tmp_path: Path) -> None:
    scores: list[Any] = [None, "5", "x", 12.0, 3, True, "1000", [], 0, -4, 10**19, 2**62]
    lines = records("2015-05", scores)
    lines[3]["is_self"] = True
    lines[4]["promoted"] = True
    dump = write_dump(tmp_path, "RS_2015-05.json", [*lines, "oops", ""])
    summary = run_scrape([dump], tmp_path / "out")
    (row,) = read_table(tmp_path / "out", "months")
    assert (row["submissions"], row["links"], row["without_score"]) == (12, 10, 5)
    assert [row[f"score_{label}"] for label in SCORE_LABELS] == [2, 0, 0, 2, 1, 0, 2]
    assert row["mean_score"] == pytest.approx((5 + 12 + 3 + 1000 + 0 - 4 + 10**6) / 7)
    assert summary.dropped["bad_line"] == 1
    assert summary.dropped["missing_score"] == 5


def test_months_are_counted_over_all_files(tmp_path: Path) -> None:
    # Each file alone has too few submissions to be told from a quiet one.
    parts = [
        write_dump(tmp_path, f"part{n}.json", [*records("2017-02", [9] * 20), *records(_UNKNOWN, [1] * 600, n * 600)])
        for n in range(2)
    ]
    for n, part in enumerate(parts):
        assert "months_with_fresh_scores" not in run_scrape([part], tmp_path / f"alone{n}").extra
    with pytest.raises(InputError, match=r"2017-03: 0\.0% of 1,200 submissions"):
        run_scrape(parts, tmp_path / "out")


@pytest.mark.parametrize(
    ("dates", "stops"),
    [
        ({"before": "2017-03-01"}, False),
        ({"before": "2017-03-02"}, True),
        ({"after": "2017-03-31"}, True),
        ({"after": "2017-04-01"}, False),
        ({"after": "2017-02-01", "before": "2017-04-01"}, True),
    ],
)
def test_a_fresh_month_excluded_by_date_is_not_refused(tmp_path: Path, dates: dict[str, str], stops: bool) -> None:
    months = [("2017-02", [9] * 20), (_UNKNOWN, [1] * 1200), ("2017-04", [9] * 20)]
    dump = write_dump(tmp_path, "RS.json", [each for month, scores in months for each in records(month, scores)])
    if stops:
        with pytest.raises(InputError, match=r"2017-03: 0\.0% of 1,200 submissions"):
            run_scrape([dump], tmp_path / "out", **dates)
    else:
        assert run_scrape([dump], tmp_path / "out", **dates).records_out > 0
        assert read_table(tmp_path / "out", "months")[1]["problem"] is not None

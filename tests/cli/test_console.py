"""Console output: progress on a terminal and elsewhere, summaries and tables."""

from __future__ import annotations

import datetime as dt
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import rich.console

from pipelines.engine.run import Summary
from pipelines.format import describe_field, format_rate
from webtext_cli import console
from webtext_cli.console import (
    BarProgress,
    PlainProgress,
    print_summary,
    print_table,
    shorten,
)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("documents_without_url", 1200, "documents without URL: 1,200"),
        ("kept_url", "http://a.org/", "kept URL: http://a.org/"),
        ("confidence", 0.9892464876174927, "confidence: 0.9892"),
        ("fetched_at", dt.datetime(2026, 11, 25, 17, 58, 26, 950000, dt.UTC), "fetched at: 2026-11-25 17:58:26+00:00"),
        ("created_utc", 1420070400, "created UTC: 2015-01-01 00:00:00+00:00"),
        ("created_utc", 10**15, "created UTC: 1,000,000,000,000,000"),
        ("near_duplicates", ["a", "b"], "near-duplicates: a, b"),
        ("text_bytes", 1500, "text bytes: 1.5 kB"),
        ("text_sha256", b"\x00\xff", "text sha256: 00ff"),
    ],
)
def test_fields_are_in_words(name: str, value: object, shown: str) -> None:
    assert describe_field(name, value) == shown


def test_a_rate_of_nothing_is_not_shown() -> None:
    assert format_rate(0.01, None, "records") == ""


def test_plain_lines_show_done_rate_and_time_left(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    progress = PlainProgress()
    progress.start("extract: shards", 1000, "records")
    progress.advance(1)
    clock[0] += 10
    progress.advance(249)
    progress.note("a shard will be rebuilt")
    clock[0] += 5
    progress.advance(750)
    progress.finish(complete=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "extract: shards ...",
        "extract: shards: 250 of 1,000 records (25%) in 10.0 s, 25 records/s, 30.0 s left",
        "note: a shard will be rebuilt",
        "extract: shards: 1,000 of 1,000 records (100%) in 15.0 s, 67 records/s",
    ]


def test_the_time_left_does_not_include_compilation(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    progress = PlainProgress()
    progress.start("extract: shards", 1000, "records")
    progress.pause()
    clock[0] += 40
    progress.advance(50)
    clock[0] += 10
    progress.advance(100)
    assert capsys.readouterr().err.splitlines() == [
        "extract: shards ...",
        "extract: shards: 150 of 1,000 records (15%) in 50.0 s, 10 records/s, 1 min 25 s left",
    ]


def test_the_rate_of_a_bar_does_not_include_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(rich.console, "monotonic", lambda: now[0])
    progress = BarProgress()
    progress.start("extract: shards", 1000, "records")
    progress.pause()
    now[0] += 40
    progress.advance(50)
    for _ in range(10):
        now[0] += 1
        progress.advance(10)
    (task,) = progress._bar.tasks
    progress.finish(complete=False)
    assert (task.completed, task.speed) == (150, 10)


def test_failed_work_is_not_reported_as_done(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    progress = PlainProgress()
    for units in (0, 250):
        progress.start("scrape: scores", 1000, "scores")
        progress.advance(units)
        clock[0] += 3
        progress.finish(complete=False)
    assert capsys.readouterr().err.splitlines() == [
        "scrape: scores ...",
        "scrape: scores: stopped after 3.0 s",
        "scrape: scores ...",
        "scrape: scores: stopped after 3.0 s, 250 of 1,000 scores done",
    ]


def test_short_phases_that_count_nothing_leave_no_line(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    progress = PlainProgress()
    for label, seconds in (("dedup: plan", 0.1), ("dedup: kept", 60.0)):
        progress.start(label, None, "records")
        clock[0] += seconds
        progress.finish(complete=True)
    assert capsys.readouterr().err.splitlines() == ["dedup: kept: done in 1 min 00 s"]


def test_finished_work_is_100_percent_of_any_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    progress = PlainProgress()
    progress.start("scrape: merge", 837, "submissions")
    progress.advance(213)
    progress.finish(complete=True)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("scrape: merge: 213 of 213 submissions (100%) in ")
    assert "left" not in last


def test_printed_counts_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    drops = {f"reason_{number:02d}": 1 for number in range(40)}
    print_summary(Summary("fetch", 100, 60, drops, 1.0, "corpus/fetch", {"bytes": 5}), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    numbers = [int(line.split()[-2].replace(",", "")) for line in lines if line.endswith("%")]
    assert numbers[0] - sum(numbers[1:-1]) == numbers[-1] == 60
    assert any("dropped for 10 other reasons" in line for line in lines)


def test_a_summary_is_in_words_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"distinct_ngrams": 1_234_567, "text_bytes": 2_500_000, "held_out_loss": 4.25, "rows": [1]}
    print_summary(Summary("overlap-index", 9, 8, {"bad_json": 1}, 1.0, "corpus/index", figures), as_json=False)
    shown = capsys.readouterr().out
    assert shown.splitlines()[-3:] == ["  distinct n-grams: 1,234,567", "  text bytes: 2.5 MB", "  held-out loss: 4.25"]
    assert "-1" not in shown


def test_a_long_text_is_shortened_in_its_middle() -> None:
    texts = [shorten("abcdefghij", width) for width in (11, 10, 9, 8)]
    assert texts == ["abcdefghij", "abcdefghij", "abcd…ghij", "abcd…hij"]


def test_a_table_is_not_folded_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "count"], [["x" * 120, "1"], ["[bold]y[/bold]", "22"]], title="A title")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert any("x" * 120 in line for line in lines)
    assert any("[bold]y[/bold]" in line for line in lines)


@pytest.mark.parametrize("complete", [True, False])
def test_a_terminal_gets_a_bar(tmp_path: Path, complete: bool) -> None:
    script = f"""
        import time
        from webtext_cli.console import make_progress
        progress = make_progress()
        progress.start("extract: shards", 1000, "records")
        for _ in range({10 if complete else 5}):
            progress.advance(100)
            time.sleep(0.05)
        progress.note("one note")
        progress.finish({complete})
    """
    path = tmp_path / "bar.py"
    path.write_text(textwrap.dedent(script))
    terminal, process_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(path)], stderr=process_end, env={**os.environ, "TERM": "xterm-256color"}
    )
    os.close(process_end)
    screen = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # on Linux, the other end is closed
            break
        if not block:
            break
        screen += block
    os.close(terminal)
    assert process.wait() == 0
    text = screen.decode()
    assert "extract: shards" in text
    assert ("1,000 of 1,000 records" in text) == complete
    assert ("extract: shards: stopped" in text) != complete
    assert "records/s" in text
    assert "one note" in text


def test_quiet_shows_only_notes(capsys: pytest.CaptureFixture[str]) -> None:
    progress = console.make_progress(quiet=True)
    progress.start("x", 1, "records")
    progress.advance(1)
    progress.note("a shard is damaged")
    progress.finish(complete=True)
    assert capsys.readouterr().err == "note: a shard is damaged\n"


def test_brief_progress_shows_only_work_in_progress(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    progress = PlainProgress(brief=True)
    progress.start("fetch: shards", 100, "records")
    progress.note("a long note " + "word " * 50)
    clock[0] += 10
    progress.advance(50)
    progress.finish(complete=True)
    *note, line = capsys.readouterr().err.splitlines()
    assert max(map(len, note)) <= 80
    assert " ".join(part.strip() for part in note) == ("note: a long note " + "word " * 50).strip()
    assert line.startswith("fetch: shards: 50 of 100 records (50%)")


def test_a_terminal_without_utf_8_shows_escapes(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"url": "http://a.com/", "text": "x"}\n')
    command = [sys.executable, "-m", "webtext_cli", "remove-wikipedia", "-i", "docs.jsonl", "-o", "\u03b1", "-q"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert shown.stdout.splitlines()[0].endswith(rb"in \u03b1")

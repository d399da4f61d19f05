"""Damaged files among good ones: refused by name, read again alone once repaired, or used as far as they go."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scrape_run import Notes, read_links, read_table, recorded_reads, records, result_bytes, run_scrape, write_dump

from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError

pytestmark = pytest.mark.usefixtures("warm_processes")

_MONTHS = ["2017-01", "2017-02", "2017-03", "2017-04"]
_SUFFIXES = [".zst", ".xz", ".bz2", ".gz"]


def _records(month: str, count: int = 400) -> list[dict[str, Any]]:
    chance = random.Random(month)
    made = records(month, [chance.randrange(30) for _ in range(count)])
    # Titles that do not compress, so that a cut is a cut of lines.
    return [{**record, "title": f"{chance.getrandbits(600):x}"} for record in made]


@pytest.fixture
def dumps(tmp_path: Path) -> list[Path]:
    """Four months, each packed in another way."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    return [
        write_dump(folder, f"RS_{month}{suffix}", _records(month))
        for month, suffix in zip(_MONTHS, _SUFFIXES, strict=True)
    ]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read, by label."""
    return recorded_reads(monkeypatch)


def _cut(path: Path, share: float = 0.6) -> bytes:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    return whole


def _names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


@pytest.mark.parametrize("damaged", range(4))
def test_a_truncated_dump_is_named_and_only_it_is_read_again_after_repair(
    tmp_path: Path, dumps: list[Path], reads: list[str], damaged: int
) -> None:
    run_scrape(dumps, tmp_path / "whole")
    reads.clear()
    whole = _cut(dumps[damaged])
    size = dumps[damaged].stat().st_size
    out = tmp_path / "out"
    with pytest.raises(InputError) as raised:
        run_scrape(dumps, out)
    assert f"{dumps[damaged]}: is truncated or corrupt near compressed byte {size} (" in str(raised.value)
    assert re.search(r"\); \d+ lines before it were read; replace it and re-run", str(raised.value))
    assert "--skip-damaged" in str(raised.value)
    # All others were read, and nothing that looks like a result is there.
    assert reads == _names(dumps)
    assert [path.name for path in out.iterdir() if not path.name.startswith((".", "_"))] == []
    # Again the same: nothing is read twice, and the answer is the same.
    with pytest.raises(InputError) as again:
        run_scrape(dumps, out)
    assert str(again.value) == str(raised.value)
    assert reads == _names(dumps)
    dumps[damaged].write_bytes(whole)
    reads.clear()
    run_scrape(dumps, out)
    assert reads == [dumps[damaged].name]
    assert result_bytes(out) == result_bytes(tmp_path / "whole")


_MANY_BAD = "20 of its 420 lines are not submissions (more than 1%)"


def test_several_damaged_files_are_all_named(tmp_path: Path, dumps: list[Path]) -> None:
    more = [write_dump(tmp_path / "dumps", f"RS_2016-0{n}.zst", _records(f"2016-0{n}")) for n in range(1, 6)]
    for path in (*more, *dumps):
        _cut(path)
    notes = Notes()
    with pytest.raises(InputError, match=r"9 files are damaged or not dumps of submissions \(see above\); replace"):
        run_scrape([*dumps, *more], tmp_path / "out", RunOptions(progress=notes))
    assert [sum(f"{path}: is truncated" in line for line in notes.lines) for path in (*more, *dumps)] == [1] * 9


def test_skip_damaged_resumes_without_reading_anything_again(
    tmp_path: Path, dumps: list[Path], reads: list[str]
) -> None:
    _cut(dumps[1])
    size = dumps[1].stat().st_size
    out = tmp_path / "out"
    with pytest.raises(InputError):
        run_scrape(dumps, out)
    reads.clear()
    notes = Notes()
    summary = run_scrape(dumps, out, RunOptions(progress=notes), skip_damaged=True)
    assert reads == []
    assert summary.extra["damaged_files"] == 1
    (note,) = [line for line in notes.lines if "readable part" in line]
    assert note.startswith(f"{dumps[1]}: is truncated or corrupt near compressed byte {size}")
    assert note.endswith("the readable part is used")
    rows = read_table(out, "files")
    assert [row["file"] for row in rows] == _names(dumps)
    assert [row["damaged_at"] for row in rows] == [None, size, None, None]
    assert [row["damage"] is None for row in rows] == [True, False, True, True]
    assert 100 < rows[1]["lines"] < 400
    assert [row["lines"] for row in rows[2:]] == [400, 400]
    assert sum(row["lines"] for row in rows) == summary.records_in
    for row in rows:
        assert row["kept_submissions"] + sum(dict(row["dropped"]).values()) + row["bad_lines"] == row["lines"]
    assert [row["truncated"] for row in read_table(out, "months")][1] == (
        f"{dumps[1].name} is damaged near compressed byte {size}"
    )
    # Its links are those of a dump that holds the lines before the damage and no others.
    part = write_dump(tmp_path, dumps[1].name, _records(_MONTHS[1])[: rows[1]["lines"]])
    run_scrape([dumps[0], part, *dumps[2:]], tmp_path / "part")
    assert read_links(out) == read_links(tmp_path / "part")
    # A rerun says so again, with the option or without it.
    before = result_bytes(out)
    for options in ({"skip_damaged": True}, {}):
        assert run_scrape(dumps, out, **options).extra["damaged_files"] == 1
    assert reads[4:] == []
    assert result_bytes(out) == before


def test_the_same_bytes_for_any_workers(tmp_path: Path, dumps: list[Path]) -> None:
    _cut(dumps[1])
    for output, options in (("one", RunOptions()), ("two", RunOptions(executor=LocalExecutor(2)))):
        with pytest.raises(InputError, match="RS_2017-02"):
            run_scrape(dumps, tmp_path / output, options)
        run_scrape(dumps, tmp_path / output, skip_damaged=True)
    assert result_bytes(tmp_path / "one") == result_bytes(tmp_path / "two")


def test_a_file_with_many_bad_lines_is_treated_as_damaged(tmp_path: Path, dumps: list[Path], reads: list[str]) -> None:
    good = _records(_MONTHS[1])
    bad = write_dump(tmp_path / "dumps", dumps[1].name, [*good[:100], *["oops", "{"] * 10, *good[100:]])
    out = tmp_path / "out"
    with pytest.raises(InputError, match=rf"{bad.name}: 20 of its 420 lines are not submissions"):
        run_scrape(dumps, out)
    reads.clear()
    summary = run_scrape(dumps, out, skip_damaged=True)
    assert reads == []
    assert summary.extra["damaged_files"] == 1
    assert summary.dropped["bad_line"] == 20
    row = read_table(out, "files")[1]
    assert (row["lines"], row["bad_lines"], row["damaged_at"], row["damage"]) == (420, 20, None, _MANY_BAD)
    assert [(each["file"], each["line"]) for each in read_table(out, "rejects")] == [
        (bad.name, line) for line in range(101, 121)
    ]
    # All the same links as without the bad lines.
    write_dump(tmp_path / "dumps", dumps[1].name, good)
    run_scrape(dumps, tmp_path / "good")
    assert read_links(out) == read_links(tmp_path / "good")


def test_an_unfinished_run_accepts_added_and_removed_dumps(tmp_path: Path, dumps: list[Path], reads: list[str]) -> None:
    out = tmp_path / "out"
    whole = _cut(dumps[0])
    with pytest.raises(InputError):
        run_scrape(dumps[:2], out)
    assert reads == _names(dumps[:2])
    # A further dump is read alone; the damaged one is left out.
    with pytest.raises(InputError):
        run_scrape(dumps[:3], out)
    assert reads == _names(dumps[:3])
    run_scrape(dumps[1:], out)
    assert reads == _names(dumps)
    run_scrape(dumps[1:], tmp_path / "undisturbed")
    assert result_bytes(out) == result_bytes(tmp_path / "undisturbed")
    # A finished result lacks only the further dump.
    dumps[0].write_bytes(whole)
    reads.clear()
    run_scrape(dumps, out)
    assert reads == _names(dumps[:1])


def test_an_unfinished_run_refuses_a_changed_profile_or_option(tmp_path: Path, dumps: list[Path]) -> None:
    whole = _cut(dumps[0])
    out = tmp_path / "out"
    with pytest.raises(InputError):
        run_scrape(dumps, out)
    dumps[0].write_bytes(whole)
    for options, named in (
        ({"profile": "webtext-2019"}, "profile was"),
        ({"min_score": 5}, "min_score was 3, is now 5"),
        ({"shards": 5}, "shards was 4, is now 5"),
        ({"karma": "sum"}, "karma was"),
        ({"before": "2017-03-01"}, "before was null"),
    ):
        with pytest.raises(ChangedRunError, match=named):
            run_scrape(dumps, out, **options)
    run_scrape(dumps, out)
    run_scrape(dumps, tmp_path / "undisturbed")
    assert result_bytes(out) == result_bytes(tmp_path / "undisturbed")


def test_a_repaired_file_in_another_folder_is_the_same_input(
    tmp_path: Path, dumps: list[Path], reads: list[str]
) -> None:
    # What counts is the name and the bytes, not the folder.
    _cut(dumps[3])
    out = tmp_path / "out"
    with pytest.raises(InputError):
        run_scrape(dumps, out)
    other = tmp_path / "other"
    other.mkdir()
    moved = [path.rename(other / path.name) for path in dumps[:3]]
    moved.append(write_dump(other, dumps[3].name, _records(_MONTHS[3])))
    reads.clear()
    run_scrape(moved, out)
    assert reads == [dumps[3].name]
    run_scrape(moved, tmp_path / "undisturbed")
    assert result_bytes(out) == result_bytes(tmp_path / "undisturbed")


def _kill(output: Path, count: int, moment: str, dumps: list[Path], **options: Any) -> int:
    script = Path(__file__).with_name("killed_scrape_dumps.py")
    command = [sys.executable, str(script), str(output), str(count), moment, json.dumps(options), *map(str, dumps)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


@pytest.mark.slow  # test_killed_while_damage_is_skipped repairs the file as well
def test_killed_before_and_after_the_repair(tmp_path: Path, dumps: list[Path]) -> None:
    run_scrape(dumps, tmp_path / "whole")
    whole = _cut(dumps[1])
    out = tmp_path / "out"
    # In the reading of the third file; the damaged one was read before.
    assert _kill(out, 14, "before", dumps) == -signal.SIGKILL
    with pytest.raises(InputError, match=r"RS_2017-02.xz: is truncated or corrupt"):
        run_scrape(dumps, out)
    dumps[1].write_bytes(whole)
    # In the second reading, then in the merge.
    assert _kill(out, 3, "after", dumps) == -signal.SIGKILL
    assert _kill(out, 9, "before", dumps) == -signal.SIGKILL
    run_scrape(dumps, out)
    assert result_bytes(out) == result_bytes(tmp_path / "whole")


def test_killed_while_damage_is_skipped(tmp_path: Path, dumps: list[Path]) -> None:
    whole = _cut(dumps[1])
    run_scrape(dumps, tmp_path / "skipped", skip_damaged=True)
    out = tmp_path / "out"
    assert _kill(out, 25, "after", dumps, skip_damaged=True) == -signal.SIGKILL
    assert list(out.glob("links-*"))
    run_scrape(dumps, out, skip_damaged=True)
    assert result_bytes(out) == result_bytes(tmp_path / "skipped")
    # A merge started with the damaged file is repeated with the repaired one.
    assert _kill(tmp_path / "second", 25, "after", dumps, skip_damaged=True) == -signal.SIGKILL
    dumps[1].write_bytes(whole)
    run_scrape(dumps, tmp_path / "second")
    run_scrape(dumps, tmp_path / "whole")
    assert result_bytes(tmp_path / "second") == result_bytes(tmp_path / "whole")


def test_a_repaired_file_with_an_equal_fingerprint_is_read_again(
    tmp_path: Path, dumps: list[Path], reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Large files are identified by samples, which may all miss the damage.
    monkeypatch.setattr("pipelines.storage.content_fingerprint", lambda path: Path(path).name)
    whole = dumps[1].read_bytes()
    run_scrape(dumps, tmp_path / "undisturbed")
    dumps[1].write_bytes(whole[:-50] + bytes(50))
    for _ in range(2):
        with pytest.raises(InputError, match="truncated or corrupt"):
            run_scrape(dumps, tmp_path / "out")
    reads.clear()
    dumps[1].write_bytes(whole)
    run_scrape(dumps, tmp_path / "out", skip_damaged=True)
    assert reads == [dumps[1].name]
    assert result_bytes(tmp_path / "out") == result_bytes(tmp_path / "undisturbed")


@pytest.fixture
def lists(tmp_path: Path) -> list[Path]:
    """Lists of URLs: sound, cut, of bad lines in part, and no Parquet at all."""
    chance = random.Random(7)
    urls = {name: [f"http://{name}.com/{chance.getrandbits(400):x}" for _ in range(100)] for name in ("a", "b", "c")}
    paths = [
        write_dump(tmp_path, "a.txt", urls["a"]),
        write_dump(tmp_path, "b.txt.gz", urls["b"]),
        write_dump(tmp_path, "c.jsonl", [*urls["c"][:50], *["{broken"] * 20, *urls["c"][50:]]),
        write_dump(tmp_path, "d.parquet", urls["a"]),
    ]
    _cut(paths[1])
    return paths


def test_damaged_lists_of_urls_are_named_and_read_again_after_repair(
    tmp_path: Path, lists: list[Path], reads: list[str]
) -> None:
    out = tmp_path / "out"
    notes = Notes()
    with pytest.raises(InputError, match=r"3 files are damaged or not lists of URLs \(see above\); replace them"):
        run_scrape(lists, out, RunOptions(progress=notes), source="urls")
    assert reads == _names(lists)
    cut, bad, none = (next(line for line in notes.lines if line.startswith(str(path))) for path in lists[1:])
    assert f"is truncated or corrupt near compressed byte {lists[1].stat().st_size} (" in cut
    assert "20 of its 120 lines cannot be read (more than 1%)" in bad
    assert "is not a Parquet file (" in none
    # One alone is named in the error itself.
    with pytest.raises(InputError, match=r"c.jsonl: 20 of its 120 lines .*; replace it"):
        run_scrape(lists[2:3], tmp_path / "bad", source="urls")
    for path in lists[1:]:
        path.unlink()
    mended = [write_dump(tmp_path, name, ["http://b.com/"]) for name in ("b.txt.gz", "c.jsonl")]
    reads.clear()
    run_scrape([lists[0], *mended], out, source="urls")
    assert reads == _names(mended)


def test_skip_damaged_uses_what_could_be_read_of_lists(tmp_path: Path, lists: list[Path], reads: list[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError):
        run_scrape(lists, out, source="urls")
    reads.clear()
    summary = run_scrape(lists, out, source="urls", skip_damaged=True)
    assert reads == []
    assert summary.extra["damaged_files"] == 3
    assert summary.dropped["bad_line"] == 20
    rows = read_table(out, "files")
    assert [row["damaged_at"] for row in rows] == [None, lists[1].stat().st_size, None, None]
    assert [row["damage"] is None for row in rows] == [True, False, False, False]
    assert 20 < rows[1]["lines"] < 100
    assert [row["lines"] for row in rows] == [100, rows[1]["lines"], 120, 0]
    assert summary.records_out == 100 + rows[1]["lines"] + 100

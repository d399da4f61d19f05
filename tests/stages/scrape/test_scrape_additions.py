"""A further dump is read alone and added to a finished result; the bytes are those of a run that reads all dumps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from scrape_run import Notes, recorded_reads, records, result_bytes, run_scrape, write_dump

from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError
from pipelines.stages.scrape import stage

_MONTHS = ["2017-01", "2017-02", "2017-03"]


@pytest.fixture
def dumps(tmp_path: Path) -> list[Path]:
    """Three months that link to some pages in common."""
    (tmp_path / "dumps").mkdir()
    paths = []
    for month in _MONTHS:
        chance = random.Random(month)
        rows = records(month, [chance.randrange(30) for _ in range(200)])
        rows = [{**row, "url": f"http://site{chance.randrange(9)}.com/{chance.randrange(40)}"} for row in rows]
        paths.append(write_dump(tmp_path / "dumps", f"RS_{month}.zst", rows))
    return paths


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read, by label."""
    return recorded_reads(monkeypatch)


@pytest.mark.parametrize("karma", ["max", "sum", "first"])
def test_months_that_are_added_one_after_the_other_give_the_bytes_of_all_at_once(
    tmp_path: Path, dumps: list[Path], reads: list[str], karma: str
) -> None:
    run_scrape(dumps, tmp_path / "at once", karma=karma)
    out, notes = tmp_path / "out", Notes()
    for count in (1, 2, 3):
        reads.clear()
        # The new dump sorts before the known ones, too.
        run_scrape(dumps[-count:], out, RunOptions(progress=notes), karma=karma)
        assert reads == [dumps[-count].name]
    assert result_bytes(out) == result_bytes(tmp_path / "at once")
    assert sorted(path.name for path in (out / "partitions").iterdir()) == sorted(
        path.name for path in (tmp_path / "at once" / "partitions").iterdir()
    )
    assert "scrape: is added to (its input 'RS_2017-02.zst' is new)" in notes.lines
    assert "scrape: read: resuming; 2 of 3 tasks already complete" in notes.lines
    assert not list(out.glob("_*"))


def test_dumps_are_read_again_whose_submissions_were_not_kept_or_are_damaged(
    tmp_path: Path, dumps: list[Path], reads: list[str]
) -> None:
    run_scrape(dumps, tmp_path / "at once")
    out, notes = tmp_path / "out", Notes()
    run_scrape(dumps[:2], out, keep_partitions=False)
    assert not (out / "partitions").exists()
    reads.clear()
    run_scrape(dumps, out, RunOptions(progress=notes))
    assert reads == [path.name for path in dumps]
    assert any("has no files of its read phase" in line for line in notes.lines)
    assert result_bytes(out) == result_bytes(tmp_path / "at once")
    run_scrape(dumps[:2], tmp_path / "damaged")
    first, second = sorted((tmp_path / "damaged" / "partitions").glob("*.buckets"))
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    second.unlink()
    reads.clear()
    run_scrape(dumps, tmp_path / "damaged")
    assert reads == [path.name for path in dumps]
    assert result_bytes(tmp_path / "damaged") == result_bytes(out)


def test_an_addition_that_is_killed_resumes(
    tmp_path: Path, dumps: list[Path], reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_scrape(dumps, tmp_path / "at once")
    out = tmp_path / "out"
    run_scrape(dumps[:2], out)
    before = result_bytes(out)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for function in ("merge_bucket", "write_list"):
        with monkeypatch.context() as patch:
            patch.setattr(stage, function, stop)
            with pytest.raises(KeyboardInterrupt):
                run_scrape(dumps, out)
        assert result_bytes(out) == before
    reads.clear()
    run_scrape(dumps, out)
    assert reads == []
    assert result_bytes(out) == result_bytes(tmp_path / "at once")


def test_what_lost_a_dump_or_has_another_option_is_refused(tmp_path: Path, dumps: list[Path]) -> None:
    out = tmp_path / "out"
    run_scrape(dumps[:2], out)
    with pytest.raises(ChangedRunError, match=r"'RS_2017-01.zst' was removed; its input 'RS_2017-03.zst' is new"):
        run_scrape(dumps[1:], out)
    with pytest.raises(ChangedRunError, match="min_score was 3, is now 5"):
        run_scrape(dumps, out, min_score=5)
    write_dump(tmp_path / "dumps", "RS_2017-01.zst", records("2017-01", [9]))
    with pytest.raises(ChangedRunError, match=r"'RS_2017-01.zst' has changed"):
        run_scrape(dumps, out)

"""Months whose scores were recorded at ingestion, with re-fetched scores: as if the dump had the true ones."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from local_apis import ArcticShift, LocalApi, Reddit, reset_clients
from scrape_run import Notes, read_links, read_table, records, result_bytes, run_scrape, write_dump

from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError
from pipelines.stages.scrape import scores, stage

pytestmark = pytest.mark.usefixtures("warm_processes")

_FRESH, _GOOD = "2023-08", "2023-05"


@pytest.fixture(autouse=True)
def _fresh_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    reset_clients(monkeypatch)


@dataclasses.dataclass
class _Dumps:
    """A dump of a good month, one of a fresh month that also ends the good one, and both with the true scores."""

    good: Path
    fresh: Path
    true: Path
    posts: list[dict[str, Any]]

    @property
    def named(self) -> list[Path]:
        return [self.good, self.fresh]


@pytest.fixture
def dumps(tmp_path: Path) -> _Dumps:
    return _write_dumps(tmp_path)


def _write_dumps(folder: Path, fresh: int = 730) -> _Dumps:
    chance = random.Random(2)
    good = records(_GOOD, [chance.randrange(40) for _ in range(300)])
    end_of_good = records(_GOOD, [chance.randrange(40) for _ in range(60)], 300)
    true = records(_FRESH, [chance.choice([0, 1, 2, 3, 4, 90]) for _ in range(fresh)], 200)
    true[5]["is_self"] = True
    true[6]["promoted"] = True
    true[7]["url"] = None
    true[8]["url"] = "HTTP://Site1.com:80/67"
    seen = [{**post, "score": chance.choice([0, 1, 1, 1])} for post in true]
    seen[9]["score"] = None
    (folder / "true").mkdir(parents=True)
    return _Dumps(
        write_dump(folder, "RS_2023-05.zst", good),
        write_dump(folder, "RS_2023-08.zst", [*end_of_good, *seen, "oops"]),
        write_dump(folder / "true", "RS_2023-08.zst", [*end_of_good, *true, "oops"]),
        true,
    )


@pytest.fixture
def archive(dumps: _Dumps) -> Iterator[ArcticShift]:
    with ArcticShift([{**post, "url": post["url"] or ""} for post in dumps.posts]).serving() as api:
        yield api


def _asked(api: LocalApi, path: str = "/api/posts/ids", name: str = "ids") -> list[str]:
    return [id for requested, query in api.requests if requested == path for id in query[name].split(",")]


def _of_links(dumps: _Dumps) -> list[str]:
    """The ids of the fresh month that make a link, whatever their score."""
    return [post["id"] for post in dumps.posts if not post["is_self"] and not post.get("promoted") and post["url"]]


@pytest.mark.parametrize("karma", ["max", "sum", "first"])
def test_links_with_refreshed_scores_match_the_true_scores(
    tmp_path: Path, dumps: _Dumps, archive: ArcticShift, karma: str
) -> None:
    expected = run_scrape([dumps.good, dumps.true], tmp_path / "true_out", karma=karma)
    summary = run_scrape(
        dumps.named, tmp_path / "out", karma=karma, refresh_scores="arctic-shift", api_url=archive.address
    )
    assert read_links(tmp_path / "out") == read_links(tmp_path / "true_out")
    assert (summary.records_in, summary.records_out) == (expected.records_in, expected.records_out)
    assert summary.dropped == expected.dropped
    assert sorted(_asked(archive)) == sorted(_of_links(dumps))
    assert summary.extra["refreshed_scores"] == len(_of_links(dumps))
    assert summary.extra["months_with_fresh_scores"] == 1
    rows = read_table(tmp_path / "out", "files")
    assert [row["file"] for row in rows] == ["RS_2023-05.zst", "RS_2023-08.zst"]
    for row in rows:
        assert row["lines"] == row["kept_submissions"] + sum(dict(row["dropped"]).values()) + row["bad_lines"]
    assert [(row["file"], row["line"]) for row in read_table(tmp_path / "out", "rejects")] == [("RS_2023-08.zst", 791)]


def test_old_and_new_scores_are_listed(tmp_path: Path, dumps: _Dumps, archive: ArcticShift) -> None:
    unknown = _of_links(dumps)[::9]
    archive.posts = [post for post in archive.posts if post["id"] not in unknown]
    archive.posts[40]["score"] = None
    unknown = [*unknown, archive.posts[40]["id"]]
    notes = Notes()
    summary = run_scrape(
        dumps.named,
        tmp_path / "out",
        RunOptions(progress=notes),
        refresh_scores="arctic-shift",
        accept_fresh_scores=True,  # which then has nothing to say
        api_url=archive.address,
    )
    assert not [line for line in notes.lines if "accepted" in line]
    seen = {line["id"]: line["score"] for line in _lines(dumps.fresh)}
    true = {post["id"]: post["score"] for post in dumps.posts}
    expected = [
        {"id": id, "score": None if id in unknown else true[id], "score_of_dump": seen[id] or 0}
        for id in _of_links(dumps)
    ]
    rows = read_table(tmp_path / "out", "scores")
    assert sorted(rows, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
    assert summary.dropped["score_not_found"] == len(unknown)
    low = [id for id in _of_links(dumps) if id not in unknown and true[id] < 3]
    good_low = sum(line["score"] < 3 for line in [*_lines(dumps.good), *_lines(dumps.fresh)[:60]])
    assert summary.dropped["low_score"] == len(low) + good_low
    links = read_links(tmp_path / "out").values()
    ids = Counter(id for link in links for id in link["submission_ids"])
    assert max(ids.values()) == 1
    assert {id for id in ids if id.startswith("2308")} == {*_of_links(dumps)} - {*unknown} - {*low}
    fetched = f"{len(_of_links(dumps))} submissions in {len(archive.requests)} requests"
    (note,) = [line for line in notes.lines if "re-fetching" in line]
    assert note == f"scores of 2023-08: re-fetching {fetched}"


def _lines(path: Path) -> list[dict[str, Any]]:
    data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    return [json.loads(line) for line in data.splitlines() if line.startswith(b"{")]


def _credentials(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "praw.ini").write_text(f"[DEFAULT]\noauth_url={address}\nreddit_url={address}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    for name, value in (("client_id", "id"), ("client_secret", "secret"), ("user_agent", "test of webtext")):
        monkeypatch.setenv(f"praw_{name}", value)


def test_reddit_gets_a_hundred_ids_per_request(tmp_path: Path, dumps: _Dumps, monkeypatch: pytest.MonkeyPatch) -> None:
    run_scrape([dumps.good, dumps.true], tmp_path / "true_out")
    with Reddit().serving() as reddit:
        _credentials(reddit.address, tmp_path, monkeypatch)
        reddit.posts["/r/any/new"] = dumps.posts
        summary = run_scrape(dumps.named, tmp_path / "out", refresh_scores="praw")
        batches = [query["id"].split(",") for path, query in reddit.requests if path.rstrip("/") == "/api/info"]
    assert sorted(id for ids in batches for id in ids) == sorted(f"t3_{id}" for id in _of_links(dumps))
    assert [len(ids) for ids in batches[:-1]] == [100] * (len(batches) - 1)
    assert read_links(tmp_path / "out") == read_links(tmp_path / "true_out")
    assert "score_not_found" not in summary.dropped


def test_a_refused_run_resumes_with_the_suggested_option(
    tmp_path: Path, dumps: _Dumps, archive: ArcticShift, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    for module in (stage, scores):
        partition_file = module.partition_file
        monkeypatch.setattr(
            module,
            "partition_file",
            lambda item, context, f=partition_file, name=module.__name__: (
                read.append(f"{name.rsplit('.')[-1]} {item.label}") or f(item, context)
            ),
        )
    out = tmp_path / "out"
    with pytest.raises(InputError, match="--refresh-scores arctic-shift"):
        run_scrape(dumps.named, out)
    options = {"refresh_scores": "arctic-shift", "api_url": archive.address}
    run_scrape(dumps.named, out, **options)
    # The good month is not read again, the fresh one once more.
    assert read == ["stage RS_2023-05.zst", "stage RS_2023-08.zst", "scores RS_2023-08.zst"]
    run_scrape(dumps.named, tmp_path / "undisturbed", **options)
    assert result_bytes(out) == result_bytes(tmp_path / "undisturbed")
    # A finished result with other scores is another result.
    with pytest.raises(ChangedRunError, match="refreshed scores"):
        run_scrape(dumps.named, out, accept_fresh_scores=True)
    with pytest.raises(ChangedRunError, match="refreshed scores"):
        run_scrape(dumps.named, out, refresh_scores="praw")
    requests = len(archive.requests)
    assert run_scrape(dumps.named, out, **options).extra["refreshed_scores"] == len(_of_links(dumps))
    assert len(archive.requests) == requests


def test_no_request_without_fresh_months(tmp_path: Path, dumps: _Dumps, archive: ArcticShift) -> None:
    options = {"refresh_scores": "arctic-shift", "api_url": archive.address}
    summary = run_scrape([dumps.good], tmp_path / "out", **options)
    assert archive.requests == []
    assert "refreshed_scores" not in summary.extra
    assert not list((tmp_path / "out").glob("scores-*"))
    # Nor for a month that is left out by date.
    run_scrape(dumps.named, tmp_path / "before", before="2023-08-01", **options)
    assert archive.requests == []


def test_a_service_without_scores(tmp_path: Path, dumps: _Dumps, archive: ArcticShift) -> None:
    archive.posts = []
    summary = run_scrape(dumps.named, tmp_path / "out", refresh_scores="arctic-shift", api_url=archive.address)
    assert summary.dropped["score_not_found"] == len(_of_links(dumps))
    assert {row["score"] for row in read_table(tmp_path / "out", "scores")} == {None}
    links = read_links(tmp_path / "out").values()
    assert not any(id.startswith("2308") for link in links for id in link["submission_ids"])


def test_two_workers_write_the_same_bytes(tmp_path: Path, dumps: _Dumps, archive: ArcticShift) -> None:
    options = {"refresh_scores": "arctic-shift", "api_url": archive.address}
    run_scrape(dumps.named, tmp_path / "one", **options)
    run_scrape(dumps.named[::-1], tmp_path / "two", RunOptions(executor=LocalExecutor(2)), **options)
    assert result_bytes(tmp_path / "one") == result_bytes(tmp_path / "two")


def test_another_dump_that_makes_another_month_fresh(tmp_path: Path, archive: ArcticShift) -> None:
    # The month of June looks quiet until the second dump tells that it is fresh.
    july, june = records("2023-07", [5] * 30), records("2023-06", [8] * 600)
    more = records("2023-06", [8] * 600, 600)
    archive.posts = [*july, *june, *more]
    first, second = (
        write_dump(tmp_path, f"RS_{n}.zst", [{**post, "score": 1} for post in posts])
        for n, posts in enumerate(([*july, *june], more))
    )
    options: dict[str, Any] = {"refresh_scores": "arctic-shift", "api_url": archive.address}
    out = tmp_path / "out"
    script = Path(__file__).with_name("killed_scrape_dumps.py")
    # Killed in the merge, when the scores of July were fetched and applied.
    command = [sys.executable, str(script), str(out), "20", "before", json.dumps(options), str(first)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == -9
    assert sorted(_asked(archive)) == sorted(post["id"] for post in july)
    run_scrape([first, second], out, **options)
    run_scrape([first, second], tmp_path / "undisturbed", **options)
    assert result_bytes(out) == result_bytes(tmp_path / "undisturbed")
    assert len(read_table(out, "scores")) == 1230


def test_no_score_is_requested_twice_after_kill_9(
    tmp_path: Path, dumps: _Dumps, archive: ArcticShift, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"refresh_scores": "arctic-shift", "api_url": archive.address}
    script = Path(__file__).with_name("killed_scrape_dumps.py")
    out = tmp_path / "out"
    # Many little tasks, so that there is a middle.
    monkeypatch.setattr(scores, "ROWS_PER_TASK", 50)
    archive.hold_at = 7
    command = [sys.executable, str(script), str(out), "0", "-", json.dumps({**options, "task_rows": 50})]
    process = subprocess.Popen([*command, *map(str, dumps.named)])
    try:
        assert archive.held.wait(30)
    finally:
        process.kill()
        process.wait(30)
    archive.release.set()
    assert len(archive.requests) == 7
    run_scrape(dumps.named, out, **options)
    # The seventh request got no response.
    batches = [query["ids"] for number, (_, query) in enumerate(archive.requests) if number not in archive.unanswered]
    assert len(batches) == len(archive.requests) - 1 > 10
    assert sorted(id for ids in batches for id in ids.split(",")) == sorted(_of_links(dumps))
    run_scrape(dumps.named, tmp_path / "undisturbed", **options)
    assert result_bytes(out) == result_bytes(tmp_path / "undisturbed")


def test_refreshed_scores_that_are_still_fresh_are_refused(tmp_path: Path, archive: ArcticShift) -> None:
    dumps = _write_dumps(tmp_path / "dumps", fresh=1003)
    archive.posts = [{**post, "url": post["url"] or "", "score": 1} for post in dumps.posts]
    options = {"refresh_scores": "arctic-shift", "api_url": archive.address}
    with pytest.raises(InputError, match=r"2023-08 from arctic-shift also look recorded at ingestion: 0 of 1,000 "):
        run_scrape(dumps.named, tmp_path / "out", **options)
    requests = len(archive.requests)
    summary = run_scrape(dumps.named, tmp_path / "out", accept_fresh_scores=True, **options)
    assert summary.extra["refreshed_scores"] == 1000
    assert len(archive.requests) == requests

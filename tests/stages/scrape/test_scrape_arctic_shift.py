"""`--source arctic-shift`, against a server on loopback that answers as theirs does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from killed_scrape import scrape_arctic_shift, start_scrape
from local_apis import ArcticShift, Fault, Post, post

from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError, UsageError
from pipelines.progress import Silent
from pipelines.stages.scrape import arctic_shift, scores
from pipelines.stages.scrape.arctic_shift import ApiClient, Search, domain_queries
from pipelines.storage.compression import open_decompressed

_START = 1509494400  # 2017-11-01, the second of post(0, ...)
_WINDOW = (_START, _START + 100_000)


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(arctic_shift, "REQUEST_DELAY_S", 0.0)


@pytest.fixture
def api() -> Iterator[ArcticShift]:
    with ArcticShift().serving() as server:
        yield server


def _posts(seconds: list[int], **fields: Any) -> list[Post]:
    return [
        post(number, f"http://example.com/{number}", created_utc=_START + second, **fields)
        for number, second in enumerate(seconds)
    ]


def _search_all(api: ArcticShift, query: dict[str, str] | None = None) -> list[str]:
    """Return the ids of all pages, each checked to begin where the previous one ended."""
    search = Search(ApiClient(api.address, sleep=lambda _: None), query or {"subreddit": "python"}, *_WINDOW)
    posts: list[Post] = []
    while True:
        submissions, is_last = search.next_page()
        posts += submissions
        if is_last:
            assert [post["created_utc"] for post in posts] == sorted(post["created_utc"] for post in posts)
            return [post["id"] for post in posts]


def _ids(posts: list[Post]) -> list[str]:
    return sorted(post["id"] for post in posts)


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize(
    "seconds",
    [
        [],
        [0],
        list(range(99)),
        list(range(100)),
        list(range(101)),
        list(range(1000)),
        [number // 7 for number in range(600)],  # a page's edge lies within a second
        [number // 49 for number in range(600)],
        [0] * 99,
        [50] * 30 + [51] * 60 + [52] * 40 + [90] * 45,
    ],
    ids=len,
)
def test_pages_neither_lose_nor_duplicate_submissions(api: ArcticShift, seconds: list[int], inclusive: bool) -> None:
    api.posts = _posts(seconds)
    api.inclusive = inclusive
    ids = _search_all(api)
    assert sorted(ids) == _ids(api.posts)
    assert len(api.requests) <= len(seconds) // 50 + 3


def test_the_window_is_exact_whether_or_not_after_is_inclusive(api: ArcticShift) -> None:
    api.posts = _posts([-2, -1, 0, 1, 99_998, 99_999, 100_000, 100_001])
    for api.inclusive in (False, True):
        assert sorted(_search_all(api)) == _ids(api.posts)[2:6]


def test_more_submissions_in_one_second_than_fit_a_page(api: ArcticShift) -> None:
    api.posts = _posts([5] * 50 + [6] * 150 + [7] * 10)
    api.auto = 250
    assert sorted(_search_all(api)) == _ids(api.posts)
    api.auto = 120
    with pytest.raises(InputError, match=r"python: the second 1509494406 .* has at least 120 submissions, .* would be"):
        _search_all(api)


def test_a_second_that_needs_the_largest_limit_after_slow_queries(api: ArcticShift) -> None:
    api.posts = _posts([number // 40 for number in range(400)])
    slow = Fault(422, body=b'{"data":null,"error":"Timeout. Maybe slow down a bit"}')
    api.faults = [slow] * 3
    assert sorted(_search_all(api)) == _ids(api.posts)
    limits = [query["limit"] for _, query in api.requests]
    assert limits[:4] == ["auto", "100", "50", "25"]
    assert "auto" in limits[4:]


def test_a_query_that_stays_too_slow(api: ArcticShift) -> None:
    api.posts = _posts(list(range(30)))
    api.slow_above = 10
    assert sorted(_search_all(api)) == _ids(api.posts)
    api.slow_above = 9
    with pytest.raises(InputError, match=r"aborted the query as too slow .* re-run the same command later"):
        _search_all(api)


def test_servers_that_are_not_an_arctic_shift(api: ArcticShift) -> None:
    for body, message in (
        (b'{"data": [{"id": "a"}]}', "python: the response has a submission without id or created_utc"),
        (b'{"data": [{"id": "a", "created_utc": 9}, {"id": "b", "created_utc": 8}]}', "not sorted by time"),
    ):
        api.faults = [Fault(body=body)]
        with pytest.raises(InputError, match=message):
            _search_all(api)


def test_domain_queries_match_only_the_host(api: ArcticShift) -> None:
    wanted = [
        "http://example.com/a",
        "https://example.com/?b",
        "https://www.example.com/c",
        "http://www.example.com",
        "https://example.com",
    ]
    others = [
        "https://example.com.net/d",
        "https://example.community/",
        "http://sub.example.com/e",
        "http://example.org/",
    ]
    api.posts = [post(number, url) for number, url in enumerate([*wanted, *others])]
    ids = [id for query in domain_queries("example.com") for id in _search_all(api, query)]
    assert sorted(ids) == _ids(api.posts[: len(wanted)])
    assert len(domain_queries("www.example.com")) == 4


def test_self_posts_are_recognized_by_their_thread(api: ArcticShift) -> None:
    thread = "https://www.reddit.com/r/Python/comments/"
    api.posts = [
        post(1, f"{thread}60001/title/"),
        post(2, f"{thread}60001/title/"),
        post(3, "/r/news/comments/5zz/title/", crosspost_parent="t3_5zz"),
        post(4, "http://example.com/r/x/comments/60004/"),
        post(5, "https://old.reddit.com/comments/60005"),
        post(6, None),  # type: ignore[arg-type]
    ]
    search = Search(ApiClient(api.address), {"subreddit": "python"}, *_WINDOW)
    is_self = {record["id"]: record["is_self"] for record in search.next_page()[0]}
    assert [id for id, it_is in is_self.items() if it_is] == ["60001", "60003", "60005"]


def _rows(output: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(output.glob("links-*.parquet")) for row in pq.read_table(path).to_pylist()]


def _scrape(api: ArcticShift, output: Path, **config: Any) -> tuple[Any, list[str]]:
    notes = _Notes()
    summary = scrape_arctic_shift(api.address, str(output), RunOptions(progress=notes), **config)
    return summary, notes.notes


def test_stored_listings_are_not_requested_again(api: ArcticShift, tmp_path: Path) -> None:
    api.posts = [
        *_posts(list(range(0, 500, 2))),
        *[post(2000 + n, f"http://example.org/{n}", n, subreddit="news") for n in range(5)],
        post(3000, "http://example.com/late", created_utc=1512086400),
    ]
    summary, notes = _scrape(api, tmp_path / "out", subreddit=("r/Python", "news", "python", "empty"))
    assert summary.records_in == 255
    assert summary.dropped == {"low_score": 3}
    assert notes == ["empty: Arctic Shift has no submissions in this time range; check the name and the dates"]
    names = [file.name for file in read_manifest(str(tmp_path / "out")).files]
    assert [name for name in names if name.startswith("listing")] == [
        f"listing-0000{number}.ndjson.zst" for number in range(3)
    ]
    assert not (tmp_path / "out" / "_work").exists()
    with open_decompressed(str(tmp_path / "out" / "listing-00001.ndjson.zst")) as stream:
        record = json.loads(stream.readline())
    assert set(record) == {"author", "created_utc", "crosspost_parent", "id", "is_self", "over_18"} | {
        "score",
        "subreddit",
        "title",
        "url",
    }
    requests, before = len(api.requests), (tmp_path / "out" / "manifest.json").read_bytes()
    api.posts.clear()
    next((tmp_path / "out").glob("links-*.parquet")).unlink()
    _scrape(api, tmp_path / "out", subreddit=("r/Python", "news", "python", "empty"))
    assert len(api.requests) == requests
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    with pytest.raises(ChangedRunError, match="subreddit was"):
        _scrape(api, tmp_path / "out", subreddit=("news",))


def test_a_domain_of_several_queries_is_one_listing(api: ArcticShift, tmp_path: Path) -> None:
    api.posts = [
        post(n, f"http{'s' * (n % 2)}://{'www.' * (n % 3 == 0)}example.com/{n}", created_utc=_START + n // 3)
        for n in range(400)
    ]
    api.posts += [post(900 + n, f"http://example.org/{n}") for n in range(9)]
    summary, _ = _scrape(api, tmp_path / "out", host=("Example.com", "example.org"), after="2017-11-01")
    assert summary.records_out == 409
    assert {query["after"] for _, query in api.requests} >= {str(_START - 1)}
    assert [path.name for path in sorted((tmp_path / "out").glob("listing-*"))] == [
        "listing-00000.ndjson.zst",
        "listing-00001.ndjson.zst",
    ]


def test_empty_listings_and_conflicting_options(api: ArcticShift, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no submissions of nosuch; check the name and the dates"):
        _scrape(api, tmp_path / "out", subreddit=("nosuch",))
    with pytest.raises(UsageError, match="needs either --subreddit or --host"):
        _scrape(api, tmp_path / "a")
    with pytest.raises(UsageError, match="needs either --subreddit or --host"):
        _scrape(api, tmp_path / "a", subreddit=("a",), host=("b.com",))
    with pytest.raises(UsageError, match=r"--host https://b.com/: is not a host"):
        _scrape(api, tmp_path / "a", host=("https://b.com/",))
    with pytest.raises(UsageError, match="--subreddit a b: is not the name of a subreddit"):
        _scrape(api, tmp_path / "a", subreddit=("a b",))


def test_the_window_ends_before_fresh_scores_and_is_fixed_per_run(
    api: ArcticShift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = _START + 40 * 3600
    monkeypatch.setattr(arctic_shift.time, "time", lambda: float(now))
    seconds = [0, 4 * 3600 - 1, 4 * 3600, 10 * 3600]
    api.posts = _posts(seconds)
    with pytest.raises(UsageError, match="less than 36 hours"):
        _scrape(api, tmp_path / "late", subreddit=("python",), after="2017-11-02")
    api.faults = [Fault(404, body=b'{"error": "down"}')]
    with pytest.raises(InputError, match="down"):
        _scrape(api, tmp_path / "out", subreddit=("python",))
    # The run resumes an hour later, with the window of its start.
    monkeypatch.setattr(arctic_shift.time, "time", lambda: now + 3600.0)
    summary, notes = _scrape(api, tmp_path / "out", subreddit=("python",))
    assert summary.records_in == 2
    assert summary.to_json()["asked_until_utc"] == _START + 4 * 3600
    assert notes[-1] == (
        "requesting submissions from Arctic Shift up to 2017-11-01 04:00:00 UTC; "
        "the scores of the last 36 hours are not final yet"
    )
    summary, notes = _scrape(api, tmp_path / "fresh", subreddit=("python",), accept_fresh_scores=True)
    assert summary.records_in == 4
    monkeypatch.undo()


def test_pages_before_a_failure_are_kept(api: ArcticShift, tmp_path: Path) -> None:
    api.posts = _posts(list(range(350)))
    api.faults = [None, None, Fault(403, body=b'{"error": "no more"}')]
    with pytest.raises(InputError, match=r"refused with status 403 \(no more\)"):
        _scrape(api, tmp_path / "out", subreddit=("python",))
    api.faults = [Fault(500, body=b"oops"), Fault(cut=9)]
    summary, _ = _scrape(api, tmp_path / "out", subreddit=("python",))
    assert summary.records_in == 350
    assert len({query["after"] for _, query in api.requests}) == len(api.requests) - 3


def _kill_when_held(api: ArcticShift, output: Path, at: int) -> None:
    """Scrape in a child process, and kill it while it waits for the response to its `at`-th request."""
    api.held.clear()
    api.release.clear()
    api.hold_at = len(api.requests) + at
    process = start_scrape(api.address, output, ("python", "news"))
    assert api.held.wait(120)  # with an empty compilation cache, the child compiles first
    process.kill()
    process.join()
    api.release.set()


def test_no_page_is_requested_twice_after_kill_9(api: ArcticShift, tmp_path: Path) -> None:
    api.posts = _posts([number // 3 for number in range(640)])
    api.posts += [post(2000 + n, f"http://example.org/{n}", subreddit="news") for n in range(250)]
    _scrape(api, tmp_path / "whole", subreddit=("python", "news"))
    undisturbed = [(query["subreddit"], query["after"]) for _, query in api.requests]
    assert len(undisturbed) == len(set(undisturbed)) > 10
    api.requests.clear()
    for at in (3, 1, 6):
        _kill_when_held(api, tmp_path / "out", at)
    summary, _ = _scrape(api, tmp_path / "out", subreddit=("python", "news"))
    answered = [request for number, request in enumerate(api.requests) if number not in api.unanswered]
    assert [(query["subreddit"], query["after"]) for _, query in answered] == undisturbed
    assert summary.records_out == 890
    whole, out = (sorted(path for path in (tmp_path / name).glob("*")) for name in ("whole", "out"))
    assert [path.name for path in whole] == [path.name for path in out]
    for one, two in zip(whole, out, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name
    assert _rows(tmp_path / "whole") == _rows(tmp_path / "out")


def test_refreshing_scores_after_a_refusal_keeps_the_listing(api: ArcticShift, tmp_path: Path) -> None:
    scores._client.cache_clear()
    api.posts = _posts(list(range(0, 2400, 2)), score=1)
    with pytest.raises(InputError, match="--refresh-scores arctic-shift"):
        _scrape(api, tmp_path / "out", subreddit=("python",))
    searches = len(api.requests)
    listing = (tmp_path / "out" / "listing-00000.ndjson.zst").read_bytes()
    # By now the archive knows the scores, and has lost half of the posts.
    api.posts = [{**post, "score": 7} for post in api.posts[::2]]
    summary, _ = _scrape(api, tmp_path / "out", subreddit=("python",), refresh_scores="arctic-shift")
    assert {path for path, _ in api.requests[searches:]} == {"/api/posts/ids"}
    assert (tmp_path / "out" / "listing-00000.ndjson.zst").read_bytes() == listing
    assert (summary.records_in, summary.records_out) == (1200, 600)
    assert summary.dropped == {"score_not_found": 600}

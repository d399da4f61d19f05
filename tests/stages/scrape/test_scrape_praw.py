"""Listings by PRAW, against a server on loopback that answers as Reddit's API does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import praw.config
import pyarrow.parquet as pq
import pytest
from local_apis import Fault, Post, Reddit, post

from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError, UsageError
from pipelines.progress import Progress, Silent
from pipelines.stages.scrape import reddit_api
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.reddit_api import connect, listing_lines
from pipelines.stages.scrape.stage import scrape
from pipelines.stages.scrape.submission import parse_line
from pipelines.storage.compression import open_decompressed


def _post(id: str, url: str, score: int = 10, **fields: Any) -> Post:
    fields = {"id": id, "created_utc": 1509494400.0 + int(id, 36) % 1000, "title": f"Title {id}", **fields}
    return post(0, url, score, **fields)


@pytest.fixture
def reddit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reddit]:
    """A Reddit on loopback, named in a `praw.ini`; credentials in the environment."""
    settings = tmp_path / "settings"
    settings.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings))
    monkeypatch.delenv("APPDATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.chdir(settings.parent)
    for name, value in (("client_id", "id"), ("client_secret", "secret"), ("user_agent", "test of webtext")):
        monkeypatch.setenv(f"praw_{name}", value)
    # PRAW reads its files once in a process.
    monkeypatch.setattr(praw.config.Config, "CONFIG", None)
    reddit_api._retries.cache_clear()
    reddit_api.connect.cache_clear()
    with Reddit().serving() as server:
        ini = f"[DEFAULT]\noauth_url={server.address}\nreddit_url={server.address}\n"
        (settings / "praw.ini").write_text(ini)
        yield server


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def _scrape(output: Path, progress: Progress | None = None, **config: Any) -> Summary:
    options = RunOptions(progress=progress or Silent())
    config = {"source": "praw", "subreddit": ("python",), "profile": "none", "shards": 2, **config}
    return scrape(ScrapeConfig(**config), dumps=[], output=str(output), options=options)


def _rows(output: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(output.glob("links-*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_a_listing_gives_the_same_links_as_a_dump(reddit: Reddit, tmp_path: Path) -> None:
    parent = {"id": "zz", "url": "http://outside.com/", "is_self": False, "author": "nobody", "subreddit": "news"}
    posts = [
        _post("1a", "http://example.com/?a=1&utm_source=x"),
        _post("1b", "http://example.com/?a=1", 30),
        _post("1c", "http://example.com/low", 1),
        _post("1d", "https://www.reddit.com/r/Python/comments/1d/", is_self=True),
        _post("1e", "/r/news/comments/zz/", crosspost_parent="t3_zz", crosspost_parent_list=[parent]),
    ]
    reddit.posts["/r/python/top"] = posts
    summary = _scrape(tmp_path / "api", listing="top")
    assert (summary.records_in, summary.records_out) == (5, 2)
    assert summary.dropped == {"low_score": 1, "merged_into_link": 1, "self_post": 1}
    dump = tmp_path / "RS_2017-11.json"
    dump.write_text("".join(json.dumps(post) + "\n" for post in posts))
    scrape(
        ScrapeConfig(profile="none", shards=2), dumps=[str(dump)], output=str(tmp_path / "dump"), options=RunOptions()
    )
    assert _rows(tmp_path / "api") == _rows(tmp_path / "dump")
    assert {row["url"] for row in _rows(tmp_path / "api")} == {"http://example.com/?a=1", "http://outside.com/"}


def test_pages_are_followed_up_to_both_limits(reddit: Reddit, tmp_path: Path) -> None:
    numbers = range(36**2, 36**2 + 1200)
    reddit.posts["/r/python/new"] = [_post(f"{n:x}", f"http://example.com/{n}") for n in numbers]
    assert _scrape(tmp_path / "some", limit=250).records_in == 250
    assert len(reddit.requests) == 3
    assert _scrape(tmp_path / "all").records_in == 1000


def test_a_stored_listing_is_not_requested_again(reddit: Reddit, tmp_path: Path) -> None:
    reddit.posts["/r/python/new"] = [_post("1a", "http://example.com/a"), _post("1b", "http://example.com/b")]
    _scrape(tmp_path / "out")
    requests = len(reddit.requests)
    manifest = (tmp_path / "out" / "manifest.json").read_bytes()
    assert "listing-00000.ndjson.zst" in [file.name for file in read_manifest(str(tmp_path / "out")).files]
    reddit.posts["/r/python/new"].insert(0, _post("1c", "http://example.com/c"))
    # A shard that is lost is made from the same listing, so that the links are of one moment.
    next((tmp_path / "out").glob("links-*.parquet")).unlink()
    _scrape(tmp_path / "out")
    assert len(reddit.requests) == requests
    assert (tmp_path / "out" / "manifest.json").read_bytes() == manifest
    with open_decompressed(str(tmp_path / "out" / "listing-00000.ndjson.zst")) as stream:
        text = stream.read().decode()
    assert json.loads(text.splitlines()[0])["author"] == "someone"
    assert "secret" not in text


def test_several_subreddits_and_r_all(reddit: Reddit, tmp_path: Path) -> None:
    reddit.posts["/r/all/hot"] = [_post("1a", "http://example.com/a", subreddit="news")]
    reddit.posts["/r/python/hot"] = [_post("1b", "http://example.com/b")]
    summary = _scrape(tmp_path / "out", listing="hot", subreddit=("r/all", "python"))
    assert summary.records_out == 2
    assert sorted(row["subreddits"] for row in _rows(tmp_path / "out")) == [["Python"], ["news"]]


@pytest.mark.parametrize(
    ("cassette", "subreddit", "listing"),
    [
        ("TestFront.test_top", "all", "top"),
        ("TestFront.test_new", "all", "new"),
        ("TestFront.test_hot", "all", "hot"),
        ("TestFront.test_controversial", "all", "controversial"),
        ("TestSubredditListings.test_top", "askreddit", "top"),
        ("TestSubredditListings.test_controversial", "askreddit", "controversial"),
        ("TestSubreddit.test_search", "all", "search"),
    ],
)
def test_recorded_responses_of_reddit(
    reddit: Reddit, shared_data: Path, cassette: str, subreddit: str, listing: str
) -> None:
    recorded = json.loads((shared_data / "praw_cassettes" / f"{cassette}.json").read_text())
    (body,) = (
        interaction["response"]["body"]["string"].encode()
        for interaction in recorded["interactions"]
        if f"/{listing}" in interaction["request"]["uri"]
    )
    path = f"/r/{subreddit}/search/" if listing == "search" else f"/r/{subreddit}/{listing}"
    reddit.recorded[path] = body
    posts = [child["data"] for child in json.loads(body)["data"]["children"]]
    lines = listing_lines(connect(), subreddit, listing, limit=1000, query="praw oauth search")
    submissions = [parse_line(line) for line in lines]
    assert len(submissions) == len(posts) > 5
    for answer, submission in zip(posts, submissions, strict=True):
        for field in ("id", "score", "url", "subreddit", "title", "over_18", "is_self"):
            assert getattr(submission, field) == answer[field]
        assert submission.created_utc == int(answer["created_utc"])


def test_recorded_links(reddit: Reddit, tmp_path: Path, shared_data: Path) -> None:
    recorded = json.loads((shared_data / "praw_cassettes" / "TestFront.test_top.json").read_text())
    body = recorded["interactions"][1]["response"]["body"]["string"].encode()
    reddit.recorded["/r/all/top"] = body
    posts = [child["data"] for child in json.loads(body)["data"]["children"]]
    summary = _scrape(tmp_path / "out", listing="top", subreddit=("all",))
    assert summary.records_in == len(posts) == 100
    assert summary.records_out == len({post["url"] for post in posts if not post["is_self"]}) > 50


def test_requests_of_each_listing(reddit: Reddit, tmp_path: Path) -> None:
    for path in ("new", "hot", "top", "controversial", "search/"):
        reddit.posts[f"/r/python/{path}"] = [_post("1a", "http://example.com/a")]
    for listing in ("new", "hot", "top", "controversial", "search"):
        timed = {} if listing in ("new", "hot") else {"time_filter": "year"}
        timed |= {"query": "title:a b"} if listing == "search" else {}
        _scrape(tmp_path / listing, listing=listing, limit=50, **timed)
    queries = {path.rstrip("/").rsplit("/", 1)[-1]: query for path, query in reddit.requests}
    assert queries["new"] == queries["hot"] == {"limit": "50", "raw_json": "1"}
    assert queries["top"] == queries["controversial"] == {"limit": "50", "raw_json": "1", "t": "year"}
    assert queries["search"].items() >= {"q": "title:a b", "t": "year", "restrict_sr": "True"}.items()
    assert reddit.agents == {next(iter(reddit.agents))}
    assert "test of webtext" in next(iter(reddit.agents))


def test_truncated_listings_are_noted_also_when_resuming(reddit: Reddit, tmp_path: Path) -> None:
    numbers = range(36**2, 36**2 + 1200)
    reddit.posts["/r/python/new"] = [_post(f"{n:x}", f"http://example.com/{n}") for n in numbers]
    reddit.posts["/r/rust/new"] = reddit.posts["/r/python/new"][:899]
    reddit.posts["/r/news/new"] = [_post("1a", "http://example.com/a")] * 3
    names = ("python", "rust", "news", "nosuch")
    notes = _Notes()
    with pytest.raises(InputError, match="nosuch"):
        _scrape(tmp_path / "out", notes, subreddit=names)
    assert [note.split(",")[0] for note in notes.notes] == ["r/python/new: truncated at 1000 submissions"]
    assert "No listing covers the whole history" in notes.notes[0]
    requests = len(reddit.requests)
    reddit.posts["/r/nosuch/new"] = [_post(f"9{n}", f"http://example.org/{n}") for n in range(7)]
    resumed = _Notes()
    assert _scrape(tmp_path / "out", resumed, subreddit=names).records_in == 1000 + 899 + 3 + 7
    assert len(reddit.requests) == requests + 1
    assert notes.notes[0] in resumed.notes
    exact = _Notes()
    _scrape(tmp_path / "exact", exact, subreddit=("news",), limit=3)
    assert [note.split(",")[0] for note in exact.notes] == ["r/news/new: truncated at 3 submissions"]


def test_retry_after_a_429(reddit: Reddit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(reddit_api.time, "sleep", lambda seconds: slept.append(seconds))
    reddit.posts["/r/python/new"] = [_post(f"1{n:02}", f"http://example.com/{n}") for n in range(150)]
    limited = Fault(429, {"x-ratelimit-remaining": "0", "x-ratelimit-used": "600", "x-ratelimit-reset": "3"}, b"{}")
    reddit.faults = [Fault(429, {"Retry-After": "21"}, b"{}"), None, limited, Fault(429, body=b"{}")]
    assert _scrape(tmp_path / "out").records_in == 150
    # From our client: Retry-After, Reddit's own header, and the back-off of a second failure. From PRAW, after the
    # second and the last: the rate limit, since no time passes here.
    assert slept == [21.0, 3.0, pytest.approx(3.0, abs=0.5), 2.0, pytest.approx(3.0, abs=0.5)]
    reddit.faults = [Fault(429, {"Retry-After": "86400"}, b"{}")]
    with pytest.raises(InputError, match=r"allows no request within the next 1440 minutes; re-run the same command"):
        _scrape(tmp_path / "long")


def test_malformed_responses_are_retried(reddit: Reddit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reddit_api.time, "sleep", lambda seconds: None)
    reddit.posts["/r/python/new"] = [_post(f"1{n:02}", f"http://example.com/{n}") for n in range(250)]
    reddit.faults = [
        *[Fault(500, body=b"oops")] * 4,
        None,
        Fault(cut=9),
        Fault(body=b'{"kind": "Listing", "data": {"chil'),
        None,
    ]
    summary = _scrape(tmp_path / "out")
    assert (summary.records_in, summary.records_out) == (250, 250)
    reddit.faults = [Fault(500, body=b"oops")] * 100
    with pytest.raises(InputError, match=r"Reddit: received 500 .*, no response in 5 attempts"):
        _scrape(tmp_path / "down")
    assert len(reddit.faults) == 100 - 5 * 3


def test_an_unreachable_reddit_gets_few_attempts(
    reddit: Reddit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ini = "[DEFAULT]\noauth_url=http://127.0.0.1:9\nreddit_url=http://127.0.0.1:9\n"
    (tmp_path / "settings" / "praw.ini").write_text(ini)
    monkeypatch.setattr(reddit_api.time, "sleep", lambda seconds: None)
    reddit_api._retries.cache_clear()
    notes = _Notes()
    with pytest.raises(InputError, match=r"^Reddit: connection refused, no response in 3 attempts; check the network"):
        _scrape(tmp_path / "out", notes)
    assert notes.notes == ["Reddit: no response (connection refused); retrying in 1 s, attempt 2 of 3"]


def test_an_expired_token_is_renewed(reddit: Reddit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reddit_api.time, "sleep", lambda seconds: None)
    reddit.posts["/r/python/new"] = [_post(f"1{n:03}", f"http://example.com/{n}") for n in range(500)]
    reddit.requests_a_token = 2
    assert _scrape(tmp_path / "out").records_in == 500
    assert reddit.tokens == 3


def test_an_empty_listing(reddit: Reddit, tmp_path: Path) -> None:
    reddit.posts["/r/python/new"] = []
    with pytest.raises(InputError, match="--source praw: no submissions of python; check the name"):
        _scrape(tmp_path / "out")
    reddit.posts["/r/rust/new"] = [_post("1a", "http://example.com/a")]
    assert _scrape(tmp_path / "two", subreddit=("python", "rust", "Rust")).records_in == 1


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("client_id", "needs client_id, client_secret and user_agent, in praw.ini .*'client_id' missing"),
        ("client_secret", "praw_client_id, praw_client_secret and praw_user_agent .*'client_secret' missing"),
        ("user_agent", "'user_agent' missing"),
    ],
)
def test_missing_credentials(
    reddit: Reddit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, message: str
) -> None:
    monkeypatch.delenv(f"praw_{missing}")
    with pytest.raises(UsageError, match=message):
        _scrape(tmp_path / "out")


def test_refusals_of_reddit(reddit: Reddit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"r/nosuch: no such subreddit, or it is private"):
        _scrape(tmp_path / "other", subreddit=("nosuch",))
    monkeypatch.setenv("praw_client_secret", "wrong")
    connect.cache_clear()
    with pytest.raises(InputError, match=r"Reddit refused the credentials \(401\)"):
        _scrape(tmp_path / "out")
    monkeypatch.setenv("praw_site", "nosuch")
    connect.cache_clear()
    with pytest.raises(UsageError, match="No section: 'nosuch'"):
        _scrape(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subreddit": ()}, "needs at least one --subreddit"),
        ({"listing": "search"}, "--listing search needs --query"),
        ({"listing": "top", "query": "a"}, "query has no effect without listing = search"),
    ],
)
def test_conflicting_listing_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _scrape(tmp_path / "out", **options)


def test_files_are_refused(tmp_path: Path) -> None:
    for source in ("praw", "arctic-shift"):
        config = ScrapeConfig(source=source, subreddit=("a",))
        with pytest.raises(UsageError, match="takes no files"):
            scrape(config, dumps=["x"], output=str(tmp_path), options=RunOptions())

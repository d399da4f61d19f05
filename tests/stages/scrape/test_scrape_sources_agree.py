"""One set of submissions gives the same links, whichever of the four sources it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import praw.config
import pyarrow.parquet as pq
import pytest
from local_apis import ArcticShift, Post, Reddit, post

from pipelines.engine.run import RunOptions
from pipelines.stages.scrape import arctic_shift as api
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.stage import scrape

_THREADS = "https://www.reddit.com/r/Python/comments"


def _submissions() -> list[Post]:
    parent = {"id": "5zz", "url": "http://outside.com/x", "is_self": False, "subreddit": "news"}
    odd = [
        post(1, "http://example.com/?a=1&amp;utm_source=x", 5),
        post(2, "http://EXAMPLE.com:80/?a=1#top", 40, over_18=True),
        post(3, "https://bücher.example.com/ü?q=ä", 7, title="Ein schöner Titel \U0001f600"),
        post(4, f"{_THREADS}/60004/a_self_post/", 90, is_self=True, domain="self.Python"),
        post(5, f"{_THREADS}/5abcd/another_thread/", 90, domain="reddit.com"),
        post(6, "http://outside.com/x", 12, crosspost_parent="t3_5zz", crosspost_parent_list=[parent]),
        post(7, "http://low.example.com/", 2),
        post(8, "ftp://example.com/file", 10),
        post(9, "http://[IMG]http://example.com", 10),
        post(10, "http://example.com/?a=1", 3, created_utc=1509494402),
    ]
    many = [post(100 + n, f"http://site{n % 13}.com/{n % 70}", n % 9) for n in range(300)]
    return odd + many


@pytest.fixture
def posts() -> list[Post]:
    return _submissions()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def reddit(tmp_path: Path, posts: list[Post], monkeypatch: pytest.MonkeyPatch) -> Iterator[Reddit]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(praw.config.Config, "CONFIG", None)
    for name, value in (("client_id", "id"), ("client_secret", "secret"), ("user_agent", "test of webtext")):
        monkeypatch.setenv(f"praw_{name}", value)
    with Reddit().serving() as server:
        (tmp_path / "praw.ini").write_text(f"[DEFAULT]\noauth_url={server.address}\nreddit_url={server.address}\n")
        server.posts["/r/python/new"] = posts
        yield server


@pytest.fixture
def arctic_shift(posts: list[Post], monkeypatch: pytest.MonkeyPatch) -> Iterator[ArcticShift]:
    monkeypatch.setattr(api, "REQUEST_DELAY_S", 0.0)
    with ArcticShift(posts).serving() as server:
        yield server


def _scrape(output: Path, dumps: list[Path], **config: Any) -> tuple[dict[str, int], list[dict[str, Any]]]:
    full = ScrapeConfig(profile="none", shards=3, **config)
    summary = scrape(full, dumps=[str(path) for path in dumps], output=str(output), options=RunOptions())
    rows = [row for path in sorted(output.glob("links-*.parquet")) for row in pq.read_table(path).to_pylist()]
    return dict(summary.dropped), rows


@pytest.mark.parametrize("karma", ["max", "sum"])
def test_the_four_sources_agree(
    reddit: Reddit, arctic_shift: ArcticShift, posts: list[Post], tmp_path: Path, karma: str
) -> None:
    dump = tmp_path / "RS_2017-11.json"
    dump.write_text("".join(json.dumps(post) + "\n" for post in posts))
    dropped, links = _scrape(tmp_path / "dump", [dump], karma=karma)
    assert dropped["self_post"] == 1
    assert dropped["not_http"] == 2
    assert len(links) > 60
    by_praw = _scrape(tmp_path / "praw", [], karma=karma, source="praw", subreddit=("python",))
    assert by_praw == (dropped, links)
    window = {"before": "2017-12-01", "api_url": arctic_shift.address}
    by_archive = _scrape(tmp_path / "archive", [], karma=karma, source="arctic-shift", subreddit=("python",), **window)
    assert by_archive == (dropped, links)
    # What an API answered is a dump like others.
    for name in ("praw", "archive"):
        listings = sorted((tmp_path / name).glob("listing-*"))
        assert _scrape(tmp_path / f"{name}-again", listings, karma=karma) == (dropped, links)
    # A list of URLs has no scores: it contains the links of the others.
    urls = tmp_path / "urls.txt"
    urls.write_text("".join(row["original_url"] + "\n" for row in links))
    _, from_list = _scrape(tmp_path / "urls", [urls], source="urls")
    assert [row["url"] for row in from_list] == [row["url"] for row in links]
    assert [row["domain"] for row in from_list] == [row["domain"] for row in links]

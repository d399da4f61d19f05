"""Listings by PRAW, against a server on loopback that answers as Reddit's API does."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import praw.config
import pyarrow.parquet as pq
import pytest

from pipelines.core.compression import open_decompressed
from pipelines.core.errors import InputError, UsageError
from pipelines.core.manifest import read_manifest
from pipelines.core.run import RunOptions, Summary
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.stage import scrape


class _Reddit(http.server.ThreadingHTTPServer):
    """Answers for tokens, and listings in pages of at most 100 that end at 1,000."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posts: dict[str, list[dict[str, Any]]] = {}
        self.requests: list[str] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Reddit

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        good = self.headers["Authorization"] == "Basic aWQ6c2VjcmV0"  # id:secret
        self._answer(
            200 if good else 401, {"access_token": "t", "token_type": "bearer", "expires_in": 3600, "scope": "*"}
        )

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        parts, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        posts = self.server.posts.get(parts.path)
        if posts is None:
            self._answer(404, {"message": "Not Found", "error": 404})
            return
        posts = posts[:1000]
        names = [f"t3_{post['id']}" for post in posts]
        start = names.index(query["after"][0]) + 1 if "after" in query else 0
        end = min(start + min(100, int(query["limit"][0])), len(posts))
        children = [{"kind": "t3", "data": {**post, "name": f"t3_{post['id']}"}} for post in posts[start:end]]
        after = names[end - 1] if end < len(posts) else None
        self._answer(200, {"kind": "Listing", "data": {"after": after, "before": None, "children": children}})

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _post(id: str, url: str, score: int = 10, **fields: Any) -> dict[str, Any]:
    return {
        "id": id,
        "url": url,
        "score": score,
        "created_utc": 1509494400.0 + int(id, 36) % 1000,
        "subreddit": "Python",
        "title": f"Title {id}",
        "author": "someone",
        "selftext": "secret",
        "domain": "example.com",
        "is_self": False,
        "over_18": False,
        **fields,
    }


@pytest.fixture
def reddit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Reddit]:
    """A Reddit on loopback, named in a `praw.ini`; credentials in the environment."""
    server = _Reddit()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    settings = tmp_path / "settings"
    settings.mkdir()
    address = f"http://127.0.0.1:{server.server_port}"
    (settings / "praw.ini").write_text(f"[DEFAULT]\noauth_url={address}\nreddit_url={address}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings))
    monkeypatch.delenv("APPDATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.chdir(settings.parent)
    for name, value in (("client_id", "id"), ("client_secret", "secret"), ("user_agent", "test of webtext")):
        monkeypatch.setenv(f"praw_{name}", value)
    # PRAW reads its files once in a process.
    monkeypatch.setattr(praw.config.Config, "CONFIG", None)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def _scrape(output: Path, **config: Any) -> Summary:
    config = {"source": "praw", "subreddits": ("python",), "profile": "none", "shards": 2, **config}
    return scrape(ScrapeConfig(**config), dumps=[], output=str(output), options=RunOptions())


def _rows(output: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(output.glob("links-*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_a_listing_makes_the_same_links_as_a_dump_of_it(reddit: _Reddit, tmp_path: Path) -> None:
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


def test_pages_are_followed_up_to_the_limit_and_the_end_of_reddit(reddit: _Reddit, tmp_path: Path) -> None:
    numbers = range(36**2, 36**2 + 1200)
    reddit.posts["/r/python/new"] = [_post(f"{n:x}", f"http://example.com/{n}") for n in numbers]
    assert _scrape(tmp_path / "some", limit=250).records_in == 250
    assert len(reddit.requests) == 3
    assert _scrape(tmp_path / "all").records_in == 1000


def test_the_listing_stays_and_is_not_asked_for_again(reddit: _Reddit, tmp_path: Path) -> None:
    reddit.posts["/r/python/new"] = [_post("1a", "http://example.com/a"), _post("1b", "http://example.com/b")]
    _scrape(tmp_path / "out")
    asked = len(reddit.requests)
    manifest = (tmp_path / "out" / "manifest.json").read_bytes()
    assert "listing-00000.ndjson.zst" in [file.name for file in read_manifest(str(tmp_path / "out")).files]
    reddit.posts["/r/python/new"].insert(0, _post("1c", "http://example.com/c"))
    # A shard that is lost is made from the same listing, so that the links are of one moment.
    next((tmp_path / "out").glob("links-*.parquet")).unlink()
    _scrape(tmp_path / "out")
    assert len(reddit.requests) == asked
    assert (tmp_path / "out" / "manifest.json").read_bytes() == manifest
    with open_decompressed(str(tmp_path / "out" / "listing-00000.ndjson.zst")) as stream:
        text = stream.read().decode()
    assert "someone" not in text
    assert "secret" not in text


def test_several_subreddits_and_r_all(reddit: _Reddit, tmp_path: Path) -> None:
    reddit.posts["/r/all/hot"] = [_post("1a", "http://example.com/a", subreddit="news")]
    reddit.posts["/r/python/hot"] = [_post("1b", "http://example.com/b")]
    summary = _scrape(tmp_path / "out", listing="hot", subreddits=("r/all", "python"))
    assert summary.records_out == 2
    assert sorted(row["subreddits"] for row in _rows(tmp_path / "out")) == [["Python"], ["news"]]


def test_recorded_answers_of_reddit(reddit: _Reddit, tmp_path: Path, shared_data: Path) -> None:
    recorded = json.loads((shared_data / "praw_cassettes" / "TestFront.test_top.json").read_text())
    (body,) = (
        json.loads(each["response"]["body"]["string"])
        for each in recorded["interactions"]
        if "/top" in each["request"]["uri"]
    )
    posts = [child["data"] for child in body["data"]["children"]]
    reddit.posts["/r/all/top"] = posts
    summary = _scrape(tmp_path / "out", listing="top", subreddits=("all",))
    assert summary.records_in == len(posts) == 100
    assert summary.records_out == len({post["url"] for post in posts if not post["is_self"]}) > 50


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("client_id", "needs client_id, client_secret and user_agent, in praw.ini .*'client_id' missing"),
        ("client_secret", "praw_client_id, praw_client_secret and praw_user_agent .*'client_secret' missing"),
        ("user_agent", "'user_agent' missing"),
    ],
)
def test_missing_credentials(
    reddit: _Reddit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, message: str
) -> None:
    monkeypatch.delenv(f"praw_{missing}")
    with pytest.raises(UsageError, match=message):
        _scrape(tmp_path / "out")


def test_refusals_of_reddit(reddit: _Reddit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"r/nosuch: there is no such subreddit, or it is private"):
        _scrape(tmp_path / "other", subreddits=("nosuch",))
    monkeypatch.setenv("praw_client_secret", "wrong")
    with pytest.raises(InputError, match=r"Reddit refused the credentials \(401\)"):
        _scrape(tmp_path / "out")
    monkeypatch.setenv("praw_site", "nosuch")
    with pytest.raises(UsageError, match="No section: 'nosuch'"):
        _scrape(tmp_path / "out")


def test_what_a_listing_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs at least one --subreddit"):
        _scrape(tmp_path / "out", subreddits=())
    with pytest.raises(UsageError, match="takes no files"):
        scrape(ScrapeConfig(source="praw", subreddits=("a",)), dumps=["x"], output=str(tmp_path), options=RunOptions())

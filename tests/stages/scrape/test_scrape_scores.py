"""The present scores of submissions, from Reddit and from Arctic Shift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from local_apis import ArcticShift, Fault, Reddit, post, reset_clients
from scrape_run import run_scrape

from pipelines.errors import InputError, UsageError
from pipelines.stages.scrape import reddit_api
from pipelines.stages.scrape.scores import BATCH_SIZES, fetch_scores


@pytest.fixture(autouse=True)
def _fresh_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    reset_clients(monkeypatch)


def _credentials(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "praw.ini").write_text(f"[DEFAULT]\noauth_url={address}\nreddit_url={address}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    for name, value in (("client_id", "id"), ("client_secret", "secret"), ("user_agent", "test of webtext")):
        monkeypatch.setenv(f"praw_{name}", value)


def _posts(count: int) -> list[dict[str, Any]]:
    return [post(number, f"http://example.com/{number}", number + 3) for number in range(count)]


def test_arctic_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    posts = _posts(500)
    with ArcticShift(posts).serving() as api:
        ids = [post["id"] for post in posts]
        assert BATCH_SIZES["arctic-shift"] == 500
        assert fetch_scores("arctic-shift", ids, api.address) == {post["id"]: post["score"] for post in posts}
        assert len(api.requests) == 1
        assert fetch_scores("arctic-shift", ["60001", "60002", "zzz"], api.address) == {"60001": 4, "60002": 5}
        posts[1]["score"] = None
        assert fetch_scores("arctic-shift", ["60001"], api.address) == {}
        assert len(api.requests) == 3


def test_slow_queries_are_halved() -> None:
    posts = _posts(200)
    slow = Fault(422, body=b'{"data":null,"error":"Query timed out"}')
    with ArcticShift(posts).serving() as api:
        api.faults = [slow, None, Fault(500, body=b"oops")]
        assert len(fetch_scores("arctic-shift", [post["id"] for post in posts], api.address)) == 200
        assert [len(query["ids"].split(",")) for _, query in api.requests] == [200, 100, 100, 100]


def test_reddit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Reddit().serving() as reddit:
        _credentials(reddit.address, tmp_path, monkeypatch)
        reddit.posts["/r/python/new"] = posts = _posts(100)
        assert BATCH_SIZES["praw"] == 100
        ids = [post["id"] for post in posts]
        assert fetch_scores("praw", ids, "") == {post["id"]: post["score"] for post in posts}
        assert len(reddit.requests) == 1
        assert fetch_scores("praw", ["60001", "nosuch"], "") == {"60001": 4}
        # An expired token, then a truncated response, then a rate limit.
        reddit.requests_a_token = 1
        assert fetch_scores("praw", ["60007"], "") == {"60007": 10}
        reddit.requests_a_token = 10**9
        reddit.faults = [Fault(body=b'{"kind": "Lis'), Fault(429, {"Retry-After": "0"}, b"{}")]
        assert fetch_scores("praw", ["60008"], "") == {"60008": 11}
        assert reddit.tokens == 2


def test_reddit_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Reddit().serving() as reddit:
        _credentials(reddit.address, tmp_path, monkeypatch)
        monkeypatch.setenv("praw_client_secret", "wrong")
        with pytest.raises(InputError, match=r"Reddit refused the credentials \(401\)"):
            fetch_scores("praw", ["60001"], "")
        monkeypatch.delenv("praw_client_secret")
        reddit_api.connect.cache_clear()
        with pytest.raises(UsageError, match="needs client_id, client_secret and user_agent"):
            fetch_scores("praw", ["60001"], "")


def test_missing_credentials_are_reported_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Reddit().serving() as reddit:
        _credentials(reddit.address, tmp_path, monkeypatch)
        reddit_api.connect()
        assert reddit.requests == []
        reddit_api.connect.cache_clear()
    monkeypatch.delenv("praw_client_id")
    with pytest.raises(UsageError, match="needs client_id, client_secret and user_agent"):
        reddit_api.connect()
    # Even before the file is opened.
    with pytest.raises(UsageError, match="needs client_id, client_secret and user_agent"):
        run_scrape([tmp_path / "missing.zst"], tmp_path / "out", refresh_scores="praw")

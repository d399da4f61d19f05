"""Reddit's API and Arctic Shift's on loopback, for tests: they answer as theirs do, and fail where a test says so."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import praw.config
import pytest

from pipelines.stages.scrape import arctic_shift, reddit_api, scores

Post = dict[str, Any]

# What Arctic Shift lets one choose by `fields`; it refuses others.
SELECTABLE = frozenset(
    "author author_fullname author_flair_text created_utc distinguished id retrieved_on subreddit subreddit_id score "
    "crosspost_parent link_flair_text num_comments over_18 post_hint selftext spoiler title url".split()
)


@dataclasses.dataclass(frozen=True)
class Fault:
    """An answer in place of the right one; `cut` bytes of the right one's end are missing though it says its length."""

    status: int = 200
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes | None = None
    cut: int = 0


class LocalApi(http.server.ThreadingHTTPServer):
    """A server whose `faults` come before its right answers, one a request (None: the right answer)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.agents: set[str] = set()
        self.faults: list[Fault | None] = []
        # The request of this number (from 1) gets no response until it is released.
        self.hold_at = 0
        self.held = threading.Event()
        self.release = threading.Event()
        self.unanswered: list[int] = []

    @property
    def address(self) -> str:
        """Where the server is."""
        return f"http://127.0.0.1:{self.server_port}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[Any]:
        """Serve inside the block."""
        thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self.release.set()
            self.shutdown()
            thread.join()
            self.server_close()

    def answer(self, path: str, query: dict[str, str], token: str) -> tuple[int, Any]:
        """Return the status and value of a right answer."""
        raise NotImplementedError

    def token(self, authorization: str) -> tuple[int, Any]:
        """Return the answer to credentials."""
        return 404, {}

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: clients are killed in the middle."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: LocalApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(*self.server.token(self.headers["Authorization"]), Fault())

    def do_GET(self) -> None:
        server, parts = self.server, urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        server.requests.append((parts.path, query))
        server.agents.add(self.headers["User-Agent"])
        if len(server.requests) == server.hold_at:
            server.unanswered.append(server.hold_at - 1)
            server.held.set()
            server.release.wait(60)
        fault = server.faults.pop(0) if server.faults else None
        if fault is not None and fault.body is not None:
            self._send(fault.status, fault.body, fault)
            return
        token = self.headers.get("Authorization", "").removeprefix("bearer ")
        status, value = server.answer(parts.path, query, token)
        self._send(fault.status if fault and fault.status != 200 else status, value, fault or Fault())

    def _send(self, status: int, value: Any, fault: Fault) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **fault.headers}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:  # as prawcore asks when it fetches a token
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[: len(body) - fault.cut])
        if fault.cut:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class Reddit(LocalApi):
    """Tokens for id:secret, listings in pages of at most 100 that end at 1,000, and submissions by their names.

    `recorded` are answers that stand as they are, by path; a token is good for `requests_a_token` requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self.posts: dict[str, list[Post]] = {}
        self.recorded: dict[str, bytes] = {}
        self.requests_a_token = 10**9
        self.tokens = 0
        self._used = 0

    def token(self, authorization: str) -> tuple[int, Any]:
        """See `LocalApi.token`."""
        if authorization != "Basic aWQ6c2VjcmV0":
            return 401, {"message": "Unauthorized", "error": 401}
        self.tokens += 1
        self._used = 0
        return 200, {"access_token": f"t{self.tokens}", "token_type": "bearer", "expires_in": 3600, "scope": "*"}

    def answer(self, path: str, query: dict[str, str], token: str) -> tuple[int, Any]:
        """See `LocalApi.answer`."""
        self._used += 1
        if token != f"t{self.tokens}" or self._used > self.requests_a_token:
            return 401, {"message": "Unauthorized", "error": 401}
        if path.rstrip("/") == "/api/info":
            known = {f"t3_{post['id']}": post for posts in self.posts.values() for post in posts}
            return 200, _listing([known[name] for name in query["id"].split(",") if name in known], None)
        if path in self.recorded:
            return 200, _listing([], None) if "after" in query else self.recorded[path]
        if path not in self.posts:
            return 404, {"message": "Not Found", "error": 404}
        posts = self.posts[path][:1000]
        names = [f"t3_{post['id']}" for post in posts]
        start = names.index(query["after"]) + 1 if "after" in query else 0
        end = min(start + min(100, int(query["limit"])), len(posts))
        return 200, _listing(posts[start:end], names[end - 1] if end < len(posts) else None)


def _listing(posts: list[Post], after: str | None) -> dict[str, Any]:
    children = [{"kind": "t3", "data": {**post, "name": f"t3_{post['id']}"}} for post in posts]
    return {"kind": "Listing", "data": {"after": after, "before": None, "children": children}}


class ArcticShift(LocalApi):
    """Search by subreddit or URL in order of time, and submissions by their ids.

    `auto` is how many records `limit=auto` brings; with `inclusive`, `after` and `before` mean their own second too.
    `slow_above` is the limit above which a query times out. The order within a second differs from query to query.
    """

    def __init__(self, posts: list[Post] | None = None) -> None:
        super().__init__()
        self.posts = posts or []
        self.auto = 100
        self.inclusive = False
        self.slow_above = 1000

    def answer(self, path: str, query: dict[str, str], token: str) -> tuple[int, Any]:
        """See `LocalApi.answer`."""
        fields = query["fields"].split(",")
        if unknown := set(fields) - SELECTABLE:
            return 400, {"data": None, "error": f"Invalid field: {min(unknown)}"}
        if path == "/api/posts/ids":
            ids = query["ids"].split(",")
            if len(ids) > 500:
                return 400, {"data": None, "error": "Too many ids"}
            posts = [post for post in self.posts if post["id"] in ids]
        elif path == "/api/posts/search":
            limit = self.auto if query["limit"] == "auto" else int(query["limit"])
            if limit > self.slow_above:
                return 422, {"data": None, "error": "Timeout. Maybe slow down a bit"}
            posts = self._search(query)[:limit]
        else:
            return 404, {"error": "Not found"}
        return 200, {"data": [{field: post.get(field) for field in fields} for post in posts]}

    def _search(self, query: dict[str, str]) -> list[Post]:
        after, before = int(query["after"]) + (not self.inclusive), int(query["before"]) - (not self.inclusive)
        posts = [post for post in self.posts if after <= post["created_utc"] <= before and _matches(post, query)]
        turn = len(self.requests)
        return sorted(posts, key=lambda post: (post["created_utc"], zlib.crc32(f"{turn} {post['id']}".encode())))


def _matches(post: Post, query: dict[str, str]) -> bool:
    if "subreddit" in query:
        return bool(post["subreddit"].lower() == query["subreddit"].lower())
    if query.get("url_exact") == "true":
        return bool(post["url"] == query["url"])
    return bool(post["url"].startswith(query["url"]))


def post(number: int, url: str, score: int = 10, **fields: Any) -> Post:
    """Return a submission of 2017-11 as a dump has it; the ids are of Reddit's form."""
    return {
        "id": f"6{number:04x}",
        "url": url,
        "score": score,
        "created_utc": 1509494400 + number,
        "subreddit": "Python",
        "title": f"Title {number}",
        "author": "someone",
        "selftext": "secret",
        "domain": "example.com",
        "is_self": False,
        "over_18": False,
        **fields,
    }


def reset_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the score clients, and send requests without delays."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(arctic_shift, "REQUEST_DELAY_S", 0.0)
    monkeypatch.setattr(praw.config.Config, "CONFIG", None)
    scores._client.cache_clear()
    reddit_api.connect.cache_clear()

"""Writes the demo's dump: submissions in Reddit's format that link to its web, and some that scrape drops."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import zstandard

from pipelines import storage
from pipelines.demo.pages import demo_routes

DUMP_NAME = "RS_2017-11.zst"
_START_UTC = 1509494400  # 2017-11-01, the last full month but one before the paper's cutoff
_SUBREDDITS = ("Python", "programming", "learnpython", "compsci")


def write_dump(path: str) -> int:
    """Write a dump of one month and return its number of submissions; deterministic."""
    lines = [json.dumps(row, sort_keys=True) for row in demo_submissions()]
    storage.write_bytes(path, zstandard.ZstdCompressor(level=6).compress(("\n".join(lines) + "\n").encode()))
    return len(lines)


def demo_submissions() -> Iterator[dict[str, Any]]:
    """Yield the submissions of the dump."""
    for number, (url, fields) in enumerate(_links()):
        yield _submission(number, url, **fields)


def _links() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield URLs with the fields in which their submissions differ from an ordinary one."""
    for number, url in enumerate(demo_routes()):
        score = zlib.crc32(url.encode()) % 40  # three in forty are below the minimum score of 3
        yield url, {"score": score}
        if number % 7 == 0:
            yield f"{url}?utm_source=reddit&utm_medium=social", {"score": score + 1, "subreddit": "programming"}
        if number % 11 == 0:
            yield f"{url}#top", {"score": max(0, score - 2)}
    host = next(iter(demo_routes())).split("/")[2]
    for number in range(12):
        yield f"http://{host}/gone-{number}.html", {"score": 5 + number}
    yield "http://gone.pydoc.example/", {"score": 9}
    for number in range(8):
        yield f"http://i.imgur.com/demo{number}.jpg", {"score": 1200, "subreddit": "pics"}
    for number in range(20):
        permalink = f"https://www.reddit.com/r/Python/comments/self{number}/a_question/"
        yield permalink, {"score": 14, "is_self": True, "selftext": "How do I read a file?"}
    yield f"http://{host}/ast.html?view=nsfw", {"score": 40, "over_18": True}
    yield "ftp://ftp.pydoc.example/pub/python.tar", {"score": 6}


def _submission(number: int, url: str, **fields: Any) -> dict[str, Any]:
    subreddit = fields.get("subreddit", _SUBREDDITS[number % len(_SUBREDDITS)])
    return {
        "id": f"demo{number:04d}",
        "created_utc": _START_UTC + 977 * number,
        "subreddit": subreddit,
        "author": f"user{number % 97}",
        "domain": f"self.{subreddit}" if fields.get("is_self") else url.split("/")[2],
        "url": url,
        "title": f"Worth reading: {url.rsplit('/', 1)[-1]}",
        "selftext": "",
        "num_comments": number % 13,
        "permalink": f"/r/{subreddit}/comments/demo{number:04d}/worth_reading/",
        "over_18": False,
        "is_self": False,
        **fields,
    }

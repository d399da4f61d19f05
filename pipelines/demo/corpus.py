"""Writes the demo's corpus folder: `webtext.toml`, the texts for the overlap report, and the dump.

The dump has submissions in Reddit's format that link to the demo's web, and some that scrape drops.
"""

from __future__ import annotations

import builtins
import inspect
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pydoc_data.topics import topics
from typing import Any

import zstandard

from pipelines import storage
from pipelines.demo.web import demo_routes
from pipelines.engine.config import CONFIG_FILE
from pipelines.errors import UsageError
from pipelines.pipeline import PIPELINE

VOCABULARY_SIZE = 4096

_DUMP_NAME = "RS_2017-11.zst"
_START_UTC = 1509494400  # 2017-11-01, the last full month but one before the paper's cutoff
_SUBREDDITS = ("Python", "programming", "learnpython", "compsci")

_MARKER = "demo.txt"
_MARKER_TEXT = b"Created by `webtext demo` from Python's own documentation; it can be deleted.\n"

_TOML = """\
# The demo's corpus: the whole pipeline on the pages of Python's documentation server.
# The pages can only be fetched while `webtext demo` runs; `webtext build` re-runs the other stages.

[build]
stages = {stages}

[scrape]
dumps = ["dumps/{dump}"]
shards = 4

[fetch]
# All hosts are this machine, so no delay between requests is needed.
per_host_delay = 0.0
contact = "https://modules.pydoc.example/"

[train-bpe]
vocab_size = {vocabulary_size}

[pretrain]
preset = "tiny"
set = ["steps=480"]
checkpoint_every = 240
log_every = 0

[overlap-report.benchmark]
language-reference = "benchmarks/language-reference.jsonl"
builtins = "benchmarks/builtins.jsonl"
"""


def write_demo_corpus(corpus: str) -> None:
    """Write the inputs of the demo's stages that do not exist yet.

    Raises UsageError for a folder that contains anything but a demo, so that the demo never touches a real corpus.
    """
    marker = storage.join(corpus, _MARKER)
    if not storage.exists(marker):
        if names := storage.list_folder(corpus):
            raise UsageError(f"{corpus}: contains other files ({names[0]}, ...); name a new folder with --corpus")
        storage.write_bytes(marker, _MARKER_TEXT)
    stages = json.dumps([stage.name for stage in PIPELINE])
    docstrings = {name: inspect.getdoc(getattr(builtins, name)) for name in sorted(dir(builtins)) if name[0] != "_"}
    files = {
        CONFIG_FILE: _TOML.format(stages=stages, dump=_DUMP_NAME, vocabulary_size=VOCABULARY_SIZE).encode(),
        "benchmarks/language-reference.jsonl": _texts(dict(sorted(topics.items()))),
        "benchmarks/builtins.jsonl": _texts(docstrings),
        f"dumps/{_DUMP_NAME}": zstandard.ZstdCompressor(level=6).compress(json_lines(demo_submissions())),
    }
    for name, data in files.items():
        if not storage.exists(path := storage.join(corpus, name)):
            storage.write_bytes(path, data)


def _texts(texts: Mapping[str, str | None]) -> bytes:
    return json_lines({"id": name, "text": text} for name, text in texts.items() if text)


def json_lines(records: Iterable[Any]) -> bytes:
    """Return records as the content of a JSONL file."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def demo_submissions() -> Iterator[dict[str, Any]]:
    """Yield the submissions of the dump, with the fields that scrape reads."""
    for number, (url, fields) in enumerate(_links()):
        subreddit = fields.get("subreddit", _SUBREDDITS[number % len(_SUBREDDITS)])
        yield {
            "id": f"demo{number:04d}",
            "created_utc": _START_UTC + 977 * number,
            "subreddit": subreddit,
            "domain": f"self.{subreddit}" if fields.get("is_self") else url.split("/")[2],
            "url": url,
            "title": f"Worth reading: {url.rsplit('/', 1)[-1]}",
            "over_18": False,
            "is_self": False,
            **fields,
        }


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
        yield permalink, {"score": 14, "is_self": True}
    yield f"http://{host}/ast.html?view=nsfw", {"score": 40, "over_18": True}
    yield "ftp://ftp.pydoc.example/pub/python.tar", {"score": 6}

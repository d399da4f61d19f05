"""A corpus of 96 pages with every stage, and removals from it that are killed."""

from __future__ import annotations

import gzip
import html
import io
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import small_web
import zstandard
from tokenizers import Tokenizer
from warcio.archiveiterator import ArchiveIterator

from pipelines.storage import files
from webtext_cli.main import main

SITES = ("alpha.com", "www.beta.org", "gamma.co.uk", "delta.net")
PAGES_PER_SITE = 24
STAGES = [
    "scrape", "fetch", "extract", "filter", "dedup", "remove-wikipedia", "train-bpe", "tokenize", "pretrain",
    "overlap-index", "overlap-report", "search",
]  # fmt: skip
_TOML = f"""
[build]
stages = {json.dumps(STAGES)}
[scrape]
dumps = ["dumps/*"]
shards = 3
[fetch]
per_host_delay = 0.0
retries = 0
[dedup]
write_signatures = false
[train-bpe]
vocab_size = 400
[tokenize]
held_out = 0.2
shard_tokens = 9000
[pretrain]
preset = "tiny"
set = ["layers=1", "width=16", "heads=2", "context=16", "steps=30", "warmup_steps=2", "batch_size=4", "micro_batch=2",
       "eval_every=15", "eval_blocks=2"]
device = "cpu"
threads = 1
[overlap-report.benchmark]
sentences = "sentences.jsonl"
"""


def url_of(number: int) -> str:
    """Return the URL of a page."""
    return f"http://{SITES[number % 4]}/page-{number // 4}.html"


def text_of(number: int) -> str:
    """Return the text of a page; the last of each site is a near-copy of one before it."""
    if number // 4 == PAGES_PER_SITE - 1:
        return f"{small_web.words_text(number - 4, 120)}" + " and one word more"
    return str(small_web.words_text(number, 120))


def pages() -> dict[str, bytes]:
    """Return all pages by URL."""
    return {
        url_of(number): small_web._page(
            f"A title of page {number} that has more than eight words in it", text_of(number)
        )
        for number in range(4 * PAGES_PER_SITE)
    }


def submission(number: int, **fields: Any) -> dict[str, Any]:
    """Return the submission of a page."""
    return {
        "id": f"c{number:04d}", "url": url_of(number), "domain": SITES[number % 4], "score": 5 + number % 9,
        "over_18": False, "is_self": False, "created_utc": 1451606400 + 60 * number, "title": f"Title {number}",
        "subreddit": ("news", "science")[number % 2], "author": f"Author{number % 7}", **fields,
    }  # fmt: skip


def write_dump(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write submissions as a dump."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def write_corpus(corpus: Path) -> None:
    """Write the inputs of a corpus."""
    rows = [submission(number) for number in range(4 * PAGES_PER_SITE)]
    rows += [submission(number, id=f"d{number:04d}", author="Someone") for number in range(0, 96, 5)]
    write_dump(corpus / "dumps" / "RS_2016-01.zst", rows)
    (corpus / "webtext.toml").write_text(_TOML)
    (corpus / "sentences.jsonl").write_text(json.dumps({"text": text_of(1)}) + "\n")


def request(kind: str, value: str) -> dict[str, str]:
    """Return a request for removal."""
    return {"kind": kind, "value": value, "reason": "the owner asks", "date": "2026-11-28"}


def write_requests(path: Path, *requests: dict[str, str]) -> str:
    """Write a file of requests and return its path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in requests))
    return str(path)


def remove(corpus: Path, *arguments: str) -> int:
    """Run `webtext remove`."""
    return main(
        ["remove", *arguments, "--corpus", str(corpus), "-q", *([] if "--workers" in arguments else ["--workers", "1"])]
    )


def remove_killed(corpus: str, requests: str, events: int) -> None:
    """Remove documents, and kill this process at the given number of files that are named or removed."""
    remaining = events

    def counted(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return call

    from pipelines import storage

    files._rename = counted(files._rename)
    storage.remove = counted(storage.remove)
    remove(Path(corpus), requests, "--pages")
    Path(corpus, f"calls-{events - remaining}").touch()


def contents(corpus: Path) -> dict[str, bytes]:
    """Return all files of a corpus that a removal determines, by path."""
    names = [path for path in corpus.rglob("*") if path.is_file() and not path.name.startswith(".lock")]
    ignored = ("runs.log", "index.html")
    return {str(path.relative_to(corpus)): path.read_bytes() for path in names if path.name not in ignored}


def words_of(path: Path) -> list[list[str]]:
    """Return the words of all texts in a file of a corpus."""
    return [re.findall(r"\w+", text.lower()) for text in _texts(path)]


def ngrams(texts: list[list[str]]) -> set[tuple[str, ...]]:
    """Return the 8-grams of texts."""
    return {tuple(words[start : start + 8]) for words in texts for start in range(len(words) - 7)}


def _texts(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return list(_strings(pq.read_table(path).to_pylist()))
    if path.suffix == ".gz":
        data = path.read_bytes()
        whole = gzip.decompress(data).decode(errors="replace")
        bodies = [
            record.content_stream().read().decode(errors="replace") for record in ArchiveIterator(io.BytesIO(data))
        ]
        return [_plain(whole), *map(_plain, bodies)]
    if path.suffix == ".bin":
        tokens = np.frombuffer(path.read_bytes(), "<u2").tolist()
        return [Tokenizer.from_file(str(path.parent / "tokenizer.json")).decode(tokens, skip_special_tokens=False)]
    data = path.read_bytes()
    if path.suffix in (".json", ".jsonl"):
        return [
            text
            for line in ([data] if path.suffix == ".json" else data.splitlines())
            for text in _strings(json.loads(line))
        ]
    return [_plain(data.decode(errors="replace"))]


def _plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]*>", " ", text))


def _strings(value: Any) -> Any:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)

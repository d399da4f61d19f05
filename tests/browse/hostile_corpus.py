"""A finished corpus each of whose texts, titles, URLs, domains and reasons attacks the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from extract_run import FETCHED_AT, HTML_HEADERS, page_row, warc_bytes
from small_web import words_text

from pipelines.engine.config import make_config
from pipelines.engine.manifest import FileEntry, Identity, Manifest, ShardEntry, write_manifest
from pipelines.engine.run import RunOptions
from pipelines.pipeline import BY_NAME
from pipelines.records import shards
from pipelines.records.schemas import DOCUMENT_SCHEMA, DROPPED_SCHEMA, LINK_SCHEMA, PAGE_SCHEMA

# A script that runs sets `planted`; 192.0.2.1 is no machine.
PAYLOADS = (
    "<script>window.planted = 1</script>",
    '</title></style></textarea></script><script>planted = 1</script><img src=x onerror="planted = 1">',
    '"><img src="http://192.0.2.1/x" onerror="planted = 1">',
    "' autofocus onfocus='planted = 1' onmouseover='planted = 1' x='",
    '<svg onload="planted = 1"><animate onbegin="planted = 1" attributeName=x></svg>',
    '<svg><script href="http://192.0.2.1/x.js"></script></svg><math><mtext><table><style><img onerror=planted=1>',
    '<iframe srcdoc="<script>parent.planted = 1</script>"></iframe><object data="data:text/html,x"></object>',
    '<a href="javascript:planted=1">x</a><form action="javascript:planted=1"><button formaction=x>x</button></form>',
    '<style>* { display: none } @import "http://192.0.2.1/x.css";</style><link rel=stylesheet href="//192.0.2.1/x">',
    '" style="position: fixed; inset: 0; background: url(http://192.0.2.1/x)" x="',
    '<meta http-equiv="refresh" content="0; url=http://192.0.2.1/"><base href="http://192.0.2.1/">',
    "{{ 7 * 191 }} {% raw %} ${7 * 191} <%= 7 * 191 %> #{7 * 191}",
    "&lt;script&gt;planted = 1&lt;/script&gt; &#60;script> ]]> --> <!-- <![CDATA[ <plaintext>",
    "\u202etxt.exe\u2066\u200f \u061c\u2028\u2029 \ufeff\u200b",
    "\x00\x1b[31m\x1b]8;;http://192.0.2.1\x07 \x7f\x9b \r\n\r\n",
    "W" * 5_000,
    "Z\u0351\u036b\u0343" * 300,
    "__proto__ constructor ../../../etc/passwd %00%0d%0aSet-Cookie:%20planted=1 '; DROP TABLE documents; --",
)
URLS = (
    "javascript:planted=1//http://example.com/",
    " JaVaScRiPt:planted=1",
    "data:text/html,<script>planted=1</script>",
    "//192.0.2.1/x",
    'http://example.com/"><svg onload="planted = 1">',
    "http://example.com/\u202egpj.exe",
    "http://user:secret@[::1",
    f"http://example.com/{'y' * 3_000}",
)
ARCHIVED = 4  # the number of a document with a web URL
_WARC = "pages-00000.warc.gz"
BENCHMARK_TEXT = words_text(1, 30)


def id_of(number: int) -> str:
    """Return the id of the document with a payload; those from 100 are near-copies."""
    return f"{PAYLOADS[number % 100][:40]} {number}".replace("://", "")  # which only a URL may contain


def documents() -> list[dict[str, Any]]:
    """Return the documents: one per payload, and a near-copy of every second one."""
    rows = []
    for number in [*range(len(PAYLOADS)), *range(100, 100 + len(PAYLOADS), 2)]:
        evil = PAYLOADS[number % 100]
        fields = {field.name: evil for field in DOCUMENT_SCHEMA if field.type == pa.string()}
        lists = {name: [evil, f"{evil} 2"] for name in ("submission_ids", "subreddits", "signals")}
        text = f"{evil}\n\n{words_text(number % 100, 120)}\n\n{evil} {words_text(number, 9)}"
        numbers = {"confidence": 0.5, "score": number, "created_utc": 1_450_000_000 + number * 10_000_000, "words": 129}
        url = URLS[number] if number < len(URLS) else None
        row = {**fields, **lists, **numbers, "id": id_of(number), "text": text, "url": url, "language": "en"}
        # Blocks of a page are found by a process, which takes a second: only one document has its page.
        place = {"warc_file": _WARC if number == ARCHIVED else None, "warc_offset": 0}
        rows.append(row | place | {"fetched_at": FETCHED_AT})
    return rows


def build_hostile_corpus(corpus: Path) -> Path:
    """Write links, pages and documents by hand, since no stage would, and run the stages after extract on them."""
    kept = documents()
    page = "".join(f"<p>{payload}</p>" for payload in PAYLOADS).encode(errors="replace")
    urls = [row["url"] or PAYLOADS[0] for row in kept]
    data, _ = warc_bytes([(urls[ARCHIVED], page, HTML_HEADERS)])
    links = [
        {**row, "url": url, "original_url": url, "authors": row["signals"], "over_18": False}
        for row, url in zip(kept, urls, strict=True)
    ]
    pages = [page_row(url, "ok", len(page), row["warc_file"], 0) for row, url in zip(kept, urls, strict=True)]
    _write(corpus, "scrape", "links", LINK_SCHEMA, links)
    warc = shards.write_file(str(corpus / "fetch"), _WARC, data)
    _write(corpus, "fetch", "pages", PAGE_SCHEMA, pages, [warc])
    _write(corpus, "extract", "documents", DOCUMENT_SCHEMA, kept)
    benchmark = corpus / "benchmark.jsonl"
    benchmark.write_text("".join(json.dumps({"text": text}) + "\n" for text in (BENCHMARK_TEXT, *PAYLOADS)))
    _run(corpus, "dedup", {"documents": f"{corpus}/extract"})
    read = {"documents": f"{corpus}/dedup"}
    _run(corpus, "train-bpe", read, vocab_size=400)
    _run(corpus, "tokenize", read | {"tokenizer": f"{corpus}/train-bpe"}, held_out=0.2)
    _run(corpus, "overlap-report", read | {"benchmarks": [f"evil={benchmark}"]})
    _run(corpus, "search", read)
    return corpus


def _run(corpus: Path, name: str, inputs: Mapping[str, Any], **config: Any) -> None:
    stage = BY_NAME[name]
    options = make_config(stage.config_type(), config, {}, str)
    stage.load()(options, **inputs, output=str(corpus / name), options=RunOptions())


def _write(
    corpus: Path,
    stage: str,
    noun: str,
    schema: pa.Schema,
    rows: Sequence[Mapping[str, Any]],
    files: Sequence[FileEntry] = (),
) -> None:
    """Write the folder of a stage, which has also dropped a record for each payload."""
    written = list(files)
    dropped = [
        {"id": f"{payload} {stage}", "url": URLS[number % len(URLS)], "reason": payload, "detail": payload}
        for number, payload in enumerate(PAYLOADS)
    ]
    for name, columns, records in ((noun, schema, rows), ("dropped", DROPPED_SCHEMA, dropped)):
        with shards.write_shard(str(corpus / stage), shards.shard_name(name, 0), columns) as shard:
            for row in records:
                shard.write({column: row.get(column) for column in columns.names})
        written.append(shard.entry)
    counts = {row["reason"]: 1 for row in dropped}
    entry = ShardEntry("shards", "all", len(rows) + len(dropped), len(rows), counts, files=tuple(written))
    write_manifest(str(corpus / stage), Manifest(Identity(stage, 1, {}, {}), (entry,)))

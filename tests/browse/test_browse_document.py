"""The page of one document, and the parts that load after it."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("starlette")
from browser_client import open_client
from starlette.testclient import TestClient

from pipelines.algorithms.web.urls import id_of_url, registered_domain
from pipelines.browse.reading import set_text
from pipelines.engine.manifest import Identity, Manifest, ShardEntry, write_manifest
from pipelines.records import shards
from pipelines.records.schemas import DOCUMENT_SCHEMA, DROPPED_SCHEMA, LINK_SCHEMA, PAGE_SCHEMA
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.fetch.exchange import Exchange, Response
from pipelines.stages.fetch.warc import exchange_records, warcinfo_record
from pipelines.stages.filter.rules import load_rules
from pipelines.stages.overlap_report.report import HIT_SCHEMA
from pipelines.tokenizers.formats import TOKENIZER, tokenizer_files

KEPT, COPY, SHORT, GONE, LONG = (
    f"https://{site}.com/page" for site in ("alpha", "copies", "brief", "nothing", "lengthy")
)
DATE = dt.datetime(2026, 11, 28, 12, 30, 5, tzinfo=dt.UTC)
HOSTILE = "<script>alert(1)</script> \u202eright to left \x1b[31m"
PASSAGE = "the quick brown fox jumps over the lazy dog near the river"
PROSE = (
    "An article about foxes and dogs explains at some length how one of them passes the other without a word, and why "
    "that is told so often in books about letters, where every one of them has to occur at least once."
)
TEXTS = {
    KEPT: f"{PROSE}\n{PASSAGE} again.\n\n| Name | Legs |\n|---|---|\n| fox | 4 |\n\n```\nx = <b>1</b>\n```\n"
    f"\u05e9\u05dc\u05d5\u05dd\n{HOSTILE}",
    COPY: f"{PROSE}\nA copy of it.",
    SHORT: "Too short.",
    LONG: "".join(f"Line {number} of a long text.\n" for number in range(2000)),
}
PAGE = f"<html><head><title>T</title></head><body><nav><a href=/>Home</a></nav><p>{PROSE}</p>{HOSTILE}</body></html>"
ID = {url: id_of_url(url) for url in (KEPT, COPY, SHORT, GONE, LONG)}


# Schema and rows of each Parquet file by name.
Tables = Mapping[str, tuple[pa.Schema, list[Any]]]


def _write_stage(
    corpus: Path,
    stage: str,
    tables: Tables,
    config: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    folder = str(corpus / stage)
    entries = [shards.write_file(folder, name, data) for name, data in (files or {}).items()]
    for name, (schema, rows) in tables.items():
        with shards.write_shard(folder, f"{name}.parquet", schema) as shard:
            shard.write_batch(pa.RecordBatch.from_pylist(rows, schema))
        entries.append(shard.entry)
    entry = ShardEntry("shards", "all", files=tuple(entries))
    write_manifest(folder, Manifest(Identity(stage, 1, config or {}, inputs or {}), (entry,)))


def _document(url: str) -> dict[str, Any]:
    facts = {"domain": registered_domain(url), "score": 5, "submission_ids": ["abc12"], "subreddits": ["books"]}
    values = {"title": f"Title of {url} <i>", "text": TEXTS[url], "words": len(TEXTS[url].split()), **facts}
    return {"id": ID[url], "url": url, "final_url": url, "fetched_at": DATE, "extractor": "fast", **values}


def _drop(url: str, reason: str, detail: str, id: str | None = None) -> dict[str, str]:
    return {"id": id or ID[url], "url": url, "reason": reason, "detail": detail}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = tmp_path_factory.mktemp("document")
    urls = sorted(ID)
    links = [
        {"url": url, "original_url": url, "domain": registered_domain(url), "score": 5, "submission_ids": ["abc12"]}
        | {"subreddits": ["books"], "authors": [""], "title": "Link", "created_utc": 1_500_000_000, "over_18": False}
        for url in urls
    ]
    _write_stage(corpus, "scrape", {"links-00000": (LINK_SCHEMA, links)})
    info = warcinfo_record("pages", DATE, {})
    headers = (("Content-Type", "text/html; charset=utf-8"), ("X-Odd", "<b>"))
    response = Response(200, "OK", "HTTP/1.1", headers, body=PAGE.encode())
    request = b"GET /page HTTP/1.1\r\nHost: alpha.com\r\n\r\n"
    warc = info + exchange_records(Exchange(KEPT, DATE, request=request, response=response))
    page = {"final_url": KEPT, "status": 200, "outcome": "ok", "source": "live", "fetched_at": DATE, "bytes": len(PAGE)}
    pages = [{**page, "url": url, "warc_file": "pages-00001.warc.gz", "warc_offset": 0} for url in urls]
    for row in pages:
        if row["url"] == KEPT:
            row |= {"warc_file": "pages-00000.warc.gz", "warc_offset": len(info)}
        if row["url"] == GONE:
            row |= {"outcome": "dropped.http_not_found", "status": 404, "warc_file": None, "warc_offset": None}
    dropped = (DROPPED_SCHEMA, [_drop(GONE, "http_not_found", "status 404", GONE)])
    tables: Tables = {"pages-00000": (PAGE_SCHEMA, pages), "dropped-00000": dropped}
    _write_stage(corpus, "fetch", tables, files={"pages-00000.warc.gz": warc})
    documents = [_document(url) for url in sorted(TEXTS)]
    nothing = (DROPPED_SCHEMA, list[Any]())
    extract_config = {"format": "markdown", "memory_limit_mib": ExtractConfig().memory_limit_mib}
    tables = {"documents-00000": (DOCUMENT_SCHEMA, documents), "dropped-00000": nothing}
    _write_stage(corpus, "extract", tables, extract_config)
    documents = [row for row in documents if row["url"] != SHORT]
    dropped = (DROPPED_SCHEMA, [_drop(SHORT, "too_short", "characters 10 is below 200")])
    rules = load_rules(["webtext"], (), (), None).fingerprint
    tables = {"documents-00000": (DOCUMENT_SCHEMA, documents), "dropped-00000": dropped}
    _write_stage(corpus, "filter", tables, {"profile": ["webtext"], "rule": [], "set": []}, {"rules": rules})
    documents = [row for row in documents if row["url"] != COPY]
    dropped = (DROPPED_SCHEMA, [_drop(COPY, "near_duplicate", ID[KEPT])])
    members = [
        {"id": ID[KEPT], "cluster": ID[KEPT], "kind": "kept", "jaccard": None, "documents": 2},
        {"id": ID[COPY], "cluster": ID[KEPT], "kind": "near", "jaccard": 0.91, "documents": 2},
    ]
    clusters = (pa.Table.from_pylist(members[::-1]).schema, members)
    tables = {"documents-00000": (DOCUMENT_SCHEMA, documents), "dropped-00000": dropped, "clusters": clusters}
    _write_stage(corpus, "dedup", tables)
    tokens = [{"id": ID[KEPT], "url": KEPT, "offset": 100, "tokens": 400, "document_offset": 0}]
    tables = {"train-00000-documents": (pa.Table.from_pylist(tokens).schema, tokens)}
    _write_stage(corpus, "tokenize", tables, files={TOKENIZER: tokenizer_files([])[TOKENIZER]})
    words = PASSAGE.split()
    hit = {"benchmark": "sentences", "split": "test", "example": 3, "place": "sentences.jsonl:4", "position": 0}
    hits = [{**hit, "ngram": " ".join(words[first : first + 8])} for first in range(len(words) - 7)]
    options = {"ngram": 8, "apostrophes": "split", "letters": "unicode", "lines": "cross"}
    _write_stage(corpus, "overlap-report", {"hits": (HIT_SCHEMA, hits)}, options)
    return corpus


@pytest.fixture(scope="module")
def client(corpus: Path) -> TestClient:
    return open_client(str(corpus))


def _get(client: TestClient, path: str, **query: str) -> str:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    page = answer.text
    # Nothing of a document is markup: neither an element, an attribute of the policy's concern, nor a hidden control.
    assert not re.search(r"<(script(?! src)|img|b|i)\b|\son\w+=|\sstyle=|\u202e|\x1b", page)
    return page


def _words(page: str) -> str:
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", page).split()))


def test_without_a_document_there_is_a_form_to_look_one_up(client: TestClient) -> None:
    assert 'action="/document"' in _get(client, "/document")


@pytest.mark.parametrize("query", [{"id": ID[KEPT]}, {"url": KEPT}, {"url": f" {KEPT}?utm_source=x"}])
def test_a_kept_document_is_shown_by_its_id_or_any_spelling_of_its_url(
    client: TestClient, query: dict[str, str]
) -> None:
    page = _get(client, "/document", **query)
    assert "In the corpus" in _words(page)
    assert f"Title of {KEPT} <i>" in _words(page)
    assert f'href="{KEPT}"' in page
    assert f'href="https://web.archive.org/web/20261128123005/{KEPT}"' in page
    assert 'href="https://www.reddit.com/comments/abc12"' in page
    assert 'href="/documents?domain=alpha.com"' in page
    assert 'href="/documents?subreddit=books"' in page
    assert PROSE in _words(page)
    loaded = re.findall(r'data-load="/document/(\w+)\?', page)
    assert loaded == ["cluster", "rules", "page", "tokens"]


def test_every_stage_is_listed_with_what_it_recorded(client: TestClient) -> None:
    page = _words(_get(client, "/document", id=ID[KEPT]))
    for words in ("scrape ✓ kept", "fetch ✓ kept", "extract ✓ kept", "filter ✓ kept", "dedup ✓ kept", "score 5"):
        assert words in page
    assert "train-00000" in page


def test_a_text_is_set_as_tables_code_and_lines_with_benchmarks_marked(client: TestClient) -> None:
    page = _get(client, "/document", id=ID[KEPT])
    assert f'<mark id="passage">{PASSAGE}</mark>' in page
    assert "sentences/test (5 n-grams, first at sentences.jsonl:4)" in _words(page)
    assert re.search(r'<td dir="auto">\s*fox\s*</td><td dir="auto">\s*4\s*</td>', page)
    assert "|---" not in page
    assert 'class="reading code"' in page
    assert "x = &lt;b&gt;1&lt;/b&gt;" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; \\u202eright to left \\x1b[31m" in page


def test_a_dropped_document_is_shown_with_its_reason_its_text_and_what_was_kept_instead(client: TestClient) -> None:
    page = _get(client, "/document", url=COPY)
    assert "Missing: dropped by dedup" in _words(page)
    assert 'href="/dropped?stage=dedup&amp;reason=near_duplicate"' in page
    assert f'Removed in favour of <a href="/document?id={ID[KEPT]}">{KEPT}</a>' in page
    assert "A copy of it." in page
    page = _get(client, "/document", url=SHORT)
    assert "characters 10 is below 200" in page
    assert "Too short." in page
    page = _words(_get(client, "/document", url=GONE))
    assert "Missing: dropped by fetch, http_not_found" in page
    assert "No finished stage has a text" in page


def test_an_unknown_url_is_said_to_be_absent_with_similar_ones(client: TestClient) -> None:
    page = _get(client, "/document", url=KEPT.replace("https://", "http://www."))
    assert "Missing: scrape does not have it (no link has this URL" in _words(page)
    assert f'href="/document?url={KEPT.replace(":", "%3A").replace("/", "%2F")}"' in page


def test_a_long_text_is_read_in_parts(client: TestClient) -> None:
    page = _get(client, "/document", id=ID[LONG])
    assert "1 to 20,000 are shown" in _words(page)
    assert "Line 0 of" in page
    assert "Line 1000 of" not in page
    [target] = re.findall(r'rel="next" href="([^"]+)"', page)
    assert target == f"/document?id={ID[LONG]}&amp;offset=20000"
    page = _get(client, "/document", id=ID[LONG], offset="20000")
    assert "Line 1000 of" in page
    assert re.findall(r'rel="prev" href="([^"]+)"', page) == [f"/document?id={ID[LONG]}&amp;offset=0"]


def test_a_passage_is_marked_in_the_part_of_the_text_that_has_it(client: TestClient) -> None:
    start = TEXTS[LONG].index("Line 1000 of a long")
    passage = {"start": str(start), "end": str(start + len("Line 1000 of a long text.\nLine 1001"))}
    page = _get(client, "/document", id=ID[LONG], **passage)
    assert '<mark id="passage">Line 1000 of a long text.\n</mark><mark>Line 1001</mark> of a long text.' in page
    [previous] = re.findall(r'rel="prev" href="([^"]+)"', page)
    assert "Line 0 of" in client.get(html.unescape(previous)).text
    page = _get(client, "/document", id=ID[KEPT], start="0", end="10")
    assert f'<mark id="passage">{PROSE[:10]}</mark>' in page
    assert page.count("<mark") == 1  # not the passages that benchmarks contain


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("/document?id=a&offset=-1", "offset=-1"),
        ("/document?id=a&offset=1e9", "offset=1e9"),
        ("/document?url=ftp://x.org/", "is not an http(s) URL"),
        ("/document/tokens?id=<b>", "no stage of the corpus has this document"),
        (f"/document/rules?id={ID[GONE]}", "no text of this document"),
        (f"/document/diff?id={ID[KEPT]}", "no stage of the corpus has this document"),
    ],
)
def test_bad_parameters_are_named(client: TestClient, address: str, problem: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 400
    assert problem in answer.text
    assert "<b>" not in answer.text


def test_rules_are_shown_with_value_threshold_and_outcome(client: TestClient) -> None:
    page = _words(_get(client, "/document/rules", id=ID[SHORT]))
    assert "too_short 10 at least 200 ✗ fails" in page
    assert "passes" in page
    assert "other rules as well" not in page
    assert "✗" not in _words(_get(client, "/document/rules", id=ID[KEPT], url=KEPT))


def test_a_cluster_is_listed_from_the_kept_document_to_its_copies(client: TestClient) -> None:
    page = _get(client, "/document/cluster", id=ID[COPY])
    assert "The cluster has 2 documents" in page
    assert page.index(f'href="/document?id={ID[KEPT]}"') < page.index("(this document)")
    assert "0.91" in page
    assert f'href="/document/diff?id={ID[COPY]}&amp;other={ID[KEPT]}"' in page


def test_two_documents_are_compared_word_by_word(client: TestClient) -> None:
    page = _get(client, "/document/diff", id=ID[COPY], other=ID[KEPT])
    assert "<mark>A copy of it</mark>" in page
    assert f"<mark>{PROSE[:20]}" not in page


def test_tokens_have_boundaries_ids_and_places(client: TestClient) -> None:
    page = _get(client, "/document/tokens", id=ID[KEPT])
    # The tokenizer has a token for each byte: A is the 33rd printable one, and a Hebrew letter has two.
    assert '<span title="id 32">A</span><span title="id 77">n</span>' in page
    assert re.search('<span title="id \\d+">\u05e9</span><span title="id \\d+, rest of the character before">·', page)
    page = _get(client, "/document/tokens", id=ID[LONG], url=LONG, offset="2000")
    assert "2,001 to 4,000 are shown" in _words(page)
    assert page.count("<span title=") == 2000
    assert f"/document/tokens?id={ID[LONG]}&amp;url=" in page


def test_an_archived_page_is_shown_block_by_block_with_its_source_and_headers(client: TestClient) -> None:
    page = _get(client, "/document/page", id=ID[KEPT])
    assert re.search(r'class="kept" dir="auto">.*?An article about foxes', page, re.DOTALL)
    assert re.search(r'class="dropped" dir="auto">.*?Home', page, re.DOTALL)
    assert "&lt;nav&gt;&lt;a href=/&gt;Home&lt;/a&gt;" in page
    assert "X-Odd: &lt;b&gt;" in page
    assert "GET /page HTTP/1.1" in page
    assert "WARC-Type: response" in page


def test_a_page_without_its_archive_says_so(client: TestClient) -> None:
    assert "no longer in the corpus" in _get(client, "/document/page", id=ID[COPY])
    assert "no archived page" in _get(client, "/document/page", id=ID[GONE])


def test_documents_of_a_file_have_a_page(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    odd = {"subreddits": 3, "submission_ids": "x", "fetched_at": "soon", "created_utc": 10**15, "kept_url": "data:,x"}
    path.write_text(json.dumps({"id": "<b>", "text": "one two", **odd}))
    page = _get(open_client([str(path)]), "/document", id="<b>")
    assert "one two" in page
    assert "In the corpus" in _words(page)
    assert 'href="data' not in page


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("a\nb", [("text", [["a\n"], ["b"]])]),
        ("a\tb\nc\td", [("table", [["a", "b"], ["c", "d"]])]),
        ("| a \\| b | c |\n|:-:|---|\nx", [("table", [[" a \\| b ", " c "]]), ("text", [["x"]])]),
        ("    x\n\n    y\nz", [("code", [["    x\n"], ["\n"], ["    y\n"]]), ("text", [["z"]])]),
        ("```\n| x |\n```", [("code", [["```\n"], ["| x |\n"], ["```"]])]),
    ],
)
def test_lines_become_blocks(text: str, blocks: list[Any]) -> None:
    assert [
        (kind, [["".join(part for part, _ in cell) for cell in cells] for cells in rows])
        for kind, rows in set_text(text, [])
    ] == blocks


def test_marks_are_cut_at_the_edges_of_cells() -> None:
    [(_, [cells])] = set_text("ab\tcd", [(1, 4)])
    assert cells == [[("a", False), ("b", True)], [("c", True), ("d", False)]]

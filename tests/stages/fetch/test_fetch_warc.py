"""The WARC files: valid, complete, and readable at each page's offset."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import random
from collections import Counter
from pathlib import Path

import pytest
from fetch_run import Fetched, read_records, run_fetch
from local_web import PROXY_VARIABLES, Answer, LocalWeb
from warcio.archiveiterator import ArchiveIterator
from warcio.checker import Checker

_PAGES = {f"/{number}": f"<p>page {number}</p>".encode() * 20 for number in range(12)}


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Fetched:
    with LocalWeb({**_PAGES, "/404": Answer(b"no", 404)}) as web, pytest.MonkeyPatch.context() as patch:
        for name in PROXY_VARIABLES:
            patch.delenv(name, raising=False)
        web.pages["/to-0"] = Answer(b"moved", 301, {"Location": "/0"})
        urls = [web.url(path) for path in web.pages]
        return run_fetch(tmp_path_factory.mktemp("warc"), urls, contact="mailto:me@example.org")


@pytest.fixture(scope="module")
def warc(fetched: Fetched) -> Path:
    return fetched.folder / "pages-00000.warc.gz"


def test_warcio_finds_nothing_wrong(warc: Path) -> None:
    class Command:
        verbose = True
        inputs = [str(warc)]  # noqa: RUF012

    checker = Checker(Command())
    checker.process_one(str(warc))
    assert checker.exit_value == 0
    assert all(kind in ("response", "request", "warcinfo") for kind, _, _ in read_records(warc))


def test_every_record_is_a_separate_gzip_member(warc: Path) -> None:
    data = warc.read_bytes()
    with warc.open("rb") as stream:
        iterator = ArchiveIterator(stream)
        offsets = [iterator.get_record_offset() for record in iterator]
    for start, end in zip(offsets, [*offsets[1:], len(data)], strict=True):
        assert gzip.decompress(data[start:end]).startswith(b"WARC/1.1\r\n")


def test_every_request_has_a_response_and_every_hop_is_stored(fetched: Fetched, warc: Path) -> None:
    kinds = Counter((kind, target) for kind, target, _ in read_records(warc) if kind != "warcinfo")
    targets = {target for _, target in kinds}
    assert set(kinds) == {(kind, target) for target in targets for kind in ("request", "response")}
    urls = {row["url"] for row in fetched.rows}
    assert targets == urls | {url.replace("/404", "/robots.txt") for url in urls if url.endswith("/404")}
    assert kinds["response", fetched.row(next(iter(urls)))["url"]] >= 1


def test_the_first_record_is_warcinfo(warc: Path) -> None:
    kind, _, payload = read_records(warc)[0]
    assert kind == "warcinfo"
    assert b"http-header-user-agent: webtext/0.1 (+mailto:me@example.org)\r\n" in payload
    assert b"robots: rfc9309\r\n" in payload


def test_the_offset_of_a_page_is_that_of_its_last_response(fetched: Fetched) -> None:
    pages = [row for row in fetched.rows if row["outcome"] == "ok"]
    assert len(pages) == len(_PAGES) + 1
    for row in pages:
        record = fetched.record(row["url"])
        headers = record.rec_headers
        assert record.rec_type == "response"
        assert record.http_headers.get_statuscode() == "200"
        assert headers.get_header("WARC-Target-URI") == row["final_url"]
        assert headers.get_header("WARC-IP-Address") == "127.0.0.1"
        assert headers.get_header("WARC-Payload-Digest").startswith("sha1:")
        assert headers.get_header("WARC-Truncated") is None
        stored_at = dt.datetime.fromisoformat(headers.get_header("WARC-Date"))
        assert stored_at.replace(microsecond=stored_at.microsecond // 1000 * 1000) == row["fetched_at"]
        assert record.content_stream().read() == _PAGES["/" + row["final_url"].rsplit("/", 1)[1]]


def test_responses_that_are_not_pages_are_stored_without_body(fetched: Fetched, warc: Path) -> None:
    for record in ArchiveIterator(io.BytesIO(warc.read_bytes())):
        status = record.http_headers.get_statuscode() if record.rec_type == "response" else "200"
        if status != "200":
            assert status in ("301", "404")
            assert record.rec_headers.get_header("WARC-Truncated") == "unspecified"
            assert record.content_stream().read() == b""


def test_record_ids_are_unique_and_requests_refer_to_their_responses(warc: Path) -> None:
    with warc.open("rb") as stream:
        headers = [(record.rec_type, record.rec_headers) for record in ArchiveIterator(stream)]
    ids = [header.get_header("WARC-Record-ID") for _, header in headers]
    assert len(set(ids)) == len(ids)
    answers = {header.get_header("WARC-Record-ID") for kind, header in headers if kind == "response"}
    named = [header.get_header("WARC-Concurrent-To") for kind, header in headers if kind == "request"]
    assert sorted(named) == sorted(answers)


def test_the_request_is_stored_as_it_was_sent(fetched: Fetched, warc: Path) -> None:
    with warc.open("rb") as stream:
        sent = {
            record.rec_headers.get_header("WARC-Target-URI"): record.http_headers
            for record in ArchiveIterator(stream)
            if record.rec_type == "request"
        }
    url = fetched.rows[0]["url"]
    assert sent[url].to_str().splitlines() == [
        "GET /0 HTTP/1.1",
        f"Host: {url.split('/')[2]}",
        "User-Agent: webtext/0.1 (+mailto:me@example.org)",
        "Accept: text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.1",
        "Accept-Encoding: gzip, deflate",
    ]


@pytest.mark.parametrize("size_bytes", [0, 10, 65_000, 66_000, 140_000])
def test_coded_bodies_of_any_size_are_stored_as_received(size_bytes: int, tmp_path: Path) -> None:
    body = gzip.compress(b"<p>text</p>" + random.Random(1).randbytes(size_bytes).hex().encode(), mtime=0)
    headers = {"Content-Type": "text/html", "Content-Encoding": "gzip"}
    with LocalWeb({"/": Answer(body, 200, headers)}) as web:
        url = web.url("/")
        fetched = run_fetch(tmp_path, [url])
    records = read_records(fetched.folder / "pages-00000.warc.gz")
    assert [content for kind, target, content in records if (kind, target) == ("response", url)] == [body]
    assert fetched.record(url).content_stream().read() == gzip.decompress(body)
    with gzip.open(fetched.folder / "pages-00000.warc.gz") as stream:
        assert stream.read().count(b"WARC/1.1\r\n") == len(records)

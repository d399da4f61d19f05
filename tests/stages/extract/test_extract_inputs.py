"""What extract reads: folders of fetch, WARC and ARC files, HTML files; and which of them it refuses."""

from __future__ import annotations

import gzip
import json
import os
import re

import pyarrow.parquet as pq
import pytest
from extract_run import (
    HTML_HEADERS,
    html_page,
    page_row,
    rows,
    run,
    warc_bytes,
    write_corpus,
    write_pages,
    write_stage,
)
from quick_extractor import first_paragraph

from pipelines.algorithms.web.urls import id_of_url
from pipelines.engine import manifest
from pipelines.errors import DamagedShardError, InputError
from pipelines.records import shards
from pipelines.records.schemas import PAGE_SCHEMA
from pipelines.stages.extract.extractors import EXTRACTORS, Extracted

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path)


def test_names_that_are_not_utf_8_are_escaped(tmp_path):
    folder = os.fsencode(tmp_path / "saved")
    os.mkdir(folder)
    data, _ = warc_bytes([("http://example.org/", html_page("a").encode(), HTML_HEADERS)])
    try:
        for name, content in ((b"caf\xe9.html", html_page("b").encode()), (b"\xff.warc.gz", data)):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with open(os.path.join(folder, b"caf\xc3\xa9.html"), "wb") as file:
        file.write(html_page("c").encode())
    run(tmp_path / "saved", tmp_path / "out")
    documents = rows(tmp_path / "out", "documents")
    assert [row["id"] for row in documents if row["url"] is None] == ["caf\u00e9.html", r"caf\xe9.html"]
    assert [row["warc_file"] for row in documents if row["url"] is not None] == [r"\xff.warc.gz"]


def test_the_error_for_a_file_that_is_not_a_warc_is_short_and_printable(tmp_path):
    (tmp_path / "crawl.warc").write_bytes(bytes(range(1, 10)) + bytes(range(14, 256)) * 30)
    with pytest.raises(InputError) as refusal:
        run([tmp_path / "crawl.warc"], tmp_path / "out")
    message = str(refusal.value).removeprefix(str(tmp_path))
    assert "crawl.warc: is damaged after byte 0 (" in message
    assert message.isprintable()
    assert len(message) < 330


def test_wrong_offsets_and_truncated_records_count_as_damaged(tmp_path):
    url = "http://example.org/"
    data, offsets = warc_bytes([(url + name, html_page(name).encode(), HTML_HEADERS) for name in "abc"])
    folder = tmp_path / "fetch"
    name = "pages-00000.warc.gz"
    cut = data[: offsets[2] + 250]
    with shards.write_shard(str(folder), "pages-00000.parquet", PAGE_SCHEMA) as shard:
        places = {
            "a": offsets[0],
            "inside": offsets[0] + 7,
            "cut": offsets[2],
            "past": len(data) + 100,
            "before": -1,
            "beyond": 1 << 62,
        }
        for place, offset in places.items():
            shard.write(page_row(url + place, "ok", 1, name, offset))
    write_stage(folder, "fetch", [shard.entry, shards.write_file(str(folder), name, cut)], 6)
    summary = run(folder, tmp_path / "out")
    assert (summary.records_in, summary.records_out, dict(summary.dropped)) == (6, 1, {"damaged_record": 5})


def test_a_damaged_or_missing_warc_is_refused_by_name(corpus):
    pages, links, tmp_path = corpus
    warc = pages / "pages-00001.warc.gz"
    warc.write_bytes(warc.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedShardError, match=r"pages-00001\.warc\.gz: is damaged .* re-run `webtext fetch`"):
        run(pages, tmp_path / "out", links)


def test_pages_refer_only_to_warcs_in_their_folder(tmp_path):
    folder = tmp_path / "fetch"
    with shards.write_shard(str(folder), "pages-00000.parquet", PAGE_SCHEMA) as shard:
        shard.write(page_row("http://example.org/", "ok", 1, "../other.warc.gz", 0))
    write_stage(folder, "fetch", [shard.entry], 1)
    with pytest.raises(InputError, match=r"names \.\./other\.warc\.gz, which is not in the manifest of"):
        run(folder, tmp_path / "out")


def test_another_stages_folder_is_refused(corpus):
    pages, links, tmp_path = corpus
    with pytest.raises(InputError, match="is the output of scrape, expected fetch"):
        run(links, tmp_path / "out")
    with pytest.raises(InputError, match="is the output of fetch, expected scrape"):
        run(pages, tmp_path / "out", pages)


def test_html_files_plain_and_compressed(tmp_path):
    folder = tmp_path / "saved"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.html").write_text(html_page("b", lang="en-GB"))
    (folder / "a.htm.gz").write_bytes(gzip.compress(html_page("a").encode("utf-16")))
    (folder / "sub" / "b.html").write_text(html_page("c"))
    (folder / "broken.html.gz").write_bytes(gzip.compress(html_page("d").encode())[:100])
    (folder / "notes.txt").write_text("not a page")
    summary = run(folder, tmp_path / "out")
    assert (summary.records_in, dict(summary.dropped)) == (4, {"damaged_record": 1})
    documents = rows(tmp_path / "out", "documents")
    assert [(row["id"], row["url"], row["language"]) for row in documents] == [
        ("a.htm.gz", None, None),
        ("b.html", None, "en"),
        ("sub/b.html", None, None),
    ]
    assert "The river a 0" in documents[0]["text"]
    [dropped] = rows(tmp_path / "out", "dropped")
    assert str(tmp_path) not in json.dumps(dropped)
    assert run(str(folder / "*.html"), tmp_path / "globbed").records_in == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"contains no \*\.html"):
        run(tmp_path / "empty", tmp_path / "nothing")


@pytest.mark.parametrize("extractor", ["fast", "trafilatura"])
def test_html_files_get_the_url_that_they_declare_and_keep_their_ids(tmp_path, extractor):
    heads = {
        "a.html": '<link rel="canonical" href="https://www.bbc.co.uk/one?utm_source=x">',
        "b.html": '<link rel="canonical" href="https://www.bbc.co.uk/one">',
        "c.html": '<meta property="og:url" content="http://c.example/2021/03/04/c">',
        "d.html": "",
    }
    for name, head in heads.items():
        (tmp_path / name).write_text(html_page(name).replace("<head>", f"<head>{head}"))
    run([str(tmp_path / "*.html")], tmp_path / "out", extractor=extractor)
    documents = rows(tmp_path / "out", "documents")
    fields = ("id", "url", "url_source", "domain", "published")
    assert [tuple(row[field] for field in fields) for row in documents] == [
        ("a.html", "https://www.bbc.co.uk/one", "canonical", "bbc.co.uk", None),
        ("b.html", "https://www.bbc.co.uk/one", "canonical", "bbc.co.uk", None),
        ("c.html", "http://c.example/2021/03/04/c", "og", "c.example", "2021-03-04"),
        ("d.html", None, None, None, None),
    ]


def test_a_dropped_html_file_is_listed_with_the_url_that_it_declares(tmp_path):
    (tmp_path / "a.html").write_text(html_page("a"))
    (tmp_path / "b.html").write_text('<html><head><link rel="canonical" href="http://b.example/"></head></html>')
    run([str(tmp_path / "*.html")], tmp_path / "out")
    assert [(row["id"], row["url"]) for row in rows(tmp_path / "out", "dropped")] == [("b.html", "http://b.example/")]


def test_the_html_responses_of_a_foreign_warc_are_read(tmp_path):
    data, offsets = warc_bytes(
        [
            ("http://bbc.co.uk/one", html_page("one").encode(), HTML_HEADERS),
            ("http://bbc.co.uk/logo.png", b"\x89PNG", [("Content-Type", "image/png")]),
            ("http://bbc.co.uk/two", html_page("two").encode("cp1252"), [("Content-Type", "text/html")]),
        ]
    )
    (tmp_path / "crawl.warc.gz").write_bytes(data)
    summary = run([tmp_path / "crawl.warc.gz"], tmp_path / "out")
    assert (summary.records_in, dict(summary.dropped)) == (3, {"not_html": 1})
    documents = rows(tmp_path / "out", "documents")
    assert [(row["url"], row["domain"], row["warc_file"], row["warc_offset"]) for row in documents] == [
        ("http://bbc.co.uk/one", "bbc.co.uk", "crawl.warc.gz", offsets[0]),
        ("http://bbc.co.uk/two", "bbc.co.uk", "crawl.warc.gz", offsets[2]),
    ]
    assert documents[0]["fetched_at"] is not None
    assert documents[0]["url_source"] == "warc"


@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_a_warc_that_ends_within_a_request_is_refused(tmp_path, kept):
    data, _ = warc_bytes([("http://a.example/", html_page("a").encode(), HTML_HEADERS)])
    response = gzip.decompress(data)
    request = response.replace(b"WARC-Type: response", b"WARC-Type: request").replace(b"msgtype=response", b"")
    end = len(response) + request.index(b"\r\n\r\n") + 4 + int(kept * 1000)
    (tmp_path / "crawl.warc").write_bytes((response + request)[:end])
    with pytest.raises(InputError, match="the last record is truncated"):
        run([tmp_path / "crawl.warc"], tmp_path / "out")


def test_a_damaged_foreign_warc_is_refused_with_its_position(tmp_path):
    data, offsets = warc_bytes([(f"http://a.example/{n}", html_page(n).encode(), HTML_HEADERS) for n in "abc"])
    (tmp_path / "crawl.warc.gz").write_bytes(data[: offsets[1]] + b"garbage" + data[offsets[1] :])
    with pytest.raises(InputError, match=r"crawl\.warc\.gz: is damaged after byte 0 .*or omit it"):
        run([tmp_path / "crawl.warc.gz"], tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "records", "dropped"),
    [
        ("example.warc.gz", 1, {}),
        ("example.warc", 1, {}),
        ("example.arc", 1, {}),
        ("example.arc.gz", 1, {}),
        ("example-iana.org-chunked.warc", 1, {}),
        ("example-wget-bad-target-uri.warc.gz", 1, {}),
    ],
)
def test_real_warcs(shared_data, tmp_path, name, records, dropped):
    summary = run([shared_data / "warc" / "test" / "data" / name], tmp_path / "out")
    assert (summary.records_in, dict(summary.dropped)) == (records, dropped)
    [document] = rows(tmp_path / "out", "documents")
    assert re.search("domain|internet", document["text"], re.IGNORECASE)
    assert (document["url"], document["id"]) in (
        ("http://example.com/", id_of_url("http://example.com/")),
        ("http://www.iana.org/", id_of_url("http://www.iana.org/")),
    )


@pytest.mark.parametrize("name", ["example-bad.warc.gz.bad", "example-bad-non-chunked.warc.gz"])
def test_real_bad_warcs_are_refused(shared_data, tmp_path, name):
    bad = tmp_path / "bad.warc.gz"
    bad.write_bytes((shared_data / "warc" / "test" / "data" / name).read_bytes())
    with pytest.raises(InputError, match=r"bad\.warc\.gz: is damaged after byte 0 \(ERROR: non-chunked gzip file"):
        run([bad], tmp_path / "out")


def _two_fetches(tmp_path):
    robots = ("http://a.example/robots.txt", b"User-agent: *\nDisallow:\n", [("Content-Type", "text/plain")])
    for name in ("one", "two"):
        page = (f"http://a.example/{name}", html_page(name).encode(), HTML_HEADERS)
        folder = write_pages(tmp_path / name / "fetch", [[page]])
        data, _ = warc_bytes([page, robots])
        # The record of robots.txt has no row in pages-00000.parquet.
        write_stage(
            folder,
            "fetch",
            [
                *(file for file in manifest.read_manifest(str(folder)).files if file.name.endswith(".parquet")),
                shards.write_file(str(folder), "pages-00000.warc.gz", data),
            ],
            1,
        )
    return [tmp_path / "one" / "fetch", tmp_path / "two" / "fetch"]


def test_several_fetch_folders_stay_fetch_folders_and_name_their_warcs(tmp_path):
    folders = _two_fetches(tmp_path)
    summary = run(folders, tmp_path / "out")
    assert (summary.records_in, summary.records_out) == (2, 2)
    documents = rows(tmp_path / "out", "documents")
    assert [(row["url"], row["warc_file"]) for row in documents] == [
        ("http://a.example/one", "one/fetch/pages-00000.warc.gz"),
        ("http://a.example/two", "two/fetch/pages-00000.warc.gz"),
    ]
    assert run(str(tmp_path / "*" / "fetch"), tmp_path / "globbed").records_out == 2
    # A single folder has the same result as ever.
    run([folders[0], str(folders[0]) + "/"], tmp_path / "single")
    assert [row["warc_file"] for row in rows(tmp_path / "single", "documents")] == ["pages-00000.warc.gz"]


def test_robots_txt_of_a_warc_is_not_a_document(tmp_path):
    folders = _two_fetches(tmp_path)
    summary = run([f"{folder}/*.warc.gz" for folder in folders], tmp_path / "out")
    assert (summary.records_in, dict(summary.dropped)) == (4, {"robots_txt": 2})
    assert [row["warc_file"] for row in rows(tmp_path / "out", "documents")] == [
        "one/fetch/pages-00000.warc.gz",
        "two/fetch/pages-00000.warc.gz",
    ]


def test_a_page_to_which_a_robots_txt_was_redirected_is_a_document(tmp_path):
    """Sites redirect what they do not have to their home page; a robots.txt on another host is still none."""
    redirects = [
        (f"http://a.example/robots.txt?{number}", b"", [("Location", location)])
        for number, location in enumerate(["/", "https://www.a.example/robots.txt", "/wiki/robots.txt"])
    ]
    pages = [(f"http://a.example/{path}", html_page(path).encode(), HTML_HEADERS) for path in ("", "wiki/robots.txt")]
    robots = ("https://www.a.example/robots.txt", b"User-agent: *\n", [("Content-Type", "text/plain")])
    data, _ = warc_bytes([*redirects, *pages, robots])
    (tmp_path / "crawl.warc").write_bytes(gzip.decompress(data).replace(b"200 OK\r\nLocation", b"301 OK\r\nLocation"))
    summary = run([tmp_path / "crawl.warc"], tmp_path / "out")
    assert (summary.records_in, dict(summary.dropped)) == (6, {"robots_txt": 4})
    assert [row["url"] for row in rows(tmp_path / "out", "documents")] == [url for url, *_ in pages]


@pytest.mark.parametrize("compressed", [False, True])
def test_arc_files_are_read(tmp_path, compressed):
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + html_page("arc").encode()
    version = b"1 0 webtext\nURL IP-address Archive-date Content-type Archive-length\n"
    head = b"filedesc://x.arc 0.0.0.0 20140101000000 text/plain %d\n" % len(version)
    records = [
        head + version + b"\n",
        b"http://a.example/ 127.0.0.1 20140102030405 text/html %d\n" % len(page) + page + b"\n",
    ]
    path = tmp_path / ("x.arc.gz" if compressed else "x.arc")
    path.write_bytes(b"".join(map(gzip.compress, records) if compressed else records))
    run([path], tmp_path / "out")
    [document] = rows(tmp_path / "out", "documents")
    assert (document["url"], document["warc_file"]) == ("http://a.example/", path.name)
    assert document["fetched_at"].isoformat().startswith("2014-01-02T03:04:05")


@pytest.mark.parametrize("name", ["LICENSE", "good.parquet", "notes.txt.gz"])
def test_files_of_unknown_types_are_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"MIT License, and many words")
    with pytest.raises(InputError, match=rf"{name}: unknown file type; supported are \.html, .*\.warc, \.arc"):
        run([tmp_path / name], tmp_path / "out")
    with pytest.raises(InputError, match=rf"{name}: unknown file type"):
        run(str(tmp_path / "*"), tmp_path / "out")
    (tmp_path / "x.arc").write_bytes(b"one two three four 5\n")
    with pytest.raises(InputError, match=r"x\.arc: is not an ARC file"):
        run([tmp_path / "x.arc"], tmp_path / "out")


def write_html_files(folder, number, size_bytes=3000):
    folder.mkdir()
    for index in range(number):
        (folder / f"{index:04d}.html").write_text(html_page(str(index), sentences=3).ljust(size_bytes))
    return folder


def shard_rows(folder):
    return [pq.read_metadata(path).num_rows for path in sorted(folder.glob("documents-*.parquet"))]


def test_many_html_files_are_several_tasks_by_their_number_and_size(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.stages.extract.stage._BYTES_PER_FILE", 1000)
    monkeypatch.setattr("pipelines.stages.extract.stage._HTML_BYTES_PER_TASK", (32_000, 48_000))
    monkeypatch.setattr("pipelines.stages.extract.stage._HTML_TASKS", 6)
    saved = write_html_files(tmp_path / "saved", 60)
    for workers in (1, 3):
        run(saved, tmp_path / f"by-{workers}", workers=workers)
    one, three = (
        {path.name: path.read_bytes() for path in (tmp_path / f"by-{workers}").iterdir() if path.name != "timing.jsonl"}
        for workers in (1, 3)
    )
    assert one == three
    assert shard_rows(tmp_path / "by-3") == [10] * 6  # a sixth of the files
    assert [row["id"] for row in rows(tmp_path / "by-3", "documents")] == [f"{index:04d}.html" for index in range(60)]
    monkeypatch.setitem(EXTRACTORS, "fast", first_paragraph)
    for name, number, size_bytes, expected in (
        ("few", 11, 3000, [8, 3]),
        ("many", 100, 3000, [12] * 8 + [4]),
        ("large", 3, 100_000, [1, 1, 1]),
    ):
        run(write_html_files(tmp_path / name, number, size_bytes), tmp_path / f"{name}-out")
        assert shard_rows(tmp_path / f"{name}-out") == expected


def process_of_child(html, url, content="auto"):
    return Extracted(None, f"process {os.getpid()}")


def test_a_worker_keeps_its_child_from_task_to_task_until_the_end_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(EXTRACTORS, "fast", process_of_child)
    monkeypatch.setattr("pipelines.stages.extract.stage._HTML_BYTES_PER_TASK", (1, 1))
    saved = write_html_files(tmp_path / "saved", 3)
    pids = []
    for name in ("first", "second"):
        run(saved, tmp_path / name, keep_non_documents=True)
        [pid] = {int(row["text"].split()[1]) for row in rows(tmp_path / name, "documents")}
        pids.append(pid)
        assert shard_rows(tmp_path / name) == [1, 1, 1]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert pids[0] != pids[1]

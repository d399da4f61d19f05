from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import socket

import pyarrow.parquet as pq
import pytest
from extract_run import (
    FETCHED_AT,
    HTML_HEADERS,
    SENTENCE,
    html_page,
    link_row,
    page_row,
    rows,
    run,
    warc_bytes,
    write_corpus,
    write_pages,
    write_stage,
)
from quick_extractor import first_paragraph

from pipelines.algorithms.blocks.model import KINDS
from pipelines.core import manifest, shards
from pipelines.core.errors import ChangedRunError, DamagedShardError, InputError, WebtextError
from pipelines.core.records import DOCUMENT_SCHEMA, PAGE_SCHEMA
from pipelines.stages.extract.extractors import EXTRACTORS, Extracted
from pipelines.stages.extract.pages import id_of_url


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path)


def test_a_document_has_the_text_and_metadata_of_the_page(corpus):
    pages, links, tmp_path = corpus
    summary = run(pages, tmp_path / "out", links)
    assert (summary.records_in, summary.records_out, dict(summary.dropped)) == (4, 4, {})
    assert summary.extra["without_link"] == 0
    assert pq.read_schema(tmp_path / "out" / "documents-00000.parquet").equals(DOCUMENT_SCHEMA)
    document = rows(tmp_path / "out", "documents")[3]
    url = "http://example.org/1/1"
    assert document["id"] == hashlib.sha256(url.encode()).hexdigest()[:32]
    assert document["title"] == "River 1/1"
    assert document["text"].count("The river 1/1") == 24
    assert "Home" not in document["text"]
    assert document["words"] == len(document["text"].split())
    link = link_row(url, 14)
    assert {
        key: document[key] for key in ("url", "domain", "score", "submission_ids", "subreddits", "created_utc")
    } == {key: link[key] for key in ("url", "domain", "score", "submission_ids", "subreddits", "created_utc")}
    assert (document["fetched_at"], document["extractor"], document["language"]) == (FETCHED_AT, "fast", None)
    assert document["warc_file"] == "pages-00001.warc.gz"
    assert isinstance(document["warc_offset"], int)


def test_the_bytes_are_the_same_for_one_worker_and_three(corpus):
    pages, links, tmp_path = corpus
    run(pages, tmp_path / "one", links, workers=1)
    run(pages, tmp_path / "three", links, workers=3)
    one, three = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*-*.parquet")} for name in ("one", "three")
    )
    assert one == three
    assert len(one) == 4
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "three" / "manifest.json").read_bytes()


def test_every_drop_has_a_reason_and_the_sums_hold(tmp_path):
    page = html_page("x").encode()
    cases = {
        "ok": (page, HTML_HEADERS),
        "gzip": (gzip.compress(page), [*HTML_HEADERS, ("Content-Encoding", "gzip")]),
        "no-type": (page, []),
        "empty_text": (b"<html><body></body></html>", HTML_HEADERS),
        "too_short": (html_page("y", sentences=1).encode(), HTML_HEADERS),
        "other_language": (html_page("z", lang="de-AT").encode(), HTML_HEADERS),
        "not_html": (b"%PDF-1.7", [("Content-Type", "application/pdf")]),
        "undecodable": (bytes((i * 197 + (i >> 3) * 31) % 256 for i in range(9000)), HTML_HEADERS),
        "too_large": (gzip.compress(bytes(30 << 20)), [*HTML_HEADERS, ("Content-Encoding", "gzip")]),
    }
    pages = [(f"http://example.org/{name}", data, headers) for name, (data, headers) in cases.items()]
    write_pages(tmp_path / "fetch", [pages])
    summary = run(tmp_path / "fetch", tmp_path / "out", min_words=60, language="EN")
    reasons = {row["url"].rsplit("/", 1)[1]: row["reason"] for row in rows(tmp_path / "out", "dropped")}
    assert reasons == {name: name for name in cases if name not in ("ok", "gzip", "no-type")}
    assert summary.records_in == len(cases)
    assert summary.records_out + sum(summary.dropped.values()) == summary.records_in
    texts = [row["text"] for row in rows(tmp_path / "out", "documents")]
    assert len(texts) == 3
    assert len(set(texts)) == 1


def test_plain_text_is_kept_and_the_first_content_type_counts(tmp_path):
    page, words = html_page("x").encode(), "Tom & Jerry <3\r\nna\u00efve\n"
    cases = {
        "latin": (words.encode("latin-1"), "text/plain; charset=iso-8859-1"),
        "packed": (gzip.compress(words.encode()), "Text/Markdown"),
        "html": (page, "text/plain"),
        "twice": (page, "text/html, text/html; charset=utf-8"),
        "both": (words.encode(), "text/plain,text/html"),
        "other": (words.encode(), "text/css"),
    }
    packed = {"packed": [("Content-Encoding", "gzip")]}
    pages = [
        (f"http://example.org/{name}", data, [("Content-Type", kind), *packed.get(name, [])])
        for name, (data, kind) in cases.items()
    ]
    summary = run(write_pages(tmp_path / "fetch", [pages]), tmp_path / "out")
    assert (summary.records_in, dict(summary.dropped)) == (6, {"not_html": 1})
    documents = {row["url"].rsplit("/", 1)[1]: row for row in rows(tmp_path / "out", "documents")}
    for name in ("latin", "packed", "both"):
        assert (documents[name]["text"], documents[name]["extractor"]) == ("Tom & Jerry <3\nna\u00efve", "plain")
    assert documents["html"]["text"] == documents["twice"]["text"]
    assert documents["html"]["extractor"] == documents["twice"]["extractor"] == "fast"


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
        places = {"a": offsets[0], "inside": offsets[0] + 7, "cut": offsets[2], "past": len(data) + 100}
        for place, offset in places.items():
            shard.writer.write(page_row(url + place, "ok", 1, name, offset))
    write_stage(folder, "fetch", [shard.entry, shards.write_file(str(folder), name, cut)], 4)
    summary = run(folder, tmp_path / "out")
    assert (summary.records_in, summary.records_out, dict(summary.dropped)) == (4, 1, {"damaged_record": 3})


def test_a_damaged_or_missing_warc_is_refused_by_name(corpus):
    pages, links, tmp_path = corpus
    warc = pages / "pages-00001.warc.gz"
    warc.write_bytes(warc.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedShardError, match=r"pages-00001\.warc\.gz: is damaged .* re-run `webtext fetch`"):
        run(pages, tmp_path / "out", links)


def test_pages_refer_only_to_warcs_in_their_folder(tmp_path):
    folder = tmp_path / "fetch"
    with shards.write_shard(str(folder), "pages-00000.parquet", PAGE_SCHEMA) as shard:
        shard.writer.write(page_row("http://example.org/", "ok", 1, "../other.warc.gz", 0))
    write_stage(folder, "fetch", [shard.entry], 1)
    with pytest.raises(InputError, match=r"names \.\./other\.warc\.gz, which the manifest of .* lacks"):
        run(folder, tmp_path / "out")


def test_another_stages_folder_is_refused(corpus):
    pages, links, tmp_path = corpus
    with pytest.raises(InputError, match="is the output of scrape, expected fetch"):
        run(links, tmp_path / "out")
    with pytest.raises(InputError, match="is the output of fetch, expected scrape"):
        run(pages, tmp_path / "out", pages)


def test_changed_inputs_are_refused_and_a_rerun_only_fills_gaps(corpus, monkeypatch):
    pages, links, tmp_path = corpus
    run(pages, tmp_path / "out", links)
    with pytest.raises(ChangedRunError, match="min_words was 0, is now 5"):
        run(pages, tmp_path / "out", links, min_words=5)
    assert manifest.read_manifest(str(tmp_path / "out")).identity.inputs["extractor"].startswith("selectolax 1.")
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.stages.extract.stage.extractor_version", lambda name: "trafilatura 9")
        with pytest.raises(ChangedRunError, match="its input extractor has changed"):
            run(pages, tmp_path / "out", links)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    kept = (tmp_path / "out" / "documents-00000.parquet").stat().st_mtime_ns
    (tmp_path / "out" / "documents-00001.parquet").unlink()
    run(pages, tmp_path / "out", links)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert (tmp_path / "out" / "documents-00000.parquet").stat().st_mtime_ns == kept


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


def test_the_fast_extractor_keeps_the_article_and_its_model_is_part_of_the_result(tmp_path):
    (tmp_path / "page.html").write_text(html_page("Wye", sentences=8))
    run(tmp_path / "page.html", tmp_path / "out", extractor="fast")
    [document] = rows(tmp_path / "out", "documents")
    paragraphs = document["text"].split("\n\n")
    assert len([text for text in paragraphs if text.startswith("The river Wye")]) == 8
    assert "Home" not in document["text"]
    assert (document["title"], document["extractor"]) == ("River Wye", "fast")
    version = manifest.read_manifest(str(tmp_path / "out")).identity.inputs["extractor"]
    assert re.fullmatch(r"selectolax \d[\d.]*, model [0-9a-f]{16}, ftfy \d[\d.]*", version)
    assert document["page_type"] in KINDS
    assert 0.5 < document["confidence"] <= 1


def test_the_body_of_an_article_has_no_caption(tmp_path):
    caption = "<figure><img src=a.jpg><figcaption>The river in spring. Photo: A. Person</figcaption></figure>"
    (tmp_path / "page.html").write_text(html_page("Wye", sentences=12).replace("</h1>", f"</h1>{caption}"))
    for content in ("main", "article"):
        run(tmp_path / "page.html", tmp_path / content, content=content)
    [article] = rows(tmp_path / "article", "documents")
    assert article["text"].count("The river Wye") == 24
    assert "Photo" not in article["text"]
    with pytest.raises(ChangedRunError, match='content was "main", is now "article"'):
        run(tmp_path / "page.html", tmp_path / "main", content="article")


def test_a_page_with_only_a_description_is_no_document(tmp_path):
    description = "Rugs for every room of the house, delivered to your door in a week. " * 2
    head = f'<html><head><title>Rugs</title><meta name="description" content="{description}"></head>'
    (tmp_path / "shell.html").write_text(f"{head}<body><div id=root></div></body></html>")
    (tmp_path / "text.html").write_text(html_page("Wye", sentences=8).replace("<html>", head))
    summary = run(tmp_path, tmp_path / "out")
    assert (summary.records_out, sum(summary.dropped.values())) == (1, 1)
    assert [row["id"] for row in rows(tmp_path / "out", "dropped")] == ["shell.html"]


def test_text_that_was_decoded_by_a_wrong_encoding_is_repaired(tmp_path):
    # The second one could be meant: a page about encodings.
    sentences = ("It\u2019s the river\u2014here", "Das schöne Tal")
    wrong = (sentences[0].encode().decode("latin-1"), sentences[1].encode().decode("cp1252"))
    page = html_page("Wye").replace(
        "<h1>", "<p>" + "</p><p>".join(f"{text}. {SENTENCE}" for text in wrong) + "</p><h1>"
    )
    (tmp_path / "page.html").write_text('<meta name="author" content="Anna SchÃ¶n">' + page)
    for fix_text, expected in ((False, (sentences[0], wrong[1])), (True, sentences)):
        run(tmp_path / "page.html", tmp_path / f"out-{fix_text}", extractor="fast", fix_text=fix_text)
        [document] = rows(tmp_path / f"out-{fix_text}", "documents")
        assert [text in document["text"] for text in expected] == [True, True]
        assert document["author"] == ("Anna Schön" if fix_text else "Anna SchÃ¶n")


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


@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_a_warc_that_ends_within_a_request_is_refused(tmp_path, kept):
    data, _ = warc_bytes([("http://a.example/", html_page("a").encode(), HTML_HEADERS)])
    response = gzip.decompress(data)
    request = response.replace(b"WARC-Type: response", b"WARC-Type: request").replace(b"msgtype=response", b"")
    end = len(response) + request.index(b"\r\n\r\n") + 4 + int(kept * 1000)
    (tmp_path / "crawl.warc").write_bytes((response + request)[:end])
    with pytest.raises(InputError, match="the last record is truncated"):
        run([tmp_path / "crawl.warc"], tmp_path / "out")


def test_pages_with_the_url_of_another_page_are_counted(tmp_path):
    records = [("http://a.example/", html_page(name).encode(), HTML_HEADERS) for name in "abc"]
    (tmp_path / "crawl.warc.gz").write_bytes(warc_bytes(records)[0])
    summary = run([tmp_path / "crawl.warc.gz"], tmp_path / "out")
    assert (summary.records_out, summary.extra["duplicate_ids"]) == (3, 2)


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
    assert "domain" in document["text"].lower()
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


def test_an_empty_result_is_an_error_with_the_reasons(tmp_path):
    write_pages(tmp_path / "fetch", [[("http://a.example/", b"<html></html>", HTML_HEADERS)]])
    with pytest.raises(WebtextError, match=r"all 1 records were dropped \(empty_text 1\)"):
        run(tmp_path / "fetch", tmp_path / "out")


def test_the_network_is_not_used(corpus, monkeypatch):
    pages, links, tmp_path = corpus

    def refuse(*_arguments, **_named):
        raise AssertionError("extract opened a network connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert run(pages, tmp_path / "out", links).records_out == 4


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

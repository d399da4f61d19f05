"""What extract writes: documents and their columns, drops and their reasons, the same bytes again."""

from __future__ import annotations

import gzip
import hashlib
import re

import pyarrow.parquet as pq
import pytest
from extract_run import (
    FETCHED_AT,
    HTML_HEADERS,
    SENTENCE,
    html_page,
    link_row,
    rows,
    run,
    write_corpus,
    write_pages,
)

from pipelines.algorithms.blocks.model import KINDS
from pipelines.engine import manifest
from pipelines.errors import ChangedRunError, InputError, UsageError, WebtextError
from pipelines.records.schemas import DOCUMENT_SCHEMA

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path)


def test_a_document_has_the_text_and_metadata_of_the_page(corpus):
    pages, links, tmp_path = corpus
    summary = run(pages, tmp_path / "out", links)
    assert (summary.records_in, summary.records_out, dict(summary.dropped)) == (4, 4, {})
    assert summary.extra["pages_without_link"] == 0
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
    summary = run(tmp_path / "fetch", tmp_path / "out", min_words=60, declared_language="EN")
    dropped = {row["url"].rsplit("/", 1)[1]: row for row in rows(tmp_path / "out", "dropped")}
    assert dropped["empty_text"]["detail"] == "no block is kept: the page is empty"
    reasons = {name: row["reason"] for name, row in dropped.items()}
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


def test_changed_inputs_are_refused_and_a_rerun_only_fills_gaps(corpus, monkeypatch):
    pages, links, tmp_path = corpus
    run(pages, tmp_path / "out", links)
    with pytest.raises(ChangedRunError, match="min_words was 0, is now 5"):
        run(pages, tmp_path / "out", links, min_words=5)
    assert manifest.read_manifest(str(tmp_path / "out")).identity.inputs["extractor"].startswith("selectolax 1.")
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.stages.extract.stage.extractor_version", lambda name: "trafilatura 9")
        with pytest.raises(ChangedRunError, match="its input 'extractor' has changed"):
            run(pages, tmp_path / "out", links)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    kept = (tmp_path / "out" / "documents-00000.parquet").stat().st_mtime_ns
    (tmp_path / "out" / "documents-00001.parquet").unlink()
    run(pages, tmp_path / "out", links)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert (tmp_path / "out" / "documents-00000.parquet").stat().st_mtime_ns == kept


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


@pytest.mark.parametrize("language", ["english", "xx", "e"])
def test_an_unknown_language_is_refused_at_once(tmp_path, language):
    with pytest.raises(UsageError, match=f"--declared-language {language}: unknown language; use a code"):
        run(tmp_path / "fetch", tmp_path / "out", declared_language=language)


@pytest.mark.parametrize("language", ["DE", "yi", "fil"])
def test_a_language_is_named_by_its_code(tmp_path, language):
    with pytest.raises(InputError, match="no such file or folder"):
        run(tmp_path / "fetch", tmp_path / "out", declared_language=language)


def test_an_empty_result_is_an_error_with_the_reasons(tmp_path):
    write_pages(tmp_path / "fetch", [[("http://a.example/", b"<html></html>", HTML_HEADERS)]])
    with pytest.raises(WebtextError, match=r"the only record was dropped \(empty_text 1\)"):
        run(tmp_path / "fetch", tmp_path / "out")

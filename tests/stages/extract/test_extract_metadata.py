"""The metadata of pages: which source counts, and what hostile pages may not do."""

from __future__ import annotations

import json

import pytest
from extract_run import rows, run
from selectolax.lexbor import LexborHTMLParser

from pipelines.algorithms.web.metadata import Metadata, read_declared, read_metadata
from pipelines.stages.extract.child import RawPage, extract_text
from pipelines.stages.extract.extractors import EXTRACTORS, Extracted

pytestmark = pytest.mark.usefixtures("warm_processes")

_TEXT = (
    "<p>The river rose again in the night, and the town went to bed late.</p>"
    "<p>Nobody had seen so much water since the old bridge was carried away.</p>"
    "<p>Some families moved their cattle to the hills before the morning came.</p>"
    "<p>By noon the rain had stopped, but the fields were still under water.</p>"
    "<p>The mayor thanked everyone who had helped to fill and carry the sandbags.</p>"
)


def read(head: str = "", body: str = "", url: str | None = None) -> Metadata:
    return read_page(f"<html><head>{head}</head><body>{body}{_TEXT}</body></html>", url)


def read_page(html: str, url: str | None = None) -> Metadata:
    return read_metadata(read_declared(LexborHTMLParser(html)), url)


def json_ld(value: object) -> str:
    return f'<script type="application/ld+json">{json.dumps(value)}</script>'


def test_a_page_that_declares_nothing_has_nothing():
    assert read() == Metadata()
    assert read_page("", "http://[") == Metadata()


def test_declared_metadata():
    article = {
        "@context": "https://schema.org",
        "@type": "NewsArticle",
        "headline": "River &amp; town",
        "datePublished": "2021-03-04T08:00:00+01:00",
        "author": [{"@type": "Person", "name": "Ada Lovelace"}, {"@id": "#babbage"}],
        "publisher": {"@type": "Organization", "name": "The Mirror"},
    }
    person = {"@type": "Person", "@id": "#babbage", "name": "Charles Babbage"}
    assert read(json_ld({"@graph": [article, person]})) == Metadata(
        "River & town", "Ada Lovelace; Charles Babbage", "2021-03-04", "The Mirror", "NewsArticle"
    )
    assert read(
        '<meta property="og:title" content="River"><meta property="og:site_name" content="The Mirror">'
        '<meta property="og:type" content="article"><meta name="author" content="Ada Lovelace">'
        '<meta property="article:published_time" content="2021-03-04T08:00:00Z">'
    ) == Metadata("River", "Ada Lovelace", "2021-03-04", "The Mirror", "article")


@pytest.mark.parametrize(
    ("head", "body", "title"),
    [
        ("<title>River rises | The Mirror</title>", "", "River rises"),
        ("<title>The Mirror - River rises</title>", "", "River rises"),
        ("<title>River rises - again</title>", "", "River rises - again"),
        (
            "<title>River rises, town sleeps | News</title>",
            "<h1>River rises, town sleeps</h1>",
            "River rises, town sleeps",
        ),
        ('<meta property="og:title" content="River rises">', "<h1>Floods <span>River rises</span></h1>", "River rises"),
        ("<title>Breaking</title>", "<h1>River rises</h1>", "River rises"),
        ("<title>Something else</title>", "<h1>The Mirror</h1>", "Something else"),
        ("<title>Mirror of today</title>", "<h1>River rises</h1><h1>River  rises</h1>", "River rises"),
    ],
)
def test_the_title_is_the_heading_that_the_page_declares(head, body, title):
    site = '<meta property="og:site_name" content="The Mirror">'
    assert read(site + head, body, "https://www.mirror.example/x").title == title


@pytest.mark.parametrize(
    ("body", "author"),
    [
        ('<a rel="author" href="/ada">Ada</a>', "Ada"),
        ('<span itemprop="author">By Ada Lovelace</span>', "Ada Lovelace"),
        ('<a itemprop="url" rel="bookmark">Ada Lovelace</a>', None),
        (
            '<h1>River</h1><div class="post-byline">Von Ada Lovelace und Anna Seghers</div>',
            "Ada Lovelace; Anna Seghers",
        ),
        ("<h1>River</h1><p><em>By Ada Lovelace</em> <b>Thursday</b></p>", "Ada Lovelace"),
        ('<h1>River</h1><div class="author-box">All articles of our staff</div>', None),
        ('<meta name="author" content="admin">', None),
        ('<meta name="author" content="The Mirror">', None),
    ],
)
def test_authors_are_people_named_in_bylines(body, author):
    assert read('<meta property="og:site_name" content="The Mirror">', body).author == author


@pytest.mark.parametrize(
    ("head", "body", "url", "date"),
    [
        ("", "", "https://example.org/2021/03/04/river", "2021-03-04"),
        ('<meta name="date" content="2022-01-01">', "", "https://example.org/2021/03/04/river", "2021-03-04"),
        ("", '<time datetime="2021-03-04T10:00">yesterday</time>', None, "2021-03-04"),
        ("", "<h1>River</h1><p>4. März 2021</p>", None, "2021-03-04"),
        ("", "<div><p>March 4, 2021</p><h1>River</h1></div>", None, "2021-03-04"),
        # Far from the heading, a line of its own before a date within a sentence.
        ("", f"<h1>River</h1>{_TEXT * 5}<p>{'word ' * 20} 5 April 2022</p><i>4 March 2021</i>", None, "2021-03-04"),
        ("", f"<h1>River</h1>{_TEXT * 5}<p>{'word ' * 20} 5 April 2022</p>", None, "2022-04-05"),
        ('<meta property="article:modified_time" content="2021-03-04">', "", None, "2021-03-04"),
        ('<meta property="article:published_time" content="2021-99-99">', "<h1>R</h1>", None, None),
        (json_ld({"@type": "Article", "datePublished": {"@value": "2021-03-04"}}), "<h1>R</h1>", None, None),
    ],
)
def test_dates_of_publication(head, body, url, date):
    assert read(head, body, url).published == date


def test_the_site_is_named_by_the_title_and_the_domain():
    assert (
        read("<title>River | Daily Mirror</title>", "", "https://www.daily-mirror.example/x").site_name
        == "Daily Mirror"
    )


def test_hostile_metadata():
    assert read(f'<meta name="author" content="{"Ada " * 250_000}"><title>{"x" * 1_000_000}</title>') == Metadata()
    assert read(json_ld({"@type": ["Article", None], "author": {"name": {"name": "x"}}, "headline": 5})) == Metadata(
        declared_type="Article"
    )
    deep = '{"author":' * 10_000 + "1" + "}" * 10_000
    assert read(f'<script type="application/ld+json">{deep}</script>') == Metadata()
    for attributes in ("rel", "itemprop", "property content", "name='author' content", "class='author'"):
        assert (
            read(f"<meta {attributes}><a {attributes}></a><h1 {attributes}></h1><time {attributes}></time>")
            == Metadata()
        )
    assert read("", "<div>" * 250 + "<h1>River</h1>").title == "River"


def test_lone_surrogates_and_nul_do_not_reach_a_document():
    script = '<script type="application/ld+json">{"@type":"Article","author":"Ada \\ud800Lovelace\\u0000"}</script>'
    page = RawPage(f"<title>River&#xD800;</title>{script}{_TEXT}".encode(), None, None)
    text = extract_text(EXTRACTORS["fast"], page)
    assert text.metadata.author == "Ada Lovelace"
    assert all((value or "").isprintable() for value in (text.title, text.metadata.author))


def test_what_the_extractor_read_is_used():
    declared = read_declared(LexborHTMLParser("<title>River of the tree</title>"))
    text = extract_text(
        lambda html, url: Extracted("River", "text", declared), RawPage(b"<title>Other</title>", None, None)
    )
    assert text.title == "River of the tree"


@pytest.mark.parametrize("extractor", ["trafilatura", "fast"])
def test_documents_have_the_metadata_of_their_page(tmp_path, extractor):
    head = '<meta property="og:type" content="article"><meta name="author" content="Ada Lovelace">'
    (tmp_path / "a.html").write_text(
        f"<html><head>{head}</head><body><h1>River</h1><p>4.3.2021</p>{_TEXT}</body></html>"
    )
    (tmp_path / "b.html").write_text(f"<html><body>{_TEXT}</body></html>")
    run(str(tmp_path / "*.html"), tmp_path / "out", extractor=extractor)
    names = ("title", "author", "published", "site_name", "declared_type")
    with_metadata, without = ([document[name] for name in names] for document in rows(tmp_path / "out", "documents"))
    assert with_metadata == ["River", "Ada Lovelace", "2021-03-04", None, "article"]
    assert without[1:] == [None] * 4


_CANONICAL = '<link rel="canonical" href="{}">'
_OG = '<meta property="og:url" content="{}">'


@pytest.mark.parametrize(
    ("head", "url", "source"),
    [
        (_CANONICAL.format("https://Example.com/a?utm_source=x&b=1#c"), "https://example.com/a?b=1", "canonical"),
        (_OG.format("http://example.com/og"), "http://example.com/og", "og"),
        (
            _OG.format("http://example.com/og") + _CANONICAL.format("http://example.com/"),
            "http://example.com/",
            "canonical",
        ),
        ("<link href=' http://example.com/a ' rel='nofollow CANONICAL'>", "http://example.com/a", "canonical"),
        ("<link rel=canonical href=http://example.com/a>", "http://example.com/a", "canonical"),
        (_CANONICAL.format("http://example.com/a?x=1&amp;y=2"), "http://example.com/a?x=1&y=2", "canonical"),
        (_CANONICAL.format("http://example.com/a") * 2, "http://example.com/a", "canonical"),
        (
            _CANONICAL.format("http://example.com/a") + _CANONICAL.format("http://example.com/b"),
            None,
            None,
        ),
        (
            _CANONICAL.format("http://a.example/")
            + _CANONICAL.format("http://b.example/")
            + _OG.format("http://c.example/"),
            "http://c.example/",
            "og",
        ),
        (_CANONICAL.format("/a") + _OG.format("http://example.com/og"), "http://example.com/og", "og"),
        ('<base href="http://example.com/x/">' + _CANONICAL.format("../a"), "http://example.com/a", "canonical"),
        ('<base href="/x/">' + _CANONICAL.format("a"), None, None),
        ('<base href="http://example.com/x/">', None, None),
        ('<base href="http://example.com/x/">' + _CANONICAL.format("") + _OG.format("#"), None, None),
        ('<link rel="alternate" href="http://example.com/feed">', None, None),
        ("<script>'" + _CANONICAL.format("http://example.com/a") + "'</script>", None, None),
        ("<!-- " + _CANONICAL.format("http://example.com/a") + " -->", None, None),
        *(
            (_CANONICAL.format(url), None, None)
            for url in (
                "//example.com/a",
                "example.com/a",
                "mailto:a@example.com",
                "file:///a.html",
                "http://",
                "http://[",
            )
        ),
    ],
)
def test_the_declared_url(head, url, source):
    assert extract_text(EXTRACTORS["fast"], RawPage(f"<html><head>{head}".encode(), None, None)).declared_url == (
        url,
        source,
    )


def test_the_url_of_a_page_counts_more_than_the_declared_one():
    page = f"<html><head>{_CANONICAL.format('http://other.example/')}</head><body>{_TEXT}".encode()
    assert extract_text(EXTRACTORS["fast"], RawPage(page, None, "http://a.example/")).declared_url == (
        "http://a.example/",
        None,
    )

"""300 damaged and adversarial pages: none stops the stage, each has an outcome, and memory stays under the limit."""

from __future__ import annotations

import codecs
import gzip
import json
import random
import resource
import sys
from collections.abc import Iterator

import pytest

from tests.stages.extract_run import html_page, rows, run

pytestmark = pytest.mark.usefixtures("warm_processes")

SEED = 14
MEMORY_MB = 1024
# Outcomes of pages that are small: whether they have text depends on the damage.
QUICK = {"document", "empty_text", "nearly_empty", "undecodable", "not_html"}
# Those of a page that may take too long, or too much memory, on any machine.
HEAVY = {*QUICK, "timeout", "out_of_memory", "crashed"}

REAL = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A page &amp; its title</title>'
    '<meta name="description" content="What the page says about itself, at some length."><style>p { }</style>'
    '<script type="application/ld+json">{"@type": "Article", "articleBody": "' + "The body of the article. " * 4 + '"}'
    '</script></head><body class="post-1 single"><nav><ul><li><a href="/">Home</a><li><a href="/b">B</a></ul></nav>'
    "<article><h1>A page</h1><p>Naïve “quotes”, 日本語 and <b>bold</b> text.</p><pre>  code\n    more</pre>"
    '<table><tr><td>1<td>2</table><img src="a.png" alt="x"><ul style="display: none"><li>hidden</ul><p>'
    + "A sentence that is long enough. "
    * 9
    + "</p><!-- a comment --><noscript><iframe src=x></noscript></article><script>if (a < b) {}</script><footer>end"
    "</footer></body></html>"
)
TAGS = (
    "a b div p ul li table tr td th select option script style svg math template noscript iframe textarea title html "
    "head body frameset pre button form h1 ruby rt br img plaintext xmp font nobr foreignObject annotation-xml dialog"
).split()


def small_pages(random_: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield 236 pages of a few kB: truncated, with other bytes, parts of several encodings, and tags in any order."""
    data = REAL.encode()
    for number in range(70):
        yield f"truncated-{number}", data[: random_.randrange(1, len(data))]
    for number in range(70):
        changed = bytearray(data)
        for _ in range(random_.randrange(1, 60)):
            changed[random_.randrange(len(data))] = random_.choice(b"<>\"'&/!-=\0\x80\xe3\xff ;#]")
        yield f"changed-{number}", bytes(changed)
    for number in range(30):
        parts = [random_.choice(("utf-8", "cp1252", "cp932", "utf-16", "koi8-r", "utf-7")) for _ in range(3)]
        yield f"encodings-{number}", b"".join(REAL.encode(part, "replace") for part in parts)
    for number in range(66):
        tags = (random_.choice(("<{}>", "</{}>", "<{} id=x class='a b'>", "<{}/>x")) for _ in range(400))
        yield f"tags-{number}", "".join(tag.format(random_.choice(TAGS)) for tag in tags).encode()


def odd_pages() -> Iterator[tuple[str, str | bytes]]:
    """Yield 33 pages of at most some 100 kB, each odd in another way."""
    yield "empty", ""
    yield "white", " \n\t" * 1000
    yield "marks", codecs.BOM_UTF8 + codecs.BOM_UTF16_LE
    yield "mark", codecs.BOM_UTF16_BE
    yield "nulls", "\0" * 100_000
    yield "nulls-in-tags", REAL.replace("p>", "p\0>")
    yield "binary", bytes(random.Random(1).randbytes(50_000))
    yield "image", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 100
    yield "compressed", gzip.compress(REAL.encode() * 9)
    yield "scripts", "<script>var a = '</p>';</script>" * 2000
    yield "styles", "<style>p { color: red }</style>" * 2000
    yield "open-script", REAL.replace("</script>", "")
    yield "open-comment", REAL.replace("<h1>", "<!-- <h1>").replace("-->", "")
    yield "open-comments", "<!--" * 20_000
    yield "open-attribute", REAL.replace('single"', "single")
    yield "open-tags", "<" * 50_000
    yield "open-end-tags", "</" * 50_000
    yield "signs-in-script", f"<script><!--{'<' * 200_000}</script>{REAL}"
    yield "signs-in-json", f'<script type="application/ld+json">{"</" * 100_000}</script>{REAL}'
    yield "open-title", REAL.replace("</title>", "")
    yield "long-title", f"<title>{'title ' * 20_000}</title><p>text"
    yield "frames", '<frameset cols="1,2"><frame src="a"><frame src="b"><noframes><p>frames</noframes></frameset>'
    yield "xml", '<?xml version="1.0"?><rss version="2.0"><channel><item><title>An item</title></item></channel></rss>'
    yield "doctypes", '<!DOCTYPE html [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><p>&b;' * 1000
    yield "characters", "<p>&#xD800;&#0;&#x110000;&#99999999999999;&#x80;&bogus;&amp&notin;&#;" * 1000
    yield "joiners", "<p>" + "a\u200b\u200d\u202e\u2066\ufeff\u00ad" * 5000
    yield "accents", "<p>a" + "\u0301" * 50_000
    yield "plain", "<p>before<plaintext>" + REAL
    yield "cdata", "<p><![CDATA[text]]></p><svg><![CDATA[text]]></svg>" * 500
    yield "conditions", "<!--[if lt IE 9]><p>old<![endif]--><![if !IE]><p>new<![endif]>" * 500
    yield "noscripts", "<noscript>" * 3000 + "<p>text"
    yield "deep-json", f'<script type="application/ld+json">{"[" * 50_000}</script><p>text'
    yield "wide-json", f'<script type="application/ld+json">{json.dumps([{"text": "<" * 9000}] * 9)}</script><p>text'


def heavy_pages() -> Iterator[tuple[str, str | bytes]]:
    """Yield 29 pages of up to 50 MB, most of which would take minutes without a limit."""
    for tag in ("div", "b", "span", "blockquote", "section", "table", "svg", "template", "i id=x", "font size=1"):
        yield f"nested-{tag}", f"<{tag}>" * 100_000 + "text"
    yield "nested-and-closed", "<div>" * 100_000 + "text" + "</div>" * 100_000
    yield "nested-lists", "<ul><li>x" * 50_000
    yield "nested-tables", "<table><tr><td>" * 33_000
    yield "nested-fonts", "".join(f"<font size={number}>x" for number in range(100_000))
    yield "end-tags", "<p>text" + "</div></b>" * 50_000
    yield "paragraphs", "<p>x" * 20_000
    yield "cells", "<table>" + f"<tr>{'<td>1' * 100}" * 200
    yield "misplaced", "<table>" + "<b>x<table>" * 5000
    yield "attributes", f"<p {' '.join(f'a{number}=1' for number in range(100_000))}>text"
    yield "equal-attributes", f"<p {'class=a ' * 100_000}>text"
    yield "names", f'<p class="{"a-b " * 500_000}">text'
    yield "data", f'<img src="data:image/png;base64,{"A" * 5_000_000}"><p>text'
    yield "style", f'<p style="{"color:red;" * 200_000}">text'
    yield "entities", "<p>" + "&amp;" * 1_000_000
    yield "text", "<p>" + "x" * 10_000_000
    yield "words", "<p>" + "some words " * 500_000
    yield "long-script", f"<script>{'a < b;' * 1_000_000}</script><p>text"
    yield "null-text", "<p>" + "\0" * 2_000_000
    yield "too-large", b"<p>" + b"x" * 50_000_000


def outcomes_of(folder, output, pages) -> dict[str, str]:
    """Return the outcome of each page: document, or the reason of the drop."""
    folder.mkdir()
    for name, page in pages:
        (folder / f"{name}.html").write_bytes(page.encode() if isinstance(page, str) else page)
    summary = run(folder, output, extractor="fast", timeout=3, memory_limit_mib=MEMORY_MB)
    outcomes = {str(row["id"]).removesuffix(".html"): "document" for row in rows(output, "documents")}
    outcomes |= {str(row["id"]).removesuffix(".html"): str(row["reason"]) for row in rows(output, "dropped")}
    assert summary.records_in == len(outcomes)
    return outcomes


@pytest.mark.skipif(sys.platform == "darwin", reason="has no limit of memory for a process")
def test_300_damaged_and_adversarial_pages_each_have_an_outcome(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    quick = [*small_pages(random.Random(SEED)), *odd_pages()]
    heavy = [*heavy_pages()]
    good = [(f"good-{number}", html_page(f"good-{number}")) for number in range(300 - len(quick) - len(heavy))]
    outcomes = outcomes_of(tmp_path / "pages", tmp_path / "out", [*quick, *heavy, *good])
    assert len(outcomes) == 300
    assert {name: outcomes[name] for name, _ in quick if outcomes[name] not in QUICK} == {
        "compressed": "damaged_record"
    }
    assert {name: outcomes[name] for name, _ in heavy if outcomes[name] not in HEAVY} == {"too-large": "too_large"}
    assert {outcomes[name] for name, _ in good} <= {"document"}
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, MEMORY_MB << 10)

"""Blocks of pages: their text and elements, the choice among them, and the text that is written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pipelines.algorithms.blocks import features as feat
from pipelines.algorithms.blocks import markup
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.markup import NAMES, fnv_hash
from pipelines.algorithms.blocks.model import select_blocks
from pipelines.algorithms.blocks.page import parse_page
from pipelines.algorithms.blocks.rendering import render_blocks
from pipelines.algorithms.blocks.text_features import values_table

_NO_VALUES = values_table(np.zeros(0, np.uint32), np.zeros(0, np.float32))


def _texts(body: str) -> list[str]:
    segments = parse_page(f"<html><body>{body}</body></html>").segments
    text = segments.text.tobytes()
    return [text[start:end].decode() for start, end in segments.blocks[:, [seg.START, seg.END]].tolist()]


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ("<p>One  <b>two</b>\n three</p>four", ["One two three", "four"]),
        ("<ul><li>a<li>b</ul><table><tr><td>1<td>2</table>", ["a", "b", "1", "2"]),
        ("a<br>b<br><br>c", ["a\nb", "c"]),
        ("<pre>x = 1\n  y = 2</pre>", ["x = 1\n  y = 2"]),
        ("a &amp; b &lt;c&gt; d&nbsp;e &quot;f&quot;", ['a & b <c> d e "f"']),
        ("<script>if (a < b) '</p>'</script><style>p{}</style><!-- <p>no</p> --><p>yes", ["yes"]),
        (
            "<a>one</a><a>two</a> <span>Synopsis</span><span>An award</span> <b>w</b>ord",
            ["one two Synopsis An award word"],
        ),
        ("<select><option>no</select><svg><text>no</text></svg><noscript><p>kept</p></noscript>", ["kept"]),
        ("<noscript><iframe src=x></noscript><p>after the frame", ["after the frame"]),
        ("<pre>    a\n      b\n\n\tc</pre>", ["    a\n      b\n\n\tc"]),
        ("<pre>a<br><br>  <b>b</b></pre>", ["a\n\n  b"]),
        ("<pre><div>a</div><div></div><div>  b</div></pre>", ["a\n\n  b"]),
        ("<pre><ol><li>a<li>  b</ol></pre><p>c", ["a\n  b", "c"]),
        ("<pre><span class=lineno>1</span>  x\n<span class='linenos'>2</span>  y</pre>", ["  x\n  y"]),
        ("<table><tr><td><pre>9\n10\n11\n</pre><td><pre>a\n  b\nc</pre></table>", ["a\n  b\nc"]),
        ("<pre>7</pre><pre>1 2 3</pre><pre>3\n2</pre>", ["7", "1 2 3", "3\n2"]),
        ("<code style='display:block; white-space: pre'>a\n  b</code> <p>c\n  d", ["a\n  b", "c d"]),
        ("<p>one<span hidden>no</span> two <i style='display: none'><b>no</b><br><br></i>three", ["one two three"]),
        ("<div hidden><p>a tab that a script shows</div>", ["a tab that a script shows"]),
        (
            "super<wbr>Cali soft\u00adhyphen zero\u200bwidth \u202bright\ufeff a&zwnj;b",
            ["superCali softhyphen zerowidth right ab"],
        ),
        ("می\u200cخواهم 👨\u200d👩\u200d👧", ["می\u200cخواهم 👨\u200d👩\u200d👧"]),
        ("a&#1;b&#127;c \ue001 d", ["a b c d"]),
        ("Home<svg><text>no</text></svg>About <img>, x<img>y", ["Home About , x y"]),
        ("<b>v5.2</b><span>Driver</span> H<sub>2</sub>O mc<sup>2</sup>", ["v5.2 Driver H2O mc2"]),
        ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字</ruby>", ["漢字"]),
        ("<p>The <code>a_b</code>, H<sub>2</sub>O and x<sup>2</sup>", ["The a_b, H2O and x2"]),
        ("naïve 日本語、テスト。 €5", ["naïve 日本語、テスト。 €5"]),
        ("", []),
    ],
)
def test_texts_of_blocks(body: str, texts: list[str]) -> None:
    assert _texts(body) == texts


def test_words_are_those_of_the_regex() -> None:
    body = "It's 3.5 km, NAÏVE «Größe» — 日本語、テスト。 a_b x2 “quoted”…"
    segments = parse_page(f"<p>{body}").segments
    assert len(segments.words) == len(feat.words_of(body))
    assert int(segments.words[0]) == fnv_hash(b"it") & 0xFFFFFFFF


def test_blocks_count_their_characters_words_and_signs() -> None:
    segments = parse_page("<p>One, <a href=x>Two</a> 34! <img><img></p><p><strong>After</strong> images").segments
    first, second = segments.blocks
    assert first[[seg.WORDS, seg.SENTENCES, seg.COMMAS, seg.DIGITS, seg.IMAGES]].tolist() == [3, 1, 1, 2, 0]
    assert (second[seg.WORDS], second[seg.IMAGES]) == (2, 2)
    flags = segments.word_flags.tolist()
    assert [bool(flag & seg.IN_LINK) for flag in flags] == [False, True, False, False, False]
    assert [bool(flag & seg.IN_STRONG) for flag in flags] == [False, False, False, True, False]
    assert [bool(flag & seg.UPPER_CASE) for flag in flags] == [True, True, False, True, False]


@pytest.mark.parametrize(
    ("attributes", "flag"),
    [
        ('style="color: red; display:none"', markup.STYLED_HIDDEN),
        ('style="visibility: hidden"', markup.STYLED_HIDDEN),
        ('style="overflow: hidden; display: block"', 0),
        ("hidden", markup.HIDDEN),
        ('aria-hidden="true"', markup.ARIA_HIDDEN),
        ('aria-hidden="false"', 0),
    ],
)
def test_hidden_elements_hide_what_they_contain(attributes: str, flag: int) -> None:
    segments = parse_page(f"<div {attributes}><p>text</p></div>").segments
    assert segments.flags[segments.blocks[0, seg.ELEMENT]] == flag


def test_elements_have_parents_tags_and_parts_of_class_names() -> None:
    segments = parse_page('<div class="postBody entry-12" id=main><p>text</p></div>').segments
    element = segments.blocks[0, seg.ELEMENT]
    parent = segments.parents[element]
    assert (NAMES[segments.tags[element]], NAMES[segments.tags[parent]]) == ("p", "div")
    tokens = segments.tokens[segments.token_starts[parent] : segments.token_starts[parent + 1]].tolist()
    for part in (b"post", b"body", b"entry", b"main"):
        assert fnv_hash(part) & 0xFFFFFFFF in tokens
    assert fnv_hash(b"entry-") >> 32 in tokens


def test_metadata_become_blocks_and_features() -> None:
    article = {
        "@type": "http://schema.org/NewsArticle",
        "articleBody": "The body of an article, it's too &lt;b>long&lt;/b> to drop.",
        "text": "short",
    }
    page = parse_page(
        '<head><title>A &amp; B</title><meta property="og:type" content="Article ">'
        f'<script type="application/ld+json">{json.dumps(article)}</script>'
        '<meta name="description" content="A &amp;lt; B, it\'s &amp;amp; &lt;i>long&lt;/i>.">'
        '<meta property="og:description" content="A &lt; B, it\'s &amp; long ."></head><body><p>text</p>'
    )
    assert (page.declared.title, page.descriptions, len(page.segments.blocks)) == ("A & B", 2, 3)
    assert (
        page.segments.text.tobytes()
        .decode()
        .startswith("A < B, it's & long .The body of an article, it's too long to drop.text")
    )
    features = dict(zip(feat.PAGE_NAMES, feat.page_features(page, None, []), strict=True))
    assert (features["Open Graph type"], features["JSON-LD article"], features["JSON-LD forum"]) == (1, 1, 0)


def test_damaged_pages_have_blocks_within_their_text() -> None:
    page = (
        '<div class="a b" style="display: none"><p>Some text<br><br>é 日本</p><pre>x</pre><!-- c --><a href="x">l</a>'
        "<script>s</script><table><tr><td>1</td></tr></table>&amp;&nbsp;"
    ).encode()
    for number in range(2000):
        random = np.random.default_rng(number)
        data = bytearray(page)
        for _ in range(random.integers(1, 12)):
            data[random.integers(len(data))] = random.choice([60, 62, 34, 38, 47, 33, 45, 0, 0xC2, 0xE2, 0xF0, 97])
        segments = seg.segment(bytes(data[: random.integers(1, len(data) + 1)]))
        starts, ends = segments.blocks[:, seg.START], segments.blocks[:, seg.END]
        assert np.all((starts <= ends) & (ends <= len(segments.text)))
        assert segments.blocks[:, seg.WORDS].sum() == len(segments.words)
        assert np.all(segments.parents[1:] < np.arange(1, len(segments.parents)))


def test_features_are_finite_and_have_one_name_each() -> None:
    page = parse_page(
        "<title>The title</title><nav><a>Home</a></nav><article><h1>The title</h1><p>" + "Some words. " * 20
    )
    features, _ = feat.block_features(page, "http://a.example/b?c", _NO_VALUES, _NO_VALUES)
    assert features.shape == (3, len(feat.NAMES))
    assert len(set(feat.NAMES)) == len(feat.NAMES)
    assert np.isfinite(features).all()

    def column(name: str) -> list[float]:
        values: list[float] = features[:, feat.NAMES.index(name)].tolist()
        return values

    assert column("distance to nav menu") == [0, 30, 30]
    assert column("is the main container") == [0, 0, 1]
    assert column("blocks from the title") == [-1, 0, 1]
    assert column("words in links") == [1, 0, 0]
    assert column("heading level") == [0, 1, 0]
    assert column("level of the last heading") == [0, 0, 1]
    assert column("page title words") == [2, 2, 2]
    assert column("page URL query") == [1, 1, 1]


def test_repeated_blocks_are_counted() -> None:
    page = parse_page("<ul><li>One two<li>One two<li>three four</ul><p>One two")
    features, groups = feat.block_features(page, None, _NO_VALUES, _NO_VALUES)
    assert groups.tolist() == [[0, 0, 0, 1], [1, 1, 1, 0]]
    for name, values in {
        "blocks of this kind": [3, 3, 3, 1],
        "words per block of this kind": [2, 2, 2, 2],
        "equal texts": [3, 3, 1, 3],
        "repeats an earlier text": [0, 1, 0, 1],
    }.items():
        assert features[:, feat.NAMES.index(name)].tolist() == values, name


def test_the_blocks_of_highest_expected_f1_are_chosen() -> None:
    shares, words = np.array([0.9, 0.1, 0.8, 0.3], np.float32), np.array([100, 100, 50, 10], np.float32)
    keep, expected = select_blocks(shares, words)
    assert keep.tolist() == [True, False, True, False]
    assert expected == pytest.approx(2 * 130 / (150 + 143))
    assert select_blocks(np.full(4, 0.05, np.float32), words)[0].tolist() == [False] * 4


def _rendered(body: str) -> str:
    page = parse_page(f"<html><body>{body}</body></html>").segments
    return render_blocks(page, np.ones(len(page.blocks), np.bool_))


def test_paragraphs_lists_and_tables_are_separated() -> None:
    page = parse_page(
        "<p>One</p><p>two</p><ul><li>a</li><li>b</li></ul><table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>"
        "<p>menu</p><p>end</p>"
    ).segments
    keep = np.ones(len(page.blocks), np.bool_)
    keep[7] = False
    assert render_blocks(page, keep) == "One\n\ntwo\n\na\nb\n\n1\t2\n3\n\nend"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", ""),
        ("<ul><li>a<ul><li>b</ul><li>c</ul>d", "a\nb\nc\n\nd"),
        ("<dl><dt>term<dd>meaning</dl>", "term\nmeaning"),
        (f"<ul><li><p>{'long ' * 12}</p><p>end</p><li>b</ul>", f"{'long ' * 11}long\n\nend\nb"),
        # A table for layout, and lists in the cells of one row.
        (f"<table><tr><td>menu<td><p>{'long ' * 12}</p><p>end</table>", f"menu\t{'long ' * 11}long\n\nend"),
        ("<table><tr><td><div>a</div><div>b</div><td>c<tr><td>d<br>e<td>f</table>", "a b\tc\nd e\tf"),
        ("<table><tr><td>x<ul><li>a<li>b</ul><td>y</table>", "x\n\na\nb\n\ny"),
        # Empty cells keep the others in their columns; a cell of two rows is in the first.
        ("<table><tr><th><th>a<th>b<tr><td>1<td><td>3<tr><td>4<td>5<td></table>", "\ta\tb\n1\t\t3\n4\t5"),
        ("<table><tr><th>a<th>b<tr><td rowspan=2>1<td>2<tr><td>3</table>", "a\tb\n1\t2\n3"),
        ("<p>p<pre>  a\n\n  b</pre>q", "p\n\n  a\n\n  b\n\nq"),
        ("<div aria-hidden=true>$5</div><div>$5</div><div>$5</div><div aria-hidden=true>x</div>", "$5\n\n$5\n\nx"),
    ],
)
def test_separators_of_blocks(body: str, text: str) -> None:
    assert _rendered(body) == text


@pytest.mark.parametrize(
    ("row", "keep", "text"),
    [
        ("<td>1<td>2<td>3<td>4", [1, 0, 0, 1], "1\t2\t3\t4"),
        ("<td>1<td>2<td>3<td>4", [0, 0, 0, 1], ""),
        ("<td>menu<td><p>a</p><p>b", [0, 1, 0], "a"),
        (f"<td>menu<td>{'long ' * 41}", [1, 0], "menu"),
    ],
)
def test_rows_of_tables_are_complete(row: str, keep: list[int], text: str) -> None:
    page = parse_page(f"<table><tr>{row}<tr><td>x</table><p>y").segments
    assert render_blocks(page, np.array([*keep, 0, 0], np.bool_)) == text


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        # Header and caption of a table of which half is kept; a part of its rows.
        ([0, 0, 0, 1, 1, 0, 1, 1], "Prices\nItem\tPrice\nPen\t2 for 3\nInk\t5"),
        ([0, 0, 0, 0, 0, 0, 1, 1], "Ink\t5"),
    ],
)
def test_tables_of_data_are_complete(keep: list[int], text: str) -> None:
    page = parse_page(
        "<table><caption>Prices</caption><tr><th>Item<th>Price<tr><td>Pen<td><p>2</p><p>for 3<tr><td>Ink<td>5</table>"
    ).segments
    assert render_blocks(page, np.array(keep, np.bool_)) == text

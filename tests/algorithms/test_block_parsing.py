"""Parsing of pages without what is not read of them: the tree is that of the whole page."""

from __future__ import annotations

import random

import pytest
from selectolax.lexbor import LexborHTMLParser, LexborNode

from pipelines.algorithms.blocks.page import parse_html

READ = "class id role itemprop style hidden aria-hidden name property content rel type datetime".split()
RAW = "script style iframe noframes noembed xmp".split()
PARTS = [
    "<p>", "</p >", "<P CLASS=a ID='b' data-x=1>", "<p onclick=\"f('>')\" class=\"a>b\">", "<p class = 'a>b' =x href>",
    "<p class=a/b data-c=d/>", "<path class=a d='M1'/>", "<path id=b />", "<br/>", "<img src=x/>",
    "<!-- <p> -->", "<!-->", "<!--->", "<!--x--!>", "<!doctype html>", "<![CDATA[ x ]]>", "<? c ?>", "</ e>", "<!-- e",
    "<script>", "<script type='text/javascript' src=x>", "</script\n>", "</scripts>", "<script><!-- ", " --> ",
    "'</p>'",
    '<script type="application/ld+json">{"a": "<b c=d>"}</script>', "<STYLE>p{}</STYLE>",
    '<script type="application/ld&#x2B;json">{"a": "<b c=d>"}</script>', "<style>", "<xmp><p></xmp>",
    "<iframe src=y><p></iframe>", "<textarea class=a><p onclick=b></textarea>", "<title>A <b c=d> B</title>", "<title>",
    "<meta content=x charset=y name=z>", "<div hidden aria-hidden=true>", "</div>", "<template><i x>y</i></template>",
    "<table><tr><td width=3>", "</table>", "<p class='b", "<", "</", "1 < 2 <3", "&amp;", "é", " ", "\n", "=", "/", ">",
    "'", '"', "-", "!",
]  # fmt: skip


Node = tuple[str, list[tuple[str, str | None]], list["Node | str"]]


def read(node: LexborNode) -> Node:
    """Return what is read of an element: its tag, attributes and content, without comments and code."""
    attributes = node.attributes
    children: list[Node | str] = []
    for child in node.iter(include_text=True):
        if child.tag == "-text":
            text = child.text(deep=False)
            children[-1:] = (
                [children[-1] + text] if children and isinstance(children[-1], str) else [*children[-1:], text]
            )
        elif child.tag != "-comment" and (node.tag not in RAW or "+" in (attributes.get("type") or "")):
            children.append(read(child))
    if node.tag in RAW and "+" not in (attributes.get("type") or ""):
        children = []
    return node.tag or "", [item for item in attributes.items() if item[0] in READ], children


@pytest.mark.parametrize("seed", range(300))
def test_the_tree_is_that_of_the_whole_page(seed: int) -> None:
    assert_equal("".join(random.Random(seed).choices(PARTS, k=12)))


def assert_equal(html: str) -> None:
    reduced, whole = parse_html(html).tree, LexborHTMLParser(html)
    assert reduced.root
    assert whole.root
    assert read(reduced.root) == read(whole.root)


def test_svg_may_contain_code_and_elements_without_end() -> None:
    assert_equal(
        "<svg><style>a{}</style><script href=x /><path class=a d=M1/><path id='b'/></svg><p>x<script>y</script>"
    )


def test_a_frame_without_end_ends_with_the_noscript_around_it() -> None:
    tree = parse_html("<body><noscript><iframe src=x></noscript><p>y").tree
    assert tree.body
    assert tree.body.html == "<body><noscript><iframe></iframe></noscript><p>y</p></body>"


def test_elements_nested_too_deeply_are_flattened_and_keep_their_text() -> None:
    flat = parse_html("<div>word<br>" * 30_000 + "</div>" * 30_000).tree.html or ""
    assert (flat.count("<div>"), flat.count("</div>"), flat.count("word")) == (256, 256, 30_000)
    assert_equal("<ul><li>one<li>two<img></ul><p>three" * 8_000)

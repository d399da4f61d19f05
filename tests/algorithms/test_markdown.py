"""Markdown of pages: its form, and that a Markdown reader shows what plain text has."""

# ruff: noqa: E501 - Markdown as it is written

from __future__ import annotations

import gzip
import html
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pipelines.algorithms.blocks.markdown import render_markdown
from pipelines.algorithms.blocks.page import ParsedPage, parse_page
from pipelines.algorithms.blocks.rendering import render_blocks
from pipelines.stages.extract.child import html_of
from pipelines.stages.extract.extractors import fast_text

_PROSE = "A paragraph with enough words that the table next to it is not the whole page, as on most pages."


def _parse(body: str) -> ParsedPage:
    return parse_page(f"<html><body>{body}</body></html>")


def _both(body: str) -> tuple[str, str]:
    """Return a page as Markdown and as plain text."""
    page = _parse(body)
    layout = render_blocks(page.segments, np.ones(len(page.segments.blocks), np.bool_))
    return render_markdown(page.segments, layout), layout.text


_CASES = {
    "headings": ("<h1>One</h1><p>text<h4>Two<br>lines</h4>", "# One\n\ntext\n\n#### Two lines"),
    "a heading that ends with a number sign": ("<h2>C #</h2>", "## C \\#"),
    "a heading of two blocks": ("<h2><div>Part 1</div><div>Start</div></h2>", "## Part 1 Start"),
    "nested lists": ("<ul><li>a<ul><li>b<li>c</ul><li>d</ul>", "- a\n  - b\n  - c\n- d"),
    "a list in a list, not in its item": ("<ul><li>a<ul><li>b</ul><ul><li>c</ul></ul>", "- a\n  - b\n\n  * c"),
    "numbers with start": ("<ol start=9><li>a<li>b<ul><li>c</ul></ol>", "9. a\n10. b\n    - c"),
    "a number that begins no list below a paragraph": (
        "<ul><li>a<ol start=2><li>b</ol></ul>",
        "- a\n\n  2. b",
    ),
    "lists after each other": (
        "<ul><li>a</ul><ul><li>b</ul><ol><li>c</ol><ol><li>d</ol>",
        "- a\n\n* b\n\n1. c\n\n1) d",
    ),
    "paragraphs of an item": (
        f"<ul><li><p>{_PROSE}</p><p>{_PROSE}</p><li>b</ul><p>c",
        f"- {_PROSE}\n\n  {_PROSE}\n- b\n\nc",
    ),
    "short blocks of an item are lines": ("<ul><li><div>Ann</div><div>Editor</div></ul>", "- Ann  \n  Editor"),
    "terms and definitions are lines": ("<dl><dt>a<dd>b<dt>c<dd>d</dl>", "a  \nb  \nc  \nd"),
    "line breaks": ("<p>one<br>two</p>", "one  \ntwo"),
    "code in a class": (
        '<pre><code class="hljs language-c++">int x;\n  x++;</code></pre>',
        "```c++\nint x;\n  x++;\n```",
    ),
    "code of mdBook": ('<pre><code class="language-rust ignore hljs hide-boring">fn</code></pre>', "```rust\nfn\n```"),
    "code of a box": ('<div class="highlight-source-python"><pre>x = 1</pre></div>', "```python\nx = 1\n```"),
    "code of SyntaxHighlighter": ('<pre class="brush: java; toolbar: false">int x;</pre>', "```java\nint x;\n```"),
    "code of Hugo": (
        '<div class="highlight"><pre><code data-lang="go">x := 1</code></pre></div>',
        "```go\nx := 1\n```",
    ),
    "code of MediaWiki": ('<div class="mw-highlight mw-highlight-lang-lua"><pre>x()</pre></div>', "```lua\nx()\n```"),
    "code of docutils": ('<pre class="code python literal-block">x = 1</pre>', "```python\nx = 1\n```"),
    "code of Jupyter": ('<div class="highlight hl-ipython3"><pre>x = 1</pre></div>', "```python3\nx = 1\n```"),
    "code shown by SyntaxHighlighter": ('<pre class="syntaxhighlighter nogutter  php">x</pre>', "```php\nx\n```"),
    "code without a language": (
        '<body class="lang-en"><div class="highlight-default"><pre>x</pre></div>',
        "```\nx\n```",
    ),
    "a fence in code": ("<pre>```\n# a\n```</pre>", "````\n```\n# a\n```\n````"),
    "code in an item": ("<ol><li>Run:<pre>a\n\n  b</pre></ol>", "1. Run:\n\n   ```\n   a\n\n     b\n   ```"),
    "inline code": ("<p>Use <code>a_b*</code>, <kbd>Ctrl</kbd>.", "Use `a_b*`, `Ctrl`."),
    "inline code side by side": ("<p><code>a</code><code>b</code> <code>c</code>", "`ab` `c`"),
    "code around blocks": (
        "<div>Press <kbd><div>Ctrl C</div> or <tt>x</tt></kbd></div>",
        "Press\n\n`Ctrl C`\n\n`or x`",
    ),
    "an empty element in code": ("<p><code>a<kbd></kbd> b</code>", "`a b`"),
    "backquotes in code": ("<p><code>a`b</code> and <code>`</code>", "``a`b`` and `` ` ``"),
    "code across a line break": ("<p>See <code>a<br>b</code>.", "See `a`  \n`b`."),
    "a table": (
        f"<p>{_PROSE}<table><tr><th>a<th>b|c<tr><td>1<td>x<br>y<tr><td>2<td><code>x|y</code> z</table>",
        f"{_PROSE}\n\n| a | b\\|c |\n| --- | --- |\n| 1 | x y |\n| 2 | `x\\|y` z |",
    ),
    "empty cells": (
        f"<p>{_PROSE}<p>{_PROSE}<table><tr><td><th>b<tr><th>1<td>2<td>3<tr><td>4<td></table>",
        f"{_PROSE}\n\n{_PROSE}\n\n|  | b |  |\n| --- | --- | --- |\n| 1 | 2 | 3 |\n| 4 |  |  |",
    ),
    "a table with lists in cells": (
        f"<p>{_PROSE}<table><tr><th>a<th>b<tr><td>1<td><ul><li>p<li>q</ul><tr><td>2<td>3</table>",
        f"{_PROSE}\n\na\tb  \n1\n\n- p\n- q\n\n2\t3",
    ),
    "a table with a quote in a cell": (
        f"<p>{_PROSE}<p>{_PROSE}<table><tr><th>a<th>b<tr><td>1<td><blockquote>c</blockquote><tr><td>2<td>3</table>",
        f"{_PROSE}\n\n{_PROSE}\n\n| a | b |\n| --- | --- |\n| 1 | c |\n| 2 | 3 |",
    ),
    "quotes": (
        "<blockquote><p>a<p>b<ul><li>c</ul><blockquote>d</blockquote></blockquote><blockquote>e</blockquote>",
        "> a\n>\n> b\n>\n> - c\n>\n> > d\n\n> e",
    ),
    "formulas": (
        '<p>Let <span data-latex="a_b*c*"></span> be <script type="math/tex; mode=display">\\{x\\}</script> and *c*.',
        "Let $a_b*c*$ be\n\n$$\\{x\\}$$\n\nand \\*c\\*.",
    ),
    "escapes at the start of lines": (
        "1. a<br>2) b<br># c<br>- d<br>&gt; e<br>---<br>==<br>+ f<br>~~~<br>a:|<br>:-|-:<br>1.5<br>#x<br>-1",
        "1\\. a  \n2\\) b  \n\\# c  \n\\- d  \n\\> e  \n\\---  \n\\==  \n\\+ f  \n\\~~~  \na:|  \n\\:-|-:  \n1.5  \n#x  \n-1",
    ),
    "escapes in lines": (
        "&amp;lt; &lt;b&gt; [a](b) _c_ **d** ~e~ `f` \\* \\n",
        "\\&lt; \\<b> [a\\](b) \\_c\\_ \\*\\*d\\*\\* \\~e\\~ \\`f\\` \\\\\\* \\n",
    ),
    "no escapes": ("2 * 3 * 4, a* and snake_case_name, $5 &amp; 3 &lt; 4, [1], ~5, a ` b, AT&amp;T", None),
    "definitions of links and boxes to check": ("<p>[a]: b<p>[x] c", "\\[a]: b\n\n\\[x] c"),
    "emphasis, links and images are left out": ('<p><b>a</b> <a href="/b">c</a> <img src="d" alt="e">f', "a c f"),
}


@pytest.mark.parametrize(("body", "markdown"), _CASES.values(), ids=_CASES)
def test_markdown_of_html(body: str, markdown: str | None) -> None:
    assert _both(body)[0] == (html.unescape(body) if markdown is None else markdown)


def _shown(markdown: str, formulas: list[str]) -> str:
    """Return what a CommonMark reader with the tables and deleted text of GitHub shows, without white space.

    Markup that is not shown becomes a name in angle brackets. A reader with formulas knows where they are.
    """
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    pattern = re.compile("|".join(map(re.escape, sorted(formulas, key=len, reverse=True))) or "(?!)")

    def formula(state, silent):
        match = pattern.match(state.src, state.pos)
        if match and not silent:
            state.push("text", "", 0).content = match[0]
        state.pos += len(match[0]) if match else 0
        return bool(match)

    reader.inline.ruler.before("escape", "formula", formula)
    shown = []
    for token in reader.parse(markdown):
        for part in token.children if token.type == "inline" else [token]:
            if part.type in ("text", "text_special", "code_inline", "fence"):
                shown.append(part.content)
            elif not part.type.endswith("break") and (token.children or not part.type.endswith(("_open", "_close"))):
                shown.append(f"<{part.type}>")
    return "".join("".join(shown).split())


_TEXTS = st.lists(
    st.sampled_from([*"ab1 \\`*_~[]()<>&#!|:.-+=$\"'/é。", " ", "  ", "`` ", "1. ", "- ", "&amp;", "---", "](", "\n"]),
    min_size=1,
    max_size=24,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(st.lists(_TEXTS, min_size=1, max_size=4), st.sampled_from("p h2 li blockquote code pre td mixed".split()))
def test_a_markdown_reader_shows_the_text(texts: list[str], tag: str) -> None:
    escaped = [html.escape(text).replace("\n", "\n" if tag == "pre" else "<br>") for text in texts]
    if tag == "td":
        body = f"<p>{_PROSE}<table><tr><th>x<th>y{''.join(f'<tr><td>{text}<td>{text}' for text in escaped)}</table>"
    elif tag == "mixed":
        body = "<p>" + "".join(f"{text}<code>{text}</code>" for text in escaped)
    else:
        body = "".join(f"<{tag}>{text}</{tag}>" for text in escaped)
    markdown, plain = _both(body)
    assert _shown(markdown, []) == "".join(plain.split())


def test_a_markdown_reader_shows_the_text_of_real_pages(shared_data) -> None:
    paths = sorted((shared_data / "pages").glob("*/html/*.html.gz"))[::120]
    assert paths
    for path in paths:
        page = html_of(gzip.decompress(path.read_bytes()), None)
        assert page is not None
        plain, markdown = fast_text(page, None), fast_text(page, None, markdown=True)
        assert markdown.plain == plain.text
        formulas = re.findall(r"\$\$?[^$\n]+\$\$?", plain.text)
        assert _shown(markdown.text, formulas) == "".join(plain.text.split()), path


def test_hostile_nesting_does_not_multiply_the_text() -> None:
    markdown, _ = _both("<ul><li>a" * 3000)
    assert len(markdown) < 3000 * 40

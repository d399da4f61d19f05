"""Code in the layouts of editors, highlighters, forums and documentation: the lines as they were written."""

# ruff: noqa: E501 - markup as it is on pages

from __future__ import annotations

import re

import pytest

from pipelines.algorithms.blocks import code
from pipelines.algorithms.blocks.page import _EDITORS, parse_html
from pipelines.stages.extract.extractors import fast_text

_BEFORE = "The function below adds the numbers of a list, and returns zero for a list that has no numbers at all."
_AFTER = "It is called with the numbers of a file, which the program reads line by line before the sum is printed."
_PAGE = (
    f"<html><head><title>Sums</title></head><body><article><p>{_BEFORE}</p>%s<p>{_AFTER}</p></article></body></html>"
)

_CODE = "def total(values):\n    result = 0\n\n    for value in values:\n        if value < 9:\n            result += value\n    return result"
_LINES = _CODE.split("\n")


def _html(line: str, space: str = " ") -> str:
    return line.replace("<", "&lt;").replace("  ", 2 * space)


def _each(template: str, joint: str = "", *, space: str = " ", empty: str = "") -> str:
    """Return every line of the code in a template, in which `@` is its number and `#` its text."""
    rows = [
        template.replace("@", str(number)).replace("#", _html(line, space) or empty)
        for number, line in enumerate(_LINES, 1)
    ]
    return joint.join(rows)


_NUMBERS = "\n".join(map(str, range(1, 8)))
_NBSP = "&nbsp;"
_COPY = '<button class="copy" title="Copy">Copy code</button>'
_HIGHLIGHTED = (
    '<span class="k">def</span> <span class="nf">total</span><span class="p">(</span>values<span class="p">):</span>\n'
    + "\n".join(map(_html, _LINES[1:]))
)

_LAYOUTS = {
    "pre": f"<pre>{_html(_CODE)}</pre>",
    "pre with Windows line ends, trailing spaces": f"<pre>\r\n{_each('#  ', chr(13) + chr(10))}\r\n\r\n</pre>",
    "code with br and nbsp": f"<p><code>{_each('#', '<br>', space=_NBSP)}</code></p>",
    "code with br, line ends and spaces": f"<code>{_each('#', '<br />' + chr(10))}</code>",
    "code indented as its page": f"<div>\n    <code>\n{_each('      #<br>', chr(10))}\n    </code>\n  </div>",
    "code per line with br": f"<p>{_each('<code>#</code>', '<br>', space=_NBSP)}</p>",
    "code whose style sheet keeps white space": f'<code class="block">{_html(_CODE)}</code>',
    "code in a div per line": f"<code>{_each('<div>#</div>', space=_NBSP)}</code>",
    "code in paragraphs": f'<div class="code">{_each("<p>#</p>", space=_NBSP, empty=_NBSP)}</div>',
    "paragraphs in pre": f"<pre>{_each('<p>#</p>')}</pre>",
    "div per line in pre": f"<pre><code>{_each('<div>#</div>', empty='<br>')}</code></pre>",
    "span per line in pre": f"<pre><code>{_each(f'<span style={chr(34)}display:block{chr(34)}>#</span>')}</code></pre>",
    "tt with br": f"<tt>{_each('#', '<br>', space=_NBSP)}</tt>",
    "listing": f"<listing>{_html(_CODE)}</listing>",
    "xmp": f"<xmp>{_CODE}</xmp>",
    "textarea": f'<textarea readonly rows="9" class="code">{_html(_CODE)}</textarea>',
    "white space kept by style": f'<div style="white-space: pre; font-family: monospace">{_html(_CODE)}</div>',
    "editor's paste": f'<div style="font-family: Consolas, monospace; white-space: pre"><div>{_each("<div><span>#</span></div>", empty="")}</div></div>',
    "gutter in pre": f'<pre><span class="gutter">{_NUMBERS}</span><code>{_html(_CODE)}</code></pre>',
    "Pygments, table": f'<div class="highlight"><table class="highlighttable"><tr><td class="linenos"><div class="linenodiv"><pre>{_NUMBERS}</pre></div></td><td class="code"><div><pre><span></span>{_HIGHLIGHTED}\n</pre></div></td></tr></table></div>',
    "Pygments, inline numbers": f'<div class="highlight"><pre>{_each("<span class=lineno>@ </span>#", chr(10))}</pre></div>',
    "a link that copies": f'<div class="highlight"><pre><a class="copy-btn" href=x>Copy</a>{_each("<span>#</span>", chr(10))}</pre></div>',
    "Sphinx with a copy button": f'<div class="highlight-python notranslate"><div class="highlight"><pre><span></span>{_HIGHLIGHTED}\n</pre><button class="copybtn o-tooltip--left" data-clipboard-target="#codecell0">Copy</button></div></div>',
    "Rouge, table": f'<div class="language-python highlighter-rouge"><div class="highlight"><pre class="highlight"><code><table class="rouge-table"><tbody><tr><td class="rouge-gutter gl"><pre class="lineno">{_NUMBERS}\n</pre></td><td class="rouge-code"><pre>{_HIGHLIGHTED}\n</pre></td></tr></tbody></table></code></pre></div></div>',
    "Chroma, table": f'<div class="highlight"><div class="chroma"><table class="lntable"><tr><td class="lntd"><pre class="chroma"><code>{_each("<span class=lnt>@" + chr(10) + "</span>")}</code></pre></td><td class="lntd"><pre class="chroma"><code class="language-python">{_each("<span class=line><span class=cl>#" + chr(10) + "</span></span>")}</code></pre></td></tr></table></div></div>',
    "Chroma, inline numbers": f'<div class="highlight"><pre class="chroma"><code>{_each("<span class=line><span class=ln>@</span><span class=cl>#" + chr(10) + "</span></span>")}</code></pre></div>',
    "highlight.js with line numbers": f'<pre><code class="hljs language-python"><table class="hljs-ln"><tbody>{_each("<tr><td class=%shljs-ln-line hljs-ln-numbers%s data-line-number=@><div class=hljs-ln-n data-line-number=@></div></td><td class=%shljs-ln-line hljs-ln-code%s>#</td></tr>" % ((chr(34),) * 4))}</tbody></table></code></pre>',
    "GitHub": f'<table class="highlight tab-size js-file-line-container">{_each("<tr><td id=L@ class=%sblob-num js-line-number%s data-line-number=@></td><td id=LC@ class=%sblob-code blob-code-inner js-file-line%s>#</td></tr>" % ((chr(34),) * 4))}</table>',
    "SyntaxHighlighter 3": f'<div><div id="highlighter_1" class="syntaxhighlighter python"><div class="toolbar"><span><a href="#" class="toolbar_item">?</a></span></div><table><tbody><tr><td class="gutter">{_each(f"<div class={chr(34)}line number@ alt1{chr(34)}>@</div>")}</td><td class="code"><div class="container">{_each("<div class=%sline number@ alt1%s><code class=%spython plain%s>#</code></div>" % ((chr(34),) * 4), space=_NBSP, empty=_NBSP)}</div></td></tr></tbody></table></div></div>',
    "SyntaxHighlighter 2": f'<div class="syntaxhighlighter"><div class="bar"><div class="toolbar"><a class="item viewSource" href="#">view source</a><a href="#" class="item printSource">print</a></div></div><div class="lines">{_each(f"<div class={chr(34)}line alt1{chr(34)}><table><tbody><tr><td class=number><code>@</code></td><td class=content><code class=plain>#</code></td></tr></tbody></table></div>", space=_NBSP, empty=_NBSP)}</div></div>',
    "SyntaxHighlighter 1": f'<div class="dp-highlighter"><div class="bar"><div class="tools"><a href="#">view plain</a><a href="#">copy to clipboard</a></div></div><ol start="1" class="dp-py">{_each("<li class=alt><span><span>#</span></span></li>", space=_NBSP, empty=_NBSP)}</ol></div>',
    "Crayon": f'<div id="crayon-1" class="crayon-syntax crayon-theme-classic"><div class="crayon-toolbar"><span class="crayon-title">sum.py</span><div class="crayon-tools"><div class="crayon-button"></div><span class="crayon-language">Python</span></div></div><div class="crayon-info"></div><div class="crayon-plain-wrap"><textarea class="crayon-plain" readonly>{_html(_CODE)}</textarea></div><div class="crayon-main"><table class="crayon-table"><tr class="crayon-row"><td class="crayon-nums"><div class="crayon-nums-content">{_each("<div class=crayon-num>@</div>")}</div></td><td class="crayon-code"><div class="crayon-pre">{_each("<div class=crayon-line id=crayon-1-@><span class=crayon-e>#</span></div>", space=_NBSP, empty=_NBSP)}</div></td></tr></table></div></div>',
    "CodeMirror 5": f'<div class="CodeMirror cm-s-default"><div style="overflow: hidden"><textarea></textarea></div><div class="CodeMirror-scroll"><div class="CodeMirror-sizer"><div class="CodeMirror-lines"><div><div class="CodeMirror-measure"><pre><span>xxxxxxxxxx</span></pre></div><div class="CodeMirror-cursors"></div><div class="CodeMirror-code">{_each("<div style=%sposition: relative%s><div class=CodeMirror-gutter-wrapper><div class=%sCodeMirror-linenumber CodeMirror-gutter-elt%s>@</div></div><pre class=CodeMirror-line><span>#</span></pre></div>" % ((chr(34),) * 4), empty="&#8203;")}</div></div></div></div></div></div>',
    "CodeMirror 6": f'<div class="cm-editor"><div class="cm-scroller"><div class="cm-gutters"><div class="cm-gutter cm-lineNumbers">{_each("<div class=cm-gutterElement>@</div>")}</div></div><div class="cm-content" role="textbox">{_each("<div class=cm-line>#</div>", empty="<br>")}</div></div></div>',
    "Monaco": f'<div class="monaco-editor"><div class="margin"><div class="margin-view-overlays">{_each("<div style=top:@px><div class=line-numbers>@</div></div>")}</div></div><div class="view-lines">'
    + "".join(
        reversed(
            _each('<div class="view-line" style="top:@px;height:1px"><span>#</span></div>\x00', space=_NBSP).split(
                "\x00"
            )
        )
    )
    + "</div></div>",
    "Ace": f'<div class="ace_editor"><textarea class="ace_text-input"></textarea><div class="ace_gutter"><div class="ace_layer ace_gutter-layer">{_each("<div class=ace_gutter-cell>@</div>")}</div></div><div class="ace_scroller"><div class="ace_content"><div class="ace_layer ace_text-layer">{_each("<div class=ace_line_group><div class=ace_line>#</div></div>")}</div></div></div></div>',
    "Code Prettify": f'<pre class="prettyprint linenums prettyprinted"><ol class="linenums">{_each("<li class=L0><span class=pln>#</span></li>", space=_NBSP, empty=_NBSP)}</ol></pre>',
    "Prism with line numbers": f'<div class="code-toolbar"><pre class="line-numbers language-python"><code class="language-python">{_HIGHLIGHTED}<span aria-hidden="true" class="line-numbers-rows">{_each("<span></span>")}</span></code></pre><div class="toolbar"><div class="toolbar-item"><span>Python</span></div><div class="toolbar-item"><button>Copy</button></div></div></div>',
    "Shiki": f'<pre class="shiki github-dark"><code>{_each("<span class=line><span>#</span></span>", chr(10))}</code></pre>',
    "Shiki without line ends": f'<pre class="shiki"><code>{_each("<span class=line>#</span>")}</code></pre>',
    "Docusaurus": f'<div class="language-python codeBlockContainer_x"><div class="codeBlockContent_x"><pre tabindex="0" class="prism-code language-python thin-scrollbar"><code class="codeBlockLines_x">{_each(f"<span class=token-line><span class={chr(34)}token plain{chr(34)}>#</span><br></span>")}</code></pre><div class="buttonGroup_x"><button type="button" aria-label="Copy code" class="clean-btn"><span></span></button></div></div></div>',
    "MDN": f'<div class="code-example"><div class="example-header"><span class="language-name">python</span><button type="button" class="icon copy-icon"><span class="visually-hidden">Copy to Clipboard</span></button></div><pre class="brush: python notranslate"><code>{_HIGHLIGHTED}\n</code></pre></div>',
    "Stack Overflow": f'<pre class="lang-py s-code-block"><code class="hljs language-python">{_HIGHLIGHTED}\n</code></pre>',
    "MediaWiki": f'<div class="mw-highlight mw-highlight-lang-python mw-content-ltr" dir="ltr"><pre><span></span>{_each("<span class=linenos data-line=@></span>#", chr(10))}\n</pre></div>',
    "WordPress block": f'<pre class="wp-block-code"><code>{_each("#", "<br>")}</code></pre>',
    "Confluence": f'<div class="code panel pdl"><div class="codeContent panelContent pdl"><pre class="syntaxhighlighter-pre">{_html(_CODE)}</pre></div></div>',
    "phpBB 3.0": f'<dl class="codebox"><dt>Code: <a href="#">Select all</a></dt><dd><code>{_each("#", "<br>", space=_NBSP)}</code></dd></dl>',
    "phpBB 3.2": f'<div class="codebox"><p>Code: <a href="#">Select all</a></p><pre><code>{_html(_CODE)}</code></pre></div>',
    "vBulletin": f'<div class="bbcode_container"><div class="bbcode_description">Code:</div><pre class="bbcode_code">{_html(_CODE)}</pre></div>',
    "XenForo": f'<div class="bbCodeBlock bbCodeBlock--code"><div class="bbCodeBlock-title">Code:</div><div class="bbCodeBlock-content"><pre class="bbCodeCode" dir="ltr"><code>{_html(_CODE)}</code></pre></div></div>',
    "header with the language": f'<div class="code-block"><div class="code-block-header"><span class="lang">python</span><span class="copy-btn">Copy</span></div><pre><code>{_html(_CODE)}</code></pre></div>',
    "numbers in hashed classes": f'<pre class="css-1p"><div style="min-width: 1px">{_each("<div class=css-r><span class=css-m>@</span><div class=css-l><div>#" + chr(10) + "</div></div></div>")}</div></pre>',
    "numbers in spans without a name": f"<pre><code>{_each('<span class=x2><span class=x3>@</span>#</span>', chr(10))}</code></pre>",
    "a column of numbers without a name": f'<pre><code style="float: left">{_each("<span class=x1>@" + chr(10) + "</span>")}</code><code>{_HIGHLIGHTED}</code></pre>',
    "numbers in links": f"<pre>{_each('<a class=l name=@ href=#@>@</a>#', chr(10)).replace('<a class=l name=1 href=', '<a href=')}</pre>",
    "numbers with colons and spaces": f'<div class="csharpcode">{_each("<pre><span class=lnum>   @:  </span>#</pre>")}</div>',
    "numbers in colored spans": f'<div class="cnblogs_code"><pre>{_each(f"<span style={chr(34)}color: teal{chr(34)}>@</span> #", chr(10))}</pre></div>',
    "numbers after the code": f'<div class="language-python line-numbers-mode"><button title="Copy Code" class="copy"></button><span class="lang">python</span><pre class="shiki vp-code"><code>{_each("<span class=line><span>#</span></span>", chr(10))}</code></pre><div class="line-numbers-wrapper">{_each("<span class=line-number>@</span><br>")}</div></div>',
    "list of numbers in pre": f'<pre class="prettyprint"><code class="has-numbering">{_HIGHLIGHTED}</code><ul class="pre-numbering">{_each("<li>@</li>")}</ul></pre>',
    "columns of div": f'<div class="code-block"><div class="code-gutter">{_each(f"<div class={chr(34)}line number@{chr(34)}>@</div>")}</div><div class="code-container">{_each("<div class=line><code class=plain>#</code></div>", space=_NBSP, empty=_NBSP)}</div></div>',
    "Pygments, table with a copy button": f'<div class="highlight-python"><div class="highlight"><table class="highlighttable"><tr><td class="linenos"><div class="linenodiv"><pre>{_each("<span class=normal>@</span>", chr(10))}</pre></div></td><td class="code"><div><pre><span></span>{_HIGHLIGHTED}\n</pre></div></td></tr></table><button class="copybtn">Copy</button></div></div>',
    "Hexo": f'<figure class="highlight python"><table><tr><td class="gutter"><pre>{_each("<span class=line>@</span><br>")}</pre></td><td class="code"><pre>{_each("<span class=line>#</span><br>")}</pre></td></tr></table></figure>',
    "GitHub, without a table": f'<div class="react-code-file-contents"><div class="code-navigation-cursor"></div><div class="react-line-numbers">{_each(f"<div class={chr(34)}react-line-number{chr(34)}>@</div>")}</div><div class="react-code-lines">{_each("<div class=react-code-line-contents><div><div class=react-file-line>#</div></div></div>", empty=chr(10))}</div></div>',
    "Gitea": f'<div class="code-view"><table>{_each("<tr><td class=lines-num><span data-line-number=@></span></td><td class=%slines-code chroma%s><code class=code-inner>#" % ((chr(34),) * 2) + chr(10) + "</code></td></tr>")}</table></div>',
    "GitLab": f'<div class="file-content code"><div class="line-numbers">{_each("<a class=diff-line-num href=#L@>@</a>", chr(10))}</div><div class="blob-content"><pre class="code highlight"><code>{_each("<span id=LC@ class=line>#</span>", chr(10))}</code></pre></div></div>',
    "GeSHi": f'<div class="source"><ol class="python">{_each("<li class=%sli1%s><div class=%sde1%s>#</div></li>" % ((chr(34),) * 4), space=_NBSP, empty=_NBSP)}</ol></div>',
    "Ace without an editor": f'<div class="ace-tm"><div class="ace_static_highlight ace_show_gutter">{_each("<div class=ace_line><span class=ace_gutter-cell>@</span>#" + chr(10) + "</div>")}</div></div>',
    "EnlighterJS": f'<div class="enlighter-default enlighter-t-enlighter"><div class="enlighter-code"><div class="enlighter">{_each("<div><span>#</span></div>")}</div><pre class="enlighter-raw">{_html(_CODE)}</pre></div></div>',
    "Expressive Code": f'<div class="expressive-code"><figure><figcaption></figcaption><pre data-language="py"><code>{_each("<div class=ec-line><div class=gutter><div class=ln>@</div></div><div class=code><span>#</span></div></div>", empty=chr(10))}</code></pre><div class="copy"><button title="Copy to clipboard"></button></div></figure></div>',
    "Gatsby, highlighted lines": f'<div class="gatsby-highlight"><pre class="language-python"><code>{_each("<span class=gatsby-highlight-code-line>#</span>")}</code></pre></div>',
    "rustdoc": f'<div class="example-wrap"><pre class="src-line-numbers">{_each("<a href=#@>@</a>", chr(10))}</pre><pre class="rust"><code>{_HIGHLIGHTED}\n</code></pre></div>',
    "Doxygen": f'<div class="fragment">{_each("<div class=line><a name=x></a><span class=lineno>    @</span>#</div>", space=_NBSP)}</div>',
    "AsciiDoctor with callouts": f'<div class="listingblock"><div class="content"><pre class="highlight"><code>{_html(_CODE)}<i class="conum" data-value="1"></i><b>(1)</b></code></pre></div></div>',
    "W3Schools": f'<div class="w3-code notranslate pythonHigh">{_each("#", "<br>" + chr(10) + "  ", space=_NBSP)}</div>',
    "code with br after line ends": f"<p><code>{_each('#', chr(10) + '<br>')}</code></p>",
    "code in a font": f'<div><span style="font-family: courier new;">{_each("#", "<br />", space=_NBSP)}</span></div>',
    "phpBB 2": f'<table><tr><td><b>Code:</b></td></tr><tr><td class="code">{_each("#", "<br />", space=_NBSP)}</td></tr></table>',
    "MyBB": f'<div class="codeblock"><div class="title">Code:</div><div class="body"><code>{_each("#", "<br />", space=_NBSP)}</code></div></div>',
    "vBulletin 4": f'<div class="bbcode_container"><div class="bbcode_description">Code:</div><hr><code class="bbcode_code">{_each("#", "<br />", space=_NBSP)}</code><hr></div>',
    "Microsoft": f'<div class="codeHeader"><span class="language">Python</span><button class="action"><span>Copy</span><div class="successful-copy-alert"></div></button></div><pre><code class="lang-python"><span>{_HIGHLIGHTED}\n</span></code></pre>',
    "mdBook": f'<pre><div class="buttons"><button class="clip-button" title="Copy to clipboard"><i class="tooltiptext"></i></button></div><code class="language-python hljs">{_HIGHLIGHTED}\n</code></pre>',
    "prompts that cannot be selected": f"<pre>{_each(f'<span style={chr(34)}user-select: none{chr(34)}>$ </span>#', chr(10))}</pre>",
}


def _text_of(layout: str) -> str:
    return fast_text((_PAGE % layout).encode(), None).text


@pytest.mark.parametrize("name", _LAYOUTS)
def test_code_keeps_its_lines_and_indentation(name: str) -> None:
    assert re.sub(r" +\n", "\n", _text_of(_LAYOUTS[name])) == f"{_BEFORE}\n\n{_CODE}\n\n{_AFTER}"


_REST = "of the page, which has a few more words so that the sentence is long enough."


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        # What the source has stays.
        (
            '<div class="doctest highlight-default"><div class="highlight"><pre><span class="gp">&gt;&gt;&gt; </span>total([1,\n'
            '<span class="gp">... </span>       2])\n<span class="go">3</span>\n</pre></div></div>',
            ">>> total([1,\n...        2])\n3",
        ),
        ("<pre>\tfor x in values:\n\t\tprint(x)</pre>", "\tfor x in values:\n\t\tprint(x)"),
        (
            '<div class="cell"><div class="input"><div class="prompt input_prompt">In&nbsp;[1]:</div><div class="inner_cell">'
            '<div class="input_area"><div class="highlight hl-ipython3"><pre><span></span>values = [1, 2]\ntotal(values)\n</pre></div>'
            '</div></div></div><div class="output_wrapper"><div class="output"><div class="output_area">'
            '<div class="prompt output_prompt">Out[1]:</div><div class="output_text output_subarea"><pre>3</pre></div></div></div></div></div>',
            "values = [1, 2]\ntotal(values)\n\n3",
        ),
        # Numbers of the code, of its output, and of a listing.
        (
            '<pre><span class="hljs-number">1</span> one\n<span class="hljs-number">2</span> two</pre>',
            "1 one\n2 two",
        ),
        ("<pre>10 PRINT X\n20 GOTO 10</pre>", "10 PRINT X\n20 GOTO 10"),
        ("<pre>1 one\n2 two</pre>", "1 one\n2 two"),
        ("<pre>for x in 1, 2, 3: print(x)</pre><pre>1\n2\n3</pre>", "for x in 1, 2, 3: print(x)\n\n1\n2\n3"),
        # Markup to republish a page.
        (
            f"<p>Read on {_REST}</p><textarea readonly>&lt;p&gt;a = 1;&lt;/p&gt;\n&lt;p&gt;b&lt;/p&gt;</textarea>",
            f"Read on {_REST}",
        ),
        # Inline code stays in its sentence.
        (f"<p>Call <code>total\n(values)</code> at the end {_REST}</p>", f"Call total (values) at the end {_REST}"),
        (f"<p><code>total(values)</code><br>adds the numbers {_REST}</p>", f"total(values)\nadds the numbers {_REST}"),
        (
            f"<p>Press <kbd>Ctrl</kbd>+<kbd>C</kbd> or run <tt>make</tt> or <samp>a<br>b</samp> {_REST}</p>",
            f"Press Ctrl+C or run make or a\nb {_REST}",
        ),
    ],
)
def test_what_is_part_of_the_source_stays(layout: str, text: str) -> None:
    assert _text_of(layout) == f"{_BEFORE}\n\n{text}\n\n{_AFTER}"


@pytest.mark.parametrize("name", code.EDITOR_NAMES)
def test_a_page_with_an_editor_is_known_by_its_class(name: str) -> None:
    for page in (f'<div class="{name} wide">x</div>', f"<div class={name}>x</div>", f"<p><pre class='{name}'>x</pre>"):
        assert parse_html(page).found & _EDITORS
    assert not parse_html(f'<div class="wide {name[:5]}">{name}</div>').found & _EDITORS

"""Formulas in the text of pages: the LaTeX of every form, once, and in its place in the sentence."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from selectolax.lexbor import LexborHTMLParser

from pipelines.algorithms.blocks.mathml import latex_of
from pipelines.algorithms.blocks.page import parse_page
from pipelines.stages.extract.child import RawPage, extract_text
from pipelines.stages.extract.extractors import fast_text

RENDERED = json.loads(Path(__file__).with_name("formulas.json").read_text())
# The markup of sites, plugins and generators: names of forms, their HTML, and their text, as in the tables below.
FORMS = json.loads(Path(__file__).with_name("formula_forms.json").read_text())
SENTENCE = "The river rises in the hills above the town and flows through a valley with many small villages. "
LOADS_MATHJAX = """<script>MathJax = {tex: {inlineMath: [['$', '$'], ['\\\\(', '\\\\)']]}};</script>
<script src="https://cdn.jsdelivr.net/npm/mathjax@3/es5/tex-chtml.js"></script>"""


AFTER = "In the summer many people from the city come to swim here, and most of them stay until the evening. "


def extract(body: str, head: str = "") -> str:
    """Return the text of an article that contains a paragraph, without those around it."""
    page = f"<html><head><title>A river</title>{head}</head><body><article><h1>A river</h1><p>{SENTENCE * 3}</p>"
    text = fast_text(f"{page}{body}<p>{AFTER * 3}</p></article></body></html>".encode(), None).text
    rest = text.partition((3 * SENTENCE).strip() + "\n\n")[2]
    return rest.partition("\n\n" + (3 * AFTER).strip())[0]


def katex(source: str, display: str = "") -> str:
    return (
        f'<span class="katex"><span class="katex-mathml"><math{display}><semantics><mrow><mi>x</mi></mrow><annotation '
        f'encoding="application/x-tex">{source}</annotation></semantics></math></span><span class="katex-html" '
        'aria-hidden="true"><span class="base"><span class="mord mathnormal">x</span></span></span></span>'
    )


WIKIPEDIA = (
    '<span class="mwe-math-element mwe-math-element-{0}"><span class="mwe-math-mathml-{0} mwe-math-mathml-a11y" '
    'style="display: none;"><math xmlns="http://www.w3.org/1998/Math/MathML"{1} '
    'alttext="{{\\displaystyle x_{{i}}^{{2}}}}">'
    "<semantics><mrow><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup></mrow><annotation "
    'encoding="application/x-tex">{{\\displaystyle x_{{i}}^{{2}}}}</annotation></semantics></math></span><img '
    'src="https://wikimedia.org/api/rest_v1/media/math/render/svg/18f6" class="mwe-math-fallback-image-{0}" '
    'aria-hidden="true" style="vertical-align: -1.171ex" alt="{{\\displaystyle x_{{i}}^{{2}}}}"></span>'
)
LATEXML = (
    '<math id="S1.p1.m1" class="ltx_Math" alttext="\\displaystyle x_{i}&lt;y" display="DISPLAY"><semantics><mrow>'
    '<msub><mi>x</mi><mi>i</mi></msub><mo>&lt;</mo><mi>y</mi></mrow><annotation-xml encoding="MathML-Content"><apply>'
    '<lt></lt><ci>y</ci></apply></annotation-xml><annotation encoding="application/x-tex">'
    "\\displaystyle x_{i}%\n&lt;y</annotation></semantics></math>"
)
ZHIHU = (
    '<span class="ztext-math" data-eeimg="1" data-tex="x^2"><span></span><span><span class="MathJax_Preview" '
    'style="color: inherit;"></span><span class="MathJax_SVG" id="MathJax-Element-1-Frame"><svg><g></g></svg></span>'
    '<script type="math/tex;mode=inline" id="MathJax-Element-1">x^2</script></span></span>'
)
# The name of a form, its HTML, and its text in a sentence.
INLINE: dict[str, tuple[str, str]] = {
    "MathJax script": ('<script type="math/tex">x_1 &lt; y</script>', "$x_1 < y$"),
    "MathJax script, raw": ('<script type="math/tex">x_1 < y & z</script>', "$x_1 < y & z$"),
    "MathJax script, preview": (
        '<span class="MathJax_Preview">\\(x\\)</span><script type=math/tex>x^2</script>', "$x^2$"),
    "MathJax script, CDATA": ('<script type="math/tex">% <![CDATA[\na < b %]]></script>', "$a < b$"),
    "MathJax AsciiMath": ('<script type="math/asciimath">sum_(i=1)^n i</script>', "`sum_(i=1)^n i`"),
    "AsciiMath in backquotes": ("`sum_(i=1)^n i`", "`sum_(i=1)^n i`"),
    "MathJax MathML": (
        '<script type="math/mml"><math><msup><mi>x</mi><mn>2</mn></msup></math></script>', "$x^2$"),
    "KaTeX": (katex(r"\frac{a}{b} &lt; c"), r"$\frac{a}{b} < c$"),
    "KaTeX, two": (katex("a") + katex("b"), "$a$ $b$"),
    "KaTeX error": ('<span class="katex-error" title="ParseError" style="color:#cc0000">\\foo{</span>'
                    + katex("b"), "$\\foo{$ $b$"),
    "Wikipedia": (WIKIPEDIA.format("inline", ""), r"${\displaystyle x_{i}^{2}}$"),
    "Wikipedia image": (
        '<img class="mwe-math-fallback-image-inline" src="/math/0/c.png" alt="{\\displaystyle {\\frac {a}{b}}}">',
        r"${\displaystyle {\frac {a}{b}}}$"),
    "Wikipedia, old image": (
        '<img class="tex" alt="E=mc^2" src="//upload.wikimedia.org/math/9/f/1/9f.png">', "$E=mc^2$"),
    "LaTeXML": (LATEXML.replace("DISPLAY", "inline"), r"$\displaystyle x_{i}<y$"),
    "MathML alttext": ('<math alttext="x_{i}"><msub><mi>x</mi><mi>i</mi></msub></math>', "$x_{i}$"),
    "MathML": ("<math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mi>c</mi></mfrac></math>", r"$\frac{a+b}{c}$"),
    "MathML, alttext in words": (
        '<math alttext="x to the power"><msup><mi>x</mi><mi>α</mi></msup></math>', r"$x^{\alpha}$"),
    "WordPress": (
        '<img src="https://s0.wp.com/latex.php?latex=%5Cfrac%7Ba%7D%7Bb%7D&#038;bg=ffffff&#038;fg=000000&#038;s=0" '
        'alt="&#92;frac{a}{b}" class="latex" />', r"$\frac{a}{b}$"),
    "WordPress, lazy alt": (
        '<img src="https://s0.wp.com/latex.php?zoom=2&amp;latex=%5Cfrac%7Ba%7D%7Bb%7D&amp;bg=fff" alt="formula">',
        r"$\frac{a}{b}$"),
    "CodeCogs": (
        '<img src="https://latex.codecogs.com/gif.latex?\\inline&amp;space;\\dpi{150}&amp;space;\\alpha&amp;space;&amp;plus;'
        '&amp;space;x%5E2" title="x">', r"$\alpha + x^2$"),
    "CodeCogs SVG": ('<img src="https://latex.codecogs.com/svg.image?\\bg_white&space;x^2" alt="">', "$x^2$"),
    "mimeTeX": ('<img src="/cgi-bin/mimetex.cgi?\\large x^2+y" alt="">', "$x^2+y$"),
    "mathTeX": ('<img src="http://www.forkosh.com/mathtex.cgi?\\frac%7B1%7D2">', r"$\frac{1}2$"),
    "Moodle TeX filter": (
        '<a href="#"><img class="texrender" title="x^2" alt="x^2" src="https://m.example/filter/tex/pix.php/1.gif"></a>',
        "$x^2$"),
    "Moodle MathJax filter": (
        '<span class="filter_mathjaxloader_equation"><span class="nolink">\\(x^2\\)</span></span>', "$x^2$"),
    "Sphinx image": ('<img class="math" src="_images/math/6f8.png" alt="a^2 + b^2"/>', "$a^2 + b^2$"),
    "Sphinx MathJax": ('<span class="math notranslate nohighlight">\\(a^2\\)</span>', "$a^2$"),
    "LaTeX2HTML": ('<img width="13" src="img1.png" alt="$ x_{1}$">', "$x_{1}$"),
    "Art of Problem Solving": (
        '<img src="//latex.artofproblemsolving.com/a/b.png" class="latex" alt="$x^2$">', "$x^2$"),
    "data-latex": ('<span data-latex="x^2"><svg></svg>x2</span>', "$x^2$"),
    "data-tex": ('<span data-tex="x^2">x<sup>2</sup></span>', "$x^2$"),
    "data-math": ('<span class=math-inline data-math="x^2">…</span>', "$x^2$"),
    "data-expr": ('<span data-expr="x^2"></span>', "$x^2$"),
    "Zhihu": (ZHIHU, "$x^2$"),
    "Zhihu image": ('<img src="https://www.zhihu.com/equation?tex=x%5E2" alt="x^2" eeimg="1"/>', "$x^2$"),
    "CSDN": ('<span class="katex--inline">' + katex("x ^2") + "</span>", "$x ^2$"),
    "Notion": ('<span class="notion-text-equation-token" data-token-index="1">' + katex("x^2") + "</span>", "$x^2$"),
    "pandoc KaTeX": ('<span class="math inline">x^2</span>', "$x^2$"),
    "pandoc MathJax": ('<span class="math inline">\\(x^2\\)</span>', "$x^2$"),
    "Discourse": ('<span class="math">x^2</span>', "$x^2$"),
    "GitLab": ('<code class="code math js-render-math" data-math-style="inline">x^2</code>', "$x^2$"),
    "GitHub": ('<math-renderer class="js-inline-math">$x^2$</math-renderer>', "$x^2$"),
    "Stack Exchange": ('<span class="math-container">$x^2$</span>', "$x^2$"),
    "parentheses": ("\\(x_1 &lt; y_2\\)", "$x_1 < y_2$"),
    "parentheses, breaks": ("\\( x_1<br>\n&nbsp;= y \\)", "$x_1 = y$"),
    "tex": ("[tex]x^2[/tex]", "$x^2$"),
    "itex": ("[itex]x^2[/itex]", "$x^2$"),
    "latex": ("[latex]x^2[/latex]", "$x^2$"),
    "math": ("[math]x^2[/math]", "$x^2$"),
    "colors": (r"\(\color{red}{x} + \textcolor{blue}{y} + \color[rgb]{1,0,0} z\)", "$x + y + z$"),
    "emphasis": ("\\(\\hat{a}<em>1 + b</em>2\\)", r"$\hat{a}_1 + b_2$"),
    "emphasis across formulas": ("\\(a<em>i\\) and \\(b</em>i\\)", "$a_i$ and $b_i$"),
    "stars": ("\\(f^<em> + g^</em>\\)", "$f^* + g^*$"),
    "indices": ("\\(x<sub>i</sub><sup>2</sup>\\)", "$x_{i}^{2}$"),
    "prime": ("\\(f’(x)\\)", "$f'(x)$"),
}  # fmt: skip
DISPLAY: dict[str, tuple[str, str]] = {
    "MathJax script": ('<script type="math/tex; mode=display">x_1 < y</script>', "$$x_1 < y$$"),
    "MathJax script, preview": (
        '<span class="MathJax_Preview">[x]</span><script type="math/tex; mode=display">x^2</script>', "$$x^2$$"),
    "KaTeX": (f'<span class="katex-display">{katex("x^2", " display=block")}</span>', "$$x^2$$"),
    "Docusaurus": (f'<span class="katex-display">{katex("x^2")}</span>', "$$x^2$$"),
    "CSDN": (f'<span class="katex--display"><span class="katex-display">{katex("x^2")}</span></span>', "$$x^2$$"),
    "Wikipedia": (WIKIPEDIA.format("block", ' display="block"'), r"$${\displaystyle x_{i}^{2}}$$"),
    "Wikipedia image": (
        '<img class="mwe-math-fallback-image-display" alt="{\\displaystyle x^{2}}">', r"$${\displaystyle x^{2}}$$"),
    "LaTeXML": (LATEXML.replace("DISPLAY", "block"), r"$$\displaystyle x_{i}<y$$"),
    "MathML": ("<math display=block><msup><mi>x</mi><mn>2</mn></msup></math>", "$$x^2$$"),
    "Zhihu": (ZHIHU.replace('eeimg="1"', 'eeimg="2"'), "$$x^2$$"),
    "GitHub": ('<math-renderer class="js-display-math">$$x^2$$</math-renderer>', "$$x^2$$"),
    "MathWorld": ('<img src="/images/equations/a.svg" class="numberedequation" alt="x^2">', "$$x^2$$"),
    "Art of Problem Solving": ('<img src="//latex.example/b.png" class="latexcenter" alt="\\[x^2\\]">', "$$x^2$$"),
    "brackets": ("<br>\n\\[x_1<br> &lt; y_2\\]<br>", "$$x_1 < y_2$$"),
    "dollars": ("$$\nx_1 + y_2\n$$", "$$x_1 + y_2$$"),
    "equation": (r"\begin{equation}x^2\end{equation}", r"$$\begin{equation}x^2\end{equation}$$"),
    "align": (
        r"\begin{align*}a &amp;= b \\ c &amp;= d\end{align*}", r"$$\begin{align*}a &= b \\ c &= d\end{align*}$$"),
    "displaymath": (r"\begin{displaymath}x^2\end{displaymath}", "$$x^2$$"),
}  # fmt: skip
# Elements that are a paragraph of their own.
PARAGRAPHS: dict[str, tuple[str, str]] = {
    "brackets": ("<p>\\[x_1 = y_2\\]</p>", "$$x_1 = y_2$$"),
    "Sphinx image": (
        '<div class="math"><p><img src="_images/math/6f8.png" alt="a^2 + b^2"/></p></div>', "$$a^2 + b^2$$"),
    "Sphinx MathJax": ('<div class="math notranslate nohighlight">\\[a^2 = 1\\]</div>', "$$a^2 = 1$$"),
    "pandoc": ('<p><span class="math display">\\[a^2 = 1\\]</span></p>', "$$a^2 = 1$$"),
    "Discourse": ('<div class="math">a^2 = 1</div>', "$$a^2 = 1$$"),
    "docutils": ('<pre class="math">a^2 = 1</pre>', "$$a^2 = 1$$"),
    "GitLab": ('<pre class="code math js-render-math" data-math-style="display">a^2 = 1</pre>', "$$a^2 = 1$$"),
    "WordPress": (
        '<p align="center"><img src="https://s0.wp.com/latex.php?latex=%5Cdisplaystyle+x" alt="\\displaystyle x^2=1" '
        'class="latex"></p>', r"$$\displaystyle x^2=1$$"),
    "CodeCogs": ('<p><img src="https://latex.codecogs.com/png.latex?x%5E2=1"></p>', "$$x^2=1$$"),
    "Notion": ('<figure class="equation"><div class="equation-container"><span class="katex-display">'
               + katex("x^2=1") + "</span></div></figure>", "$$x^2=1$$"),
    "Jupyter": ('<div class="jp-RenderedHTMLCommon jp-RenderedMarkdown">\n<p>$$x^2=1$$</p>\n</div>', "$$x^2=1$$"),
    "Medium": ('<figure><div class="katex-block"><span class="katex-display">' + katex("x^2=1")
               + "</span></div></figure>", "$$x^2=1$$"),
}  # fmt: skip


INLINE |= FORMS["inline"]
DISPLAY |= FORMS["display"]
PARAGRAPHS |= FORMS["paragraphs"]
SENTENCE_WITH = "The value {} of the river is small, as everybody in the town knows."


@pytest.mark.parametrize("form", INLINE)
def test_a_formula_within_a_line(form: str) -> None:
    html, latex = INLINE[form]
    assert extract(f"<p>{SENTENCE_WITH.format(html)}</p>") == SENTENCE_WITH.format(latex)


@pytest.mark.parametrize("form", DISPLAY)
def test_a_displayed_formula_has_a_line_of_its_own(form: str) -> None:
    html, latex = DISPLAY[form]
    text = extract(f"<p>{SENTENCE_WITH.format(html)}</p>").replace("\n\n", "\n")  # some are block-level elements
    assert text == f"The value\n{latex}\nof the river is small, as everybody in the town knows."


@pytest.mark.parametrize("form", PARAGRAPHS)
def test_a_paragraph_that_is_a_formula_is_kept(form: str) -> None:
    html, latex = PARAGRAPHS[form]
    before, after = "This is the value of the river in the summer:", "where the value is small, as everybody knows."
    assert extract(f"<p>{before}</p>{html}<p>{after}</p>") == f"{before}\n\n{latex}\n\n{after}"


@pytest.mark.parametrize("case", RENDERED, ids=lambda case: f"{case['engine']} {case['source']}")
def test_a_typeset_formula_is_its_source(case: dict[str, Any]) -> None:
    latex = "\n$$" + case["source"] + "$$\n" if case["display"] else " $" + case["source"] + "$ "
    text = extract(f"<div>{case['html'].replace('after.', 'after the rain is what the town knows.')}</div>")
    if case["engine"] == "MathJax 3":  # the source is not kept: MathML is converted, which has no spaces
        text, latex = re.sub(r"(?<=\$).*(?=\$)", lambda match: match[0].replace(" ", ""), text), latex.replace(" ", "")
        latex = latex if case["display"] else f" {latex} "
    assert text == f"Before{latex}after the rain is what the town knows."


@pytest.mark.parametrize(
    "html",
    [
        "costs $5 and $6, or $$7", "is $, $$ or $$$ a night", "is $$ - $$$", "\\(is not closed", "\\(x \\[y z",
        "$$ is not closed", "\\[is not closed</p><p>and not here\\]", "\\begin{equation} x", "[math] is open",
        "[/tex] is closed", '\\( -name "*.c" -o -x \\)', "\\(see above\\)", "\\(x <b>is open\\) to</b> all",
        f"\\({'x + ' * 2600}\\)", "`x` is code", "[tex]a[/latex]", "C:\\begin\\[x",
        '<span class="math">Mathematics is hard</span>', "<span data-tex=true>x</span>", '<img alt="$5 off" src="x">',
        '<img alt="A formula of success" class="math">', "<math></math>", "<body data-tex='x=1'>z",
    ],
)  # fmt: skip
def test_what_is_not_a_formula_is_left_as_it_is(html: str) -> None:
    text = " ".join(LexborHTMLParser(f"<p>The river {html} of").text().split())
    got = extract(f"<p>The river {html} of the valley, as everybody in the town knows well.</p>")
    assert got.replace("\n\n", "") == f"{text} the valley, as everybody in the town knows well."


def test_a_formula_in_code_is_code() -> None:
    assert extract("<p>Write <code>\\(x\\)</code> or <code>[tex]x[/tex] $$y$$</code> for \\(x\\) in a text.</p>") == (
        "Write \\(x\\) or [tex]x[/tex] $$y$$ for $x$ in a text."
    )
    segments = parse_page("<pre>\\[x\n$$y$$\\]</pre><textarea>\\(x\\)</textarea><p>\\(x\\)").segments
    assert segments.text.tobytes() == b"\\[x\n$$y$$\\]$x$"


@pytest.mark.parametrize("form", FORMS["with MathJax"])
def test_single_dollars_on_a_page_with_mathjax(form: str) -> None:
    html, text = FORMS["with MathJax"][form]
    assert extract(f"<p>{SENTENCE_WITH.format(html)}</p>", LOADS_MATHJAX) == SENTENCE_WITH.format(text)


@pytest.mark.parametrize("form", FORMS["without MathJax"])
def test_single_dollars_on_a_page_without_mathjax(form: str) -> None:
    html, text = FORMS["without MathJax"][form]
    assert extract(f"<p>{SENTENCE_WITH.format(html)}</p>") == SENTENCE_WITH.format(text)


@pytest.mark.parametrize("form", FORMS["heads"])
def test_markdown_in_single_dollars_is_undone_however_the_page_loads_mathjax(form: str) -> None:
    text = extract(f"<p>{SENTENCE_WITH.format('$a<em>1 + b</em>2$')}</p>", FORMS["heads"][form])
    assert text == SENTENCE_WITH.format("$a_1 + b_2$")


def test_a_row_of_latexml_is_one_formula() -> None:
    row = (
        '<tr class="ltx_equation ltx_eqn_row"><td class="ltx_eqn_cell ltx_eqn_center_padleft"></td><td><math alttext='
        '"\\displaystyle v" class="ltx_Math" display="inline"><mi>v</mi></math></td><td><math class="ltx_Math" alttext='
        '"\\displaystyle=\\beta_{1}c" display="inline"><mo>=</mo></math></td><td class="ltx_eqn_cell ltx_eqn_eqno">'
        '<span class="ltx_tag ltx_tag_equation">(1)</span></td></tr>'
    )
    table = f'<table class="ltx_equationgroup ltx_eqn_eqnarray"><tbody>{row}{row.replace("(1)", "(2)")}</tbody></table>'
    text = extract(f"<p>This is the value of the river:</p>{table}<p>where the value is small, as everybody knows.</p>")
    assert text.split("\n")[2:4] == [f"$$v =\\beta_{{1}}c$$\t({number})" for number in "12"]


def test_an_image_that_is_loaded_later_and_its_copy_are_one_formula() -> None:
    image = '<img class="ql-img-inline-formula" alt="\\lambda_1" src="data:image/gif;base64,R0">'
    for html in (f"{image}<noscript>{image}</noscript>", f"<noscript>{image}</noscript>"):
        assert extract(f"<p>{SENTENCE_WITH.format(html)}</p>") == SENTENCE_WITH.format("$\\lambda_1$")


def test_delimiters_without_a_counterpart_do_not_disturb_later_formulas() -> None:
    text = "A stray \\( and a stray $$ and \\[ here, in the town."
    html = f"<p>{text}</p><p>$$x_1=1$$</p><p>And \\(y_2\\) is in the valley, too.</p>"
    assert extract(html) == f"{text}\n\n$$x_1=1$$\n\nAnd $y_2$ is in the valley, too."


def test_money_and_formulas_on_one_page() -> None:
    text = "It costs ($5) or ($6), and $x_1$ and $y$, and $5, which is $z^2 + 1$. Then $7 or $8 and $9 for all of them."
    assert extract(f"<p>{text}</p>", LOADS_MATHJAX) == text


def test_titles_have_the_source_of_formulas() -> None:
    heading = f"<title>On $x^2$ and more - A site</title><body><h1>On {katex('x^2')} and more</h1>"
    page = RawPage(f"{heading}<p>{SENTENCE * 3}</p><p>{AFTER * 3}</p>".encode(), "text/html", None)
    assert extract_text(fast_text, page).title == "On $x^2$ and more"


@pytest.mark.parametrize(
    ("mathml", "latex"),
    [
        ("<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>", "x_i^2"),
        ("<msup><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>10</mn></msup>", "{a+b}^{10}"),
        ("<mroot><mi>x</mi><mn>3</mn></mroot><msqrt><mi>π</mi><mi>x</mi></msqrt>", r"\sqrt[3]{x}\sqrt{\pi x}"),
        ("<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover><mi>i</mi>",
         r"\sum_{i=1}^ni"),
        ("<munder><mo>lim</mo><mrow><mi>x</mi><mo>→</mo><mn>0</mn></mrow></munder><mi>sin</mi><mi>x</mi>",
         r"\lim_{x\to 0}\sin x"),
        ("<mover><mi>x</mi><mo>^</mo></mover><mover><mrow><mi>a</mi><mi>b</mi></mrow><mo>¯</mo></mover>",
         r"\hat{x}\overline{ab}"),
        ("<mrow><mo>(</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>0</mn></mtd></mtr><mtr><mtd><mn>0</mn></mtd><mtd>"
         "<mn>1</mn></mtd></mtr></mtable><mo>)</mo></mrow>", r"\begin{pmatrix}1 & 0 \\ 0 & 1\end{pmatrix}"),
        ("<mtable columnalign='right left'><mtr><mtd><mi>y</mi></mtd><mtd><mo>=</mo><mn>1</mn></mtd></mtr></mtable>",
         r"\begin{aligned}y & =1\end{aligned}"),
        ("<mrow><mo>(</mo><mfrac linethickness='0'><mi>n</mi><mi>k</mi></mfrac><mo>)</mo></mrow>", r"\binom{n}{k}"),
        ("<msup><mrow><mo>(</mo><mfrac><mi>a</mi><mi>b</mi></mfrac><mo>)</mo></mrow><mn>2</mn></msup>",
         r"\left(\frac{a}{b}\right)^2"),
        ("<mo>‖</mo><mi>u</mi><msub><mo>‖</mo><mn>2</mn></msub><mi>A</mi><mo>∣</mo><mi>B</mi>", r"\|u\|_2A\mid B"),
        ("<mfenced open='[' close=')'><mi>a</mi><mi>b</mi></mfenced>", "[a, b)"),
        ("<mstyle><mpadded><mi mathvariant='double-struck'>R</mi><mi>ℝ</mi><mi>𝐱</mi></mpadded></mstyle>",
         r"\mathbb{R}\mathbb{R}\mathbf{x}"),
        ("<mi>Var</mi><mo>&#x2061;</mo><mtext>if </mtext><mspace></mspace><mphantom><mi>x</mi></mphantom><mo>%</mo>",
         r"\operatorname{Var}\text{if }\phantom{x}\%"),
        ("<menclose><mi>x</mi></menclose><mi>f</mi><mo>′</mo><semantics><mi>y</mi><annotation>z"
         "</annotation></semantics>", r"xf'y"),
        ("<mover><mo>→</mo><mi>f</mi></mover><mfrac linethickness='0'><mi>n</mi><mi>k</mi></mfrac>",
         r"\xrightarrow{f}{n \atop k}"),
        ("<mrow>" * 150 + "<mi>x</mi>", ""),
    ],
)  # fmt: skip
def test_mathml_without_a_source_is_converted(mathml: str, latex: str) -> None:
    assert latex_of(LexborHTMLParser(f"<math>{mathml}</math>").css_first("math")) == latex


@pytest.mark.parametrize(
    "part",
    ["\\(", "\\[", "$$", "$$ <p>", "[tex]", "\\begin{align}", "<em>", "a<em>\\)\\(", "\\\\)", "\u206a", "<code>",
     "<br> \u206b",
     "<span class=MathJax>", "<span data-tex=x_1><p>", "<math>", "<msub>", "\\( <b>",
     "<img class=tex alt='$x'>", "{\\color{", "$x_", "$$$x", "\\begin{array}", "$a<em>", "MathJax $ a_",
     "<table><tr class=ltx_eqn_row><td><math><mi>x", "<noscript><img class=tex alt=x_1>"],
)  # fmt: skip
def test_the_time_does_not_grow_with_the_square_of_a_page(part: str) -> None:
    parse_page("<p>\\(x\\)")  # compiled
    start = time.process_time()
    parse_page(f"<math></math><p>{part * (200_000 // len(part))}\\)")
    assert time.process_time() - start < 4

"""Typesets formulas with MathJax 2.7, 3 and 4 and KaTeX in Chromium, and writes formulas.json, which the tests read.

npm install mathjax2@npm:mathjax@2.7.9 mathjax3@npm:mathjax@3 mathjax4@npm:mathjax@4 katex
python tests/algorithms/render_formulas.py node_modules
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FORMULAS = [
    r"E = mc^2", r"\frac{a+b}{c}", r"\sqrt[3]{x} < 1", r"\sum_{i=1}^n a_i", r"\int_0^\infty f(x)\,dx",
    r"\alpha_1 \le \beta^{2}",
    r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", r"\lim_{x \to 0} \frac{\sin x}{x}", r"f'(x) \in \mathbb{R}",
    r"\hat{\theta}_n \to \theta", r"x \text{ if } x > 0", r"\overline{A \cup B}",
]  # fmt: skip
_MATHJAX2 = '<script src="mathjax2/MathJax.js?config=TeX-AMS_%s"></script>'
ENGINES = {
    "MathJax 2.7 HTML-CSS": _MATHJAX2 % "HTML",
    "MathJax 2.7 CommonHTML": _MATHJAX2 % "CHTML",
    "MathJax 3": '<script src="mathjax3/es5/tex-mml-chtml.js"></script>',
    "MathJax 4": "<script>MathJax = {output: {fontPath: document.baseURI + '@mathjax/%%FONT%%-font'}, "
    "options: {enableSpeech: false, enableBraille: false}}</script>"
    '<script src="mathjax4/tex-mml-chtml.js"></script>',
    "KaTeX": '<script src="katex/dist/katex.min.js"></script>'
    '<script src="katex/dist/contrib/auto-render.min.js"></script>'
    "<script>document.addEventListener('DOMContentLoaded', () => renderMathInElement(document.body))</script>",
}  # fmt: skip


def main() -> None:
    modules = Path(sys.argv[1]).resolve()
    rendered = []
    for number, (engine, scripts) in enumerate(ENGINES.items()):
        # Two or three formulas per engine keep the file small.
        formulas = FORMULAS[number :: len(ENGINES)]
        cases = [(formula, is_display) for formula in formulas for is_display in (False, True)]
        delimited = [rf"\[{source}\]" if is_display else rf"\({source}\)" for source, is_display in cases]
        body = "".join(f"<div class=case>Before {html.escape(text)} after.</div>" for text in delimited)
        page = f"<!doctype html><head><base href='{modules.as_uri()}/'>{scripts}</head><body>{body}</body>"
        with tempfile.NamedTemporaryFile("w", suffix=".html") as file:
            file.write(page)
            file.flush()
            command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
            command += ["--virtual-time-budget=30000", "--dump-dom", f"file://{file.name}"]
            dom = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout
        parts = re.findall(r'<div class="case">(.*? after\.)</div>', dom, re.DOTALL)
        # Styles and identifiers take most of the space, and are not read.
        parts = [
            re.sub(r' (?:style|data-semantic-[\w-]+|data-speech-\w+|tabindex|role)="[^"]*"', "", part) for part in parts
        ]
        for (source, is_display), part in zip(cases, parts, strict=True):
            rendered.append({"engine": engine, "source": source, "display": is_display, "html": part})
    text = json.dumps(rendered, ensure_ascii=False, indent=1) + "\n"
    Path(__file__).with_name("formulas.json").write_text(text)


if __name__ == "__main__":
    main()

"""An extractor that starts quickly, in a module that a child process imports quickly."""

from __future__ import annotations

import re

from pipelines.stages.extract.extractors import Extracted


def first_paragraph(page: bytes, url: str | None, content: str = "auto") -> Extracted:
    """Return the first paragraph of a page."""
    return Extracted(None, re.sub("<[^>]*>", " ", page.decode().partition("<p>")[2].partition("</p>")[0]))


def paragraphs(page: bytes, url: str | None, content: str = "auto") -> Extracted:
    """Return the paragraphs of a page as its text and, with every second one dropped, as its blocks."""
    html = page.decode()
    texts = re.findall("<p>(.*?)</p>", html)
    title = html.partition("<title>")[2].partition("</title>")[0]
    blocks = [(text, 0.5, number % 2 == 0) for number, text in enumerate(texts)], len(texts)
    return Extracted(title, "\n\n".join(texts), page_type="forum", confidence=0.5, list_blocks=lambda: blocks)

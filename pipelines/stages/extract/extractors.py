"""The extractors: plain functions from a page's HTML in UTF-8 and URL to its title and main text.

They run in a child process (`child.py`), and only there are the parsers imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipelines import storage
from pipelines.algorithms.web.text_repair import fix_mojibake
from pipelines.stages.extract.config import ExtractConfig
from pipelines.storage.resources import data_path

if TYPE_CHECKING:
    from pipelines.algorithms.blocks.model import Choice
    from pipelines.algorithms.blocks.segmentation import Segments
    from pipelines.algorithms.web.metadata import Declared

# Parsers resolve relative links against the URL, which a page from a file lacks; no link is followed.
_NO_URL = "http://page.invalid/"

_TABLE_ROW = re.compile(r"^\|.*\|\s*$")
_RULE = re.compile(r"^:?-{3,}:?$")


# The report shows at most this much of a page.
SHOWN_BLOCKS, SHOWN_CHARACTERS = 300, 20_000


# The first blocks of a page in reading order (text, probability that it is main content, whether it is kept), and the
# number of all its blocks.
Blocks = tuple[list[tuple[str, float, bool]], int]


@dataclasses.dataclass(frozen=True, slots=True)
class Extracted:
    """The title (None if there is none) and main text (possibly empty) of a page.

    `declared` is what the page declares, if the extractor reads it, which saves parsing the page again. `is_fixed` says
    that mojibake was repaired, which is then done in the metadata, too. Only `fast` provides `page_type`, `confidence`
    (the expected F1) and `list_blocks`. `plain` is the text without Markdown, if the text has some; it decides whether
    the page is a document. `why_nothing` says why `fast` keeps no text.
    """

    title: str | None
    text: str
    declared: Declared | None = dataclasses.field(default=None, compare=False)
    is_fixed: bool = False
    page_type: str | None = None
    confidence: float | None = None
    list_blocks: Callable[[], Blocks] | None = dataclasses.field(default=None, compare=False)
    plain: str | None = None
    why_nothing: str | None = None


Extractor = Callable[..., Extracted]


def trafilatura_text(html: bytes, url: str | None, *, markdown: bool = False) -> Extracted:
    """Extract with trafilatura: text with its tables, without comments, images and links, and markup of plain text."""
    import trafilatura
    from trafilatura.metadata import extract_title

    tree = trafilatura.load_html(html.decode())
    if tree is None:
        return Extracted(None, "")
    # trafilatura's own `with_metadata` would also search for dates and authors, which takes longer than the text.
    title = extract_title(tree)
    document = trafilatura.bare_extraction(
        tree,
        url=url or _NO_URL,
        include_comments=False,
        include_tables=True,
        include_formatting=markdown,
        deduplicate=False,  # the text of a page would depend on earlier pages
        with_metadata=False,
    )
    text = getattr(document, "text", None) or ""
    return Extracted(title, text if markdown else _convert_tables(text))


def newspaper_text(html: bytes, url: str | None) -> Extracted:
    """Extract with newspaper4k (or newspaper3k, whose module has the same name), without network access."""
    with warnings.catch_warnings():
        # It warns that nltk is not installed, which only keywords and summaries need.
        warnings.filterwarnings("ignore", message="nltk is not installed", category=UserWarning)
        import newspaper
    text = html.decode()
    article = None
    # The page's language may need a tokenizer that is not installed, or (LookupError) data that nltk downloads.
    with contextlib.suppress(ImportError, LookupError):
        article = _parsed(newspaper, text, url, {})
    if article is None or not article.text:  # the page may declare another language than that of its text
        article = _parsed(newspaper, text, url, {"language": "en"})
    return Extracted(article.title or None, article.text or "")


def fast_text(html: bytes, url: str | None, content: str = "auto", *, markdown: bool = False) -> Extracted:
    """Extract with webtext's own classifier of blocks; see `choose_blocks` for `content`."""
    from pipelines.algorithms.blocks.markdown import render_markdown
    from pipelines.algorithms.blocks.model import choose_blocks, load_model
    from pipelines.algorithms.blocks.page import parse_page
    from pipelines.algorithms.blocks.rendering import render_blocks

    page = parse_page(html)
    choice = choose_blocks(load_model(data_path(MODEL)), page, url, content)
    layout = render_blocks(page.segments, choice.keep)
    return Extracted(
        page.declared.title or None,
        render_markdown(page.segments, layout) if markdown else layout.text,
        page.declared,
        page_type=choice.kind,
        confidence=choice.confidence,
        list_blocks=lambda: _first_blocks(page.segments, choice),
        plain=layout.text if markdown else None,
        why_nothing=choice.why_nothing and f"no block is kept: {choice.why_nothing}",
    )


def _first_blocks(segments: Segments, choice: Choice) -> Blocks:
    """Return the blocks of a page, up to the size that the report shows."""
    shown: list[tuple[str, float, bool]] = []
    left = SHOWN_CHARACTERS
    for number in range(min(len(choice.keep), SHOWN_BLOCKS)):
        text = block_text(segments, number, left)
        shown.append((text, round(float(choice.shares[number]), 3), bool(choice.keep[number])))
        left -= len(text)
        if left <= 0:
            break
    return shown, len(choice.keep)


def block_text(segments: Segments, number: int, characters: int) -> str:
    """Return the text of a block, cut after some characters with an ellipsis."""
    from pipelines.algorithms.blocks.segmentation import END, START

    start, end = segments.blocks[number, START], segments.blocks[number, END]
    # UTF-8 takes up to 4 bytes per character.
    text = segments.text[start : min(end, start + 4 * characters + 4)].tobytes().decode("utf-8", "ignore")
    return text if len(text) <= characters else f"{text[:characters]}…"


EXTRACTORS: dict[str, Extractor] = {"fast": fast_text, "trafilatura": trafilatura_text, "newspaper": newspaper_text}


def extractor_of(config: ExtractConfig) -> Extractor:
    """Return the extractor of a config with its options."""
    content = config.content if config.extractor == "fast" else None
    return _with_options(EXTRACTORS[config.extractor], content, config.format == "markdown", config.fix_text)


@functools.cache  # the same object for the same options, so that a process keeps its child
def _with_options(extractor: Extractor, content: str | None, markdown: bool, fix_text: bool) -> Extractor:
    options = ({"content": content} if content else {}) | ({"markdown": True} if markdown else {})
    extractor = functools.partial(extractor, **options)
    return functools.partial(_extract_and_fix, extractor) if fix_text else extractor


def _extract_and_fix(extractor: Extractor, html: bytes, url: str | None) -> Extracted:
    extracted = extractor(html, url)
    title = extracted.title and fix_mojibake(extracted.title)
    return dataclasses.replace(extracted, title=title, text=fix_mojibake(extracted.text), is_fixed=True)


MODEL = "extractor.npz"
# The packages of each extractor. With the last ones of newspaper, it reads Arabic, Bengali, Chinese, Japanese, Thai and
# other texts by their own rules.
_PACKAGES = {
    "trafilatura": ("trafilatura",),
    "newspaper": ("newspaper4k", "newspaper3k", "nltk", "jieba", "tinysegmenter", "pythainlp", "indic-nlp-library"),
    "fast": ("selectolax",),
}


def extractor_version(name: str) -> str:
    """Return the packages of an extractor and ftfy with their versions, and the model of `fast`.

    For example, `trafilatura 2.3.1, ftfy 6.3.1`.
    """
    model = [f"model {storage.sha256_of(data_path(MODEL))[:16]}"] if name == "fast" else []
    return ", ".join(filter(None, [*map(_installed, _PACKAGES[name]), *model, _installed("ftfy")]))


def _installed(package: str) -> str | None:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _convert_tables(text: str) -> str:
    """Rewrite the Markdown tables of trafilatura as lines of cells separated by tabs."""
    if "|---" not in text:
        return text
    lines = (_convert_row(line) if _TABLE_ROW.match(line) else line for line in text.split("\n"))
    return "\n".join(line for line in lines if line is not None)


def _convert_row(line: str) -> str | None:
    """Return the cells of a table row, or None for the rule below the header."""
    cells = [" ".join(cell.split()) for cell in line.strip().strip("|").split("|")]
    if all(_RULE.match(cell) for cell in cells):
        return None
    return "\t".join(cell for cell in cells if cell)


def _parsed(newspaper: Any, html: str, url: str | None, settings: dict[str, Any]) -> Any:
    config = newspaper.Config()
    # These options access the network, or write a cache into the home folder.
    offline = dict.fromkeys(("fetch_images", "follow_meta_refresh", "memoize_articles", "memorize_articles"), False)
    for name, value in {**offline, **settings}.items():
        setattr(config, name, value)
    article = newspaper.Article(url or _NO_URL, config=config)
    article.download(input_html=html)
    article.parse()
    return article

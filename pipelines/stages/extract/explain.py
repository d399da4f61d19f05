"""Explains the extraction of one page: which blocks `fast` keeps, and which features decide."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.features import NAMES, block_features
from pipelines.algorithms.blocks.markup import NAMES as TAG_NAMES
from pipelines.algorithms.blocks.model import BlockModel, Choice, choose_blocks, evaluate, load_model, output_of
from pipelines.algorithms.blocks.page import ParsedPage, parse_html, parse_page
from pipelines.algorithms.blocks.text_features import Floats
from pipelines.algorithms.web.metadata import read_declared
from pipelines.algorithms.web.urls import canonical_url, id_of_url, is_url_id
from pipelines.errors import InputError, UsageError
from pipelines.records import shards
from pipelines.records.archives import RECORD_DAMAGE
from pipelines.records.document_filter import count_words
from pipelines.records.wishes import read_honor
from pipelines.stages.extract.child import Limits, PageReader, RawPage, decode_body, extract_text, html_of
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.extract.extractors import MODEL, Extracted, block_text, extractor_of
from pipelines.stages.extract.pages import FetchedShard, Source, SourcePage, read_exchange, read_pages
from pipelines.stages.extract.stage import drop_reason, open_input
from pipelines.storage.resources import data_path

# Patterns of the names of features; the first that matches gives the group of a feature.
GROUPS = {
    "URL": r"page URL",
    "page": r"page ",
    "class names": r"class value",
    "main container": r"main container|in common with it|blocks to its end|blocks from its start",
    "containers": r"container|share of prose at depth|links at depth",
    "repetition": r"of this kind|equal texts|repeats",
    "last heading": r"last heading",
    "position": r"position|before|after|from the (title|first)",
    "tags": r"distance to|depth|tag|heading level|hidden",
    "words": r"value of words|lowest word|highest word|stop words|words of the title",
}
_OTHER_GROUP = "text"
_SHOWN_GROUPS = 3
_BLOCK_CHARACTERS = 2000


def explain(config: ExtractConfig, target: str, *, pages: Sequence[str]) -> dict[str, Any]:
    """Explain an HTML file, or the page with a URL or id in `pages`, without writing anything.

    `reason` and its `detail` say why the page is dropped; None if it is kept, then `text` is what is written. A block
    has its `text`, `tag`, `words`, the `probability` that it is main content, and whether it `is_kept` or dropped as an
    `is_repetition` of a text that is kept. `moved_by` are the groups of features with the most effect: the change of
    the block's log odds by their values on this page, instead of the middle of their range.

    Raises UsageError for another extractor than `fast`, InputError if there is no such page.
    """
    if config.extractor != "fast":
        raise UsageError(f"--explain shows the blocks of fast; --extractor {config.extractor} has none")
    page = _find_page(target, pages)
    raw = page.content
    fast = extractor_of(config)
    decoded: list[bytes] = []

    def extract_and_remember(html: bytes, url: str | None) -> Extracted:
        extracted = fast(html, url)
        decoded.append(html)
        return extracted

    text = extract_text(extract_and_remember, raw) if isinstance(raw, RawPage) else raw
    text = page.add_signals(text, read_honor(config.honor).agents)
    words = count_words(text.text)
    reason, detail = drop_reason(text, words, config)
    blocks: list[dict[str, Any]] = []
    if decoded and isinstance(raw, RawPage):
        model, parsed = load_model(data_path(MODEL)), parse_page(decoded[0])
        choice = choose_blocks(model, parsed, raw.url, config.content)
        blocks = list(_explain_blocks(model, parsed, choice, raw.url, config.content)) if len(choice.keep) else []
    return {
        "id": page.id,
        "url": page.with_declared_url(text).url,
        "title": text.title,
        "page_type": text.page_type,
        "confidence": text.confidence,
        "reason": reason,
        "detail": detail,
        "words": words,
        "blocks": blocks,
        "text": text.text,
    }


def show_page(config: ExtractConfig, warc: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the page of a row of `webtext fetch`, read from its WARC file.

    `blocks` are those of the report with their number, None with the `problem` and `detail` if there are none; `source`
    is the HTML, if it is text. The parsers run in a child process, at most for the timeout of the config.
    """
    page, headers = read_exchange(warc, row)
    html = None
    if isinstance(page, RawPage):
        page = dataclasses.replace(page, with_blocks=True)
        with contextlib.suppress(*RECORD_DAMAGE):
            html = html_of(decode_body(page), page.content_type)
    limits = Limits(config.timeout, config.memory_limit_mib)
    with contextlib.closing(PageReader(extractor_of(config), limits)) as reader:
        [(_, text)] = reader.extract([(None, page)])
    fields = {"blocks": text.blocks, "problem": text.problem, "detail": text.detail}
    return {"source": (html or b"").decode(), "headers": headers, **fields}


def is_file(target: str) -> bool:
    """Return whether the target is the name of a file, not the URL or id of a web page."""
    return storage.is_file(target) if is_url_id(target) else not target.startswith(("http://", "https://"))


def group_of(feature: str) -> str:
    """Return the group of a feature."""
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, feature)), _OTHER_GROUP)


def _find_page(target: str, pages: Sequence[str]) -> SourcePage:
    if is_file(target) and (storage.is_folder(target) or not (storage.exists(target) or pages)):
        problem = "is a folder" if storage.is_folder(target) else "no such file"
        raise InputError(f"{target}: {problem}; --explain takes an HTML file, or the URL or id of a page in --input")
    if is_file(target) and storage.exists(target):
        [source, *_], *_ = open_input([target], None)
        if not isinstance(source, tuple):
            raise UsageError(f"--explain {target}: is an archive; give the URL of a page, and the archive with --input")
        return next(read_pages(source))
    sources, *_ = open_input(list(pages), None)
    page = next((page for source in sources for page in _pages_like(source, target)), None)
    if page is None:
        raise InputError(f"{target}: no page with this name, URL or id in {', '.join(pages)}")
    return page


def _pages_like(source: Source, target: str) -> Iterator[SourcePage]:
    """Yield the pages of a source with a URL or id; HTML files may declare the URL."""
    url = None
    if isinstance(source, tuple):
        canonical = canonical_url(target)
        yield from (page for page in read_pages(source) if target == page.id or _declares(page, canonical))
        return
    if isinstance(source, FetchedShard):
        # WARC files, whose checksums are verified before they are read, are only read if the page is in one.
        urls = (row["url"] for row in shards.read_rows(source.pages.path, ["url"]))
        url = next((url for url in urls if target == url or ("://" not in target and target == id_of_url(url))), None)
        if url is None:
            return
    yield from (page for page in read_pages(source, url) if target in (page.url, page.id))


def _declares(page: SourcePage, url: str | None) -> bool:
    """Return whether an HTML file declares a canonical URL."""
    raw = page.content
    html = html_of(raw.data, raw.content_type) if url and isinstance(raw, RawPage) else None
    return html is not None and read_declared(parse_html(html).tree).url()[0] == url


def _explain_blocks(
    model: BlockModel, page: ParsedPage, choice: Choice, url: str | None, content: str
) -> Iterator[dict[str, Any]]:
    blocks = page.segments.blocks
    tags = page.segments.tags[blocks[:, seg.ELEMENT]]
    moved = _effects(model, page, url, output_of(content, choice.kind), tags)
    if not page.address(url):
        moved.pop("URL", None)
    names = list(moved)
    effects = np.array(list(moved.values()))
    for number in range(len(blocks)):
        most = np.argsort(-np.abs(effects[:, number]), kind="stable")[:_SHOWN_GROUPS]
        yield {
            "text": block_text(page.segments, number, _BLOCK_CHARACTERS),
            "tag": TAG_NAMES[tags[number]],
            "words": int(blocks[number, seg.WORDS]),
            "probability": round(float(choice.shares[number]), 4),
            "is_kept": bool(choice.keep[number]),
            "is_repetition": bool(choice.are_repeated[number]),
            "moved_by": {names[group]: round(float(effects[group, number]), 2) for group in most},
        }


def _effects(
    model: BlockModel, page: ParsedPage, url: str | None, output: int, tags: npt.NDArray[np.uint8]
) -> dict[str, Floats]:
    """Return by how much each group of features changes the log odds of each block.

    The features of a group are replaced in all blocks of the page, since the network reads neighbours, too.
    """
    words = page.segments.blocks[:, seg.WORDS].astype(np.float32)
    features, block_groups = block_features(page, url, model.tokens, model.words)

    def odds(features: Floats, tags: npt.NDArray[np.uint8]) -> Any:
        return evaluate(model.network, features, block_groups, tags, words)[0][:, output]

    # The network reads square roots between two limits.
    middles = (model.network.low + model.network.high) / 2
    neutral = np.copysign(middles**2, middles)
    groups = np.array([group_of(name) for name in NAMES])
    complete = odds(features, tags)
    effects = {}
    for group in dict.fromkeys(groups.tolist()):
        other_tags = np.zeros_like(tags) if group == "tags" else tags
        effects[group] = complete - odds(np.where(groups == group, neutral, features).astype(np.float32), other_tags)
    return effects

"""The pages with which the block classifier is trained and measured."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.extractor.alignment import hash_words, label_blocks
from pipelines.algorithms.blocks.page import ParsedPage, parse_page, words_of
from pipelines.algorithms.web.urls import registered_domain
from pipelines.stages.extract.child import html_of

GROUPS = 20


@dataclasses.dataclass
class LabelledPage:
    """A page, its main content, and the labels of its blocks; `group` is equal for the pages of a registered domain."""

    id: str
    url: str | None
    kind: str
    page: ParsedPage
    content: str
    words: npt.NDArray[np.uint32]
    labels: npt.NDArray[np.float32]
    group: int = 0


def read_wcxb(folder: Path, seed: int = 0) -> list[LabelledPage]:
    """Read the pages of the Web Content Extraction Benchmark, in folders `html` and `ground-truth`."""
    pages = [_read_page(folder, path) for path in sorted((folder / "ground-truth").glob("*.json"))]
    domains = [registered_domain(page.url) or page.id if page.url else page.id for page in pages]
    names = sorted(set(domains))
    numbers = np.random.default_rng(seed).permutation(len(names))
    group_of = dict(zip(names, (numbers % GROUPS).tolist(), strict=True))
    return [dataclasses.replace(page, group=group_of[domain]) for page, domain in zip(pages, domains, strict=True)]


def read_html(path: Path) -> str:
    """Return the characters of a page as the command decodes them."""
    return html_of(gzip.decompress(path.read_bytes()), None) or ""


def _read_page(folder: Path, path: Path) -> LabelledPage:
    truth: dict[str, Any] = json.loads(path.read_text())
    page = parse_page(read_html(folder / "html" / f"{path.stem}.html.gz"))
    content = truth["ground_truth"].get("main_content") or ""
    words = hash_words(content)
    kind = truth["_internal"]["page_type"]["primary"]
    return LabelledPage(path.stem, truth.get("url"), kind, page, content, words, label_blocks(page.segments, words))


def word_f1(text: str, content: str) -> float:
    """Return the F1 of the multisets of words of a text, 1 if both are empty: the benchmark's own measure."""
    found, expected = Counter(words_of(text)), Counter(words_of(content))
    common = sum((found & expected).values())
    total = sum(found.values()) + sum(expected.values())
    return 2 * common / total if total else 1.0

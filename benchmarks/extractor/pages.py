"""The pages with which the block classifier is trained and measured."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.extractor.alignment import hash_words, label_blocks
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.features import words_of
from pipelines.algorithms.blocks.page import ParsedPage, parse_page
from pipelines.algorithms.web.urls import registered_domain
from pipelines.stages.extract.child import html_of

GROUPS = 20


class AnnotatedPage(NamedTuple):
    """A page of the Web Content Extraction Benchmark: its bytes, its type, and its main content as annotated."""

    id: str
    url: str | None
    kind: str
    html: bytes
    content: str


def read_benchmark(folder: Path, step: int = 1) -> Iterator[AnnotatedPage]:
    """Yield every page of the Web Content Extraction Benchmark in the order of its ids, or every `step`th."""
    for path in sorted((folder / "ground-truth").glob("*.json"))[::step]:
        truth: dict[str, Any] = json.loads(path.read_text())
        html = gzip.decompress((folder / "html" / f"{path.stem}.html.gz").read_bytes())
        content = truth["ground_truth"].get("main_content") or ""
        yield AnnotatedPage(path.stem, truth.get("url"), truth["_internal"]["page_type"]["primary"], html, content)


@dataclasses.dataclass
class LabelledPage:
    """A page and the labels of its blocks, NaN where unknown; pages of one registered domain have the same `group`.

    Of the Web Content Extraction Benchmark the `kind` and the main `content` are known; of trafilatura's evaluation
    only some segments that the text of the article must have, `wanted`, or must not have, `unwanted`.
    """

    id: str
    folder: Path
    url: str | None
    page: ParsedPage
    labels: npt.NDArray[np.float32]
    kind: str | None = None
    content: str = ""
    wanted: Sequence[str] = ()
    unwanted: Sequence[str] = ()
    group: int = 0


def read_pages(folders: Sequence[Path], seed: int = 0) -> list[LabelledPage]:
    """Read the pages of both collections, by the files in the folders, and divide their domains into groups."""
    pages = [page for folder in folders for page in _read_folder(folder)]
    domains = [registered_domain(page.url) or page.id if page.url else page.id for page in pages]
    names = sorted(set(domains))
    numbers = np.random.default_rng(seed).permutation(len(names))
    group_of = dict(zip(names, (numbers % GROUPS).tolist(), strict=True))
    return [dataclasses.replace(page, group=group_of[domain]) for page, domain in zip(pages, domains, strict=True)]


def _read_folder(folder: Path) -> list[LabelledPage]:
    annotations = folder / "annotations.json"
    if annotations.exists():
        items = json.loads(annotations.read_text()).items()
        return [_read_segments(folder, name, item) for name, item in items]
    return [_label_content(folder, page) for page in read_benchmark(folder)]


def _label_content(folder: Path, annotated: AnnotatedPage) -> LabelledPage:
    page = _parse(annotated.html)
    labels = label_blocks(page.segments, hash_words(annotated.content))
    return LabelledPage(
        annotated.id, folder, annotated.url, page, labels, kind=annotated.kind, content=annotated.content
    )


def _read_segments(folder: Path, name: str, item: dict[str, Any]) -> LabelledPage:
    page = _parse(gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes()))
    labels = _label_segments(page.segments, page.are_descriptions(), item["with"], item["without"])
    return LabelledPage(name, folder, item.get("url"), page, labels, wanted=item["with"], unwanted=item["without"])


def _parse(html: bytes) -> ParsedPage:
    return parse_page(html_of(html, None) or b"")


def _label_segments(
    page: seg.Segments, are_descriptions: npt.NDArray[np.bool_], wanted: Sequence[str], unwanted: Sequence[str]
) -> npt.NDArray[np.float32]:
    """Return 1 for the longest block with a wanted segment, 0 for blocks with an unwanted one, NaN for the others.

    A text of the metadata has the segment only if no block of the body has it.
    """
    text = page.text.tobytes()
    rows = zip(page.blocks[:, seg.START], page.blocks[:, seg.END], strict=True)
    texts = [normalize_spaces(text[start:end].decode("utf-8", "replace")) for start, end in rows]
    labels = np.full(len(texts), np.nan, np.float32)
    for segment in unwanted:
        labels[[normalize_spaces(segment) in block for block in texts]] = 0
    for segment in wanted:
        matches = [number for number, block in enumerate(texts) if normalize_spaces(segment) in block]
        if matches:
            labels[max(matches, key=lambda number: (not are_descriptions[number], len(texts[number])))] = 1
    return labels


def normalize_spaces(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def word_f1(text: str, content: str) -> float:
    """Return the F1 of the multisets of words of a text, 1 if both are empty: the benchmark's own measure."""
    found, expected = Counter(words_of(text)), Counter(words_of(content))
    common = sum((found & expected).values())
    total = sum(found.values()) + sum(expected.values())
    return 2 * common / total if total else 1.0

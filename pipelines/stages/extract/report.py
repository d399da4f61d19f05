"""Writes `report.html`: the outcomes of all pages, and the blocks of a few, chosen by the hashes of their ids."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.stage import TaskResult
from pipelines.records import shards
from pipelines.stages.extract.child import PageText, RawPage
from pipelines.stages.extract.extractors import SHOWN_BLOCKS, SHOWN_CHARACTERS
from pipelines.stages.extract.pages import SourcePage

PAGE = "report.html"
SAMPLES = 30
CONFIDENCE_BINS = 20
# Where the number of pages is known, so many times the samples are candidates: the files of the tasks stay small, and
# enough candidates remain if most are dropped before they have blocks.
_CANDIDATES_PER_SAMPLE = 10


class PageTally:
    """What one task contributes: pages by type and outcome, by confidence, and the samples with the smallest hashes."""

    def __init__(self, records: int | None, earlier: str | None = None) -> None:
        """Start with the tally in the file `earlier`, of fewer pages, or with none."""
        self._below = min(1.0, _CANDIDATES_PER_SAMPLE * SAMPLES / records) if records else 1.0
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._confidences = [0] * CONFIDENCE_BINS
        self._samples: list[dict[str, Any]] = []
        if earlier is not None:
            tally = storage.read_json(earlier)
            self._outcomes.update({(kind, reason): count for kind, reason, count in tally["outcomes"]})
            self._confidences = tally["confidences"]
            self._samples = [sample for sample in tally["samples"] if sample["order"] < self._below]

    def mark(self, page: SourcePage) -> RawPage | PageText:
        """Return the content of a page, marked if its blocks are wanted."""
        if isinstance(page.content, PageText) or not self._is_candidate(_hash(page.id)):
            return page.content
        return dataclasses.replace(page.content, with_blocks=True)

    def add(self, page: SourcePage, text: PageText, words: int, reason: str | None) -> None:
        """Count a page, dropped for a reason or kept."""
        self._outcomes[text.page_type or "", reason or ""] += 1
        if text.confidence is not None:
            self._confidences[max(0, math.ceil(text.confidence * CONFIDENCE_BINS) - 1)] += 1
        order = _hash(page.id)
        if text.blocks is None or not self._is_candidate(order):
            return
        sample = {
            "order": order,
            "id": page.id,
            "url": page.url,
            "title": text.title,
            "type": text.page_type,
            "confidence": text.confidence,
            "reason": reason,
            "words": words,
            "blocks": text.blocks.shown,
            "total_blocks": text.blocks.total,
        }
        self._samples = _first([*self._samples, sample])

    def write(self, output: str, index: int) -> FileEntry:
        """Write the tally of a task, which `write_report` reads."""
        outcomes = [[*key, count] for key, count in sorted(self._outcomes.items())]
        tally = {"outcomes": outcomes, "confidences": self._confidences, "samples": self._samples}
        return shards.write_file(output, _name(index), json.dumps(tally).encode())

    def _is_candidate(self, order: float) -> bool:
        return order < self._below and (len(self._samples) < SAMPLES or order < self._samples[-1]["order"])


def write_report(output: str, extractor: str, tasks: int) -> TaskResult:
    """Write the page from the tallies of all tasks."""
    from pipelines.reports.extract import render_extract_report

    outcomes: Counter[tuple[str, str]] = Counter()
    confidences = [0] * CONFIDENCE_BINS
    samples: list[dict[str, Any]] = []
    for index in range(tasks):
        tally = storage.read_json(storage.join(output, _name(index)))
        outcomes.update({(kind, reason): count for kind, reason, count in tally["outcomes"]})
        confidences = [sum(counts) for counts in zip(confidences, tally["confidences"], strict=True)]
        samples = _first([*samples, *tally["samples"]])
    page = render_extract_report(extractor, outcomes, confidences, samples, (SHOWN_BLOCKS, SHOWN_CHARACTERS))
    return TaskResult(files=(shards.write_file(output, PAGE, page.encode()),))


def _name(index: int) -> str:
    return shards.shard_name("report", index, "json")


def _hash(id: str) -> float:
    """Return a number from 0 to 1 that depends on the id alone, not on the order of pages or the number of workers."""
    return int(hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:13], 16) / 16**13


def _first(samples: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(samples, key=lambda sample: float(sample["order"]))[:SAMPLES]

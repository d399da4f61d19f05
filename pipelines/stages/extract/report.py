"""Writes `report.html`: the outcomes of all pages, and the blocks of a few, chosen by the hashes of their ids."""

from __future__ import annotations

import dataclasses
import hashlib
import math

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.stage import TaskResult
from pipelines.records import shards
from pipelines.records.tally import Tally, read_tallies
from pipelines.stages.extract.child import PageText, RawPage
from pipelines.stages.extract.extractors import SHOWN_BLOCKS, SHOWN_CHARACTERS
from pipelines.stages.extract.pages import SourcePage

PAGE = "report.html"
SAMPLES = 30
CONFIDENCE_BINS = 20
# If the number of pages is known, this many times the samples are candidates: the files of the tasks stay small, and
# enough candidates remain if most pages are dropped before they have blocks.
_CANDIDATES_PER_SAMPLE = 10
_SHOWN_SIGNALS = 200


class PageTally:
    """The part of the report of one task: pages by type and outcome, by confidence, and samples."""

    def __init__(self, records: int | None) -> None:
        self._below = min(1.0, _CANDIDATES_PER_SAMPLE * SAMPLES / records) if records else 1.0
        self._tally = Tally()
        self._samples = self._tally.sample("pages", SAMPLES)

    def is_candidate(self, id: str) -> bool:
        """Return whether the report may show the page with this id."""
        order = _hash(id)
        return order < self._below and self._samples.accepts(order)

    def mark(self, page: SourcePage) -> RawPage | PageText:
        """Return the content of a page, marked if the report may show its blocks."""
        if isinstance(page.content, PageText) or not self.is_candidate(page.id):
            return page.content
        return dataclasses.replace(page.content, with_blocks=True)

    def add(self, page: SourcePage, text: PageText, words: int, reason: str | None) -> None:
        """Count a page, dropped for a reason or kept."""
        self._tally.counter("outcomes")[f"{text.page_type or ''} {reason or ''}"] += 1
        self._tally.counter("signals").update(text.signals or ())
        if text.confidence is not None:
            self._tally.counter("confidences")[str(max(0, math.ceil(text.confidence * CONFIDENCE_BINS) - 1))] += 1
        if text.blocks is None or not self.is_candidate(page.id):
            return
        shown, total = text.blocks
        sample = {
            "id": page.id,
            "url": page.url,
            "title": text.title,
            "type": text.page_type,
            "confidence": text.confidence,
            "reason": reason,
            "words": words,
            "blocks": shown,
            "total_blocks": total,
        }
        self._samples.add(_hash(page.id), sample)

    def write(self, output: str, index: int) -> FileEntry:
        """Write the tally of a task, which `write_report` reads."""
        return self._tally.write(output, shards.shard_name("report", index, "json"))


def write_report(output: str, extractor: str, tasks: int) -> TaskResult:
    """Write the page from the tallies of all tasks."""
    from pipelines.reports.extract import render_extract_report
    from pipelines.reports.render import write_page

    tally = read_tallies([storage.join(output, shards.shard_name("report", index, "json")) for index in range(tasks)])
    outcomes = {}
    for key, count in tally.counter("outcomes").items():
        kind, _, reason = key.partition(" ")
        outcomes[kind, reason] = count
    confidences = [tally.counter("confidences")[str(number)] for number in range(CONFIDENCE_BINS)]
    samples = list(tally.sample("pages", SAMPLES))
    shown, signals = (SHOWN_BLOCKS, SHOWN_CHARACTERS), tally.counter("signals").most_common(_SHOWN_SIGNALS)
    page = render_extract_report(extractor, outcomes, signals, confidences, samples, shown)
    return TaskResult(files=(write_page(output, PAGE, page),))


def _hash(id: str) -> float:
    """Return a number from 0 to 1 that depends on the id alone."""
    return int(hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:13], 16) / 16**13

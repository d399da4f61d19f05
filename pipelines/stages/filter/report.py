"""What the report of a filter needs of every shard: how values are distributed, and documents near the thresholds."""

from __future__ import annotations

import bisect
import json
import operator
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import shards
from pipelines.records.document_filter import DropReason, urls_of
from pipelines.stages.filter.rules import Rule

PAGE, TABLES = "report.html", "report.json"
KEPT = "kept"
_BINS = 50
# Documents are shown whose value differs from the threshold by at most this share of it.
_MARGIN = 0.1
_SHOWN = 10
_SHOWN_CHARACTERS = 300
# A document near a threshold, with the draw that decides whether it is shown.
_Near = list[tuple[int, dict[str, Any]]]
_draw_of = operator.itemgetter(0)


class Tally:
    """Counts reasons, languages of what is kept, qualities in bins, and the values of each rule in bins from 0 to twice
    its threshold, and samples documents near it.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._bins = np.zeros((len(rules), _BINS + 1), np.int64)
        self._dropped = np.zeros(len(rules), np.int64)
        self._reasons: Counter[str] = Counter()
        self._languages: Counter[str] = Counter()
        self._qualities = np.zeros(_BINS, np.int64)
        self._near: list[tuple[_Near, _Near]] = [([], []) for _ in rules]

    def add(
        self,
        batch: pa.RecordBatch,
        values: Sequence[tuple[Rule, npt.NDArray[np.float64]]],
        decided: pa.RecordBatch,
        reasons: Sequence[DropReason | None],
    ) -> None:
        """Add documents with their values, and what was decided about them."""
        self._reasons.update(reason.reason if reason else KEPT for reason in reasons)
        languages = decided.column("language").to_pylist()
        self._languages.update(
            language or "none" for language, reason in zip(languages, reasons, strict=True) if not reason
        )
        if "quality" in decided.schema.names:
            places = (decided.column("quality").to_numpy() * _BINS).astype(np.int64)
            self._qualities += np.bincount(np.minimum(places, _BINS - 1), minlength=_BINS)
        urls = urls_of(batch)
        for number, (rule, column) in enumerate(values):
            fails = rule.fails(column)
            self._dropped[number] += fails.sum()
            places = np.clip(column / (2 * rule.bound or 1) * _BINS, 0, _BINS).astype(np.int64)
            self._bins[number] += np.bincount(places, minlength=_BINS + 1)
            for row in np.flatnonzero(abs(column - rule.bound) <= abs(rule.bound) * _MARGIN).tolist():
                id = str(batch.column("id")[row])
                draw = zlib.crc32(f"{rule.name} {id}".encode())
                near = self._near[number][int(fails[row])]
                if len(near) < _SHOWN or draw < near[-1][0]:
                    text = str(batch.column("text")[row])[:_SHOWN_CHARACTERS]
                    document = {"id": id, "url": urls[row], "value": float(column[row]), "text": text}
                    bisect.insort(near, (draw, document), key=_draw_of)
                    del near[_SHOWN:]

    def write(self, output: str, index: int) -> FileEntry:
        """Write it as a file of the shard."""
        rules = [
            {
                "rule": rule.name,
                "statistic": rule.statistic,
                "min": rule.min,
                "max": rule.max,
                "source": rule.source,
                "bins": self._bins[number].tolist(),
                "fails": int(self._dropped[number]),
                "near": self._near[number],
            }
            for number, rule in enumerate(self._rules)
        ]
        tally = {
            "reasons": self._reasons,
            "languages": self._languages,
            "qualities": self._qualities.tolist(),
            "rules": rules,
        }
        return shards.write_file(output, shards.shard_name("report", index, "json"), json.dumps(tally).encode())


def write_report(output: str, indexes: Sequence[int]) -> TaskResult:
    """Write the report from the tallies of all shards, as a page and as tables."""
    from pipelines.reports.filter import render_filter_report

    report: dict[str, Any] = {}
    for index in indexes:
        tally = storage.read_json(storage.join(output, shards.shard_name("report", index, "json")))
        if not report:
            report = tally
            continue
        for name in ("reasons", "languages"):
            report[name] = Counter(report[name]) + Counter(tally[name])
        report["qualities"] = _sums(report["qualities"], tally["qualities"])
        for rule, other in zip(report["rules"], tally["rules"], strict=True):
            rule["bins"] = _sums(rule["bins"], other["bins"])
            rule["fails"] += other["fails"]
            rule["near"] = [
                sorted(a + b, key=_draw_of)[:_SHOWN] for a, b in zip(rule["near"], other["near"], strict=True)
            ]
    for name in ("reasons", "languages"):
        report[name] = dict(Counter(report[name]).most_common())
    for rule in report["rules"]:
        shown = ([document for _, document in side] for side in rule["near"])
        rule["near"] = [sorted(side, key=lambda document: document["value"]) for side in shown]
    files = [shards.write_file(output, PAGE, render_filter_report(report).encode())]
    return TaskResult(files=(*files, shards.write_file(output, TABLES, json.dumps(report).encode())))


def _sums(counts: Sequence[int], others: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(counts, others, strict=True)]

"""The report of a filter: the distributions of values, and documents near the thresholds."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.quality.redaction import redact
from pipelines.engine.run import TaskResult
from pipelines.records import shards
from pipelines.records.document_filter import DropReason
from pipelines.records.tally import Tally, read_tallies
from pipelines.records.text_columns import urls_of
from pipelines.stages.filter.rules import Rule, Values

PAGE, TABLES = "report.html", "report.json"
KEPT, REDACTED = "kept", "redactions"
_BINS = 50
# Documents are shown if their value differs from the threshold by at most this share of it.
_MARGIN = 0.1
_SHOWN = 10
_SHOWN_CHARACTERS = 300


def tally_documents(
    tally: Tally,
    batch: pa.RecordBatch,
    values: Sequence[tuple[Rule, Values]],
    measured: pa.RecordBatch,
    reasons: Sequence[DropReason | None],
    kinds: Sequence[str],
) -> None:
    """Count reasons, languages of kept documents, and qualities in bins; and for each rule, by its number in the run,
    the values in bins from 0 to twice its threshold and the documents that fail it, with a sample of those near it, in
    which `kinds` are redacted.
    """
    tally.counter("reasons").update(reason.reason if reason else KEPT for reason in reasons)
    if "language" in measured.schema.names:
        languages = zip(measured.column("language").to_pylist(), reasons, strict=True)
        tally.counter("languages").update(language or "none" for language, reason in languages if not reason)
    if "quality" in measured.schema.names:
        _count_bins(tally, "qualities", np.minimum(measured.column("quality").to_numpy() * _BINS, _BINS - 1))
    urls, ids = urls_of(batch), batch.column("id").to_pylist()
    for number, (rule, column) in enumerate(values):
        fails = rule.fails(column)
        tally.counter("fails")[str(number)] += int(fails.sum())
        _count_bins(tally, f"values {number}", np.clip(column / (2 * rule.bound or 1) * _BINS, 0, _BINS))
        near = [tally.sample(f"near {number} {side}", _SHOWN) for side in ("passes", "fails")]
        rows = np.flatnonzero(abs(column - rule.bound) <= abs(rule.bound) * _MARGIN)
        seed = zlib.crc32(f"{rule.name} ".encode())
        for row, is_failure in zip(rows.tolist(), fails[rows].tolist(), strict=True):
            draw = zlib.crc32(ids[row].encode(), seed)
            if (sample := near[is_failure]).accepts(draw):
                # Of more than is shown, so that nothing is cut in two before.
                text = redact(str(batch.column("text")[row])[: 2 * _SHOWN_CHARACTERS], kinds)[0][:_SHOWN_CHARACTERS]
                sample.add(draw, {"id": ids[row], "url": urls[row], "value": float(column[row]), "text": text})


def _count_bins(tally: Tally, name: str, places: Values) -> None:
    bins = np.bincount(places.astype(np.int64)).tolist()
    tally.counter(name).update({str(place): count for place, count in enumerate(bins) if count})


def write_report(output: str, indexes: Sequence[int], rules: Sequence[Rule]) -> TaskResult:
    """Write the report from the tallies of all shards, as a page and as tables."""
    from pipelines.reports.filter import render_filter_report
    from pipelines.reports.render import write_page

    tally = read_tallies([storage.join(output, shards.shard_name("report", index, "json")) for index in indexes])
    report = {
        "reasons": dict(tally.counter("reasons").most_common()),
        "languages": dict(tally.counter("languages").most_common()),
        "qualities": [tally.counter("qualities")[str(place)] for place in range(_BINS)],
        "redactions": dict((+tally.counter(REDACTED)).most_common()),
        "rules": [
            {
                "rule": rule.name,
                "statistic": rule.statistic,
                "min": rule.min,
                "max": rule.max,
                "source": rule.source,
                "bins": [tally.counter(f"values {number}")[str(place)] for place in range(_BINS + 1)],
                "fails": tally.counter("fails")[str(number)],
                "near": [
                    sorted(tally.sample(f"near {number} {side}", _SHOWN), key=lambda document: document["value"])
                    for side in ("passes", "fails")
                ],
            }
            for number, rule in enumerate(rules)
        ],
    }
    files = [write_page(output, PAGE, render_filter_report(report))]
    return TaskResult(files=(*files, shards.write_file(output, TABLES, json.dumps(report).encode())))

"""The report of an extraction as one page of HTML: outcomes, confidence, and sampled pages block by block."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.reports.charts import percent_histogram
from pipelines.reports.render import render

# Dropped blocks are folded, so that menus do not hide the text: longer ones to their beginning, this many in a row to
# one line.
_FOLDED_CHARACTERS, _FOLDED_BLOCKS = 60, 4

Block = tuple[str, float, bool]


def render_extract_report(
    extractor: str,
    outcomes: Mapping[tuple[str, str], int],
    signals: Sequence[tuple[str, int]],
    confidences: Sequence[int],
    samples: Sequence[Mapping[str, Any]],
    shown: tuple[int, int],
) -> str:
    """Return the page.

    `outcomes` are counts of pages by type (empty: not detected) and drop reason (empty: kept), `signals` by signal,
    `confidences` in bins of equal width from 0 to 1. The `blocks` of a sample are triples of text, probability and
    whether it is kept; `shown` are the maximum numbers of blocks and characters of a page.
    """
    by_type, by_reason = Counter[str](), Counter[str]()
    for (kind, reason), count in outcomes.items():
        by_type[kind] += count
        by_reason[reason] += count
    # Types and reasons by their number of pages; kept first, what was not detected last.
    types = sorted(by_type, key=lambda kind: (kind == "", -by_type[kind], kind))
    reasons = sorted(by_reason | Counter({"": 1}), key=lambda reason: (reason != "", -by_reason[reason], reason))
    return render(
        "extract.html",
        extractor=extractor,
        types=types if any(types) else [],
        reasons=reasons,
        by_type=by_type,
        by_reason=by_reason,
        outcomes=outcomes,
        signals=signals,
        pages=by_type.total(),
        confidences=percent_histogram(
            "Confidence",
            "Pages by estimated extraction quality: the F1 that the model expects. Above the bars: number of pages.",
            confidences,
            noun="page",
            x_title="estimated F1",
        ),
        samples=sorted(samples, key=lambda sample: sample["confidence"] or 0.0),
        shown=shown,
        fold=fold,
        runs=runs,
    )


def fold(text: str) -> str | None:
    """Return the beginning of a long block as one line, or None for a short one."""
    return f"{' '.join(text.split())[:_FOLDED_CHARACTERS]}…" if len(text) > _FOLDED_CHARACTERS else None


def runs(blocks: Sequence[Block]) -> Iterator[tuple[bool, list[Block]]]:
    """Yield the blocks between two changes from kept to dropped or back, and whether they are folded to one line."""
    for is_kept, run in itertools.groupby(blocks, key=lambda block: block[2]):
        listed = list(run)
        yield not is_kept and len(listed) >= _FOLDED_BLOCKS, listed

"""The report of an extraction as one page of HTML: outcomes, confidence, and sampled pages block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.reports.charts import percent_histogram
from pipelines.reports.overlap import document_text, is_web_url
from pipelines.reports.render import render

# Longer blocks that were dropped are folded to their beginning.
_FOLDED_CHARACTERS = 60


def render_extract_report(
    extractor: str,
    outcomes: Mapping[tuple[str, str], int],
    confidences: Sequence[int],
    samples: Sequence[Mapping[str, Any]],
) -> str:
    """Return the page.

    `outcomes` are counts of pages by type (empty: not detected) and drop reason (empty: kept), `confidences` those of
    bins of equal width from 0 to 1. Of a sample, `blocks` are triples of text, probability and whether it is kept.
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
        pages=by_type.total(),
        confidences=percent_histogram(
            "Confidence",
            "Pages by the F1 to expect of their text, as the model estimates it; above the bars the number of pages.",
            confidences,
            noun="page",
            x_title="F1 to expect",
        ),
        samples=sorted(samples, key=lambda sample: sample["confidence"] or 0.0),
        document_text=document_text,
        is_web_url=is_web_url,
        fold=_fold,
    )


def _fold(text: str) -> str | None:
    """Return the beginning of a long block as one line, None for one that is short."""
    line = " ".join(text.split())
    return None if len(text) <= _FOLDED_CHARACTERS else f"{line[:_FOLDED_CHARACTERS]}…"

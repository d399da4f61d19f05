"""The report of a deduplication as one page of HTML: the funnel, the S-curve, clusters, pairs side by side, domains."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.algorithms.minhash.signing import candidate_probability, choose_bands
from pipelines.algorithms.ngrams.hashing import word_spans
from pipelines.algorithms.ngrams.words import Shingling
from pipelines.reports.charts import Axis, Chart, Series, line_chart
from pipelines.reports.render import render

# Longer passages without differences are folded to this much of their beginning and end.
_FOLDED_CHARACTERS = 240
_CURVE_POINTS = 200

# A part of a text: "same" or "changed" and the text, or "folded" and the number of characters.
Part = tuple[str, str | int]


def render_dedup_report(report: Mapping[str, Any]) -> str:
    """Return the page of a report.

    `threshold`, `ngram`, `num_perm`: the options; `records`, `dropped`: the documents in, and those dropped by reason;
    `similarities`: near-duplicates in steps of equal width from 0 to 1; `sizes`: n, clusters of 2**n to 2**(n + 1) - 1
    documents, documents in them; `clusters`: size, kept document, and a list of dropped ones with their similarity;
    `pairs`: similarity, kept and dropped document; `domains`: name, documents, dropped ones. A document has `id`,
    `url`, `text` (its beginning, None if it is not known) and `characters`.
    """
    threshold, counts = report["threshold"], report["similarities"]
    bands, rows = choose_bands(report["num_perm"], threshold)
    lows = [max(threshold, step / len(counts)) for step in range(len(counts))]
    highs = [(step + 1) / len(counts) for step in range(len(counts))]
    steps = [step for step in zip(lows, highs, counts, strict=True) if step[1] > threshold or step[1] == 1]
    values = {
        "pairs": [(*pair, compare_texts(pair[1]["text"], pair[2]["text"])) for pair in report["pairs"]],
        "curve": _curve(threshold, bands, rows, steps),
        "steps": [(*step, candidate_probability(step[0], bands, rows)) for step in steps],
    }
    return render("dedup.html", **{**report, **values, "bands": bands, "rows": rows})


def _curve(threshold: float, bands: int, rows: int, steps: Sequence[tuple[float, float, int]]) -> Chart:
    similarities = [number / _CURVE_POINTS for number in range(_CURVE_POINTS + 1)]
    probabilities = [(similarity, candidate_probability(similarity, bands, rows)) for similarity in similarities]
    total = sum(count for *_, count in steps)
    shares = [(similarity, count / total) for low, high, count in steps if total for similarity in (low, high)]
    return line_chart(
        "Which pairs are compared",
        f"The probability that two documents agree in at least one of {bands} bands of {rows} values and are compared. "
        "The dashed vertical line is the threshold.",
        [Series("pairs that are compared", probabilities), Series("near-duplicates, per step", shares, "reference")],
        Axis("Jaccard similarity"),
        Axis(is_percent=True),
        markers=[(f"threshold {threshold:g}", threshold)],
    )


def compare_texts(kept: str | None, dropped: str | None) -> tuple[list[Part], list[Part]]:
    """Return the parts of two texts, in which the words that differ are marked.

    Words are those of shingles: case, white space and punctuation do not matter. A text is shown unmarked if the other
    one is None.
    """
    if kept is None or dropped is None:
        return [("same", kept)] if kept else [], [("same", dropped)] if dropped else []
    texts = (kept, dropped)
    spans = [word_spans(text, Shingling()) for text in texts]
    left, right = (
        [text[start:end].lower() for start, end in places] for text, places in zip(texts, spans, strict=True)
    )
    changed: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for tag, *bounds in difflib.SequenceMatcher(None, left, right).get_opcodes():
        for side, (first, last) in enumerate((bounds[:2], bounds[2:])):
            if tag != "equal" and first < last:
                changed[side].append((spans[side][first][0], spans[side][last - 1][1]))
    return _parts(texts[0], changed[0]), _parts(texts[1], changed[1])


def _parts(text: str, changed: Sequence[tuple[int, int]]) -> list[Part]:
    parts: list[Part] = []
    position = 0
    for start, end in [*changed, (len(text), len(text))]:
        # Only the end of what precedes the first difference, and the beginning of what follows the last one, are shown.
        first = text.rfind(" ", 0, position + _FOLDED_CHARACTERS) + 1 if position or not changed else 0
        last = text.find(" ", max(0, start - _FOLDED_CHARACTERS), start) if start < len(text) else start
        if first >= position and last - first > _FOLDED_CHARACTERS:
            parts += [("same", text[position:first]), ("folded", last - first), ("same", text[last:start])]
        else:
            parts.append(("same", text[position:start]))
        parts.append(("changed", text[start:end]))
        position = end
    return [part for part in parts if part[1]]

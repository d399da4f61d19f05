"""A made-up `report.json` of the overlap report with every part that one can have."""

from __future__ import annotations

import itertools
from typing import Any

from pipelines.reports.overlap_text import COLUMNS


def benchmark(name: str, split: str | None, positions: float, **changed: Any) -> dict[str, Any]:
    """A benchmark without scores, passages, training split or paper, of 2,000 examples."""
    return (
        {column.key: 0 for column in COLUMNS if column.value is not None}
        | {
            "name": name,
            "split": split,
            "ngrams": 82_430,
            "overlapping": round(824.30 * positions),
            "percent_positions": positions,
            "percent_distinct": round(positions * 0.9, 6),
            "examples": 2000,
            "examples_any": 260,
            "examples_15": 41,
            "examples_50": 12,
            "too_short": 140,
            "histogram": [1600, 120, 60, 30, 20, 10, 5, 3, 3, 3, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 2],
            "own_train": None,
            "paper": None,
            "scores": [],
            "passages": [],
        }
        | changed
    )


def passage(**changed: Any) -> dict[str, Any]:
    """A short passage with three sources: a web page, another scheme, and a document without a URL."""
    return {
        "example": 1203,
        "place": "wiki.test.txt:1204",
        "words": 12,
        "before": "As the guide to the reserve says, ",
        "text": "the species is found in the coastal waters of south eastern Australia",
        "after": ", and is harmless to people.",
        "sources": [
            {"id": "doc-17", "url": "https://example.org/wildlife/sharks?page=2"},
            {"id": "doc-18", "url": "ftp://example.org/sharks"},
            {"id": "doc-19", "url": None},
        ],
    } | changed


LONG_TEXT = "\n".join(
    f"Line {number} of a passage that stands in the corpus word for word, and goes on for a while."
    for number in range(40)
)


def _share(mean: float | None, examples: int) -> dict[str, Any]:
    return {"examples": examples, "mean": mean}


def _scores() -> list[dict[str, Any]]:
    return [
        {"metric": "accuracy", "all": _share(0.632, 2000), "clean": _share(0.629, 1600)}
        | {"overlapping": _share(0.71, 260), "not_tested": _share(0.55, 140)},
        {"metric": "perplexity", "all": _share(8.6, 2000), "clean": _share(8.7, 2000)}
        | {"overlapping": _share(None, 0), "not_tested": _share(None, 0)},
    ]


def _sensitivity() -> list[dict[str, Any]]:
    choices = itertools.product((8, 13), ("split", "drop"), ("unicode", "ascii"), ("cross", "stop"))
    return [
        {"n": n, "apostrophes": apostrophes, "letters": letters, "lines": lines}
        | {
            "benchmarks": [
                {"name": name, "split": split, "ngrams": 80_000 - 100 * number}
                | {"percent_positions": round(share * (16 - number) / 16, 6)}
                | {"percent_distinct": round(share * 0.9 * (16 - number) / 16, 6)}
                for name, split, share in (
                    ("wikitext2", "test", 1.4),
                    ("gsm8k", "test", 0.02),
                    ("shakespeare", None, 41.0),
                )
            ]
        }
        for number, (n, apostrophes, letters, lines) in enumerate(choices)
    ]


def _distribution(median: float, none: float, rise: float) -> dict[str, Any]:
    cumulative = [min(1.0, none / 100 + (1 - none / 100) * (1 - (1 - rise) ** at)) for at in range(101)]
    return {"examples": 1000, "too_short": 4, "none_percent": none, "under_1_percent": 100 * cumulative[1]} | {
        "median_percent": median,
        "mean_percent": median * 1.4,
        "cumulative": cumulative,
    }


def full_report(**changed: Any) -> dict[str, Any]:
    """A report by the Bloom method with all its parts: three benchmarks, of which one has all that one can have."""
    passages = [passage(text=LONG_TEXT, words=680, before="a\n" * 30), *(passage(words=60 - n) for n in range(8))]
    return {
        "corpus_files": ["remove-wikipedia"],
        "corpus": "0123456789abcdef" * 4,
        "method": "bloom",
        "n": 8,
        "normalisation": "lower-cased alphanumeric words (Unicode), one space between words",
        "error_bound": 9.6e-9,
        "options": {"apostrophes": "split", "letters": "unicode", "lines": "cross", "example": "auto"}
        | {"ignore_common": 10},
        "documents": 8_013_769,
        "text_bytes": 40_123_456_789,
        "documents_overlapping": 31_250,
        "benchmarks": [
            benchmark(
                "wikitext2",
                "test",
                1.402378,
                own_train={"split": "train", "overlapping": 512, "percent_positions": 0.62, "percent_distinct": 0.55},
                paper={"name": "WikiText-2", "own_train": 0.66, "webtext": 1.63},
                scores=_scores(),
                passages=passages,
            ),
            benchmark("gsm8k", "test", 0.0012, passages=[passage()]),
            benchmark("shakespeare", None, 41.0, histogram=[2000, *[0] * 20], too_short=0),
        ],
        "common_ngrams": [
            {"ngram": "all rights reserved no part of this publication", "documents": 120_034, "count": 130_001}
            | {"benchmarks": ["wikitext2/test", "shakespeare"]},
            {"ngram": "at the end of the day it is", "documents": 9_120, "count": 9_122, "benchmarks": ["gsm8k/test"]},
        ],
        "ignored": {"above_documents": 10, "ngrams": 37, "positions": 1_204},
        "certificate": {"keys": 1_250_000_000, "bits": 48_000_000_000, "bits_a_key": 38.4, "hashes": 27, "fill": 0.502}
        | {"error_rate": 1e-8, "error_bound": 9.6e-9, "probes": 300_000_000, "found": 0, "upper_bound": 9.99e-9},
        "sensitivity": _sensitivity(),
        "samples": {"samples": _distribution(0.4, 31.0, 0.6), "held_out": _distribution(2.6, 12.0, 0.22)},
    } | changed


def bare_report(**changed: Any) -> dict[str, Any]:
    """The least that a report can hold: one benchmark without a hit, by the exact method."""
    without = dict.fromkeys(("ignored", "certificate", "sensitivity", "samples"))
    alone = benchmark(
        "b", "train", 0.0, overlapping=0, examples_any=0, examples_15=0, examples_50=0, histogram=[1860, *[0] * 20]
    )
    bare = full_report()
    bare["options"] = bare["options"] | {"ignore_common": None}
    return (
        bare
        | without
        | {"method": "exact", "error_bound": 0.0, "text_bytes": None, "documents_overlapping": None}
        | {"common_ngrams": [], "benchmarks": [alone]}
        | changed
    )

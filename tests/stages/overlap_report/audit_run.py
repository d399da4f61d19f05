"""Writes texts and benchmarks, runs overlap-report, and counts in the plain way."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from reference_ngrams import text_ngrams

from pipelines.algorithms.ngrams.words import Normalization
from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions, Summary
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.stage import overlap_report

WORDS = "the of and Don't it’s Été ΣΟΦΟΣ a to in is you".split()


def random_texts(count: int, seed: int, words: int = 60) -> list[str]:
    chosen = random.Random(seed)
    return [
        "".join(chosen.choice(WORDS) + chosen.choice([" ", " ", " ", "\n", ", "]) for _ in range(words))
        + chosen.choice(WORDS)
        for _ in range(count)
    ]


def write_documents(path: Path, texts: Sequence[str], **columns: Sequence[Any]) -> Path:
    ids = [f"{path.stem}-{number}" for number in range(len(texts))]
    pq.write_table(pa.table({"id": ids, "text": list(texts), **columns}), path)
    return path


def write_jsonl(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "number": number}) + "\n" for number, text in enumerate(texts)))
    return path


def run_report(
    folder: Path,
    documents: Path,
    benchmarks: Sequence[str],
    *,
    workers: int = 1,
    scores: Sequence[str] = (),
    generated: Path | None = None,
    **config: Any,
) -> tuple[Summary, dict[str, Any]]:
    summary = overlap_report(
        OverlapReportConfig(**config),
        documents=str(documents),
        benchmarks=benchmarks,
        output=str(folder),
        options=RunOptions() if workers == 1 else RunOptions(executor=LocalExecutor(workers)),
        scores=scores,
        generated=None if generated is None else str(generated),
    )
    return summary, json.loads((folder / "report.json").read_text())


def ngrams_of(texts: Sequence[str], n: int, normalization: Normalization) -> set[str]:
    return {ngram for text in texts for _, ngram in text_ngrams(text, n, normalization)}


def percent_found(texts: Sequence[str], held: set[str], n: int, normalization: Normalization) -> float:
    ngrams = [ngram for text in texts for _, ngram in text_ngrams(text, n, normalization)]
    return round(100 * sum(ngram in held for ngram in ngrams) / len(ngrams), 6) if ngrams else 0.0

"""Writes small corpora, deduplicates them, and reads the results."""

from __future__ import annotations

import random
import re
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.engine.tasks import SerialExecutor
from pipelines.stages.dedup import stage
from pipelines.stages.dedup.config import DedupConfig

Row = dict[str, Any]


WORDS = [f"{first}{second}" for first in ("ka", "lo", "mi", "nu", "pe", "ro", "si", "tu") for second in "bdfgklmnprst"]


def text_of(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def changed(text: str, rng: random.Random, words: int) -> str:
    parts = text.split()
    for _ in range(words):
        parts[rng.randrange(len(parts))] = rng.choice(WORDS)
    return " ".join(parts)


def random_corpus(seed: int, documents: int = 120) -> list[Row]:
    """Originals, copies with few or many changes, copies of copies, equal texts, short and wordless ones."""
    rng = random.Random(seed)
    texts = [text_of(rng, rng.randrange(20, 90)) for _ in range(documents // 4)]
    while len(texts) < documents - 6:
        source = rng.choice(texts)
        texts.append(
            rng.choice([source, f"  {source}\n", changed(source, rng, 1), changed(source, rng, rng.randrange(1, 9))])
        )
    texts += ["-", " -\n", "!!!", "???", "two words", "Two  WORDS"]
    rng.shuffle(texts)
    times = [None, 1_400_000_000, 1_500_000_000]
    scores = [None, 3, 3, 40, 500]
    return [
        {"id": f"d{number:04d}", "text": text, "score": rng.choice(scores), "created_utc": rng.choice(times)}
        for number, text in enumerate(texts)
    ]


SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("score", pa.int64()), ("created_utc", pa.int64())])


def write_corpus(folder: Path, rows: list[Row], shards: int = 3, schema: pa.Schema = SCHEMA) -> Path:
    folder.mkdir()
    for index in range(shards):
        part = rows[len(rows) * index // shards : len(rows) * (index + 1) // shards]
        pq.write_table(pa.Table.from_pylist(part, schema=schema), folder / f"part-{index}.parquet")
    return folder


def run(
    documents: Path,
    output: Path,
    workers: int = 1,
    executor: Any = None,
    buckets: int | None = None,
    **settings: Any,
):
    """Run dedup, with that many `buckets` in as many parts as there can be."""
    options = RunOptions(executor or make_executor(workers))
    with pytest.MonkeyPatch.context() as patch:
        if buckets:
            patch.setattr(stage, "_MAX_BUCKETS", buckets)
            patch.setattr(stage, "_BUCKET_BYTES", 1)
            patch.setattr(stage, "_TASK_DOCUMENTS", 1)
            patch.setattr(stage, "_TASK_BYTES", 1)
        return stage.dedup(DedupConfig(**settings), documents=str(documents), output=str(output), options=options)


def rows_of(folder: Path, noun: str) -> list[Row]:
    return [row for path in sorted(folder.glob(f"{noun}-*.parquet")) for row in pq.read_table(path).to_pylist()]


def outcome(folder: Path) -> tuple[list[str], list[tuple[str, str, str]]]:
    kept = sorted(row["id"] for row in rows_of(folder, "documents"))
    return kept, sorted((row["id"], row["reason"], row["detail"]) for row in rows_of(folder, "dropped"))


def result_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def normalized_text(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def shingles_of(text: str, ngram: int) -> list[str]:
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFC", text).lower())
    return [" ".join(words[start : start + ngram]) for start in range(max(1, len(words) - ngram + 1))] if words else []


class StoppedError(Exception):
    pass


class StoppingExecutor(SerialExecutor):
    """Ends, as a kill does, after a number of tasks."""

    def __init__(self, tasks: int) -> None:
        self._left = tasks

    def map(self, *arguments, **options):
        for result in super().map(*arguments, **options):
            if not self._left:
                raise StoppedError
            self._left -= 1
            yield result

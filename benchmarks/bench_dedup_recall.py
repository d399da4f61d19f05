"""Recall and precision of `webtext dedup`: plants altered copies in a sample of documents, and counts the dropped ones.

    python benchmarks/bench_dedup_recall.py [DOCUMENTS ...] [--threshold 0.8] [--sample 1000]

DOCUMENTS are files or folders (default: docs.jsonl.zst and books.jsonl.zst of $WEBTEXT_TEST_DATA/text). The copies of a
document depend on its text alone. Recall is the share of the pairs of a kept document and one of its copies of which
the copy was dropped for this document; precision that of the dropped documents which reach the threshold to the kept
one. The true similarity is computed in plain Python.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import random
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipelines import storage
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.minhash.normal_text import text_hashes
from pipelines.algorithms.minhash.signing import candidate_probability, choose_bands
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes, word_spans
from pipelines.algorithms.ngrams.words import Shingling
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.progress import show_progress
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.records.tally import LowestHashes
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.documents import CLUSTERS
from pipelines.stages.dedup.stage import dedup

_SHARES = ("recall", "predicted")
# Limits of an original: recall depends on the similarity of two texts, not on their length.
_MIN_WORDS, _CHARACTERS = 50, 5000
_LINE_CHARACTERS = 60
_SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("score", pa.int64())])
_SHINGLING = Shingling()
_HEADER = "Home | News | Topics | Forum | About us | Contact | Log in | Search\n\n"
_FOOTER = """

Share this page with your friends. Subscribe to our newsletter to read more like this every week. Terms of use, privacy
policy, imprint. All rights reserved by the publisher and the authors of these pages."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("WEBTEXT_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    default = [str(data / "text" / name) for name in ("docs.jsonl.zst", "books.jsonl.zst")]
    parser.add_argument("documents", nargs="*", default=default)
    parser.add_argument("--threshold", type=float, default=DedupConfig.threshold)
    parser.add_argument("--sample", type=int, default=1000)
    options = parser.parse_args()
    config = DedupConfig(threshold=options.threshold)
    result = measure_recall(config, documents=options.documents, options=RunOptions(), sample=options.sample)
    print(f"{result['documents']:,} documents, {result['bands']} bands of {result['rows']} values")
    print("similarity    pairs  found  recall  S-curve")
    for row in result["ranges"]:
        print(f"{row['from']:.2f} to {row['to']:.2f} {row['pairs']:6} {row['found']:6}  {_shown(row)}")
    print("pairs  found  recall  copy")
    for row in result["kinds"]:
        print(f"{row['pairs']:5} {row['found']:6}  {_shown(row)}  {row['kind']}")
    print(f"below the threshold: {result['below_threshold']:,} of {result['dropped']:,} dropped documents")


def _shown(row: dict[str, Any]) -> str:
    return "  ".join("     –" if value is None else f"{value:6.4f}" for name, value in row.items() if name in _SHARES)


def measure_recall(
    config: DedupConfig, *, documents: str | Sequence[str], options: RunOptions, sample: int
) -> dict[str, Any]:
    """Return the recall of `dedup` on altered copies of `sample` documents, planted in a temporary folder.

    A pair is a kept document and its copy. Raises InputError if no document has 50 words.
    """
    originals = _choose_documents(config, documents, options, sample)
    with storage.temporary_folder() as folder:
        with shards.write_shard(folder, "planted.parquet", _SCHEMA) as written:
            for number, original in enumerate(originals):
                for kind in COPIES:
                    # The original has the higher score, so that it is kept.
                    row = {"text": _copy(original, kind), "score": int(kind == _UNCHANGED)}
                    written.write({"id": f"{number}/{kind}", **row})
        planted, output = storage.join(folder, written.entry.name), storage.join(folder, "dedup")
        dedup(config, documents=planted, output=output, options=options)
        rows = [row for row in shards.read_rows(storage.join(output, CLUSTERS)) if row["kind"] != "kept"]
    return _measure(config, originals, {row["id"]: row["cluster"] for row in rows})


def _choose_documents(
    config: DedupConfig, documents: str | Sequence[str], options: RunOptions, sample: int
) -> list[str]:
    """Return the beginnings of the documents with the lowest hashes of their text."""
    source = inputs.open_configured(documents, config, options)
    lowest, known = LowestHashes(sample), set[int]()
    with show_progress(options.progress, "dedup: sample", source.records, "records"):
        for shard in source.undivided:
            for batch in inputs.read_documents(shard, Drops()):
                for row, hash in enumerate(text_hashes(batch.column("text"))[:, 0].tolist()):
                    if lowest.accepts(hash) and hash not in known:
                        known.add(hash)
                        text = pc.utf8_slice_codeunits(batch.column("text")[row], 0, _CHARACTERS).as_py()
                        if len(_words(text)) >= _MIN_WORDS:
                            lowest.add(hash, text)
                options.progress.advance(batch.num_rows)
    if not len(lowest):
        raise InputError(f"no document has {_MIN_WORDS} words")
    return list(lowest)


class _Pair(NamedTuple):
    kind: str
    similarity: float
    is_found: bool


def _measure(config: DedupConfig, originals: Sequence[str], kept_for: dict[str, str]) -> dict[str, Any]:
    """Return the figures; `kept_for` maps the id of each dropped document to that of the kept one."""
    bands, rows = choose_bands(config.num_perm, config.threshold)

    @functools.lru_cache(maxsize=3)
    def shingles(id: str) -> set[int]:
        number, _, kind = id.partition("/")
        text = unicodedata.normalize("NFC", _copy(originals[int(number)], kind))
        return set(text_ngram_hashes(*text_arrays(pa.array([text])), config.ngram, _SHINGLING).hashes.tolist())

    def jaccard(left: str, right: str) -> float:
        return len(shingles(left) & shingles(right)) / max(1, len(shingles(left) | shingles(right)))

    pairs, below = [], 0
    for number in range(len(originals)):
        original = f"{number}/{_UNCHANGED}"
        for kind in COPIES:
            copy = f"{number}/{kind}"
            similarity, kept = jaccard(original, copy), kept_for.get(copy)
            to_kept = jaccard(copy, kept) if kept else 0.0
            below += kept is not None and to_kept < config.threshold
            # If another kept document is as similar, it is unknown whether the pair was compared.
            is_known = kept in (None, original) or to_kept < similarity
            if kind != _UNCHANGED and original not in kept_for and is_known:
                pairs.append(_Pair(kind, similarity, kept == original))
    steps = [config.threshold, *(step / 20 for step in range(20) if step / 20 > config.threshold), 1.0]
    below_pairs = _recall([pair for pair in pairs if pair.similarity < steps[0]])
    ranges = [{"from": 0.0, "to": config.threshold, **below_pairs, "recall": None, "predicted": None}]
    for low, high in itertools.pairwise(steps):
        chosen = [pair for pair in pairs if low <= pair.similarity and (pair.similarity < high or high == 1)]
        predicted = _mean([candidate_probability(pair.similarity, bands, rows) for pair in chosen])
        ranges.append({"from": low, "to": high, **_recall(chosen), "predicted": predicted})
    kinds = []
    for kind in list(COPIES)[1:]:
        chosen = [pair for pair in pairs if pair.kind == kind]
        mean = {"copies": len(chosen), "mean_similarity": _mean([pair.similarity for pair in chosen])}
        near = [pair for pair in chosen if pair.similarity >= config.threshold]
        kinds.append({"kind": kind, **mean, **_recall(near)})
    return {
        "documents": len(originals),
        **{"threshold": config.threshold, "bands": bands, "rows": rows},
        **{"ranges": ranges, "kinds": kinds},
        **{"dropped": len(kept_for), "below_threshold": below, "precision": 1 - below / max(1, len(kept_for))},
    }


def _recall(pairs: Sequence[_Pair]) -> dict[str, Any]:
    outcomes = [pair.is_found for pair in pairs]
    return {"pairs": len(pairs), "found": sum(outcomes), "recall": _mean(outcomes)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _copy(text: str, kind: str) -> str:
    """Return an altered copy, which depends on text and kind alone."""
    return COPIES[kind](text, random.Random(f"{kind} {text}"))


def _words(text: str) -> list[str]:
    """Return the words, each with the characters up to the next word."""
    starts = [start for start, _ in word_spans(text, _SHINGLING)]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _edit(text: str, rng: random.Random, *, percent: int) -> str:
    """Replace a third of the chosen words by other words of the text, insert one before a third, delete a third."""
    words = _words(text)
    edits = (lambda _: rng.choice(words), lambda word: rng.choice(words) + word, lambda _: "")
    return "".join(rng.choice(edits)(word) if 100 * rng.random() < percent else word for word in words)


def _truncate(text: str, _: random.Random, *, percent: int) -> str:
    words = _words(text)
    return "".join(words[: round(percent * len(words) / 100)])


def _wrap(text: str, _: random.Random) -> str:
    return textwrap.fill(" ".join(text.split()), _LINE_CHARACTERS, break_long_words=False, break_on_hyphens=False)


_UNCHANGED = "unchanged"
COPIES: dict[str, Callable[[str, random.Random], str]] = {
    _UNCHANGED: lambda text, _: text,
    **{f"{n}% of the words edited": functools.partial(_edit, percent=n) for n in (1, 2, 3, 5, 10, 20, 40)},
    **{f"truncated to {n}%": functools.partial(_truncate, percent=n) for n in (90, 70, 50)},
    "boilerplate around": lambda text, _: f"{_HEADER}{text}{_FOOTER}",
    "lines wrapped": _wrap,
    "case changed": lambda text, _: text.upper(),
}

if __name__ == "__main__":
    main()

"""Counts of ten billion words: the merges are those of numbers without an end, where 32 bits would give others."""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from pipelines.algorithms.bpe.byte_level import byte_characters, token_bytes
from pipelines.algorithms.bpe.word_table import count_words
from pipelines.engine.run import RunOptions
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.stage import train_bpe

_TOTAL = 10_000_000_000
_MERGES = 150


@pytest.fixture(scope="module")
def make_counts() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "benchmarks" / "make_counts.py"
    spec = importlib.util.spec_from_file_location("make_counts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _plain_merges(words: dict[bytes, int], bits: int | None) -> list[tuple[bytes, bytes]]:
    """Count all pairs anew for each merge, in unbounded integers or in so many bits."""
    ids = {byte: number for number, byte in enumerate(byte_characters())}
    split = [([ids[byte] for byte in word], count) for word, count in words.items()]
    tokens = [bytes([byte]) for byte in byte_characters()]
    merges = []
    while len(merges) < _MERGES:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, count in split:
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-(pairs[pair] if bits is None else pairs[pair] % 2**bits), pair))
        merges.append((tokens[best[0]], tokens[best[1]]))
        for word, _ in split:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = [len(tokens)]
                at += 1
        tokens.append(tokens[best[0]] + tokens[best[1]])
    return merges


def test_merges_with_counts_beyond_32_bits(make_counts: ModuleType, tmp_path: Path) -> None:
    counts = dict(make_counts.counts_of(2000, _TOTAL, 2019))
    make_counts.write_counts(tmp_path / "counts.parquet", make_counts.counts_of(2000, _TOTAL, 2019))
    rows = pq.read_table(tmp_path / "counts.parquet").to_pylist()
    assert {row["word"]: row["count"] + row["held_out"] for row in rows} == counts
    train_bpe(
        TrainBpeConfig(vocab_size=257 + _MERGES),
        documents=[],
        output=str(tmp_path / "bpe"),
        options=RunOptions(),
        counts=[str(tmp_path / "counts.parquet")],
    )
    lines = (tmp_path / "bpe" / "merges.txt").read_text().splitlines()[1:]
    merges = [(token_bytes(left), token_bytes(right)) for left, right in (line.split(" ") for line in lines)]
    words = {word.encode(): count for word, count in counts.items()}
    assert merges == _plain_merges(words, None)
    assert merges != _plain_merges(words, 32)


def test_the_counts_resemble_those_of_a_corpus(make_counts: ModuleType) -> None:
    counts = list(make_counts.counts_of(50_000, _TOTAL, 7))
    words = [word for word, _ in counts]
    assert words == sorted(set(words))
    assert len(words) == 50_000
    assert sum(count for _, count in counts) == _TOTAL
    assert min(count for _, count in counts) >= 1
    # Each is one piece of GPT-2's split.
    assert sorted(count_words([word.encode() for word in words])) == sorted((word.encode(), 1) for word in words)
    assert counts == list(make_counts.counts_of(50_000, _TOTAL, 7)) != list(make_counts.counts_of(50_000, _TOTAL, 8))
    pairs: Counter[str] = Counter()
    for word, count in counts:
        for pair in itertools.pairwise(word):
            pairs["".join(pair)] += count
    assert sum(count > 2**32 for count in pairs.values()) >= 3


def test_the_counts_follow_a_power_law(make_counts: ModuleType) -> None:
    """At a fixed share of all, the thousandfold rank has about a thousandth of the count; many words occur once."""
    ranked = sorted((count for _, count in make_counts.counts_of(200_000, _TOTAL, 2019)), reverse=True)
    assert 100 < ranked[30] / ranked[30_000] < 100_000
    assert sum(count == 1 for count in ranked) > 50_000

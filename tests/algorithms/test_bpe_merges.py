"""Merges from counts: as a naive trainer finds them, as the `tokenizers` library does, and past 32 bits."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipelines.algorithms.bpe import merges as trainer
from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.algorithms.bpe.merges import Merges, learn_merges

_WORDS = st.dictionaries(
    st.one_of(
        st.text("ab", min_size=1, max_size=14),
        st.text("abc ", min_size=1, max_size=10),
        st.text(min_size=1, max_size=6),
    ),
    st.integers(1, 40),
    max_size=25,
)
_IDS = {byte: number for number, byte in enumerate(byte_characters())}
_CHARACTERS = list(byte_characters().values())


def _learn(words: dict[bytes, int], most: int, min_count: int = 1) -> Merges:
    symbols = np.array([_IDS[byte] for word in words for byte in word], np.int32)
    starts = np.cumsum([0, *map(len, words)], dtype=np.int64)
    counts = np.array(list(words.values()), np.int64)
    return learn_merges(symbols, starts, counts, first_id=256, most=most, min_count=min_count)


def _naive(words: dict[bytes, int], most: int, min_count: int) -> list[tuple[int, int, int]]:
    """Count all pairs anew for each merge; of equal counts the lowest ids go first."""
    split = [([_IDS[byte] for byte in word], count) for word, count in words.items()]
    merges: list[tuple[int, int, int]] = []
    while len(merges) < most:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, count in split:
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < min_count:
            break
        new = 256 + len(merges)
        merges.append((*best, pairs[best]))
        for word, _ in split:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = [new]
                at += 1
    return merges


def _listed(merges: Merges) -> list[tuple[int, int, int]]:
    return list(zip(merges.left.tolist(), merges.right.tolist(), merges.counts.tolist(), strict=True))


@settings(deadline=None, max_examples=100)
@given(_WORDS, st.integers(0, 60), st.integers(0, 12))
def test_merges_match_a_naive_trainer(words: dict[str, int], most: int, min_count: int) -> None:
    counted = {word.encode(): count for word, count in words.items()}
    assert _listed(_learn(counted, most, min_count)) == _naive(counted, most, max(1, min_count))


@settings(deadline=None, max_examples=75)
@given(_WORDS, st.integers(1, 60), st.integers(1, 4))
def test_merges_match_tokenizers(words: dict[str, int], most: int, min_count: int) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + most,
        min_frequency=min_count,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator((word for word, count in words.items() for _ in range(count)), trainer)
    tokens = list(_CHARACTERS)
    found = []
    for left, right, _ in _listed(_learn({word.encode(): count for word, count in words.items()}, most, min_count)):
        found.append([tokens[left], tokens[right]])
        tokens.append(tokens[left] + tokens[right])
    assert found == [list(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def test_counts_may_exceed_32_bits() -> None:
    merges = _learn({b"ab": 2**40, b"cd": 2**40 + 1, b"abx": 2**40}, 3)
    expected = [(_IDS[97], _IDS[98], 2**41), (_IDS[99], _IDS[100], 2**40 + 1), (256, _IDS[120], 2**40)]
    assert _listed(merges) == expected


@pytest.mark.parametrize("words", [{}, {b"a": 5}, {b"a": 1, b"b": 2}])
def test_nothing_to_merge(words: dict[bytes, int]) -> None:
    assert _listed(_learn(words, 5)) == []


def test_memory_is_bounded_by_the_possible_merges() -> None:
    assert _listed(_learn({b"abcabc": 3}, 2**31 - 258)) == _naive({b"abcabc": 3}, 100, 1)


def test_tables_grow() -> None:
    """More distinct pairs than the first tables hold, before the first merge and by merging."""
    rng = np.random.default_rng(3)
    words = {bytes(rng.integers(0, 256, 40).tolist()): int(count) for count in rng.integers(1, 4, 6000)}
    merges = _learn(words, 400)
    assert len(merges.left) == 400
    assert merges.counts.tolist() == sorted(merges.counts.tolist(), reverse=True)
    assert _listed(merges)[:6] == _naive(words, 6, 1)


@pytest.mark.parametrize("starts", [[], [0], [0, 2], [1, 3], [0, 2, 3], [0, 4]])
def test_inconsistent_arrays_are_refused(starts: list[int]) -> None:
    with pytest.raises(ValueError, match="does not divide the"):
        learn_merges(
            np.array([1, 2, 3], np.int32),
            np.array(starts, np.int64),
            np.array([1], np.int64),
            first_id=256,
            most=3,
            min_count=1,
        )


def test_progress_counts_every_merge() -> None:
    rng = np.random.default_rng(5)
    words = {bytes(rng.integers(97, 105, 12).tolist()): int(count) for count in rng.integers(1, 50, 60_000)}
    symbols = np.array([_IDS[byte] for word in words for byte in word], np.int32)
    starts = np.cumsum([0, *map(len, words)], dtype=np.int64)
    told: list[int] = []
    merges = learn_merges(
        symbols,
        starts,
        np.array(list(words.values()), np.int64),
        first_id=256,
        most=20_000,
        min_count=1,
        on_progress=told.append,
    )
    assert sum(told) == len(merges.left) == 20_000
    assert _listed(merges) == _listed(_learn(words, 20_000))


def test_the_words_are_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = np.tile(np.arange(10, dtype=np.uint8), 20_000)
    starts, counts = np.arange(0, len(symbols) + 1, 10), np.ones(20_000, np.int64)
    sizes: list[int] = []
    count_pairs = trainer._count_pairs

    def counting(words: trainer._Words) -> trainer._PairCounts:
        sizes.append(tracemalloc.get_traced_memory()[0] - sum(column.nbytes for column in words))
        return count_pairs(words)

    monkeypatch.setattr(trainer, "_count_pairs", counting)
    tracemalloc.start()
    try:
        learn_merges(symbols, starts, counts, first_id=256, most=3, min_count=1)
    finally:
        tracemalloc.stop()
    # The lengths of all words, and the lists of occurrences, which are not written yet.
    assert sizes[0] < 4 * len(counts) + 2 * 4 * len(symbols) + 100_000

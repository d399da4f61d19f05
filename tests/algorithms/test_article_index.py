"""The index of a reference's n-grams: which are in it, the first article of each, and the words that they cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.algorithms.ngrams.article_index import (
    EMPTY,
    NONE,
    Articles,
    Hashes,
    add_ngrams,
    covered_words,
    find_articles,
    new_table,
    parts_of,
    sample_ngrams,
)

# N-grams are told apart by the low 32 bits of their hashes. A third of them begin in the last slot.
_LOW = (1 << 32) - 1
_HASHES = st.lists(
    (st.integers(0, 8) | st.integers(0, _LOW)).map(lambda low: low | (low if low % 3 else _LOW) << 32), max_size=50
)


def find(table: Hashes, hashes: Hashes) -> Articles:
    articles = np.full(len(hashes), NONE)
    find_articles(table, hashes, np.arange(len(hashes)), articles)
    return articles


@given(_HASHES, _HASHES)
def test_each_ngram_has_its_first_article_and_others_have_none(values: list[int], absent: list[int]) -> None:
    hashes, articles = np.array(values, np.uint64), np.arange(len(values), dtype=np.uint32) // np.uint32(3)
    table = new_table(len(values))
    half = len(values) // 2
    add_ngrams(table, hashes[:half], articles[:half])
    add_ngrams(table, hashes[half:], articles[half:])
    first: dict[int, int] = {}
    for value, article in zip(values, articles.tolist(), strict=True):
        first.setdefault(value, article)
    queried = [*values, *absent]
    expected = [first.get(value, int(NONE)) for value in queried]
    assert find(table, np.array(queried, np.uint64)).tolist() == expected


def test_many_ngrams_with_repeats() -> None:
    source = np.random.default_rng(1)
    hashes = source.integers(0, 1 << 64, 200_000, dtype=np.uint64)[source.integers(0, 150_000, 200_000)]
    articles = np.sort(source.integers(0, 500, 200_000)).astype(np.uint32)
    table = new_table(len(hashes))
    add_ngrams(table, hashes, articles)
    distinct, first = np.unique(hashes, return_index=True)
    assert (table != EMPTY).sum() == len(distinct)
    assert np.array_equal(find(table, distinct), articles[first])
    assert (find(table, distinct + np.uint64(1)) == NONE).all()


@pytest.mark.parametrize("parts", [1, 2, 64, 1024])
def test_every_ngram_is_in_one_of_the_parts(parts: int) -> None:
    hashes = np.random.default_rng(2).integers(0, 1 << 64, 100_000, dtype=np.uint64)
    numbers = parts_of(hashes, parts)
    assert numbers.tolist() == [value * parts >> 64 for value in hashes.tolist()]
    assert np.bincount(numbers, minlength=parts).min() > 0.4 * len(hashes) / parts


@given(st.lists(st.integers(0, 20), max_size=6))
def test_the_sample_has_every_second_ngram_of_each_text_and_its_last(sizes: list[int]) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    expected = [
        (int(starts[text]) + number, text)
        for text, size in enumerate(sizes)
        for number in range(size)
        if number % 2 == 0 or number == size - 1
    ]
    sample, texts = sample_ngrams(np.arange(starts[-1], dtype=np.uint64), starts)
    assert list(zip(sample.tolist(), texts.tolist(), strict=True)) == expected


@given(st.lists(st.lists(st.booleans(), max_size=40), max_size=4), st.integers(1, 9))
def test_covered_words_are_in_an_ngram_with_an_article_or_in_a_short_gap(texts: list[list[bool]], n: int) -> None:
    articles = np.array([0 if is_common else NONE for text in texts for is_common in text], np.uint32)
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    expected = []
    for text in texts:
        covered = {word + k for word, is_common in enumerate(text) if is_common for k in range(n)}
        gaps = [range(a + 1, b) for a, b in zip(sorted(covered), sorted(covered)[1:], strict=False) if b - a - 1 <= n]
        expected.append(len(covered) + sum(map(len, gaps)))
    assert covered_words(articles, starts, n).tolist() == expected

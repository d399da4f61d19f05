"""The index of a reference's n-grams: the first article of each, and the words that it covers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.algorithms.ngrams.article_index import (
    NONE,
    build_part,
    covered_words,
    find_articles,
    order_by_part,
)

# Few distinct values with equal high bits, as well as any.
_HASHES = st.lists(st.sampled_from([0, 1, 2, 1 << 63, (1 << 63) + 1, (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1))


@given(_HASHES, _HASHES)
def test_each_ngram_has_its_first_article_and_others_have_none(values: list[int], absent: list[int]) -> None:
    hashes, articles = np.array(values, np.uint64), np.arange(len(values), dtype=np.uint32) // 3
    index = build_part(hashes.copy(), articles.copy())
    first: dict[int, int] = {}
    for value, article in zip(values, articles.tolist(), strict=True):
        first.setdefault(value, article)
    assert index.hashes.tolist() == sorted(first)
    queried = [*values, *absent]
    expected = [first.get(value, int(NONE)) for value in queried]
    assert find_articles(index, np.array(queried, np.uint64)).tolist() == expected


def test_many_ngrams_with_repeats() -> None:
    source = np.random.default_rng(1)
    hashes = source.integers(0, 1 << 64, 200_000, dtype=np.uint64)[source.integers(0, 150_000, 200_000)]
    articles = np.sort(source.integers(0, 500, 200_000)).astype(np.uint32)
    index = build_part(hashes, articles)
    distinct, first = np.unique(hashes, return_index=True)
    assert np.array_equal(index.hashes, distinct)
    assert np.array_equal(index.articles, articles[first])
    assert np.array_equal(find_articles(index, distinct), articles[first])
    assert (find_articles(index, distinct + np.uint64(1)) == NONE).all()


def test_every_ngram_is_in_one_of_the_parts() -> None:
    hashes = np.random.default_rng(2).integers(0, 1 << 64, 100_000, dtype=np.uint64)
    hashes[50_000:] = hashes[:50_000]
    for parts in (1, 2, 64, 1024):
        ordered, articles, ends = order_by_part(hashes, np.arange(len(hashes), dtype=np.uint32), parts)
        expected = ((ordered >> np.uint64(20)) % np.uint64(1024)).astype(int) * parts // 1024
        assert np.array_equal(expected, np.repeat(np.arange(parts), np.diff([0, *ends])))
        assert np.diff([0, *ends]).min() > 0.4 * len(hashes) / parts
        assert np.array_equal(ordered, hashes[articles])
        # Equal ones stay in order.
        position = np.argsort(articles)
        assert (position[:50_000] < position[50_000:]).all()


@given(st.lists(st.lists(st.booleans(), max_size=30), max_size=4), st.integers(1, 9))
def test_covered_words_are_those_in_an_ngram_with_an_article(texts: list[list[bool]], n: int) -> None:
    articles = np.array([0 if found else NONE for text in texts for found in text], np.uint32)
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    expected = [len({word + k for word, found in enumerate(text) if found for k in range(n)}) for text in texts]
    assert covered_words(articles, starts, n).tolist() == expected

"""Statistics of tokens as written out plainly, and the proof of merges: it agrees with itself and finds falsehoods."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.algorithms.bpe.merges import Merges, learn_merges
from pipelines.algorithms.bpe.token_statistics import (
    CheckedMerge,
    by_powers_of_ten,
    rarer_than,
    renyi_efficiency,
    spread_positions,
    steps_to_check,
    token_frequencies,
    verify_merges,
)

_WORDS = st.dictionaries(
    st.one_of(st.text("ab", min_size=1, max_size=14), st.text("abc ", min_size=1, max_size=10), st.text(max_size=6)),
    st.integers(1, 40),
    max_size=25,
)
_FREQUENCIES = st.lists(st.integers(0, 2000), max_size=30).map(lambda counts: np.array(counts, np.int64))


def _arrays(words: dict[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    encoded = [word.encode() for word in words]
    symbols = np.frombuffer(b"".join(encoded), np.uint8).astype(np.int32)
    return symbols, np.cumsum([0, *map(len, encoded)], dtype=np.int64), np.array(list(words.values()), np.int64)


def _learned(words: dict[str, int], most: int) -> Merges:
    return learn_merges(*_arrays(words), first_id=256, most=most, min_count=1)


def _plainly(words: dict[str, int], merges: Merges, step: int) -> tuple[tuple[int, int], int, int]:
    """Make each merge before a step in all words, one after the other; the most frequent pair then, and all tokens."""
    split = [(list(word.encode()), count) for word, count in words.items()]
    for number in range(step):
        pair = (int(merges.left[number]), int(merges.right[number]))
        for word, _ in split:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == pair:
                    word[at : at + 2] = [256 + number]
                at += 1
    pairs: Counter[tuple[int, int]] = Counter()
    for word, count in split:
        for pair in itertools.pairwise(word):
            pairs[pair] += count
    best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=(-1, -1))
    return best, pairs[best], sum(len(word) * count for word, count in split)


@settings(deadline=None, max_examples=100)
@given(_WORDS, st.data())
def test_checked_merges_match_a_plain_recount(words: dict[str, int], data: st.DataObject) -> None:
    merges = _learned(words, 60)
    steps = data.draw(st.lists(st.integers(0, len(merges.left) - 1))) if len(merges.left) else []
    checked = verify_merges(*_arrays(words), merges, steps)
    assert [each.step for each in checked] == sorted(set(steps))
    for each in checked:
        best, count, tokens = _plainly(words, merges, each.step)
        assert ((each.found_left, each.found_right), each.found_times, each.tokens) == (best, count, tokens)
        assert each.is_right


@settings(deadline=None, max_examples=100)
@given(_WORDS, st.data())
def test_any_merges_can_be_applied(words: dict[str, int], data: st.DataObject) -> None:
    """Also with merges that no trainer would make, in an order that none would have."""
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(b"abc "), st.sampled_from(b"abc ")), unique=True, max_size=9))
    later = [(256 + number, pairs[number][0]) for number in range(len(pairs))]
    left, right = (np.array(side, np.int32) for side in zip(*pairs, *later, strict=True)) if pairs else [_NONE, _NONE]
    merges = Merges(left, right, np.zeros(len(left), np.int64))
    for each in verify_merges(*_arrays(words), merges, range(len(left))):
        best, count, tokens = _plainly(words, merges, each.step)
        assert ((each.found_left, each.found_right), each.found_times, each.tokens) == (best, count, tokens)


_NONE = np.array([], np.int32)


def _falsified(merges: Merges, step: int, **changed: int) -> Merges:
    copy = Merges(merges.left.copy(), merges.right.copy(), merges.counts.copy())
    for name, value in changed.items():
        getattr(copy, name)[step] = value
    return copy


def test_a_wrong_merge_is_detected() -> None:
    words = {"lower": 5, "lowest": 3, "newer": 6, "wider": 4, "aaaa": 2}
    merges = _learned(words, 12)
    every = range(12)
    assert all(each.is_right for each in verify_merges(*_arrays(words), merges, every))
    wrong_count = verify_merges(*_arrays(words), _falsified(merges, 7, counts=1), every)
    assert [each.step for each in wrong_count if not each.is_right] == [7]
    wrong_pair = verify_merges(*_arrays(words), _falsified(merges, 4, left=ord("z"), right=ord("z")), every)
    assert next(each.step for each in wrong_pair if not each.is_right) == 4
    swapped = Merges(merges.left[::-1].copy(), merges.right[::-1].copy(), merges.counts[::-1].copy())
    assert not verify_merges(*_arrays(words), swapped, [0])[0].is_right


def test_ties_go_to_the_lowest_pair() -> None:
    merges = Merges(np.array([99], np.int32), np.array([100], np.int32), np.array([3], np.int64))
    (checked,) = verify_merges(*_arrays({"cd": 3, "ab": 3}), merges, [0])
    assert checked == CheckedMerge(0, 99, 100, 3, 97, 98, 3, 12)
    assert not checked.is_right


def test_a_merge_that_never_occurs_is_wrong() -> None:
    merges = Merges(np.array([97], np.int32), np.array([98], np.int32), np.array([1], np.int64))
    (checked,) = verify_merges(*_arrays({"a": 3}), merges, [0])
    assert (checked.found_left, checked.found_right, checked.found_times, checked.tokens) == (-1, -1, 0, 3)
    assert not checked.is_right


def test_counts_may_exceed_32_bits_and_tables_grow() -> None:
    rng = np.random.default_rng(3)
    symbols = rng.integers(0, 256, 60_000).astype(np.int32)
    starts = np.arange(0, 60_001, 20)
    counts = rng.integers(2**40, 2**41, 3000)
    merges = learn_merges(symbols, starts, counts, first_id=256, most=3000, min_count=1)
    given_symbols, given_starts, given_counts = symbols.copy(), starts.copy(), counts.copy()
    checked = verify_merges(symbols, starts, counts, merges, [0, 1, 57, 2999])
    assert all(each.is_right for each in checked)
    assert checked[0].tokens == 20 * int(counts.sum())
    assert (symbols == given_symbols).all()
    assert (starts == given_starts).all()
    assert (counts == given_counts).all()


@given(st.lists(st.tuples(st.integers(0, 2**40), st.lists(st.integers(0, 9), max_size=6)), max_size=12))
def test_frequencies(texts: list[tuple[int, list[int]]]) -> None:
    expected: Counter[int] = Counter()
    for count, ids in texts:
        for id in ids:
            expected[id] += count
    ids = np.array([id for _, ids in texts for id in ids], np.uint32)
    starts = np.cumsum([0, *(len(ids) for _, ids in texts)], dtype=np.int64)
    counts = np.array([count for count, _ in texts], np.int64)
    assert token_frequencies(ids, starts, counts, 10).tolist() == [expected[id] for id in range(10)]


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(IndexError):
        token_frequencies(np.array([3], np.uint32), np.array([0, 1]), np.array([1]), 3)


@given(_FREQUENCIES, st.sampled_from([0.5, 1.0, 2.0, 2.5]))
def test_efficiency(frequencies: np.ndarray, alpha: float) -> None:
    size = len(frequencies) + 1
    shares = [count / max(1, frequencies.sum()) for count in frequencies.tolist() if count]
    if not shares or size < 2:
        expected = 0.0
    elif alpha == 1:
        expected = -sum(share * math.log(share) for share in shares) / math.log(size)
    else:
        expected = math.log(sum(share**alpha for share in shares)) / (1 - alpha) / math.log(size)
    found = renyi_efficiency(frequencies, size, alpha)
    assert found == pytest.approx(expected, abs=1e-9)
    assert 0 <= found <= 1


def test_efficiency_is_one_for_equal_counts() -> None:
    assert renyi_efficiency(np.full(64, 7), 64) == pytest.approx(1)
    assert renyi_efficiency(np.array([5, 0]), 2) == 0


@given(_FREQUENCIES, st.integers(0, 200))
def test_rare_entries(frequencies: np.ndarray, below: int) -> None:
    counts = frequencies.tolist()
    expected = sorted((count, id) for id, count in enumerate(counts) if count < below)
    assert rarer_than(frequencies, below).tolist() == [id for _, id in expected]
    decades = by_powers_of_ten(frequencies)
    assert sum(decades) == len(counts)
    assert decades[0] == counts.count(0)
    for power, entries in enumerate(decades[1:]):
        assert entries == sum(10**power <= count < 10 ** (power + 1) for count in counts)
    assert len(decades) == 1 + (len(str(max(counts))) if any(counts) else 0)


@given(st.integers(0, 10**6), st.integers(2, 300))
def test_positions_are_evenly_spaced(size: int, most: int) -> None:
    positions = spread_positions(size, most)
    assert len(positions) <= most
    assert positions == sorted(set(positions))
    assert (positions[:1], positions[-1:]) == (([1], [size]) if size else ([], []))


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_steps_are_evenly_spaced(merges: int, most: int) -> None:
    steps = steps_to_check(merges, most)
    assert steps == sorted(set(steps))
    assert all(0 <= step < merges for step in steps)
    assert len(steps) <= most
    if merges and most:
        assert steps[0] == 0
    if merges and most > 1:
        assert steps[-1] == merges - 1

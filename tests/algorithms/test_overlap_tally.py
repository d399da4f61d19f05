"""The counts of the audit against plain counting."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.algorithms.overlap import Match, Tally

_WORD = st.sampled_from(["a", "b", "c", "d"])
_TEXT = st.lists(_WORD, max_size=14).map(" ".join)


@settings(deadline=None)
@given(st.lists(_TEXT, max_size=6), st.sets(st.tuples(_WORD, _WORD).map(" ".join)))
def test_counts_equal_plain_counting(texts: list[str], held: set[str]) -> None:
    tally = Tally(2)
    hits = [tally.add(str(number), text, dict.fromkeys(held, Match(1, "d"))) for number, text in enumerate(texts)]
    pairs = [[" ".join(pair) for pair in zip(text.split(), text.split()[1:], strict=False)] for text in texts]
    shares = [sum(pair in held for pair in each) / len(each) for each in pairs if each]
    flat = [pair for each in pairs for pair in each]
    distinct = set(flat)
    row = tally.row("name", None)
    assert row["ngrams"] == len(flat)
    assert row["overlapping"] == sum(pair in held for pair in flat)
    assert abs(row["percent_positions"] - 100 * row["overlapping"] / max(1, len(flat))) < 1e-5
    assert abs(row["percent_distinct"] - 100 * len(distinct & held) / max(1, len(distinct))) < 1e-5
    assert row["examples"] == len(texts)
    assert row["too_short"] == sum(not each for each in pairs)
    assert row["examples_any"] == sum(share > 0 for share in shares)
    assert row["examples_15"] == sum(share >= 0.15 for share in shares)
    assert row["examples_50"] == sum(share >= 0.5 for share in shares)
    assert tally.histogram[0] == sum(share == 0 for share in shares)
    assert sum(tally.histogram) == len(shares)
    for each, found in zip(pairs, hits, strict=True):
        assert [(position, ngram) for position, ngram, _ in found] == [
            (position, pair) for position, pair in enumerate(each) if pair in held
        ]


def test_bins_end_with_their_upper_bound() -> None:
    tally = Tally(1)
    held = {"x": Match(1, "d")}
    for text in ("a", "x", "x " + "a " * 19, "x x " + "a " * 18, "x " + "a " * 99):
        tally.add("place", text, held)
    assert {share: count for share, count in enumerate(tally.histogram) if count} == {0: 1, 1: 2, 2: 1, 20: 1}


def test_passages_are_the_longest_runs_as_they_are_written() -> None:
    tally = Tally(3)
    held = {
        "the quick brown": Match(2, "one", "https://one.example"),
        "quick brown fox": Match(1, "two", None),
        "brown fox jumps": Match(1, "two", None),
        "over the dog": Match(9, "three", None),
    }
    tally.add("b.txt:7", "So: “The QUICK, brown fox jumps” – over the dog.", held)
    tally.add("b.txt:8", "the quick brown fox jumps", held)
    longest, other = tally.longest_passages(5)
    assert (longest.before, longest.text, longest.after) == ("So: “", "The QUICK, brown fox jumps", "” – over the dog.")
    assert (longest.place, longest.words) == ("b.txt:7", 5)
    assert longest.sources == (("two", None), ("one", "https://one.example"))
    assert (other.text, other.words, other.sources) == ("over the dog", 3, (("three", None),))
    assert tally.longest_passages(1) == [longest]


def test_a_passage_that_is_repeated_hides_no_other() -> None:
    tally = Tally(2)
    boilerplate = "a b c d e f"
    held = dict.fromkeys([*(" ".join(pair) for pair in itertools.pairwise(boilerplate.split())), "x y"], Match(1, "d"))
    tally.add("first", boilerplate, held)
    tally.add("short", "the x y", held)
    for number in range(500):
        tally.add(str(number), f"{boilerplate.upper()}! {number}", held)
    assert [(passage.text, passage.place) for passage in tally.longest_passages(5)] == [
        (boilerplate, "first"),
        ("x y", "short"),
    ]


def test_the_longest_of_more_passages_than_are_kept_are_shown() -> None:
    tally = Tally(1)
    held = {"x": Match(1, "d")}
    lengths = [1 + number * 7 % 997 for number in range(997)]
    for length in (*lengths, *lengths):
        tally.add(f"{length}", "x " * length, held)
    assert [passage.words for passage in tally.longest_passages(12)] == list(range(997, 985, -1))


def test_only_so_much_of_a_long_example_is_kept() -> None:
    tally = Tally(1)
    tally.add("p", "a " * 500 + "x " * 3000 + "b " * 500, {"x": Match(1, "d")})
    (passage,) = tally.longest_passages(3)
    assert passage.words == 3000
    assert max(len(passage.before), len(passage.after)) < 300
    assert len(passage.text) < 2000
    assert passage.before.startswith("… a a")
    assert passage.after.endswith("a …") or passage.after.endswith("b …")

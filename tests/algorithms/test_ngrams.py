"""Words and n-grams against plain loops over characters."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_ngrams import ngrams, segments, text_ngrams, word_spans, words

from pipelines.algorithms.ngrams.words import DEFAULT, Normalization, describe

# Characters whose lower-casing grows, shrinks or depends on its neighbours, marks, digits of other scripts.
_ODD = st.text(st.sampled_from("aBZ09_'’- \n\tİıΑΣσςßẞǅﬁ\u0301\u0307नीक漢字٣½²ⅣⓐK"), max_size=30)
_TEXTS = st.one_of(st.text(max_size=60), _ODD)


def _words_by_characters(text: str) -> list[str]:
    """The definition, character by character."""
    found = [""]
    for character in text.lower():
        if character.isalnum():
            found[-1] += character
        else:
            found.append("")
    return [word for word in found if word]


@settings(deadline=None)
@given(_TEXTS)
def test_words_are_runs_of_letters_and_digits(text: str) -> None:
    assert words(text) == _words_by_characters(text)


def test_every_other_character_ends_a_word() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        assert words(character) == _words_by_characters(character), hex(code)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop_me -- NOW!", ["don", "t", "stop", "me", "now"]),
        ("e-mail: a@b.example", ["e", "mail", "a", "b", "example"]),
        ("Ünïted 2nd ²", ["ünïted", "2nd", "²"]),
        ("naïve ≠ nai\u0308ve", ["naïve", "nai", "ve"]),
        ("漢字 かな", ["漢字", "かな"]),
        ("", []),
        (" \n…", []),
    ],
)
def test_words_of_simple_examples(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "cc"]), max_size=12), st.integers(1, 14))
def test_ngrams_are_all_slices_of_n_words(each: list[str], n: int) -> None:
    assert list(ngrams(each, n)) == [" ".join(each[start : start + n]) for start in range(len(each) - n + 1)]


@settings(deadline=None)
@given(_TEXTS)
def test_spans_are_the_positions_of_words(text: str) -> None:
    spans = word_spans(text)
    found = words(text)
    assert len(spans) == len(found)
    for (start, end), word in zip(spans, found, strict=True):
        # `casefold`, since a sigma that ends the slice need not end the word in the text.
        assert word.casefold() in text[start:end].lower().casefold()
        assert end - start <= len(word)


def test_spans_count_characters_that_grow_when_lowered() -> None:
    text = "İ stanbul İX end"
    assert [text[start:end] for start, end in word_spans(text)] == ["İ", "stanbul", "İ", "X", "end"]


_NORMALIZATIONS = [
    Normalization(*options) for options in itertools.product(("split", "drop"), ("unicode", "ascii"), ("cross", "stop"))
]


def _segments_by_characters(text: str, normalization: Normalization) -> list[list[str]]:
    """The definition with its options, character by character."""

    def belongs(at: int) -> bool:
        if not 0 <= at < len(lowered):
            return False
        if normalization.letters == "ascii":
            return lowered[at] in "abcdefghijklmnopqrstuvwxyz0123456789"
        return lowered[at].isalnum()

    lowered = text.lower()
    found: list[list[str]] = [[""]]
    for at, character in enumerate(lowered):
        if belongs(at):
            found[-1][-1] += character
        elif normalization.lines == "stop" and character in "\n\r":
            found.append([""])
        elif not (normalization.apostrophes == "drop" and character in "'’" and belongs(at - 1) and belongs(at + 1)):
            found[-1].append("")
    runs = [[word for word in run if word] for run in found]
    return [run for run in runs if run]


@settings(deadline=None)
@given(_TEXTS, st.sampled_from(_NORMALIZATIONS), st.integers(1, 4))
def test_normalizations_match_their_definitions(text: str, normalization: Normalization, n: int) -> None:
    runs = _segments_by_characters(text, normalization)
    assert segments(text, normalization) == runs
    assert words(text, normalization) == [word for run in runs for word in run]
    firsts = itertools.accumulate((len(run) for run in runs), initial=0)
    assert text_ngrams(text, n, normalization) == [
        (first + at, " ".join(run[at : at + n]))
        for first, run in zip(firsts, runs, strict=False)
        for at in range(len(run) - n + 1)
    ]
    spans = word_spans(text, normalization)
    assert len(spans) == sum(len(run) for run in runs)
    for (start, end), word in zip(spans, words(text, normalization), strict=True):
        assert word.casefold() in text[start:end].lower().replace("'", "").replace("’", "").casefold()


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        (DEFAULT, [["don", "t", "naïve", "k", "it", "s"]]),
        (Normalization(apostrophes="drop"), [["dont", "naïve", "k", "its"]]),
        (Normalization(letters="ascii"), [["don", "t", "na", "ve", "k", "it", "s"]]),
        (Normalization(lines="stop"), [["don", "t", "naïve"], ["k", "it", "s"]]),
    ],
)
def test_options_on_a_simple_example(normalization: Normalization, expected: list[list[str]]) -> None:
    assert segments("Don't 'naïve'\r\n\u212a IT’S'", normalization) == expected


def test_descriptions_of_normalizations_are_unique() -> None:
    assert describe(DEFAULT) == "lower-cased alphanumeric words (Unicode), one space between words"
    assert len({describe(normalization) for normalization in _NORMALIZATIONS}) == 8

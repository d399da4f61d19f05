"""Normalized texts: the words are those of the definition, and each is at its place in the text."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.algorithms.ngrams.normal_words import normalize_texts

_WORD = re.compile(r"[^\W_]+")
_characters = st.one_of(st.sampled_from("aB9 ,.'\n’İıßΣσςéÉकि中ไ가_-"), st.characters(exclude_categories=["Cs"]))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(_characters, max_size=60), max_size=5))
def test_words_are_those_of_the_lower_cased_text(texts: list[str]) -> None:
    for text, normal in zip(texts, normalize_texts(pa.array(texts, pa.string())), strict=True):
        assert normal.words == "".join(f"{word} " for word in _WORD.findall(text.lower()))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(st.sampled_from("aB9é中 .'ßÉ\n"), max_size=60), min_size=1, max_size=5))
def test_each_word_is_at_its_place(texts: list[str]) -> None:
    for text, normal in zip(texts, normalize_texts(pa.array(texts)), strict=True):
        data = text.encode()
        places = zip(normal.starts.tolist(), normal.ends.tolist(), strict=True)
        assert [data[start:end].decode().lower() for start, end in places] == normal.words.split()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_long_texts_and_slices_of_a_column(kind: pa.DataType) -> None:
    long = "Word, two; " * 40_000
    [_, second, third] = normalize_texts(pa.array(["zero", "not this", long, "Last one"], kind)[1:])
    assert second.words == "word two " * 40_000
    assert (int(second.starts[-1]), int(second.ends[-1])) == (len(long) - 5, len(long) - 2)
    assert (third.words, third.starts.tolist(), third.ends.tolist()) == ("last one ", [0, 5], [4, 8])


def test_no_texts_and_texts_without_words() -> None:
    assert normalize_texts(pa.array([], pa.string())) == []
    assert [normal.words for normal in normalize_texts(pa.array(["", "...", "a"]))] == ["", "", "a "]

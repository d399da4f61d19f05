"""The tables of characters against Python, for the whole of its Unicode."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.algorithms.ngrams.character_tables import (
    CASED,
    CHANGED,
    CODE,
    DOTTED_I,
    FINAL_SIGMA,
    IGNORABLE,
    SIGMA,
    UNSPACED,
    WORD,
    character_tables,
)
from pipelines.algorithms.ngrams.word_scan import UNSPACED_DIVIDER
from pipelines.algorithms.ngrams.words import DEFAULT, Normalization, Shingling, is_unspaced

_CHARACTERS = [chr(code) for code in range(0x110000)]


def _entries(normalization: Normalization) -> np.ndarray:
    pages, entries = character_tables(normalization)
    codes = np.arange(0x110000)
    return entries[pages[codes >> 8], codes & 0xFF].astype(np.int64)


def test_letters_and_lower_case_match_python() -> None:
    lowered = [character.lower() for character in _CHARACTERS]
    assert [code for code, text in enumerate(lowered) if len(text) > 1] == [DOTTED_I]
    entries, codes = _entries(DEFAULT), np.arange(0x110000)
    assert ((entries + codes) & CODE).tolist() == [ord(text[0]) for text in lowered]
    assert (entries & WORD > 0).tolist() == [text[0].isalnum() for text in lowered]
    assert (entries & CHANGED > 0).tolist() == [text[0] != chr(code) for code, text in enumerate(lowered)]


def test_ascii_letters_match_the_lower_cased_text() -> None:
    found = {_CHARACTERS[code] for code in np.flatnonzero(_entries(Normalization(letters="ascii")) & WORD)}
    alphabet = set("abcdefghijklmnopqrstuvwxyz0123456789")
    assert found == {character for character in _CHARACTERS if character.lower()[0] in alphabet}
    assert {"K", "İ"} < found


@pytest.mark.parametrize(("before", "flags"), [("", CASED), ("a", CASED | IGNORABLE)])
def test_the_final_sigma_depends_on_known_characters_only(before: str, flags: int) -> None:
    text = "".join(f"{before}{'i' if character == 'İ' else character}Σ\n" for character in _CHARACTERS).lower()
    finals = [text[at] == chr(FINAL_SIGMA) for at in range(len(before) + 1, len(text), len(before) + 3)]
    assert (_entries(DEFAULT) & flags > 0).tolist() == finals


def test_lower_casing_grows_a_character_by_half_at_most() -> None:
    # Room for normalized text is measured by this.
    for character in _CHARACTERS:
        if not "\ud800" <= character <= "\udfff" and ord(character) != DOTTED_I:
            size = len(character.encode())
            assert len(character.lower().encode()) <= size + size // 2
    assert len(chr(SIGMA).encode()) == len(chr(FINAL_SIGMA).encode()) == 2


def test_characters_of_scripts_without_spaces_are_words_of_their_own() -> None:
    entries, unspaced = _entries(Shingling()), [*map(is_unspaced, _CHARACTERS)]
    assert (entries & UNSPACED > 0).tolist() == unspaced
    # Both needed by the kernels: they are part of words, and lower-casing does not change them.
    assert (entries[unspaced] & (WORD | CHANGED) == WORD).all()
    assert not (_entries(DEFAULT) & UNSPACED).any()
    assert not (_entries(Shingling(letters="ascii")) & UNSPACED).any()
    assert (entries & ~UNSPACED).tolist() == _entries(DEFAULT).tolist()


def test_long_texts_are_cut_where_no_word_is() -> None:
    for character in _CHARACTERS:
        if not "\ud800" <= character <= "\udfff" and UNSPACED_DIVIDER.match(character.encode()):
            assert is_unspaced(character) or not character.isalnum()
            assert character not in "'\u2019"


@pytest.mark.parametrize(
    ("character", "expected"),
    [*((c, True) for c in "中々〆〇〡あゟアーｱกໝកကཀ๑𠀀"), *((c, False) for c in "aé한ㄅम。・་์㍿\u3099")],
)
def test_which_scripts_have_no_spaces(character: str, expected: bool) -> None:
    assert is_unspaced(character) is expected

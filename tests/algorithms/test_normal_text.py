"""The normalized text and its hash against plain Python, on all of Unicode."""

from __future__ import annotations

import hashlib
import sys
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.algorithms.minhash.normal_text import _is_stable, nfc_column, text_hashes
from pipelines.algorithms.ngrams.word_scan import CHUNK_BYTES

_ODD = st.text(
    st.sampled_from(
        "ab.\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2009\u200a\u200b\u2028\u2029\u202f"
        "\u205f\u3000’é漢字か\u3099e\u0301\u0323\u1100\u1161\u11a8한Å\u2126🙂\ufeff"
    ),
    max_size=200,
)
TEXTS = st.one_of(st.text(max_size=80), _ODD, st.text(st.sampled_from("a \n"), max_size=300))
COLUMNS = st.lists(TEXTS, max_size=6)


def reference(texts: Sequence[str]) -> bytes:
    """The hashes as bytes, by Python alone."""
    normal = (" ".join(unicodedata.normalize("NFC", text).split()) for text in texts)
    return b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in normal)


def array_of(texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    """An array that is a part of another one."""
    return pa.array(["e", *texts, "\u0301 x"], kind).slice(1, len(texts))


@settings(deadline=None, max_examples=200)
@given(COLUMNS, st.sampled_from([pa.string(), pa.large_string()]))
@example([" " * 63 + "\u3000a", "a" * 62 + "\u3000 b", "a" * 63 + "\xa0\n", "\u2003" * 50, "", "x"], pa.string())
def test_hashes_match_plain_python(texts, kind):
    assert text_hashes(array_of(texts, kind)).astype("<u8").tobytes() == reference(texts)


@settings(deadline=None, max_examples=200)
@given(COLUMNS, st.sampled_from([pa.string(), pa.large_string()]))
def test_the_nfc_form_matches_python_and_copies_nothing_that_has_it(texts, kind):
    array = array_of(texts, kind)
    data, starts = nfc_column(array)
    normal = [unicodedata.normalize("NFC", text) for text in texts]
    assert [bytes(data[start:end]).decode() for start, end in pairwise(starts.tolist())] == normal
    if texts and normal == texts:
        assert data.ctypes.data == array.buffers()[2].address


def test_every_character_is_white_space_or_not_as_in_python():
    parts = [f"a{chr(code)}b" for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    texts = ["".join(parts[start : start + 64]) for start in range(0, len(parts), 64)]
    assert text_hashes(pa.array(texts)).astype("<u8").tobytes() == reference(texts)


@pytest.mark.parametrize(
    "text",
    [
        "word  word\n" * 40_000,
        " " * 400_000,
        "x" + " " * 300_000 + "y" + "\n" * 200_000,
        "漢字\u3000" * 60_000,
        "e\u0301 \u3000" * 400_000,
        "\u3099か" * 200_000,
        ("z" * (CHUNK_BYTES - 1) + "\xa0 ") * 3,
        ("z" * CHUNK_BYTES + " \u3000") * 3,
        ("\x80" * (CHUNK_BYTES // 2) + "\x85a \t") * 3,
        "漢" * 100_000 + " \u3000" * 100_000,
    ],
)
def test_long_texts_are_hashed_in_parts(text):
    assert len(text.encode()) > 2 * CHUNK_BYTES
    texts = [" a b", text, text + "x", "", "c "]
    assert text_hashes(pa.array(texts)).astype("<u8").tobytes() == reference(texts)


def test_no_texts():
    assert text_hashes(pa.array([], pa.string())).shape == (0, 2)
    assert text_hashes(pa.array([""])).shape == (1, 2)


def test_a_character_counts_as_stable_only_if_nfc_keeps_it_after_any_other():
    assert all(unicodedata.is_normalized("NFC", chr(code)) for code in range(0x300))
    codes = [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]
    stable = {character for character in map(chr, codes) if _is_stable(character)}
    composed = [character for character in map(chr, codes) if unicodedata.is_normalized("NFC", character)]
    last_parts = {
        parts[-1] for parts in (unicodedata.normalize("NFD", character) for character in composed) if parts[1:]
    }
    assert stable.isdisjoint(last_parts)
    assert not any(map(unicodedata.combining, stable))

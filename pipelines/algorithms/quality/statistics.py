"""The statistics of a text that the published quality rules compare with thresholds, all in one pass over its tokens.

Words are those of `tokens`, as in datatrove; other definitions are those of the papers as datatrove reads them.
Lengths are in characters.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.kernels.byte_scan import BLOCK, other_space_leads
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.kernels.hash_table import FREE, slot_of
from pipelines.algorithms.quality import tokens

# Statistic -> its description, for reports.
STATISTICS = {
    "characters": "characters",
    "words": "words that are more than symbols",
    "word_length": "mean length of the words that are more than symbols",
    "hashes_per_word": "number signs per word",
    "ellipses_per_word": "ellipses per word",
    "bullet_lines": "share of lines that begin with a bullet",
    "ellipsis_lines": "share of lines that end with an ellipsis",
    "alphabetic_words": "share of words with a letter",
    "stop_words": "different words among: the, be, to, of, and, that, have, with",
    "duplicate_paragraphs": "share of paragraphs that repeat an earlier one",
    "duplicate_paragraph_characters": "share of characters in paragraphs that repeat an earlier one",
    "duplicate_lines": "share of lines that repeat an earlier one",
    "duplicate_line_characters": "share of characters in lines that repeat an earlier one",
    **{f"top_{n}_gram": f"share of characters in the most frequent {n}-gram" for n in range(2, 5)},
    **{f"duplicate_{n}_grams": f"share of characters in repeated {n}-grams" for n in range(5, 11)},
    "terminal_lines": "share of lines that end like a sentence",
    "short_lines": "share of lines of at most 30 characters",
    "repeated_characters": "share of characters other than line breaks in lines that repeat an earlier one",
    "newlines_per_word": "line breaks per word",
    "letters": "share of letters among the characters other than white space",
    "damaged_characters": "share of characters that show a wrong encoding",
}
(
    _CHARACTERS, _WORDS, _WORD_LENGTH, _HASHES, _ELLIPSES, _BULLETS, _ELLIPSIS_LINES, _ALPHABETIC, _STOP_WORDS,
    _PARAGRAPHS, _, _LINES, _, _TOP, _, _, _DUPLICATE, _, _, _, _, _,
    _TERMINAL, _SHORT, _REPEATED, _NEWLINES, _LETTERS, _DAMAGED,
) = range(len(STATISTICS))  # fmt: skip
# A text of this size takes ~0.3 GB.
DESCRIBED_BYTES = 8 << 20
_SHORT_LINE = 30
_TO_SYMBOL = (tokens.CONTINUATION // tokens.SYMBOL).bit_length() - 1
_BASE = np.uint64(0x9E3779B97F4A7C15)
# No key equals FREE, which has all bits.
_KEY_BITS = ~np.uint64(1)

_GOPHER_WORDS = np.array([int.from_bytes(word, "little") for word in b"the be to of and that have with".split()], "u8")


def describe(texts: pa.Array, needed: Collection[str] = STATISTICS) -> npt.NDArray[np.float64]:
    """Return the statistics of texts, in the order of `STATISTICS`, of shape (texts, statistics).

    Those that are not `needed` may be 0, which saves time. Statistics of words are 0 for a text without tokens, all are
    0 for an empty one. Only the first `DESCRIBED_BYTES` of
    a text are read, which bounds memory. Gopher (arXiv 2112.11446, appendix A1), FineWeb (arXiv 2406.17557, section
    3.6), and two of our own.
    """
    data, offsets = text_arrays(texts)
    starts = offsets.astype(np.int64)
    rows = np.zeros((len(texts), len(STATISTICS)))
    longest = min(int(np.diff(starts).max(initial=0)), DESCRIBED_BYTES)
    buffers = Buffers(
        np.empty(longest, np.uint16),
        np.empty(longest + 1, np.int32),
        np.empty(longest + 1, np.int32),
        np.zeros(longest + 2, np.uint64),
        np.zeros(longest + 2, np.int32),
        np.empty(4 * longest + 16, np.uint64),
        np.empty(4 * longest + 16, np.int32),
        np.empty(4 * longest + 16, np.int32),
    )
    is_needed = np.array([name in needed for name in STATISTICS])
    repeats = is_needed[_PARAGRAPHS:_TOP].any() | is_needed[_TERMINAL:_NEWLINES].any()
    table, parts = tokens.character_classes(), (repeats, is_needed[_TOP:_TERMINAL].any(), is_needed[_LETTERS:].any())
    _describe(as_read_only(data), as_read_only(starts), table, buffers, rows, parts)
    return rows


class Buffers(NamedTuple):
    """Buffers of the kernels for one text: the class of each byte; begin and end of each token; rolling hash and number
    of characters before each token; and a hash table with counts and first positions.
    """

    classes: npt.NDArray[np.uint16]
    begins: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]
    sums: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.int32]
    keys: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int32]
    firsts: npt.NDArray[np.int32]


@kernel
def _describe(data: Any, starts: Any, table: Any, buffers: Any, rows: Any, parts: Any) -> None:
    repeats, ngrams, letters = parts
    for number in range(len(rows)):
        start, stop = starts[number], starts[number + 1]
        if stop - start > DESCRIBED_BYTES:
            stop = start + DESCRIBED_BYTES
            while data[stop] & 0xC0 == 0x80:  # within a character
                stop -= 1
        text = data[start:stop]
        row, classes = rows[number], buffers.classes[: len(text)]
        characters = tokens.classify(data, start, stop, table, classes)
        row[_CHARACTERS] = characters
        if not characters:
            continue
        count = tokens.find_tokens(text, classes, buffers.begins, buffers.ends)
        _describe_characters(text, classes, row, letters)
        _describe_lines(text, classes, row)
        if repeats:
            for breaks, column in ((1, _LINES), (2, _PARAGRAPHS)):
                _describe_repeats(text, classes, buffers.keys, breaks, column, row)
        if count:
            _describe_words(text, buffers, count, row, ngrams)
            if ngrams:
                _describe_ngrams(buffers, count, row)
        for column in (_HASHES, _ELLIPSES, _NEWLINES):
            row[column] = row[column] / count if count else 0


@helper
def _describe_characters(text: Any, classes: Any, row: Any, letters_needed: Any) -> None:
    letters = others = damaged = breaks = hashes = ellipses = periods = 0
    for position in range(len(text)):
        kind, byte = classes[position], text[position]
        breaks += byte == 10
        hashes += byte == 35
        periods = (periods + 1) % 3 if byte == 46 else 0
        ellipses += (byte == 46 and periods == 0) or tokens.is_mark(text, position, np.int64(0), tokens.ELLIPSIS)
        if not letters_needed or kind & tokens.CONTINUATION:
            continue
        letters += kind & tokens.ALPHA != 0
        others += kind & (tokens.ALPHA | tokens.SPACE) == 0
        following = text[position + 1] if position + 1 < len(text) else 0
        if byte == 0xEF:  # U+FFFD
            damaged += following == 0xBF and text[position + 2] == 0xBD
        elif byte == 0xC2:  # control characters, which stand for bytes of another encoding
            damaged += following < 0xA0
        elif byte == 0xC3 and (following == 0x82 or following == 0x83 or following == 0xA2):
            # UTF-8 that was read as Latin-1 or Windows-1252: A or a with a mark before a non-letter.
            after = position + 2
            damaged += after < len(text) and text[after] >= 0xC2 and not classes[after] & tokens.ALPHA
    row[_HASHES], row[_ELLIPSES], row[_NEWLINES] = hashes, ellipses, breaks
    row[_LETTERS] = letters / max(1, letters + others)
    row[_DAMAGED] = damaged / row[_CHARACTERS]


@helper
def _describe_lines(text: Any, classes: Any, row: Any) -> None:
    """Describe the lines of `str.splitlines`."""
    lines, bullets, ellipses, first = 0, 0, 0, np.int64(0)
    while first < len(text):
        end = end_of_line(text, classes, first)
        lines += 1
        low, high = trimmed(classes, first, end)
        if low < high:
            bullets += text[low] == 45 or tokens.is_mark(text, low, first, tokens.BULLET)
            ellipses += ends_with_ellipsis(text, low, high) or tokens.is_mark(text, high - 3, low, tokens.ELLIPSIS)
        first = after_line(text, classes, end)
    row[_BULLETS], row[_ELLIPSIS_LINES] = bullets / lines, ellipses / lines


@helper
def end_of_line(text: Any, classes: Any, first: Any) -> Any:
    """Return where a line ends, for `str.splitlines`."""
    end = first
    while end < len(text) and not classes[end] & tokens.LINE_END:
        end += 1
        while end + BLOCK <= len(text) and not other_space_leads(text, end):
            end += BLOCK
    return end


@helper
def after_line(text: Any, classes: Any, end: Any) -> Any:
    """Return where the line after one begins that ends at `end`."""
    if end + 1 < len(text) and text[end] == 13 and text[end + 1] == 10:
        return end + 2
    end += 1
    while end < len(text) and classes[end] & tokens.CONTINUATION:
        end += 1
    return end


@helper
def trimmed(classes: Any, low: Any, high: Any) -> Any:
    """Return a range without the white space at its ends."""
    while low < high and classes[low] & (tokens.SPACE | tokens.CONTINUATION):
        low += 1
    while low < high:
        last = tokens.last_character(classes, low, high)
        if not classes[last] & tokens.SPACE:
            break
        high = last
    return low, high


@helper
def ends_with_ellipsis(text: Any, low: Any, high: Any) -> Any:
    """Return whether a range ends with three periods."""
    return high - low >= 3 and text[high - 1] == 46 and text[high - 2] == 46 and text[high - 3] == 46


@helper
def _describe_repeats(text: Any, classes: Any, table: Any, breaks: Any, column: Any, row: Any) -> None:
    """Describe the parts between `breaks` or more line feeds: paragraphs of the stripped text, or lines.

    Only the first and the last part can be empty.
    """
    first, stop = trimmed(classes, np.int64(0), len(text)) if breaks > 1 else (np.int64(0), len(text))
    keys = table[: _capacity(np.int64(row[_NEWLINES]) + 1)]
    keys[:] = FREE
    count = repeated = repeated_characters = 0
    filled = filled_repeated_characters = terminal = short = 0
    while first <= stop:
        end = first
        while end < stop and not (text[end] == 10 and (breaks == 1 or text[end + 1] == 10)):
            end += 1
        length = count_characters(classes, first, end)
        count += 1
        key = tokens.hash_bytes(text, first, end) & _KEY_BITS
        slot = slot_of(keys, key)
        repeats = keys[slot] == key
        keys[slot] = key
        repeated += repeats
        repeated_characters += length * repeats
        low, high = trimmed(classes, first, end)
        if low < high:
            filled += 1
            short += length <= _SHORT_LINE
            terminal += classes[tokens.last_character(classes, first, end)] & tokens.TERMINAL != 0
            filled_repeated_characters += length * repeats
        first = end + 1
        while first < stop and text[first] == 10:
            first += 1
    row[column], row[column + 1] = repeated / count, repeated_characters / row[_CHARACTERS]
    if breaks == 1 and filled:
        row[_TERMINAL], row[_SHORT] = terminal / filled, short / filled
        row[_REPEATED] = filled_repeated_characters / max(1, row[_CHARACTERS] - row[_NEWLINES])


@helper
def count_characters(classes: Any, first: Any, end: Any) -> Any:
    """Return the number of characters in a range."""
    count = 0
    for position in range(first, end):
        count += not classes[position] & tokens.CONTINUATION
    return count


@helper
def _describe_words(text: Any, buffers: Any, count: Any, row: Any, ngrams: Any) -> None:
    """Describe the words; fill in the rolling hash and the number of characters before every word."""
    classes, begins, ends, sums, sizes = buffers.classes, buffers.begins, buffers.ends, buffers.sums, buffers.sizes
    words = word_characters = alphabetic = 0
    stop_words = 0
    for token in range(count):
        begin, end = begins[token], ends[token]
        length, kinds, every = 0, 0, tokens.SYMBOL
        start = tokens.first_bytes(text, begin, end)
        if tokens.ascii_letters(text, np.int64(begin)) >= end - begin:  # as most tokens are
            length, kinds, every, begin = end - begin, tokens.ALPHA, 0, end
        for position in range(begin, end):
            kind = classes[position]
            length += kind & tokens.CONTINUATION == 0
            kinds |= kind
            every &= kind | (kind >> _TO_SYMBOL)  # a continuation byte does not count
        if ngrams:
            sums[token + 1] = sums[token] * _BASE + tokens.hash_bytes(text, begins[token], end)
            sizes[token + 1] = sizes[token] + length
        alphabetic += kinds & tokens.ALPHA != 0
        if not every:
            words += 1
            word_characters += length
            for number in range(0 if kinds & tokens.SYMBOL else len(_GOPHER_WORDS)):  # NUL, a symbol, fills up `start`
                stop_words |= (_GOPHER_WORDS[number] == start) << number
    row[_WORDS], row[_WORD_LENGTH] = words, word_characters / max(1, words)
    row[_ALPHABETIC] = alphabetic / count
    while stop_words:
        row[_STOP_WORDS] += stop_words & 1
        stop_words >>= 1


@helper
def _describe_ngrams(buffers: Any, words: Any, row: Any) -> None:
    """Describe repeated n-grams; `begins` and `ends` are overwritten.

    A repeated n-gram begins with a repeated shorter one, so only the `places` of repeated shorter ones are searched.
    """
    sums, sizes, counts, firsts = buffers.sums, buffers.sizes, buffers.counts, buffers.firsts
    places, slots, characters = buffers.begins, buffers.ends, row[_CHARACTERS]
    left = words
    for number in range(words):
        places[number] = number
    power = _BASE
    for size in range(2, 11):
        power *= _BASE
        while left and places[left - 1] > words - size:
            left -= 1
        if size > 4 and not left:
            break
        keys = buffers.keys[: _capacity(left)]
        keys[:] = FREE
        best_first = best_count = 0
        for number in range(left):
            first = places[number]
            key = _ngram(sums, first, size, power)
            slot = slot_of(keys, key)
            if keys[slot] == FREE:
                keys[slot], counts[slot], firsts[slot] = key, 0, first
            counts[slot] += 1
            slots[number] = slot
            # Of equally frequent n-grams, the first one.
            if counts[slot] > best_count or (counts[slot] == best_count and firsts[slot] < best_first):
                best_count, best_first = counts[slot], firsts[slot]
        if size <= 4:
            # If all occur once, the first one of the text.
            first = best_first if best_count > 1 else 0
            if words >= size:
                best = (sizes[first + size] - sizes[first] + size - 1) * max(1, best_count)
                row[_TOP + size - 2] = best / characters
        repeated = following = kept = 0
        for number in range(left):
            first, slot = places[number], slots[number]
            if counts[slot] < 2:
                continue
            places[kept] = first
            kept += 1
            # As in datatrove: an n-gram that overlaps a repeated one neither counts nor is remembered.
            if size > 4 and first >= following:
                if firsts[slot] < 0:
                    repeated += sizes[first + size] - sizes[first]
                    following = first + size
                firsts[slot] = -1
        left = kept
        if size > 4:
            row[_DUPLICATE + size - 5] = repeated / characters


@helper
def _ngram(sums: Any, first: Any, size: Any, power: Any) -> Any:
    """Return the hash of `size` words as a key; `power` is the base to the power of `size`."""
    value = sums[first + size] - sums[first] * power
    value = (value ^ value >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    return (value ^ value >> np.uint64(32)) & _KEY_BITS


@helper
def _capacity(count: Any) -> Any:
    """Return the size of a hash table for a number of keys, a power of two."""
    capacity = 16
    while capacity < 2 * count:
        capacity *= 2
    return capacity

"""Classes of characters, and the tokens of English text as spaCy makes them, on which datatrove's counts are based.

Text is split at white space; marks are split off at both ends of each chunk; then the rest is split within: at hyphens
between letters, at contractions, at ellipses. Only the most frequent of spaCy's many exceptions are known; units of
measurement are not split from numbers. How often tokens differ is measured in benchmarks/filter.md.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt
import regex

from pipelines.algorithms.kernels.byte_scan import BLOCK, byte_at, letters, lowest_bit, not_ascii, word_at
from pipelines.algorithms.kernels.compilation import helper

SPACE, ALPHA, DIGIT, UPPER, LOWER = 1, 2, 4, 8, 16
# A separate token at either end of a chunk, only at its beginning, or between two letters.
EDGE, PREFIX, HYPHEN = 32, 64, 128
# Punctuation; symbols and controls, too; what ends a sentence; pictures, which are tokens at any position.
PUNCTUATION, SYMBOL, TERMINAL, PICTURE = 256, 512, 1024, 2048
# The end of a line for `str.splitlines`; a byte of a character after its first one.
LINE_END, CONTINUATION = 4096, 8192

# The marks that spaCy's tokenizer splits off at the ends of English words.
_EDGES = ",:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪…–—\"'`“”„‘’‚´«»‹›「」『』（）〔〕【】《》〈〉⟦⟧"
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
# Later characters have no class.
_END = 0x33480

_OFFSET, _PRIME, _ALL = 0xCBF29CE484222325, 0x9E3779B97F4A7C15, (1 << 64) - 1
# The most frequent chunks that spaCy keeps as one token by exception.
_WHOLE = (
    "a.m. p.m. e.g. E.g. i.e. I.e. vs. and/or Adm. Apr. Aug. Bros. Co. Corp. D.C. Dec. Dr. Feb. Gen. Gov. Inc. Jan. "
    "Jr. Jul. Jun. Ltd. Mar. Md. Messrs. Mo. Mr. Mrs. Ms. Mt. Nov. Oct. Ph.D. Prof. Rep. Rev. Sen. Sep. Sept. St. "
    ":) ;) 's ’s"
)
_LONGEST_WHOLE = 7
# Their last bytes.
_CURLY_APOSTROPHE, BULLET, ELLIPSIS = np.uint8(0x99), np.uint8(0xA2), np.uint8(0xA6)


def hashes_of(words: str) -> npt.NDArray[np.uint64]:
    """Return the hashes of words, as computed by `hash_bytes`."""
    values = []
    for word in map(str.encode, words.split()):
        value = _OFFSET ^ len(word)
        for start in range(0, len(word), 8):
            value = (value ^ int.from_bytes(word[start : start + 8], "little")) * _PRIME % 2**64
            value ^= value >> 32
        values.append(value)
    return np.array(values, np.uint64)


_WHOLE_HASHES, _ENDINGS = hashes_of(_WHOLE), hashes_of("s S ll re ve d m")


@functools.cache
def character_classes() -> npt.NDArray[np.uint16]:
    """Return the classes of each character by its code; ~0.1 s."""
    everything = "".join(map(chr, [*range(0xD800), *([0x20] * 0x800), *range(0xE000, _END)]))
    classes = np.zeros(_END, np.uint16)

    def add(flag: int, test: Any) -> None:
        classes[np.fromiter(map(test, everything), np.bool_, _END)] |= flag

    categories = np.frombuffer("".join(map(unicodedata.category, everything)).encode(), "S2")
    for kind, flag in (
        (b"P", PUNCTUATION | SYMBOL), (b"S", SYMBOL), (b"C", SYMBOL), (b"So", PICTURE | EDGE), (b"Sc", PREFIX),
        (b"L", ALPHA), (b"Nd", DIGIT),
    ):  # fmt: skip
        classes[np.char.startswith(categories, kind)] |= flag
    add(SPACE, str.isspace)
    add(UPPER, str.isupper)
    add(LOWER, str.islower)
    for flag, characters in (
        (EDGE, _EDGES),
        (PREFIX, "§%="),
        (HYPHEN, "-–—~"),
        (LINE_END, _LINE_ENDS),
        (TERMINAL, "".join(regex.findall(r"\p{Sentence_Terminal}", everything))),
    ):
        classes[[ord(character) for character in characters]] |= flag
    return classes


@helper
def classify(data: Any, start: Any, stop: Any, table: Any, classes: Any) -> Any:
    """Fill in the class of the character that begins at each byte; return how many characters there are."""
    count, position = 0, start
    while position < stop:
        if position + BLOCK <= stop and not not_ascii(data, position):
            for offset in range(BLOCK):
                classes[position - start + offset] = table[byte_at(data, position + offset)]
            count += BLOCK
            position += BLOCK
            continue
        count += 1
        code, size = np.int64(data[position]), 1
        if code >= 0xC0:
            size = 2 if code < 0xE0 else (3 if code < 0xF0 else 4)
            code &= 0x3F >> (size - 1)
            for following in range(position + 1, min(stop, position + size)):
                code = code << 6 | (data[following] & 0x3F)
                classes[following - start] = CONTINUATION
        classes[position - start] = table[code] if code < _END else 0
        position += size
    return count


@helper
def find_tokens(text: Any, classes: Any, begins: Any, ends: Any) -> Any:
    """Write where the tokens of a text begin and end, by the classes of its bytes; return the number of tokens.

    `begins` and `ends` have an entry per byte and one more.
    """
    count, size, position = np.int64(0), len(text), np.int64(0)
    while position < size:
        if classes[position] & (
            SPACE | CONTINUATION
        ):  # continuation bytes of a space; those of other characters are skipped below
            position += 1
            continue
        first = position
        position += ascii_letters(text, position)
        while position < size and classes[position] & (ALPHA | CONTINUATION):
            position += 1
        if position == size or classes[position] & SPACE:  # letters only, as most are
            begins[count], ends[count] = first, position
            count += 1
            continue
        is_edge = position > first and text[position] < 0x80 and classes[position] & EDGE
        if is_edge and (position + 1 == size or classes[position + 1] & SPACE):  # a mark after letters
            begins[count], ends[count] = first, position
            begins[count + 1], ends[count + 1] = position, position + 1
            count, position = count + 2, position + 1
            continue
        while position < size and not classes[position] & SPACE:
            position += 1
        low, high = first, position
        while low < high and classes[low] & (EDGE | PREFIX) and not _is_whole(text, low, high):
            low = _next(classes, low, high)
        while low < high and not _is_whole(text, low, high):
            last = last_character(classes, low, high)
            if not _is_at_end(text, classes, low, last):
                break
            high = last
        count = _add_marks(text, classes, first, low, begins, ends, count)
        if low < high:
            count = _add_word(text, classes, low, high, begins, ends, count)
        count = _add_marks(text, classes, high, position, begins, ends, count)
    return count


@helper
def ascii_letters(text: Any, position: Any) -> Any:
    """Return how many ASCII letters follow, at most a block; 0 near the end of the text."""
    return lowest_bit(~letters(text, position)) if position + BLOCK <= len(text) else 0


@helper
def _is_at_end(text: Any, classes: Any, low: Any, last: Any) -> Any:
    """Return whether the last character of a chunk is a separate token."""
    if classes[last] & EDGE or last == low:
        return classes[last] & EDGE or text[last] == 46
    before = last_character(classes, low, last)
    if text[last] != 46:
        return classes[before] & DIGIT and (classes[last] & PREFIX or text[last] == 43)  # 50%, 20+
    if classes[before] & (LOWER | DIGIT | EDGE | PREFIX) or text[before] == 46 or text[before] == 43:
        return True
    return classes[before] & UPPER and before > low and classes[last_character(classes, low, before)] & UPPER


@helper
def _add_marks(text: Any, classes: Any, position: Any, stop: Any, begins: Any, ends: Any, count: Any) -> Any:
    """Add marks as tokens of a character; several periods are one token."""
    while position < stop:
        begins[count] = position
        position = _after_mark(text, classes, position, stop)
        ends[count] = position
        count += 1
    return count


@helper
def _after_mark(text: Any, classes: Any, position: Any, stop: Any) -> Any:
    after = _next(classes, position, stop)
    while (text[position] == 46 or text[position] == 45) and after < stop and text[after] == text[position]:
        after += 1
    return after


@helper
def _add_word(text: Any, classes: Any, low: Any, high: Any, begins: Any, ends: Any, count: Any) -> Any:
    """Add a chunk without marks at its ends: divided at marks within it, and before `n't`, `'s`, `'ll` and the like."""
    begins[count], position = low, high if _is_whole(text, low, high) else low
    while position < high:
        if classes[position] & (ALPHA | DIGIT | CONTINUATION):
            position += 1
            continue
        after = _after_mark(text, classes, position, high)
        is_mark_within = classes[position] & PICTURE or (text[position] == 46 and after - position > 1)
        if position > low and after < high:
            byte, following = text[position], classes[after]
            if byte == 58 and text[after] == 47:  # of an address
                break
            before = classes[last_character(classes, low, position)]
            is_mark_within |= _divides(byte, classes[position], before, following)
            # The rest of a longer chunk is not hashed at every apostrophe: hours for 8 MiB.
            if high - after <= 2 and (byte == 39 or is_mark(text, position, low, _CURLY_APOSTROPHE)):
                is_negated = text[after] == 116 and text[position - 1] == 110 and high - after == 1
                if hash_bytes(text, after, high) in _ENDINGS or is_negated:
                    start = position - is_negated
                    if start > begins[count]:
                        ends[count], begins[count + 1] = start, start
                        count += 1
                    break
        if is_mark_within:
            if position > begins[count]:
                ends[count], begins[count + 1] = position, position
                count += 1
            ends[count], begins[count + 1] = after, after
            count += 1
        position = after
    if begins[count] < high:
        ends[count] = high
        count += 1
    return count


@helper
def _divides(byte: Any, kind: Any, before: Any, following: Any) -> Any:
    """Return whether a mark between two characters is a separate token: between some letters and digits."""
    if byte == 46:
        return before & LOWER and following & UPPER
    if byte == 44:
        return before & ALPHA and following & ALPHA
    if before & DIGIT and following & DIGIT:
        return byte == 45 or byte == 43
    is_sign = kind & HYPHEN or byte == 58 or byte == 60 or byte == 61 or byte == 62 or byte == 47  # : < = > /
    return is_sign and before & (ALPHA | DIGIT) and following & ALPHA


@helper
def _next(classes: Any, position: Any, high: Any) -> Any:
    """Return where the character after one begins."""
    position += 1
    while position < high and classes[position] & CONTINUATION:
        position += 1
    return position


@helper
def _is_whole(text: Any, low: Any, high: Any) -> Any:
    """Return whether a chunk is a single token: an initial, an abbreviation or the like."""
    if high - low == 2 and text[high - 1] == 46:
        return 97 <= text[low] | 0x20 <= 122
    last = text[high - 1]
    is_likely = last == 46 or last == 41 or last == 114 or text[low] == 39 or text[low] == 0xE2
    return is_likely and high - low <= _LONGEST_WHOLE and hash_bytes(text, low, high) in _WHOLE_HASHES


@helper
def is_mark(text: Any, position: Any, low: Any, last_byte: Any) -> Any:
    """Return whether a character of U+2000 to U+203F, by its last byte, begins at a position from `low` on."""
    if position < low or position + 3 > len(text):
        return False
    return text[position] == 0xE2 and text[position + 1] == 0x80 and text[position + 2] == last_byte


@helper
def last_character(classes: Any, low: Any, high: Any) -> Any:
    """Return where the character before a position begins."""
    position = high - 1
    while position > low and classes[position] & CONTINUATION:
        position -= 1
    return position


@helper
def hash_bytes(text: Any, start: Any, stop: Any) -> Any:
    """Return a hash of a range of bytes: FNV-1a of 8 bytes at a time."""
    value = np.uint64(_OFFSET) ^ np.uint64(stop - start)
    for position in range(start, stop, 8):
        value = (value ^ first_bytes(text, position, stop)) * np.uint64(_PRIME)
        value ^= value >> np.uint64(32)
    return value


@helper
def first_bytes(text: Any, start: Any, stop: Any) -> Any:
    """Return the first 8 bytes of a range, or all of a shorter one, the first one lowest."""
    size = min(8, stop - start)
    if start + 8 <= len(text):
        return word_at(text, start) & np.uint64(_ALL) >> np.uint64(64 - 8 * size)
    word = np.uint64(0)
    for offset in range(size):
        word |= np.uint64(text[start + offset]) << np.uint64(8 * offset)
    return word

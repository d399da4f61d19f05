"""C4's rules of lines (Raffel et al. 2020, section 2.2, and its code), which edit the text, as a kernel."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.quality import tokens
from pipelines.algorithms.quality.statistics import after_line, end_of_line, ends_with_ellipsis, trimmed

LINE_STATISTICS = {
    "removed_lines": "lines that line rules removed",
    "sentences": "sentences in the lines that are left",
    "lorem_ipsum": "1 if one of the lines with enough words has the words lorem ipsum",
    "curly_brackets": "1 if one of the lines with enough words has an opening curly bracket",
}
_REMOVED, _SENTENCES, _LOREM, _CURLY = range(len(LINE_STATISTICS))
# The first phrase drops the document; lines with the second are removed before curly brackets are searched.
_FIXED = ("lorem ipsum", "javascript")


_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
_Phrase = Annotated[str, msgspec.Meta(min_length=1)]
# Each phrase has a bit of a 64-bit word.
_Phrases = Annotated[tuple[_Phrase, ...], msgspec.Meta(max_length=64 - len(_FIXED))]


class LineRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which lines are removed: those that do not end a sentence, have few words, a long word, or a phrase.

    Marks such as `[12]` and `[edit]` are removed from lines. The word "javascript" is always one of the phrases.
    """

    end_of_sentence: bool = True
    min_words: _Count = 3
    max_word_length: _Count = 1000
    phrases: _Phrases = ()


def edit_lines(texts: pa.Array, rules: LineRules) -> tuple[pa.LargeStringArray, npt.NDArray[np.float64]]:
    """Return texts without the removed lines and the white space at their ends, and their `LINE_STATISTICS`.

    The statistics have the shape (texts, statistics).
    """
    data, offsets = text_arrays(texts)
    text_starts = offsets.astype(np.int64)
    longest = int(np.diff(text_starts).max(initial=0))
    edited = np.empty(int(text_starts[-1] - text_starts[0]), np.uint8)
    starts = np.zeros(len(texts) + 1, np.int64)
    statistics = np.zeros((len(texts), len(LINE_STATISTICS)))
    phrases = [phrase.lower().encode() for phrase in (*_FIXED, *rules.phrases)]
    # A bit per phrase that begins with the byte, in either case.
    initials = np.zeros(256, np.uint64)
    for number, phrase in enumerate(phrases):
        for byte in {phrase[0], phrase[:1].upper()[0]}:
            initials[byte] |= np.uint64(1 << number)
    limits = (int(rules.end_of_sentence), rules.min_words, rules.max_word_length)
    _edit(
        as_read_only(data), as_read_only(text_starts), tokens.character_classes(),
        as_read_only(np.frombuffer(b"".join(phrases), np.uint8)), np.cumsum([0, *map(len, phrases)]),
        initials, limits,
        np.empty(longest, np.uint16), np.empty(longest, np.uint16),
        np.empty(longest + 1, np.int32), np.empty(longest + 1, np.int32), edited, starts, statistics,
    )  # fmt: skip
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(edited)]
    return pa.Array.from_buffers(pa.large_string(), len(texts), buffers), statistics


@kernel
def _edit(
    data: Any, starts: Any, table: Any, phrases: Any, phrase_starts: Any, initials: Any, limits: Any,
    classes: Any, line_classes: Any, begins: Any, ends: Any, edited: Any, edited_starts: Any, statistics: Any,
) -> None:  # fmt: skip
    end_of_sentence, min_words, max_word_length = limits
    size = 0
    for number in range(len(statistics)):
        text = data[starts[number] : starts[number + 1]]
        row, start, first = statistics[number], size, 0
        tokens.classify(data, starts[number], starts[number + 1], table, classes)
        while first < len(text):
            end = end_of_line(text, classes, first)
            low, high = trimmed(classes, first, end)
            first = after_line(text, classes, end)
            words, longest = _words(classes, low, high)
            begin = size + (size > start)  # after the previous line and a line feed
            stop = _copy_without_citations(text, classes, low, high, edited, begin)
            is_kept = longest <= max_word_length and words >= min_words
            if is_kept and end_of_sentence:
                is_kept = _ends_sentence(edited, begin, stop)
            if is_kept:
                phrase = _find_phrase(edited, begin, stop, phrases, phrase_starts, initials)
                row[_LOREM] = max(row[_LOREM], phrase == 0)
                if phrase != 1 and np.uint8(123) in edited[begin:stop]:
                    row[_CURLY] = 1
                is_kept = phrase < 0
            if not is_kept:
                row[_REMOVED] += 1
                continue
            while stop > begin and edited[stop - 1] == 32:  # before a citation
                stop -= 1
            line = edited[begin:stop]
            if stop - begin == high - low:  # no citation was removed
                row[_SENTENCES] += _count_sentences(line, classes[low:high], begins, ends)
            else:
                tokens.classify(edited, begin, stop, table, line_classes)
                row[_SENTENCES] += _count_sentences(line, line_classes[: len(line)], begins, ends)
            if size > start:
                edited[size] = 10
            size = stop
        edited_starts[number + 1] = size


@helper
def _words(classes: Any, low: Any, high: Any) -> Any:
    """Return the number of words between white space, and the length of the longest in characters."""
    words = length = longest = 0
    for position in range(low, high):
        if classes[position] & tokens.SPACE:
            length = 0
        elif not classes[position] & tokens.CONTINUATION:
            words += length == 0
            length += 1
            longest = max(longest, length)
    return words, longest


@helper
def _copy_without_citations(text: Any, classes: Any, low: Any, high: Any, edited: Any, begin: Any) -> Any:
    """Copy a line without `[12]`, `[edit]` and `[citation needed]`; return where the copy ends."""
    position, stop = low, begin
    while position < high:
        if text[position] == 91:
            end = position + 1
            while end < high and classes[end] & (tokens.DIGIT | tokens.CONTINUATION):
                end += 1
            for word in (_EDIT, _CITATION):
                length = len(word)
                matches = end + length <= high and end == position + 1
                for offset in range(length):
                    matches = matches and text[end + offset] == word[offset]
                if matches:
                    end += length
                    break
            if end < high and text[end] == 93:
                position = end + 1
                continue
        if stop > begin or text[position] != 32:
            edited[stop] = text[position]
            stop += 1
        position += 1
    return stop


_EDIT, _CITATION = np.frombuffer(b"edit", np.uint8), np.frombuffer(b"citation needed", np.uint8)


@helper
def _ends_sentence(edited: Any, begin: Any, stop: Any) -> Any:
    if stop == begin or ends_with_ellipsis(edited, begin, stop):
        return False
    last = edited[stop - 1]
    return last == 46 or last == 63 or last == 33 or last == 34 or last == 39  # . ? ! " '


@helper
def _find_phrase(edited: Any, begin: Any, stop: Any, phrases: Any, phrase_starts: Any, initials: Any) -> Any:
    """Return the number of the first phrase that a line contains, in any case; -1 for none."""
    first = len(phrase_starts) - 1
    for position in range(begin, stop):
        candidates = initials[edited[position]]
        if candidates == 0:
            continue
        for number in range(first):
            start = phrase_starts[number]
            length = phrase_starts[number + 1] - start
            if candidates >> np.uint64(number) & np.uint64(1) and position + length <= stop:
                offset = 1
                while offset < length:
                    byte = edited[position + offset]
                    byte |= 0x20 if 65 <= byte <= 90 else 0
                    if byte != phrases[start + offset]:
                        break
                    offset += 1
                if offset == length:
                    first = number
                    break
    return first if first < len(phrase_starts) - 1 else -1


@helper
def _count_sentences(line: Any, classes: Any, begins: Any, ends: Any) -> Any:
    """Count sentences like spaCy's sentencizer: one begins at the first token after final marks that is not a mark."""
    sentences, is_over = 0, True
    for token in range(tokens.find_tokens(line, classes, begins, ends)):
        begin, end = begins[token], ends[token]
        if classes[begin] & tokens.TERMINAL and _all_are(classes, begin + 1, end, tokens.CONTINUATION):
            is_over = True
        elif is_over and not (sentences and _all_are(classes, begin, end, tokens.PUNCTUATION | tokens.CONTINUATION)):
            sentences += 1
            is_over = False
    return sentences


@helper
def _all_are(classes: Any, begin: Any, end: Any, kinds: Any) -> Any:
    """Return whether all bytes of a range have one of some classes."""
    are = True
    for position in range(begin, end):
        are &= classes[position] & kinds != 0
    return are

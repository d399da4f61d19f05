"""Features of the text of each block: its words, its beginning and end, and its element."""

from __future__ import annotations

from math import log1p
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.markup import ARIA_HIDDEN, HIDDEN, STYLED_HIDDEN, TAGS, fnv_hash
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.kernels.hash_table import FREE, Keys, slot_of, table_of

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int32]


class Values(NamedTuple):
    """The slots of a hash table: the key of each, or FREE, and its value, or NaN."""

    keys: Keys
    values: Floats


def values_table(hashes: npt.NDArray[np.uint32], values: Floats) -> Values:
    """Return the table of the values of distinct hashes."""
    table = table_of(hashes.astype(np.uint64))
    is_used = table.keys != FREE
    by_slot = np.full(len(table.keys), np.nan, np.float32)
    by_slot[is_used] = values[table.numbers[is_used]]
    return Values(as_read_only(table.keys), as_read_only(by_slot))


@helper
def value_of(table: Any, word: Any) -> Any:
    """Return the value of a hash, NaN if it has none."""
    return table.values[slot_of(table.keys, np.uint64(word))]


STOP_WORDS = (
    "the of and to a in is that it was for on are as with his they at be this from have or by one had not but "
    "what all were when we there can an your which their said if do will each about how up out them then she many "
    "some so these would other into has more her two like him see time could no make than first been its who now "
    "people my made over did down only way find use may water long little very after words called just where most "
    "know you i he der die und den von zu das mit sich des auf für ist im dem nicht ein eine als auch es werden "
    "aus er hat dass sie nach wird bei einer um am sind noch wie einem über einen zum war haben nur oder aber vor "
    "zur bis mehr durch man sein wurde sei ich wir ihr de la le et les en un du une que est pour qui dans par "
    "plus pas au sur ne se ce il sont avec ou son aux mais comme tout nous sa fait été aussi leur bien peut ces y "
    "elle vous je el lo por qué me una te los con para mi está si pero las su yo tu del al como más este ya todo "
    "esta muy ha sobre también che di e per è non da sono ma ho nel alla più anche come dei della questo o em com "
    "não uma os na dos mas ao ele tem seu sua quando muito nos já eu também só pelo pela van het een dat niet met "
    "op voor zijn aan maar om ook dan naar bij nog uit door wordt worden deze w z się nie że jest jak po co za "
    "ale od przez dla być tego и в не на что с по как это он а его но к она из у за от так же то для вы бы мы они "
    "был och att det som är på för av med till inte ett har jag var men ve bir bu için ile çok"
).split()

NAMES = (
    "log words", "log characters", "characters per word", "words in links", "words in strong", "capitalized words",
    "stop words", "words of the title", "ends a sentence", "begins with a capital", "sentences per word",
    "commas per word", "digits", "CJK characters", "line breaks", "images before", "signs", "value of words",
    "lowest word", "highest word", "hidden by style", "hidden", "aria-hidden", "tag", "heading level",
)  # fmt: skip

# Signals of a block that the features of other blocks use: number of words, of words in links, of words if it is prose
# (else 0), mean value of its words, heading level, number of words that are in the title of the page.
(WORDS, LINKS, PROSE, VALUE, HEADING, TITLE) = range(6)
SIGNALS = 6
# A block of prose has at least this many words, and at most this share of them in links.
_PROSE_WORDS, _PROSE_LINKS = 8, 0.4


def hash_words(words: list[str]) -> npt.NDArray[np.uint32]:
    """Return the hashes of distinct words, as the segmentation computes them."""
    return np.array([fnv_hash(word.encode()) & 0xFFFFFFFF for word in dict.fromkeys(words)], np.uint32)


_STOP_WORDS = as_read_only(table_of(hash_words(STOP_WORDS).astype(np.uint64)).keys)
_HEADINGS = np.zeros(256, np.float32)
for _level in range(1, 7):
    _HEADINGS[TAGS[f"h{_level}"]] = _level


def describe_text(page: seg.Segments, title: npt.NDArray[np.uint32], words: Values, rows: Floats) -> Floats:
    """Fill the first columns of `rows`; return the signals of the blocks, float32 of shape (blocks, SIGNALS).

    `title` are the hashes of the words of the title, `words` learned values of words.
    """
    signals = np.zeros((len(page.blocks), SIGNALS), np.float32)
    _describe_text(page, as_read_only(title), words, signals, rows)
    return signals


@kernel
def _describe_text(page: Any, title: Any, values: Any, signals: Any, rows: Any) -> None:
    blocks, words, word_flags, tags, flags = page.blocks, page.words, page.word_flags, page.tags, page.flags
    one, zero = np.float32(1), np.float32(0)
    for block in range(len(blocks)):
        row, signal = rows[block], signals[block]
        first, count = blocks[block, seg.FIRST_WORD], blocks[block, seg.WORDS]
        links = strong = upper = stops = in_title = known = 0
        total = lowest = highest = zero
        for position in range(first, first + count):
            word, flag = words[position], word_flags[position]
            links += flag & seg.IN_LINK != 0
            strong += flag & seg.IN_STRONG != 0
            upper += flag & seg.UPPER_CASE != 0
            stops += _STOP_WORDS[slot_of(_STOP_WORDS, np.uint64(word))] != FREE
            for number in range(len(title)):
                in_title += title[number] == word
            value = value_of(values, word)
            if value == value:  # not NaN
                known += 1
                total += value
                lowest, highest = min(lowest, value), max(highest, value)
        element = blocks[block, seg.ELEMENT]
        divisor = np.float32(max(count, 1))
        characters = np.float32(max(blocks[block, seg.CHARACTERS], 1))
        signal[WORDS], signal[LINKS] = count, links
        signal[PROSE] = count if count >= _PROSE_WORDS and links < _PROSE_LINKS * count else 0
        signal[VALUE] = total / np.float32(known + 1)
        signal[HEADING] = _HEADINGS[tags[element]]
        signal[TITLE] = in_title
        row[0], row[1] = log1p(count), log1p(blocks[block, seg.CHARACTERS])
        row[2] = np.float32(blocks[block, seg.CHARACTERS]) / divisor
        row[3] = np.float32(links) / divisor
        row[4] = np.float32(strong) / divisor
        row[5] = np.float32(upper) / divisor
        row[6] = np.float32(stops) / divisor
        row[7] = np.float32(in_title) / divisor
        row[8] = _text_end(page.text, blocks[block, seg.START], blocks[block, seg.END])
        start = page.text[blocks[block, seg.START]]
        row[9] = one if 65 <= start <= 90 else np.float32(0.5 if start >= 128 else 0)
        row[10] = np.float32(blocks[block, seg.SENTENCES]) / divisor
        row[11] = np.float32(blocks[block, seg.COMMAS]) / divisor
        row[12] = np.float32(blocks[block, seg.DIGITS]) / characters
        row[13] = np.float32(blocks[block, seg.CJK]) / characters
        row[14], row[15] = blocks[block, seg.BREAKS], min(blocks[block, seg.IMAGES], 10)
        row[16], row[17], row[18], row[19] = blocks[block, seg.SIGNS], signal[VALUE], lowest, highest
        row[20] = flags[element] & STYLED_HIDDEN != 0
        row[21] = flags[element] & HIDDEN != 0
        row[22] = flags[element] & ARIA_HIDDEN != 0
        row[23], row[24] = tags[element], signal[HEADING]


@helper
def _is_stop(byte: Any) -> Any:
    return byte == 46 or byte == 33 or byte == 63


@helper
def _text_end(text: Any, start: Any, end: Any) -> Any:
    """Return how a text ends: 1 as a sentence, 0.5 with a colon, else 0."""
    last = text[end - 1]
    second, third, fourth = text[max(end - 2, start)], text[max(end - 3, start)], text[max(end - 4, start)]
    is_end = _is_stop(last) or ((last == 34 or last == 41) and _is_stop(second))
    is_end |= third == 227 and second == 128 and last == 130  # an ideographic full stop
    is_end |= third == 226 and second == 128 and _is_stop(fourth)  # before a quotation mark
    return np.float32(1) if is_end else np.float32(0.5 if last == 58 else 0)

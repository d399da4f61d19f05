"""Divides a page into blocks of text and a table of its elements, in one pass over its normalized HTML.

lexbor parses a page as browsers do and serializes it: every element is closed, attributes are in double quotes, and
only `&amp;`, `&lt;`, `&gt;` and `&nbsp;` are escaped in text. So the HTML can be read byte by byte here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import markup
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel

# Columns of the table of blocks: first byte and end in the text; element; first word and number of words; characters;
# characters that end sentences, commas, other signs (in the order of their kinds), digits, Chinese, Japanese and Korean
# characters; line breaks; images since the previous block.
(START, END, ELEMENT, FIRST_WORD, WORDS, CHARACTERS, SENTENCES, COMMAS, SIGNS, DIGITS, CJK, BREAKS, IMAGES) = range(13)
BLOCK_COLUMNS = 13
# Flags of words.
IN_LINK, IN_STRONG, UPPER_CASE = 1, 2, 4

_SLACK = 64
# The first bytes of the characters around formulas, U+206A and U+206B.
_FORMULA = b"\xe2\x81"
_A, _BR, _IMG, _PRE, _SUB, _SUP, _WBR = (markup.TAGS[name] for name in ("a", "br", "img", "pre", "sub", "sup", "wbr"))
# What is between a character and the previous one: no tag, a tag, or an element that is replaced by something visible.
_NO_TAG, _TAG, _SHOWN = 0, 1, 2


class Segments(NamedTuple):
    """The text of a page, its blocks, words and elements.

    `text` is UTF-8, without the markup. `blocks` has a row per block, with the columns above. `words` are 32-bit hashes
    of the words, whose ASCII letters are lower-cased, with `word_flags`. Per element, in document order: `parents` (-1
    for the first, the document), `tags`, `flags`, and the hashes of the parts of its class, id, role and itemprop,
    `tokens[token_starts[e]:token_starts[e + 1]]`. `tag_counts` counts the elements of each tag. `tag_ends` are where in
    the HTML the names of the start tags end. `marks` has a row for each start (1) and end (-1) of an element with code,
    and border of a formula (0): position in the text, block, kind.
    """

    text: npt.NDArray[np.uint8]
    blocks: npt.NDArray[np.int32]
    words: npt.NDArray[np.uint32]
    word_flags: npt.NDArray[np.uint8]
    parents: npt.NDArray[np.int32]
    tags: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    token_starts: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.uint32]
    tag_counts: npt.NDArray[np.int32]
    tag_ends: npt.NDArray[np.int32]
    marks: npt.NDArray[np.int32]


def segment(*parts: bytes) -> Segments:
    """Return the blocks, words and elements of a page that lexbor serialized, in parts that follow each other."""
    # Padded, since a kernel has no bounds checks and looks a few bytes ahead.
    html = b"".join((*parts, bytes(_SLACK)))
    data = as_read_only(np.frombuffer(html, np.uint8))
    elements = int(np.count_nonzero(data == ord("<"))) + 2
    room = Segments(
        text=np.empty(len(html), np.uint8),
        blocks=np.empty((elements, BLOCK_COLUMNS), np.int32),
        words=np.empty(len(html) // 2 + _SLACK, np.uint32),
        word_flags=np.empty(len(html) // 2 + _SLACK, np.uint8),
        parents=np.zeros(elements, np.int32),
        tags=np.zeros(elements, np.uint8),
        flags=np.zeros(elements, np.uint8),
        token_starts=np.zeros(elements + 1, np.int32),
        tokens=np.empty(8 * elements + _SLACK, np.uint32),
        tag_counts=np.zeros(256, np.int32),
        tag_ends=np.zeros(elements, np.int32),
        marks=np.empty((elements + html.count(_FORMULA), 3), np.int32),
    )
    room.parents[0] = -1
    stack, sizes = np.zeros(elements + 1, np.int32), np.zeros(6, np.int64)
    _segment(data, room, stack, sizes)
    block_count, text_bytes, word_count, element_count, token_count, mark_count = sizes.tolist()
    per_element = [element_count] * 3 + [element_count + 1]
    used = [text_bytes, block_count, word_count, word_count, *per_element, token_count, len(room.tag_counts)]
    used += [element_count, mark_count]
    arrays: list[npt.NDArray[Any]] = [*room]
    return Segments(*(array[:size] for array, size in zip(arrays, used, strict=True)))


@helper
def _block_element(stack: Any, depth: Any, tags: Any) -> Any:
    """Return the innermost open element that is block-level, or the document."""
    level = depth - 1
    while level > 0 and not markup.KINDS[tags[stack[level]]] & markup.BLOCK_LEVEL:
        level -= 1
    return stack[level]


@helper
def _open_block(blocks: Any, block: Any, start: Any, word: Any, element: Any, images: Any) -> None:
    for column in range(BLOCK_COLUMNS):
        blocks[block, column] = 0
    blocks[block, START], blocks[block, FIRST_WORD] = start, word
    blocks[block, ELEMENT], blocks[block, IMAGES] = element, images


@helper
def _close_block(blocks: Any, block: Any, text: Any, filled: Any, words: Any) -> Any:
    """Complete the row of a block; return the end of its text without white space."""
    while filled > blocks[block, START] and (text[filled - 1] == 32 or 9 <= text[filled - 1] <= 10):
        filled -= 1
    blocks[block, END] = filled
    blocks[block, WORDS] = words - blocks[block, FIRST_WORD]
    return filled


@kernel
def _segment(html: Any, page: Any, stack: Any, sizes: Any) -> None:
    """Fill the arrays of `page`, a `Segments`, and write how many entries of each are used to `sizes`."""
    text, blocks, words, word_flags = page.text, page.blocks, page.words, page.word_flags
    parents, tags, flags, tag_counts = page.parents, page.tags, page.flags, page.tag_counts
    token_starts, tokens, tag_ends, marks = page.token_starts, page.tokens, page.tag_ends, page.marks
    end = len(html) - _SLACK
    elements, depth = 1, 1
    block = filled = count_words = count_tokens = count_marks = 0
    links = strong = images = line_breaks = state = indent = 0
    link_end = -1
    is_open = has_space = False
    border = _NO_TAG
    letters = word_flag = 0
    word = markup.FNV_START
    position = 0
    while position < end:
        byte = int(html[position])
        is_boundary = is_break = is_word = is_white = False
        following = 0
        if byte == 60:  # <
            if html[position + 1] == 33:  # ! begins a comment or the doctype
                if html[position + 2] == 45 and html[position + 3] == 45:
                    position = markup.end_of_comment(html, position + 2, end)
                else:
                    position = markup.find_byte(html, position, end, 62) + 1
                continue
            is_end = html[position + 1] == 47
            name, position = markup.hash_name(html, position + (2 if is_end else 1), end)
            tag = markup.tag_of(name)
            kind = markup.KINDS[tag]
            is_boundary = kind & markup.BLOCK_LEVEL != 0
            change = -1 if is_end else 1
            if is_end:
                position = markup.find_byte(html, position, end, 62) + 1
                depth = max(1, depth - 1)
                if tag == _A:
                    link_end = filled
            else:
                tag_counts[tag] += 1
                element = elements
                elements += 1
                parents[element] = stack[depth - 1]
                tags[element] = tag
                tag_ends[element] = position
                position, count_tokens, flag = markup.read_attributes(html, position, end, tokens, count_tokens)
                is_hidden = flag & (markup.STYLED_HIDDEN | markup.HIDDEN) and not kind & markup.BLOCK_LEVEL
                if kind & markup.SKIPPED or is_hidden:
                    flag |= markup.NO_TEXT
                elif tag == _PRE:
                    flag |= markup.KEEPS_SPACE | markup.IN_PRE
                flags[element] = flag | flags[stack[depth - 1]]
                token_starts[element + 1] = count_tokens
                if tag == _BR:
                    is_break = True
                    line_breaks += 1
                    is_boundary = line_breaks > 1 and not state & markup.IN_PRE
                elif tag == _IMG:
                    images += 1
                elif tag == _A and link_end == filled and not state & markup.KEEPS_SPACE:
                    has_space = True  # links side by side
                if kind & markup.WITHOUT_END:
                    change = 0
                else:
                    stack[depth] = element
                    depth += 1
                if kind & markup.RAW:
                    position = markup.find_end_tag(html, position, end, tag)
            if tag == _A:
                links += change
            if kind & markup.STRONG:
                strong += change
            if kind & markup.CODE:
                marks[count_marks, 0], marks[count_marks, 1], marks[count_marks, 2] = filled, block, change
                count_marks += 1
            if state & markup.NO_TEXT:
                is_boundary = is_break = False
            state = int(flags[stack[depth - 1]])
            if not is_boundary and not is_break:
                if kind & markup.REPLACED:
                    border = _SHOWN
                elif border == _NO_TAG and tag != _WBR and tag != _SUB and tag != _SUP:
                    border = _TAG
                continue
        else:
            if state & markup.NO_TEXT or depth <= 1:
                position = markup.find_byte(html, position, end, 60)
                continue
            position += 1
            if byte < 128:
                if byte == 38:  # &
                    byte, position = markup.decode_reference(html, position, end)
                is_word = markup.is_word_byte(byte)
                is_white = byte <= 32 or byte == 127
            else:
                following = 3 if byte >= 240 else (2 if byte >= 224 else 1)
                second = int(html[position]) if position < end else 0
                third = int(html[position + 1]) if position + 1 < end else 0
                if markup.is_invisible(byte, second, third, text[filled - 1] if is_open else 0):
                    if second == 129 and third >> 1 == 0x55:
                        marks[count_marks, 0], marks[count_marks, 1], marks[count_marks, 2] = filled, block, 0
                        count_marks += 1
                    position += following
                    continue
                is_word = markup.is_letter(byte, second, third)
                is_white = markup.is_white_space(byte, second, third)
            if (
                border != _NO_TAG
                and letters > 0
                and is_word
                and not state & markup.KEEPS_SPACE
                and (border == _SHOWN or (65 <= byte <= 90 and markup.is_small_or_digit(text[filled - 1])))
            ):
                # Elements side by side are often separated by style: `<span>Synopsis</span><span>An award`.
                is_word, is_white, position, following = False, True, position - 1, 0
        border = _NO_TAG
        if letters > 0 and not is_word:
            words[count_words] = np.uint32(word & markup.LOW_BITS)
            word_flags[count_words] = word_flag
            count_words += 1
            word, letters = markup.FNV_START, 0
        if is_boundary or is_break:
            has_space = False
            indent = 0
        if is_boundary:
            line_breaks = 0
            if is_open:
                filled = _close_block(blocks, block, text, filled, count_words)
                block += 1
                is_open = False
            continue
        if is_break:
            if is_open:
                text[filled] = 10
                filled += 1
                blocks[block, BREAKS] += 1
            continue
        if is_white:
            position += following
            if not state & markup.KEEPS_SPACE:
                has_space = True
                while position < end and html[position] <= 32:
                    position += 1
            elif is_open:
                text[filled] = byte if byte == 9 or byte == 10 else 32
                filled += 1
            elif byte == 10:
                indent = 0
            else:
                text[filled + indent] = 9 if byte == 9 else 32
                indent += 1
            continue
        if not is_open:
            is_open = True
            has_space = False
            _open_block(blocks, block, filled, count_words, _block_element(stack, depth, tags), images)
            filled += indent
            images = indent = 0
        line_breaks = 0
        if has_space and text[filled - 1] != 10:
            text[filled] = 32
            filled += 1
        has_space = False
        text[filled] = byte
        filled += 1
        blocks[block, CHARACTERS] += 1
        if is_word:
            if letters == 0:
                is_upper = 65 <= byte <= 90 or (byte == 195 and second < 0x9F) or (byte == 208 and second < 0xB0)
                word_flag = UPPER_CASE if is_upper else 0
                word_flag |= (IN_LINK if links > 0 else 0) | (IN_STRONG if strong > 0 else 0)
            letters += 1
            word = (word ^ np.uint64(byte + 32 if 65 <= byte <= 90 else byte)) * markup.FNV_FACTOR
            if 48 <= byte <= 57:
                blocks[block, DIGITS] += 1
            elif 227 <= byte <= 237:
                blocks[block, CJK] += 1
        else:
            sign = markup.sign_kind(byte, second, third) if byte >= 128 else markup.ascii_sign_kind(byte)
            if sign > 0:
                blocks[block, CHARACTERS + sign] += 1
        if is_word and byte < 128:
            # The rest of the word needs fewer checks than its first character.
            start = position
            while markup.is_word_byte(html[position]):
                byte = int(html[position])
                word = (word ^ np.uint64(byte + 32 if 65 <= byte <= 90 else byte)) * markup.FNV_FACTOR
                if byte <= 57:
                    blocks[block, DIGITS] += 1
                text[filled] = byte
                filled += 1
                position += 1
            letters += position - start
            blocks[block, CHARACTERS] += position - start
        for _ in range(following):
            if position < end:
                if is_word:
                    word = (word ^ np.uint64(html[position])) * markup.FNV_FACTOR
                text[filled] = html[position]
                filled += 1
                position += 1
    if letters > 0:
        words[count_words] = np.uint32(word & markup.LOW_BITS)
        word_flags[count_words] = word_flag
        count_words += 1
    if is_open:
        filled = _close_block(blocks, block, text, filled, count_words)
        block += 1
    sizes[0], sizes[1], sizes[2], sizes[3] = block, filled, count_words, elements
    sizes[4], sizes[5] = count_tokens, count_marks

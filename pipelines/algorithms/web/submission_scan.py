"""Finds the fields of Reddit's submissions in NDJSON without making a Python object a line.

`scan_lines` is a strict reader of JSON: it takes a line only where it is surely one JSON object whose needed fields
have their common types, and leaves every other line (`SLOW`) to `json`, which decides. So it never has to be right
about odd lines, only about those that it takes; the tests hold the two equal.

Every line ends with a newline, which stands nowhere inside of surely valid JSON. So a newline ends every loop, and no
position has to be compared with the end of the buffer.
"""

from __future__ import annotations

import numpy as np

from pipelines.algorithms.kernels.byte_scan import (
    BLOCK,
    as_word,
    byte_at,
    lowest_bit,
    newlines,
    not_ascii,
    string_stops,
    word_at,
)
from pipelines.algorithms.kernels.compilation import kernel

# What a line is: taken, or left to `json`.
TAKEN, SLOW = 0, 1

# The string fields, by their row in `spans`; a span is (start, end) in the buffer, (0, 0) where there is no text.
ID, URL, OVERRIDE, SUBREDDIT, TITLE, DOMAIN = range(6)
SPANS = 6

# Bits of `flags`; from ESCAPED on one for each string field that holds escapes.
IS_SELF, NOT_SELF, PROMOTED, OVER_18, HAS_SCORE, NOT_ASCII = 1, 2, 4, 8, 16, 32
ESCAPED = 8

_CREATED, _SCORE, _SELF, _PROMOTED, _OVER_18, _CROSSPOST, _OTHER = range(SPANS, SPANS + 7)
_KEYS = (
    b"id",
    b"url",
    b"url_overridden_by_dest",
    b"subreddit",
    b"title",
    b"domain",
    b"created_utc",
    b"score",
    b"is_self",
    b"promoted",
    b"over_18",
    b"crosspost_parent_list",
)
# A key is told by its size, then its first 8 bytes, then, where it is longer, the rest of it.
_LONGEST_KEY = max(map(len, _KEYS))
_HEADS = np.array([as_word(key[:8]) for key in _KEYS])
_TAILS = np.array([list(key.ljust(_LONGEST_KEY, b"\0")) for key in _KEYS], np.uint8)
_BY_SIZE = np.full((_LONGEST_KEY + 1, 2), -1)
for _number, _key in enumerate(_KEYS):
    _BY_SIZE[len(_key), int(_BY_SIZE[len(_key), 0] >= 0)] = _number
_MASKS = np.array([(1 << (8 * min(size, 8))) - 1 for size in range(_LONGEST_KEY + 1)], np.uint64)

_TRUE, _NULL, _FALS = as_word(b"true"), as_word(b"null"), as_word(b"fals")
_THREE_BYTES, _FOUR_BYTES, _FIVE_BYTES = np.uint64(0xFFFFFF), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFF)
_PREFIX, _SELF_DOMAIN = as_word(b"t3_"), as_word(b"self.")

# Times from the year 2100 on are none.
END_OF_TIME_S = 4102444800

# Longer texts than these are odd; Reddit's own limits are far lower.
MOST_ID_BYTES, MOST_SUBREDDIT_BYTES, MOST_TITLE_BYTES = 64, 128, 4096

# With more digits, a number is not surely one of 64 bits; Python limits longer ones and deeper nesting.
_MOST_DIGITS = 18
_MOST_NUMBER_BYTES = 300
_MOST_DEPTH = 60

_SPACE, _TAB, _NEWLINE, _RETURN, _QUOTE, _BACKSLASH = 32, 9, 10, 13, 34, 92
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST, _COLON, _COMMA = 123, 125, 91, 93, 58, 44
_MINUS, _PLUS, _DOT, _ZERO, _NINE, _LOWER_E, _UPPER_E, _LOWER_U = 45, 43, 46, 48, 57, 101, 69, 117


@kernel
def scan_lines(buffer, at, end, bounds, spans, numbers, flags, kinds):  # type: ignore[no-untyped-def]
    """Scan the lines of `buffer[at:end]` until the arrays are full; return (lines, where the next one begins).

    Each line ends with a newline, and the buffer goes on for `BLOCK` bytes after `end`. Of line i, `bounds[i]` is
    (start, end without newline), `kinds[i]` TAKEN or SLOW, and where it was taken `spans[i]` has its string fields,
    `numbers[i]` (created_utc, score) and `flags[i]` the bits above.
    """
    line = 0
    while at < end and line < len(kinds):
        stop, bits = _scan_line(buffer, at, spans[line], numbers[line])
        taken = stop >= 0 and byte_at(buffer, stop) == _NEWLINE
        if not taken:
            stop = _newline(buffer, at)
        elif not _is_ascii(buffer, at, stop):
            bits |= NOT_ASCII
        bounds[line, 0] = at
        bounds[line, 1] = stop
        flags[line] = bits
        kinds[line] = TAKEN if taken else SLOW
        line += 1
        at = stop + 1
    return line, at


@kernel
def _scan_line(buffer, at, spans, numbers):  # type: ignore[no-untyped-def]
    """Fill the row of one line; return (end of the object and of white space, flags), -1 where `json` has to decide."""
    for field in range(SPANS):
        spans[field, 0] = 0
        spans[field, 1] = 0
    numbers[1] = 0
    flags = 0
    has_time = False
    at = _space_end(buffer, at)
    if byte_at(buffer, at) != _OPEN_OBJECT:
        return -1, flags
    while True:
        start = _space_end(buffer, at + 1)
        if byte_at(buffer, start) != _QUOTE:
            return -1, flags
        stop = _string_end(buffer, start + 1)
        if stop < 0 or byte_at(buffer, stop) == _BACKSLASH:
            return -1, flags
        field = _field_of_key(buffer, start + 1, stop)
        start = _value_start(buffer, stop)
        if start < 0:
            return -1, flags
        first = byte_at(buffer, start)
        if first == _QUOTE:
            stop, escaped = _text_end(buffer, start + 1)
            at = stop + 1
        else:
            at = _value_end(buffer, start)
            stop = at
        if stop < 0:
            return -1, flags
        if field < SPANS:
            flags &= ~(1 << (ESCAPED + field))
            spans[field, 0] = 0
            spans[field, 1] = 0
            if first == _QUOTE:
                spans[field, 0] = start + 1
                spans[field, 1] = stop
                if escaped:
                    flags |= 1 << (ESCAPED + field)
        elif field != _OTHER:
            if field == _CREATED:
                if first == _QUOTE:
                    start += 1
                else:
                    stop = _without_zero_fraction(buffer, start, stop)
                numbers[0], has_time = _whole(buffer, start, stop)
                if not has_time:
                    return -1, flags
            elif field == _SCORE:
                flags &= ~HAS_SCORE
                if first == _MINUS or _ZERO <= first <= _NINE:
                    numbers[1], good = _whole(buffer, start, stop)
                    if not good:
                        return -1, flags
                    flags |= HAS_SCORE
                elif first == _QUOTE:
                    return -1, flags
            elif field == _CROSSPOST:
                if first == _OPEN_LIST and stop > start + 2:
                    return -1, flags
            else:
                flags = _with_word(flags, field, first)
        at = _space_end(buffer, at)
        byte = byte_at(buffer, at)
        if byte == _CLOSE_OBJECT:
            break
        if byte != _COMMA:
            return -1, flags
    if not has_time or not 0 <= numbers[0] < END_OF_TIME_S or not _is_plain_id(buffer, spans[ID], flags):
        return -1, flags
    if _is_long(spans[ID], MOST_ID_BYTES) or _is_long(spans[SUBREDDIT], MOST_SUBREDDIT_BYTES):
        return -1, flags
    if _is_long(spans[TITLE], MOST_TITLE_BYTES):
        return -1, flags
    if not flags & (IS_SELF | NOT_SELF):
        if flags & (1 << (ESCAPED + DOMAIN)):
            return -1, flags
        flags |= _self_by_domain(buffer, spans[DOMAIN])
    return _space_end(buffer, at + 1), flags


@kernel
def _is_long(span, most):  # type: ignore[no-untyped-def]
    return span[1] - span[0] > most


@kernel
def _is_plain_id(buffer, span, flags):  # type: ignore[no-untyped-def]
    """Whether an id is there and can be taken as it is: not `t3_...`, which is what `name` holds."""
    if span[1] == span[0] or flags & (1 << (ESCAPED + ID)):
        return False
    return word_at(buffer, span[0]) & _THREE_BYTES != _PREFIX


@kernel
def _self_by_domain(buffer, span):  # type: ignore[no-untyped-def]
    if span[1] - span[0] >= 5 and word_at(buffer, span[0]) & _FIVE_BYTES == _SELF_DOMAIN:
        return IS_SELF
    return NOT_SELF


@kernel
def _with_word(flags, field, first):  # type: ignore[no-untyped-def]
    """Return the flags with what a word that begins with `first` says of a field."""
    is_true = first == 116
    if field == _SELF:
        flags &= ~(IS_SELF | NOT_SELF)
        return flags | (IS_SELF if is_true else NOT_SELF if first == 102 else 0)
    bit = PROMOTED if field == _PROMOTED else OVER_18
    return flags | bit if is_true else flags & ~bit


@kernel
def _space_end(buffer, at):  # type: ignore[no-untyped-def]
    while byte_at(buffer, at) == _SPACE or byte_at(buffer, at) == _TAB or byte_at(buffer, at) == _RETURN:
        at += 1
    return at


@kernel
def _value_start(buffer, at):  # type: ignore[no-untyped-def]
    """Return where the value begins after a key that ends at `at`; -1 where no colon follows."""
    at = _space_end(buffer, at + 1)
    return _space_end(buffer, at + 1) if byte_at(buffer, at) == _COLON else -1


@kernel
def _string_end(buffer, at):  # type: ignore[no-untyped-def]
    """Return where the first quote or backslash is, -1 where a control character comes first."""
    stops = string_stops(buffer, at)
    while stops == 0:
        at += BLOCK
        stops = string_stops(buffer, at)
    at += lowest_bit(stops)
    return at if byte_at(buffer, at) >= _SPACE else -1


@kernel
def _text_end(buffer, at):  # type: ignore[no-untyped-def]
    """Return (where the quote at the end of a string is, whether the string has escapes), -1 where it is invalid."""
    escaped = False
    at = _string_end(buffer, at)
    while at >= 0 and byte_at(buffer, at) == _BACKSLASH:
        escaped = True
        at = _escape_end(buffer, at)
        if at >= 0:
            at = _string_end(buffer, at)
    return at, escaped


@kernel
def _escape_end(buffer, at):  # type: ignore[no-untyped-def]
    """Return the end of the escape that starts at `at`, -1 where it is none."""
    kind = byte_at(buffer, at + 1)
    if kind == _LOWER_U:
        for step in range(2, 6):
            digit = byte_at(buffer, at + step)
            if not (_ZERO <= digit <= _NINE or 97 <= (digit | 32) <= 102):
                return -1
        return at + 6
    known = kind == _QUOTE or kind == _BACKSLASH or kind == 47  # /
    known = known or kind == 98 or kind == 102 or kind == 110 or kind == 114 or kind == 116  # b f n r t
    return at + 2 if known else -1


@kernel
def _digits_end(buffer, at):  # type: ignore[no-untyped-def]
    while _ZERO <= byte_at(buffer, at) <= _NINE:
        at += 1
    return at


@kernel
def _number_end(buffer, at):  # type: ignore[no-untyped-def]
    """Return the end of a number, -1 where there is none."""
    begin = at
    if byte_at(buffer, at) == _MINUS:
        at += 1
    start = at
    at = _digits_end(buffer, at)
    if at == start or (byte_at(buffer, start) == _ZERO and at > start + 1):
        return -1
    if byte_at(buffer, at) == _DOT:
        start = at + 1
        at = _digits_end(buffer, start)
        if at == start:
            return -1
    if byte_at(buffer, at) == _LOWER_E or byte_at(buffer, at) == _UPPER_E:
        at += 1
        if byte_at(buffer, at) == _MINUS or byte_at(buffer, at) == _PLUS:
            at += 1
        start = at
        at = _digits_end(buffer, start)
        if at == start:
            return -1
    return at if at - begin <= _MOST_NUMBER_BYTES else -1


@kernel
def _scalar_end(buffer, at):  # type: ignore[no-untyped-def]
    """Return the end of a string, a number or a word, -1 where there is none."""
    first = byte_at(buffer, at)
    if first == _QUOTE:
        stop, _ = _text_end(buffer, at + 1)
        return stop + 1 if stop >= 0 else -1
    if first == _MINUS or _ZERO <= first <= _NINE:
        return _number_end(buffer, at)
    word = word_at(buffer, at) & _FOUR_BYTES
    if word == _NULL or word == _TRUE:
        return at + 4
    return at + 5 if word == _FALS and byte_at(buffer, at + 4) == _LOWER_E else -1


@kernel
def _value_end(buffer, at):  # type: ignore[no-untyped-def]
    """Return the end of a value of any kind, -1 where there is none."""
    first = byte_at(buffer, at)
    if first == _OPEN_OBJECT or first == _OPEN_LIST:
        return _nested_end(buffer, at)
    return _scalar_end(buffer, at)


@kernel
def _nested_end(buffer, at):  # type: ignore[no-untyped-def]
    """Return the end of the object or list that starts at `at`, -1 where it is invalid."""
    kinds = np.uint64(0)  # one bit a level, 1 for an object
    one = np.uint64(1)
    depth = 0
    while True:
        # Here a value begins.
        byte = byte_at(buffer, at)
        if byte == _OPEN_OBJECT or byte == _OPEN_LIST:
            depth += 1
            if depth > _MOST_DEPTH:
                return -1
            kinds = (kinds << one) | np.uint64(byte == _OPEN_OBJECT)
            at = _space_end(buffer, at + 1)
            empty = byte_at(buffer, at) == (_CLOSE_OBJECT if byte == _OPEN_OBJECT else _CLOSE_LIST)
        else:
            at = _scalar_end(buffer, at)
            if at < 0:
                return -1
            at = _space_end(buffer, at)
            empty = True
        if empty:
            # Here a value ended, or the list or object that `at` is at the end of has none.
            while byte_at(buffer, at) == (_CLOSE_OBJECT if kinds & one else _CLOSE_LIST):
                depth -= 1
                kinds >>= one
                if depth == 0:
                    return at + 1
                at = _space_end(buffer, at + 1)
            if byte_at(buffer, at) != _COMMA:
                return -1
            at = _space_end(buffer, at + 1)
        if kinds & one:
            if byte_at(buffer, at) != _QUOTE:
                return -1
            stop, _ = _text_end(buffer, at + 1)
            if stop < 0:
                return -1
            at = _value_start(buffer, stop)
            if at < 0:
                return -1


@kernel
def _field_of_key(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return the number of a key, _OTHER where the field is not needed."""
    size = stop - start
    if size > _LONGEST_KEY:
        return _OTHER
    head = word_at(buffer, start) & _MASKS[size]
    for candidate in range(2):
        field = _BY_SIZE[size, candidate]
        if field < 0:
            return _OTHER
        if head == _HEADS[field]:
            step = 8
            while step < size and byte_at(buffer, start + step) == _TAILS[field, step]:
                step += 1
            if step >= size:
                return field
    return _OTHER


@kernel
def _whole(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return (a whole number of few digits, True), or (0, False) for anything else."""
    at = start
    if byte_at(buffer, at) == _MINUS:
        at += 1
    if at >= stop or stop - at > _MOST_DIGITS:
        return 0, False
    value = np.int64(0)
    while at < stop:
        digit = byte_at(buffer, at)
        if not _ZERO <= digit <= _NINE:
            return 0, False
        value = value * 10 + (np.int64(digit) - _ZERO)
        at += 1
    return (-value if byte_at(buffer, start) == _MINUS else value), True


@kernel
def _without_zero_fraction(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return the end of the whole part of `1388534400.0`, the end itself for other numbers."""
    at = stop
    while at > start and byte_at(buffer, at - 1) == _ZERO:
        at -= 1
    return at - 1 if start < at < stop and byte_at(buffer, at - 1) == _DOT else stop


@kernel
def _is_ascii(buffer, at, stop):  # type: ignore[no-untyped-def]
    while at + BLOCK <= stop:
        if not_ascii(buffer, at):
            return False
        at += BLOCK
    found = not_ascii(buffer, at)
    return found == 0 or at + lowest_bit(found) >= stop


@kernel
def _newline(buffer, at):  # type: ignore[no-untyped-def]
    """Return where the next newline is."""
    found = newlines(buffer, at)
    while found == 0:
        at += BLOCK
        found = newlines(buffer, at)
    return at + lowest_bit(found)

"""Tells which URLs are surely canonical as they are, so that the others alone go through `canonical_url`.

Most links are plain: `http://www.example.com/2013/05/a-page?id=1`. For these `canonical_url` returns what it is given,
and looking at their bytes is enough to know it. The tests hold that.
"""

from __future__ import annotations

import numpy as np

from pipelines.algorithms.kernels.byte_scan import as_word, byte_at, word_at
from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.web.urls import TRACKING_PARAMETERS

_HOST, _LETTER, _PATH = 1, 2, 4
_CLASSES = np.zeros(256, np.uint8)
_CLASSES[list(b"abcdefghijklmnopqrstuvwxyz0123456789-")] |= _HOST
_CLASSES[list(b"abcdefghijklmnopqrstuvwxyz")] |= _LETTER
_CLASSES[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$()*+,;=:@/?&")] |= _PATH

_MOST_LABEL_BYTES = 63
_MOST_HOST_BYTES = 253
_MOST_BYTES = 4096

# The names of tracking parameters by size; their first 8 bytes, each with the bit set that makes letters lower-case. A
# name that only looks like one costs a call of `canonical_url`, no more.
_LOWER = np.uint64(0x2020202020202020)
_NAMES = sorted(TRACKING_PARAMETERS, key=len)
_LONGEST_NAME = len(_NAMES[-1])
_HEADS = np.array([as_word(name.encode()[:8]) for name in _NAMES])
_FIRST_OF_SIZE = np.array([sum(len(name) < size for name in _NAMES) for size in range(_LONGEST_NAME + 2)])
_MASKS = np.array([(1 << (8 * min(size, 8))) - 1 for size in range(_LONGEST_NAME + 2)], np.uint64)
_HEADS |= _LOWER & _MASKS[[len(name) for name in _NAMES]]
_UTM = as_word(b"utm_") | np.uint64(0x20202020)
_FOUR_BYTES = np.uint64(0xFFFFFFFF)
_HTTP, _HTTPS = as_word(b"http://"), as_word(b"https://")
_SEVEN_BYTES = np.uint64(0xFFFFFFFFFFFFFF)
_XN = as_word(b"xn--")

_AMP = as_word(b"amp;")

_DOT, _SLASH, _QUERY, _AMPERSAND, _SEMICOLON, _EQUALS, _HASH, _EXCLAMATION = 46, 47, 63, 38, 59, 61, 35, 33


@kernel
def plain_hosts(buffer, spans, hosts):  # type: ignore[no-untyped-def]
    """Set `hosts[i]` to the span of the host where the URL at `spans[i]` is surely canonical, to (0, 0) elsewhere.

    The buffer goes on for 8 bytes after each span.
    """
    for number in range(len(spans)):
        start, stop = np.int64(spans[number, 0]), np.int64(spans[number, 1])
        host = _host_start(buffer, start, stop)
        end = _plain_host_end(buffer, host, stop) if host > 0 else -1
        plain = end > 0 and stop - start <= _MOST_BYTES and _is_plain_path(buffer, end, stop)
        hosts[number, 0] = host if plain else 0
        hosts[number, 1] = end if plain else 0


@kernel
def _host_start(buffer, start, stop):  # type: ignore[no-untyped-def]
    if stop - start > 8:
        head = word_at(buffer, start)
        if head == _HTTPS:
            return start + 8
        if head & _SEVEN_BYTES == _HTTP:
            return start + 7
    return -1


@kernel
def _plain_host_end(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return the end of a host of plain labels that a slash follows, -1 where it is not one."""
    at = start
    while True:
        label = at
        while at < stop and _CLASSES[byte_at(buffer, at)] & _HOST:
            at += 1
        if at == label or at == stop or at - label > _MOST_LABEL_BYTES or word_at(buffer, label) & _FOUR_BYTES == _XN:
            return -1
        byte = byte_at(buffer, at)
        if byte == _SLASH:
            # A last label of digits makes the host an address, which has more than one spelling.
            is_name = _CLASSES[byte_at(buffer, label)] & _LETTER and at - start <= _MOST_HOST_BYTES
            return at if is_name else -1
        if byte != _DOT:
            return -1
        at += 1


@kernel
def _is_plain_path(buffer, at, stop):  # type: ignore[no-untyped-def]
    """Whether path and query hold nothing to encode, to resolve or to leave out."""
    piece = -1  # where the present piece of the query begins
    equals = -1
    has_ampersand = False
    while at < stop:
        byte = byte_at(buffer, at)
        if not _CLASSES[byte] & _PATH:
            return False
        if byte == _SLASH and at + 1 < stop and byte_at(buffer, at + 1) == _DOT:
            return False
        if byte == _SEMICOLON and has_ampersand:
            return False  # perhaps an entity
        if byte == _EQUALS and equals < 0:
            equals = at
        elif byte == _QUERY and piece < 0:
            piece, equals = at + 1, -1
        elif byte == _AMPERSAND:
            has_ampersand = True
            if piece >= 0:
                if not _is_plain_piece(buffer, piece, equals if equals >= 0 else at, at):
                    return False
                piece, equals = at + 1, -1
        at += 1
    return piece < 0 or _is_plain_piece(buffer, piece, equals if equals >= 0 else stop, stop)


@kernel
def _is_plain_piece(buffer, start, name_end, stop):  # type: ignore[no-untyped-def]
    """Whether a piece of a query stays: it is not empty, and its name is surely no tracking parameter's."""
    size = name_end - start
    if stop == start:
        return False
    head = word_at(buffer, start) | _LOWER
    if size >= 4 and head & _FOUR_BYTES == _UTM:
        return False
    if size > _LONGEST_NAME:
        return True
    head &= _MASKS[size]
    for number in range(_FIRST_OF_SIZE[size], _FIRST_OF_SIZE[size + 1]):
        if head == _HEADS[number]:
            return False
    return True


@kernel
def extensions(buffer, spans, hosts, found):  # type: ignore[no-untyped-def]
    """Set `found[i]` to the span of what follows the last dot of the path of a plain URL, (0, 0) where none does."""
    for number in range(len(spans)):
        at, stop = np.int64(hosts[number, 1]), np.int64(spans[number, 1])
        end = at
        while end < stop and byte_at(buffer, end) != _QUERY:
            end += 1
        last = end - 1
        while byte_at(buffer, last) != _SLASH and byte_at(buffer, last) != _DOT:
            last -= 1
        has_dot = byte_at(buffer, last) == _DOT
        found[number, 0] = last + 1 if has_dot else 0
        found[number, 1] = end if has_dot else 0


@kernel
def simplify(buffer, spans, simpler, found):  # type: ignore[no-untyped-def]
    """Write URLs anew with what is most often wrong with them put right; they may be plain then.

    That is `&amp;` made `&`, capitals of the host made small, a slash after a bare host, and no fragment. Where what is
    written, at `found[i]` in `simpler`, is plain, it is what `canonical_url` makes of the URL; (0, 0) where that is
    not sure. `simpler` has room for one byte more than each URL, and for what may be read after the last.
    """
    size = 0
    for number in range(len(spans)):
        start, stop = np.int64(spans[number, 0]), np.int64(spans[number, 1])
        host = _host_start(buffer, start, stop)
        sure = host > 0 and stop - start <= _MOST_BYTES
        end = _copy_simplified(buffer, start, host, stop, simpler, size) if sure else -1
        found[number, 0] = size if end > 0 else 0
        found[number, 1] = end if end > 0 else 0
        size = max(size, end)


@kernel
def _copy_simplified(buffer, at, host, stop, simpler, size):  # type: ignore[no-untyped-def]
    """Copy one URL and return the end of the copy, -1 where its fragment is none that can be left out."""
    while at < stop and not (at >= host and _ends_host(byte_at(buffer, at))):
        byte = byte_at(buffer, at)
        simpler[size] = byte | 32 if 65 <= byte <= 90 else byte
        size += 1
        at += 1
    if at == stop or byte_at(buffer, at) != _SLASH:
        simpler[size] = _SLASH
        size += 1
    while at < stop and byte_at(buffer, at) != _HASH:
        byte = byte_at(buffer, at)
        simpler[size] = byte
        size += 1
        at += 1
        if byte == _AMPERSAND:
            while at + 4 <= stop and word_at(buffer, at) & _FOUR_BYTES == _AMP:
                at += 4
    # `&#39;` is an entity, `#!` names a page, and what is not ASCII may be an invisible mark.
    if at < stop and (simpler[size - 1] == _AMPERSAND or byte_at(buffer, at + 1) == _EXCLAMATION):
        return -1
    # An entity in the fragment may spell such a mark, or the `!`.
    while at < stop:
        if not 32 < byte_at(buffer, at) < 127 or byte_at(buffer, at) == _AMPERSAND:
            return -1
        at += 1
    return size


@kernel
def _ends_host(byte):  # type: ignore[no-untyped-def]
    return byte == _SLASH or byte == _QUERY or byte == _HASH

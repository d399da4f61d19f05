"""Undoes gzip and deflate piece by piece, never into more bytes than asked for; tells text from binary data."""

from __future__ import annotations

import zlib

from pipelines.stages.fetch.outcomes import Failure

ACCEPT_ENCODING = "gzip, deflate"

_GZIP = 16 + zlib.MAX_WBITS
_PIECE_BYTES = 1 << 18
_SNIFFED_BYTES = 1024
_UTF16_MARKS = (b"\xfe\xff", b"\xff\xfe")
# The "binary data bytes" of the WHATWG's MIME Sniffing Standard.
_BINARY = frozenset((*range(0x00, 0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)))

# What the header may say, and what it means; other words (`utf-8`, `none`) occur and mean nothing.
_CODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_FOREIGN = {"br", "zstd", "compress", "x-compress"}


class BodyError(Exception):
    """A body that cannot be read whole: too large, cut short, or not in the content encoding that it claims."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


def content_coding(header: str | None) -> str | None:
    """Return `gzip`, `deflate` or None for a Content-Encoding header; raise BodyError for one that we cannot undo."""
    words = [word.strip().lower() for word in (header or "").split(",")]
    if any(word in _FOREIGN for word in words) or sum(word in _CODINGS for word in words) > 1:
        raise BodyError(Failure("unsupported_encoding", f"Content-Encoding: {header}"))
    return next((_CODINGS[word] for word in words if word in _CODINGS), None)


class BodyDecoder:
    """Undoes the coding of one body. As warcio does, it reads one gzip member and ignores what follows."""

    def __init__(self, coding: str | None) -> None:
        self._coding = coding
        self._inflate = None if coding is None else zlib.decompressobj(_GZIP if coding == "gzip" else zlib.MAX_WBITS)
        self._begun = False
        self.decoded_bytes = 0

    def feed(self, data: bytes, limit: int) -> bytes:
        """Take a piece of the body and return what it decodes to, at most `limit` bytes, counted in `decoded_bytes`.

        Raises BodyError where the piece is not in the coding.
        """
        if self._inflate is None:
            decoded = data[:limit]
        elif self._inflate.eof or not data:
            decoded = b""
        else:
            decoded = self._inflated(data, limit)
        self.decoded_bytes += len(decoded)
        return decoded

    def finish(self) -> None:
        """Raise BodyError where the coded data stops short of its end."""
        if self._inflate is not None and self._begun and not self._inflate.eof:
            raise BodyError(Failure("incomplete", f"the {self._coding} data stop short of their end", True))

    def _inflated(self, data: bytes, limit: int) -> bytes:
        assert self._inflate is not None
        try:
            decoded = self._inflate.decompress(data, max(1, limit))
        except zlib.error as error:
            if self._begun or self._coding != "deflate":
                raise BodyError(Failure("bad_encoding", f"is not {self._coding} ({error})")) from error
            # `deflate` is zlib by the standard, but some servers send it without the zlib wrapper.
            self._begun = True
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._inflated(data, limit)
        self._begun = True
        return decoded


def decoded_start(body: bytes, coding: str | None, limit: int) -> bytes:
    """Return at most `limit` decoded bytes of the beginning of a body that was read with `BodyDecoder`."""
    decoder = BodyDecoder(coding)
    pieces = []
    for start in range(0, len(body), _PIECE_BYTES):
        if decoder.decoded_bytes >= limit:
            break
        pieces.append(decoder.feed(body[start : start + _PIECE_BYTES], limit - decoder.decoded_bytes))
    return b"".join(pieces)


def looks_binary(body: bytes, coding: str | None) -> bool:
    """Tell whether the first KiB of a body holds bytes that no text holds."""
    start = decoded_start(body, coding, _SNIFFED_BYTES)
    return not start.startswith(_UTF16_MARKS) and not _BINARY.isdisjoint(start)

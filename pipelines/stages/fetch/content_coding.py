"""Content encodings (gzip, deflate), decoded incrementally within a size limit; detection of binary data."""

from __future__ import annotations

import zlib

from isal import isal_zlib

from pipelines.records.archives import ISAL_ERROR
from pipelines.stages.fetch.outcomes import Failure

ACCEPT_ENCODING = "gzip, deflate"

_GZIP_WBITS = 16 + zlib.MAX_WBITS
_SNIFFED_BYTES = 1024
_UTF16_BOMS = (b"\xfe\xff", b"\xff\xfe")
# The "binary data bytes" of the WHATWG's MIME Sniffing Standard.
_BINARY_BYTES = frozenset((*range(0x00, 0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)))

# Other tokens (`utf-8`, `none`) occur in the header and mean nothing.
_CODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_UNSUPPORTED = {"br", "zstd", "compress", "x-compress"}


class BodyError(Exception):
    """A body that cannot be read completely: too large, truncated, or not in its declared content encoding."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


def content_coding(header: str | None) -> str | None:
    """Return `gzip`, `deflate` or None for a Content-Encoding header; raise BodyError for unsupported encodings."""
    tokens = [token.strip().lower() for token in (header or "").split(",")]
    if any(token in _UNSUPPORTED for token in tokens) or sum(token in _CODINGS for token in tokens) > 1:
        raise BodyError(Failure("unsupported_encoding", f"Content-Encoding: {header}"))
    return next((_CODINGS[token] for token in tokens if token in _CODINGS), None)


class BodyDecoder:
    """Decodes one body incrementally. Like warcio, it reads one gzip member and ignores what follows."""

    def __init__(self, coding: str | None) -> None:
        self._coding = coding
        wbits = _GZIP_WBITS if coding == "gzip" else zlib.MAX_WBITS
        self._decompressor = None if coding is None else isal_zlib.decompressobj(wbits)
        self._started = False
        self.decoded_bytes = 0

    def feed(self, data: bytes, limit: int) -> bytes:
        """Decode a chunk of the body and return at most `limit` bytes, which `decoded_bytes` counts.

        Raises BodyError if the chunk is not in the encoding.
        """
        if self._decompressor is None:
            decoded = data[:limit]
        elif self._decompressor.eof or not data:
            decoded = b""
        else:
            decoded = self._decompress(data, limit)
        self.decoded_bytes += len(decoded)
        return decoded

    def finish(self) -> None:
        """Raise BodyError if the encoded data is truncated."""
        if self._decompressor is not None and self._started and not self._decompressor.eof:
            raise BodyError(Failure("incomplete", f"truncated {self._coding} data", True))

    def _decompress(self, data: bytes, limit: int) -> bytes:
        assert self._decompressor is not None
        try:
            decoded = self._decompressor.decompress(data, max(1, limit))
        except ISAL_ERROR as error:
            if self._started or self._coding != "deflate":
                raise BodyError(Failure("bad_encoding", f"not {self._coding} data ({error})")) from error
            # `deflate` is zlib by the standard, but some servers send it without the zlib wrapper.
            self._started = True
            self._decompressor = isal_zlib.decompressobj(-zlib.MAX_WBITS)
            return self._decompress(data, limit)
        self._started = True
        return decoded


def decode_prefix(body: bytes, coding: str | None, limit: int) -> bytes:
    """Return at most the first `limit` decoded bytes of a body that `BodyDecoder` could read."""
    return BodyDecoder(coding).feed(body, limit)


def looks_binary(body: bytes, coding: str | None) -> bool:
    """Return whether the first KiB of a body contains bytes that never occur in text."""
    prefix = decode_prefix(body, coding, _SNIFFED_BYTES)
    return not prefix.startswith(_UTF16_BOMS) and not _BINARY_BYTES.isdisjoint(prefix)

"""One HTTP request and its response, within limits of time and size, also of the decoded body."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import zlib

from isal import isal_zlib
from requests.structures import CaseInsensitiveDict

from pipelines.engine.retry import is_retryable_status, requested_wait_s
from pipelines.records.archives import ISAL_ERROR
from pipelines.stages.fetch.outcomes import Failure

ACCEPT_ENCODING = "gzip, deflate"

# `deflate` is zlib by the standard, but some servers send it without the zlib wrapper.
_WBITS = {"gzip": (16 + zlib.MAX_WBITS,), "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS)}
_GZIP, _MAX_GZIP_RATIO = b"\x1f\x8b\x08", 100
_SNIFFED_BYTES = 1024
_LENGTH = re.compile(r"[0-9]{1,18}")
_UTF16_BOMS = (b"\xfe\xff", b"\xff\xfe")
# The "binary data bytes" of the WHATWG's MIME Sniffing Standard.
_BINARY_BYTES = frozenset((*range(0x00, 0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)))

# Other tokens (`utf-8`, `none`) occur in the header and mean nothing.
_CODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_UNSUPPORTED = {"br", "zstd", "compress", "x-compress"}


def content_coding(header: str | None) -> str | None:
    """Return `gzip`, `deflate` or None for a Content-Encoding header; raise Failure for unsupported encodings."""
    tokens = [token.strip().lower() for token in (header or "").split(",")]
    if any(token in _UNSUPPORTED for token in tokens) or sum(token in _CODINGS for token in tokens) > 1:
        raise Failure("unsupported_encoding", f"Content-Encoding: {header}")
    return next((_CODINGS[token] for token in tokens if token in _CODINGS), None)


def decode_body(body: bytes, coding: str | None, limit: int, is_whole: bool = True) -> bytes:
    """Return at most `limit` decoded bytes of a body; like warcio, of one gzip member, ignoring what follows.

    Raises Failure if it is not in the encoding, or truncated although it `is_whole`.
    """
    if coding is None or not body:
        return body[:limit]
    problem: Exception | None = None
    for wbits in _WBITS[coding]:
        decompressor = isal_zlib.decompressobj(wbits)
        try:
            decoded = decompressor.decompress(body, limit)
        except ISAL_ERROR as error:
            problem = problem or error
            continue
        if is_whole and len(decoded) < limit and not decompressor.eof:
            raise Failure("incomplete", f"truncated {coding} data", True)
        return decoded
    raise Failure("bad_encoding", f"not {coding} data ({problem})")


def gzip_size(body: bytes) -> int | None:
    """Return the decoded size with which a gzip body ends; None if it is unlikely, as of most truncated bodies."""
    size = int.from_bytes(body[-4:], "little")
    return size if body.startswith(_GZIP) and len(body) <= size <= _MAX_GZIP_RATIO * len(body) else None


def looks_binary(body: bytes, coding: str | None) -> bool:
    """Return whether the first KiB of a body contains bytes that never occur in text."""
    prefix = decode_body(body, coding, _SNIFFED_BYTES, is_whole=False)
    return not prefix.startswith(_UTF16_BOMS) and not _BINARY_BYTES.isdisjoint(prefix)


@dataclasses.dataclass(slots=True)
class Response:
    """A response: status line, headers in order, and the body as received, except for chunked framing.

    `body` is None if it was not requested or not read to its end; `truncated` is then the reason, as in WARC-Truncated.
    """

    status: int
    reason: str
    http_version: str
    headers: tuple[tuple[str, str], ...]
    coding: str | None = None
    body: bytes | None = None
    decoded_bytes: int = 0
    truncated: str | None = None

    def header(self, name: str) -> str | None:
        """Return the first value of a header, given in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def values(self, name: str) -> set[str]:
        """Return the distinct values of a header, given in lower case, as lower-case texts; empty ones are left out."""
        values = {value.strip().lower() for key, value in self.headers if key.lower() == name}
        return values - {""}

    @property
    def has_end(self) -> bool:
        """Whether the headers say where the body ends; otherwise it ends with the connection."""
        return bool(self.values("content-length") or self.values("transfer-encoding"))


@dataclasses.dataclass(slots=True)
class Exchange:
    """One request with its response, its failure, or both; `reached` says whether a host was connected to.

    `request` are the bytes sent; `peer` is the address, without a proxy; `cookies` are those to send next.
    """

    url: str
    started_at: dt.datetime
    seconds: float = 0.0
    request: bytes = b""
    peer: str | None = None
    reached: bool = False
    response: Response | None = None
    failure: Failure | None = None
    cookies: tuple[bytes, ...] = ()

    @property
    def status(self) -> int | None:
        """The status of the response, None without one."""
        return None if self.response is None else self.response.status

    @property
    def requested_wait_s(self) -> float:
        """The pause before the next request that the server asks for with a temporary error; 0 without one."""
        if self.response is None or not is_retryable_status(self.response.status):
            return 0.0
        return requested_wait_s(CaseInsensitiveDict(self.response.headers), self.started_at.timestamp()) or 0.0


def body_length(head: Response) -> int | None:
    """Return the length of a body, None if it is chunked or ends with the connection (RFC 9112, 6.3).

    Raises Failure for what readers disagree about, so that no framing is stored as text.
    """
    codings, lengths = head.values("transfer-encoding"), head.values("content-length")
    if codings == {"chunked"}:
        return None
    if codings - {"identity"}:
        raise Failure("unsupported_encoding", f"Transfer-Encoding: {', '.join(sorted(codings))[:200]}")
    if len(lengths) > 1 or any(not _LENGTH.fullmatch(length) for length in lengths):
        raise Failure("bad_response", f"Content-Length: {' and '.join(sorted(lengths))[:200]}")
    return next(map(int, lengths), None)

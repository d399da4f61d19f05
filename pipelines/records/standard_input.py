"""Standard input as a file: every command reads its input more than once, first for its fingerprint."""

from __future__ import annotations

import re
import sys

import zstandard

from pipelines import storage
from pipelines.errors import InputError
from pipelines.storage.bounded import BYTE_ORDER_MARK
from pipelines.storage.compression import COMPRESSION_MAGIC

STANDARD_INPUT = "-"
_READ_BYTES = 1 << 20
_JSON_ARRAY = re.compile(rb"\[\s*[{\]]")


def spool_standard_input(folder: str, name: str | None = None) -> str:
    """Copy standard input into a folder and return the path; a file whose name ends in `.zst` is compressed.

    The name is by default `stdin.jsonl`, `stdin.json` or `stdin.txt`, by what standard input begins with. Raises
    InputError if it is empty or compressed.
    """
    stream = sys.stdin.buffer
    block = stream.read(_READ_BYTES)
    for magic, (kind, _) in COMPRESSION_MAGIC.items():
        if block.startswith(magic):
            raise InputError(f"standard input: contains {kind} data; decompress it, or name the file")
    start = block.removeprefix(BYTE_ORDER_MARK).lstrip()
    if not start:
        raise InputError("standard input: is empty")
    suffix = "jsonl" if start.startswith(b"{") else "json" if _JSON_ARRAY.match(start) else "txt"
    path = storage.join(folder, name or f"stdin.{suffix}")
    compressor = zstandard.ZstdCompressor(level=1).compressobj() if path.endswith(".zst") else None
    with storage.atomic_write(path, durable=False) as output:
        while block:
            output.write(compressor.compress(block) if compressor else block)
            block = stream.read(_READ_BYTES)
        output.write(compressor.flush() if compressor else b"")
    return path

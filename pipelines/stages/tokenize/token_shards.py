"""Token shards as nanoGPT and llm.c read them, each with a table of its documents."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines.core import shards, storage
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry

SPLITS = ("train", "held-out")
LLMC_HEADER_BYTES = 1024
_COPY_BYTES = 1 << 20
# llm.c's headers by the bytes of a token: magic number and version.
_LLMC_KINDS = {2: (20240520, 1), 4: (20240801, 7)}

TOKEN_DOCUMENTS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
    ]
)


@dataclasses.dataclass(frozen=True)
class TokenFormat:
    """How tokens stand in a file: `nanogpt` or `llmc`, and numpy's name of their type, always little-endian."""

    name: str
    dtype: str

    @property
    def header_bytes(self) -> int:
        """The bytes before the first token."""
        return LLMC_HEADER_BYTES if self.name == "llmc" else 0

    def encode(self, ids: Sequence[int]) -> bytes:
        """Return ids as bytes."""
        return np.asarray(ids, dtype=np.dtype(self.dtype).newbyteorder("<")).tobytes()

    def header(self, tokens: int) -> bytes:
        """Return the header of a file of so many tokens; raise InputError where llm.c could not count them."""
        if not self.header_bytes:
            return b""
        if tokens >= 2**31:
            raise InputError(f"a shard has {tokens:,} tokens, and llm.c counts up to 2**31; give smaller input files")
        magic, version = _LLMC_KINDS[np.dtype(self.dtype).itemsize]
        values = np.zeros(LLMC_HEADER_BYTES // 4, dtype="<i4")
        values[:3] = magic, version, tokens
        return values.tobytes()


def token_format(name: str, vocabulary_size: int) -> TokenFormat:
    """Return the format for a vocabulary: 16 bits a token, 32 past 65,536 entries."""
    return TokenFormat(name, "uint16" if vocabulary_size <= 1 << 16 else "uint32")


class SplitWriter:
    """Writes `<split>-N.bin` and `<split>-N-documents.parquet`; without a document, neither (an empty file maps badly).

    The files appear when `stack` is closed. A file with a header is first written without it under `work`, since the
    header holds the number of tokens.
    """

    def __init__(
        self, stack: contextlib.ExitStack, split: str, index: int, form: TokenFormat, output: str, work: str
    ) -> None:
        self._stack = stack
        self._form = form
        self._output = output
        self._name = shards.shard_name(split, index, "bin")
        self._raw_folder = work if form.header_bytes else output
        self._stream: storage.HashingWriter | None = None
        self._table: shards.WrittenShard | None = None
        self.tokens = 0
        self.documents = 0

    def write(self, id: str, url: str | None, ids: Sequence[int]) -> None:
        """Add one document: all its tokens, the one that ends it included."""
        if self._stream is None or self._table is None:
            self._stream, self._table = self._open()
        self._stream.write(self._form.encode(ids))
        self._table.writer.write({"id": id, "url": url, "offset": self.tokens, "tokens": len(ids)})
        self.tokens += len(ids)
        self.documents += 1

    def finish(self) -> tuple[FileEntry, ...]:
        """Return the entries of the files; call after the stack is closed."""
        if self._stream is None or self._table is None:
            return ()
        if not self._form.header_bytes:
            tokens = FileEntry(self._name, self._stream.size_bytes, self._stream.sha256)
        else:
            tokens = self._copy_behind_header()
        return tokens, self._table.entry

    def _open(self) -> tuple[storage.HashingWriter, shards.WrittenShard]:
        stream = self._stack.enter_context(storage.atomic_write(storage.join(self._raw_folder, self._name)))
        table_name = self._name.removesuffix(".bin") + "-documents.parquet"
        return stream, self._stack.enter_context(shards.write_shard(self._output, table_name, TOKEN_DOCUMENTS_SCHEMA))

    def _copy_behind_header(self) -> FileEntry:
        raw = storage.join(self._raw_folder, self._name)
        with (
            storage.open_read(raw) as source,
            storage.atomic_write(storage.join(self._output, self._name)) as target,
        ):
            target.write(self._form.header(self.tokens))
            while block := source.read(_COPY_BYTES):
                target.write(block)
        storage.remove(raw)
        return FileEntry(self._name, target.size_bytes, target.sha256)

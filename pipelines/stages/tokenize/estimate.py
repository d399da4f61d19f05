"""Memory, disk and tokens that a run needs, estimated from a sample of the input before the work starts."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from pipelines import storage
from pipelines.errors import InputError
from pipelines.format import format_bytes, plural
from pipelines.records.estimate import DocumentsEstimate, check_memory, round_down
from pipelines.tokenizers.encoding import Encoder

# Python with the libraries and a vocabulary; then the run waiting to be written, with the texts read meanwhile.
_PROCESS_BYTES = 250_000_000
_ENCODING_BYTES = 250_000_000
# gigatoken's cache of prose, at most a byte per byte of text until it is reloaded; it survives into the second phase.
_CACHE_BYTES = 400_000_000
# Memory of a shard in addition to its tokens: a block of a run, and the table of its documents.
_BYTES_PER_DOCUMENT = 500
_COPYING_BYTES = 50_000_000
_TABLE_BYTES_PER_DOCUMENT = 100
_MAX_SHARDS = 100_000
# Used if there is no sample.
_TOKENS_PER_BYTE = 0.25
_ENCODED_BYTES = 250_000


@dataclasses.dataclass(frozen=True)
class TokenizeEstimate:
    """What a run needs: `disk_bytes` while it runs, half of it afterwards; `memory_bytes` per worker.

    `max_shard_tokens` is the largest shard that fits into the memory available, None if that is unknown.
    """

    text_bytes: int
    is_exact: bool
    tokens: int
    disk_bytes: int
    memory_bytes: int
    available_bytes: int | None
    max_shard_tokens: int | None

    def describe(self, workers: int) -> str:
        """Return the estimate as one line."""
        line = (
            f"{'' if self.is_exact else 'about '}{format_bytes(self.text_bytes)} of text, about "
            f"{round_down(self.tokens, 3):,} tokens: about {format_bytes(self.disk_bytes)} of disk while it runs, half "
            f"of it afterwards, and up to {format_bytes(self.memory_bytes)} of memory per worker, "
            f"with {plural(workers, 'worker')}"
        )
        max_workers = (self.available_bytes or 0) // self.memory_bytes
        if self.available_bytes is not None and 0 < max_workers < workers:
            line += f", more than the {format_bytes(self.available_bytes)} available; use --workers {max_workers}"
        return line

    def check(self, shard_tokens: int, output: str) -> None:
        """Raise InputError if one worker lacks memory for a shard, or the disk lacks space for all of them.

        Files that an earlier run left in the folder count as part of the disk space needed.
        """
        if self.tokens > _MAX_SHARDS * shard_tokens:
            raise InputError(
                f"tokenize: shards of {shard_tokens:,} tokens would be about {self.tokens // shard_tokens:,} files, "
                f"each with a table; use --shard-tokens {self.tokens // _MAX_SHARDS + 1} or more"
            )
        fitting = round_down(self.max_shard_tokens or 0)
        advice = "free some memory or use another machine"
        if 0 < fitting < shard_tokens:
            advice = f"use --shard-tokens {fitting} or less"
        check_memory("tokenize: one worker", self.memory_bytes, self.available_bytes, advice)
        free = storage.free_bytes(output)
        if free is None:
            return
        missing = self.disk_bytes - storage.folder_bytes(output)
        if missing > free:
            raise InputError(
                f"{output}: needs about {format_bytes(missing)} more while tokenize runs, {format_bytes(free)} are "
                "free; free some space or choose another --output"
            )


def estimate_tokenizing(
    documents: DocumentsEstimate,
    encoder: Encoder,
    token_bytes: int,
    shard_tokens: int,
    available_bytes: int | None,
    *,
    is_local: bool = True,
) -> TokenizeEstimate:
    """Estimate what tokenizing documents into shards needs, at `token_bytes` bytes per token.

    Unless the runs are in local files, blocks of several of them are in memory at once.
    """
    tokens = round(documents.text_bytes * _tokens_per_byte(documents, encoder)) + documents.documents
    bytes_per_token = token_bytes + max(1, documents.documents) / max(1, tokens) * _BYTES_PER_DOCUMENT
    process_bytes = _PROCESS_BYTES + min(_CACHE_BYTES, documents.text_bytes)
    copying_bytes = _COPYING_BYTES + (0 if is_local else min(tokens * token_bytes, storage.MAX_REMOTE_BYTES))
    shard_bytes = round(min(tokens, shard_tokens) * bytes_per_token) + copying_bytes
    max_shard_tokens = None
    if available_bytes is not None:
        is_enough_to_encode = available_bytes > _PROCESS_BYTES + _CACHE_BYTES + _ENCODING_BYTES
        left = available_bytes - process_bytes - copying_bytes
        max_shard_tokens = int(left / bytes_per_token) if is_enough_to_encode else 0
    return TokenizeEstimate(
        text_bytes=documents.text_bytes,
        is_exact=documents.is_exact,
        tokens=tokens,
        disk_bytes=2 * (tokens * token_bytes + max(1, documents.documents) * _TABLE_BYTES_PER_DOCUMENT),
        memory_bytes=process_bytes + max(_ENCODING_BYTES, shard_bytes),
        available_bytes=available_bytes,
        max_shard_tokens=max_shard_tokens,
    )


def _tokens_per_byte(documents: DocumentsEstimate, encoder: Encoder) -> float:
    texts: list[str] = []
    size = 0
    # Beginnings of texts from the whole sample, so that one long document does not stand for all.
    for text in documents.sample[:: max(1, len(documents.sample) // 100)]:
        texts.append(text[:10_000])
        size += len(texts[-1].encode())
        if size >= _ENCODED_BYTES:
            break
    return len(encoder.encode(pa.array(texts, pa.string())).ids) / size if size else _TOKENS_PER_BYTE

"""Memory and disk that a run needs: roughly from the size of the input before it is encoded, exactly afterwards."""

from __future__ import annotations

import dataclasses

from pipelines import storage
from pipelines.engine.machine import check_memory
from pipelines.errors import InputError
from pipelines.format import format_bytes, plural
from pipelines.records import inputs

# Python with the libraries and a vocabulary; gigatoken's cache of prose, at most a byte per byte of text until it is
# reloaded, which survives into the second phase; the run waiting to be written, with the texts read meanwhile.
_PROCESS_BYTES, _CACHE_BYTES, _ENCODING_BYTES = 250_000_000, 400_000_000, 250_000_000
# Memory of a shard in addition to its tokens: a block of a run, and the table of its documents.
_COPYING_BYTES, _BYTES_PER_DOCUMENT = 50_000_000, 500
_STORED_BYTES_PER_DOCUMENT = 100
_MAX_SHARDS = 100_000
# English prose with GPT-2's vocabulary, and WebText's documents.
_TEXT_BYTES_PER_TOKEN, _TEXT_BYTES_PER_DOCUMENT = 4, 5000


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a run needs to write tokens of `token_bytes` bytes into shards of `shard_tokens` tokens.

    Unless its runs are in local files, blocks of several of them are in memory at once.
    """

    tokens: int
    documents: int
    token_bytes: int
    shard_tokens: int
    is_local: bool = True

    @property
    def disk_bytes(self) -> int:
        """The disk space while it runs, half of it afterwards."""
        return 2 * (self.tokens * self.token_bytes + self.documents * _STORED_BYTES_PER_DOCUMENT)

    @property
    def memory_bytes(self) -> int:
        """The memory of a worker."""
        process_bytes = _PROCESS_BYTES + min(_CACHE_BYTES, self.tokens * _TEXT_BYTES_PER_TOKEN)
        remote_bytes = 0 if self.is_local else min(self.tokens * self.token_bytes, storage.MAX_REMOTE_BYTES)
        shard_bytes = round(min(self.tokens, self.shard_tokens) * self._shard_bytes_per_token)
        return process_bytes + max(_ENCODING_BYTES, _COPYING_BYTES + remote_bytes + shard_bytes)

    @property
    def _shard_bytes_per_token(self) -> float:
        return self.token_bytes + self.documents / max(1, self.tokens) * _BYTES_PER_DOCUMENT

    def describe_shortage(self, workers: int, available_bytes: int | None) -> str:
        """Return a note if there may be too little memory for so many workers, else an empty string."""
        max_workers = (available_bytes or 0) // self.memory_bytes
        if available_bytes is None or not 0 < max_workers < workers:
            return ""
        needed = f"{plural(workers, 'worker')} need up to {format_bytes(self.memory_bytes)} of memory each"
        return f"{needed}, more than the {format_bytes(available_bytes)} available; use --workers {max_workers}"

    def check_memory(self, available_bytes: int | None) -> None:
        """Raise InputError if one worker lacks memory for a shard; the message suggests the size that fits."""
        advice = "free some memory or use another machine"
        left_bytes = (available_bytes or 0) - dataclasses.replace(self, shard_tokens=0).memory_bytes
        fitting = int(left_bytes / self._shard_bytes_per_token)
        fitting -= fitting % 10 ** max(0, len(str(fitting)) - 2)
        if 0 < fitting < self.shard_tokens:
            advice = f"use --shard-tokens {fitting} or less"
        check_memory("tokenize: one worker", self.memory_bytes, available_bytes, advice)

    def check_output(self, output: str, tolerance: int = 1) -> None:
        """Raise InputError for too many shards, or if the disk lacks space for what the folder does not have yet.

        `tolerance` is the factor by which a rough estimate may be too high.
        """
        files = self.tokens // self.shard_tokens
        if files > tolerance * _MAX_SHARDS:
            raise InputError(
                f"tokenize: shards of {self.shard_tokens:,} tokens would be {files:,} files, each with a table; use "
                f"--shard-tokens {self.tokens // _MAX_SHARDS + 1} or more"
            )
        free_bytes = storage.free_bytes(output)
        present_bytes = 0 if free_bytes is None else storage.folder_bytes(output)
        if free_bytes is not None and self.disk_bytes // tolerance - present_bytes > free_bytes:
            missing = format_bytes(self.disk_bytes - present_bytes)
            raise InputError(
                f"{output}: needs about {missing} more, {format_bytes(free_bytes)} are free; free "
                "some space and re-run the same command to resume"
            )


def estimate_needs(source: inputs.DocumentInput, token_bytes: int, shard_tokens: int, *, is_local: bool) -> Needs:
    """Estimate what a run needs from the size of its input.

    The result is right within a factor of two for prose. Text that compresses better has more tokens per byte of input.
    """
    text_bytes = inputs.estimate_text_bytes(source.files)
    documents = source.records if source.records is not None else text_bytes // _TEXT_BYTES_PER_DOCUMENT
    return Needs(text_bytes // _TEXT_BYTES_PER_TOKEN + documents, documents, token_bytes, shard_tokens, is_local)

"""What tokenizing will take, said from a sample before the work, and refused where it cannot end well."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from pipelines.core import storage
from pipelines.core.errors import InputError
from pipelines.core.estimate import DocumentsEstimate, round_down, size_in_words
from pipelines.core.machine import available_memory_bytes
from pipelines.tokenizers.encoding import Encoder

# Python with the libraries and a vocabulary; then what waits for a run to be written, with the texts read meanwhile.
_PROCESS_BYTES = 250_000_000
_ENCODING_BYTES = 250_000_000
# What gigatoken remembers of prose, a byte for each of the text at most, until it is loaded anew; a worker that puts
# shards together afterwards still has it.
_REMEMBERED_BYTES = 400_000_000
# What a shard takes beside its tokens: a block of a run, and the table of its documents.
_BYTES_A_DOCUMENT = 500
_COPYING_BYTES = 50_000_000
_TABLE_BYTES_A_DOCUMENT = 100
# More files than this in a folder serve nobody.
_MOST_SHARDS = 100_000
# Where there is no sample.
_TOKENS_A_BYTE = 0.25
_ENCODED_BYTES = 250_000


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What a run will take: `disk_bytes` while it works, about half of it is left; `memory_bytes` for each worker."""

    text_bytes: int
    tokens: int
    disk_bytes: int
    memory_bytes: int
    available_bytes: int | None
    fitting_shard_tokens: int | None
    is_exact: bool

    def in_words(self, workers: int) -> str:
        """Return the forecast as one line."""
        about = "" if self.is_exact else "about "
        fitting = (self.available_bytes or 0) // self.memory_bytes
        too_many = (
            f", more than the {size_in_words(self.available_bytes)} that are available; give --workers {fitting}"
            if self.available_bytes is not None and 0 < fitting < workers
            else ""
        )
        return (
            f"{about}{size_in_words(self.text_bytes)} of text, about {round_down(self.tokens, 3):,} tokens: about "
            f"{size_in_words(self.disk_bytes)} on disk while it works, half of it in the end, and up to "
            f"{size_in_words(self.memory_bytes)} of memory for each worker, {workers} at most{too_many}"
        )


def forecast(estimate: DocumentsEstimate, encoder: Encoder, token_bytes: int, shard_tokens: int) -> Forecast:
    """Return what tokenizing documents into shards takes, at so many bytes a token."""
    tokens = round(estimate.text_bytes * _tokens_a_byte(estimate, encoder)) + estimate.documents
    documents = max(1, estimate.documents)
    documents_a_token = documents / max(1, tokens)
    in_shard = min(tokens, shard_tokens)
    shard_bytes = round(in_shard * (token_bytes + documents_a_token * _BYTES_A_DOCUMENT)) + _COPYING_BYTES
    standing_bytes = _PROCESS_BYTES + min(_REMEMBERED_BYTES, estimate.text_bytes)
    available = available_memory_bytes()
    fitting = None
    if available is not None:
        left = available - standing_bytes - _COPYING_BYTES
        fitting = max(0, int(left / (token_bytes + documents_a_token * _BYTES_A_DOCUMENT)))
    return Forecast(
        text_bytes=estimate.text_bytes,
        tokens=tokens,
        disk_bytes=2 * (tokens * token_bytes + documents * _TABLE_BYTES_A_DOCUMENT),
        memory_bytes=standing_bytes + max(_ENCODING_BYTES, shard_bytes),
        available_bytes=available,
        fitting_shard_tokens=fitting,
        is_exact=estimate.is_exact,
    )


def check_forecast(predicted: Forecast, shard_tokens: int, output: str, work: str) -> None:
    """Raise InputError where one worker has too little memory for a shard, or the disk too little space for them all.

    What an earlier run left in the folders is taken to be of use.
    """
    if predicted.tokens > _MOST_SHARDS * shard_tokens:
        raise InputError(
            f"tokenize: shards of {shard_tokens:,} tokens would be about {predicted.tokens // shard_tokens:,} files, "
            f"each with a table; give --shard-tokens {predicted.tokens // _MOST_SHARDS + 1} or more"
        )
    if predicted.available_bytes is not None and predicted.memory_bytes > predicted.available_bytes:
        raise InputError(_too_little_memory(predicted, predicted.available_bytes, shard_tokens))
    free = storage.free_bytes(output)
    present = sum(_size_of_files(folder) for folder in (output, work)) if free is not None else 0
    if free is not None and predicted.disk_bytes - present > free:
        needed = size_in_words(predicted.disk_bytes - present)
        raise InputError(
            f"{output}: about {needed} more are needed while tokenize works, and {size_in_words(free)} are free; "
            "free some space, or choose another --output"
        )


def _too_little_memory(predicted: Forecast, available: int, shard_tokens: int) -> str:
    fits = round_down(predicted.fitting_shard_tokens or 0)
    needs_less = available > _PROCESS_BYTES + _REMEMBERED_BYTES + _ENCODING_BYTES and 0 < fits < shard_tokens
    way_out = f"give --shard-tokens {fits} or less" if needs_less else "free some memory, or use another machine"
    return (
        f"tokenize: one worker needs about {size_in_words(predicted.memory_bytes)} of memory, and "
        f"{size_in_words(available)} are available; {way_out}"
    )


def _tokens_a_byte(estimate: DocumentsEstimate, encoder: Encoder) -> float:
    texts: list[str] = []
    size = 0
    # Texts from all over the sample, each cut short, so that one long document does not stand for all.
    for text in estimate.sample[:: max(1, len(estimate.sample) // 100)]:
        texts.append(text[:10_000])
        size += len(texts[-1].encode())
        if size >= _ENCODED_BYTES:
            break
    return len(encoder.encode(pa.array(texts, pa.string())).ids) / size if size else _TOKENS_A_BYTE


def _size_of_files(folder: str) -> int:
    paths = [storage.join(folder, name) for name in storage.list_folder(folder)]
    return sum(storage.size_bytes(path) for path in paths if not storage.is_folder(path))

"""The first phase: encodes the documents of each shard of the input into sorted runs."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core import inputs, progress, shards, storage
from pipelines.core.document_filter import urls_of, with_text
from pipelines.core.document_split import document_keys, hashed, is_held_out, split_keys
from pipelines.core.drops import Drops
from pipelines.core.fast_encoding import Encoded
from pipelines.core.machine import use_one_thread_in_a_worker
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import TaskResult
from pipelines.stages.tokenize.encoders import SampleCheck, load_encoder, load_library
from pipelines.stages.tokenize.runs import SPLITS, EncodedDocuments, RunWriter

TOKENIZER_FILE = "tokenizer.json"


@dataclasses.dataclass(frozen=True)
class EncodeTask:
    """The documents of one shard of the input; without `shuffle` they keep their order.

    `threads` is for the only task of a run, which may use all cores.
    """

    shard: inputs.DocumentShard
    held_out: float
    shuffle: bool
    seed: int
    dtype: str
    end_of_text: int
    engine: str
    threads: bool
    tokenizer_sha256: str
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.shard.name


def encode_shard(task: EncodeTask) -> TaskResult:
    """Encode the documents of a shard into runs, and list those without text.

    Raises WebtextError where a sampled document has other ids than the `tokenizers` library gives it.
    """
    use_one_thread_in_a_worker()
    tokenizer = storage.join(task.output, TOKENIZER_FILE)
    encoder = load_encoder(tokenizer, task.tokenizer_sha256, task.engine)
    check = SampleCheck(encoder, load_library(tokenizer, task.tokenizer_sha256))
    runs = RunWriter(task.output, task.work, task.shard.index, task.end_of_text, task.shuffle)
    position = 0
    name = shards.shard_name("dropped", task.shard.index)
    with shards.write_shard(task.output, name, DROPPED_SCHEMA) as dropped:
        drops = Drops(dropped.writer)
        for read in inputs.read_documents(task.shard, drops):
            batch = with_text(read, drops)
            if not batch.num_rows:
                continue
            encoded = encoder.encode(batch.column("text"), threads=task.threads)
            documents = _documents(task, batch, encoded, position)
            if task.engine != "tokenizers":
                check.compare(batch.column("id"), batch.column("text"), encoded, documents.content.tolist())
            runs.add(documents)
            position += batch.num_rows
            progress.advance(batch.num_rows)
    files = runs.finish()
    counts: dict[str, float] = {f"{split}_tokens": runs.tokens[split] for split in SPLITS}
    counts |= {f"{split}_documents": runs.documents[split] for split in SPLITS}
    return TaskResult(
        records_in=inputs.documents_read(drops, position),
        records_out=position,
        dropped=drops.counts,
        counts={**counts, "compared_documents": check.documents},
        files=(*files, dropped.entry),
    )


def _documents(task: EncodeTask, batch: pa.RecordBatch, encoded: Encoded, position: int) -> EncodedDocuments:
    tokens = encoded.ids.astype(np.dtype(task.dtype).newbyteorder("<"))
    keys = document_keys(batch, task.shard)
    held_out = [is_held_out(key, task.held_out) for key in split_keys(batch, keys)]
    return EncodedDocuments(
        batch.column("id"),
        pa.array(urls_of(batch), pa.string()),
        np.array(held_out, np.uint8),
        _orders(task, keys, position),
        _content(tokens, encoded.starts),
        tokens,
        encoded.starts,
    )


def _orders(task: EncodeTask, keys: list[str], position: int) -> npt.NDArray[np.uint64]:
    """Return where documents go: by a hash of what they are (that of a cluster would put its members side by side)."""
    if not task.shuffle:
        return np.arange(position, position + len(keys), dtype=np.uint64)
    purpose = f"shuffle-{task.seed}"
    return np.array([hashed(key, purpose) for key in keys], np.uint64)


def _content(tokens: npt.NDArray[np.unsignedinteger], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return 64 bits of each document's tokens: they order those of equal ids, and choose which are compared."""
    whole = memoryview(tokens.view(np.uint8).data)
    bounds = (starts * tokens.itemsize).tolist()
    digests = (hashlib.sha256(whole[start:stop]).digest()[:8] for start, stop in itertools.pairwise(bounds))
    return np.frombuffer(b"".join(digests), "<u8")

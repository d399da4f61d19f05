"""The first phase: encodes the documents of each shard of the input into sorted runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core import inputs, progress, shards, storage
from pipelines.core.document_filter import urls_of, with_text
from pipelines.core.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.core.drops import Drops
from pipelines.core.machine import limit_worker_threads, retain_freed_memory
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import TaskResult
from pipelines.stages.tokenize.encoders import SampleCheck, load_encoder, load_library
from pipelines.stages.tokenize.runs import SPLITS, EncodedDocuments, RunWriter, content_hashes
from pipelines.tokenizers.encoding import Encoded, import_engine

TOKENIZER_FILE = "tokenizer.json"


@dataclasses.dataclass(frozen=True)
class EncodeTask:
    """The documents of one shard of the input; without `shuffle` they keep their order.

    `threads` is for the only task of a run, which may use all cores. `compared_characters` is how much text is compared
    with what the `tokenizers` library makes of it.
    """

    shard: inputs.DocumentShard
    held_out: float
    shuffle: bool
    seed: int
    dtype: str
    end_of_text: int
    engine: str
    threads: bool
    compared_characters: int
    tokenizer_sha256: str
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.shard.name


def prepare_worker() -> None:
    """Import in a new worker what its first task needs, while the command still looks at its input."""
    limit_worker_threads()
    retain_freed_memory()
    import_engine()


def encode_shard(task: EncodeTask) -> TaskResult:
    """Encode the documents of a shard into runs, and list those without text.

    Raises WebtextError where a sampled document has other ids than the `tokenizers` library gives it.
    """
    limit_worker_threads()
    retain_freed_memory()
    tokenizer = storage.join(task.output, TOKENIZER_FILE)
    encoder = load_encoder(tokenizer, task.tokenizer_sha256, task.engine)
    check = SampleCheck(encoder, load_library(tokenizer, task.tokenizer_sha256), task.compared_characters)
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
        records_in=inputs.count_records_in(drops, position),
        records_out=position,
        dropped=drops.counts,
        counts={**counts, "compared_documents": check.documents},
        files=(*files, dropped.entry),
    )


def _documents(task: EncodeTask, batch: pa.RecordBatch, encoded: Encoded, position: int) -> EncodedDocuments:
    tokens = encoded.ids.astype(np.dtype(task.dtype).newbyteorder("<"))
    keys = document_keys(batch, task.shard)
    held_out = held_out_mask(split_keys(batch, keys), task.held_out)
    return EncodedDocuments(
        batch.column("id"),
        pa.array(urls_of(batch), pa.string()),
        held_out.astype(np.uint8),
        _orders(task, keys, position),
        content_hashes(tokens, encoded.starts[:-1], encoded.starts[1:]),
        tokens,
        encoded.starts,
    )


def _orders(task: EncodeTask, keys: list[str], position: int) -> npt.NDArray[np.uint64]:
    """Return where documents go: by a hash of what they are (that of a cluster would put its members side by side)."""
    if not task.shuffle:
        return np.arange(position, position + len(keys), dtype=np.uint64)
    return hash_keys(keys, f"shuffle-{task.seed}")

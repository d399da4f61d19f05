"""The first phase: encode the documents of each input shard into sorted runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import progress
from pipelines.engine.machine import limit_worker_threads, retain_freed_memory
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.document_filter import urls_of, with_text
from pipelines.records.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.encoders import SampleCheck, TokenizerFile, load_encoder, load_library
from pipelines.stages.tokenize.runs import SPLITS, EncodedDocuments, RunSizes, RunWriter, content_hashes
from pipelines.stages.tokenize.token_shards import TokenFormat
from pipelines.tokenizers.encoding import Encoded, import_engine


@dataclasses.dataclass(frozen=True)
class EncodeContext:
    """What all shards of the input share; `engine` is the one chosen for this run, `shards` their number."""

    config: TokenizeConfig
    tokenizer: TokenizerFile
    end_of_text: int
    engine: str
    form: TokenFormat
    shards: int
    output: str
    sizes: RunSizes


def prepare_worker() -> None:
    """Import what the first task needs in a new worker, while the main process still inspects the input."""
    limit_worker_threads()
    retain_freed_memory()
    import_engine()


def encode_shard(shard: inputs.DocumentShard, context: EncodeContext) -> TaskResult:
    """Encode the documents of a shard into runs, and list those without text.

    Raises WebtextError if the `tokenizers` library gives a sampled document other ids.
    """
    limit_worker_threads()
    retain_freed_memory()
    encoder = load_encoder(context.tokenizer, context.engine)
    check = SampleCheck(encoder, load_library(context.tokenizer), context.shards)
    runs = RunWriter(
        context.output,
        shard.index,
        end_of_text=context.end_of_text,
        shuffled=context.config.shuffle,
        sizes=context.sizes,
    )
    documents = 0
    with shards.write_shard(context.output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped:
        drops = Drops(dropped.writer)
        for records in inputs.read_documents(shard, drops):
            batch = with_text(records, drops)
            if not batch.num_rows:
                continue
            # The only shard of an input uses all cores.
            encoded = encoder.encode(batch.column("text"), threads=context.shards == 1)
            encoded_documents = _encoded_documents(shard, batch, encoded=encoded, position=documents, context=context)
            if context.engine != "tokenizers":
                check.compare(batch, encoded, encoded_documents.content)
            runs.add(encoded_documents)
            documents += batch.num_rows
            progress.advance(batch.num_rows)
    files = runs.finish()
    counts = {f"{split}_tokens": runs.tokens[split] for split in SPLITS}
    counts |= {f"{split}_documents": runs.documents[split] for split in SPLITS}
    counts["compared_documents"] = check.documents
    return drops.task_result(documents, (*files, dropped.entry), counts)


def _encoded_documents(
    shard: inputs.DocumentShard, batch: pa.RecordBatch, encoded: Encoded, position: int, context: EncodeContext
) -> EncodedDocuments:
    config = context.config
    tokens = encoded.ids.astype(context.form.little_endian)
    keys = document_keys(batch, shard)
    order: npt.NDArray[np.uint64]
    if config.shuffle:
        # By the hash of the document; the hash of its cluster would put near-duplicates next to each other.
        order = hash_keys(keys, f"shuffle-{config.seed}")
    else:
        order = np.arange(position, position + len(keys), dtype=np.uint64)
    return EncodedDocuments(
        ids=batch.column("id"),
        urls=pa.array(urls_of(batch), pa.string()),
        split=held_out_mask(split_keys(batch, keys), config.held_out).astype(np.uint8),
        order=order,
        content=content_hashes(tokens, encoded.starts[:-1], encoded.starts[1:]),
        tokens=tokens,
        starts=encoded.starts,
    )

"""Writes documents as JSONL or plain text, for tools that do not read Parquet."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import zstandard

from pipelines import storage
from pipelines.corpus_config import require_finished_stages
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError
from pipelines.format import escape_output, to_json
from pipelines.pipeline import DOCUMENT_STAGES
from pipelines.records import inputs
from pipelines.records.document_options import DocumentConfig
from pipelines.records.drops import Drops
from pipelines.storage.compression import strip_compression

# Between the texts of a .txt file.
SEPARATOR = "\n<|endoftext|>\n"


def export_text(
    documents: Sequence[str],
    output: str,
    kind: str | None,
    limit: int | None,
    config: DocumentConfig,
    options: RunOptions,
) -> int:
    """Write documents in their order to a file, or to standard output (`-`); return how many.

    `kind` is jsonl (all columns but those that are null) or txt (the texts; a line `<|endoftext|>` separates them), by
    default that of the name. The progress of the options notes what is not read. Raises UsageError for another name,
    InputError if there is no document, or if the file exists, unless `options.overwrite`.
    """
    kind = kind or ("jsonl" if output == "-" else strip_compression(output).rpartition(".")[2])
    if kind not in ("jsonl", "txt"):
        raise UsageError(f"{output}: is neither .jsonl nor .txt; name the format with --format")
    if output != "-":
        storage.check_replaceable(output, options.overwrite)
    source, drops = inputs.open_configured(documents, config, options), Drops()
    written = 0
    with _open(output) as stream:
        batches = (inputs.read_documents(shard, drops) for shard in source.undivided)
        for batch in itertools.chain.from_iterable(batches):
            batch = batch.slice(0, batch.num_rows if limit is None else limit - written)
            for row in batch.to_pylist():
                if kind == "txt":
                    record = SEPARATOR * (written > 0) + str(row["text"])
                else:
                    record = to_json({key: value for key, value in row.items() if value is not None}) + "\n"
                stream.write((escape_output(record) if output == "-" else record).encode())
                written += 1
            if written == limit:
                break
        if message := drops.describe_bad_records():
            options.progress.note(message)
        if kind == "txt":
            stream.write(b"\n")
        if not written:
            raise InputError(f"{', '.join(documents)}: no document")
    return written


def last_documents(corpus: str) -> str:
    """Return the folder of the last stage of a corpus that wrote documents; raise InputError if there is none."""
    for stage in reversed(require_finished_stages(corpus)):
        if stage in DOCUMENT_STAGES:
            return storage.join(corpus, stage)
    raise InputError(f"{corpus}: no stage has written documents; run `webtext extract`, or name them with --input")


@contextlib.contextmanager
def _open(output: str) -> Iterator[BinaryIO]:
    if output == "-":
        yield sys.stdout.buffer
        return
    with storage.atomic_write(output) as raw, contextlib.ExitStack() as stack:
        stream: Any = raw
        if output.endswith(".zst"):
            stream = stack.enter_context(zstandard.ZstdCompressor().stream_writer(stream, closefd=False))
        elif output.endswith(".gz"):
            stream = stack.enter_context(gzip.GzipFile(fileobj=stream, mode="wb", mtime=0))
        yield stream

"""Encodes documents into token shards of a fixed size, in a training and a held-out split."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.manifest import ShardEntry, has_manifest
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, result_files, stage_run
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.encode import (
    EncodeContext,
    TokenizerFile,
    choose_engine,
    encode_shard,
    find_lossy_text,
    load_library,
    prepare_worker,
)
from pipelines.stages.tokenize.estimate import Needs, estimate_needs
from pipelines.stages.tokenize.runs import SPLITS, is_intact, runs_of, sum_bins
from pipelines.stages.tokenize.token_shards import (
    META,
    MergeContext,
    cut_files,
    documents_file,
    token_format,
    write_meta,
    write_token_file,
)
from pipelines.tokenizers.formats import TOKENIZER, end_of_text_id, read_tokenizer, vocabulary_size

# Fewer tokens are merged into shards sooner than a worker starts.
_MIN_TOKENS_FOR_WORKERS = 100_000_000
# Documents with many fields besides the text have fewer tokens than their files' size suggests.
_ESTIMATE_TOLERANCE = 4

_NANOGPT_FILES = ("train.bin", "train-documents.parquet", "val.bin", "val-documents.parquet", META)

STAGE = Stage("tokenize", 4, (TOKENIZER, "tokens.json", *_NANOGPT_FILES))


def tokenize(
    config: TokenizeConfig, *, documents: str | Sequence[str], tokenizer: str, output: str, options: RunOptions
) -> Summary:
    """Write the ids of each document, each followed by `<|endoftext|>`, into files of the training and held-out split.

    `documents` is the folder of a stage, or files, folders or globs as `inputs` reads them; `tokenizer` the folder
    of train-bpe, or a tokenizer in another known format. Every shard has `shard_tokens` tokens, the last of a split
    possibly fewer, except that `nanogpt` has one file per split; ids are uint16, or uint32 above 65,536 entries.
    `tokens.json` describes the files. A document is held out by a hash of its cluster, see `split_keys`, never by its
    position. Raises InputError if the tokenizer cannot be read or lacks `<|endoftext|>`, and WebtextError if the ids of
    gigatoken differ from those of `tokenizers`.
    """
    source = inputs.open_configured(documents, config, options, output)
    options = options.for_input(inputs.size_on_disk(source.files))
    with _workers(source, output, options):
        tokenizer_file = TokenizerFile(read_tokenizer(tokenizer), tokenizer)
        library = load_library(tokenizer_file)
        form = token_format(config.format, vocabulary_size(library))
        form.check(config.shard_tokens)
        sha256 = hashlib.sha256(tokenizer_file.data).hexdigest()
        fingerprints = {"documents": source.fingerprint, "tokenizer": sha256}
        with stage_run(STAGE, config, inputs=fingerprints, output=output, options=options, texts=source.files) as run:
            if run.finished:
                return run.finish()
            engine, needs = _prepare(
                config, source, tokenizer=tokenizer_file, token_bytes=form.little_endian.itemsize, run=run
            )
            context = EncodeContext(
                config=config,
                tokenizer=tokenizer_file,
                end_of_text=end_of_text_id(library),
                engine=engine,
                form=form,
                shards=len(source.shards),
                output=run.output,
            )
            encoded = _encode(source, context, run, needs.memory_bytes)
            totals = {
                split: {
                    name: int(sum(entry.counts[f"{split}_{name}"] for entry in encoded))
                    for name in ("tokens", "documents")
                }
                for split in SPLITS
            }
            _check_splits(config, totals, run)
            needs = dataclasses.replace(
                needs,
                tokens=sum(split["tokens"] for split in totals.values()),
                documents=sum(split["documents"] for split in totals.values()),
            )
            needs.check_memory(run.memory_bytes)
            needs.check_output(run.output)
            splits = _write_files(encoded, context, run, needs.memory_bytes)
            if form.split_files:
                run.once("meta", lambda: TaskResult(files=(write_meta(run.output, library),)))
            run.once("dropped", lambda: result_files(encoded))
            description = _describe(context, vocabulary_size(library), sha256)
            data = storage.json_bytes({**description, "totals": totals, "splits": splits})
            run.once("describe", lambda: TaskResult(files=(shards.write_file(run.output, "tokens.json", data),)))
            return run.finish()


def _workers(source: inputs.DocumentInput, output: str, options: RunOptions) -> contextlib.AbstractContextManager[None]:
    """Start the workers of both phases, which import their libraries while the tokenizer is read; none for one task."""
    if len(source.shards) == 1 or has_manifest(output):
        return contextlib.nullcontext()
    return options.executor.persistent_workers(prepare_worker)


def _prepare(
    config: TokenizeConfig, source: inputs.DocumentInput, tokenizer: TokenizerFile, token_bytes: int, run: StageRun
) -> tuple[str, Needs]:
    """Choose the engine, estimate what the run needs, and write the tokenizer; return the first two.

    Raises InputError if a worker lacks memory, or if the output is clearly too large.
    """
    engine = choose_engine(tokenizer, config.engine, run.note)
    if (lossy := find_lossy_text(load_library(tokenizer))) is not None:
        run.note(
            f"{tokenizer.source}: loses text: {lossy[:20]!r} cannot be decoded from its ids; "
            "use a byte-level tokenizer such as GPT-2's to keep all text"
        )
    needs = estimate_needs(source, token_bytes, config.shard_tokens, is_local=storage.is_local(run.output))
    if note := needs.describe_shortage(run.workers, run.memory_bytes):
        run.note(note)
    needs.check_memory(run.memory_bytes)
    needs.check_output(run.output, tolerance=_ESTIMATE_TOLERANCE)
    run.once("tokenizer", lambda: TaskResult(files=(shards.write_file(run.output, TOKENIZER, tokenizer.data),)))
    return engine, needs


def _encode(source: inputs.DocumentInput, context: EncodeContext, run: StageRun, memory_bytes: int) -> list[ShardEntry]:
    def is_current(shard: inputs.DocumentShard) -> bool:
        entry = run.resumed_entry("encode", shard.name)
        runs = runs_of(entry, run.output) if entry else []
        return all(is_intact(one_run, context.form.little_endian, context.end_of_text) for one_run in runs)

    # The only shard gets all cores here as well as in a worker, which would first have to load all libraries.
    return run.map(
        encode_shard,
        source.shards,
        context,
        phase="encode",
        is_current=is_current,
        work=True,
        total=source.records,
        serial=len(source.shards) == 1,
        memory_bytes=memory_bytes,
    )


def _check_splits(config: TokenizeConfig, totals: Mapping[str, Mapping[str, int]], run: StageRun) -> None:
    if totals["held-out"]["documents"] and not totals["train"]["documents"]:
        raise InputError(
            "tokenize: all documents are held out, so none are left to train on; lower --held-out and re-run with "
            "--overwrite, which encodes the documents again"
        )
    if config.held_out and not totals["held-out"]["documents"]:
        run.note(f"no documents are held out: there are too few for a fraction of {config.held_out:g} (--held-out)")
    if config.format == "nanogpt" and not totals["held-out"]["documents"]:
        run.note("no val.bin, which nanoGPT's train.py reads: no documents are held out; use a larger --held-out")


def _write_files(
    encoded: Sequence[ShardEntry], context: EncodeContext, run: StageRun, memory_bytes: int
) -> dict[str, list[dict[str, Any]]]:
    """Merge the runs into the files of tokens; return the description of each in `tokens.json`, by split."""
    config, form = context.config, context.form
    runs = [one_run for entry in encoded for one_run in runs_of(entry, run.output)]
    bins = sum_bins(encoded, run.output, shuffled=config.shuffle)
    files = cut_files(bins, len(runs), form, shuffled=config.shuffle, shard_tokens=config.shard_tokens)
    written = run.map(
        write_token_file,
        files,
        MergeContext(run.output, form, config.shuffle, runs),
        unit="tokens",
        cost=lambda file: file.tokens,
        serial=sum(file.tokens for file in files) < _MIN_TOKENS_FOR_WORKERS,
        memory_bytes=memory_bytes,
    )
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for token_file, entry in zip(files, written, strict=True):
        file = entry.files[0]
        splits[token_file.split].append(
            {
                "name": file.name,
                "tokens": token_file.tokens,
                "documents": int(entry.counts["document_pieces"]),
                "documents_file": documents_file(file.name),
                "size_bytes": file.size_bytes,
                "sha256": file.sha256,
            }
        )
    return splits


def _describe(context: EncodeContext, vocab_size: int, tokenizer_sha256: str) -> dict[str, Any]:
    """Return what `tokens.json` says about all shards."""
    config, form = context.config, context.form
    return {
        "format": form.name,
        "dtype": form.dtype,
        "header_bytes": form.header_bytes,
        "vocab_size": vocab_size,
        "end_of_text": context.end_of_text,
        "tokenizer_sha256": tokenizer_sha256,
        "engine": context.engine,
        "shard_tokens": config.shard_tokens,
        "shuffle": config.shuffle,
        "seed": config.seed,
        "held_out": config.held_out,
    }

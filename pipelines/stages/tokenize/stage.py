"""Encodes documents into token shards of a fixed size, of a training and a held-out split."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tokenizers import Tokenizer

from pipelines.core import inputs, shards, storage
from pipelines.core.errors import InputError
from pipelines.core.estimate import estimate_documents
from pipelines.core.manifest import ShardEntry, has_manifest
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.encode import TOKENIZER_FILE, EncodeTask, encode_shard, prepare_worker
from pipelines.stages.tokenize.encoders import choose_engine, compared_characters, what_is_lost
from pipelines.stages.tokenize.forecast import check_forecast, forecast
from pipelines.stages.tokenize.plan import plan_shards, runs_of
from pipelines.stages.tokenize.runs import SPLITS, is_intact
from pipelines.stages.tokenize.token_shards import (
    ShardTask,
    TokenFormat,
    documents_file,
    token_format,
    write_token_shard,
)
from pipelines.tokenizers.formats import end_of_text_id, parse_tokenizer, read_tokenizer, vocabulary_size

# Fewer tokens are put into shards sooner than a worker has started.
_WORTH_WORKERS_TOKENS = 100_000_000

STAGE = Stage("tokenize", 2, (TOKENIZER_FILE, "tokens.json"))


@dataclasses.dataclass(frozen=True)
class _Vocabulary:
    """The tokenizer of a run: the bytes of its `tokenizer.json` and their hash, and what stands in it."""

    data: bytes
    library: Tokenizer
    source: str
    sha256: str
    size: int
    end_of_text: int


def tokenize(
    config: TokenizeConfig, *, documents: str | Sequence[str], tokenizer: str, output: str, options: RunOptions
) -> Summary:
    """Write `train-N.bin` and `held-out-N.bin`: the ids of each document, and `<|endoftext|>` after each.

    Every shard has `shard_tokens` tokens, the last of a split those that are left; ids are uint16, or uint32 past
    65,536 entries. `tokens.json` describes the files. A document is held out by a hash of its cluster, see
    `split_keys`, never by its place. `tokenizer` is a path, see `read_tokenizer`. Raises InputError where that holds no
    tokenizer, or one without `<|endoftext|>`, and WebtextError where gigatoken does not give the ids of `tokenizers`.
    """
    source = inputs.open_documents(documents, config.text_field)
    with _workers(source, output, options):
        vocabulary = _vocabulary(tokenizer)
        form = token_format(config.format, vocabulary.size)
        form.check(config.shard_tokens)
        fingerprints = {"documents": source.fingerprint, "tokenizer": vocabulary.sha256}
        with stage_run(STAGE, config, fingerprints, output, options) as run:
            if not run.finished:
                _write(config, vocabulary, form, source, run)
            return run.finish()


def _workers(source: inputs.DocumentInput, output: str, options: RunOptions) -> contextlib.AbstractContextManager[None]:
    """Start the workers of both phases, which import their libraries while the tokenizer is read; none for one task."""
    if len(source.shards) == 1 or has_manifest(output):
        return contextlib.nullcontext()
    return options.executor.persistent_workers(prepare_worker)


def _vocabulary(path: str) -> _Vocabulary:
    data = read_tokenizer(path)
    parsed = parse_tokenizer(data, path)
    sha256 = hashlib.sha256(data).hexdigest()
    return _Vocabulary(data, parsed, path, sha256, vocabulary_size(parsed), end_of_text_id(parsed))


def _write(
    config: TokenizeConfig, vocabulary: _Vocabulary, form: TokenFormat, source: inputs.DocumentInput, run: StageRun
) -> None:
    with ThreadPoolExecutor(1) as beside:
        estimating = beside.submit(estimate_documents, source)
        engine, encoder, note = choose_engine(vocabulary.data, vocabulary.library, vocabulary.source, config.engine)
        lost = what_is_lost(vocabulary.library)
    if note:
        run.note(note)
    if lost is not None:
        run.note(
            f"{vocabulary.source}: text is lost: {lost[:20]!r} does not come back from its ids, as with GPT-2's "
            "tokenizer; take a byte-level one if the text matters"
        )
    predicted = forecast(estimating.result(), encoder, form.little_endian.itemsize, config.shard_tokens)
    run.note(predicted.in_words(run.workers))
    check_forecast(predicted, config.shard_tokens, run.output, run.work)
    run.once("tokenizer", lambda: TaskResult(files=(shards.write_file(run.output, TOKENIZER_FILE, vocabulary.data),)))
    encoded = _encode(config, vocabulary, form, source, engine, run)
    _check_splits(config, encoded, run)
    splits = _put_together(config, form, encoded, run)
    about = {
        "format": form.name,
        "dtype": form.dtype,
        "header_bytes": form.header_bytes,
        "vocab_size": vocabulary.size,
        "end_of_text": vocabulary.end_of_text,
        "tokenizer_sha256": vocabulary.sha256,
        "engine": engine,
        "shard_tokens": config.shard_tokens,
        "shuffle": config.shuffle,
        "seed": config.seed,
        "held_out": config.held_out,
        "totals": _totals(encoded),
        "splits": splits,
    }
    run.once("describe", lambda: _describe(about, run.output))


def _put_together(
    config: TokenizeConfig, form: TokenFormat, encoded: Sequence[ShardEntry], run: StageRun
) -> dict[str, list[dict[str, Any]]]:
    """Write the shards from the runs; return what `tokens.json` says of them."""
    tasks = [
        ShardTask(plan, config.shuffle, form, run.output)
        for plan in plan_shards(encoded, run.output, config.shuffle, config.shard_tokens)
    ]
    is_small = sum(task.plan.tokens for task in tasks) < _WORTH_WORKERS_TOKENS
    written = run.map(write_token_shard, tasks, unit="tokens", cost=lambda task: task.plan.tokens, serial=is_small)
    # Written by the first phase, whose other files go away; from here on the manifest vouches for these.
    dropped = [file for entry in encoded for file in entry.files if file.name.startswith("dropped-")]
    run.once("dropped", lambda: TaskResult(files=tuple(dropped)))
    return _splits(tasks, written)


def _encode(
    config: TokenizeConfig,
    vocabulary: _Vocabulary,
    form: TokenFormat,
    source: inputs.DocumentInput,
    engine: str,
    run: StageRun,
) -> list[ShardEntry]:
    tasks = [
        EncodeTask(
            shard=shard,
            held_out=config.held_out,
            shuffle=config.shuffle,
            seed=config.seed,
            dtype=form.dtype,
            end_of_text=vocabulary.end_of_text,
            engine=engine,
            threads=len(source.shards) == 1,
            compared_characters=compared_characters(len(source.shards)),
            tokenizer_sha256=vocabulary.sha256,
            output=run.output,
            work=storage.basename(run.work),
        )
        for shard in source.shards
    ]
    for task in tasks:
        entry = run.resumed_entry("encode", task.name)
        if entry is not None and not all(
            is_intact(each, form.little_endian, vocabulary.end_of_text) for each in runs_of(entry, run.output)
        ):
            run.discard_entry("encode", task.name)
    # The only task has all cores here as well as in a worker, which would first have to load all libraries.
    return run.map(encode_shard, tasks, phase="encode", work=True, total=source.records, serial=len(tasks) == 1)


def _check_splits(config: TokenizeConfig, encoded: Sequence[ShardEntry], run: StageRun) -> None:
    totals = _totals(encoded)
    if any(entry.records_out for entry in encoded) and not totals["train"]["documents"]:
        raise InputError(
            "tokenize: every document is held out, none is left to train on; lower --held-out, then run again "
            "with --overwrite"
        )
    if config.held_out and not totals["held-out"]["documents"]:
        run.note(f"no document is held out: too few for a share of {config.held_out:g} (--held-out)")


def _totals(encoded: Sequence[ShardEntry]) -> dict[str, dict[str, int]]:
    return {
        split: {
            name: int(sum(entry.counts[f"{split}_{name}"] for entry in encoded)) for name in ("tokens", "documents")
        }
        for split in SPLITS
    }


def _splits(tasks: Sequence[ShardTask], written: Sequence[ShardEntry]) -> dict[str, list[dict[str, Any]]]:
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for task, entry in zip(tasks, written, strict=True):
        file = entry.files[0]
        splits[task.plan.split].append(
            {
                "name": file.name,
                "tokens": task.plan.tokens,
                "documents": int(entry.counts["pieces"]),
                "documents_file": documents_file(file.name),
                "size_bytes": file.size_bytes,
                "sha256": file.sha256,
            }
        )
    return splits


def _describe(about: dict[str, Any], output: str) -> TaskResult:
    text = json.dumps(about, indent=1, sort_keys=True) + "\n"
    return TaskResult(files=(shards.write_file(output, "tokens.json", text.encode()),))

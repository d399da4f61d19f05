"""Counts the words of all documents, learns merges from the counts, then writes, checks and examines the tokenizer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.bpe.merges import Merges
from pipelines.engine import machine
from pipelines.engine.machine import Timer
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.records import inputs, shards
from pipelines.records.estimate import estimate_documents
from pipelines.stages.train_bpe import estimate, learning
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.counts import Limits, Words, arrange_words, read_words
from pipelines.stages.train_bpe.counts_files import CountsInput, open_counts
from pipelines.stages.train_bpe.files import FILES, TRANSFORMERS, check_written, token_bytes_of, tokenizer_files
from pipelines.stages.train_bpe.gathering import Counted, add_up_counts, count_documents
from pipelines.stages.train_bpe.sample import read_sample, texts_to_compare
from pipelines.stages.train_bpe.token_tally import Reference, require_comparable
from pipelines.tokenizers.formats import TOKENIZER, read_tokenizer

_REPORT, _PAGE, _TIMING = "report.json", "report.html", "timing.json"
STAGE = Stage("train-bpe", 2, (*FILES, TRANSFORMERS, _REPORT, _PAGE, _TIMING))


def train_bpe(
    config: TrainBpeConfig,
    *,
    documents: str | Sequence[str],
    output: str,
    options: RunOptions,
    counts: Sequence[str] = (),
    compare: str | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Summary:
    """Write a tokenizer folder: the tokenizer in the format of each library, the counts of all words, a report card.

    `documents` is the folder of a stage, or files, folders or globs as `inputs` reads them. With `counts` (folders
    of this stage, or Parquet files of `word` and `count`), these are added up and no document is read. `compare` is a
    tokenizer to compare with in the report. Ids follow GPT-2: the 256 bytes in its order, the merges, `<|endoftext|>`
    last. `limits` bounds memory and does not change the tokenizer. A text that cannot fill the vocabulary gives a
    smaller one, with a note. Raises InputError if there is no pair to merge, or if memory is too small. Paper, section
    2.2.
    """
    _check_option_conflicts(config, counts)
    reference = _read_reference(compare) if compare else None
    source = open_counts(counts, config.held_out) if counts else inputs.open_configured(documents, config, options)
    fingerprints = {"counts" if counts else "documents": source.fingerprint}
    if reference:
        fingerprints["compare"] = hashlib.sha256(reference.tokenizer_json).hexdigest()
    with stage_run(STAGE, config, inputs=fingerprints, output=output, options=options) as run:
        if not run.finished:
            timer = Timer()
            with timer.section("counting"):
                counted = _count(config, source, run, limits)
            # Without a word there is nothing to train on; the summary will say what was dropped.
            if counted.words and not config.count_only:
                _train(config, source, counted, reference, run=run, timer=timer)
        summary = run.finish()
        if not config.count_only and not storage.exists(storage.join(output, _PAGE)):
            _write_page(output)
        return summary


def _check_option_conflicts(config: TrainBpeConfig, counts: Sequence[str]) -> None:
    if counts and config.max_bytes is not None:
        raise UsageError("--max-bytes samples documents, but --counts reads none; count with --max-bytes instead")
    if config.engine == "tokenizers" and (counts or config.count_only or config.min_word_count > 1):
        raise UsageError(
            "--engine tokenizers reads the documents itself and trains on all their words: "
            "omit --counts, --count-only and --min-word-count"
        )


def _read_reference(path: str) -> Reference:
    """Read the tokenizer to compare with; raise InputError now, before any work, if the report could not show it."""
    reference = Reference(storage.basename(path.rstrip("/")), read_tokenizer(path))
    try:
        require_comparable(reference)
    except InputError as error:
        raise InputError(f"--compare {path}: {error}; use another tokenizer, or omit --compare") from error
    return reference


def _count(
    config: TrainBpeConfig, source: inputs.DocumentInput | CountsInput, run: StageRun, limits: Limits
) -> Counted:
    """Collect the counts; first note what a large input needs, or raise InputError if memory is surely too small."""
    available = machine.available_memory_bytes()
    if isinstance(source, CountsInput):
        if not config.count_only and source.words >= limits.large_input_words:
            line = estimate.describe_counts(source.words, source.word_bytes, config.vocab_size, available)
            run.note(f"train-bpe: {line}")
            if config.min_word_count == 1:
                estimate.check_counts(source.distinct_words, source.distinct_word_bytes, config.vocab_size, available)
        return add_up_counts(source, run, limits)
    memory_bytes = None
    if inputs.size_on_disk(source.files) >= limits.large_input_bytes:
        expected = estimate.estimate_training(estimate_documents(source), config, run.workers, available)
        if expected is not None:
            run.note(f"train-bpe: {expected.describe()}")
            expected.check(run.memory_bytes)
            memory_bytes = expected.counting_bytes // expected.workers
    return count_documents(config, source, run, limits, memory_bytes)


@dataclasses.dataclass(frozen=True)
class _CountedWords:
    """The counted words as the trainer and the report card read them."""

    config: TrainBpeConfig
    counted: Counted

    def batches(self, min_count: int = 1) -> Iterator[pa.RecordBatch]:
        """Yield batches of `word`, `count` and `held_out`; see `read_words`."""
        return read_words(self.counted.paths, self.config.train_on, min_count)

    def to_train_on(self) -> Words:
        """Return the words as the trainer takes them, which uses them up."""
        batches = self.batches(self.config.min_word_count)
        return arrange_words(batches, self.counted.words, self.counted.word_bytes)


def _train(
    config: TrainBpeConfig,
    source: inputs.DocumentInput | CountsInput,
    counted: Counted,
    reference: Reference | None,
    *,
    run: StageRun,
    timer: Timer,
) -> None:
    words = _CountedWords(config, counted)

    def learn() -> TaskResult:
        _check_memory(config, counted, run)
        if config.engine == "tokenizers" and isinstance(source, inputs.DocumentInput):
            texts = learning.texts_to_train_on(config, source, counted.sampled_below)
            merges = learning.learn_with_library(config, texts, words.to_train_on())
        else:
            merges = learning.learn_from_words(config, words.to_train_on())
        return learning.write_merges(run.output, merges, config)

    with timer.section("merging"):
        run.once("learn", learn, work=True, total=learning.max_merges(config), unit="merges")
    merges = learning.read_merges(run.output)
    entries = learning.BYTES + len(merges.left) + 1
    ended = learning.why_it_ended(config, len(merges.left))
    if entries < config.vocab_size:
        run.note(f"the text fills only {entries:,} of the {config.vocab_size:,} entries: {ended}")
    sample = read_sample(counted.samples)
    with timer.section("writing"):
        texts = texts_to_compare(sample, words.batches())
        run.once("files", lambda: _write_files(run.output, merges, texts))
    with timer.section("examining"):
        run.once("card", lambda: _write_card(run.output, words, merges=merges, sample=sample, reference=reference))
    timing = {**timer.figures(), "engine": config.engine, "ended": ended, "options": _changed_options(config)}
    if counted.text_bytes:
        timing["text_bytes"] = counted.text_bytes
    storage.write_json(storage.join(run.output, _TIMING), timing)


def _check_memory(config: TrainBpeConfig, counted: Counted, run: StageRun) -> None:
    repeated = (counted.repeated_words, counted.repeated_word_bytes)
    words, symbols = (counted.words, counted.word_bytes) if config.min_word_count == 1 else repeated
    estimate.check_distinct_words(
        words,
        symbols,
        repeated=repeated,
        config=config,
        counts=storage.join(run.output, "counts-*.parquet"),
        available_bytes=machine.available_memory_bytes(),
    )


def _changed_options(config: TrainBpeConfig) -> str:
    """Return the options that differ from their defaults."""
    values = [(field.name, getattr(config, field.name), field.default) for field in dataclasses.fields(config)]
    changed = [f"--{name.replace('_', '-')} {value}" for name, value, default in values if value != default]
    return " ".join(changed) or "none"


def _write_files(output: str, merges: Merges, texts: Sequence[str]) -> TaskResult:
    contents = tokenizer_files(learning.pairs_of(merges))
    files = [shards.write_file(output, name, data) for name, data in contents.items()]
    check_written(output, texts)
    return TaskResult(counts={"vocabulary_size": learning.BYTES + len(merges.left) + 1}, files=tuple(files))


def _write_card(
    output: str, words: _CountedWords, merges: Merges, sample: pa.Table, reference: Reference | None
) -> TaskResult:
    from pipelines.stages.train_bpe.report_card import make_card

    config = words.config
    card = make_card(
        tokens=token_bytes_of(learning.pairs_of(merges)),
        merges=merges,
        words=words.batches,
        trained_on=words.to_train_on,
        sample=sample,
        tokenizer_json=storage.read_bytes(storage.join(output, TOKENIZER)),
        held_out_was_trained_on=config.train_on == "all",
        reference=reference,
        rare_below=config.rare,
        threads=True,
    )
    verification = card["verification"]
    if config.engine == "webtext" and verification["right"] != verification["checked"]:
        raise WebtextError(
            f"train-bpe: only {verification['right']} of {verification['checked']} merges that were counted again are "
            "right; this is a bug in webtext, please report it"
        )
    data = (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode()
    bytes_per_token = card["corpus"]["bytes_per_token"]
    counts = {} if bytes_per_token is None else {"bytes_per_token": round(bytes_per_token, 4)}
    return TaskResult(counts=counts, files=(shards.write_file(output, _REPORT, data),))


def report_card(output: str) -> dict[str, Any]:
    """Return the report card of a finished tokenizer folder, with the time and memory of the run if known."""
    card: dict[str, Any] = storage.read_json(storage.join(output, _REPORT))
    try:
        timing = storage.read_json(storage.join(output, _TIMING))
    except InputError:  # not part of the result, so it may be missing or damaged
        timing = {}
    return {**card, "run": timing if isinstance(timing, dict) else {}}


def _write_page(output: str) -> None:
    """Write the report as a page; with the time of the run, so like `timing.json` it is not part of the result."""
    from pipelines.reports.tokenizer import render_tokenizer_report

    storage.write_bytes(storage.join(output, _PAGE), render_tokenizer_report(report_card(output)).encode())

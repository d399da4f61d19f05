"""Counts the words of all documents, learns the merges from the counts, then writes and examines the tokenizer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines.core import inputs, shards, storage
from pipelines.core.errors import InputError, UsageError, WebtextError
from pipelines.core.estimate import estimate_documents
from pipelines.core.machine import Timer
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.stages.train_bpe import estimate, learning
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.counts import Words, counted_words, words_to_train_on
from pipelines.stages.train_bpe.counts_files import CountsInput, open_counts
from pipelines.stages.train_bpe.files import FILES, TRANSFORMERS, check_written, tokenizer_files
from pipelines.stages.train_bpe.gathering import Counted, count_documents, take_up_counts
from pipelines.stages.train_bpe.sample import read_sample, texts_to_compare
from pipelines.stages.train_bpe.token_tally import Reference, require_comparable
from pipelines.tokenizers.formats import read_tokenizer

_TOKENIZER, _REPORT, _PAGE, _TIMING = "tokenizer.json", "report.json", "report.html", "timing.json"
STAGE = Stage("train-bpe", 2, (*FILES, TRANSFORMERS, _REPORT, _PAGE, _TIMING))
_MERGES = "merges.parquet"
# An input that is smaller takes seconds, and hardly any memory.
_LARGE_INPUT_BYTES = 16 << 20
_LARGE_INPUT_WORDS = 1_000_000


def train_bpe(
    config: TrainBpeConfig,
    *,
    documents: str | Sequence[str],
    output: str,
    options: RunOptions,
    counts: Sequence[str] = (),
    compare: str | None = None,
) -> Summary:
    """Write a tokenizer folder: the counts of all words, one tokenizer in the form of each library, and a report card.

    Ids are those of GPT-2: the 256 bytes in its order, the merges, `<|endoftext|>` last. With `counts`, folders of this
    stage or Parquet files of `word` and `count`, those are added up, and no document is read. `compare` is a tokenizer
    to show beside ours on the card. A text that cannot fill the vocabulary gives a smaller one, with a note. Raises
    InputError where not one pair can be merged, or where memory would not do. Paper, section 2.2.
    """
    _refuse_what_does_not_go_together(config, counts)
    reference = _reference(compare) if compare else None
    counted_before = open_counts(counts, config.held_out) if counts else None
    source = None if counts else inputs.open_documents(documents, config.text_field)
    read = {
        "documents": source.fingerprint if source else None,
        "counts": counted_before.fingerprint if counted_before else None,
        "compare": hashlib.sha256(reference.tokenizer_json).hexdigest() if reference else None,
    }
    fingerprints = {name: fingerprint for name, fingerprint in read.items() if fingerprint is not None}
    with stage_run(STAGE, config, fingerprints, output, options) as run:
        if not run.finished:
            spent = Timer()
            with spent.section("counting"):
                counted = _count(config, source or counted_before, run)
            # Without a word there is nothing to train on; what became of the documents is said at the end.
            if counted.words and not config.count_only:
                _train(config, source, counted, reference, run, spent)
        summary = run.finish()
        if not config.count_only and not storage.exists(storage.join(output, _PAGE)):
            _write_page(output)
        return summary


def _reference(path: str) -> Reference:
    """Read the tokenizer to compare with; raise InputError now, before any work, where the card could not show it."""
    reference = Reference(storage.basename(path.rstrip("/")), read_tokenizer(path))
    try:
        require_comparable(reference)
    except InputError as error:
        raise InputError(f"--compare {path}: {error}; name another tokenizer, or leave out --compare") from error
    return reference


def _refuse_what_does_not_go_together(config: TrainBpeConfig, counts: Sequence[str]) -> None:
    if counts and config.max_bytes is not None:
        raise UsageError("--max-bytes chooses documents, and --counts reads none; count with --max-bytes instead")
    if config.engine == "tokenizers" and (counts or config.count_only or config.min_word_count > 1):
        raise UsageError(
            "--engine tokenizers reads the documents itself, and trains on all their words: "
            "leave out --counts, --count-only and --min-word-count"
        )


def _count(config: TrainBpeConfig, source: inputs.DocumentInput | CountsInput | None, run: StageRun) -> Counted:
    assert source is not None, "either documents or counts are given"
    if isinstance(source, CountsInput):
        _say_of_counts_beforehand(config, source, run)
        return take_up_counts(source, run)
    _say_beforehand(config, source, run)
    return count_documents(config, source, run)


def _say_of_counts_beforehand(config: TrainBpeConfig, source: CountsInput, run: StageRun) -> None:
    """Note what many words will take; raise InputError where memory is surely too small for them."""
    if config.count_only or source.words < _LARGE_INPUT_WORDS:
        return
    run.note(f"train-bpe: {estimate.describe_counts(source.words, source.word_bytes, config.vocab_size)}")
    if config.min_word_count == 1:
        estimate.refuse_counts(source.distinct_words, source.distinct_word_bytes, config.vocab_size)


def _say_beforehand(config: TrainBpeConfig, source: inputs.DocumentInput, run: StageRun) -> None:
    """Note what a large input will take; raise InputError where memory is surely too small for it."""
    if inputs.size_on_disk(source.files) < _LARGE_INPUT_BYTES:
        return
    prediction = estimate.predict(
        estimate_documents(source),
        run.workers,
        config.vocab_size,
        min_word_count=config.min_word_count,
        max_bytes=config.max_bytes,
        engine=config.engine,
    )
    if prediction is not None:
        run.note(f"train-bpe: {estimate.describe(prediction)}")
        estimate.refuse_what_cannot_fit(prediction)


def _require_memory(config: TrainBpeConfig, counted: Counted, run: StageRun) -> None:
    repeated = (counted.repeated_words, counted.repeated_word_bytes)
    words, word_bytes = (counted.words, counted.word_bytes) if config.min_word_count == 1 else repeated
    kept = storage.join(run.output, "counts-*.parquet")
    estimate.require_memory(words, word_bytes, config.vocab_size, kept, without_rare=repeated, engine=config.engine)


def _train(
    config: TrainBpeConfig,
    source: inputs.DocumentInput | None,
    counted: Counted,
    reference: Reference | None,
    run: StageRun,
    spent: Timer,
) -> None:
    work_file = f"{storage.basename(run.work)}/{_MERGES}"

    def words(least: int = 1) -> Iterator[pa.RecordBatch]:
        return counted_words(run.output, counted.files, config.train_on, least)

    def trained_on() -> Words:
        return words_to_train_on(words(config.min_word_count), counted.words, counted.word_bytes)

    def learn() -> TaskResult:
        _require_memory(config, counted, run)
        laid_out = trained_on()
        if config.engine == "tokenizers" and source is not None:
            below = counted.sampled_below
            return learning.learn_by_library(config, source, below, laid_out, run.output, work_file)
        return learning.learn_from_words(config, laid_out, run.output, work_file)

    with spent.section("merging"):
        most = config.vocab_size - learning.BYTES - 1
        merges = int(run.once("learn", learn, work=True, total=most, unit="merges").counts["merges"])
    ended = learning.why_it_ended(config, merges)
    if merges < most:
        run.note(f"the text fills only {merges + learning.BYTES + 1:,} of the {config.vocab_size:,} entries: {ended}")
    sample = read_sample(counted.samples)
    with spent.section("writing"):
        run.once("files", lambda: _write_files(run.output, work_file, texts_to_compare(sample, words())))
    with spent.section("examining"):
        run.once("card", lambda: _write_card(config, words, trained_on, sample, reference, run.output, work_file))
    read = {"text_bytes": counted.text_bytes} if counted.text_bytes else {}
    about = {**spent.figures(), **read, "engine": config.engine, "ended": ended, "options": _options(config)}
    storage.write_json(storage.join(run.output, _TIMING), about)


def _options(config: TrainBpeConfig) -> str:
    """Return the options that are not as they are by default."""
    given = [(field.name, getattr(config, field.name), field.default) for field in dataclasses.fields(config)]
    changed = [f"--{name.replace('_', '-')} {value}" for name, value, default in given if value != default]
    return " ".join(changed) or "none"


def _write_files(output: str, work_file: str, texts: Sequence[str]) -> TaskResult:
    merges = learning.read_merges(output, work_file)
    tokens = learning.token_bytes_of(merges)
    pairs = list(zip(merges.left.tolist(), merges.right.tolist(), strict=True))
    written = [shards.write_file(output, name, data) for name, data in tokenizer_files(tokens, pairs).items()]
    check_written(output, texts)
    return TaskResult(counts={"vocabulary_size": len(tokens) + 1}, files=tuple(written))


def _write_card(
    config: TrainBpeConfig,
    words: Callable[[], Iterator[pa.RecordBatch]],
    trained_on: Callable[[], Words],
    sample: pa.Table,
    reference: Reference | None,
    output: str,
    work_file: str,
) -> TaskResult:
    from pipelines.stages.train_bpe.report_card import make_card

    merges = learning.read_merges(output, work_file)
    card = make_card(
        tokens=learning.token_bytes_of(merges),
        merges=merges,
        words=words,
        trained_on=trained_on,
        sample=sample,
        tokenizer_json=storage.read_bytes(storage.join(output, _TOKENIZER)),
        held_out_was_trained_on=config.train_on == "all",
        reference=reference,
        rare_below=config.rare,
        threads=True,
    )
    checked = card["verification"]
    if config.engine == "webtext" and checked["right"] != checked["checked"]:
        raise WebtextError(
            f"train-bpe: of {checked['checked']} merges that were counted anew only {checked['right']} are right; "
            "this is a bug in webtext, please report it"
        )
    data = (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode()
    bytes_per_token = card["corpus"]["bytes_per_token"]
    counts = {} if bytes_per_token is None else {"bytes_per_token": round(bytes_per_token, 4)}
    return TaskResult(counts=counts, files=(shards.write_file(output, _REPORT, data),))


def report_card(output: str) -> dict[str, Any]:
    """Return the report card of a finished tokenizer folder, with what the run took where that is known."""
    card: dict[str, Any] = storage.read_json(storage.join(output, _REPORT))
    return {**card, "run": _timing(storage.join(output, _TIMING))}


def _timing(path: str) -> dict[str, Any]:
    """Return what a run took; nothing where that is missing or damaged, since it is no part of the result."""
    try:
        timing = storage.read_json(path)
    except InputError:
        return {}
    return timing if isinstance(timing, dict) else {}


def _write_page(output: str) -> None:
    """Write the card as a page. It says how long the run took, so it is no part of the result; nor is `timing.json`."""
    from pipelines.reports.tokenizer import render_tokenizer_report

    storage.write_bytes(storage.join(output, _PAGE), render_tokenizer_report(report_card(output)).encode())

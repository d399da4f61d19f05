"""Counts the words of all documents, learns merges from the counts, then writes the tokenizer and a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pipelines import storage
from pipelines.algorithms.bpe.merges import Merges
from pipelines.engine import machine
from pipelines.engine.machine import Timer
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.records import inputs, shards
from pipelines.stages.train_bpe import learning
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.count_tables import CountedWords, GivenCounts, add_up_given, open_counts
from pipelines.stages.train_bpe.counting import count_documents
from pipelines.stages.train_bpe.report import TokenizerUse, make_report, read_reference
from pipelines.stages.train_bpe.sample import read_sample
from pipelines.tokenizers.formats import FILES, TOKENIZER, load_document_tokenizer, token_bytes_of, tokenizer_files

_REPORT, _PAGE, _TIMING = "report.json", "report.html", "timing.json"
STAGE = Stage("train-bpe", 5, (*FILES, _REPORT, _PAGE, _TIMING))

# The written tokenizer must decode the beginnings of some sampled texts.
_CHECKED_TEXTS, _CHECKED_CHARACTERS = 64, 2048


def train_bpe(
    config: TrainBpeConfig,
    *,
    documents: str | Sequence[str],
    output: str,
    options: RunOptions,
    counts: Sequence[str] = (),
    compare: str | None = None,
) -> Summary:
    """Write a tokenizer folder: the tokenizer in the format of each library, the counts of all words, a report.

    `documents` is the folder of a stage, or files, folders or globs as `inputs` reads them. With `counts` (folders
    of this stage, or Parquet files of `word` and `count`), these are added up and no document is read. `compare` is a
    tokenizer to compare with in the report. Ids follow GPT-2: the 256 bytes in its order, the merges, `<|endoftext|>`
    last. A text that cannot fill the vocabulary gives a smaller one, with a note. Raises InputError if there is no pair
    to merge, or if memory is too small. Paper, section 2.2.
    """
    _check_option_conflicts(config, counts)
    reference = read_reference(compare) if compare else None
    source = (
        open_counts(counts, config.held_out) if counts else inputs.open_configured(documents, config, options, output)
    )
    fingerprints = {"counts" if counts else "documents": source.fingerprint}
    if reference:
        fingerprints["compare"] = reference.fingerprint
    with stage_run(STAGE, config, inputs=fingerprints, output=output, options=options, texts=source.files) as run:
        if not run.finished:
            timer = Timer()
            with timer.section("counting"):
                if isinstance(source, GivenCounts):
                    words = add_up_given(source, run)
                else:
                    words = count_documents(config, source, run)
            # Without a word there is nothing to train on; the summary will say what was dropped.
            if words.distinct_words and not config.count_only:
                _train(config, words, reference, run=run, timer=timer)
        summary = run.finish()
        if not config.count_only and not storage.exists(storage.join(output, _PAGE)):
            # With the time of the run, so like `timing.json` it is not part of the result.
            from pipelines.reports.render import write_page
            from pipelines.reports.tokenizer import render_tokenizer_report

            write_page(output, _PAGE, render_tokenizer_report(read_report(output)))
        return summary


def _check_option_conflicts(config: TrainBpeConfig, counts: Sequence[str]) -> None:
    if counts and config.sample_bytes is not None:
        raise UsageError("--sample-bytes samples documents, but --counts reads none; count with --sample-bytes instead")


def _train(
    config: TrainBpeConfig, words: CountedWords, reference: TokenizerUse | None, *, run: StageRun, timer: Timer
) -> None:
    def learn() -> TaskResult:
        learning.check_merging_memory(config, words, run.output, machine.available_memory_bytes())
        merges = learning.learn(config, words.arrange(config.train_on, config.min_word_count))
        return learning.write_merges(run.output, merges, config)

    with timer.section("merging"):
        run.once("learn", learn, work=True, total=learning.max_merges(config), unit="merges")
    merges = learning.read_merges(run.output)
    entries = learning.BYTES + len(merges.left) + 1
    stopped = learning.why_it_stopped(config, len(merges.left))
    if entries < config.vocab_size:
        run.note(f"vocabulary has only {entries:,} of {config.vocab_size:,} entries: {stopped}")
    sample = read_sample(words.samples)

    def report() -> TaskResult:
        figures = make_report(
            tokens=token_bytes_of(learning.pairs_of(merges)),
            merges=merges,
            words=words.read(config.train_on),
            sample=sample,
            tokenizer_json=storage.read_bytes(storage.join(run.output, TOKENIZER)),
            held_out_was_trained_on=config.train_on == "all",
            reference=reference,
            rare_below=config.rare,
        )
        data = (json.dumps(figures, indent=1, ensure_ascii=False) + "\n").encode()
        bytes_per_token = figures["tokenizer"]["bytes_per_token"]
        counts = {} if bytes_per_token is None else {"bytes_per_token": round(bytes_per_token, 4)}
        return TaskResult(counts=counts, files=(shards.write_file(run.output, _REPORT, data),))

    with timer.section("writing"):
        texts = [text[:_CHECKED_CHARACTERS] for text in sample.column("text")[:_CHECKED_TEXTS].to_pylist()]
        run.once("files", lambda: _write_files(run.output, merges, texts))
    with timer.section("report"):
        run.once("report", report)
    timing = {**timer.figures(), "stopped": stopped}
    storage.write_json(storage.join(run.output, _TIMING), timing)


def _write_files(output: str, merges: Merges, texts: Sequence[str]) -> TaskResult:
    contents = tokenizer_files(learning.pairs_of(merges))
    files = [shards.write_file(output, name, data) for name, data in contents.items()]
    check_written(output, texts)
    return TaskResult(counts={"vocabulary_size": learning.BYTES + len(merges.left) + 1}, files=tuple(files))


def check_written(folder: str, texts: Sequence[str]) -> None:
    """Raise WebtextError unless the written tokenizer decodes the ids of these texts to the texts."""
    path = storage.join(folder, TOKENIZER)
    tokenizer = load_document_tokenizer(storage.read_bytes(path), path)
    for encoding, text in zip(tokenizer.encode_batch_fast(list(texts), add_special_tokens=False), texts, strict=True):
        if tokenizer.decode(encoding.ids, skip_special_tokens=False) != text:
            raise WebtextError(
                f"{path}: does not decode the ids of {text[:60]!r} to this text; "
                "this is a bug in webtext, please report it"
            )


def read_report(output: str) -> dict[str, Any]:
    """Return the report of a finished tokenizer folder, with the time and memory of the run if known."""
    report: dict[str, Any] = storage.read_json(storage.join(output, _REPORT))
    try:
        timing = storage.read_json(storage.join(output, _TIMING))
    except InputError:  # not part of the result, so it may be missing or damaged
        timing = {}
    return {**report, "run": timing if isinstance(timing, dict) else {}}

"""The examples by which models are compared: held-out documents of each corpus, neutral texts, and tasks.

Documents are divided into pieces of about one context, so that the cost of a set, its error over examples and the
exclusion of overlapping examples do not depend on the length of its documents.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.index import build_index
from pipelines.algorithms.ngrams.overlap_counts import count_examples
from pipelines.comparison.config import CompareConfig, HeldOutConfig
from pipelines.comparison.corpora import Documents, held_out_name
from pipelines.engine.journal import WORK
from pipelines.engine.run import RunOptions, Stage, TaskResult, stage_run
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.definitions import PAPER, TaskInput, parse_tasks, read_task
from pipelines.evaluation.stage import build_task
from pipelines.evaluation.task import Encoder, Example
from pipelines.model.training.recipe import Choice
from pipelines.records import inputs, shards
from pipelines.records.document_split import document_keys, hash_key, hash_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.records.schemas import make_schema
from pipelines.records.tally import Tally, read_tallies
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.report import HITS
from pipelines.stages.overlap_report.stage import overlap_report

_COUNTS, _SETS, _EXAMPLES = "counts.json", "sets/", "examples.parquet"
STAGE = Stage("compare-texts", 1, (_COUNTS, _SETS))
# Kinds of tasks with one score per example, which is not a text that the model writes.
TASK_KINDS = ("choice", "last-word")
_CHARACTERS_PER_TOKEN = 4
_SPARE, _MOST_HELD_OUT = 4, 0.05
# What is left of a set after most of it was excluded is no sample of it, and may be held-out documents of a corpus.
_MIN_USED = 0.5
# An example whose share of n-grams in a corpus is above this is contained in it. On the examples of LAMBADA above 15%,
# GPT-2 is better by 2 perplexity (paper, section 4).
MAX_OVERLAP = 0.15
# As in training, a text begins with <|endoftext|>.
_PERPLEXITY = {"unit": "byte", "document": "record", "last_window": "full"}
_SET_SCHEMA = make_schema(cluster="string", text="string")
_EXAMPLE_SCHEMA = make_schema(set="string", text="string")

Flags = npt.NDArray[np.bool_]


class ExampleSet(NamedTuple):
    """Examples of a kind: held-out (documents of `corpus`), text or task."""

    name: str
    kind: str
    task: TaskInput
    texts: list[str]
    clusters: list[str]
    corpus: str | None = None

    def decides(self, is_used: Flags) -> bool:
        """Return whether the used examples say which corpus is better; held-out documents favor their own."""
        return self.kind != "held-out" and bool(is_used.mean() >= _MIN_USED)


class ReadContext(NamedTuple):
    """Where pieces are written, their characters, the most of a set, and by set what is held out (None: a text)."""

    output: str
    piece: int
    limit: int
    held_out: Mapping[str, float | None]


def with_held_out(config: CompareConfig, corpora: Sequence[Documents], context: int) -> CompareConfig:
    """Return the config with a fraction to hold out: of the smallest corpus four times what is compared, at most 5%.

    Every training ends with the loss of all held-out tokens, which for 5% of a large corpus would take longer than it.
    """
    needed = _SPARE * config.limit * context * _CHARACTERS_PER_TOKEN
    size_bytes = min(inputs.estimate_text_bytes(corpus.source.files) for corpus in corpora)
    share = config.held_out or min(_MOST_HELD_OUT, float(f"{needed / max(1, size_bytes):.1g}"))
    return dataclasses.replace(config, held_out=share)


def read_texts(
    config: CompareConfig, corpora: Sequence[Documents], texts: Sequence[Documents], context: int, output: str,
    options: RunOptions,
) -> dict[str, dict[str, int]]:  # fmt: skip
    """Write pieces of the held-out documents of each corpus, and of each text: at most `limit`, chosen by a hash.

    Return the numbers of `documents`, `held_out` ones and `text_bytes` of each corpus. Raises InputError for one
    without held-out documents.
    """
    shares = {held_out_name(corpus.name): config.held_out for corpus in corpora} | {text.name: None for text in texts}
    sources = {name: documents.source for name, documents in zip(shares, (*corpora, *texts), strict=True)}
    piece = context * _CHARACTERS_PER_TOKEN
    content = json.dumps([config.limit, piece, {name: source.fingerprint for name, source in sources.items()}])
    # Quickly read again: with one more corpus or text, everything else is kept.
    options = dataclasses.replace(options, follow_inputs=("content",))
    stage_config = HeldOutConfig(**config.shared())
    with stage_run(STAGE, stage_config, inputs={"content": content}, output=output, options=options) as run:
        if not run.finished:
            items = [(name, shard) for name, source in sources.items() for shard in source.shards]
            entries = run.map(
                read_shard,
                items,
                ReadContext(run.output, piece, config.limit, shares),
                name=lambda item: f"{item[0]}-{item[1].index:05d}",
                phase="read",
                work=True,
            )
            paths = [storage.join(run.output, entry.files[0].name) for entry in entries]
            run.once("sets", lambda: _write_sets(read_tallies(paths), shares, run.output))
        run.finish()
    counts = storage.read_json(storage.join(output, _COUNTS))
    return {corpus.name: counts[held_out_name(corpus.name)] for corpus in corpora}


def read_shard(item: tuple[str, inputs.DocumentShard], context: ReadContext) -> TaskResult:
    """Count the documents of a shard, and sample pieces of those that are held out."""
    name, shard = item
    share = context.held_out[name]
    tally, drops = Tally(), Drops()
    counts, sample = tally.counter(name), tally.sample(name, context.limit)
    # White space at the end of a piece begins the next one; a longer word is divided.
    pattern = re.compile(rf"(?s).{{1,{context.piece}}}(?=\s|\Z)|.{{1,{context.piece}}}")
    for batch in inputs.read_documents(shard, drops):
        keys, texts = document_keys(batch, shard), batch.column("text")
        groups = split_keys(batch, keys)
        is_read = np.ones(len(keys), np.bool_) if share is None else held_out_mask(groups, share)
        counts["documents"] += len(keys)
        counts["held_out"] += int(is_read.sum())
        counts["text_bytes"] += pc.sum(pc.binary_length(texts)).as_py() or 0
        for row in np.flatnonzero(is_read).tolist():
            document, cluster = hash_keys([keys[row], groups[row]], "compare").tolist()
            pieces = [piece for piece in pattern.findall(texts[row].as_py()) if not piece.isspace()]
            for number, piece in enumerate(pieces):
                if sample.accepts(hash := hash_key(f"{document}:{number}", "compare")):
                    sample.add(hash, [f"{cluster:016x}", piece])
        progress.advance(len(keys))
    path = storage.join(WORK, f"{name}-{shard.index:05d}.json")
    return drops.task_result(counts["documents"], (tally.write(context.output, path),))


def _write_sets(tally: Tally, shares: Mapping[str, float | None], output: str) -> TaskResult:
    """Write the pieces of each set."""
    files = [shards.write_file(output, _COUNTS, storage.json_bytes(tally.counts))]
    for name, share in shares.items():
        if not (pieces := tally.sample(name, 0).pairs()):
            remedy = "name another --text" if share is None else "raise --held-out, or use more text"
            raise InputError(f"{name}: no document with text to compare models by; {remedy}")
        is_one_document = len({cluster for _, (cluster, _) in pieces}) == 1
        with shards.write_shard(output, f"{_SETS}{name}.parquet", _SET_SCHEMA) as shard:
            for key, (cluster, text) in pieces:
                shard.write({"cluster": f"{key:016x}" if is_one_document else cluster, "text": text})
        files.append(shard.entry)
    return TaskResult(files=tuple(files))


def choose_tasks(values: Sequence[str]) -> list[TaskInput]:
    """Return the tasks of `--task`; raise UsageError for a kind that has no score per example."""
    tasks = parse_tasks(values, PAPER) if values else []
    for task in tasks:
        if task.definition.kind not in TASK_KINDS:
            remedy = "use --text for texts; tasks are of kind " + " or ".join(TASK_KINDS)
            raise UsageError(f"--task {task.name}: is of kind {task.definition.kind}; {remedy}")
    return tasks


def open_sets(
    corpora: Sequence[Documents], texts: Sequence[Documents], tasks: Sequence[TaskInput], folder: str, encoder: Encoder,
    limit: int,
) -> list[ExampleSet]:  # fmt: skip
    """Return all sets: the pieces that `read_texts` wrote to a folder, and the examples of tasks as texts."""
    known: list[tuple[str, str, str | None]] = [(held_out_name(one.name), "held-out", one.name) for one in corpora]
    sets = []
    for name, kind, corpus in (*known, *((text.name, "text", None) for text in texts)):
        path = storage.join(folder, f"{_SETS}{name}.parquet")
        rows = list(shards.read_rows(path))
        columns = [row["text"] for row in rows], [row["cluster"] for row in rows]
        sets.append(ExampleSet(name, kind, _perplexity(name, path), *columns, corpus))
    for task in tasks:
        examples = list(itertools.islice(build_task(task, encoder, limit).examples(), limit))
        columns = [_text_of(example, encoder) for example in examples], [example.cluster for example in examples]
        sets.append(ExampleSet(task.label, "task", task, *columns))
    return sets


def _perplexity(name: str, path: str) -> TaskInput:
    choices = {key: Choice(value, "chosen", "see `webtext compare`") for key, value in _PERPLEXITY.items()}
    definition = dataclasses.replace(read_task("webtext"), name=name, title=name, choices=choices, paper={})
    return TaskInput(definition, PAPER, (path,))


def _text_of(example: Example, encoder: Encoder) -> str:
    """Return an example with the right answer, or if that is not among the texts with the first one."""
    parts = [
        (encoder.decode(request.prefix), encoder.decode(request.continuations[0]))
        for request in example.fitted.requests
    ]
    right = (pair for pair in parts if pair[1].strip() == example.gold or pair[0].endswith(example.gold))
    return "".join(next(right, parts[0]))


def find_contained(
    config: CompareConfig, corpora: Sequence[Documents], sets: Sequence[ExampleSet], output: str, options: RunOptions
) -> dict[str, dict[str, Flags]]:
    """Return which examples of each set are in the training documents of each corpus, by set and corpus."""
    path, audit = storage.join(output, _EXAMPLES), OverlapReportConfig(**config.shared())
    with shards.write_shard(output, _EXAMPLES, _EXAMPLE_SCHEMA) as shard:
        for one in sets:
            for text in one.texts:
                shard.write({"set": one.name, "text": text})
    texts = (text_arrays(pa.array(one.texts, pa.string())) for one in sets)
    index, examples = build_index(texts, audit.ngram, audit.normalization)
    ngrams = count_examples(examples.ids, examples.words, np.zeros(len(index.arrays.hashes), np.bool_)).ngrams
    ends = np.cumsum([len(one.texts) for one in sets])[:-1]
    contained: dict[str, dict[str, Flags]] = {one.name: {} for one in sets}
    options = dataclasses.replace(options, follow_inputs=("benchmark examples", "benchmarks"))
    for corpus in corpora:
        folder = storage.join(output, "overlap", corpus.name)
        overlap_report(audit, documents=corpus.path, benchmarks=[f"examples={path}"], output=folder, options=options)
        hits = np.zeros(len(ngrams), np.int64)
        for batch in shards.read_batches(storage.join(folder, HITS), ["example"]):
            hits += np.bincount(batch.column("example").to_numpy(), minlength=len(hits))
        for one, flags in zip(sets, np.split(hits > MAX_OVERLAP * ngrams, ends), strict=True):
            contained[one.name][corpus.name] = flags
    return contained

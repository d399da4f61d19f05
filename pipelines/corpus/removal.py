"""Removes documents from a corpus and from what was made of them, as if they had never been read.

First the documents are found, and written with the requests to the folder `removals`; from then on, no stage runs until
the removal is complete. Then the stages are rewritten in order: the files that name a removed document, and the
manifest, at once. A removal that was killed resumes after the last stage that is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pipelines import storage
from pipelines.algorithms.web.urls import id_of_url
from pipelines.build import build, check_corpus, write_index
from pipelines.corpus.removed_files import (
    KEPT,
    RemovalContext,
    Rows,
    blank_pages,
    describe_tokens,
    find_documents,
    rewrite_files,
    summed,
)
from pipelines.engine.folder_lock import folder_lock
from pipelines.engine.journal import is_unfinished
from pipelines.engine.manifest import NEXT, FileEntry, ShardEntry, has_manifest, replace_result
from pipelines.engine.run import REMOVAL, RunOptions
from pipelines.errors import InputError, UsageError
from pipelines.model.training.data import TOKENS, BlockOrder, open_tokens
from pipelines.pipeline import BY_NAME
from pipelines.progress import show_progress
from pipelines.records import shards
from pipelines.records.inputs import StageFolder, open_stage
from pipelines.records.removals import LIST, REMOVED, Removals, Request, read_requests
from pipelines.records.schemas import make_schema
from pipelines.reports.filter import render_filter_report
from pipelines.reports.render import write_page
from pipelines.stages.extract.report import write_report as write_extract_report

_IDS_SCHEMA = make_schema(id="string", request="int64")
_SHOWN_IDS = 1000
# An index of n-grams cannot forget; a report of overlaps quotes what it found.
_INDEX, _OVERLAPS = "overlap-index", "overlap-report"
# What quotes texts, and cannot be written again without the work files of the stage.
_QUOTING = {"dedup": ("report.html", "paragraphs.parquet")}
# What a removal does not change, or deletes, by stage.
_NOTES = {
    "fetch": "the WARC files still contain the pages; --pages blanks them",
    "dedup": "report.html and paragraphs.parquet were deleted, since they quote documents",
    "train-bpe": "the tokenizer and the counts of words still include the documents",
    "pretrain": "the model was trained on the documents; `steps` in the report lists the steps",
    _INDEX: "still includes the documents; `webtext overlap-index` builds it again",
    _OVERLAPS: "was deleted, since it quotes documents; `webtext overlap-report` builds it again",
    "evaluate": "is not changed; answers of a model may quote documents that it was trained on",
}


def remove(
    corpus: str, requests: str | None, options: RunOptions, *, pages: bool, rebuild: bool, dry_run: bool = False
) -> dict[str, Any]:
    """Remove the documents that a file of requests names, or complete an interrupted removal; return the report.

    With `pages`, also the responses in WARC files; `rebuild` then builds token shards and overlaps again. A `dry_run`
    only finds the documents. Raises InputError for a bad request or an unfinished stage, LockedError for a running one.
    """
    check_corpus(corpus)
    named = read_requests(requests) if requests else []
    pending = storage.join(corpus, REMOVAL)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder_lock(storage.parent(pending)))
        _lock_stages(corpus, stack, is_pending=storage.exists(pending))
        stack.enter_context(options.executor.persistent_workers())
        if not storage.exists(pending):
            if not named:
                raise UsageError(f"{corpus}: no removal was interrupted; name a file of requests")
            state, ids = _plan(corpus, named, options)
            if dry_run:
                return {**state["report"], "is_dry_run": True}
            with shards.write_shard(storage.parent(pending), f"{state['name']}.parquet", _IDS_SCHEMA) as written:
                for id, number in ids.items():
                    written.write({"id": id, "request": number})
            storage.write_json(pending, state | {"pages": pages, "rebuild": rebuild})
        state = storage.read_json(pending)
        if named and msgspec.to_builtins(named) != state["requests"]:
            raise InputError(f"{corpus}: another removal was interrupted; first complete it with `webtext remove`")
        report = _Removal(corpus, state, options).run()
    write_index(corpus, options.progress.note)
    if state["rebuild"] and state["stages"]:
        built = [name for name in ("tokenize", _INDEX) if has_manifest(storage.join(corpus, name))]
        build(corpus, [*built, *state["deletes"]], options)
    return report


def _lock_stages(corpus: str, stack: contextlib.ExitStack, *, is_pending: bool) -> None:
    """Lock the folders of all stages; raise InputError if one is unfinished, whose files are not known."""
    for folder in (storage.join(corpus, name) for name in BY_NAME):
        if storage.is_folder(folder):
            has_manifest(folder)  # completes a replacement
            stack.enter_context(folder_lock(folder))
            if is_unfinished(folder) or (storage.exists(storage.join(folder, NEXT)) and not is_pending):
                raise InputError(f"{folder}: has an unfinished run; finish it, or delete it with `webtext clean`")


def _finished(corpus: str) -> dict[str, StageFolder]:
    folders = {name: storage.join(corpus, name) for name in BY_NAME}
    return {name: open_stage(folder, [name]) for name, folder in folders.items() if has_manifest(folder)}


def _plan(corpus: str, requests: Sequence[Request], options: RunOptions) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what the removal has to know when it resumes, and the number of a request for each document."""
    stages, ids, early = _finished(corpus), dict[str, int](), set[str]()
    searched = [name for name in stages if name not in ("pretrain", _INDEX, _OVERLAPS)]
    files = [(name, file.path) for name in searched for file in stages[name].files("", ".parquet")]
    for matches in _map(find_documents, files, Removals(requests), "searching", options):
        for id, number, is_early in matches:
            ids[id] = min(number, ids.get(id, number))
            early |= {id} if is_early else set()
    # What only its text or the end of its redirects told has its id in the list, so that it is not fetched again.
    late = [msgspec.structs.replace(requests[ids[id]], kind="id", value=id) for id in sorted(ids.keys() - early)]
    path = storage.join(corpus, LIST)
    listed = dict.fromkeys([*(read_requests(path) if storage.exists(path) else ()), *requests, *late])
    reports = [name for name in storage.list_folder(storage.parent(storage.join(corpus, REMOVAL))) if "json" in name]
    steps = _trained_steps(stages, ids)
    found: list[list[str]] = [[] for _ in requests]
    for id, number in ids.items():
        found[number].append(id)
    rows = [
        {"documents": len(named), "ids": sorted(named)[:_SHOWN_IDS], "removed": {}, "steps": steps and steps[number]}
        for number, named in enumerate(found)
    ]
    state = {
        "name": f"{len(reports) + 1:04d}",
        "requests": (fields := msgspec.to_builtins(requests)),
        "list": msgspec.to_builtins([*listed]),
        "deletes": [_OVERLAPS] if ids and _OVERLAPS in stages else [],
        "stages": {},
        "report": {"documents": len(ids), "requests": [{**one, **row} for one, row in zip(fields, rows, strict=True)]},
    }
    return state, dict(sorted(ids.items()))


def _trained_steps(stages: Mapping[str, StageFolder], ids: Mapping[str, int]) -> defaultdict[int, list[int]] | None:
    """Return the training steps, from 1, whose batches have documents of each request; None if they are not known."""
    trained, read = stages.get("pretrain"), stages.get("tokenize")
    if not trained or not read or trained.manifest.identity.inputs["tokens"] != read.manifest.fingerprint():
        return None
    recipe, split = trained.manifest.identity.config, open_tokens(read.path, verify=False).train
    context, blocks, steps = recipe["context"], dict[int, set[int]](), defaultdict[int, list[int]](list)
    starts = itertools.accumulate(map(len, split.shards), initial=0)
    for start, table in zip(starts, split.tables.values(), strict=False):
        for row in shards.read_rows(table.path, ["id", "offset", "tokens"]):
            if (number := ids.get(row["id"])) is not None:
                first = start + row["offset"]
                # The last token of a block, which is only predicted, is the first of the next one.
                for block in range(max(0, first - 1) // context, (first + row["tokens"] - 1) // context + 1):
                    blocks.setdefault(block, set()).add(number)
    order = BlockOrder(split.blocks(context), recipe["batch_size"], recipe["seed"])
    for step in range(recipe["steps"] if blocks else 0):
        for number in set[int]().union(*(blocks.get(block, ()) for block in order.batch(step))):
            steps[number].append(step + 1)
    return steps


class _Removal:
    """A removal that is under way: its state is written before each stage is replaced."""

    def __init__(self, corpus: str, state: dict[str, Any], options: RunOptions) -> None:
        self._corpus, self._state, self._options = corpus, state, options
        self._report: dict[str, Any] = state["report"]
        self._pending = storage.join(corpus, REMOVAL)
        self._path = storage.join(storage.parent(self._pending), state["name"])
        self._ids = {row["id"]: row["request"] for row in shards.read_rows(f"{self._path}.parquet")}

    def run(self) -> dict[str, Any]:
        """Write the list, rewrite all stages, write and return the report."""
        lines = b"".join(msgspec.json.encode(request) + b"\n" for request in self._state["list"])
        storage.write_bytes(storage.join(self._corpus, LIST), lines)
        for name in self._state["deletes"]:
            storage.remove(storage.join(self._corpus, name))
        for name, stage in _finished(self._corpus).items() if self._ids else ():
            done = self._state["stages"].get(name)
            if name != _INDEX and not (done and done["after"] == stage.manifest.fingerprint()):
                self._rewrite_stage(name, stage)
        named = {*self._state["stages"], *self._state["deletes"]} - ({"fetch"} if self._state["pages"] else set())
        named |= {*storage.list_folder(self._corpus)} & ({_INDEX, "evaluate"} if self._ids else set())
        self._report["notes"] = [f"{name}: {note}" for name, note in _NOTES.items() if name in named]
        storage.write_json(f"{self._path}.json", self._report)
        storage.remove(self._pending)
        return self._report

    def _rewrite_stage(self, name: str, stage: StageFolder) -> None:
        """Replace the result of a stage by one without the documents, unless nothing in it or before it changes."""
        manifest, done = stage.manifest, self._state["stages"].values()
        inputs = dict(manifest.identity.inputs)
        for other in done:
            inputs = {key: value.replace(other["before"], other["after"]) for key, value in inputs.items()}
        is_root = inputs == manifest.identity.inputs
        read: dict[str, int] = next(
            (other["removed"] for other in done if other["after"] == inputs.get("documents")), {}
        )
        tokens = storage.read_json(storage.join(stage.path, TOKENS)) if name == "tokenize" else {}
        context = RemovalContext(name, stage.path, storage.join(stage.path, NEXT), self._ids, is_root, tokens)
        for leftover in (context.output, storage.join(stage.path, "partitions")):  # of scrape: all submissions
            storage.remove(leftover)
        self._strip_spikes(storage.join(stage.path, "spikes"))
        files, rows = self._rewrite_files(stage, context)
        if is_root and not files:
            return
        files |= {file.name: file for file in self._finish_files(stage, context, files, rows)}
        gone = [file.name for file in manifest.files if rows and file.name in _QUOTING.get(name, ())]
        entries = []
        for entry in manifest.shards:
            removed = sum((rows.get(file.name, Counter()) for file in entry.files), Rows())
            if entry.phase == "encode":  # its documents are those of the shard that it read
                removed = Counter({(KEPT, 0): read.get(f"{entry.name}.parquet", 0)})
            kept = tuple(files.get(file.name, file) for file in entry.files if file.name not in gone)
            entries.append(dataclasses.replace(_without(entry, summed(removed, 0), is_root), files=kept))
        if not (name == "tokenize" and self._state["rebuild"]):
            manifest = dataclasses.replace(manifest, identity=dataclasses.replace(manifest.identity, inputs=inputs))
        after = dataclasses.replace(manifest, shards=tuple(entries))
        self._state["stages"][name] = {
            "before": stage.manifest.fingerprint(),
            "after": after.fingerprint(),
            "removed": {file: summed(counts, 0)[KEPT] for file, counts in rows.items()},
        }
        for number, count in summed(sum(rows.values(), Rows()), 1).items():
            self._report["requests"][number]["removed"][name] = count
        storage.write_json(self._pending, self._state)
        replace_result(stage.path, gone, after)

    def _rewrite_files(
        self, stage: StageFolder, context: RemovalContext
    ) -> tuple[dict[str, FileEntry], dict[str, Rows]]:
        """Return the new files by name, and their removed rows."""
        groups: dict[str, list[FileEntry]] = {}
        for file in {file.name: file for file in stage.manifest.files}.values():
            number = re.search(r"-(\d{5})[.-]", file.name)
            groups.setdefault(number[1] if number else "", []).append(file)
        results = _map(rewrite_files, [*groups.values()], context, context.stage, self._options)
        rewritten = [*itertools.chain.from_iterable(results)]
        return {file.name: file for file, _ in rewritten}, {file.name: rows for file, rows in rewritten}

    def _finish_files(
        self, stage: StageFolder, context: RemovalContext, files: Mapping[str, FileEntry], rows: Mapping[str, Rows]
    ) -> Iterator[FileEntry]:
        """Write what describes all shards, without the documents; and WARC files with blank records."""
        tallies = {file.name for file in stage.manifest.files if re.fullmatch(r"report-\d+\.json", file.name)}
        if context.stage == "tokenize" and files:
            yield describe_tokens(context, files, rows)
        elif context.stage == "fetch" and self._state["pages"] and files:
            yield from self._blank_pages(stage, context)
        elif context.stage == "extract" and tallies & {*files}:
            for name in tallies - {*files}:
                storage.link(storage.join(stage.path, name), storage.join(context.output, name))
            extractor = stage.manifest.identity.config["extractor"]
            yield from write_extract_report(context.output, extractor, len(tallies)).files
        elif context.stage == "filter" and tallies & {*files}:
            report = storage.read_json(storage.join(stage.path, "report.json"))
            for rule in report["rules"]:
                rule["near"] = [[one for one in side if one["id"] not in self._ids] for side in rule["near"]]
            yield write_page(context.output, "report.html", render_filter_report(report))
            yield shards.write_file(context.output, "report.json", json.dumps(report).encode())

    def _blank_pages(self, stage: StageFolder, context: RemovalContext) -> Iterator[FileEntry]:
        """Write the WARC files of removed pages with blank records."""
        offsets: dict[str, set[int]] = {}
        for file in stage.files("pages-", ".parquet"):
            for row in shards.read_rows(file.path, ["url", "warc_file", "warc_offset"]):
                if row["warc_file"] and id_of_url(row["url"]) in self._ids:
                    offsets.setdefault(row["warc_file"], set()).add(row["warc_offset"])
        warcs = [file for file in stage.manifest.files if file.name in offsets]
        context = dataclasses.replace(context, offsets=offsets)
        written = [*_map(blank_pages, warcs, context, "fetch: WARC files", self._options)]
        self._report["blank_records"] = sum(records for _, records in written)
        yield from (file for file, _ in written)

    def _strip_spikes(self, folder: str) -> None:
        """Remove the texts of the documents from the reports of spikes, which are no part of the result of pretrain."""
        for name in storage.list_folder(folder):
            report = storage.read_json(path := storage.join(folder, name))
            for piece in itertools.chain.from_iterable(block["pieces"] for block in report["blocks"]):
                piece |= {"id": "", "url": None, "text": ""} if piece["id"] in self._ids else {}
            storage.write_bytes(path, (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())


def _map(
    function: Callable[..., Any], items: Sequence[Any], context: Any, label: str, options: RunOptions
) -> Iterator[Any]:
    """Yield the results of tasks as they finish."""
    tasks = contextlib.closing(options.executor.map(function, items, context, options.progress.advance, str))
    with show_progress(options.progress, f"remove: {label}", len(items), "tasks"), tasks as results:
        for _, result in results:
            options.progress.advance(1)
            yield result


def _without(entry: ShardEntry, removed: Mapping[str, int], is_root: bool) -> ShardEntry:
    """Return the entry of a task as if it had not read rows (by reason), or in the first stage, had dropped them."""
    total, dropped = sum(removed.values()), Counter(entry.dropped) - Counter(removed)
    if not (entry.records_in or entry.records_out):
        return entry
    dropped[REMOVED] += total if is_root else 0
    return dataclasses.replace(
        entry,
        records_in=entry.records_in - (0 if is_root else total),
        records_out=entry.records_out - removed.get(KEPT, 0),
        dropped=dict(sorted((+dropped).items())),
    )

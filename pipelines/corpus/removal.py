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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pipelines import storage
from pipelines.build import build, check_corpus, write_index
from pipelines.corpus.removed_files import KEPT, RemovalContext, document_ids, find_documents, rewrite_files
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
from pipelines.stages.fetch.links import BadUrlError, request_url
from pipelines.stages.fetch.warc import blank_records

_IDS_SCHEMA = make_schema(id="string", request="int64")
_SHOWN_IDS = 1000
# An index of n-grams cannot forget; a report of overlaps quotes what it found.
_INDEX, _OVERLAPS = "overlap-index", "overlap-report"
# What quotes texts, and cannot be written again without the work files of the stage.
_QUOTING = {"dedup": ("report.html", "paragraphs.parquet")}
_PAGE_COLUMNS = ["url", "final_url", "warc_file", "warc_offset"]
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
    pending = storage.join(corpus, REMOVAL)
    named = read_requests(requests) if requests else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder_lock(storage.parent(pending)))
        _lock_stages(corpus, stack, is_pending=storage.exists(pending))
        stack.enter_context(options.executor.persistent_workers())
        if not storage.exists(pending):
            if named is None:
                raise UsageError(f"{corpus}: no removal was interrupted; name a file of requests")
            state, ids = _plan(corpus, named, options)
            if dry_run:
                return {**state["report"], "dry_run": True}
            with shards.write_shard(storage.parent(pending), f"{state['name']}.parquet", _IDS_SCHEMA) as written:
                for id, number in ids.items():
                    written.write({"id": id, "request": number})
            storage.write_json(pending, {**state, "pages": pages, "rebuild": rebuild})
        state = storage.read_json(pending)
        if named and [*map(_to_json, named)] != state["requests"]:
            raise InputError(f"{corpus}: another removal was interrupted; first complete it with `webtext remove`")
        report = _Removal(corpus, state, options).run()
    write_index(corpus, options.progress.note)
    if state["rebuild"] and state["stages"]:
        built = [name for name in ("tokenize", _INDEX) if has_manifest(storage.join(corpus, name))]
        build(corpus, [*built, *state["deletes"]], options)
    return report


def _lock_stages(corpus: str, stack: contextlib.ExitStack, *, is_pending: bool) -> None:
    """Lock the folders of all stages; raise InputError if one is unfinished, whose files are not known."""
    for name in BY_NAME:
        folder = storage.join(corpus, name)
        if storage.is_folder(folder):
            has_manifest(folder)  # completes a replacement
            stack.enter_context(folder_lock(folder))
            is_replaced = storage.exists(storage.join(folder, NEXT)) and not is_pending
            if is_unfinished(folder) or is_replaced:
                path = storage.join(folder, NEXT) if is_replaced else folder
                raise InputError(f"{path}: {name} has not finished; finish it, or delete this folder")


def _finished(corpus: str) -> dict[str, StageFolder]:
    folders = {name: storage.join(corpus, name) for name in BY_NAME}
    return {name: open_stage(folder, [name]) for name, folder in folders.items() if has_manifest(folder)}


def _plan(corpus: str, requests: Sequence[Request], options: RunOptions) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what the removal has to know when it resumes, and the number of a request for each document."""
    stages, ids, late = _finished(corpus), dict[str, int](), set[str]()
    searched = [name for name in stages if name not in ("pretrain", _INDEX, _OVERLAPS)]
    files = [(name, file.path) for name in searched for file in stages[name].files("", ".parquet")]
    is_early = set[str]()
    for matches in _map(find_documents, files, Removals(requests), "searching", options):
        for id, number, is_late in matches:
            ids[id] = min(number, ids.get(id, number))
            (late if is_late else is_early).add(id)
    ids = dict(sorted(ids.items()))
    # From now on, what only the text or the end of redirects told is known by its id, before it is fetched.
    known = [Request("id", id, requests[ids[id]].reason, requests[ids[id]].date) for id in sorted(late - is_early)]
    path, folder = storage.join(corpus, LIST), storage.join(corpus, storage.parent(REMOVAL))
    earlier = read_requests(path) if storage.exists(path) else []
    reports = [name for name in storage.list_folder(folder) if re.fullmatch(r"\d{4}\.json", name)]
    steps = _trained_steps(stages, ids)
    found = {number: [id for id, of in ids.items() if of == number] for number in {*ids.values()}}
    rows = [
        {**_to_json(request), "documents": len(found.get(number, ())), "ids": found.get(number, [])[:_SHOWN_IDS],
         "removed": {}, "steps": None if steps is None else steps.get(number, [])}
        for number, request in enumerate(requests)
    ]  # fmt: skip
    return {
        "name": f"{len(reports) + 1:04d}",
        "requests": [*map(_to_json, requests)],
        "list": [*map(_to_json, dict.fromkeys([*earlier, *requests, *known]))],
        "deletes": [_OVERLAPS] if ids and _OVERLAPS in stages else [],
        "stages": {},
        "report": {"documents": len(ids), "requests": rows, "blank_records": 0, "notes": []},
    }, ids


def _trained_steps(stages: Mapping[str, StageFolder], ids: Mapping[str, int]) -> dict[int, list[int]] | None:
    """Return the training steps, from 1, whose batches have documents of each request; None if they are not known."""
    if not {"tokenize", "pretrain"} <= {*stages}:
        return None
    identity = stages["pretrain"].manifest.identity
    if identity.inputs["tokens"] != stages["tokenize"].manifest.fingerprint():
        return None
    recipe, split = identity.config, open_tokens(stages["tokenize"].path, verify=False).train
    context, blocks, steps = recipe["context"], dict[int, set[int]](), dict[int, list[int]]()
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
            steps.setdefault(number, []).append(step + 1)
    return steps


class _Removal:
    """A removal that is under way: its state is written before each stage is replaced."""

    def __init__(self, corpus: str, state: dict[str, Any], options: RunOptions) -> None:
        self._corpus, self._state, self._options = corpus, state, options
        self._report: dict[str, Any] = state["report"]
        self._pending = storage.join(corpus, REMOVAL)
        path = storage.join(storage.parent(self._pending), f"{state['name']}.parquet")
        self._ids = {row["id"]: row["request"] for row in shards.read_rows(path)}

    def run(self) -> dict[str, Any]:
        """Write the list, rewrite all stages, write and return the report."""
        lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self._state["list"])
        storage.write_bytes(storage.join(self._corpus, LIST), lines.encode())
        for name in self._state["deletes"]:
            storage.remove(storage.join(self._corpus, name))
        for name, stage in _finished(self._corpus).items() if self._ids else ():
            done = self._state["stages"].get(name)
            if name != _INDEX and not (done and done["after"] == stage.manifest.fingerprint()):
                self._rewrite_stage(name, stage)
        changed = {*self._state["stages"], *self._state["deletes"]} - ({"fetch"} if self._state["pages"] else set())
        if self._ids:
            changed |= {name for name in (_INDEX, "evaluate") if storage.is_folder(storage.join(self._corpus, name))}
        self._report["notes"] = [f"{name}: {note}" for name, note in _NOTES.items() if name in changed]
        path = storage.join(storage.parent(self._pending), f"{self._state['name']}.json")
        storage.write_json(path, self._report)
        storage.remove(self._pending)
        return {**self._report, "path": path}

    def _rewrite_stage(self, name: str, stage: StageFolder) -> None:
        """Replace the result of a stage by one without the documents, unless nothing in it or before it changes."""
        manifest, done = stage.manifest, self._state["stages"].values()
        inputs = dict(manifest.identity.inputs)
        for other in done:
            inputs = {key: value.replace(other["before"], other["after"]) for key, value in inputs.items()}
        is_root = inputs == manifest.identity.inputs
        read = next((other["removed"] for other in done if other["after"] == inputs.get("documents")), {})
        tokens = storage.read_json(storage.join(stage.path, TOKENS)) if name == "tokenize" else {}
        context = RemovalContext(name, stage.path, storage.join(stage.path, NEXT), self._ids, is_root, tokens)
        storage.remove(context.output)
        files, rows = self._rewrite_files(stage, context)
        if is_root and not files:
            return
        if name == "pretrain":
            self._strip_spikes(storage.join(stage.path, "spikes"))
        for file in self._finish_files(stage, context, files, rows):
            files[file.name] = file
        gone = [file.name for file in manifest.files if files and file.name in _QUOTING.get(name, ())]
        entries = []
        for entry in manifest.shards:
            removed = sum((rows.get(file.name, Counter()) for file in entry.files), Counter[tuple[str, int]]())
            if entry.phase == "encode":  # its documents are those of the shard that it read
                removed = Counter({(KEPT, 0): read.get(f"{entry.name}.parquet", 0)})
            kept = tuple(files.get(file.name, file) for file in entry.files if file.name not in gone)
            entries.append(dataclasses.replace(_without(entry, removed, is_root), files=kept))
        if not (name == "tokenize" and self._state["rebuild"]):
            manifest = dataclasses.replace(manifest, identity=dataclasses.replace(manifest.identity, inputs=inputs))
        after = dataclasses.replace(manifest, shards=tuple(entries))
        self._state["stages"][name] = {
            "before": stage.manifest.fingerprint(),
            "after": after.fingerprint(),
            "removed": {file: _by_reason(counts)[KEPT] for file, counts in rows.items()},
        }
        for (_, number), count in sum(rows.values(), Counter[tuple[str, int]]()).items():
            removed_rows = self._report["requests"][number]["removed"]
            removed_rows[name] = removed_rows.get(name, 0) + count
        storage.write_json(self._pending, self._state)
        replace_result(stage.path, gone, after)
        if name == "scrape":  # of all submissions; another dump has the others read again
            storage.remove(storage.join(stage.path, "partitions"))

    def _rewrite_files(
        self, stage: StageFolder, context: RemovalContext
    ) -> tuple[dict[str, FileEntry], dict[str, Counter[tuple[str, int]]]]:
        """Return the new files by name, and their removed rows."""
        groups: dict[str, list[FileEntry]] = {}
        for file in {file.name: file for file in stage.manifest.files}.values():
            number = re.search(r"-(\d{5})[.-]", file.name)
            groups.setdefault(number[1] if number else "", []).append(file)
        results = _map(rewrite_files, [*groups.values()], context, context.stage, self._options)
        rewritten = [*itertools.chain.from_iterable(results)]
        return {file.name: file for file, _ in rewritten}, {file.name: rows for file, rows in rewritten}

    def _finish_files(
        self, stage: StageFolder, context: RemovalContext, files: Mapping[str, FileEntry], rows: Mapping[str, Any]
    ) -> Iterator[FileEntry]:
        """Write what describes all shards, without the documents; and WARC files with blank records."""
        tallies = [file.name for file in stage.manifest.files if re.fullmatch(r"report-\d+\.json", file.name)]
        if context.stage == "tokenize" and files:
            yield _describe_tokens(context, files, rows)
        elif context.stage == "fetch" and self._state["pages"] and files:
            yield from self._blank_pages(stage, context, rows)
        elif context.stage == "extract" and {*files} & {*tallies}:
            for name in {*tallies} - {*files}:
                storage.link(storage.join(stage.path, name), storage.join(context.output, name))
            extractor = stage.manifest.identity.config["extractor"]
            yield from write_extract_report(context.output, extractor, len(tallies)).files
        elif context.stage == "filter" and {*files} & {*tallies}:
            report = storage.read_json(storage.join(stage.path, "report.json"))
            for rule in report["rules"]:
                rule["near"] = [[one for one in side if one["id"] not in self._ids] for side in rule["near"]]
            yield write_page(context.output, "report.html", render_filter_report(report))
            yield shards.write_file(context.output, "report.json", json.dumps(report).encode())

    def _blank_pages(self, stage: StageFolder, context: RemovalContext, rows: Mapping[str, Any]) -> Iterator[FileEntry]:
        """Write the WARC files of removed pages with blank records."""

        def pages() -> Iterator[tuple[bool, dict[str, Any]]]:
            for file in stage.files("pages-", ".parquet"):
                for batch in shards.read_batches(file.path, _PAGE_COLUMNS):
                    ids = document_ids(batch, context.stage)
                    yield from zip((id in self._ids for id in ids), batch.to_pylist(), strict=True)

        shared = [entry.files for entry in stage.manifest.shards if any(file.name in rows for file in entry.files)]
        names = {file.name for group in shared for file in group if file.name.endswith(".warc.gz")}
        urls, in_use = set[str](), dict[str, set[int]]()
        for is_removed, page in pages():
            if is_removed:
                names.add(str(page["warc_file"]))
                urls.add(str(page["final_url"]))
                with contextlib.suppress(BadUrlError):  # such a URL was not requested
                    urls.add(request_url(page["url"]))
        for is_removed, page in pages():
            if not is_removed and page["warc_file"] in names:
                in_use.setdefault(page["warc_file"], set()).add(page["warc_offset"])
        blanking = dataclasses.replace(context, urls=frozenset(urls), in_use=in_use)
        warcs = [file for file in stage.manifest.files if file.name in names]
        self._report["blank_records"] = 0
        for file, records in _map(_blank, warcs, blanking, "fetch: WARC files", self._options):
            self._report["blank_records"] += records
            yield file

    def _strip_spikes(self, folder: str) -> None:
        """Remove the texts of the documents from the reports of spikes, which are no part of the result."""
        for name in storage.list_folder(folder):
            report = storage.read_json(path := storage.join(folder, name))
            for piece in itertools.chain.from_iterable(block["pieces"] for block in report["blocks"]):
                if piece["id"] in self._ids:
                    piece.update(id="", url=None, text="")
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


def _blank(file: FileEntry, context: RemovalContext) -> tuple[FileEntry, int]:
    path, in_use = storage.join(context.folder, file.name), context.in_use.get(file.name, set())
    return context.write_patched(file, blank_records(path, set(context.urls), in_use))


def _to_json(request: Request) -> dict[str, str]:
    return msgspec.to_builtins(request)  # type: ignore[no-any-return]


def _by_reason(rows: Mapping[tuple[str, int], int]) -> Counter[str]:
    counts = Counter[str]()
    for (reason, _), count in rows.items():
        counts[reason] += count
    return counts


def _without(entry: ShardEntry, rows: Mapping[tuple[str, int], int], is_root: bool) -> ShardEntry:
    """Return the entry of a task as if it had not read rows, or in the first stage, had dropped them."""
    removed = _by_reason(rows)
    if not (entry.records_in or entry.records_out):
        return entry
    dropped = {reason: count - removed[reason] for reason, count in entry.dropped.items()}
    if is_root:
        dropped[REMOVED] = dropped.get(REMOVED, 0) + removed.total()
    return dataclasses.replace(
        entry,
        records_in=entry.records_in - (0 if is_root else removed.total()),
        records_out=entry.records_out - removed[KEPT],
        dropped={reason: count for reason, count in sorted(dropped.items()) if count},
    )


def _describe_tokens(context: RemovalContext, files: Mapping[str, FileEntry], rows: Mapping[str, Any]) -> FileEntry:
    """Write `tokens.json` with the documents that are left, and the checksums of the files."""
    tokens: dict[str, Any] = {**context.tokens}
    for split, listed in tokens["splits"].items():
        for shard in listed:
            removed = _by_reason(rows.get(shard["documents_file"], {}))
            shard["documents"] -= removed.total()
            tokens["totals"][split]["documents"] -= removed[KEPT]
            if file := files.get(shard["name"]):
                shard.update(size_bytes=file.size_bytes, sha256=file.sha256)
    return shards.write_file(context.output, TOKENS, storage.json_bytes(tokens))

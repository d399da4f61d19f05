"""Removes documents from a corpus and from what was made of them, as if they had never been read.

From when the documents are found and listed in `removals/pending.json`, no stage runs until each of them is rewritten:
the files that name a removed document, and the manifest, at once. A killed removal resumes at the first that is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pipelines import storage
from pipelines.build import build, write_index
from pipelines.corpus import removed_files
from pipelines.corpus.removed_files import KEPT, Place, RemovalContext
from pipelines.corpus_config import CorpusConfig, check_corpus
from pipelines.engine.folder_lock import folder_lock
from pipelines.engine.journal import is_unfinished
from pipelines.engine.manifest import NEXT, FileEntry, ShardEntry, has_manifest, replace_result
from pipelines.engine.run import REMOVAL, RunOptions, check_removal_complete
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.format import plural
from pipelines.model.training.data import TOKENS, open_tokens
from pipelines.model.training.order import BatchOrder
from pipelines.pipeline import STAGE_FOLDERS
from pipelines.progress import show_progress
from pipelines.records import shards
from pipelines.records.inputs import StageFolder, open_stage
from pipelines.records.removals import LIST, REMOVED, Removals, Request, read_requests
from pipelines.reports.filter import render_filter_report
from pipelines.reports.render import write_page
from pipelines.stages.extract.report import write_report

_SHOWN_IDS = 1000
_PAGES = "-pages.json"  # the pages that WARC files still have: kind and key of the request, id, file, offset
# An index of n-grams cannot forget; a report of overlaps quotes what it found, and an index of words has all texts.
_INDEX, _DELETED = "overlap-index", ("overlap-report", "search")
# What a removal does not change, or deletes, by stage.
_NOTES = {
    "fetch": "the WARC files still contain the pages; the same command with --pages blanks them",
    "dedup": "report.html and paragraphs.parquet were deleted, since they quote documents",
    "train-bpe": "the tokenizer and the counts of words still include the documents",
    "pretrain": "the model was trained on the documents, at the `steps` in the report; --rebuild does not train it",
    _INDEX: "still includes the documents; `webtext overlap-index` builds it again",
    "overlap-report": "was deleted, since it quotes documents; `webtext overlap-report` builds it again",
    "search": "was deleted, since it contains the documents; `webtext search --build` builds it again",
    "evaluate": "is not changed; answers of a model may quote documents that it was trained on",
    "benchmarks": "is not changed; benchmarks made from documents quote them",
}


def remove(
    corpus: str, requests: str | None, options: RunOptions, *, pages: bool, rebuild: bool, dry_run: bool = False
) -> dict[str, Any]:
    """Remove the documents that a file of requests names, or complete an interrupted removal; return the report.

    With `pages`, also from WARC files; `rebuild` then builds tokens and overlaps again; a `dry_run` only finds them.
    Raises InputError for a bad request or an unfinished stage, LockedError for a running one.
    """
    check_corpus(corpus)
    named = read_requests(requests) if requests else []
    if requests and not named:
        raise InputError(f"{requests}: contains no requests for removal")
    pending = storage.join(corpus, REMOVAL)
    with contextlib.ExitStack() as stack:
        if dry_run:
            check_removal_complete(corpus)
        else:
            stack.enter_context(folder_lock(storage.parent(pending)))
            storage.remove_temporaries(storage.parent(pending))
        state = storage.read_json(pending) if storage.exists(pending) else {}
        if not state and not named:
            raise UsageError(f"{corpus}: no removal was interrupted; name a file of requests")
        if named and state and msgspec.to_builtins(named) != state["requests"]:
            raise InputError(f"{corpus}: another removal was interrupted; first complete it with `webtext remove`")
        if not state:
            state = {"requests": msgspec.to_builtins(named), "pages": pages, "rebuild": rebuild}
            if not dry_run:  # from here on, no stage starts
                storage.write_json(pending, state)
        try:
            _lock_stages(corpus, stack, is_pending="stages" in state)
        except WebtextError:
            if "stages" not in state:
                storage.remove(pending)
            raise
        stack.enter_context(options.executor.persistent_workers())
        named = msgspec.convert(state["requests"], list[Request])
        if "stages" not in state:
            plan, ids = _plan(corpus, named, options)
            state |= plan
            if dry_run:
                return {**state["report"], "is_dry_run": True}
            storage.write_bytes(_file(corpus, state, "-ids.json"), msgspec.json.encode(ids))
            storage.write_json(pending, state)
        ids = msgspec.json.decode(storage.read_bytes(_file(corpus, state, "-ids.json")), type=dict[str, int])
        earlier = _earlier_pages(corpus, named) if state["pages"] else {}
        _Removal(corpus, state, named, ids, earlier, options).run()
    write_index(corpus, options.progress.note)
    if state["rebuild"] and (ids or state["deletes"]):
        built = [name for name in ("tokenize", _INDEX) if has_manifest(storage.join(corpus, name))]
        build(corpus, [*built, *state["deletes"]], options)
    return dict(state["report"])


def _file(corpus: str, state: Mapping[str, Any], suffix: str) -> str:
    return storage.join(corpus, storage.parent(REMOVAL), state["name"] + suffix)


def _lock_stages(corpus: str, stack: contextlib.ExitStack, *, is_pending: bool) -> None:
    """Lock the folders of all stages; raise InputError if one is unfinished, whose files are not known."""
    for folder in (storage.join(corpus, name) for name in STAGE_FOLDERS):
        if storage.is_folder(folder):
            # First, since it completes a replacement.
            is_whole = has_manifest(folder) or all(name[0] in "._" for name in storage.list_folder(folder))
            stack.enter_context(folder_lock(folder))
            is_whole &= not storage.exists(storage.join(folder, NEXT))
            if is_unfinished(folder) or not (is_whole or is_pending):
                raise InputError(f"{folder}: has an unfinished run, or no manifest.json; finish or delete it")


def _earlier_pages(corpus: str, requests: Sequence[Request]) -> dict[str, Place]:
    """Return the places of pages, by id, whose documents earlier removals took at these requests without `pages`."""
    named, pages = {(request.kind, request.key) for request in requests}, dict[str, Place]()
    for path in storage.walk_files(storage.join(corpus, storage.parent(REMOVAL))):
        rows = storage.read_json(path) if path.endswith(_PAGES) else []
        pages |= {id: (file, offset) for kind, key, id, file, offset in rows if (kind, key) in named}
    return pages


def _finished(corpus: str) -> dict[str, StageFolder]:
    folders = {name: storage.join(corpus, name) for name in STAGE_FOLDERS}
    return {name: open_stage(folder, [name]) for name, folder in folders.items() if has_manifest(folder)}


def _plan(corpus: str, requests: Sequence[Request], options: RunOptions) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what the removal has to know when it resumes, and the number of a request for each document."""
    stages, ids = _finished(corpus), dict[str, int]()
    searched = stages.keys() - {"pretrain", _INDEX, *_DELETED}
    files = [(name, file.path) for name in searched for file in stages[name].files("", ".parquet")]
    for matches in _map(removed_files.find_documents, files, Removals(requests), "searching", options):
        for id, number in matches:
            ids[id] = min(number, ids.get(id, number))
    ids = dict(sorted(ids.items()))
    # Before its text is known, a document is known by its id.
    by_text = [(id, requests[number]) for id, number in ids.items() if requests[number].kind == "text_sha256"]
    texts = [msgspec.structs.replace(request, kind="id", value=id) for id, request in by_text]
    earlier = read_requests(path) if storage.exists(path := storage.join(corpus, LIST)) else []
    names = storage.list_folder(storage.join(corpus, storage.parent(REMOVAL)))
    found, steps = defaultdict[int, list[str]](list), _trained_steps(stages, ids)
    changed = CorpusConfig(corpus).changed_sources
    for id, number in ids.items():
        found[number].append(id)
    rows: list[dict[str, Any]] = msgspec.to_builtins(requests)
    for number, row in enumerate(rows):
        row |= {"documents": len(found[number]), "ids": found[number][:_SHOWN_IDS]}
        row["steps"] = None if steps is None else steps[number]
    state = {
        "name": f"{1 + sum(bool(re.fullmatch(r'[0-9]+.json', name)) for name in names):04d}",
        "list": msgspec.to_builtins([*dict.fromkeys([*earlier, *requests, *texts])]),
        # A stale result may have documents that the other stages no longer have.
        "deletes": [name for name in _DELETED if name in stages and (ids or changed(name, stages[name].manifest))],
        "stages": {},
        "report": {"documents": len(ids), "requests": rows, "removed": {}},
    }
    return state, ids


def _trained_steps(stages: Mapping[str, StageFolder], ids: Mapping[str, int]) -> defaultdict[int, list[int]] | None:
    """Return the training steps, from 1, whose batches have documents of each request; None if they are not known."""
    trained, read = stages.get("pretrain"), stages.get("tokenize")
    if not trained or not read:
        return None
    inputs = {fingerprint: name for name, fingerprint in trained.manifest.identity.inputs.items()}
    if not (source := inputs.get(read.manifest.fingerprint(), "").rpartition(" ")[2]):  # `tokens`, or `tokens of NAME`
        return None
    recipe, split = trained.manifest.identity.config, open_tokens(read.path, verify=False).train
    context, blocks, steps = recipe["context"], defaultdict[int, set[int]](set), defaultdict[int, list[int]](list)
    starts = itertools.accumulate(map(len, split.shards), initial=0)
    for start, table in zip(starts, split.tables.values(), strict=False):
        for row in shards.read_rows(table.path, ["id", "offset", "tokens"]):
            if (number := ids.get(row["id"])) is not None:
                first = start + row["offset"]
                # The last token of a block, which is only predicted, is the first of the next one.
                for block in range(max(0, first - 1) // context, (first + row["tokens"] - 1) // context + 1):
                    blocks[block].add(number)
    order = BatchOrder({source: split.blocks(context)}, recipe["batch_size"], recipe["seed"], recipe.get("mixture", ()))
    for step in range(recipe["steps"] if blocks else 0):
        for number in set[int]().union(*(blocks.get(block, ()) for _, block in order.batch(step))):
            steps[number].append(step + 1)
    return steps


@dataclasses.dataclass(frozen=True)
class _Removal:
    """A removal that is under way: its state is written before each stage is replaced."""

    corpus: str
    state: dict[str, Any]
    requests: Sequence[Request]
    ids: Mapping[str, int]
    earlier: Mapping[str, Place]
    options: RunOptions

    def run(self) -> None:
        """Write the list, rewrite all stages, and write the report."""
        state, corpus = self.state, self.corpus
        lines = b"".join(msgspec.json.encode(request, order="sorted") + b"\n" for request in state["list"])
        storage.write_bytes(_file(corpus, state, ".jsonl"), lines)
        storage.move(_file(corpus, state, ".jsonl"), storage.join(corpus, LIST))
        for name in state["deletes"]:
            storage.remove(storage.join(corpus, name))
        for name, stage in _finished(corpus).items() if self.ids or self.earlier else ():
            done = state["stages"].get(name)
            if (name != _INDEX or not self.ids) and not (done and done["after"] == stage.manifest.fingerprint()):
                self._rewrite_stage(name, stage)
        named = {*state["stages"], *state["deletes"]} - ({"fetch"} if state["pages"] else set())
        named |= {*storage.list_folder(corpus)} & {_INDEX, "evaluate", "benchmarks"}
        named -= {_INDEX, *_DELETED} if state["rebuild"] else set()
        if not self.ids:
            named &= {*state["deletes"]}
        notes = [f"{name}: {note}" for name, note in _NOTES.items() if name in named]
        if self.earlier:
            notes.append(f"fetch: pages of {plural(len(self.earlier), 'document')} removed before are blank now")
        if unknown := sum(not row["documents"] for row in state["report"]["requests"]):
            notes.append(f"{plural(unknown, 'request names', 'requests name')} no document that is in the corpus")
        state["report"]["notes"] = notes
        storage.write_json(_file(corpus, state, ".json"), state["report"])
        storage.remove(storage.join(corpus, REMOVAL))

    def _rewrite_stage(self, name: str, stage: StageFolder) -> None:
        """Replace the result of a stage by one without the documents, unless nothing in it or before it changes."""
        manifest, done = stage.manifest, self.state["stages"].values()
        inputs = dict(manifest.identity.inputs)
        for other in done:
            inputs = {key: value.replace(other["before"], other["after"]) for key, value in inputs.items()}
        is_root = inputs == manifest.identity.inputs
        tokens = storage.read_json(storage.join(stage.path, TOKENS)) if name == "tokenize" else {}
        context = RemovalContext(name, stage.path, storage.join(stage.path, NEXT), self.ids, tokens)
        for leftover in (context.output, storage.join(stage.path, "partitions")):  # of scrape: all submissions
            storage.remove(leftover)
        for path in storage.walk_files(storage.join(stage.path, "spikes")):  # of pretrain, not listed in its manifest
            storage.write_json(path, removed_files.without_samples(storage.read_json(path), self.ids))
        groups = defaultdict[str, list[FileEntry]](list)
        for file in {file.name: file for file in manifest.files}.values():
            groups["".join(re.findall(r"-(\d{5})[.-]", file.name)[:1])].append(file)
        files, rows = dict[str, FileEntry](), dict[str, Counter[str]]()
        for rewritten in _map(removed_files.rewrite_files, [*groups.values()], context, name, self.options):
            files |= {file.name: file for file, _ in rewritten}
            rows |= {file.name: reasons for file, reasons in rewritten}
        if is_root and not files and not (self.earlier and name == "fetch"):
            return
        # Without the work files of dedup, they cannot be written again.
        quoting = {"report.html", "paragraphs.parquet"} if name == "dedup" and rows else set[str]()
        described = [removed_files.describe_tokens(context, files, rows)] if tokens and files else []
        files |= {file.name: file for file in (*self._finish_files(stage, context, {*files}), *described)}
        read = {other["after"]: other["removed"] for other in done}.get(inputs.get("documents"), {})
        entries = []
        for entry in manifest.shards:
            removed = sum((rows.get(file.name, Counter()) for file in entry.files), Counter[str]())
            if entry.phase == "encode":  # its documents are those of the shard that it read
                removed = Counter({KEPT: read.get(f"{entry.name}.parquet", 0)})
            kept = tuple(files.get(file.name, file) for file in entry.files if file.name not in quoting)
            entries.append(dataclasses.replace(_without(entry, removed, is_root), files=kept))
        if not (name == "tokenize" and self.state["rebuild"]):
            manifest = dataclasses.replace(manifest, identity=dataclasses.replace(manifest.identity, inputs=inputs))
        after = dataclasses.replace(manifest, shards=tuple(entries))
        kept_rows = {file: reasons[KEPT] for file, reasons in rows.items()}
        fingerprints = {"before": stage.manifest.fingerprint(), "after": after.fingerprint()}
        self.state["stages"][name] = {**fingerprints, "removed": kept_rows}
        self.state["report"]["removed"][name] = sum(reasons.total() for reasons in rows.values())
        storage.write_json(storage.join(self.corpus, REMOVAL), self.state)
        replace_result(stage.path, quoting & {file.name for file in manifest.files}, after)

    def _finish_files(self, stage: StageFolder, context: RemovalContext, names: set[str]) -> Iterator[FileEntry]:
        """Write pages of reports without the documents, if files with these names are new; and WARC files."""
        tallies = {file.name for file in stage.manifest.files if re.fullmatch(r"report-\d+\.json", file.name)}
        if context.stage == "fetch":
            yield from self._blank_pages(stage, context)
        elif context.stage == "extract" and tallies & names:
            for name in tallies - names:
                storage.link(storage.join(stage.path, name), storage.join(context.output, name))
            yield from write_report(context.output, stage.manifest.identity.config["extractor"], len(tallies)).files
        elif context.stage == "filter" and "report.json" in names:
            tables = storage.read_json(storage.join(context.output, "report.json"))
            yield write_page(context.output, "report.html", render_filter_report(tables))

    def _blank_pages(self, stage: StageFolder, context: RemovalContext) -> Iterator[FileEntry]:
        """Yield the WARC files of removed pages with blank records; without `pages`, only write down their places."""
        tables = [file.path for file in stage.files("pages-", ".parquet")]
        ids, places, offsets = {*self.ids, *self.earlier}, {*self.earlier.values()}, defaultdict[str, set[int]](set)
        tasks = _map(removed_files.find_pages, tables, (ids, places), "fetch: pages", self.options)
        found = sorted(itertools.chain.from_iterable(tasks))
        pages = [page for page in found if page[0] in self.ids]
        if not self.state["pages"]:
            rows = [((named := self.requests[self.ids[page[0]]]).kind, named.key, *page) for page in pages]
            storage.write_json(_file(self.corpus, self.state, _PAGES), rows)
            return iter(())
        kept = [page for page in found if page[0] not in self.ids]  # those of links that were allowed again
        for file, offset in places.union(page[1:] for page in pages) - {page[1:] for page in kept}:
            offsets[file].add(offset)
        warcs = [entry for entry in stage.manifest.files if entry.name in offsets]
        context = dataclasses.replace(context, ids=dict.fromkeys(ids - {page[0] for page in kept}, 0), offsets=offsets)
        return _map(removed_files.blank_pages, warcs, context, "fetch: WARC files", self.options)


def _map(function: Any, items: list[Any], context: Any, label: str, options: RunOptions) -> Iterator[Any]:
    """Yield the results of tasks as they finish."""
    tasks = contextlib.closing(options.executor.map(function, items, context, options.progress.advance, str))
    with show_progress(options.progress, f"remove: {label}", len(items), "tasks"), tasks as results:
        for _, result in results:
            options.progress.advance(1)
            yield result


def _without(entry: ShardEntry, removed: Counter[str], is_root: bool) -> ShardEntry:
    """Return the entry of a task as if it had not read rows (by reason), or in the first stage, had dropped them."""
    if not (entry.records_in or entry.records_out):
        return entry
    dropped = Counter(entry.dropped) - removed + Counter({REMOVED: removed.total() * is_root})
    read, kept = entry.records_in - removed.total() * (not is_root), entry.records_out - removed[KEPT]
    return dataclasses.replace(entry, records_in=read, records_out=kept, dropped=dict(sorted(dropped.items())))

"""Publishes the documents of a corpus as a folder: texts or only URLs and hashes, a card, and checksums."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from pipelines import storage
from pipelines.corpus.export import last_documents
from pipelines.corpus.tables import CorpusTables
from pipelines.corpus_config import CorpusConfig, check_corpus
from pipelines.engine.config import identity_of
from pipelines.engine.journal import OutputFolder, is_unfinished
from pipelines.engine.manifest import Identity, check_file, has_manifest, read_manifest
from pipelines.engine.run import RunOptions, Stage, Summary, check_removal_complete, result_files, stage_run
from pipelines.errors import ChangedRunError, DamagedShardError, InputError, UsageError, translate_format_errors
from pipelines.format import suggest_nearest
from pipelines.pipeline import BY_NAME, DOCUMENT_STAGES
from pipelines.records import inputs
from pipelines.records.document_options import DocumentConfig
from pipelines.records.inputs import StageFolder
from pipelines.release.config import ReleaseConfig
from pipelines.release.description import OVERLAP, PAGES, RELEASE, SUMS, Source, check_dates, describe
from pipelines.release.files import ReleaseContext, ReleaseShard, released_schema, write_texts, write_urls

STAGE = Stage("release", 1, ("data/", "urls/", "removed/", *PAGES, RELEASE, SUMS))
# The input of a run that is the release which it replaces: its version and the SHA-256 of its `release.json`.
PREVIOUS = "version before"
_DAY = r"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01]))?"
_SPDX = "ODC-By-1.0 ODbL-1.0 PDDL-1.0 CC0-1.0 CC-BY-4.0 CC-BY-SA-4.0 CC-BY-NC-4.0 CC-BY-NC-SA-4.0 MIT".split()
_FILES = {"scrape": "links-", "fetch": "pages-", **dict.fromkeys(DOCUMENT_STAGES, "dropped-")}


def release(config: ReleaseConfig, *, corpus: str, output: str, options: RunOptions) -> Summary:
    """Write a release of the documents of a corpus, or the next version of the one of the same name in the folder.

    Records in are links, or documents that are of none, records out those in `urls/`. Raises UsageError for a malformed
    option, InputError or DamagedShardError for a corpus that is not current, ChangedRunError for another release.
    """
    if not re.fullmatch(_DAY, config.date):
        raise UsageError(f"--date {config.date}: name a day, such as 2026-11-28")
    recorded = OutputFolder(output).recorded_identity()
    earlier = recorded.config if recorded and recorded.stage == STAGE.name else {}
    config = _complete(config, earlier, corpus)
    if earlier.get("name", config.name) != config.name and has_manifest(output):
        raise ChangedRunError(
            f"{output}: is the release {earlier['name']}; give this --name, or choose another --output"
        )
    lineage = open_lineage(corpus)
    documents = inputs.open_configured(last_documents(corpus), DocumentConfig(), options)
    prints = {stage: folder.manifest.fingerprint() for stage, folder in lineage.items()}
    if recorded and earlier.get("name") == config.name:
        # A finished release that is being repaired is not replaced, which would lose its history.
        is_safe = has_manifest(output) or not storage.exists(storage.join(output, RELEASE))
        options = dataclasses.replace(options, overwrite=options.overwrite or is_safe)
        prints |= _previous(recorded, Identity(STAGE.name, STAGE.version, identity_of(config), prints), output)
    options = options.for_input(inputs.size_on_disk(documents.files))
    tables = CorpusTables(corpus, DocumentConfig(), options, allow_files=True)
    if not (config.date or recorded or "fetch" in lineage):
        check_dates(tables)
    with stage_run(STAGE, config, inputs=prints, output=output, options=options, texts=documents.files) as run:
        if not run.finished:
            context, parts = ReleaseContext(config, run.output), release_shards(lineage, documents)
            run_map = functools.partial(run.map, items=parts, name=lambda part: part[0].name)
            texts = run_map(write_texts, context=context, phase="texts", work=True, total=documents.records)
            data = run.once("data", lambda: result_files(texts))
            # Not in workers, since DuckDB uses all cores.
            write = functools.partial(write_urls, context=context, tables=tables)
            urls = run_map(write, phase="urls", total=next(iter(lineage.values())).manifest.records_out, serial=True)
            files = [file for entry in (data, *urls) for file in entry.files]
            previous, schema = output if PREVIOUS in prints else "", released_schema(documents.shards[0])
            source = Source(config, lineage, previous, run.text_format, run.output, tables, texts, files, schema)
            run.once("description", lambda: describe(source))
        return run.finish({"version": storage.read_json(storage.join(run.output, RELEASE))["version"]})


def _complete(config: ReleaseConfig, earlier: Mapping[str, Any], corpus: str) -> ReleaseConfig:
    """Return a config whose notes are the text of the file, and which has what is not given from an earlier release."""
    name = config.name or earlier.get("name") or storage.basename(storage.absolute_path(corpus))
    defaults = {"name": name, "creator": f"the developers of {name}", "url": "README.md", "notes": ""}
    values: dict[str, Any] = {key: getattr(config, key) or earlier.get(key, defaults[key]) for key in defaults}
    if config.notes:
        with translate_format_errors(config.notes, "a text in UTF-8"):
            values["notes"] = storage.read_bytes(config.notes).decode().strip()
    license = {name.lower(): name for name in _SPDX}.get(config.license.lower(), config.license)
    if license not in _SPDX and not re.fullmatch(r"https?://\S+", license):
        advice = suggest_nearest(license, _SPDX, f"name {', '.join(_SPDX)}")
        raise UsageError(f"--license {license or 'is missing'}: not a known license; {advice} (others by their URL)")
    return dataclasses.replace(config, license=license, **values)


def _previous(recorded: Identity, requested: Identity, output: str) -> dict[str, str]:
    """Return the release that a run replaces, as input; to verify, resume or repair one, that which it replaced.

    Raises DamagedShardError for changed files that describe it: only in the first version, missing ones can be rebuilt.
    """
    previous = {name: recorded.inputs[name] for name in recorded.inputs if name == PREVIOUS}
    is_same = recorded.without_inputs([PREVIOUS]) == requested
    for file in read_manifest(output).files if has_manifest(output) else ():
        problem = not file.name.startswith(("data/", "urls/")) and check_file(output, file)
        if problem and (previous or not is_same or storage.exists(storage.join(output, file.name))):
            rebuild = "" if previous else ", or delete it and re-run the command that wrote this version"
            raise DamagedShardError(f"{problem}; restore this file{rebuild} (what you want to add belongs in --notes)")
    if is_same or not has_manifest(output):
        return previous
    path = storage.join(output, RELEASE)
    return {PREVIOUS: f"{storage.read_json(path)['version']} {storage.sha256_of(path)}"}


def open_lineage(corpus: str) -> dict[str, StageFolder]:
    """Return the stages behind the documents of a corpus, in order, and its overlap report if it is of these.

    Raises InputError if one of them has not finished or is stale, or if a removal of documents was interrupted.
    """
    check_corpus(corpus)
    check_removal_complete(corpus)
    config, last = CorpusConfig(corpus), last_documents(corpus)
    if storage.basename(last) not in BY_NAME:
        raise InputError(f"{last}: was rebuilt from a release; publish that one")
    for name in _FILES:
        if name not in config.skipped() and is_unfinished(folder := storage.join(corpus, name)):
            inputs.check_finished(folder, name)
    names, lineage = [storage.basename(last)], dict[str, StageFolder]()
    for name in names:  # grows while it is iterated
        stage = lineage[name] = inputs.open_stage(storage.join(corpus, name), [name])
        for source in config.changed_sources(name, stage.manifest):
            raise InputError(f"{stage.path}: is stale ({source} has changed since); run `webtext build` first")
        for parameter, source in config.upstream(name).items():
            is_read = parameter in stage.manifest.identity.inputs and has_manifest(storage.join(corpus, source))
            names += [source] * (is_read and source not in names)
    if has_manifest(report := storage.join(corpus, OVERLAP)):
        overlap = inputs.open_stage(report, [OVERLAP])
        if overlap.manifest.identity.inputs.get("documents") == read_manifest(last).fingerprint():
            lineage[OVERLAP] = overlap
    return {name: lineage[name] for name in BY_NAME if name in lineage}


def release_shards(lineage: Mapping[str, StageFolder], documents: inputs.DocumentInput) -> list[ReleaseShard]:
    """Return the shards of a release; raise InputError if the stages do not have the same ones."""
    files = {stage: lineage[stage].files(prefix, ".parquet") for stage, prefix in _FILES.items() if stage in lineage}
    for stage, listed in files.items():
        if len(listed) != len(documents.shards):
            raise InputError(f"{lineage[stage].path}: has other shards than the documents; run `webtext build` first")
    return [(shard, {stage: files[stage][shard.index] for stage in files}) for shard in documents.shards]

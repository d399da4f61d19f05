"""Publishes the documents of a corpus as a folder: texts or only URLs and hashes, a card, and checksums."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re

from pipelines import storage
from pipelines.corpus.tables import CorpusTables
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import RunOptions, Stage, Summary, result_files, stage_run
from pipelines.errors import UsageError
from pipelines.records import inputs
from pipelines.records.data_card import DATA_CARD
from pipelines.records.document_options import DocumentConfig
from pipelines.records.inputs import StageFolder
from pipelines.release.card import CROISSANT, SUMMARY, SUMS, write_pages
from pipelines.release.config import ReleaseConfig
from pipelines.release.files import ReleaseContext, write_texts, write_urls
from pipelines.release.history import write_history
from pipelines.release.sources import PREVIOUS, RELEASE, open_lineage, previous_input, release_shards

STAGE = Stage("release", 1, ("data/", "urls/", "removed/", DATA_CARD, CROISSANT, SUMMARY, RELEASE, SUMS))
_OVERLAP = "overlap-report"
_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*|https?://\S+")


def release(config: ReleaseConfig, *, corpus: str, output: str, options: RunOptions) -> Summary:
    """Write a release of the documents of a corpus; replace the release of the same name that the folder contains.

    Records in are links, or documents that are of none, records out those that are in `urls/`. Raises UsageError for a
    missing or malformed license, InputError if a stage of the corpus is unfinished, stale or damaged, and
    ChangedRunError for a folder with another release.
    """
    if not config.license or not _LICENSE.fullmatch(config.license):
        problem = "missing" if not config.license else f"{config.license}: is neither an SPDX id nor a URL"
        raise UsageError(f"--license {problem}; name the license of the collection, such as ODC-By-1.0")
    if config.date:
        _check_day(config.date)
    name = config.name or storage.basename(storage.absolute_path(corpus))
    config = dataclasses.replace(config, name=name, creator=config.creator or f"the developers of {name}")
    lineage = open_lineage(corpus)
    last = [*lineage.values()][-1]
    documents = inputs.open_configured(last.path, DocumentConfig(), options)
    shards, overlap = release_shards(lineage, documents), _open_overlap(corpus, last)
    folders = {**lineage, **({_OVERLAP: overlap} if overlap else {})}
    fingerprints = {stage: folder.manifest.fingerprint() for stage, folder in folders.items()}
    fingerprints |= previous_input(STAGE, config, fingerprints, output)
    recorded = OutputFolder(output).recorded_identity()
    is_next = recorded is not None and recorded.stage == STAGE.name and recorded.config["name"] == name
    options = dataclasses.replace(options, overwrite=options.overwrite or is_next)
    options = options.for_input(inputs.size_on_disk(documents.files))
    with stage_run(
        STAGE, config, inputs=fingerprints, output=output, options=options, texts=documents.files
    ) as run:
        if not run.finished:
            previous = output if PREVIOUS in fingerprints else None
            context = ReleaseContext(config, run.output)
            texts = run.map(write_texts, shards, context, phase="texts", work=True, total=documents.records)
            data = run.once("data", lambda: result_files(texts))
            first = next(iter(lineage.values())).manifest
            urls = run.map(write_urls, shards, context, phase="urls", total=first.records_out)
            names = [storage.join(run.output, entry.files[0].name) for entry in urls]
            tables = CorpusTables(corpus, DocumentConfig(), options, allow_files=True)
            history = run.once(
                "history",
                lambda: write_history(config, lineage, tables, names, run.output, previous, run.text_format),
            )
            work = [storage.join(run.output, entry.files[0].name) for entry in texts]
            entries = [*texts, data, *urls, history]
            run.once("pages", lambda: write_pages(config, lineage, tables, work, overlap, entries, run.output))
        version = storage.read_json(storage.join(run.output, RELEASE))["version"]
        return run.finish({"version": version})


def _check_day(text: str) -> None:
    """Raise UsageError for a date that is not one."""
    try:
        if dt.date.fromisoformat(text).isoformat() != text:
            raise ValueError
    except ValueError as error:
        raise UsageError(f"--date {text}: is not a day; write it as 2026-11-28") from error


def _open_overlap(corpus: str, documents: StageFolder) -> StageFolder | None:
    """Return the overlap report of a corpus, if it is of these documents."""
    path = storage.join(corpus, _OVERLAP)
    if not has_manifest(path):
        return None
    folder = inputs.open_stage(path, [_OVERLAP])
    is_current = folder.manifest.identity.inputs.get("documents") == documents.manifest.fingerprint()
    return folder if is_current else None

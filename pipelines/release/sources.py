"""What a release is made from: the stages behind the documents of a corpus, and the release that it replaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipelines import storage
from pipelines.build import CorpusConfig
from pipelines.corpus.export import last_documents
from pipelines.engine.config import identity_of
from pipelines.engine.journal import OutputFolder, is_unfinished
from pipelines.engine.manifest import Identity, check_file, has_manifest, read_manifest
from pipelines.engine.stage import Stage
from pipelines.errors import InputError
from pipelines.pipeline import BY_NAME, DOCUMENT_STAGES
from pipelines.records import inputs, shards
from pipelines.records.inputs import InputFile, StageFolder

RELEASE = "release.json"
# The name of the input of a run that is the release which it replaces.
PREVIOUS = "previous"


@dataclasses.dataclass(frozen=True)
class ReleaseShard:
    """The documents, drops, pages and links of one number, which become the files of that number."""

    documents: inputs.DocumentShard
    drops: tuple[InputFile, ...]
    pages: InputFile | None = None
    links: InputFile | None = None

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"shard-{self.documents.index:05d}"


def open_lineage(corpus: str) -> dict[str, StageFolder]:
    """Return the stages behind the documents of a corpus, in order.

    Raises InputError if one of them has not finished, or is not built from the present result of the one before.
    """
    config = CorpusConfig(corpus)
    last = last_documents(corpus)
    for name in ("scrape", "fetch", *DOCUMENT_STAGES):
        folder = storage.join(corpus, name)
        if name not in config.skipped() and is_unfinished(folder) and not has_manifest(folder):
            inputs.check_finished(folder, name)
    names, lineage = [storage.basename(last)], dict[str, StageFolder]()
    for name in names:  # grows while it is iterated
        stage = lineage[name] = inputs.open_stage(storage.join(corpus, name), [name])
        for parameter, source in config.upstream(name).items():
            path, recorded = storage.join(corpus, source), stage.manifest.identity.inputs.get(parameter)
            if recorded is None or not has_manifest(path):
                continue  # it read files from elsewhere
            if recorded != read_manifest(path).fingerprint():
                raise InputError(f"{stage.path}: is stale ({source} has changed since); run `webtext build` first")
            names += [source] * (source not in names)
    return {name: lineage[name] for name in BY_NAME if name in lineage}


def release_shards(lineage: Mapping[str, StageFolder], documents: inputs.DocumentInput) -> list[ReleaseShard]:
    """Return the shards of a release; raise InputError if the stages do not have the same ones."""
    drops = [file for name in DOCUMENT_STAGES if name in lineage for file in lineage[name].files("dropped-", ".parquet")]
    files = {
        stage: {shards.shard_number(file.path): file for file in lineage[stage].files(prefix, ".parquet")}
        for stage, prefix in (("fetch", "pages-"), ("scrape", "links-"))
        if stage in lineage
    }
    numbers = [shards.shard_number(shard.files[0].path) for shard in documents.shards]
    for stage, by_number in files.items():
        if {*numbers} != {*by_number}:
            folder = lineage[stage].path
            raise InputError(f"{folder}: has other shards than the documents; extract its pages alone, into this corpus")
    return [
        ReleaseShard(
            shard,
            tuple(file for file in drops if shards.shard_number(file.path) == number),
            *(files[stage][number] if stage in files else None for stage in ("fetch", "scrape")),
        )
        for number, shard in zip(numbers, documents.shards, strict=True)
    ]


def previous_input(stage: Stage, config: Any, fingerprints: Mapping[str, str], output: str) -> dict[str, str]:
    """Return the release that a run replaces, as an input: its version and the SHA-256 of its `release.json`.

    A run that verifies, resumes or repairs a release replaces the same one as that.
    """
    recorded = OutputFolder(output).recorded_identity(config)
    if recorded is None or recorded.stage != stage.name:
        return {}
    requested = Identity(stage.name, stage.version, identity_of(config), fingerprints)
    if not has_manifest(output) or recorded.without_inputs([PREVIOUS]) == requested:
        return {PREVIOUS: recorded.inputs[PREVIOUS]} if PREVIOUS in recorded.inputs else {}
    path = storage.join(output, RELEASE)
    return {PREVIOUS: f"{storage.read_json(path)['version']} {storage.sha256_of(path)}"}


def previous_files(output: str, prefix: str) -> list[str]:
    """Return files of the release in a folder; raise InputError if one is damaged."""
    entries = [file for file in read_manifest(output).files if file.name.startswith(prefix)]
    for problem in filter(None, (check_file(output, file) for file in entries)):
        raise InputError(f"{problem}; restore it from a copy, or start again from 1.0.0 with another --output")
    return [storage.join(output, file.name) for file in entries]

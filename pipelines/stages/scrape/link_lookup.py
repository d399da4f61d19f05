"""Looks one link up in a finished result, in the one shard and the row groups that can hold it, and its scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core import shards, storage
from pipelines.core.manifest import Identity, Manifest, has_manifest, read_manifest
from pipelines.stages.scrape.stage import SCORE_INPUT
from pipelines.stages.scrape.submission_rows import bucket_of_domain

# The inputs of a result that are no files, beside the profile.
_RULES = ("canonical URLs", "public suffixes", "months with scores at ingestion", SCORE_INPUT)


@dataclasses.dataclass(frozen=True)
class LinkInResult:
    """A link as a finished result has it (None where it has none), and in what that result differs from this call."""

    folder: str
    shard: str
    link: dict[str, Any] | None
    made_otherwise: tuple[str, ...]


def find_in_result(folder: str, url: str, domain: str, identity: Identity) -> LinkInResult | None:
    """Look a canonical URL up in a finished folder; None where there is none. `identity` is that of a scrape now.

    A result without the link that was made of other files, and otherwise too, says nothing of this one: None.
    """
    if not has_manifest(folder):
        return None
    manifest = read_manifest(folder)
    if manifest.identity.stage != identity.stage:
        return None
    shard = shards.shard_name("links", bucket_of_domain(domain, int(manifest.identity.config["shards"])))
    link = _find(storage.join(folder, shard), url)
    differences = _differences(manifest, identity)
    if link is None and differences and _shares_no_file(manifest, identity):
        return None
    if words := _other_files(manifest, identity):
        differences.append(words)
    return LinkInResult(folder, shard, link, tuple(differences))


def find_scores(folder: str, service: str, ids: Collection[str]) -> dict[str, int | None]:
    """Return the scores of some ids that a finished result fetched anew from a service; None of those not found."""
    if not has_manifest(folder) or read_manifest(folder).identity.inputs.get(SCORE_INPUT) != service:
        return {}
    found: dict[str, int | None] = {}
    wanted = pa.array(sorted(ids), pa.string())
    for batch in shards.read_batches(storage.join(folder, shards.shard_name("scores", 0)), ["id", "score"]):
        rows = batch.filter(pc.is_in(batch.column("id"), wanted))
        found |= dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return found


def _find(path: str, url: str) -> dict[str, Any] | None:
    groups = _groups_that_may_hold(path, url)
    if groups:
        for batch in shards.read_batches(path, row_groups=groups):
            rows = [row for row, each in enumerate(batch.column("url").to_pylist()) if each == url]
            if rows:
                link: dict[str, Any] = batch.slice(rows[0], 1).to_pylist()[0]
                return link
    return None


def _groups_that_may_hold(path: str, url: str) -> list[int]:
    """Return the row groups whose least and greatest URL have this one between them, or that do not say."""
    with storage.open_read(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
        column = metadata.schema.names.index("url") if metadata.num_row_groups else 0
        found = []
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(column).statistics
            if statistics is None or not statistics.has_min_max or statistics.min <= url <= statistics.max:
                found.append(group)
        return found


def _differences(manifest: Manifest, identity: Identity) -> list[str]:
    then = manifest.identity
    # Another profile is told among the options, not by its content too.
    both = then.inputs.keys() & identity.inputs.keys()
    rules, rules_now = (
        {name: value for name, value in each.inputs.items() if name in _RULES or (_is_rule(name) and name in both)}
        for each in (then, identity)
    )
    return dataclasses.replace(then, inputs=rules).differences(dataclasses.replace(identity, inputs=rules_now))


def _shares_no_file(manifest: Manifest, identity: Identity) -> bool:
    return not _files(manifest.identity) & _files(identity)


def _other_files(manifest: Manifest, identity: Identity) -> str:
    """Return in words which files differ, nothing where none do."""
    then, now = _files(manifest.identity), _files(identity)
    shared, more = len(then & now), len(now - then)
    if not then:  # it was made of an API's answers, which its option `source` says
        return ""
    if not shared:
        return f"none of its {len(then):,} files is read here" if len(then) > 1 else "its one file is not read here"
    words = [f"only {shared:,} of its {len(then):,} files are read here"] if shared < len(then) else []
    words += [f"{more:,} {'file' if more == 1 else 'files'} more than its own are read here"] if more else []
    return ", and ".join(words)


def _files(identity: Identity) -> set[tuple[str, str]]:
    return {*filter(_is_file, identity.inputs.items())}


def _is_rule(name: str) -> bool:
    return name in _RULES or name.startswith("profile ")


def _is_file(item: tuple[str, str]) -> bool:
    return not _is_rule(item[0])

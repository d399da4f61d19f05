"""Looks up one link in a finished result, in the one shard and the row groups that can contain it, and its scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.engine.manifest import Identity, Manifest, has_manifest, read_manifest
from pipelines.format import plural
from pipelines.records import shards
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.stage import SCORE_INPUT
from pipelines.stages.scrape.submission_rows import bucket_of_domain

# The inputs of a result that are not files, apart from the profile.
_RULES = ("canonical URLs", "public suffixes", "months with scores at ingestion", SCORE_INPUT)


@dataclasses.dataclass(frozen=True)
class LinkInResult:
    """A link in a finished result (None if it has none), and how that result differs from this call."""

    folder: str
    shard: str
    link: dict[str, Any] | None
    differences: tuple[str, ...]


def find_link(folder: str, url: str, domain: str, identity: Identity) -> LinkInResult | None:
    """Look up a canonical URL in a finished folder; None without one. `identity` is that of a scrape now.

    A result without the link that was built from other files and with different options is not evidence: None.
    """
    if not has_manifest(folder):
        return None
    manifest = read_manifest(folder)
    if manifest.identity.stage != identity.stage:
        return None
    shard = shards.shard_name("links", bucket_of_domain(domain, int(manifest.identity.config["shards"])))
    link = _read_link(storage.join(folder, shard), url)
    differences = _rule_differences(manifest, identity)
    if link is None and differences and not _files(manifest.identity) & _files(identity):
        return None
    if difference := _file_difference(manifest, identity):
        differences.append(difference)
    return LinkInResult(folder, shard, link, tuple(differences))


def find_scores(folder: str, service: str, ids: Collection[str]) -> dict[str, int | None]:
    """Return the scores of some ids that a finished result re-fetched from a service; None for unknown ids."""
    if not has_manifest(folder) or read_manifest(folder).identity.inputs.get(SCORE_INPUT) != service:
        return {}
    scores: dict[str, int | None] = {}
    requested = pa.array(sorted(ids), pa.string())
    for batch in shards.read_batches(storage.join(folder, shards.shard_name("scores", 0)), ["id", "score"]):
        rows = batch.filter(pc.is_in(batch.column("id"), requested))
        scores |= dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return scores


def _read_link(path: str, url: str) -> dict[str, Any] | None:
    groups = _candidate_row_groups(path, url)
    for batch in shards.read_batches(path, row_groups=groups) if groups else ():
        links: list[dict[str, Any]] = batch.filter(pc.equal(batch.column("url"), url)).to_pylist()
        if links:
            return links[0]
    return None


def _candidate_row_groups(path: str, url: str) -> list[int]:
    """Return the row groups whose range of URLs includes this one, or that have no statistics."""
    with shards.open_stream(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
        column = metadata.schema.names.index("url") if metadata.num_row_groups else 0
        statistics = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
        return [
            group
            for group, values in enumerate(statistics)
            if values is None or not values.has_min_max or values.min <= url <= values.max
        ]


def _rule_differences(manifest: Manifest, identity: Identity) -> list[str]:
    recorded = manifest.identity
    # If the profile is another one, the option says so; its content is compared only for the same profile.
    shared = recorded.inputs.keys() & identity.inputs.keys()

    def with_rules(identity: Identity) -> Identity:
        rules = {
            name: value
            for name, value in identity.inputs.items()
            if name in _RULES or (_is_rule(name) and name in shared)
        }
        return dataclasses.replace(identity, inputs=rules)

    return with_rules(recorded.with_current_options(ScrapeConfig)).differences(with_rules(identity))


def _file_difference(manifest: Manifest, identity: Identity) -> str:
    """Return how the files differ, empty if they do not."""
    recorded, current = _files(manifest.identity), _files(identity)
    shared, more = len(recorded & current), len(current - recorded)
    if not recorded:  # built from responses of an API, which the option `source` shows
        return ""
    if not shared:
        return (
            "its only file is not read here" if len(recorded) == 1 else f"none of its {len(recorded):,} files is read"
        )
    parts = [f"only {shared:,} of its {plural(len(recorded), 'file')} are read here"] if shared < len(recorded) else []
    parts += [f"{plural(more, 'other file')} {'is' if more == 1 else 'are'} read here"] if more else []
    return ", and ".join(parts)


def _files(identity: Identity) -> set[tuple[str, str]]:
    return {(name, value) for name, value in identity.inputs.items() if not _is_rule(name)}


def _is_rule(name: str) -> bool:
    return name in _RULES or name.startswith("profile ")

"""Rebuilds a corpus from a release: the stages that made its texts, with their recorded options, then a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.extract import stage as extract_stage
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.extract.extractors import extractor_version
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.stage import fetch
from pipelines.stages.filter import stage as filter_stage
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.rules import RuleSet, load_rules
from pipelines.stages.rehydrate.config import RehydrateConfig
from pipelines.stages.rehydrate.links import write_release_links
from pipelines.stages.rehydrate.release import Release, open_release
from pipelines.stages.rehydrate.stage import rehydrate

# The options of fetch that decide which pages have a text. Others, such as the User-Agent, are those of the user.
_OF_FETCH = ("max_page_bytes", "max_redirects", "honor_noarchive")
_OF_FILTER = ("profile", "redact")


def rehydrate_release(
    folder: str,
    corpus: str,
    config: RehydrateConfig,
    options: RunOptions,
    fetch_flags: Mapping[str, Any],
    retry: Sequence[str] = (),
) -> Iterator[Summary]:
    """Run each stage that rebuilds the texts of a release in a corpus folder, and yield its summary.

    Raises InputError, before anything is written, if the release was made by another version of a stage.
    """
    release = open_release(folder)
    fetch_config = release.options("fetch", FetchConfig, _OF_FETCH, fetch_flags)
    extract_config = release.options("extract", ExtractConfig)
    filter_config, rules = _line_filter(release)
    for problem in _differences(release, extract_config, rules if filter_config else None, config.any_version):
        options.progress.note(problem)
    options = dataclasses.replace(options, follow_inputs=("links", "pages", "documents"))
    links, pages, texts, filtered, output = (
        storage.join(corpus, name) for name in ("scrape", "fetch", "extract", "filter", "rehydrate")
    )
    documents = [texts]
    yield write_release_links(release, config, output=links, options=options)
    yield fetch(fetch_config, links=links, output=pages, options=options, retry=retry)
    yield extract_stage.extract(extract_config, pages=pages, links=links, output=texts, options=options)
    if filter_config:
        yield filter_stage.filter(filter_config, documents=texts, output=filtered, options=options)
        documents.append(filtered)
    yield rehydrate(config, links=links, pages=pages, documents=documents, output=output, options=options)


def _line_filter(release: Release) -> tuple[FilterConfig | None, RuleSet]:
    """Return the options of a filter that only edits texts as that of the release did, None if it did not edit them.

    Its rules are off: which documents they dropped is known.
    """
    recorded = release.options("filter", FilterConfig, _OF_FILTER)
    rules = load_rules(recorded.profile, (), (), None)
    names = dict.fromkeys(rule.name for rule in rules.rules)
    config = dataclasses.replace(recorded, set=tuple(f"{name}=off" for name in names))
    edits = any(lines for lines, _ in rules.steps) or getattr(recorded, "redact", ())
    return (config if edits and "filter" in release.stages else None), rules


def _differences(
    release: Release, extract_config: ExtractConfig, rules: RuleSet | None, any_version: bool
) -> Iterator[str]:
    """Yield why texts of equal pages may differ; raise InputError for another version, unless it is accepted."""
    if "extract" not in release.stages:
        raise InputError(
            f"{release.path}: has no stage extract, so its texts are not those of pages; nothing to rebuild"
        )
    own = {"extract": (extract_stage.STAGE.version, "extractor", extractor_version(extract_config.extractor))}
    if rules:
        own["filter"] = (filter_stage.STAGE.version, "rules", rules.fingerprint)
    for name, (version, key, value) in own.items():
        recorded = release.stages[name]
        if recorded.version != version:
            problem = f"was made by version {recorded.version} of {name}, this is version {version}"
            if not any_version:
                remedy = "install the webtext of that version, or use --any-version and see which texts are near"
                raise InputError(f"{release.path}: {problem}; {remedy}")
            yield f"{release.path}: {problem}; equal pages can give other texts"
        if recorded.inputs.get(key) != value:
            yield f"{name}: its {key} is not that of the release ({recorded.inputs.get(key)}), so texts can differ"
    if release.options("dedup", DedupConfig, ("paragraphs",)).paragraphs:
        yield "dedup removed frequent paragraphs from the texts of the release: documents that had any are not exact"

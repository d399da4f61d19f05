"""Rebuilds a corpus from a release: the stages that made its texts, with their recorded options, then a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.build import run_stage
from pipelines.corpus_config import CorpusConfig
from pipelines.engine.config import CONFIG_FILE, make_config
from pipelines.engine.journal import OutputFolder
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError
from pipelines.pipeline import BY_NAME
from pipelines.stages.extract import stage as extract
from pipelines.stages.extract.extractors import extractor_version
from pipelines.stages.fetch.archives import archives_input, open_pages
from pipelines.stages.filter import stage as filter
from pipelines.stages.filter.rules import load_rules
from pipelines.stages.rehydrate.links import Release, open_release, write_release_links
from pipelines.stages.rehydrate.stage import rehydrate

# The options that decide whether a page has a text, and which; others, such as the User-Agent, are those of the user.
_OF_FETCH, _OF_FILTER = ("max_page_bytes", "max_redirects", "honor"), ("profile", "redact")


def rehydrate_release(
    folder: str, corpus: str, options: RunOptions, fetch_flags: Mapping[str, Any], any_version: bool = False
) -> Iterator[Summary]:
    """Run each stage that rebuilds the texts of a release in a corpus folder, and yield its summary.

    Raises InputError, before anything is written, for a release of another version of a stage, unless `any_version`,
    for a folder that is no corpus, and for pages that are not there.
    """
    if storage.is_folder(corpus) and {CONFIG_FILE, *BY_NAME}.isdisjoint(storage.list_folder(corpus)):
        OutputFolder(corpus).check_unclaimed()
    release = open_release(folder)
    if "extract" not in release.stages:
        raise InputError(f"{release.path}: has no stage extract, so its texts are not of pages that could be fetched")
    configs = {"fetch": _recorded(release, "fetch", _OF_FETCH, fetch_flags), "extract": _recorded(release, "extract")}
    open_pages(configs["fetch"])
    archives_input(configs["fetch"])
    used = [(extract.STAGE, {"extractor": extractor_version(configs["extract"].extractor)})]
    recorded = _recorded(release, "filter", _OF_FILTER)
    rules = load_rules(recorded.profile, (), (), None)
    if "filter" in release.stages and (any(lines for lines, _ in rules.steps) or recorded.redact):
        # Only what edits texts: which documents the rules dropped is known.
        configs["filter"] = dataclasses.replace(recorded, set=(*{f"{rule.name}=off": None for rule in rules.rules},))
        used.append((filter.STAGE, {"rules": rules.fingerprint}))
    for stage, inputs in used:
        was = release.stages[stage.name]
        current = dataclasses.replace(was, version=stage.version, inputs={**was.inputs, **inputs})
        if problem := "; ".join(was.differences(current)):
            problem = f"{release.path}: {stage.name}: {problem}; equal pages can give other texts"
            if was.version != stage.version and not any_version:
                raise InputError(f"{problem}; install the webtext of that version, or use --any-version")
            options.progress.note(problem)
    links, pages, *documents, output = (storage.join(corpus, name) for name in ("scrape", *configs, "rehydrate"))
    yield write_release_links(release, output=links, options=options)
    for name, config in configs.items():
        yield run_stage(CorpusConfig(corpus), BY_NAME[name], config, options)
    yield rehydrate(links=links, pages=pages, documents=documents, output=output, options=options)


def _recorded(release: Release, stage: str, only: Sequence[str] = (), flags: Mapping[str, Any] | None = None) -> Any:
    """Return the recorded options of a stage (`only` some of them), overridden by flags; the defaults without one."""
    recorded = release.stages[stage].config if stage in release.stages else {}
    table = {name: value for name, value in recorded.items() if not only or name in only}
    return make_config(BY_NAME[stage].config_type(), table, flags or {}, lambda _: f"{release.path} [{stage}]")

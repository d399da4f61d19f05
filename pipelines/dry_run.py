"""`webtext build --dry-run`: what a build would do, why, and about how much disk space it needs."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

from pipelines import storage
from pipelines.build import check_stages, decide_stage
from pipelines.corpus_config import CorpusConfig, check_corpus
from pipelines.engine.config import identity_of
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import has_manifest, read_manifest
from pipelines.engine.run import RunOptions
from pipelines.engine.run_decision import RunDecision, decide_run
from pipelines.engine.stage import Stage
from pipelines.pipeline import StageSpec
from pipelines.records.input_paths import expand_globs

# For stages without an earlier result in the corpus. Of a link whose page answers: benchmarks/pipeline.md.
_WARC_BYTES_PER_LINK = 47_000
# Of a result, per byte of its input: measured on the demo's pages (extract) and on 16 MB of documentation (tokenize);
# for the others a bound, since they keep at most what they read.
_BYTES_PER_INPUT_BYTE = {
    "scrape": 1.0, "extract": 0.3, "filter": 1.0, "dedup": 1.0, "remove-wikipedia": 1.0, "tokenize": 2.6,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class StageDecision:
    """What a build would do with a stage; `action` is one of `RunDecision`.

    `disk_bytes` estimates the space that it adds while it runs, None if unknown; `basis` says how it was estimated.
    """

    stage: str
    action: str
    reason: str
    disk_bytes: int | None
    basis: str


# The size in bytes and the records of a stage's result, None if unknown.
_Size = tuple[int | None, int | None]


def decide_build(corpus: str, stages: Sequence[str], options: RunOptions) -> list[StageDecision]:
    """Return what `build` would do with stages of a corpus folder; write nothing.

    Raises what `build` raises before its first stage.
    """
    check_corpus(corpus)
    config = CorpusConfig(corpus, stages)
    changes: dict[str, _Size] = {}
    decisions = []
    for spec, stage_config in check_stages(config, stages, options):
        changing = [source for source in dict.fromkeys(config.upstream(spec.name).values()) if source in changes]
        decision = _decide(config, spec, stage_config, changing, options)
        disk_bytes, basis = _estimate(config, spec, decision, changes)
        flags = "--overwrite --discard-pages" if "--discard-pages" in decision.refusal else "--overwrite"
        reason = f"{decision.reason} (needs {flags})" if decision.action == "refuse" else decision.reason
        decisions.append(StageDecision(spec.name, decision.action, reason, disk_bytes, basis))
    return decisions


def _decide(
    config: CorpusConfig, spec: StageSpec, stage_config: Any, changing: Sequence[str], options: RunOptions
) -> RunDecision:
    output = storage.join(config.corpus, spec.name)
    recorded = OutputFolder(output).recorded_identity()
    if recorded is None and not config.own_input(spec.name):  # of which the files are looked into
        return RunDecision("run", "new", OutputFolder(output))
    if recorded is None or not changing:
        return decide_stage(config, spec, stage_config, options)
    stage: Stage = importlib.import_module(f"pipelines.stages.{spec.function}.stage").STAGE
    changed = {name: "" for name, source in config.upstream(spec.name).items() if source in changing}
    # The options of a training are recorded in another form.
    options_now = recorded.config if stage.is_expensive else identity_of(stage_config)
    inputs = {**recorded.inputs, **changed}
    requested = dataclasses.replace(recorded, version=stage.version, config=options_now, inputs=inputs)
    followed = dataclasses.replace(options, follow_inputs=tuple(config.upstream(spec.name)))
    decision = decide_run(stage, requested, None if stage.is_expensive else stage_config, output, followed)
    return dataclasses.replace(decision, reason=f"{decision.reason}, since {' and '.join(changing)} will change")


def _estimate(
    config: CorpusConfig, spec: StageSpec, decision: RunDecision, changes: dict[str, _Size]
) -> tuple[int | None, str]:
    """Return what a stage adds on disk and from what that is estimated; add the size of its result to the changes."""
    if decision.action == "keep":
        return 0, ""
    output = storage.join(config.corpus, spec.name)
    before = read_manifest(output) if has_manifest(output) else None
    main = spec.main_input or next(iter(spec.reads), None)
    if main and (source := config.upstream(spec.name).get(main)):
        folder = storage.join(config.corpus, source)
        read = read_manifest(folder) if source not in changes and has_manifest(folder) else None
        input_bytes, records = (read.size_bytes, read.records_out) if read else changes.get(source, (None, None))
        amount_before, amount = before.records_in if before else 0, records
    else:
        paths = config.own_input(spec.name) if main else list(config.files(spec.name))
        matches = expand_globs([path for path in paths if path != "-"])
        files = [file for path in matches for file in (storage.walk_files(path) if storage.is_folder(path) else [path])]
        sizes = {file: storage.size_bytes(file) for file in files}
        input_bytes, records = sum(sizes.values()) if sizes else None, None
        read_before = before.identity.inputs if before and not main else ()
        amount_before = sum(size for path, size in sizes.items() if storage.basename(path) in read_before)
        amount = input_bytes
    if before and amount_before and amount is not None:
        growth = amount / amount_before
        size: int | None = round(before.size_bytes * growth)
        basis = "from the earlier result, by the size of the input"
        records = round(before.records_out * growth)
    elif spec.name == "fetch" and records is not None:
        size, basis = records * _WARC_BYTES_PER_LINK, f"{_WARC_BYTES_PER_LINK / 1000:.0f} kB per link"
    elif (ratio := _BYTES_PER_INPUT_BYTE.get(spec.name)) and input_bytes is not None:
        size, basis = round(input_bytes * ratio), f"{ratio:g} times its input"
    else:
        size, basis = None, "not estimated"
    changes[spec.name] = size, records
    if size is not None and before and spec.name == "fetch" and decision.action == "add":
        size = max(0, size - before.size_bytes)  # the WARC files that are there are linked
    return size, basis

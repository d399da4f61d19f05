"""`webtext build` and `webtext status`: run the stages of a corpus in order, and report the state of their folders.

The state is also a page of the corpus, `index.html`, which links to the reports.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.corpus_config import CorpusConfig, check_corpus
from pipelines.engine.folder_lock import writer_of
from pipelines.engine.journal import OutputFolder, is_unfinished
from pipelines.engine.manifest import NEXT, check_file, has_manifest, read_manifest
from pipelines.engine.run import RunOptions, Summary
from pipelines.engine.run_decision import DryRun, RunDecision
from pipelines.engine.run_record import LiveProgress, read_progress, read_runs
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.format import format_done, format_rate
from pipelines.pipeline import BY_NAME, STAGE_FOLDERS, StageSpec

INDEX = "index.html"
# In the head of every page of webtext.
_GENERATOR = b'<meta name="generator" content="webtext">'


@dataclasses.dataclass(frozen=True)
class StageStatus:
    """The state of a stage's folder; `replacement` describes an unfinished new result.

    `writer` is the process that writes the folder, `progress` how far that is. `changed` are the stages because of
    which the result is stale.

    The states are `done`, `stale` (done, but what it read has changed), `damaged`, `running` (another process writes a
    first result), `unfinished`, and `-`.
    """

    stage: str
    folder: str
    state: str
    records_in: int = 0
    records_out: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    counts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    shards: int = 0
    size_bytes: int = 0
    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    replacement: str | None = None
    writer: str | None = None
    progress: LiveProgress | None = None


def build(
    corpus: str, stages: Sequence[str], options: RunOptions, on_summary: Callable[[Summary], None] | None = None
) -> list[Summary]:
    """Run stages of a corpus folder in order; `on_summary` is called after each.

    All configs and inputs are checked before the first stage starts. A finished stage is only verified; one whose input
    has changed is added to or rebuilt. Raises what a stage raises; completed work is kept, and the next call resumes
    there.
    """
    check_corpus(corpus)
    config = CorpusConfig(corpus, stages)
    runs = check_stages(config, stages, options)
    summaries = []
    for stage, stage_config in runs:
        summary = run_stage(config, stage, stage_config, options)
        if on_summary is not None:
            on_summary(summary)
        write_index(corpus, options.progress.note)
        summaries.append(summary)
    return summaries


def check_stages(config: CorpusConfig, stages: Sequence[str], options: RunOptions) -> list[tuple[StageSpec, Any]]:
    """Return stages with their options; raise UsageError or InputError if a stage cannot run."""
    runs = [(BY_NAME[name], config.options(name, BY_NAME[name].config_type())) for name in stages]
    for stage, stage_config in runs:
        _check_files(config, stage, stage_config)
        _check_sources(config, stage, stages)
    if "scrape" in stages and not options.discard_pages:
        _check_links_may_change(config, *runs[0])
    return runs


def decide_stage(config: CorpusConfig, stage: StageSpec, stage_config: Any, options: RunOptions) -> RunDecision:
    """Return what `run_stage` would do; all inputs of the stage must be there."""
    try:
        run_stage(config, stage, stage_config, dataclasses.replace(options, dry_run=True))
    except DryRun as dry_run:
        return dry_run.decision
    raise WebtextError(f"{stage.name}: made no decision about its run; this is a bug in webtext, please report it")


def run_stage(config: CorpusConfig, stage: StageSpec, stage_config: Any, options: RunOptions) -> Summary:
    """Run one stage of a corpus; a result that can be rebuilt follows a change of the stages that it reads."""
    inputs: dict[str, Any] = config.sources(stage.name)
    if stage.files and stage.files not in inputs:
        inputs[stage.files] = list(config.files(stage.name))
    paths = config.paths(stage.name)
    inputs |= paths
    follow_inputs = tuple(parameter for parameter in config.upstream(stage.name) if parameter not in paths)
    return stage.load()(
        stage_config,
        **inputs,
        output=storage.join(config.corpus, stage.name),
        options=dataclasses.replace(options, follow_inputs=follow_inputs),
    )


def status(source: str | Sequence[str], verify: bool) -> list[StageStatus]:
    """Return the state of every stage of a corpus, or of folders; with `verify`, also each missing or damaged file.

    Stages that are not part of the corpus, and have no folder, are left out.
    """
    if not isinstance(source, str):
        folders = dict.fromkeys(folder for path in source for folder in storage.glob(path) or [path])
        return [_stage_status(folder, _stage_of(folder), verify) for folder in folders]
    check_corpus(source, "-i")
    config = CorpusConfig(source)
    stages: list[StageStatus] = []
    for name in STAGE_FOLDERS:
        stale = {stage.stage for stage in stages if stage.changed}
        stages.append(_stage_status(storage.join(source, name), name, verify, config, stale))
    expected = BY_NAME.keys() - config.skipped()
    return [stage for stage in stages if stage.state != "-" or stage.stage in expected]


def describe_corpus(corpus: str) -> dict[str, Any]:
    """Return what a page about a corpus shows: its `stages`, their last finished `runs`, and their reports as `pages`.

    `evaluated` has the time of the page of `webtext evaluate`, if there is one.
    """
    folders = {name: storage.list_folder(storage.join(corpus, name)) for name in (*STAGE_FOLDERS, "evaluate")}
    pages = {name: [page for page in names if page.endswith(".html")] for name, names in folders.items()}
    evaluated = [f"{storage.modified_at(storage.join(corpus, 'evaluate', page)):%F %R}" for page in pages["evaluate"]]
    runs = {run["stage"]: run for run in read_runs(corpus) if run.get("outcome") == "done"}
    return {"stages": status(corpus, verify=False), "runs": runs, "pages": pages, "evaluated": evaluated}


def describe_run(stage: StageStatus) -> list[str]:
    """Return lines about the process that writes the folder of a stage: how far it is, and what a fetch got last."""
    line = stage.stage
    if progress := stage.progress:
        done = format_done(progress.done, progress.total, progress.unit)
        line = f"{progress.label}: {done}{format_rate(progress.rate or None, progress.seconds_left, progress.unit)}"
    lines = [f"{line} ({stage.writer})"]
    if stage.stage == "fetch":
        from pipelines.stages.fetch.segments import describe_latest

        lines += filter(None, [describe_latest(stage.folder)])
    return lines


def write_index(corpus: str, note: Callable[[str], None]) -> None:
    """Write `index.html` of a corpus: the stages, their last runs, and links to all reports.

    A page of this name that webtext did not write stays; `note` gets a line if the page cannot be written.
    """
    from pipelines.reports.render import render

    path = storage.join(corpus, INDEX)
    try:
        if storage.exists(path) and _GENERATOR not in storage.read_bytes(path):
            return
        name = storage.basename(storage.absolute_path(corpus))
        storage.write_bytes(path, render("index.html", corpus=name, **describe_corpus(corpus)).encode())
    except WebtextError as error:
        note(f"{path}: was not written ({error})")


def _stage_of(folder: str) -> str:
    if identity := OutputFolder(folder).recorded_identity():
        return identity.stage
    problem = f"is not the folder of a stage; `webtext stats -i {shlex.quote(folder)}` counts documents of any file"
    raise InputError(f"{folder}: {problem if storage.exists(folder) else 'no such file or folder'}")


def _stage_status(
    folder: str, name: str, verify: bool, config: CorpusConfig | None = None, stale: Collection[str] = ()
) -> StageStatus:
    writer = writer_of(folder)
    progress = read_progress(folder) if writer else None
    if not has_manifest(folder):
        state = "running" if writer else "unfinished"
        return StageStatus(name, folder, state if is_unfinished(folder) else "-", writer=writer, progress=progress)
    try:
        manifest = read_manifest(folder)
    except InputError as error:
        return StageStatus(name, folder, "damaged", problems=(str(error),))
    problems = [problem for file in manifest.files if (problem := check_file(folder, file))] if verify else []
    changed = config.changed_sources(name, manifest, stale) if config and name in BY_NAME else []
    return StageStatus(
        stage=name,
        folder=folder,
        state="damaged" if problems else "stale" if changed else "done",
        records_in=manifest.records_in,
        records_out=manifest.records_out,
        dropped=manifest.dropped,
        counts=manifest.counts,
        # Without what is one task of its own, such as a report.
        shards=sum(task.phase != task.name and (task.phase == "shards" or not task.work) for task in manifest.shards),
        size_bytes=manifest.size_bytes,
        problems=tuple(problems),
        changed=tuple(changed),
        replacement=OutputFolder(folder).describe_replacement(writer),
        writer=writer,
        progress=progress,
    )


def _check_links_may_change(config: CorpusConfig, scrape: StageSpec, scrape_config: Any) -> None:
    """Raise InputError if scrape would change the links of an unfinished fetch, whose pages would be lost."""
    fetch = storage.join(config.corpus, "fetch")
    folder = storage.join(fetch, NEXT) if has_manifest(fetch) else fetch
    if OutputFolder(folder).recorded_identity() is None or OutputFolder(folder).has_no_results():
        return
    if (decision := decide_stage(config, scrape, scrape_config, RunOptions())).action in ("add", "rebuild"):
        raise InputError(
            f"{folder}: an unfinished fetch reads the links, so scrape cannot change them ({decision.reason}); "
            "run `webtext fetch` first, or discard its pages with --overwrite --discard-pages"
        )


def _check_files(config: CorpusConfig, stage: StageSpec, stage_config: Any) -> None:
    """Check that the files of a stage's table exist: now, not after a week of fetching."""
    files = config.files(stage.name)
    if stage.files and stage.files not in stage.reads and not files and getattr(stage_config, "needs_files", True):
        key = stage.path_keys[0]
        example = '{ NAME = "PATH" }' if stage.file_table else "[...]"
        if not storage.exists(config.path):
            raise UsageError(
                f"{config.path}: no such file; run `webtext init {config.corpus}`, or name another folder with --corpus"
            )
        raise UsageError(f"{config.path}: [{stage.name}] has no {key}; add {key} = {example}")
    # Folders of stages may be written first, see `_check_sources`.
    own = {storage.absolute_path(storage.join(config.corpus, name)) for name in config.upstream(stage.name).values()}
    for path in filter(None, (*files.values(), *config.own_input(stage.name))):
        is_known = path == "-" or storage.absolute_path(path) in own
        if not (is_known or (storage.glob(path) if storage.is_glob(path) else storage.exists(path))):
            raise InputError(f"{path}: no such file; it is named in [{stage.name}] of {config.path}")


def _check_sources(config: CorpusConfig, stage: StageSpec, stages: Sequence[str]) -> None:
    """Check that the folder of each input exists or will be written by an earlier stage."""
    paths = config.paths(stage.name)
    for key, path in paths.items():
        if not storage.exists(path):
            raise InputError(f"{path}: no such file or folder; it is named by {key} in [{stage.name}] of {config.path}")
    for parameter, source in config.upstream(stage.name).items():
        if parameter in paths or source in stages or has_manifest(storage.join(config.corpus, source)):
            continue
        own = f', or set input = ["PATH"] in [{stage.name}] of {config.path}' if parameter == stage.main_input else ""
        raise UsageError(
            f"{stage.name} reads {source}, which is neither finished nor among the stages to run; "
            f"add --from {source}{own}"
        )

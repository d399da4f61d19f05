"""`webtext build` and `webtext status`: run the stages of a corpus in order, and report the state of their folders.

The state is also a page of the corpus, `index.html`, which links to the reports.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from pipelines import storage
from pipelines.engine.config import CONFIG_FILE, Tables, check_known, convert, make_config, option, places, read_toml
from pipelines.engine.executor import ENGINES
from pipelines.engine.folder_lock import writer_of
from pipelines.engine.journal import OutputFolder, is_unfinished
from pipelines.engine.manifest import NEXT, Manifest, check_file, has_manifest, read_manifest
from pipelines.engine.run import RunOptions, Summary
from pipelines.engine.run_decision import DryRun, RunDecision
from pipelines.engine.run_record import LiveProgress, read_progress, read_runs
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.format import format_done, format_rate
from pipelines.model.training.mixture import Source, check_name, input_name, parse_sources
from pipelines.pipeline import BY_NAME, INPUT, PIPELINE, STAGE_FOLDERS, StageSpec

# Run when [build] lists no stages: from dumps to token shards. Training and overlap audits are run on request.
DEFAULT_STAGES = ("scrape", "fetch", "extract", "dedup", "remove-wikipedia", "train-bpe", "tokenize")
# They read documents and write documents, so that a later stage can read their input instead of their output.
CAN_BE_SKIPPED = ("filter", "dedup", "remove-wikipedia")
INDEX = "index.html"
Value = TypeVar("Value")
# In the head of every page of webtext.
_GENERATOR = b'<meta name="generator" content="webtext">'


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Where the stages of a corpus run: the table [run] of `webtext.toml`."""

    workers: int | None = option(None, "Worker processes. [default: number of cores]", minimum=1)
    executor: str = option("local", "Run tasks in local processes or on a Ray cluster.", choices=ENGINES)
    ray_address: str | None = option(
        None, "Ray cluster: auto or HOST:6379. [default: RAY_ADDRESS, else a local Ray instance is started]"
    )


class CorpusConfig:
    """The `webtext.toml` of a corpus folder; without a file, every table is empty.

    Relative paths are resolved from the corpus folder. `running` are the stages of a build, of which optional ones may
    not be listed. Raises UsageError for a table that belongs to no stage.
    """

    def __init__(self, corpus: str, running: Sequence[str] = ()) -> None:
        self.corpus = corpus
        self._running = running
        self.path = storage.join(corpus, CONFIG_FILE)
        self.tables = read_toml(self.path, Tables) if storage.exists(self.path) else {}
        for name in self.tables:
            check_known(name, ["build", "run", *BY_NAME], "table", self.path)

    def options(self, stage: str, config_type: type[Any], flags: Mapping[str, Any] | None = None) -> Any:
        """Return the config of a stage: its table, overridden by command-line flags."""
        return make_config(
            config_type, self._table(stage), flags or {}, places(self.path, stage), BY_NAME[stage].path_keys
        )

    def run_settings(self, flags: Mapping[str, Any]) -> RunSettings:
        """Return the table [run], overridden by command-line flags."""
        return make_config(RunSettings, self._table("run"), flags, places(self.path, "run"))

    def files(self, stage: str) -> dict[str, str | None]:
        """Return the files that a stage's table lists, as arguments for the stage's function, with their paths.

        The path is None for an entry that is known by its name alone.
        """
        spec = BY_NAME[stage]
        if not (key := spec.file_table):
            paths = self._value(stage, spec.files, tuple[str, ...], ()) if spec.files else ()
            return {path: path for path in map(self._resolve, paths)}
        if key == "mix":
            sources = self._value(stage, key, dict[str, Source], {})
            for name in sources:
                check_name(name, places(self.path, stage)([key, name]))
            folders = {name: self._resolve(source.folder) for name, source in sources.items()}
            return {sources[name].argument(name, path): path for name, path in folders.items()}
        table = self._value(stage, key, dict[str, str | bool], {})
        named = {name: self._resolve(path) if isinstance(path, str) else None for name, path in table.items()}
        return {name if path is None else f"{name}={path}": path for name, path in named.items()}

    def paths(self, stage: str) -> dict[str, str]:
        """Return the single files and folders that a stage's table names, by key."""
        paths = {key: self._value(stage, key, str, "") for key in BY_NAME[stage].paths}
        return {key: self._resolve(path) for key, path in paths.items() if path}

    def own_input(self, stage: str) -> list[str]:
        """Return the files that a stage reads instead of the folder of an earlier stage; none by default."""
        return [self._resolve(path) for path in self._value(stage, INPUT, tuple[str, ...], ())]

    def upstream(self, stage: str) -> dict[str, str]:
        """Return the stages whose folders a stage reads, by parameter, or of a mixture by the name of the input."""
        spec = BY_NAME[stage]
        sources = {parameter: self._source(stage, parameter) for parameter in spec.reads}
        read = {parameter: source for parameter, source in sources.items() if isinstance(source, str)}
        if spec.file_table == "mix":
            own = {storage.absolute_path(storage.join(self.corpus, source)): source for source in spec.reads.values()}
            mixture = parse_sources([*self.files(stage)]).items()
            paths = {input_name(name): storage.absolute_path(source.folder) for name, source in mixture}
            read |= {name: own[path] for name, path in paths.items() if path in own}
        return read

    def sources(self, stage: str) -> dict[str, str | list[str] | None]:
        """Return what a stage reads, by parameter: the folder of a stage, files, or nothing."""
        sources = {parameter: self._source(stage, parameter) for parameter in BY_NAME[stage].reads}
        folders = {name: storage.join(self.corpus, path) for name, path in sources.items() if isinstance(path, str)}
        return sources | folders

    def changed_sources(self, stage: str, manifest: Manifest, stale: Collection[str] = ()) -> list[str]:
        """Return the sources that are `stale`, or have changed since the stage read them: its own result is stale."""
        inputs, paths, changed = manifest.identity.inputs, self.paths(stage), list[str]()
        for parameter, source in self.upstream(stage).items():
            folder = storage.join(self.corpus, source)
            # Otherwise, the stage read files from elsewhere.
            if parameter in inputs and parameter not in paths and has_manifest(folder):
                known = _fingerprints(folder)
                if source in stale or inputs[parameter] not in known:
                    changed.append(source)
        return list(dict.fromkeys(changed))

    def skipped(self) -> list[str]:
        """Return the stages of `[build] skip`, and the optional ones that are not part of the corpus."""
        names = [*self._value("build", "skip", tuple[str, ...], ())]
        for name in names:
            if name not in CAN_BE_SKIPPED:
                allowed = ", ".join(CAN_BE_SKIPPED)
                raise UsageError(f"{self.path} [build] skip: {name} cannot be skipped; only {allowed} can")
        present = (*names, *self._listed())
        return names + [stage.name for stage in PIPELINE if stage.is_optional and stage.name not in present]

    def stages(self, first: str | None, last: str | None) -> list[str]:
        """Return the stages to run: those of `[build] stages` in pipeline order, from `first` to `last`.

        Stages that are skipped, or whose result is not read since a later stage has its own input, are left out.
        """
        table = self._table("build")
        for key in table:
            check_known(key, ["stages", "skip"], "option", f"{self.path} [build]")
        names = [stage.name for stage in PIPELINE]
        listed = self._listed()
        for name in listed:
            check_known(name, names, "stage", f"{self.path} [build] stages")
        for flag, stage in {"--from": first, "--to": last}.items():
            if stage:
                check_known(stage, names, "stage", flag)
        if not listed and not first and not last:
            raise UsageError(f"{self.path} [build]: stages is empty; the stages are {', '.join(names)}")
        start = names.index(first) if first else 0
        end = names.index(last) if last else len(names) - 1
        unused = self._unused([name for name in listed if name not in self.skipped()])
        stages = [
            name for name in names[start : end + 1] if (name in listed and name not in unused) or name in (first, last)
        ]
        if not stages:
            raise UsageError(f"no stage between {first} and {last}; the order is {', '.join(names)}")
        return stages

    def _listed(self) -> list[str]:
        """Return the stages of `[build] stages`, and the optional ones that are running or have a result."""
        listed = [*self._value("build", "stages", tuple[str, ...], DEFAULT_STAGES)]
        others = [stage.name for stage in PIPELINE if stage.is_optional and stage.name not in listed]
        return listed + [
            name for name in others if name in self._running or has_manifest(storage.join(self.corpus, name))
        ]

    def _source(self, stage: str, parameter: str) -> str | list[str] | None:
        spec, own = BY_NAME[stage], self.own_input(stage)
        if own and parameter == spec.main_input:
            return own
        if parameter == "links" and spec.main_input == "pages" and (own or self.own_input("fetch")):
            return None  # these pages are not of links of scrape
        if parameter == spec.files and (files := self.files(stage)):
            return list(files)  # the mixture of pretrain
        source = spec.reads[parameter]
        return self._source(source, "documents") if source in self.skipped() else source

    def _unused(self, listed: Sequence[str]) -> set[str]:
        """Return the skipped stages, and those that are only there for stages that have their own input instead."""
        reads = {name: spec.reads for name, spec in BY_NAME.items()}
        bypassed = {name for stage in listed if self.own_input(stage) for name in _closure(stage, reads.__getitem__)}
        needed = {name for stage in {*listed} - bypassed for name in _closure(stage, self.upstream)}
        return (bypassed - needed) | {*self.skipped()}

    def _table(self, name: str) -> dict[str, Any]:
        return self.tables.get(name, {})

    def _value(self, table: str, key: str, kind: type[Value], default: Value) -> Value:
        """Return the value of a key that is not an option."""
        if key not in (values := self._table(table)):
            return default
        value = convert(values[key], kind, places(self.path), (table, key))
        if value == "" or not all(values[key].values() if isinstance(value, dict) else values[key]):
            raise UsageError(f"{places(self.path, table)([key])}: {key} names nothing; write a name, or omit it")
        return value

    def _resolve(self, path: str) -> str:
        is_absolute = path.startswith("/") or "://" in path or path == "-"
        return path if is_absolute else storage.join(self.corpus, path)


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


def finished_stages(corpus: str) -> list[str]:
    """Return the finished stages of a corpus in order; without those of `[build] skip`, whose results nothing reads."""
    skipped = CorpusConfig(corpus).skipped()
    return [name for name in STAGE_FOLDERS if name not in skipped and has_manifest(storage.join(corpus, name))]


def require_finished_stages(corpus: str) -> list[str]:
    """Return the finished stages of a corpus that is only read; raise InputError if there are none."""
    check_corpus(corpus, "-i")
    if not (finished := finished_stages(corpus)):
        unfinished = next((name for name in BY_NAME if is_unfinished(storage.join(corpus, name))), None)
        remedy = f"re-run `webtext {unfinished}`, which was interrupted" if unfinished else "run `webtext build`"
        raise InputError(f"{corpus}: no stage has finished; {remedy}, or name another folder with --corpus")
    return finished


def check_corpus(corpus: str, option: str = "") -> None:
    """Raise InputError if a folder is not a corpus; the message names the `option` that takes the folder of a stage."""
    if not storage.is_folder(corpus):
        problem = "it is a file" if storage.exists(corpus) else "no such folder"
    elif has_manifest(corpus) or is_unfinished(corpus):
        problem = f"it is the folder of a stage{'' if has_manifest(corpus) else ' that has not finished'}"
    elif {*storage.list_folder(corpus)}.isdisjoint((CONFIG_FILE, *BY_NAME)):
        problem = "no webtext.toml and no folder of a stage"
    else:
        return
    use = f", or use {option} {shlex.quote(corpus) if has_manifest(corpus) else 'PATH'}" if option else ""
    raise InputError(
        f"{corpus}: is not a corpus ({problem}); name another folder with --corpus{use}; `webtext init DIR` creates one"
    )


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


def _fingerprints(folder: str) -> tuple[str, ...]:
    """Return the fingerprints of a result and of its files; none if its manifest is damaged."""
    try:
        result = read_manifest(folder)
    except InputError:
        return ()
    # Of train-bpe, tokenize reads one file.
    return result.fingerprint(), *(file.sha256 for file in result.files)


def _closure(stage: str, reads: Callable[[str], Mapping[str, str]]) -> set[str]:
    """Return the stages that a stage reads, directly or through others."""
    direct = {*reads(stage).values()}
    return direct.union(*(_closure(source, reads) for source in direct))


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

"""The `webtext.toml` of a corpus folder: where stages run, which files they read, and which stages are part of it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from pipelines import storage
from pipelines.engine.config import CONFIG_FILE, Tables, check_known, convert, make_config, option, places, read_toml
from pipelines.engine.executor import ENGINES
from pipelines.engine.journal import is_unfinished
from pipelines.engine.manifest import Manifest, has_manifest, read_manifest
from pipelines.errors import InputError, UsageError
from pipelines.model.training.mixture import Source, check_name, input_name, parse_sources
from pipelines.pipeline import BY_NAME, INPUT, PIPELINE, STAGE_FOLDERS

# Run when [build] lists no stages: from dumps to token shards. Training and overlap audits are run on request.
DEFAULT_STAGES = ("scrape", "fetch", "extract", "dedup", "remove-wikipedia", "train-bpe", "tokenize")
# They read documents and write documents, so that a later stage can read their input instead of their output.
CAN_BE_SKIPPED = ("filter", "dedup", "remove-wikipedia")
Value = TypeVar("Value")


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


def require_finished_stages(corpus: str) -> list[str]:
    """Return the finished stages of a corpus that is only read, in order; raise InputError if there are none.

    Without those of `[build] skip`, whose results nothing reads.
    """
    check_corpus(corpus, "-i")
    skipped = CorpusConfig(corpus).skipped()
    finished = [name for name in STAGE_FOLDERS if name not in skipped and has_manifest(storage.join(corpus, name))]
    if not finished:
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

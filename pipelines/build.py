"""`webtext build`: the stages of a corpus's `webtext.toml`, one after the other; and what their folders say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.core import storage
from pipelines.core.config import CONFIG_FILE, check_known, make_config, read_tables
from pipelines.core.errors import InputError, UsageError
from pipelines.core.manifest import check_file, has_manifest, read_manifest
from pipelines.core.run import RunOptions, Summary
from pipelines.pipeline import BY_NAME, PIPELINE, StageSpec

# Without a list in [build]: from dumps to token shards. Training and audits are asked for by name.
DEFAULT_STAGES = ("scrape", "fetch", "extract", "dedup", "remove-wikipedia", "train-bpe", "tokenize")

Tables = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class StageStatus:
    """What the folder of one stage says: `state` is `done`, `begun`, or `-` where there is none."""

    stage: str
    state: str
    records_in: int = 0
    records_out: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    shards: int = 0
    size_bytes: int = 0
    problems: tuple[str, ...] = ()


def corpus_tables(corpus: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a corpus's `webtext.toml`, none where there is no file; refuse a table no stage reads."""
    path = storage.join(corpus, CONFIG_FILE)
    tables = read_tables(path) if storage.exists(path) else {}
    for name in tables:
        check_known(name, ["build", *BY_NAME], "table", path)
    return tables


def stage_table(tables: Tables, stage: str) -> dict[str, Any]:
    """Return a stage's table without the key that names files."""
    return {key: value for key, value in tables.get(stage, {}).items() if key not in other_keys(stage)}


def other_keys(stage: str) -> tuple[str, ...]:
    """Return the keys of a stage's table that are no options but name files."""
    files = BY_NAME[stage].files
    return (*((files,) if files else ()), *BY_NAME[stage].paths)


def stage_files(corpus: str, tables: Tables, stage: str) -> list[str]:
    """Return the files that a stage's table names; relative paths are meant from the corpus folder."""
    key = BY_NAME[stage].files
    values = tables.get(stage, {}).get(key, []) if key else []
    named = _string_list(values, f"[{stage}] {key}")
    # A benchmark without a path is one that is known by name.
    return [value if key == "benchmarks" and "=" not in value else _from_corpus(corpus, value) for value in named]


def stage_paths(corpus: str, tables: Tables, stage: str) -> dict[str, str]:
    """Return the single files and folders that a stage's table names, by key; relative ones as seen from the corpus."""
    table = tables.get(stage, {})
    given = {key: table[key] for key in BY_NAME[stage].paths if key in table}
    for key, value in given.items():
        if not isinstance(value, str):
            raise UsageError(f"{CONFIG_FILE}: [{stage}] {key} is not a string")
    return {key: _from_corpus(corpus, value) for key, value in given.items()}


def build_stages(tables: Tables, first: str | None, last: str | None) -> list[str]:
    """Return the stages to run: those of `[build] stages` in the line's order, between `first` and `last`."""
    table = tables.get("build", {})
    for key in table:
        check_known(key, ["stages"], "option", f"{CONFIG_FILE} [build]")
    asked = _string_list(table.get("stages", list(DEFAULT_STAGES)), "[build] stages")
    names = [stage.name for stage in PIPELINE]
    for name in asked:
        check_known(name, names, "stage", f"{CONFIG_FILE} [build]")
    for name in filter(None, (first, last)):
        check_known(name, names, "stage", "--from, --to")
    if not asked and not first and not last:
        raise UsageError(f"{CONFIG_FILE} [build]: stages is empty; the stages are {', '.join(names)}")
    low = names.index(first) if first else 0
    high = names.index(last) if last else len(names) - 1
    chosen = [name for name in names[low : high + 1] if name in asked or name in (first, last)]
    if not chosen:
        raise UsageError(f"no stage lies between {first} and {last}; the order is {', '.join(names)}")
    return chosen


def build(
    corpus: str,
    stages: Sequence[str],
    options: RunOptions,
    on_summary: Callable[[Summary], None],
) -> list[Summary]:
    """Run stages of a corpus in order; each config is checked before the first stage starts.

    A stage that is done is only verified. Raises what a stage raises; what is finished stays, and a rerun goes on.
    """
    if not storage.is_folder(corpus):
        raise InputError(f"{corpus}: no such folder; `webtext init {corpus}` makes a new corpus")
    tables = corpus_tables(corpus)
    runs = [(BY_NAME[name], _config(corpus, tables, BY_NAME[name])) for name in stages]
    for stage, config in runs:
        _require_files(corpus, tables, stage, config)
        _require_sources(corpus, tables, stage, stages)
    summaries = []
    for stage, config in runs:
        summary = stage.load()(
            config,
            **_inputs(corpus, tables, stage),
            output=storage.join(corpus, stage.name),
            options=options,
        )
        on_summary(summary)
        summaries.append(summary)
    return summaries


def status(corpus: str, verify: bool) -> list[StageStatus]:
    """Return what the folder of every stage says; with `verify`, also each file that is missing or damaged."""
    return [_stage_status(storage.join(corpus, stage.name), stage.name, verify) for stage in PIPELINE]


def _stage_status(folder: str, name: str, verify: bool) -> StageStatus:
    if not has_manifest(folder):
        begun = storage.exists(storage.join(folder, "_journal"))
        return StageStatus(name, "begun" if begun else "-")
    manifest = read_manifest(folder)
    problems = [problem for file in manifest.files if (problem := check_file(folder, file))] if verify else []
    return StageStatus(
        name,
        "done",
        manifest.records_in,
        manifest.records_out,
        manifest.dropped,
        len(manifest.final_shards),
        sum(file.size_bytes for file in manifest.files),
        tuple(problems),
    )


def _config(corpus: str, tables: Tables, stage: StageSpec) -> Any:
    where = f"{storage.join(corpus, CONFIG_FILE)} [{stage.name}]"
    return make_config(stage.config_type(), stage_table(tables, stage.name), {}, where, other_keys(stage.name))


def _inputs(corpus: str, tables: Tables, stage: StageSpec) -> dict[str, Any]:
    read: dict[str, Any] = {parameter: storage.join(corpus, source) for parameter, source in stage.reads.items()}
    files = {stage.files: stage_files(corpus, tables, stage.name)} if stage.files else {}
    return read | files | stage_paths(corpus, tables, stage.name)


def _require_files(corpus: str, tables: Tables, stage: StageSpec, config: Any) -> None:
    """Raise UsageError now, not after a week of fetching, where a stage's table names no files that it needs."""
    needed = stage.files and getattr(config, "needs_files", True)
    if needed and not stage_files(corpus, tables, stage.name):
        path = storage.join(corpus, CONFIG_FILE)
        raise UsageError(f"{path}: [{stage.name}] names no {stage.files}; add {stage.files} = [...] there")
    for value in stage_files(corpus, tables, stage.name):
        if stage.files == "benchmarks" and "=" not in value:
            continue
        name = value.rpartition("=")[2] if stage.files == "benchmarks" else value
        if name != "-" and not (storage.glob(name) if storage.is_glob(name) else storage.exists(name)):
            raise InputError(f"{name}: no such file; [{stage.name}] of {storage.join(corpus, CONFIG_FILE)} names it")


def _require_sources(corpus: str, tables: Tables, stage: StageSpec, stages: Sequence[str]) -> None:
    named = stage_paths(corpus, tables, stage.name)
    for key, path in named.items():
        if not storage.exists(path):
            raise InputError(f"{path}: no such file or folder; [{stage.name}] {key} names it")
    for parameter, source in stage.reads.items():
        if parameter not in named and source not in stages and not has_manifest(storage.join(corpus, source)):
            raise UsageError(f"{stage.name} reads {source}, which is neither finished nor among the stages to run")


def _from_corpus(corpus: str, value: str) -> str:
    """Return a path, or the path of a `NAME=PATH`, as seen from the corpus folder."""
    name, separator, path = value.rpartition("=")
    absolute = path.startswith("/") or "://" in path or path == "-"
    return name + separator + (path if absolute else storage.join(corpus, path))


def _string_list(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{CONFIG_FILE}: {where} is not a list of strings")
    return value

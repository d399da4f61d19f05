"""Every key of every TOML file that people write, with wrong values: accepted, or an error that names file and key."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from small_model import END, VOCABULARY, byte_tokenizer

from pipelines import storage
from pipelines.algorithms.quality.lines import LineRules
from pipelines.benchmark_sets import registry
from pipelines.corpus_config import CorpusConfig, RunSettings
from pipelines.engine.config import option_fields, read_toml
from pipelines.errors import InputError, UsageError
from pipelines.evaluation import definitions
from pipelines.evaluation.definitions import TaskDefinition, TaskInput, find_task
from pipelines.evaluation.stage import KINDS, build_task
from pipelines.evaluation.task import Encoder, ModelFacts
from pipelines.model.training import recipe
from pipelines.pipeline import PIPELINE
from pipelines.stages.extract import rejection
from pipelines.stages.filter import rules
from pipelines.stages.remove_wikipedia.stage import MirrorSigns, Sign
from pipelines.stages.scrape import decision

# As they are written in TOML.
_VALUES = (
    "0", "-1", "1e400", "nan", "9223372036854775808", '""', '"x"', '"("', '"{x"', "true", "[]", "{}", "[0]", '["x"]',
    "[{}]", "1979-05-27", f'"{"y" * 300}"', f"[{'1, ' * 100}]",
)  # fmt: skip
# A file as it is written: its keys by heading.
Content = Mapping[str, Mapping[str, str]]
_NAME = {"name": '"x"'}
_PROFILE = {"version": "1", "description": '"x"'}
_SCRAPE = {**_PROFILE, "min_score": "1", "karma": '"max"'}
_REJECTION = {"few_words": "1", "many_words": "2", "start_characters": "3", "titles": '["a"]', "sentences": '["b"]'}
_CHOICE = {"value": "1", "origin": '"chosen"', "note": '"x"'}
_BENCHMARK = {"title": '"x"', "dataset": '"x"', "splits": '["x"]', "license": '"x"', "homepage": '"x"'}


def _to_toml(content: Content) -> str:
    lines = (
        f"{heading}\n" + "".join(f"{key} = {value}\n" for key, value in table.items())
        for heading, table in content.items()
    )
    return "\n".join(lines)


def _read_corpus(path: Path) -> None:
    config = CorpusConfig(str(path.parent))
    if "build" in config.tables:
        config.stages(None, None)
    config.run_settings({})
    for stage in PIPELINE:
        if stage.name in config.tables:
            config.options(stage.name, stage.config_type())
            config.files(stage.name)
            config.paths(stage.name)
            config.own_input(stage.name)


@functools.cache
def _encoder() -> Encoder:
    return Encoder(byte_tokenizer().to_str().encode(), ModelFacts("model", "", 1, None, 64, VOCABULARY, END))


def _read_task(path: Path) -> None:
    task = TaskInput(find_task(str(path)), "paper", (str(path.parent / "data.jsonl"),))
    build_task(task, _encoder(), None)


def _fields(config_type: type[Any]) -> list[str]:
    return [field.name for field in option_fields(config_type)]


def _preset() -> Content:
    values = {key: choice.value for key, choice in recipe.read_preset("tiny").items()}
    return {f"[{key}]": {**_CHOICE, "value": json.dumps(value)} for key, value in values.items()}


# By file: the function that reads it, a valid file, and the keys of the table of each heading.
_FILES: dict[str, tuple[Callable[[Path], object], Content, dict[str, list[str]]]] = {
    "webtext.toml": (
        _read_corpus,
        {"": {}},
        {
            **{f"[{stage.name}]": [*stage.path_keys, *_fields(stage.config_type())] for stage in PIPELINE},
            "[run]": _fields(RunSettings),
            "[build]": ["stages", "skip"],
            "": ["build", "run", *(stage.name for stage in PIPELINE)],
        },
    ),
    **{
        f"{kind}.toml": (
            _read_task,
            {"[task]": {"kind": f'"{kind}"', "data": '"data.jsonl"'}},
            {"[task]": [*_fields(options), *definitions.OWN_KEYS]},
        )
        for kind, (options, _) in KINDS.items()
    },
    "filter.toml": (
        lambda path: rules.load_rules([str(path)], [], [], None),
        {"": _PROFILE, "[[rule]]": {**_NAME, "statistic": '"words"', "min": "1"}, "[lines]": {}},
        {
            "": [*rules.Profile.__struct_fields__],
            "[[rule]]": [*rules.Rule.__struct_fields__],
            "[lines]": [*LineRules.__struct_fields__],
        },
    ),
    "scrape.toml": (
        lambda path: read_toml(str(path), decision.Profile),
        {"": _SCRAPE, "[[rule]]": {**_NAME, "over_18": "true"}},
        {"": [*decision.Profile.__struct_fields__], "[[rule]]": [*decision.Rule.__struct_fields__]},
    ),
    "rejection.toml": (
        lambda path: read_toml(str(path), dict[str, rejection._Rule]),
        {"[x]": _REJECTION},
        {"[x]": [*rejection._Rule.__struct_fields__]},
    ),
    "signs.toml": (
        lambda path: read_toml(str(path), MirrorSigns),
        {"": {"min_weight": "2"}, "[[sign]]": {**_NAME, "pattern": '"x"'}},
        {"": [*MirrorSigns.__struct_fields__], "[[sign]]": [*Sign.__struct_fields__]},
    ),
    "preset.toml": (
        lambda _: recipe.make_recipe("tiny"),
        _preset(),
        {f"[{key}]": [*recipe.Choice.__dataclass_fields__] for key in ("layers", "dropout")},
    ),
    "known-task.toml": (
        lambda _: definitions.read_task("x"),
        {"[task]": {"title": '"x"', "kind": '"choice"'}, "[choices.gold]": _CHOICE, "[paper]": {"accuracy": "[nan]"}},
        {
            "[task]": [field.name for field in dataclasses.fields(TaskDefinition)],
            "[choices.gold]": [*recipe.Choice.__dataclass_fields__],
            "[paper]": ["accuracy"],
        },
    ),
    "benchmarks.toml": (
        lambda _: registry.known_benchmarks(),
        {"[x]": _BENCHMARK},
        {"[x]": [field.name for field in dataclasses.fields(registry.Entry)]},
    ),
}


@pytest.mark.parametrize("name", _FILES)
def test_a_wrong_value_is_named_with_its_file_and_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, content, keys = _FILES[name]
    read_bytes = storage.read_bytes
    (tmp_path / "data.jsonl").write_text("{}\n")
    path = tmp_path / name
    for module in (recipe, definitions, registry):
        monkeypatch.setattr(module, "data_path", lambda _: str(path))
    written = _to_toml(content)
    path.write_text(written)
    # Files take most of the time.
    monkeypatch.setattr(storage, "read_bytes", lambda read: written.encode() if read == str(path) else read_bytes(read))
    registry.known_benchmarks.cache_clear()
    read(path)  # the file is valid
    refused = 0
    for heading, names in keys.items():
        for key in [*names, "unknown"]:
            for value in _VALUES:
                registry.known_benchmarks.cache_clear()
                table = dict(content.get(heading, {})) | {key: value}
                # The keys of the whole file come first, without those that are headings.
                others = {other: pairs for other, pairs in content.items() if heading or other.strip("[]") != key}
                written = _to_toml({"": others.get("", {}), **others, heading: table})
                try:
                    read(path)
                except (UsageError, InputError) as error:
                    refused += 1
                    problem = str(error)
                    # A table can be wrong as a whole, and a value right, though not together with others.
                    assert any(part in problem for part in (str(path), "data.jsonl", "--set")), problem
                    assert any(part in problem for part in (key, "rule ", "--set")), problem
                except Exception as error:
                    raise AssertionError(f"{heading} {key} = {value[:80]}") from error
    registry.known_benchmarks.cache_clear()
    assert refused > 20

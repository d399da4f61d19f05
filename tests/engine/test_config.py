"""Config: one dataclass, filled from a table and flags; wrong keys and values are named."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.config import identity_of, make_config, option, places, read_toml
from pipelines.engine.run import RunOptions, Stage, stage_run
from pipelines.errors import UsageError


@dataclasses.dataclass(frozen=True)
class _Config:
    min_score: int = option(3, "Least score.", minimum=0)
    threshold: float = option(0.8, "Threshold.", minimum=0, maximum=1)
    karma: str = option("max", "Karma.", choices=("max", "sum"))
    subreddits: tuple[str, ...] = option((), "Subreddits.")
    after: str | None = option(None, "After.")
    polite: bool = option(True, "Polite.")
    concurrency: int = option(4, "Speed.", identity=False)


def _make(table: dict[str, Any], **flags: Any) -> _Config:
    return make_config(_Config, table, flags, lambda _: "webtext.toml [scrape]")


def test_flags_override_the_table_and_the_table_overrides_defaults() -> None:
    config = _make({"min_score": 5, "threshold": 1}, min_score=7)
    assert config == _Config(min_score=7, threshold=1.0)
    assert isinstance(config.threshold, float)


def test_keys_may_be_written_with_dashes_and_lists_become_tuples() -> None:
    assert _make({"min-score": 4, "subreddits": ["a", "b"]}) == _Config(min_score=4, subreddits=("a", "b"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"ms": 1}, r"webtext.toml \[scrape\]: unknown option 'ms'; did you mean min_score\?"),
        ({"min_scores": 1}, r"webtext.toml \[scrape\]: unknown option 'min_scores'; did you mean min_score\?"),
        ({"zzz": 1}, "unknown option 'zzz'; known: min_score"),
        ({"min_score": "3"}, "min_score = '3': expected a whole number"),
        ({"min_score": True}, "min_score = true: expected a whole number"),
        ({"min-score": "x"}, "min-score = 'x': expected a whole number"),
        ({"min-scores": 1}, r"unknown option 'min-scores'; did you mean min-score\?"),
        ({"min_score": -1}, "min_score = -1 must be at least 0"),
        ({"threshold": 1.5}, r"threshold = 1.5 must be at least 0 and at most 1"),
        ({"threshold": float("nan")}, "threshold = nan is not a finite number"),
        ({"threshold": float("inf")}, "threshold = inf is not a finite number"),
        ({"karma": "most"}, "karma = 'most' is not one of max, sum"),
        ({"subreddits": "a"}, "subreddits = 'a': expected a list"),
        ({"after": 2017}, "after = 2017: expected a string"),
        ({"polite": 1}, "polite = 1: expected true or false"),
    ],
)
def test_wrong_keys_and_values_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _make(table)


def test_keys_that_are_not_options_are_suggested_for_mistyped_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown option 'file'; did you mean files\?"):
        make_config(_Config, {"file": ["x"]}, {}, str, ("files",))
    with pytest.raises(UsageError, match=r"unknown option 'domains-file'; did you mean domains_file\?"):
        make_config(_Config, {"domains-file": "x"}, {}, str, ("domains_file",))


def test_a_toml_date_is_read_as_written() -> None:
    assert _make({"after": dt.date(2016, 1, 1)}).after == "2016-01-01"


def test_speed_is_not_part_of_the_identity() -> None:
    assert identity_of(_make({}, concurrency=64)) == identity_of(_make({}))
    assert identity_of(_make({"subreddits": ["a"]}))["subreddits"] == ["a"]


def test_bad_toml_and_loose_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "webtext.toml"
    path.write_text("min_score = 3\n")
    with pytest.raises(UsageError, match=r"webtext.toml: min_score = 3: expected a table"):
        read_toml(str(path), dict[str, dict[str, Any]])
    path.write_text("[scrape\n")
    with pytest.raises(UsageError, match="is not valid TOML"):
        read_toml(str(path), dict[str, dict[str, Any]])


def test_a_key_is_named_with_its_table() -> None:
    assert places("a.toml", "a")(["b"]) == "a.toml [a]"
    assert places("a.toml", "a")(["rule", 1, "b"]) == "a.toml [a.rule 2]"
    assert places("a.toml")(["b"]) == "a.toml"


@dataclasses.dataclass(frozen=True)
class _Conditional:
    source: str = option("dump", "Source.", choices=("dump", "praw", "urls"))
    archive: tuple[str, ...] = option((), "Archives.")
    window: int = option(7, "Days.", only_with="archive")
    karma: str = option("sum", "Karma.", only_with="source=dump|praw")


@pytest.mark.parametrize(
    ("table", "flags"),
    [
        ({"window": 7, "karma": "max"}, {}),
        ({"archive": ["wayback"]}, {"window": 9}),
        ({"source": "praw"}, {"karma": "max"}),
    ],
)
def test_an_option_whose_condition_is_met_is_accepted(table: dict[str, Any], flags: dict[str, Any]) -> None:
    config = make_config(_Conditional, table, flags, str)
    assert dataclasses.asdict(config) == dataclasses.asdict(_Conditional()) | {
        name: tuple(value) if isinstance(value, list) else value for name, value in (table | flags).items()
    }


def test_an_option_without_effect_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--window has no effect without --archive; set --archive or"):
        make_config(_Conditional, {}, {"window": 9}, str)
    with pytest.raises(UsageError, match=r"w\.toml: karma has no effect without source = dump or praw; set"):
        make_config(_Conditional, {"karma": "max"}, {"source": "urls"}, lambda _: "w.toml")


def test_a_config_built_in_python_is_checked_when_its_stage_runs(tmp_path: Path) -> None:
    config = _Conditional(window=9)
    with (
        pytest.raises(UsageError, match="_Conditional: window has no effect without archive"),
        stage_run(Stage("x", 1), config, inputs={}, output=str(tmp_path), options=RunOptions()),
    ):
        pass

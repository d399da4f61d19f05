"""The known benchmarks of data/benchmarks.toml: their data sets, and their figures in the paper."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from pipelines.engine.config import read_tables
from pipelines.format import loose_name
from pipelines.storage.resources import data_path


@dataclasses.dataclass(frozen=True)
class PaperFigures:
    """A column of the paper's Table 6: the percentages of a test set's 8-grams in its own train set and in WebText."""

    name: str
    own_train: float
    webtext: float


@dataclasses.dataclass(frozen=True)
class Entry:
    """A known benchmark.

    `dataset` and `config` identify it on the Hugging Face hub; `files`, with `{split}`, and their `format`, where the
    files have to be named. The first of `splits` is audited by default. `field` is that of its text, in the form of
    `--benchmark NAME:FIELD`.
    """

    name: str
    title: str
    dataset: str
    splits: tuple[str, ...]
    licence: str
    homepage: str
    config: str | None = None
    field: str = "text"
    files: str | None = None
    format: str = "parquet"
    revision: str | None = None
    aliases: tuple[str, ...] = ()
    note: str | None = None
    paper: PaperFigures | None = None

    @property
    def source(self) -> str:
        """The data set, with its config in parentheses."""
        return self.dataset if self.config is None else f"{self.dataset} ({self.config})"


@functools.cache
def known_benchmarks(path: str | None = None) -> Mapping[str, Entry]:
    """Return the benchmarks of a registry, by default data/benchmarks.toml, by their names in order."""
    tables = read_tables(path or data_path("benchmarks.toml"))
    return {name: _entry(name, tables[name]) for name in sorted(tables)}


def find_entry(name: str, known: Mapping[str, Entry] | None = None) -> Entry | None:
    """Return the benchmark of a name, ignoring case, hyphens, underscores and dots, or None."""
    for entry in (known_benchmarks() if known is None else known).values():
        if loose_name(name) in map(loose_name, (entry.name, *entry.aliases)):
            return entry
    return None


def _entry(name: str, table: Mapping[str, Any]) -> Entry:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    own_train, webtext = values.pop("paper_own_train", None), values.pop("paper_webtext", None)
    if own_train is not None and webtext is not None:
        values["paper"] = PaperFigures(str(values["title"]), float(own_train), float(webtext))
    return Entry(name=name, **values)

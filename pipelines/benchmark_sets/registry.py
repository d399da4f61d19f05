"""The known benchmarks of data/benchmarks.toml: their figures in the paper, and their data sets.

The data sets of the Hugging Face hub are loaded by the `datasets` library into its own cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from pipelines.engine.config import Tables, convert, places, read_toml
from pipelines.errors import InputError
from pipelines.extras import require_extra
from pipelines.format import loose_name
from pipelines.storage.resources import data_path

_BATCH_ROWS = 1024
_MAX_OPEN = 8


@dataclasses.dataclass(frozen=True)
class PaperFigures:
    """A column of the paper's Table 6: the percentages of a test set's 8-grams in its own train set and in WebText."""

    name: str
    own_train: float
    webtext: float


@dataclasses.dataclass(frozen=True)
class Entry:
    """A known benchmark.

    `dataset` and `config` identify it on the Hugging Face hub; `files`, with `{split}`, and `format` are set if files
    have to be named. The first of `splits` is audited by default. `field` has its text, as in `--benchmark NAME:FIELD`.
    """

    name: str
    title: str
    dataset: str
    splits: tuple[str, ...]
    license: str
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
def known_benchmarks() -> Mapping[str, Entry]:
    """Return the benchmarks of data/benchmarks.toml by their names in order."""
    path = data_path("benchmarks.toml")
    tables = read_toml(path, Tables)
    return {name: convert({"name": name, **tables[name]}, Entry, places(path, name)) for name in sorted(tables)}


def find_entry(name: str, known: Mapping[str, Entry] | None = None) -> Entry | None:
    """Return the benchmark of a name, ignoring case, hyphens, underscores and dots, or None."""
    for entry in (known_benchmarks() if known is None else known).values():
        if loose_name(name) in map(loose_name, (entry.name, *entry.aliases)):
            return entry
    return None


@dataclasses.dataclass(frozen=True)
class HubSplit:
    """One split of a known benchmark's data set, and the option that names it, as in messages."""

    entry: Entry
    split: str
    option: str

    @property
    def name(self) -> str:
        """The data set, its config and its split, as in places and messages."""
        return "/".join(filter(None, (self.entry.dataset, self.entry.config, self.split)))

    @property
    def fingerprint(self) -> str:
        """Hash of the data set's name, config, split, and its fingerprint by the library."""
        entry = self.entry
        parts = [entry.dataset, entry.config, self.split, entry.files, entry.revision, _load(self)._fingerprint]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the data set."""
        return _load(self).features.arrow_schema

    @property
    def files(self) -> tuple[str, ...]:
        """The Arrow files of the data set in the library's cache."""
        return tuple(file["filename"] for file in _load(self).cache_files)

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the data set, at most 1,024 at a time, read from the library's cache."""
        dataset = _load(self) if columns is None else _load(self).select_columns(columns)
        for table in dataset.with_format("arrow").iter(_BATCH_ROWS):
            yield from table.combine_chunks().to_batches()


@functools.lru_cache(maxsize=_MAX_OPEN)
def _load(source: HubSplit) -> Any:
    """Return the data set of a split, downloaded if it is not in the library's cache.

    Raises InputError, with the way out, if the library is not installed or cannot load the data set.
    """
    entry, split = source.entry, source.split
    remedy = f"download the file ({entry.homepage}) and use {source.option}=PATH"
    require_extra("benchmarks", f"{source.option}: a download", "datasets", otherwise=remedy)
    import datasets

    # What the library raises without a network, for a set that does not exist, and for one that needs a script; the
    # bases of the hub's error are OSError and the general error of the HTTP client that this version uses.
    http_errors = importlib.import_module("huggingface_hub.errors").HfHubHTTPError.__bases__
    errors = (OSError, ValueError, RuntimeError, pa.ArrowException, datasets.exceptions.DatasetsError, *http_errors)
    arguments: dict[str, Any] = {"path": entry.dataset, "name": entry.config, "revision": entry.revision}
    if entry.files is not None:
        arguments = {"path": entry.format, "data_files": {split: entry.files.format(split=split)}}
    try:
        with _quiet(datasets):
            return datasets.load_dataset(**arguments, split=split)
    except errors as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise InputError(
            f"{source.option}: cannot load {source.name} from the Hugging Face hub ({reason}); "
            f"check the network, or {remedy}"
        ) from error


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Hide the library's progress bars and retry warnings: a failure is reported once, as an error."""
    logging: Any = importlib.import_module("huggingface_hub.utils.logging")
    bars, verbosity = datasets.are_progress_bars_disabled(), logging.get_verbosity()
    datasets.disable_progress_bars()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if not bars:
            datasets.enable_progress_bars()

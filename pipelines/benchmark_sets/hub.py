"""Benchmarks from the Hugging Face hub, loaded by the `datasets` library into its own cache."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipelines.benchmark_sets.registry import Entry
from pipelines.errors import InputError
from pipelines.extras import require_extra

_BATCH_ROWS = 1024
_MAX_OPEN = 8


@dataclasses.dataclass(frozen=True)
class HubSplit:
    """One split of a known benchmark's data set; `option` asked for it, as in messages."""

    entry: Entry
    split: str
    option: str = ""

    @property
    def name(self) -> str:
        """The data set, its config and its split, as in places and messages."""
        parts = (self.entry.dataset, self.entry.config, self.split)
        return "/".join(part for part in parts if part is not None)

    @property
    def asked(self) -> str:
        """The option and name that asked for it."""
        return self.option or f"--benchmark {self.entry.name}"


def hub_fingerprint(source: HubSplit) -> str:
    """Return a hash of the data set's name, config, split, and its fingerprint by the library."""
    entry = source.entry
    parts = [entry.dataset, entry.config, source.split, entry.files, entry.revision, _load(source)._fingerprint]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def hub_schema(source: HubSplit) -> pa.Schema:
    """Return the columns of a data set."""
    schema: pa.Schema = _load(source).features.arrow_schema
    return schema


def hub_batches(source: HubSplit, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a data set, at most 1,024 at a time, read from the library's cache."""
    dataset = _load(source)
    if columns is not None:
        dataset = dataset.select_columns(columns)
    for table in dataset.with_format("arrow").iter(_BATCH_ROWS):
        yield from table.combine_chunks().to_batches()


def hub_files(source: HubSplit) -> tuple[str, ...]:
    """Return the Arrow files of a data set in the library's cache."""
    return tuple(file["filename"] for file in _load(source).cache_files)


@functools.lru_cache(maxsize=_MAX_OPEN)
def _load(source: HubSplit) -> Any:
    """Return the data set of a split, downloaded if it is not in the library's cache.

    Raises InputError, with the way out, if the library is not installed or cannot load the data set.
    """
    require_extra("benchmarks", f"{source.asked}: a download", "datasets", otherwise=_file_hint(source))
    import datasets

    try:
        with _quiet(datasets):
            return datasets.load_dataset(**_arguments(source))
    except _load_errors(datasets) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise InputError(
            f"{source.asked}: cannot load {source.name} from the Hugging Face hub ({reason}); "
            f"check the network, or {_file_hint(source)}"
        ) from error


def _load_errors(datasets: Any) -> tuple[type[Exception], ...]:
    """Return what the library raises if it cannot load a set: no network, no such set, or one that needs a script."""
    # The bases of the hub's error are OSError and the general error of the HTTP client that this version uses.
    http_errors = importlib.import_module("huggingface_hub.errors").HfHubHTTPError.__bases__
    return (OSError, ValueError, RuntimeError, pa.ArrowException, datasets.exceptions.DatasetsError, *http_errors)


def _arguments(source: HubSplit) -> dict[str, Any]:
    entry = source.entry
    if entry.files is not None:
        files = {source.split: entry.files.format(split=source.split)}
        return {"path": entry.format, "data_files": files, "split": source.split}
    return {"path": entry.dataset, "name": entry.config, "split": source.split, "revision": entry.revision}


def _file_hint(source: HubSplit) -> str:
    return f"download the file ({source.entry.homepage}) and use {source.asked}=PATH"


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

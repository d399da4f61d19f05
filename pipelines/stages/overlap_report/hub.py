"""Benchmarks from the Hugging Face hub, by the `datasets` library, which keeps them in its own cache."""

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

from pipelines.core.errors import InputError
from pipelines.stages.overlap_report.example_files import Texts, batch_texts, in_parts, split_records
from pipelines.stages.overlap_report.registry import Entry
from pipelines.stages.overlap_report.text_fields import TextField, text_columns

_BATCH_ROWS = 1024
_KEPT_OPEN = 8


@dataclasses.dataclass(frozen=True)
class HubSplit:
    """One split of a known benchmark's data set."""

    entry: Entry
    split: str

    @property
    def name(self) -> str:
        """The data set, its config and its split: what places and messages name."""
        parts = (self.entry.dataset, self.entry.config, self.split)
        return "/".join(part for part in parts if part is not None)


def hub_fingerprint(source: HubSplit) -> str:
    """Return a hash of the data set's name, config and split and of the fingerprint that the library gives it."""
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
    chosen = dataset if columns is None else dataset.select_columns(columns)
    for table in chosen.with_format("arrow").iter(_BATCH_ROWS):
        yield from table.combine_chunks().to_batches()


def hub_examples(source: HubSplit, field: TextField, example: str) -> Iterator[Texts]:
    """Yield the examples of a data set, as `file_examples` does those of a file.

    Raises InputError where the library is not installed, or cannot get the data set, with the way out.
    """
    schema = hub_schema(source)
    columns = field.columns(schema)
    if columns is None:
        raise field.wrong(source.name, text_columns(schema))
    return in_parts(split_records(source.name, _records(source, field, columns), example))


def _records(source: HubSplit, field: TextField, columns: list[str]) -> Iterator[Texts]:
    row = 1
    for batch in hub_batches(source, columns):
        yield batch_texts(source.name, batch, field, row)
        row += batch.num_rows


@functools.lru_cache(maxsize=_KEPT_OPEN)
def _load(source: HubSplit) -> Any:
    """Return the data set of a split, downloaded where the library's cache does not have it yet."""
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"--benchmark {source.entry.name}: a benchmark that is given without a file needs the datasets library; "
            f"pip install 'webtext-kit[benchmarks]', or {_with_a_file(source)}"
        ) from error
    try:
        with _quiet(datasets):
            return datasets.load_dataset(**_arguments(source))
    except _refusals(datasets) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise InputError(
            f"--benchmark {source.entry.name}: cannot load {source.name} from the Hugging Face hub ({reason}); "
            f"check the network, or {_with_a_file(source)}"
        ) from error


def _refusals(datasets: Any) -> tuple[type[Exception], ...]:
    """Return what the library raises where it cannot get a set: no network, no such set, or one made by a script."""
    # The bases of the hub's error are OSError and the general error of the HTTP client that this version uses.
    http_errors = importlib.import_module("huggingface_hub.errors").HfHubHTTPError.__bases__
    return (OSError, ValueError, RuntimeError, pa.ArrowException, datasets.exceptions.DatasetsError, *http_errors)


def _arguments(source: HubSplit) -> dict[str, Any]:
    entry = source.entry
    if entry.files is not None:
        files = {source.split: entry.files.format(split=source.split)}
        return {"path": entry.format, "data_files": files, "split": source.split}
    return {"path": entry.dataset, "name": entry.config, "split": source.split, "revision": entry.revision}


def _with_a_file(source: HubSplit) -> str:
    return f"download the file ({source.entry.homepage}) and give --benchmark {source.entry.name}=PATH"


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Keep the library's bars and its warnings of each try off the terminal: what fails is said once, as an error."""
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

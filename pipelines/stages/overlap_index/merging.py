"""Which indexes can be merged, and the description of the merged index."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from pipelines.algorithms.bloom.file_format import Header
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError, UsageError
from pipelines.records.ngram_filter import FilterFolder, open_filter_folder
from pipelines.stages.overlap_index.config import OverlapIndexConfig

# The fields of the header that must be equal, and the options that set them.
_EQUAL_FIELDS = {
    "n": "--ngram",
    "normalisation": "--apostrophes, --letters and --lines, and with the same version of Python",
    "seed": "seed",
    "error_rate": "--error-rate",
    "blocks": "--items",
    "k": "--items",
}


def open_indexes(paths: Sequence[str]) -> list[FilterFolder]:
    """Open indexes to be merged; their order does not depend on that of the paths.

    Raises UsageError for fewer than two; InputError for indexes that differ, naming the difference, and for two that
    contain the same documents, which would be counted twice.
    """
    if len(paths) < 2:
        raise UsageError(f"--merge {paths[0]}: only one index; name two or more, each with --merge")
    indexes = [open_filter_folder(path) for path in paths]
    for index in indexes:
        _check_equal_fields(indexes[0], index)
    _check_distinct_documents(indexes)
    return sorted(indexes, key=lambda index: index.corpus)


def merged_config(config: OverlapIndexConfig, header: Header) -> OverlapIndexConfig:
    """Return the options that the indexes were built with."""
    return dataclasses.replace(
        config,
        ngram=header.n,
        apostrophes=header.normalisation["apostrophes"],
        letters=header.normalisation["letters"],
        lines=header.normalisation["lines"],
        error_rate=header.error_rate,
        items=header.sketch_items,
    )


def merged_corpora(indexes: Sequence[FilterFolder]) -> list[str]:
    """Return the fingerprints of all inputs."""
    return sorted(corpus for index in indexes for corpus in index.corpora)


def merged_header(indexes: Sequence[FilterFolder]) -> Header:
    """Return the header of the merged filter, before it is measured."""
    headers = [index.blocked_header for index in indexes]
    return dataclasses.replace(
        headers[0],
        sketch_items=max(header.sketch_items for header in headers),
        documents=sum(header.documents for header in headers),
        corpus=hashlib.sha256("\n".join(merged_corpora(indexes)).encode()).hexdigest(),
    )


def verify_index(number: int, indexes: Sequence[FilterFolder]) -> TaskResult:
    """Verify the checksum of an index and return its number of documents; raise DamagedShardError."""
    index = indexes[number]
    index.file.verify()
    return TaskResult(records_in=index.documents, records_out=index.documents)


def _check_equal_fields(first: FilterFolder, other: FilterFolder) -> None:
    for field, options in _EQUAL_FIELDS.items():
        first_value, other_value = getattr(first.blocked_header, field), getattr(other.blocked_header, field)
        if first_value != other_value:
            raise InputError(
                f"{other.path}: cannot be merged with {first.path}: {field} is {_format_value(other_value)}, not "
                f"{_format_value(first_value)}; build both with the same {options}"
            )


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {choice}" for name, choice in sorted(value.items()))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _check_distinct_documents(indexes: Sequence[FilterFolder]) -> None:
    paths: dict[str, str] = {}
    for index in indexes:
        for corpus in index.corpora:
            if corpus in paths:
                raise InputError(
                    f"{index.path}: contains the same documents as {paths[corpus]} (fingerprint {corpus[:12]}); name "
                    "each index once"
                )
            paths[corpus] = index.path

"""The corpora of a comparison and the neutral texts: how the command line names them, and their documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pipelines import storage
from pipelines.corpus.export import last_documents
from pipelines.engine.config import CONFIG_FILE
from pipelines.engine.manifest import has_manifest
from pipelines.errors import UsageError
from pipelines.pipeline import BY_NAME
from pipelines.records import inputs
from pipelines.records.document_options import DocumentConfig

# Names are those of folders, too.
_NAMED = re.compile(r"(\w[\w.-]*)=(.+)", re.DOTALL)


class Documents(NamedTuple):
    """Documents with a name: a corpus, or a neutral text."""

    name: str
    path: str
    source: inputs.DocumentInput


def open_corpora(values: Sequence[str], config: DocumentConfig) -> list[Documents]:
    """Open corpora of the form `[NAME=]PATH`: a folder of a stage, a corpus with its last documents, or files.

    Raises UsageError for fewer than two corpora and for a name that is used twice.
    """
    if len(values) < 2:
        raise UsageError("compare: name at least two corpora, such as `webtext compare my-corpus other-corpus`")
    named = [_split(value) for value in values]
    paths = [path for name, path in named if not name]
    names = iter(_default_names(paths))
    named = [(name or next(names), path) for name, path in named]
    _check_distinct([name for name, _ in named])
    named = [(name, _documents_of(path)) for name, path in named]
    return [Documents(name, path, inputs.open_documents(path, config)) for name, path in named]


def open_texts(values: Sequence[str], config: DocumentConfig) -> list[Documents]:
    """Open neutral texts of the form `NAME=PATH`; raise UsageError for another form and for a name that repeats."""
    named = [_split(value) for value in values]
    for value, (name, _) in zip(values, named, strict=True):
        if not name:
            raise UsageError(f"--text {value}: is not of the form NAME=PATH")
    _check_distinct([name for name, _ in named])
    return [Documents(name, path, inputs.open_documents(path, config)) for name, path in named]


def _split(value: str) -> tuple[str, str]:
    match = None if storage.exists(value) else _NAMED.fullmatch(value)
    return (match[1], match[2]) if match else ("", value)


def _default_names(paths: Sequence[str]) -> list[str]:
    """Return the last parts of paths, as many as distinguish them."""
    parts = [storage.absolute_path(path).rstrip("/").split("/") for path in paths]
    for part, path in zip(parts, paths, strict=True):
        part[-1] = part[-1] if storage.is_folder(path) else part[-1].partition(".")[0]
    longest = max(map(len, parts), default=0)
    for count in range(1, longest + 1):
        names = [re.sub(r"[^\w.-]|^\W+", "_", "-".join(part[-count:])) for part in parts]
        if len({*names}) == len(names):
            return names
    return names if longest else []


def _check_distinct(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name}: is named twice; give each its own name, such as first={name} second={name}")


def _documents_of(path: str) -> str:
    is_corpus = not has_manifest(path) and not {*storage.list_folder(path)}.isdisjoint((CONFIG_FILE, *BY_NAME))
    return last_documents(path) if is_corpus else path

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
# Verdicts on two corpora, see `summarize_pairs`.
_VERDICTS = ("mixed", "undecided")


class Documents(NamedTuple):
    """Documents with a name: a corpus, or a neutral text."""

    name: str
    path: str
    source: inputs.DocumentInput


def open_corpora(values: Sequence[str], config: DocumentConfig) -> list[Documents]:
    """Open corpora of the form `[NAME=]PATH`: a folder of a stage, a corpus with its last documents, or files.

    Raises UsageError for fewer than two corpora and for a name that is used twice, or is that of a verdict.
    """
    if len(values) < 2:
        raise UsageError("compare: name at least two corpora, such as `webtext compare my-corpus other-corpus`")
    split = [split_name(value) for value in values]
    defaults = iter(_default_names([path for name, path in split if not name]))
    named = [(name or next(defaults), _last_documents(path)) for name, path in split]
    for name, path in named:
        if name in _VERDICTS:
            raise UsageError(f"{name}: is the name of a verdict; give the corpus another one: NAME={path}")
    return _open(named, config)


def open_texts(values: Sequence[str], config: DocumentConfig) -> list[Documents]:
    """Open neutral texts of the form `NAME=PATH`; raise UsageError for another form."""
    named = [split_name(value) for value in values]
    for name, path in named:
        if not name:
            raise UsageError(f"--text {path}: is not of the form NAME=PATH; give the text a name")
    return _open(named, config)


def held_out_name(corpus: str) -> str:
    """Return the name of the set of a corpus's held-out documents."""
    return f"held-out-{corpus}"


def _open(named: Sequence[tuple[str, str]], config: DocumentConfig) -> list[Documents]:
    names = [name for name, _ in named]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{repeated}: is the name of two of them; give each its own, such as one=PATH two=PATH")
    return [Documents(name, path, inputs.open_documents(path, config)) for name, path in named]


def split_name(value: str) -> tuple[str, str]:
    """Return name (empty without one) and path of `[NAME=]PATH`; a path that exists can contain `=`."""
    match = None if storage.exists(value) else _NAMED.fullmatch(value)
    return (match[1], match[2]) if match else ("", value)


def _default_names(paths: Sequence[str]) -> list[str]:
    """Return the last parts of paths, as many as distinguish them."""
    parts = [storage.absolute_path(path).rstrip("/").split("/") for path in paths]
    for part, path in zip(parts, paths, strict=True):
        part[-1] = part[-1] if storage.is_folder(path) else part[-1].lstrip(".").partition(".")[0]
    names: list[str] = []
    for count in range(1, 1 + max(map(len, parts), default=0)):
        names = [re.sub(r"[^\w.-]|^\W+", "_", "-".join(part[-count:])) for part in parts]
        if len({*names}) == len(names):
            break
    return names


def _last_documents(path: str) -> str:
    is_corpus = not has_manifest(path) and not {*storage.list_folder(path)}.isdisjoint((CONFIG_FILE, *BY_NAME))
    return last_documents(path) if is_corpus else path

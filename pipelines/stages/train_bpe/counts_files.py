"""The files of counts given instead of documents: which files these are, whether they fit together, and their size."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pipelines import storage
from pipelines.engine.journal import is_unfinished
from pipelines.engine.manifest import has_manifest
from pipelines.errors import InputError
from pipelines.records import inputs
from pipelines.stages.train_bpe.counts import measure
from pipelines.stages.train_bpe.sample import sample_files


@dataclasses.dataclass(frozen=True)
class CountsInput:
    """Counts of words: their files, a hash of their content, and the sampled texts stored with them.

    `words` and `word_bytes` are upper bounds, since files may share words; `distinct_words` and `distinct_word_bytes`
    are lower bounds: those of the largest folder or file.
    """

    files: tuple[inputs.InputFile, ...]
    fingerprint: str
    samples: tuple[inputs.InputFile, ...]
    words: int
    word_bytes: int
    distinct_words: int
    distinct_word_bytes: int


def open_counts(paths: Sequence[str], held_out: float) -> CountsInput:
    """Open folders of train-bpe and Parquet files of `word` and `count`, by name, folder or glob.

    Raises InputError for other files, for counts given twice, and for folders with another held-out fraction.
    """
    paths = [match for path in paths for match in _expand(path)]
    groups = [group for path in paths for group in _open(path, held_out)]
    files = [file for group in groups for file in group]
    _check_unique(files)
    samples = sample_files(paths)
    sizes = [tuple(map(sum, zip(*(measure(file.path) for file in group), strict=True))) for group in groups]
    distinct_words, distinct_word_bytes = max(sizes)
    return CountsInput(
        files=tuple(files),
        fingerprint=inputs.fingerprint_files([file.path for file in (*files, *samples)]),
        samples=tuple(samples),
        words=sum(words for words, _ in sizes),
        word_bytes=sum(word_bytes for _, word_bytes in sizes),
        distinct_words=distinct_words,
        distinct_word_bytes=distinct_word_bytes,
    )


def _expand(path: str) -> list[str]:
    """Return the folders that a glob matches; the path itself if it is not a glob or matches files."""
    matches = storage.glob(path) if storage.is_glob(path) else []
    return matches if any(storage.is_folder(match) for match in matches) else [path]


def _open(path: str, held_out: float) -> list[list[inputs.InputFile]]:
    """Return the files at a path in groups; the files of one group share no word."""
    if not (storage.is_folder(path) and (has_manifest(path) or is_unfinished(path))):
        files = inputs.expand_paths([path], [".parquet"])
        return [[inputs.InputFile(file, storage.size_bytes(file))] for file in files]
    folder = inputs.open_stage(path, ("train-bpe",))
    counts = folder.files("counts-", ".parquet")
    if not counts:
        raise InputError(f"{path}: contains no counts")
    fraction = folder.manifest.identity.config.get("held_out", held_out)
    if fraction != held_out:
        raise InputError(f"{path}: was counted with a held-out fraction of {fraction}; use --held-out {fraction}")
    return [counts]


def _check_unique(files: Sequence[inputs.InputFile]) -> None:
    paths: set[str] = set()
    for file in files:
        path = storage.real_path(file.path)
        if path in paths:
            raise InputError(f"{file.path}: is given to --counts twice and would count double; give it once")
        paths.add(path)

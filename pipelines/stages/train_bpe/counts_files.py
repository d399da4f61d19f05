"""The files of counts that stand for documents: which are meant, whether they go together, and how much they hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pipelines.core import inputs, storage
from pipelines.core.errors import InputError
from pipelines.core.journal import is_unfinished
from pipelines.core.manifest import has_manifest
from pipelines.stages.train_bpe.counts import measure
from pipelines.stages.train_bpe.sample import sample_files


@dataclasses.dataclass(frozen=True)
class CountsInput:
    """Counts of words from anywhere: their files, a hash of their content, and the sampled texts that lie beside them.

    `words` and `word_bytes` are those of all files together, at most, since files may share words; `distinct_words` and
    their bytes are of the folder or the file that holds most, at least.
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

    Raises InputError for others, for counts that are given twice, and for folders that held out another share.
    """
    paths = [each for path in paths for each in _meant(path)]
    found = [each for path in paths for each in _opened(path, held_out)]
    files = [file for together in found for file in together]
    _refuse_twice(files)
    samples = sample_files(paths)
    sizes = [tuple(map(sum, zip(*(measure(file.path) for file in together), strict=True))) for together in found]
    most = max(sizes)
    return CountsInput(
        files=tuple(files),
        fingerprint=inputs.fingerprint_files([file.path for file in (*files, *samples)]),
        samples=tuple(samples),
        words=sum(words for words, _ in sizes),
        word_bytes=sum(word_bytes for _, word_bytes in sizes),
        distinct_words=most[0],
        distinct_word_bytes=most[1],
    )


def _meant(path: str) -> list[str]:
    """Return the folders that a glob means, or the path as it is, where it is none or means files."""
    matches = storage.glob(path) if storage.is_glob(path) else []
    return matches if any(storage.is_folder(match) for match in matches) else [path]


def _opened(path: str, held_out: float) -> list[list[inputs.InputFile]]:
    """Return the files that are meant by a path; those of one inner list share no word."""
    if not (storage.is_folder(path) and (has_manifest(path) or is_unfinished(path))):
        each = inputs.expand_paths([path], [".parquet"])
        return [[inputs.InputFile(file, storage.size_bytes(file))] for file in each]
    folder = inputs.open_stage(path, ("train-bpe",))
    files = folder.files("counts-", ".parquet")
    if not files:
        raise InputError(f"{path}: holds no counts; it was made with --engine tokenizers")
    theirs = folder.manifest.identity.config.get("held_out", held_out)
    if theirs != held_out:
        raise InputError(f"{path}: counted apart a share of {theirs} of the documents; give --held-out {theirs}")
    return [files]


def _refuse_twice(files: Sequence[inputs.InputFile]) -> None:
    seen: set[str] = set()
    for file in files:
        name = storage.real_path(file.path)
        if name in seen:
            raise InputError(f"{file.path}: is given to --counts twice, and its words would count double; give it once")
        seen.add(name)

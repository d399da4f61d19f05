"""Asks the index of overlap-index which n-grams it holds, and certifies how far its answers are to be believed.

A Bloom filter never misses what is in it. How often it finds what is not follows from its bits; the certificate states
that bound, and tests it with n-grams of made-up words, which no corpus holds. Paper, section 4, which tried 1M strings.
"""

from __future__ import annotations

import contextlib
import functools
import math
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bloom.blocked import BLOCK_BITS, Bits, contains
from pipelines.algorithms.bloom.file_format import Header
from pipelines.algorithms.bloom.poisson import chance_of_at_least, upper_limit
from pipelines.algorithms.bloom.pybloom import false_positive_rate, fill
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.index import NgramIndex, ngram_text
from pipelines.algorithms.ngrams.random_ngrams import made_up_text
from pipelines.algorithms.ngrams.words import Normalization, ngrams
from pipelines.core import progress, storage
from pipelines.core.errors import InputError, UsageError
from pipelines.core.executor import default_workers
from pipelines.core.machine import available_memory_bytes
from pipelines.core.ngram_filter import FilterFolder, map_bits, open_filter_folder

# 0 found of 3 / p probes is what shows, at 95%, that the rate is at most p.
_PROBES_OF_RATE = 3
_LEAST_PROBES = 1_000_000
_MOST_PROBES = 1_000_000_000
# pybloom-live answers some 100,000 a second.
_MOST_SLOW_PROBES = 1_000_000
_BATCH = 1 << 20
_SLOW_BATCH = 1 << 13
_SEED = 1
# A filter whose bits are what they should be finds so many by chance once in a million times.
_TOO_RARE = 1e-6
_NAMES = ("apostrophes", "letters", "lines")


class Answers(Protocol):
    """An opened index: `fingerprint` is of the index, `corpus` of the documents in it."""

    @property
    def fingerprint(self) -> str:
        """Hash of the index and of what made it."""

    @property
    def corpus(self) -> str:
        """The fingerprint of the documents that were indexed."""

    @property
    def documents(self) -> int:
        """How many documents were indexed."""

    def require(self, n: int, normalization: Normalization) -> None:
        """Raise UsageError, naming the options to give, where the index holds n-grams of another kind."""

    def contains(self, index: NgramIndex) -> npt.NDArray[np.bool_]:
        """Tell of each distinct n-gram of an exact index whether the corpus may hold it.

        True for all that it holds, and for others with the probability `error_bound` of the certificate. The first
        question checks the checksum of all bits: DamagedShardError where they are not what the manifest vouches for.
        """

    def certificate(self, probes: int | None = None) -> dict[str, Any]:
        """Return what the filter says of itself, and what so many probes prove of it.

        `probes` are by default 3 / the error rate, from a million to a thousand million, and at most a million of the
        slow pybloom-live. Raises InputError where they find more than the bound allows.
        """


def open_filter(folder: str) -> Answers:
    """Open the folder of overlap-index; raise InputError, with the way out, where there is none that can be asked."""
    opened = open_filter_folder(folder)
    return _PybloomAnswers(opened) if opened.header is None else _BlockedAnswers(opened, opened.header)


class _BlockedAnswers:
    """Answers of our own filter, mapped into memory; one that is remote is copied to the local disk meanwhile."""

    def __init__(self, folder: FilterFolder, header: Header) -> None:
        self._folder, self._header = folder, header
        self._copies = contextlib.ExitStack()
        self.fingerprint, self.corpus, self.documents = folder.fingerprint, folder.corpus, folder.documents

    def require(self, n: int, normalization: Normalization) -> None:
        """See `Answers.require`."""
        _require(self._folder, n, normalization)

    def contains(self, index: NgramIndex) -> npt.NDArray[np.bool_]:
        """See `Answers.contains`."""
        found = np.zeros(len(index.hashes), np.bool_)
        for first in range(0, len(found), _BATCH):
            hashes = np.ascontiguousarray(index.hashes[first : first + _BATCH])
            found[first : first + _BATCH] = self._found(hashes)
            progress.advance(len(hashes))
        return found

    def certificate(self, probes: int | None = None) -> dict[str, Any]:
        """See `Answers.certificate`."""
        header = self._header
        count = probes or min(_MOST_PROBES, max(_LEAST_PROBES, math.ceil(_PROBES_OF_RATE / header.error_rate)))
        # The bits are mapped and checked here, before threads ask for them.
        bits = self._bits

        def probe(batch: range) -> int:
            return int(np.count_nonzero(contains(bits, self._made_up(batch), header.k, header.seed)))

        found = sum(_probed(probe, count, _BATCH, default_workers()))
        _require_bound(self._folder, found, count, header.error_bound)
        return {
            "keys": header.items,
            "bits": header.blocks * BLOCK_BITS,
            "bits_a_key": round(header.blocks * BLOCK_BITS / max(1, header.items), 3),
            "hashes": header.k,
            "fill": header.fill,
            "error_rate": header.error_rate,
            "error_bound": header.error_bound,
            **_proof(found, count),
        }

    @functools.cached_property
    def _bits(self) -> Bits:
        self._folder.file.verify()
        self._note_what_is_unlike()
        local = self._copies.enter_context(storage.local_copy(self._folder.file.path))
        return map_bits(local, self._header)

    def _note_what_is_unlike(self) -> None:
        """Say where letters may be told apart otherwise than they were, and where answers will be slow."""
        theirs, ours = self._header.normalisation.get("unicode"), unicodedata.unidata_version
        if theirs != ours:
            progress.note(
                f"{self._folder.path}: was made with Unicode {theirs}, this Python has {ours}: n-grams with a letter "
                "that only one of them knows are not found"
            )
        free, size = available_memory_bytes(), self._header.blocks * BLOCK_BITS // 8
        if free is not None and size > free:
            progress.note(
                f"{self._folder.path}: takes {size / 1e9:,.1f} GB, but {free / 1e9:,.1f} GB of memory are free: it is "
                "asked at the speed of the disk"
            )

    def _found(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        return contains(self._bits, hashes, self._header.k, self._header.seed)

    def _made_up(self, batch: range) -> npt.NDArray[np.uint64]:
        text = made_up_text(batch.start, len(batch), self._folder.n, _SEED)
        starts = np.array([0, len(text)])
        return text_ngram_hashes(text, starts, self._folder.n, self._folder.normalization).hashes


class _PybloomAnswers:
    """Answers of a filter of pybloom-live, which is read into memory as a whole and asked for words."""

    def __init__(self, folder: FilterFolder) -> None:
        self._folder = folder
        self.fingerprint, self.corpus, self.documents = folder.fingerprint, folder.corpus, folder.documents

    def require(self, n: int, normalization: Normalization) -> None:
        """See `Answers.require`."""
        _require(self._folder, n, normalization)

    def contains(self, index: NgramIndex) -> npt.NDArray[np.bool_]:
        """See `Answers.contains`."""
        found = np.zeros(len(index.hashes), np.bool_)
        for number in range(len(found)):
            found[number] = ngram_text(index, number) in self._bloom
            progress.advance()
        return found

    def certificate(self, probes: int | None = None) -> dict[str, Any]:
        """See `Answers.certificate`."""
        bloom, described = self._bloom, self._folder.description
        count = min(_MOST_SLOW_PROBES, probes or _MOST_SLOW_PROBES)

        def probe(batch: range) -> int:
            words = made_up_text(batch.start, len(batch), self._folder.n, _SEED).tobytes().decode().split()
            return sum(ngram in bloom for ngram in ngrams(words, self._folder.n))

        bound = false_positive_rate(bloom)
        found = sum(_probed(probe, count, _SLOW_BATCH, 1))
        _require_bound(self._folder, found, count, bound)
        return {
            "keys": int(described["items"]),
            "bits": int(bloom.num_bits),
            "bits_a_key": round(int(bloom.num_bits) / max(1, int(described["items"])), 3),
            "hashes": int(bloom.num_slices),
            "fill": fill(bloom),
            "error_rate": float(described["error_rate"]),
            "error_bound": bound,
            **_proof(found, count),
        }

    @functools.cached_property
    def _bloom(self) -> Any:
        from pybloom_live import BloomFilter

        self._folder.file.verify()
        with storage.open_read(self._folder.file.path) as stream:
            return BloomFilter.fromfile(stream)


def _require(folder: FilterFolder, n: int, normalization: Normalization) -> None:
    held = {"ngram": folder.n} | {name: getattr(folder.normalization, name) for name in _NAMES}
    asked = {"ngram": n} | {name: getattr(normalization, name) for name in _NAMES}
    wrong = [name for name in held if held[name] != asked[name]]
    if wrong:
        flags = " ".join(f"--{name} {held[name]}" for name in wrong)
        differences = ", ".join(f"{name} {held[name]}, not {asked[name]}" for name in wrong)
        raise UsageError(f"{folder.path}: was made with {differences}; ask for what it holds with {flags}")


def _probed(probe: Callable[[range], int], count: int, batch: int, threads: int) -> Iterator[int]:
    """Yield what each batch of probes finds, in their order; which thread takes which changes nothing."""
    batches = [range(first, min(count, first + batch)) for first in range(0, count, batch)]
    with ThreadPoolExecutor(threads) as pool:
        try:
            for tried, found in zip(batches, pool.map(probe, batches), strict=True):
                progress.advance(len(tried))
                yield found
        finally:
            pool.shutdown(cancel_futures=True)


def _require_bound(folder: FilterFolder, found: int, probes: int, error_bound: float) -> None:
    if chance_of_at_least(found, probes * error_bound) < _TOO_RARE:
        raise InputError(
            f"{folder.file.path}: finds {found:,} of {probes:,} n-grams that no corpus holds, where its bits allow "
            f"{probes * error_bound:,.1f}: it is not what its description says; make it anew with webtext overlap-index"
        )


def _proof(found: int, probes: int) -> dict[str, Any]:
    return {"probes": probes, "found": found, "upper_bound": min(1.0, upper_limit(found) / probes)}

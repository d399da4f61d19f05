"""Queries the index of overlap-index, and certifies its false-positive rate.

A Bloom filter never misses what it contains. Its false-positive rate follows from its bits; the certificate states that
bound and tests it with n-grams of random words, which no corpus contains. Paper, section 4, which tried 1M strings.
"""

from __future__ import annotations

import contextlib
import functools
import math
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pipelines import progress, storage
from pipelines.algorithms.bloom.blocked import BLOCK_BITS, Bits, contains
from pipelines.algorithms.bloom.file_format import Header
from pipelines.algorithms.bloom.poisson import tail_probability, upper_limit
from pipelines.algorithms.bloom.pybloom import false_positive_rate, fill
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.index import NgramIndex, ngram_text
from pipelines.algorithms.ngrams.random_ngrams import random_ngram_text
from pipelines.algorithms.ngrams.words import Normalization, ngrams
from pipelines.engine.executor import default_workers
from pipelines.engine.machine import available_memory_bytes
from pipelines.errors import InputError, UsageError
from pipelines.format import format_bytes
from pipelines.records.ngram_filter import FilterFolder, map_bits, open_filter_folder, read_pybloom
from pipelines.stages.overlap_report.indexing import Flags

# 0 hits of 3 / p probes show, at 95%, that the rate is at most p.
_PROBES_PER_INVERSE_RATE = 3
_MIN_PROBES, _MAX_PROBES = 1_000_000, 1_000_000_000
# pybloom-live answers some 100,000 queries per second.
_MAX_PYBLOOM_PROBES = 1_000_000
_SEED = 1
# More hits than the bound explains, with this probability, mean that the filter is not as described.
_IMPLAUSIBLE = 1e-6


class FilterIndex:
    """An index that answers, for any n-gram, whether its corpus may contain it."""

    def __init__(self, folder: FilterFolder) -> None:
        self.fingerprint, self.corpus, self.documents = folder.fingerprint, folder.corpus, folder.documents
        self._folder = folder
        self._filter = _PybloomFilter(folder) if folder.header is None else _BlockedFilter(folder, folder.header)

    def check_options(self, n: int, normalization: Normalization) -> None:
        """Raise UsageError, naming the options to use, if the index contains n-grams of another kind."""
        names = ("apostrophes", "letters", "lines")
        built = {"ngram": self._folder.n} | {name: getattr(self._folder.normalization, name) for name in names}
        chosen = {"ngram": n} | {name: getattr(normalization, name) for name in names}
        different = [name for name in built if built[name] != chosen[name]]
        if different:
            flags = " ".join(f"--{name} {built[name]}" for name in different)
            differences = ", ".join(f"{name} {built[name]}, not {chosen[name]}" for name in different)
            raise UsageError(f"{self._folder.path}: was built with {differences}; use {flags}")

    def contains(self, index: NgramIndex) -> Flags:
        """Return for each n-gram of an exact index whether the corpus may contain it.

        True for all that it contains, and for others with the probability `error_bound` of the certificate. The first
        query verifies the checksum of the bits: DamagedShardError if they do not match the manifest.
        """
        found = np.zeros(len(index.hashes), np.bool_)
        for batch in _split_range(len(found), self._filter.batch):
            found[batch.start : batch.stop] = self._filter.contains(index, batch)
            progress.advance(len(batch))
        return found

    def certificate(self, probes: int | None = None) -> dict[str, Any]:
        """Return the figures of the filter, and the upper bound of its rate that `probes` random n-grams prove.

        By default 3 / the error rate, from a million to a thousand million, and at most a million of the slow
        pybloom-live. Raises InputError if they find more than the bound of the filter explains.
        """
        figures = self._filter.figures()
        probes = self._filter.choose_probes(probes)
        found = 0
        batches = list(_split_range(probes, self._filter.batch))
        with ThreadPoolExecutor(self._filter.threads) as pool:
            try:
                for batch_range, hits in zip(batches, pool.map(self._filter.count_random, batches), strict=True):
                    progress.advance(len(batch_range))
                    found += hits
            finally:
                pool.shutdown(cancel_futures=True)
        expected = probes * figures["error_bound"]
        if tail_probability(found, expected) < _IMPLAUSIBLE:
            raise InputError(
                f"{self._folder.file.path}: finds {found:,} of {probes:,} random n-grams, which no corpus contains, "
                f"but its bits explain {expected:,.1f}: it is not as described; rebuild it with `webtext overlap-index`"
            )
        bits_per_key = round(figures["bits"] / max(1, figures["keys"]), 3)
        upper_bound = min(1.0, upper_limit(found) / probes)
        return {**figures, "bits_a_key": bits_per_key, "probes": probes, "found": found, "upper_bound": upper_bound}


def open_filter(folder: str) -> FilterIndex:
    """Open the folder of overlap-index; raise InputError, with the way out, if it cannot be queried."""
    return FilterIndex(open_filter_folder(folder))


class _BlockedFilter:
    """A blocked filter, memory-mapped; a remote one is copied to the local disk first."""

    batch = 1 << 20

    def __init__(self, folder: FilterFolder, header: Header) -> None:
        self._folder, self._header = folder, header
        self._copies = contextlib.ExitStack()
        self.threads = default_workers()

    def contains(self, index: NgramIndex, ids: range) -> Flags:
        hashes = np.ascontiguousarray(index.hashes[ids.start : ids.stop])
        return contains(self._bits, hashes, self._header.k, self._header.seed)

    def choose_probes(self, probes: int | None) -> int:
        needed = math.ceil(_PROBES_PER_INVERSE_RATE / self._header.error_rate)
        return probes or min(_MAX_PROBES, max(_MIN_PROBES, needed))

    def count_random(self, numbers: range) -> int:
        n, normalization = self._folder.n, self._folder.normalization
        text = random_ngram_text(numbers.start, len(numbers), n, _SEED)
        hashes = text_ngram_hashes(text, np.array([0, len(text)]), n, normalization).hashes
        return int(np.count_nonzero(contains(self._bits, hashes, self._header.k, self._header.seed)))

    def figures(self) -> dict[str, Any]:
        header = self._header
        assert len(self._bits) == header.blocks  # mapped and verified before threads query them
        return {
            "keys": header.items,
            "bits": header.blocks * BLOCK_BITS,
            "hashes": header.k,
            "fill": header.fill,
            "error_rate": header.error_rate,
            "error_bound": header.error_bound,
        }

    @functools.cached_property
    def _bits(self) -> Bits:
        self._folder.file.verify()
        self._note_limitations()
        local = self._copies.enter_context(storage.local_copy(self._folder.file.path))
        return map_bits(local, self._header)

    def _note_limitations(self) -> None:
        built, current = self._header.normalisation.get("unicode"), unicodedata.unidata_version
        if built != current:
            progress.note(
                f"{self._folder.path}: was built with Unicode {built}, this Python has {current}: n-grams with a "
                "letter that only one of them knows are not found"
            )
        free, size = available_memory_bytes(), self._header.blocks * BLOCK_BITS // 8
        if free is not None and size > free:
            progress.note(
                f"{self._folder.path}: takes {format_bytes(size)}, but {format_bytes(free)} of memory are free: "
                "queries are as slow as the disk"
            )


class _PybloomFilter:
    """A filter of pybloom-live, which is read into memory and queried with words."""

    batch = 1 << 13
    threads = 1

    def __init__(self, folder: FilterFolder) -> None:
        self._folder = folder

    def contains(self, index: NgramIndex, ids: range) -> Flags:
        return np.array([ngram_text(index, id) in self._bloom for id in ids], np.bool_)

    def choose_probes(self, probes: int | None) -> int:
        return min(_MAX_PYBLOOM_PROBES, probes or _MAX_PYBLOOM_PROBES)

    def count_random(self, numbers: range) -> int:
        n = self._folder.n
        words = random_ngram_text(numbers.start, len(numbers), n, _SEED).tobytes().decode().split()
        return sum(ngram in self._bloom for ngram in ngrams(words, n))

    def figures(self) -> dict[str, Any]:
        bloom, description = self._bloom, self._folder.description
        return {
            "keys": int(description["items"]),
            "bits": int(bloom.num_bits),
            "hashes": int(bloom.num_slices),
            "fill": fill(bloom),
            "error_rate": float(description["error_rate"]),
            "error_bound": false_positive_rate(bloom),
        }

    @functools.cached_property
    def _bloom(self) -> Any:
        self._folder.file.verify()
        return read_pybloom(self._folder.file.path)


def _split_range(count: int, batch: int) -> Iterator[range]:
    return (range(first, min(count, first + batch)) for first in range(0, count, batch))

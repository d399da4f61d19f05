"""Queries the index of overlap-index, and certifies its false-positive rate.

A Bloom filter never misses what it contains. Its false-positive rate follows from its bits; the certificate states that
bound and tests it with n-grams of random words, which no corpus contains. Paper, section 4, which tried 1M strings.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pipelines import progress
from pipelines.algorithms.bloom.blocked import BLOCK_BITS, BLOCK_BYTES, Bits, Hashes, contains
from pipelines.algorithms.bloom.probes import random_words, tail_probability, upper_limit
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.index import NgramIndex
from pipelines.algorithms.ngrams.overlap_counts import Flags
from pipelines.engine.executor import default_workers
from pipelines.engine.machine import available_memory_bytes
from pipelines.errors import InputError, UsageError
from pipelines.format import format_bytes
from pipelines.records.ngram_filter import map_bits, open_filter_folder
from pipelines.records.ngram_options import NgramConfig

# 0 hits of 3 / p probes show, at 95%, that the rate is at most p.
_PROBES_PER_INVERSE_RATE = 3
_MIN_PROBES, _MAX_PROBES = 1_000_000, 1_000_000_000
_BATCH = 1 << 20
_SEED = 1
# Hits that are less likely than this, given the bound, show that the filter is not as described.
_IMPLAUSIBLE = 1e-6


class FilterIndex:
    """The index in a folder, which answers for any n-gram whether its corpus may contain it.

    Raises InputError for a folder that cannot be queried. The bits are memory-mapped; those of a remote index are
    copied to the local disk first. The first query verifies their checksum: DamagedShardError if it does not match the
    manifest.
    """

    def __init__(self, folder: str) -> None:
        self.folder = open_filter_folder(folder)
        self.header = self.folder.header
        self.threads = default_workers()

    def check_options(self, config: NgramConfig) -> None:
        """Raise UsageError, naming the options to use, if the index contains n-grams of another kind."""
        options = {"ngram": self.header.n, **dataclasses.asdict(self.header.normalization)}
        conflicts = {name: value for name, value in options.items() if value != getattr(config, name)}
        if conflicts:
            flags = " ".join(f"--{name} {value}" for name, value in conflicts.items())
            differences = ", ".join(f"{name} {value}, not {getattr(config, name)}" for name, value in conflicts.items())
            raise UsageError(f"{self.folder.path}: was built with {differences}; use {flags}")

    def contains(self, index: NgramIndex) -> Flags:
        """Return for each n-gram of an exact index whether the corpus may contain it.

        True for all that it contains, and for others with the probability `error_bound` of the certificate.
        """
        hashes = index.arrays.hashes
        is_found = np.zeros(len(hashes), np.bool_)
        for first in range(0, len(hashes), _BATCH):
            batch = np.ascontiguousarray(hashes[first : first + _BATCH])
            is_found[first : first + _BATCH] = self._query(batch)
            progress.advance(len(batch))
        return is_found

    def certificate(self, probes: int | None = None) -> dict[str, Any]:
        """Return the figures of the filter, and the upper bound of its rate that `probes` random n-grams prove.

        By default 3 / the error rate, from a million to a thousand million. Raises InputError for more hits than the
        bound of the filter explains.
        """
        header = self.header
        default = math.ceil(_PROBES_PER_INVERSE_RATE / header.error_rate)
        probes = probes or min(_MAX_PROBES, max(_MIN_PROBES, default))
        hits = 0
        assert len(self._bits) == header.blocks  # mapped and verified before threads query them
        batches = [range(first, min(probes, first + _BATCH)) for first in range(0, probes, _BATCH)]
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                for batch, batch_hits in zip(batches, pool.map(self._count_random, batches), strict=True):
                    progress.advance(len(batch))
                    hits += batch_hits
            finally:
                pool.shutdown(cancel_futures=True)
        expected = probes * header.error_bound
        if tail_probability(hits, expected) < _IMPLAUSIBLE:
            raise InputError(
                f"{self.folder.file.path}: finds {hits:,} of {probes:,} random n-grams, which no corpus contains, "
                f"but its fill explains only {expected:,.1f}; it is damaged: rebuild it with `webtext overlap-index`"
            )
        bits = header.blocks * BLOCK_BITS
        return {
            "keys": header.items,
            "bits": bits,
            "bits_a_key": round(bits / max(1, header.items), 3),
            "hashes": header.k,
            "fill": header.fill,
            "error_rate": header.error_rate,
            "error_bound": header.error_bound,
            "probes": probes,
            "found": hits,
            "upper_bound": min(1.0, upper_limit(hits) / probes),
        }

    def _query(self, hashes: Hashes) -> Flags:
        return contains(self._bits, hashes, self.header.k, self.header.seed)

    def _count_random(self, numbers: range) -> int:
        text = random_words(len(numbers) + self.header.n - 1, _SEED, numbers.start)
        starts = np.array([0, len(text)])
        hashes = text_ngram_hashes(text, starts, self.header.n, self.header.normalization).hashes
        return int(np.count_nonzero(self._query(hashes)))

    @functools.cached_property
    def _bits(self) -> Bits:
        self.folder.file.verify()
        index_version, version = self.header.normalisation["unicode"], unicodedata.unidata_version
        if index_version != version:
            progress.note(
                f"{self.folder.path}: was built with Unicode {index_version}, this Python has {version}: n-grams with "
                "letters that only one of the versions defines are not found"
            )
        free, size = available_memory_bytes(), self.header.blocks * BLOCK_BYTES
        if free is not None and size > free:
            progress.note(
                f"{self.folder.path}: takes {format_bytes(size)}, but {format_bytes(free)} of memory is free: "
                "queries are as slow as the disk"
            )
        return map_bits(self.folder.file.path, self.header)

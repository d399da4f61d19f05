"""Bloom filters of 64-bit hashes: ours beside a classic layout in numba, pybloom_live and rbloom, one core each.

    pip install rbloom
    python benchmarks/bench_bloom.py [--gigabytes 1.15] [--million 8] [--rounds 5] [--libraries-million 1]

Ours and the classic one are of the same size and at the fill that they have when they are full: all bits first get that
fill by chance, so that queries meet a full filter, then so many million hashes are added and asked for, and as many
others that were not added (a quarter as many of the slow classic one where all k bits are touched). rbloom and
pybloom_live get fewer keys and a filter for those, which fits the cache better. pybloom_live takes the hash as 8 bytes;
rbloom takes Python's own hash of a whole number, its default. The measured error is that of filters for 2 million
hashes at 1 in 1,000, asked for 10 million others. Medians of rounds in which all take turns, by processor time; what
others on the machine take of the memory's bandwidth shows all the same.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.algorithms.bloom import hyperloglog as distinct_count
from pipelines.algorithms.bloom.blocked import add_range, blocks_by_bits_set, contains, empty_bits, measurement_of
from pipelines.algorithms.bloom.sizing import size_for
from pipelines.algorithms.kernels.compilation import helper, kernel
from pipelines.algorithms.kernels.splitmix import STEP, mix

ERROR_RATE = 1e-8
TRIED_RATE = 1e-3

mixed = helper(mix)


@kernel
def classic_add(bits, hashes, k):  # type: ignore[no-untyped-def]
    count = np.uint64(len(bits) * 8) >> np.uint64(12)
    for hashed in hashes:
        word = mixed(hashed)
        for _ in range(k):
            word += STEP
            position = (mixed(word) >> np.uint64(12)) % (count << np.uint64(12))
            bits[position >> np.uint64(3)] |= np.uint8(1) << np.uint8(position & np.uint64(7))


@kernel
def classic_contains(bits, hashes, k, found):  # type: ignore[no-untyped-def]
    count = np.uint64(len(bits) * 8) >> np.uint64(12)
    for at in range(len(hashes)):
        word = mixed(hashes[at])
        found[at] = True
        for _ in range(k):
            word += STEP
            position = (mixed(word) >> np.uint64(12)) % (count << np.uint64(12))
            if not (bits[position >> np.uint64(3)] >> np.uint8(position & np.uint64(7))) & 1:
                found[at] = False
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.15)
    parser.add_argument("--million", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--libraries-million", type=float, default=1)
    options = parser.parse_args()
    report_machine("before")
    random = np.random.default_rng(1)
    count = int(options.million * 1e6)
    inside, outside = hashes(random, count), hashes(random, count)
    compared = {
        f"ours, {options.gigabytes:g} GB": ours(options.gigabytes * 1e9, inside, outside, random),
        f"ours, {options.gigabytes:g} GB, mapped from a file": mapped(options.gigabytes * 1e9, inside, outside, random),
        "ours, 4 MB": ours(4e6, inside, outside, random),
        f"classic in numba, {options.gigabytes:g} GB": classic(options.gigabytes * 1e9, inside, outside, random),
        "rbloom": rbloom(int(options.libraries_million * 1e6), random),
        "pybloom_live": pybloom_live(int(options.libraries_million * 1e6 / 5), random),
        "distinct count": sketch(inside),
        "our checksum and measurement, hashes of a full filter a second": passes(options.gigabytes * 1e9),
    }
    # The first round compiles, and brings the memory there.
    rounds = [run_all(compared) for _ in range(1 + options.rounds)][1:]
    print("\nmillion a second: median (least to most)")
    for name, works in compared.items():
        for work in works:
            rates = [each[name][work] / 1e6 for each in rounds]
            print(f"{name} | {work} | {statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f})")
    report_sizes()
    report_errors(random)
    report_machine("after")


def hashes(random: np.random.Generator, count: int) -> Any:
    return random.integers(0, 1 << 64, count, dtype=np.uint64)


def run_all(compared: dict[str, dict[str, Callable[[], int]]]) -> dict[str, dict[str, float]]:
    return {name: {work: timed(run) for work, run in works.items()} for name, works in compared.items()}


def timed(run: Callable[[], int]) -> float:
    start = time.process_time()
    return run() / (time.process_time() - start)


def half_filled(blocks: int, fill: float, random: np.random.Generator) -> Any:
    """Return bits of which such a share is set, by chance: 16 levels, a piece at a time."""
    bits = empty_bits(blocks)
    words = bits.reshape(-1).view(np.uint64)
    for first in range(0, len(words), 1 << 22):
        piece = words[first : first + (1 << 22)]
        for bit in f"{round(fill * 16):04b}"[::-1]:
            drawn = hashes(random, len(piece))
            piece[:] = piece | drawn if bit == "1" else piece & drawn
    return bits


def ours(size_bytes: float, inside: Any, outside: Any, random: np.random.Generator) -> dict[str, Callable[[], int]]:
    items = int(size_bytes * 8 / 41.42)
    size = size_for(items, ERROR_RATE)
    if items <= len(inside):
        return works(empty_bits(size.blocks), size.k, inside[:items], outside[:items], adds=True)
    return works(half_filled(size.blocks, measured_fill(), random), size.k, inside, outside, adds=True)


def mapped(size_bytes: float, inside: Any, outside: Any, random: np.random.Generator) -> dict[str, Callable[[], int]]:
    size = size_for(int(size_bytes * 8 / 41.42), ERROR_RATE)
    bits = half_filled(size.blocks, measured_fill(), random)
    add_range(bits, inside, size.k, 0, 0, len(bits))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bits"
        bits.tofile(path)
        # The file goes with the folder; its bytes stay as long as they are mapped.
        return works(np.memmap(path, np.uint8, "r", shape=bits.shape), size.k, inside, outside, adds=False)


def works(bits: Any, k: int, inside: Any, outside: Any, *, adds: bool) -> dict[str, Callable[[], int]]:
    def asked(keys: Any, expected: bool) -> int:
        found = contains(bits, keys, k)
        assert (found.mean() > 0.999) == expected
        return len(keys)

    def added() -> int:
        add_range(bits, inside, k, 0, 0, len(bits))
        return len(inside)

    asking = {"misses": lambda: asked(outside, False), "hits": lambda: asked(inside, True)}
    return {"adds": added, **asking} if adds else asking


def measured_fill() -> float:
    size = size_for(200_000, ERROR_RATE)
    bits = empty_bits(size.blocks)
    add_range(bits, hashes(np.random.default_rng(5), 200_000), size.k, 0, 0, len(bits))
    return measurement_of(blocks_by_bits_set(bits), size.k).fill


def classic(size_bytes: float, inside: Any, outside: Any, random: np.random.Generator) -> dict[str, Callable[[], int]]:
    bits = half_filled(int(size_bytes) // 512, 0.5, random).reshape(-1)
    found = np.zeros(len(outside), np.bool_)

    def added() -> int:
        classic_add(bits, inside[: len(inside) // 4], 27)
        return len(inside) // 4

    def asked(keys: Any) -> int:
        classic_contains(bits, keys, 27, found)
        return len(keys)

    return {"adds": added, "misses": lambda: asked(outside), "hits": lambda: asked(inside[: len(inside) // 4])}


def rbloom(count: int, random: np.random.Generator) -> dict[str, Callable[[], int]]:
    from rbloom import Bloom

    inside, outside = hashes(random, count).tolist(), hashes(random, count).tolist()
    bloom = Bloom(count, ERROR_RATE)
    print(f"rbloom: {bloom.size_in_bits / count:.1f} bits a key, {count:,} keys, {bloom.size_in_bits / 8e6:.1f} MB")

    def added() -> int:
        bloom.update(inside)
        return count

    return {
        "adds": added,
        "misses": lambda: len([key for key in outside if key not in bloom]),
        "hits": lambda: len([key for key in inside if key in bloom]),
    }


def pybloom_live(count: int, random: np.random.Generator) -> dict[str, Callable[[], int]]:
    from pybloom_live import BloomFilter

    inside = [key.tobytes() for key in hashes(random, count)]
    outside = [key.tobytes() for key in hashes(random, count)]
    bloom = BloomFilter(count, ERROR_RATE)
    print(f"pybloom_live: {bloom.num_bits / count:.1f} bits a key, {count:,} keys, {bloom.num_bits / 8e6:.1f} MB")

    def added() -> int:
        bloom.count = 0  # else it is full after the first round
        for key in inside:
            bloom.add(key, skip_check=True)
        return count

    return {
        "adds": added,
        "misses": lambda: len([key for key in outside if key not in bloom]),
        "hits": lambda: len([key for key in inside if key in bloom]),
    }


def sketch(inside: Any) -> dict[str, Callable[[], int]]:
    registers = distinct_count.empty_registers()

    def added() -> int:
        distinct_count.add(registers, inside)
        return len(inside)

    return {"adds": added}


def passes(size_bytes: float) -> dict[str, Callable[[], int]]:
    items = int(size_bytes * 8 / 41.42)
    bits = empty_bits(size_for(items, ERROR_RATE).blocks)
    bits[:] = 0x55

    def summed() -> int:
        hashlib.sha256(bits.data).hexdigest()
        return items

    def measured() -> int:
        measurement_of(blocks_by_bits_set(bits), 25)
        return items

    return {"SHA-256": summed, "measure": measured}


def report_sizes() -> None:
    print(f"\nbits a key at {ERROR_RATE:g}: classic {-math.log2(ERROR_RATE) / math.log(2):.2f}")
    for items in (10**5, 10**7, 10**9):
        size = size_for(items, ERROR_RATE)
        print(f"ours, {items:,} keys: {size.size_bytes * 8 / items:.2f}, k {size.k}, {size.size_bytes / 1e6:,.1f} MB")


def report_errors(random: np.random.Generator) -> None:
    inside, outside = hashes(random, 2 * 10**6), hashes(random, 10**7)
    size = size_for(len(inside), TRIED_RATE)
    bits = empty_bits(size.blocks)
    add_range(bits, inside, size.k, 0, 0, len(bits))
    bound, wrong = (
        measurement_of(blocks_by_bits_set(bits), size.k).error_bound,
        int(contains(bits, outside, size.k).sum()),
    )
    print(f"\nerror: asked {TRIED_RATE:g}, bound from the fill {bound:.4g}, found {wrong:,} of {len(outside):,}")
    registers = distinct_count.empty_registers()
    distinct_count.add(registers, inside)
    about, most = distinct_count.estimate(registers), distinct_count.upper_bound(registers)
    print(f"distinct count of {len(inside):,}: {about:,.0f}, at most {most:,}")


def report_machine(when: str) -> None:
    libraries = ("numpy", "numba", "rbloom", "pybloom_live")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in libraries)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {versions}; {cores} cores, load {when} {load:.1f}", flush=True)


if __name__ == "__main__":
    main()

"""Which part of the runs each shard is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipelines.core import storage
from pipelines.core.manifest import ShardEntry
from pipelines.stages.tokenize.runs import LAST_ORDER, SHUFFLED_BINS, SPLITS, Run, orders_of_bins, read_bins


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """A shard: `tokens` tokens after the first `skip` of the documents that stand in `runs` from `low` to `high`."""

    split: str
    index: int
    runs: tuple[Run, ...]
    low: int
    high: int
    skip: int
    tokens: int


def plan_shards(entries: Sequence[ShardEntry], output: str, shuffle: bool, shard_tokens: int) -> list[ShardPlan]:
    """Return the shards of both splits, given what the first phase wrote into the folder `output`."""
    runs = [runs_of(entry, output) for entry in entries]
    bins = _bins(entries, runs, output, shuffle)
    every = tuple(run for each in runs for run in each)
    plans = []
    for split, name in enumerate(SPLITS):
        for index, (first, last, skip, tokens) in enumerate(cut(bins[split], shard_tokens)):
            if shuffle:
                plans.append(ShardPlan(name, index, every, *orders_of_bins(first, last), skip, tokens))
            else:
                plans.append(ShardPlan(name, index, every[first : last + 1], 0, LAST_ORDER, skip, tokens))
    return plans


def cut(bins: npt.NDArray[np.int64], shard_tokens: int) -> list[tuple[int, int, int, int]]:
    """Return for each shard of a stream with so many tokens a bin: its first and last bin, what to skip, its tokens."""
    ends = np.cumsum(bins)
    total = int(ends[-1]) if len(ends) else 0
    shards = []
    for start in range(0, total, shard_tokens):
        stop = min(start + shard_tokens, total)
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        shards.append((first, last, start - int(ends[first] - bins[first]), stop - start))
    return shards


def runs_of(entry: ShardEntry, output: str) -> list[Run]:
    """Return the runs that a task of the first phase wrote into the folder `output`."""
    names = [file.name for file in entry.files if storage.basename(file.name).startswith("run-")]
    stems = [name.removesuffix(".parquet") for name in names if name.endswith(".parquet")]
    return [Run(storage.join(output, f"{stem}.tokens"), storage.join(output, f"{stem}.parquet")) for stem in stems]


def _bins(
    entries: Sequence[ShardEntry], runs: Sequence[Sequence[Run]], output: str, shuffle: bool
) -> npt.NDArray[np.int64]:
    """Return the tokens by split and bin: of all tasks together with a shuffle, of one run after the other without."""
    paths = [
        storage.join(output, file.name)
        for entry in entries
        for file in entry.files
        if storage.basename(file.name).startswith("bins-")
    ]
    if not shuffle:
        parts = [read_bins(path, len(each)) for path, each in zip(paths, runs, strict=True)]
        return np.concatenate([np.zeros((len(SPLITS), 0), np.int64), *parts], axis=1)
    totals = np.zeros((len(SPLITS), SHUFFLED_BINS), np.int64)
    for path in paths:
        totals += read_bins(path, SHUFFLED_BINS)
    return totals

"""Which part of the runs each file of tokens is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.engine.manifest import ShardEntry
from pipelines.stages.tokenize.runs import BIN_SHIFT, SHUFFLED_BINS, SPLITS, Run, read_bins

_MAX_ORDER = 2**64 - 1


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """A shard: `tokens` tokens after the first `skip` of the documents in `runs` with orders from `low` to `high`.

    `runs` are positions among all runs: to send the names of 100,000 with each task took the driver 0.4 s.
    """

    split: str
    index: int
    runs: range
    low: int
    high: int
    skip: int
    tokens: int

    @property
    def name(self) -> str:
        """The name of the shard, such as `train-00003`."""
        return f"{self.split}-{self.index:05d}"


@dataclasses.dataclass(frozen=True)
class FilePlan:
    """A file of tokens, by its name without suffix, and the shards that it consists of: one, or the whole split."""

    name: str
    split: str
    shards: tuple[ShardPlan, ...]
    is_whole_split: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(shard.tokens for shard in self.shards)


def plan_files(shards: Sequence[ShardPlan], split_files: Mapping[str, str]) -> list[FilePlan]:
    """Return a file for each shard, or for each split that has a name in `split_files`."""
    if not split_files:
        return [FilePlan(shard.name, shard.split, (shard,)) for shard in shards]
    of_split = {split: tuple(shard for shard in shards if shard.split == split) for split in split_files}
    return [FilePlan(split_files[split], split, plans, True) for split, plans in of_split.items() if plans]


def plan_shards(entries: Sequence[ShardEntry], output: str, *, shuffle: bool, shard_tokens: int) -> list[ShardPlan]:
    """Return the shards of both splits, given what the first phase wrote into the folder `output`."""
    bins = _bins(entries, output, shuffle)
    all_runs = range(sum(len(runs_of(entry, output)) for entry in entries))
    plans = []
    for split, name in enumerate(SPLITS):
        for index, (first, last, skip, tokens) in enumerate(cut(bins[split], shard_tokens)):
            needed, low, high = all_runs[first : last + 1], 0, _MAX_ORDER
            if shuffle:
                needed, low, high = all_runs, first << BIN_SHIFT, ((last + 1) << BIN_SHIFT) - 1
            plans.append(ShardPlan(name, index, needed, low=low, high=high, skip=skip, tokens=tokens))
    return plans


def cut(bins: npt.NDArray[np.int64], shard_tokens: int) -> list[tuple[int, int, int, int]]:
    """Return first bin, last bin, tokens to skip and tokens of each shard, given the number of tokens in each bin."""
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
    tables = _paths(entry, output, "run-")
    return [Run(f"{path.removesuffix('.parquet')}.tokens", path) for path in tables]


def _paths(entry: ShardEntry, output: str, prefix: str) -> list[str]:
    names = [file.name for file in entry.files if storage.basename(file.name).startswith(prefix)]
    return [storage.join(output, name) for name in names]


def _bins(entries: Sequence[ShardEntry], output: str, shuffle: bool) -> npt.NDArray[np.int64]:
    """Return the tokens by split and bin: summed over all tasks with a shuffle, one bin per run without."""
    totals = np.zeros((len(SPLITS), SHUFFLED_BINS if shuffle else 0), np.int64)
    for entry in entries:
        [path] = _paths(entry, output, "bins-")
        if shuffle:
            totals += read_bins(path, SHUFFLED_BINS)
        else:
            totals = np.concatenate([totals, read_bins(path, len(runs_of(entry, output)))], axis=1)
    return totals

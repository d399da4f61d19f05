"""What a report needs of the records of all shards: counts by name, and samples with the lowest keys.

A task fills a tally and writes it next to its shard; the report reads and adds up those of all shards. Neither the
division into shards nor the order of the tasks changes the sum.
"""

from __future__ import annotations

import bisect
import json
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.records import shards

_key_of = operator.itemgetter(0)


class LowestHashes:
    """The items with the lowest keys of all that were added, at most `size`: with hashes as keys, a random sample.

    Keys are numbers or strings, or equally long lists of them; items with equal keys stay in the order of addition.
    """

    def __init__(self, size: int, items: Iterable[tuple[Any, Any]] = ()) -> None:
        self.size = size
        self._items: list[tuple[Any, Any]] = []
        for key, item in items:
            self.add(key, item)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        """Yield the items by ascending key."""
        return (item for _, item in self._items)

    def accepts(self, key: Any) -> bool:
        """Return whether an item with this key would be kept, so that it needs to be made only then."""
        return len(self._items) < self.size or bool(key < self._items[-1][0])

    def add(self, key: Any, item: Any) -> None:
        """Add an item, which is dropped if there are enough with lower keys."""
        if self.accepts(key):
            bisect.insort(self._items, (key, item), key=_key_of)
            del self._items[self.size :]

    def pairs(self) -> list[tuple[Any, Any]]:
        """Return keys and items by ascending key."""
        return list(self._items)


class Tally:
    """Named counters and named samples of JSON values; counters have strings as keys, as in JSON."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.samples: dict[str, LowestHashes] = {}

    def counter(self, name: str) -> Counter[str]:
        """Return the counter of this name, at first an empty one."""
        return self.counts.setdefault(name, Counter())

    def sample(self, name: str, size: int) -> LowestHashes:
        """Return the sample of this name, at first an empty one of this size."""
        return self.samples.setdefault(name, LowestHashes(size))

    def write(self, output: str, name: str) -> FileEntry:
        """Write the tally of one task as a JSON file of the output folder."""
        samples = {sample: [lowest.size, lowest.pairs()] for sample, lowest in self.samples.items()}
        tally = {"counts": self.counts, "samples": samples}
        return shards.write_file(output, name, json.dumps(tally, sort_keys=True).encode())


def read_tallies(paths: Sequence[str]) -> Tally:
    """Return the sum of the tallies in these files."""
    total = Tally()
    for path in paths:
        tally = storage.read_json(path)
        for name, counts in tally["counts"].items():
            total.counter(name).update(counts)
        for name, (size, pairs) in tally["samples"].items():
            sample = total.sample(name, size)
            for key, item in pairs:
                sample.add(key, item)
    return total

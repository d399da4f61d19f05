"""A token dataset as a stream in random order, for the loaders of torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from pipelines.errors import UsageError
from pipelines.model.training.order import BlockOrder
from pipelines.model.training.token_dataset import Item, TokenDataset


class TokenStream(IterableDataset[Item]):
    """The items of all epochs in `epoch_order`: those of a rank, divided among the workers of its loader.

    Ranks take turns, item by item, and get equally many: at the end up to `world_size - 1` items are omitted. Workers
    take turns by batches of `batch_size`. If this is the loader's batch size, a step has the same items with any number
    of ranks and workers. `epochs` None is endless.

    `state_dict` is the state of one worker. Raises UsageError for invalid arguments.
    """

    def __init__(
        self, dataset: TokenDataset, epochs: int | None = None, rank: int = 0, world_size: int = 1, batch_size: int = 1
    ) -> None:
        if not 0 <= rank < world_size or batch_size < 1:
            values = f"rank {rank}, world_size {world_size}, batch_size {batch_size}"
            raise UsageError(f"{values}: expected 0 <= rank < world_size and a batch size of at least 1")
        self.dataset, self.epochs, self.rank, self.world_size = dataset, epochs, rank, world_size
        self.batch_size = batch_size
        # Items that the worker has yielded.
        self._position = self._resume_at = 0

    def __iter__(self) -> Iterator[Item]:
        self._position, self._resume_at = self._resume_at, 0
        worker = get_worker_info()
        first, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        order = BlockOrder(len(self.dataset), self.dataset.seed)
        for batch in itertools.count(self._position // self.batch_size):
            start = (first + batch * workers) * self.batch_size * self.world_size
            stop = start + self.batch_size * self.world_size
            if self.epochs is not None:
                stop = min(stop, self.epochs * len(self.dataset) // self.world_size * self.world_size)
            if start >= stop:
                break
            numbers = order.numbers(start, stop)[self.rank :: self.world_size]
            for item in self.dataset.__getitems__(numbers[self._position - batch * self.batch_size :]):
                self._position += 1
                yield item

    def state_dict(self) -> dict[str, Any]:
        """Return how many items the stream has yielded, and from what."""
        parts = {"world_size": self.world_size, "batch_size": self.batch_size, **self.dataset.options}
        return {"position": self._position, "fingerprint": self.dataset.fingerprint, **parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the next iterator; raise UsageError for the state of a stream with other items."""
        own = self.state_dict() | {"position": state.get("position")}
        if differences := [name for name, value in own.items() if state.get(name) != value]:
            raise UsageError(f"{self.dataset.path}: the state is of another stream: {', '.join(differences)} differ")
        self._position = self._resume_at = state["position"]

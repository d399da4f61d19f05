"""Division of items into batches by their number and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def divide_into_batches(
    items: Iterable[Item], size_bytes: Callable[[Item], int], *, max_items: int, max_bytes: int
) -> Iterator[list[Item]]:
    """Yield items in order, in batches of at most `max_items` that end with the item that reaches `max_bytes`."""
    batch: list[Item] = []
    batch_bytes = 0
    for item in items:
        batch.append(item)
        batch_bytes += size_bytes(item)
        if len(batch) == max_items or batch_bytes >= max_bytes:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch

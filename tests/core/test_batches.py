from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.batches import divide_into_batches


def divide(sizes, max_items, max_bytes):
    return list(divide_into_batches(sizes, lambda size: size, max_items=max_items, max_bytes=max_bytes))


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([], []),
        ([10, 10, 10, 10, 90, 1, 500, 99, 1], [[10, 10, 10], [10, 90], [1, 500], [99, 1]]),
        ([500, 100, 1, 0, 0, 0], [[500], [100], [1, 0, 0], [0]]),
    ],
)
def test_a_batch_ends_with_the_item_that_reaches_a_limit(sizes, batches):
    assert divide(sizes, 3, 100) == batches


@given(st.lists(st.integers(0, 120)), st.integers(1, 5), st.integers(1, 100))
def test_batches_hold_all_items_in_order_within_the_limits(sizes, max_items, max_bytes):
    batches = divide(sizes, max_items, max_bytes)
    assert [size for batch in batches for size in batch] == sizes
    assert all(1 <= len(batch) <= max_items and sum(batch[:-1]) < max_bytes for batch in batches)


def test_a_full_batch_is_yielded_before_the_next_item_is_drawn():
    drawn = iter([1, 2, 3])
    batches = divide_into_batches(drawn, lambda size: size, max_items=2, max_bytes=100)
    assert next(batches) == [1, 2]
    assert next(drawn) == 3

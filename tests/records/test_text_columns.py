"""Slices of rows within a number of bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.records.text_columns import slices_within


@given(
    sizes=st.lists(st.integers(0, 20), max_size=40),
    offset=st.integers(0, 9),
    max_bytes=st.integers(1, 50),
    max_rows=st.one_of(st.none(), st.integers(1, 9)),
)
def test_slices_cover_all_rows_and_stay_within_the_limits(
    sizes: list[int], offset: int, max_bytes: int, max_rows: int | None
) -> None:
    slices = list(slices_within(np.cumsum([offset, *sizes]), max_bytes, max_rows))
    assert [row for first, last in slices for row in range(first, last)] == list(range(len(sizes)))
    for first, last in slices:
        assert last - first == 1 or sum(sizes[first:last]) <= max_bytes
        assert max_rows is None or last - first <= max_rows

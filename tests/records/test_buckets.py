"""Work files of many buckets: each bucket's rows come back, whole and in order, however they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import InputError
from pipelines.records.buckets import bucket_part, write_buckets

_SCHEMA = pa.schema([pa.field("text", pa.string()), pa.field("number", pa.int64(), nullable=False)])

_rows = st.fixed_dictionaries({"text": st.none() | st.text(max_size=4), "number": st.integers(-(2**63), 2**63 - 1)})


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 9999) | st.integers(65_530, 140_000), _rows), max_size=12), max_size=6
    ),
    flush_bytes=st.sampled_from([1, 200, 48 << 20]),
    in_an_array=st.booleans(),
)
def test_every_bucket_is_read_in_the_order_of_writing(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[int, dict[str, Any]]]],
    flush_bytes: int,
    in_an_array: bool,
) -> None:
    path = str(tmp_path_factory.mktemp("buckets") / "file.buckets")
    with write_buckets(path, _SCHEMA, flush_bytes) as written:
        for batch in batches:
            numbers = [bucket for bucket, _ in batch]
            rows = _batch([row for _, row in batch])
            written.write(rows, np.array(numbers, dtype=np.uint32) if in_an_array else numbers)
    assert written.entry("x").size_bytes == Path(path).stat().st_size
    wanted: dict[int, list[dict[str, Any]]] = {}
    for bucket, row in (pair for batch in batches for pair in batch):
        wanted.setdefault(bucket, []).append(row)
    for bucket in [*wanted, 10000]:
        part = bucket_part(path, _SCHEMA, bucket)
        rows_read = [row for batch in part.batches() for row in batch.to_pylist()]
        assert rows_read == wanted.get(bucket, [])
        assert part.rows == len(rows_read)
        assert part.size_bytes >= 8 * len(rows_read)


def test_pending_rows_are_written_at_the_limit(tmp_path: Path) -> None:
    batch = _batch([{"text": f"{number:x}", "number": number} for number in range(1000)])
    with write_buckets(str(tmp_path / "file.buckets"), _SCHEMA, flush_bytes=3 * batch.nbytes) as written:
        for _ in range(7):
            written.write(batch, np.arange(1000) % 4)
            assert written._pending_bytes < 3 * batch.nbytes
    part = bucket_part(str(tmp_path / "file.buckets"), _SCHEMA, 1)
    assert [batch.num_rows for batch in part.batches()] == [750, 750, 250]


def test_a_work_file_that_was_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.buckets"
    with write_buckets(str(path), _SCHEMA) as written:
        written.write(_batch([{"text": f"{number * 7919:x}", "number": number} for number in range(1000)]), [0] * 1000)
    data = bytearray(path.read_bytes())
    data[100:140] = b"\xa5" * 40
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"file.buckets: was changed after it was written"):
        list(bucket_part(str(path), _SCHEMA, 0).batches())


def test_a_file_that_was_not_finished_does_not_appear(tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with write_buckets(str(tmp_path / "file.buckets"), _SCHEMA) as written:
            written.write(_batch([{"text": "a", "number": 1}]), [0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert not list(tmp_path.iterdir())

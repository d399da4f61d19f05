"""Shards: equal records are equal bytes, whatever way they come; wrong files are named."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import storage
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.schemas import DROPPED_SCHEMA


def _row(id: str, url: str | None = None) -> dict[str, str | None]:
    return {"id": id, "url": url, "reason": "r", "detail": None}


def _write(folder: Path, name: str, rows: list[dict[str, str | None]]) -> None:
    with shards.write_shard(str(folder), name, DROPPED_SCHEMA) as shard:
        for row in rows:
            shard.write(row)
    assert shard.entry.size_bytes == (folder / name).stat().st_size
    assert shard.entry.sha256 == storage.sha256_of(str(folder / name))


def test_records_come_back_and_equal_records_are_equal_bytes(tmp_path: Path) -> None:
    rows = [_row(str(number), None if number % 2 else f"u{number}") for number in range(20_000)]
    _write(tmp_path, "a.parquet", rows)
    _write(tmp_path, "b.parquet", rows)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    read = list(shards.read_rows(str(tmp_path / "a.parquet")))
    assert read == rows


def test_row_groups_are_bounded(tmp_path: Path) -> None:
    _write(tmp_path, "a.parquet", [_row(str(number)) for number in range(20_000)])
    with (tmp_path / "a.parquet").open("rb") as stream:
        metadata = shards.open_parquet(stream, "a.parquet").metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [8192, 8192, 3616]


def test_batches_and_records_may_be_mixed(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist([{"id": "1", "reason": "r"}], schema=DROPPED_SCHEMA)
    with shards.write_shard(str(tmp_path), "a.parquet", DROPPED_SCHEMA) as shard:
        shard.write(_row("0"))
        shard.write_batch(batch)
        shard.write({"id": "2", "url": None, "reason": "r", "detail": None})
    assert [row["id"] for row in shards.read_rows(str(tmp_path / "a.parquet"))] == ["0", "1", "2"]


def test_an_empty_shard_has_its_schema(tmp_path: Path) -> None:
    _write(tmp_path, "a.parquet", [])
    assert list(shards.read_rows(str(tmp_path / "a.parquet"))) == []
    with (tmp_path / "a.parquet").open("rb") as stream:
        assert shards.open_parquet(stream, "a.parquet").schema_arrow.names == DROPPED_SCHEMA.names


def test_a_shard_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with shards.write_shard(str(tmp_path), "a.parquet", DROPPED_SCHEMA) as shard:
            shard.write(_row("0"))
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_parquet_and_a_missing_column_are_named(tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_text("plain text")
    with pytest.raises(InputError, match=r"no\.parquet: is not a Parquet file"):
        list(shards.read_rows(str(tmp_path / "no.parquet")))
    _write(tmp_path, "a.parquet", [])
    with pytest.raises(InputError, match=r"a\.parquet: has no column 'text'; it has: id, url, reason, detail"):
        list(shards.read_rows(str(tmp_path / "a.parquet"), ["text"]))

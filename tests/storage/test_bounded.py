"""Reads of untrusted streams stay within their bounds: small compressed files that contain gigabytes."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines.benchmark_sets.benchmarks import parse_benchmarks, read_example_batches
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.document_options import DocumentConfig
from pipelines.records.drops import Drops
from pipelines.records.reader import table_batches
from pipelines.records.url_lists import BadRow, read_urls
from pipelines.stages.fetch.links import open_links, read_links
from pipelines.storage import bounded, compression
from pipelines.storage.bounded import line_blocks
from pipelines.storage.compression import read_bzip2_streams

_MIB = 1 << 20
_BOMB_MIB = 400


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_LINE_BYTES", 2 * _MIB)


def _bomb(folder: Path, name: str, start: bytes = b"", end: bytes = b"") -> Path:
    """Write a file that contains 400 MiB of zeros in some 13 KB of zstd."""
    path = folder / name
    with path.open("wb") as stream, zstandard.ZstdCompressor().stream_writer(stream) as writer:
        writer.write(start)
        for _ in range(_BOMB_MIB):
            writer.write(bytes(_MIB))
        writer.write(end)
    assert path.stat().st_size < 100_000
    return path


def _peak_mib(function: Callable[[], Any]) -> tuple[Any, float]:
    tracemalloc.start()
    try:
        result = function()
        return result, tracemalloc.get_traced_memory()[1] / _MIB
    finally:
        tracemalloc.stop()


def test_lines_are_split_by_bytes_and_very_long_ones_are_cut() -> None:
    data = b"\xef\xbb\xbfone\n\n \nfour\xe2\x80\xa8still\r\n" + b"x" * 90 + b"\nsix"
    lines = [line for block in line_blocks(io.BytesIO(data), 20, 8) for line in block.splitlines(keepends=True)]
    assert lines == [b"one\n", b"\n", b" \n", b"four\xe2\x80\xa8still\r\n", b"x" * 20, b"six"]


def _documents(path: Path, max_document_mib: int | None = None) -> tuple[list[str], dict[str, int]]:
    drops = Drops()
    texts: list[str] = []
    for shard in inputs.open_documents(str(path), DocumentConfig(max_document_mib=max_document_mib)).shards:
        for batch in inputs.read_documents(shard, drops):
            texts += batch.column("text").to_pylist()
    return texts, dict(drops.counts)


def test_a_line_of_zeros_is_dropped_and_the_others_are_read(tmp_path: Path) -> None:
    path = _bomb(tmp_path, "x.jsonl.zst", b'{"text": "one"}\n', b'\n{"text": "two"}\n')
    (texts, drops), peak = _peak_mib(lambda: _documents(path))
    assert (texts, drops) == (["one", "two"], {"too_large": 1})
    assert peak < 30


def test_a_text_of_zeros_is_dropped(tmp_path: Path) -> None:
    path = _bomb(tmp_path, "x.txt.zst")
    (texts, drops), peak = _peak_mib(lambda: _documents(path))
    assert (texts, drops) == ([], {"too_large": 1})
    assert peak < 30


def test_a_text_file_may_be_as_large_as_it_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("word " * _MIB)
    texts, drops = _documents(path)
    assert (len(texts[0]), drops) == (5 * _MIB, {})
    assert bounded.max_text_bytes(1 << 40) == 1 << 30


def test_the_limits_of_lines_and_text_files_are_an_option(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("word " * _MIB)
    (tmp_path / "y.jsonl").write_text(json.dumps({"text": "x" * 3 * _MIB}) + '\n{"text": "y"}\n')
    for max_document_mib, kept in ((None, ["w", "y"]), (4, ["x", "y"]), (6, ["w", "x", "y"]), (1, ["y"])):
        texts, drops = _documents(tmp_path, max_document_mib)
        assert ([text[0] for text in texts], drops.get("too_large", 0)) == (kept, 3 - len(kept))


def test_a_file_of_records_that_are_all_too_large_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "x" * 3 * _MIB}) + "\n")
    assert _documents(tmp_path, 1) == ([], {"too_large": 1})


def test_a_value_that_a_dictionary_stores_once_for_many_rows_is_not_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_MAX_REPEATED_BYTES", 8 * _MIB)
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 500, pa.int32()), pa.array(["x" * (2 * _MIB - 1)]))
    pq.write_table(pa.table({"text": values}), tmp_path / "x.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "x.parquet").stat().st_size < 10_000
    (shard,) = inputs.open_documents(str(tmp_path)).shards
    batches = inputs.read_documents(shard, Drops())
    assert [next(batches).num_rows for _ in range(3)] == [4, 4, 4]


@pytest.mark.parametrize("is_dictionary", [False, True])  # which is in every batch as a whole
def test_large_rows_are_decoded_one_by_one_and_joined_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dictionary: bool
) -> None:
    monkeypatch.setattr(shards, "_MAX_REPEATED_BYTES", 8 * _MIB)
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 30 + [1] * 10), pa.array(["x" * (2 * _MIB - 9), "y"]))
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"text": values}), path, store_schema=is_dictionary)
    with open(path, "rb") as stream:
        assert shards.rows_per_batch(stream, path, None, _MIB) == ((4, 4) if is_dictionary else (19, 1))
    batches = list(table_batches(path, batch_bytes=_MIB))
    assert [text for batch in batches for text in batch.column("text").to_pylist()] == values.to_pylist()
    if not is_dictionary:
        assert [batch.num_rows for batch in batches] == [2] * 14 + [4, 8]


def test_many_row_groups_are_examined_with_few_reads_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_MAX_REPEATED_BYTES", 1024)
    reads_per_group = []
    for groups in (30, 120):
        table = pa.table({f"column {number}": ["some text"] * groups for number in range(8)} | {"text": ["x"] * groups})
        pq.write_table(table, tmp_path / f"{groups}.parquet", row_group_size=1)
        with _CountedReads((tmp_path / f"{groups}.parquet").read_bytes()) as stream:
            assert shards.rows_per_batch(stream, "x.parquet", None, 1 << 20)[0] < 64
            reads_per_group.append(stream.read_bytes / groups)
    # Were the footer parsed for every group, its reads would grow with the number of groups.
    assert reads_per_group[1] < 1.2 * reads_per_group[0]


class _CountedReads(io.BytesIO):
    """A file in memory that counts the bytes that were read."""

    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.read_bytes += len(data)
        return data


@pytest.mark.parametrize("name", ["x.txt.zst", "x.csv.zst", "x.tsv.zst", "x.jsonl.zst"])
def test_a_url_of_zeros_is_a_bad_row(tmp_path: Path, name: str) -> None:
    start = b"http://a.com/\n" if name.startswith("x.txt") else b"url\nhttp://a.com/\n"
    path = _bomb(tmp_path, name, b'{"url": "http://a.com/"}\n' if "json" in name else start, b"\nhttp://b.com/")
    rows, peak = _peak_mib(lambda: list(read_urls(str(path))))
    assert [row for row in rows if not isinstance(row, BadRow)] == ["http://a.com/", "http://b.com/"]
    assert [len(row.content) < 1 << 26 for row in rows if isinstance(row, BadRow)] == [True]
    assert peak < 200


def test_a_long_url_is_not_requested_in_part(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(f"http://a.com/{'x' * 40_000}\nhttp://b.com/\n")
    (shard,) = open_links(str(path)).shards
    long, short = read_links(shard, str(tmp_path))
    assert short == "http://b.com/"
    assert long.startswith("(too long) http://a.com/xxx")
    assert len(long) < 300


def test_a_long_json_url_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"url": "http://a.com/" + "é" * 40_000}) + '\n{"url": "http://b.com/"}\n')
    bad, url = read_urls(str(path))
    assert isinstance(bad, BadRow)
    assert (bad.reason, len(bad.content)) == ("too_long", 200)
    assert url == "http://b.com/"


def test_examples_of_a_benchmark_are_bounded(tmp_path: Path) -> None:
    for name in ("x.jsonl.zst", "y.txt.zst"):
        [benchmark] = parse_benchmarks([f"a={_bomb(tmp_path, name)}"])
        with pytest.raises(InputError, match=rf"{name}:1: is too long \(a line of 2097152 bytes or more\)"):
            list(read_example_batches(benchmark, "auto"))


def _repeat(path: Path, text: str, rows: int, *, groups: int = 1, is_dictionary: bool = False) -> Path:
    """Write a table of one text in all rows, as a dictionary of some kilobytes."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([text]))
    table = pa.table({"text": column, "url": column})
    if path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        return path
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=is_dictionary) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return path


@pytest.mark.parametrize(
    ("name", "groups", "is_dictionary"),
    [("x.parquet", 1, False), ("x.parquet", 20, False), ("x.parquet", 1, True), ("x.arrow", 1, True)],
)
def test_a_text_that_is_in_very_many_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, groups: int, is_dictionary: bool
) -> None:
    monkeypatch.setattr(bounded, "MAX_DATA_BYTES", 4 * _MIB)
    rows = 2000 // groups
    path = str(_repeat(tmp_path / name, "lorem ipsum " * 500, rows, groups=groups, is_dictionary=is_dictionary))
    size = Path(path).stat().st_size
    message = rf"^{path}: contains at least [\d,]+ times its size \([\d.]+ MB in {size:,} bytes; the limit is 1,000\); "
    reads: list[Callable[[], object]] = [lambda: _documents(Path(path)), lambda: list(table_batches(path))]
    if name == "x.parquet":
        [benchmark] = parse_benchmarks([f"a={path}"])
        reads += [
            lambda: list(read_urls(path)),
            lambda: list(shards.read_rows(path)),
            lambda: list(read_example_batches(benchmark, "auto")),
        ]
    for read in reads:
        monkeypatch.setattr(bounded, "MAX_RATIO", 1_000)
        with pytest.raises(
            InputError, match=message + "if you trust the file, decompress it, or write the table again without dict"
        ):
            read()
    monkeypatch.setattr(bounded, "MAX_RATIO", 10_000_000)
    texts, drops = _documents(Path(path))
    assert (len(texts), drops) == (2000, {})


def test_a_table_of_very_many_rows_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "MAX_DATA_BYTES", 64 * _MIB)
    monkeypatch.setattr(bounded, "MAX_RATIO", 10_000)
    path = _repeat(tmp_path / "x.parquet", "x", 1 << 18, groups=4)
    size = path.stat().st_size
    with pytest.raises(InputError, match=rf"\(1,048,576 rows, counted as 256 bytes each, in {size:,} bytes; .*10,000"):
        inputs.open_documents(str(path))
    with pytest.raises(InputError, match=r"has no column 'body'; it has: text, url \(--text-field chooses another"):
        inputs.open_documents(str(path), DocumentConfig(text_field="body"))


def test_one_repeated_line_and_a_constant_column_are_no_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_DATA_BYTES", 64 * _MIB)
    with zstandard.open(tmp_path / "x.jsonl.zst", "wb", cctx=zstandard.ZstdCompressor(level=3)) as file:
        for _ in range(512):
            file.write(b'{"text": "the same ........... "}\n' * (_MIB // 34))
    with compression.open_decompressed(str(tmp_path / "x.jsonl.zst")) as stream:
        lines = sum(block.count(b"\n") for block in line_blocks(stream))
    assert lines == 512 * (_MIB // 34) > 10_000 * (tmp_path / "x.jsonl.zst").stat().st_size // 34
    pq.write_table(pa.table({"n": np.zeros(8 * _MIB, np.int64)}), tmp_path / "x.parquet", compression="zstd")
    assert shards.count_rows(str(tmp_path / "x.parquet")) == 8 * _MIB


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst", "jsonl.xz", "jsonl.bz2", "csv.zst", "txt.zst"])
def test_a_compressed_file_of_one_repeated_line_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(bounded, "MAX_DATA_BYTES", _MIB)
    text = b"the same " * 20
    line = b'{"text": "%s"}\n' % text if suffix.startswith("jsonl") else text + b"\n"
    data = b"text\n" * suffix.startswith("csv") + line * (4 * _MIB // len(line))
    compress: dict[str, Callable[[bytes], bytes]] = {"zst": zstandard.compress, "xz": lzma.compress}
    path = tmp_path / f"x.{suffix}"
    path.write_bytes((compress | {"bz2": bz2.compress, "gz": gzip.compress})[path.suffix[1:]](data))
    config = DocumentConfig(document="line")

    def read() -> int:
        [shard] = inputs.open_documents(str(path), config).shards
        return sum(batch.num_rows for batch in inputs.read_documents(shard, Drops()))

    monkeypatch.setattr(bounded, "MAX_RATIO", 100)
    message = rf"^{path}: contains at least [\d,]+ times its size \([\d.]+ MB in [\d,]+ bytes; the limit is 100\);"
    with pytest.raises(InputError, match=message):
        read()
    if suffix.endswith("bz2"):
        with pytest.raises(InputError, match=message):
            list(read_bzip2_streams(str(path), 0, path.stat().st_size))
    monkeypatch.setattr(bounded, "MAX_RATIO", 100_000)
    assert read() == data.count(b"\n") - suffix.startswith("csv")


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_columns_of_any_type_are_counted(tmp_path: Path, name: str) -> None:
    number = pa.array([1, 2, None]).dictionary_encode()
    text = pa.array(["a", None, "ccc"]).dictionary_encode()
    nested = pa.StructArray.from_arrays([text, number], names=["text", "number"])
    columns = {
        "text": text,
        "number": number,
        "nested": nested,
        "null": pa.nulls(3),
        "view": pa.array(["a", None, "b"], pa.string_view()),
    }
    table = pa.table(columns if name == "x.arrow" else {"text": text, "number": number, "null": pa.nulls(3)})
    if name == "x.arrow":
        with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, tmp_path / name)
    assert [batch.to_pylist() for batch in table_batches(str(tmp_path / name))] == [table.to_pylist()]

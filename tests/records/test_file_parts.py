"""Large files in parts: the same documents, ids and drops for every number of parts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines import storage
from pipelines.errors import DamagedFileError, InputError
from pipelines.records import file_parts, inputs
from pipelines.records.document_options import DocumentConfig
from pipelines.records.drops import Drops
from pipelines.storage import compression
from webtext_cli.main import main

_LINES = [
    *(json.dumps({"text": f"document {number}"}).encode() + b"\r" * (number % 3 == 0) for number in range(60)),
    b"",
    b" ",
    b"not JSON",
    b'{"text": ""}',
    json.dumps({"text": "long " * 200}).encode(),
    b"\xef\xbb\xbf" + b'{"text": "after a mark"}',
    b'{"text": "caf\xe9"}',
]
_DATA = b"\n".join([*_LINES, *_LINES])
_COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".zst": zstandard.compress, ".gz": gzip.compress}


def _split(monkeypatch: pytest.MonkeyPatch, part_bytes: int, prefix_parts: int = 9) -> None:
    monkeypatch.setattr(file_parts, "_MIN_DIVIDED_BYTES", 0)
    monkeypatch.setattr(file_parts, "_MIN_PART_BYTES", part_bytes)
    monkeypatch.setattr(file_parts, "_PARTS", 1 << 30)
    monkeypatch.setattr(file_parts, "_MAX_PREFIX_PARTS", prefix_parts)


def _read(path: Path, **options: Any) -> tuple[int, list[dict[str, object]], list[dict[str, object]]]:
    """Return the number of tasks, the documents, and the dropped records."""
    source = inputs.open_documents(str(path), DocumentConfig(**options))
    documents: list[dict[str, object]] = []
    dropped: list[dict[str, object]] = []
    for shard in source.shards:
        drops = Drops(lambda row: dropped.append(dict(row)))
        for batch in inputs.read_documents(shard, drops):
            documents += batch.to_pylist()
    return len(source.shards), documents, dropped


@pytest.mark.parametrize("suffix", _COMPRESS)
@pytest.mark.parametrize(("name", "document"), [("a.jsonl", "file"), ("a.txt", "line")])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_lines_are_the_same_in_any_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, document: str, suffix: str, end: bytes
) -> None:
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(_COMPRESS[suffix](_DATA + end))
    tasks, *whole = _read(path, document=document)
    assert tasks == 1
    assert len(whole[0]) > 120
    counts = set()
    # Parts of some bytes are shorter than any line, so that most have none.
    for part_bytes in (7, 100, 1000, 3000):
        _split(monkeypatch, part_bytes)
        tasks, *parts = _read(path, document=document)
        assert parts == whole
        counts.add(tasks)
    assert max(counts) == 9 if suffix else len(counts) == 4


@pytest.mark.parametrize(
    ("group_rows", "part_bytes", "tasks"), [(1000, 100, 5), (1000, 30_000, 2), (300, 100, 8), (10, 100, 100)]
)
def test_rows_are_the_same_in_any_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int, part_bytes: int, tasks: int
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {"text": [f"document {number}" if number % 7 else None for number in range(1000)], "n": range(1000)}
    )
    pq.write_table(table, path, row_group_size=group_rows)
    whole = _read(path)
    assert whole[0] == 1
    _split(monkeypatch, part_bytes, 5)
    assert _read(path) == (tasks, *whole[1:])


def test_parts_depend_on_the_input_and_are_part_of_its_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_bytes(_DATA)
    whole = inputs.open_documents(str(tmp_path))
    _split(monkeypatch, 1000)
    source = inputs.open_documents(str(tmp_path))
    assert source == inputs.open_documents(str(tmp_path))
    assert len(source.shards) > 2
    assert source.fingerprint != whole.fingerprint
    assert [file.path for file in source.files] == [file.path for file in whole.files]


def test_a_compressed_file_is_not_split_further_in_an_input_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        (tmp_path / f"{number}.jsonl.zst").write_bytes(zstandard.compress(_DATA))
    _split(monkeypatch, 100)
    monkeypatch.setattr(inputs, "_GROUP_BYTES", 1)
    assert len(inputs.open_documents(str(tmp_path)).shards) == 10


def test_problems_of_a_part_are_not_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _split(monkeypatch, 200)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"body": "no text"}\n' * 50 + b'{"text": "one", "key": "k"}\n')
    tasks, documents, dropped = _read(path)
    assert tasks > 4
    assert [row["id"] for row in documents] == ["a.jsonl:51"]
    assert [row["id"] for row in dropped] == [f"a.jsonl:{number}" for number in range(1, 51)]
    with pytest.raises(InputError, match=r"no record has the field 'docid' of --id-field \(of 51 records;"):
        _read(path, id_field="docid")
    path.write_bytes(b'{"body": "no text"}\n' * 51)
    with pytest.raises(InputError, match=r"no record has a text in the field 'text' \(of 51 records\)"):
        _read(path)
    path.write_bytes(b"{\n" * 500)
    with pytest.raises(InputError, match=r"record 1 is not valid JSON .* nor is any other record"):
        _read(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_task_that_reads_everything_opens_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "0.txt").write_bytes(b"a small file")
    if name == "a.parquet":
        pq.write_table(pa.table({"text": [f"document {number}" for number in range(1000)]}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(_COMPRESS[name.removeprefix("a.jsonl")](_DATA))
    monkeypatch.setattr(inputs, "_GROUP_BYTES", 1)
    _, *whole = _read(tmp_path)
    _split(monkeypatch, 1000)
    source = inputs.open_documents(str(tmp_path))
    assert len(source.shards) > 2
    opened: list[str] = []
    open_read = storage.open_read

    def record(path: str, **place: int) -> BinaryIO:
        opened.append(path)
        return open_read(path, **place)

    monkeypatch.setattr(storage, "open_read", record)
    documents = [
        row
        for shard in source.undivided
        for batch in inputs.read_documents(shard, Drops())
        for row in batch.to_pylist()
    ]
    assert sorted(opened) == [str(tmp_path / "0.txt"), str(tmp_path / name)]
    assert documents == whole[0]


def test_damage_is_found_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_SAMPLE_READS", 1)
    path = tmp_path / "a.jsonl.gz"
    lines = [json.dumps({"text": f"{number * 7**40}"}).encode() for number in range(9000)]
    path.write_bytes(gzip.compress(b"\n".join(lines))[:-2000])
    _split(monkeypatch, 1000, 4)
    source = inputs.open_documents(str(path))
    first, *_, last = source.shards
    assert len(source.shards) == 4
    assert sum(batch.num_rows for batch in inputs.read_documents(first, Drops())) > 1000
    with pytest.raises(DamagedFileError, match=r"a\.jsonl\.gz: is truncated or corrupt near compressed byte"):
        list(inputs.read_documents(last, Drops()))


@pytest.mark.parametrize(
    ("stage", "name"), [("filter", "a.jsonl"), ("overlap-index", "a.jsonl.gz"), ("train-bpe", "a.parquet")]
)
@pytest.mark.usefixtures("warm_processes")
def test_a_stage_writes_the_same_files_with_one_and_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, name: str
) -> None:
    _split(monkeypatch, 1000, 4)
    path = tmp_path / name
    options = {"train-bpe": ["--vocab-size", "300"], "filter": ["--profile", "none", "--rule", "too_many_words"]}.get(
        stage, []
    )
    if name == "a.parquet":
        pq.write_table(pa.table({"text": [f"the words of document {number} are few" for number in range(1000)]}), path)
    else:
        path.write_bytes(_COMPRESS[name.removeprefix("a.jsonl")](_DATA))
    for workers in ("1", "2"):
        assert main([stage, "-i", str(path), "-o", str(tmp_path / workers), "--workers", workers, *options]) == 0
    one, two = (
        {
            file.name: file.read_bytes()
            for file in sorted((tmp_path / workers).iterdir())
            if file.is_file() and file.name not in ("manifest.json", "timing.json", "report.html")
        }
        for workers in ("1", "2")
    )
    assert one == two
    assert len(one) > 3

"""Object stores: ranges, whole objects or none, and a store that fails."""

from __future__ import annotations

import gc
import io
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import numpy as np
import obstore
import pyarrow as pa
import pytest
from unreliable_proxy import unreliable_proxy

from pipelines import storage
from pipelines.engine.folder_lock import folder_lock
from pipelines.errors import InputError, StorageError, WebtextError
from pipelines.records import shards
from pipelines.records.buckets import read_bucket, write_buckets
from pipelines.storage import local_cache, object_store
from pipelines.storage.object_store import ObjectStore


def test_any_range_is_that_of_the_object(bucket: str) -> None:
    generator = random.Random(1)
    data = generator.randbytes(3_000_000)
    storage.write_bytes(f"{bucket}/data", data)
    with storage.open_read(f"{bucket}/data") as stream:
        for _ in range(100):
            start, size = generator.randrange(len(data) + 10), generator.choice([0, 1, 5_000, 100_000, 4_000_000])
            stream.seek(start)
            assert stream.read(size) == data[start : start + size]
        stream.seek(-7, io.SEEK_END)
        assert stream.read() == data[-7:]


def test_a_store_without_requests_for_the_end_is_asked_for_the_size(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_WITHOUT_SUFFIXES", ("s3",))
    storage.write_bytes(f"{bucket}/data", bytes(range(100)) * 1000)
    with storage.open_read(f"{bucket}/data", start=-3) as stream:
        assert stream.read() == bytes([97, 98, 99])


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The position and size of the ranges that are requested."""
    requested: list[tuple[int, int]] = []
    read_range = ObjectStore.read_range

    def record(store: ObjectStore, path: str, start: int, size: int, tag: str | None = None) -> tuple[memoryview, Any]:
        requested.append((start, size))
        return read_range(store, path, start, size, tag)

    monkeypatch.setattr(ObjectStore, "read_range", record)
    return requested


def test_a_file_that_is_read_in_order_takes_few_requests(bucket: str, ranges: list[tuple[int, int]]) -> None:
    data = bytes(20 << 20)
    storage.write_bytes(f"{bucket}/data", data)
    with storage.open_read(f"{bucket}/data") as stream:
        while stream.read(1 << 16):
            pass
    assert len(ranges) <= 10
    assert sum(size for _, size in ranges) == len(data)


def test_a_parquet_file_takes_a_request_for_its_footer_and_one_for_its_rows(
    bucket: str, ranges: list[tuple[int, int]]
) -> None:
    rows = pa.record_batch({"text": [random.Random(row).randbytes(2000).hex() for row in range(1000)]})
    with shards.write_shard(bucket, "rows.parquet", rows.schema) as written:
        written.write_batch(rows)
    assert pa.Table.from_batches(shards.read_batches(f"{bucket}/rows.parquet")).num_rows == 1000
    assert len(ranges) == 2


def test_a_bucket_takes_a_request_for_the_index_and_one_for_its_rows(
    bucket: str, ranges: list[tuple[int, int]]
) -> None:
    rows = pa.record_batch({"number": pa.array(range(100_000), pa.int64())})
    with write_buckets(f"{bucket}/rows", rows.schema) as written:
        written.write(rows, np.arange(rows.num_rows) % 10)
    batches = read_bucket([f"{bucket}/rows"], rows.schema, 7)
    assert batches[0].column("number").to_pylist() == list(range(7, 100_000, 10))
    assert len(ranges) == 2


def test_what_is_read_is_requested_once(bucket: str, ranges: list[tuple[int, int]]) -> None:
    storage.write_bytes(f"{bucket}/data", bytes(1_000_000))
    with storage.open_read(f"{bucket}/data", start=1000, size=100_000) as stream:
        assert stream.read(100_000) == bytes(100_000)
    assert ranges == [(1000, 100_000)]


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of the uploads, which are not sent."""
    options: list[dict[str, Any]] = []
    monkeypatch.setattr(object_store, "_store", lambda *_: None)
    monkeypatch.setattr(obstore, "put", lambda _store, _key, _data, **more: options.append(more))
    return options


@pytest.mark.parametrize("size", [1, 64 << 20, 65 << 20, 200 << 20])
def test_what_is_uploaded_at_once_arrives_in_time_over_a_slow_link(size: int, uploads: list[dict[str, Any]]) -> None:
    ObjectStore("s3").put("bucket/key", range(size))
    parts = uploads[0]["max_concurrency"] * uploads[0]["chunk_size"]
    assert (parts if uploads[0]["use_multipart"] else size) <= 600_000 * object_store._REQUEST_S


def test_a_file_has_no_more_parts_than_a_store_takes(uploads: list[dict[str, Any]]) -> None:
    ObjectStore("s3").put("bucket/key", range(1 << 40))
    assert uploads[0]["chunk_size"] * 10_000 >= 1 << 40


def test_a_large_read_has_a_range_in_memory_at_once(bucket: str, ranges: list[tuple[int, int]]) -> None:
    data = bytearray(40 << 20)
    storage.write_bytes(f"{bucket}/data", data)
    with storage.open_read(f"{bucket}/data", start=5, size=len(data)) as stream:
        assert cast(io.BufferedReader, stream).readinto(memoryview(data)[5:]) == len(data) - 5
    assert sorted(ranges) == [
        (5 + start, min(16 << 20, len(data) - 5 - start)) for start in range(0, 40 << 20, 16 << 20)
    ]


def test_an_unreliable_store_gets_the_same_files(bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_REQUEST_S", 0.5)
    with unreliable_proxy(s3_server, 0.2, 1.0) as (address, failures):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        contents = {f"{bucket}/folder/{number:03}": bytes([number]) * 1000 * number for number in range(15)}
        for path, content in contents.items():
            storage.write_bytes(path, content)
        assert storage.walk_files(f"{bucket}/folder") == sorted(contents)
        assert {path: storage.read_bytes(path) for path in contents} == contents
        storage.move(f"{bucket}/folder", f"{bucket}/moved")
        assert storage.list_folder(f"{bucket}/folder") == []
        storage.remove(f"{bucket}/moved")
        assert storage.walk_files(bucket) == []
    assert min(failures[name] for name in ("500", "503", "hangs", "cut", "lost")) > 0


def test_errors_name_the_cause_in_one_line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^s3://.*/missing: no such file or folder$"):
        storage.read_bytes(f"{bucket}/missing")
    with pytest.raises(StorageError, match=r"^s3://absent/a: cannot read: .*does not exist \(NoSuchBucket\)$"):
        storage.walk_files("s3://absent/a")
    monkeypatch.setitem(sys.modules, "obstore", None)
    object_store.ObjectStore.clear_instance_cache()
    with pytest.raises(WebtextError, match=r"^gs:// needs obstore; run: pip install"):
        storage.exists("gs://bucket/a")


def test_a_mapped_file_is_downloaded_once_per_version(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = f"{bucket}/data"
    storage.write_bytes(path, b"one")
    first = Path(storage.mapped_path(path))
    assert (first.read_bytes(), first.parent.parent) == (b"one", tmp_path)
    assert storage.mapped_path(path) == str(first)
    storage.write_bytes(path, b"two")
    assert Path(storage.mapped_path(path)).read_bytes() == b"two"
    storage.write_bytes(f"{bucket}/other", b"three")
    storage.move(f"{bucket}/other", path)
    assert Path(storage.mapped_path(path)).read_bytes() == b"three"
    ObjectStore("s3").put(path.partition("://")[2], b"four")  # like another process
    with folder_lock(str(tmp_path / "output")):
        assert Path(storage.mapped_path(path)).read_bytes() == b"four"


def test_copies_that_are_known_start_no_threads(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    paths = [f"{bucket}/{name}" for name in "abc"]
    for path in paths:
        storage.write_bytes(path, b"x")
    storage.fetch_copies(paths[:2])
    fetched: list[str] = []
    monkeypatch.setattr("pipelines.storage.files.map_files", lambda _function, paths, **_: fetched.extend(paths))
    storage.fetch_copies(paths)
    assert fetched == paths[2:]


def test_copies_make_room_for_others(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"webtext-cache-{os.getuid()}"
    folder.mkdir()
    sizes = dict.fromkeys("abc", 1000)

    def usage(_folder: Path) -> tuple[int, int, int]:
        used = sum(file.stat().st_size for file in folder.iterdir())
        return 3_000, used, 3_000 - used

    monkeypatch.setattr(local_cache.shutil, "disk_usage", usage)
    (folder / "killed.part").write_bytes(bytes(1000))
    copies = {}
    for name, size in sizes.items():
        storage.write_bytes(f"{bucket}/{name}", name.encode() * size)
        copies[name] = Path(storage.mapped_path(f"{bucket}/{name}"))
    assert [copy.exists() for copy in copies.values()] == [False, True, True]
    storage.write_bytes(f"{bucket}/large", b"x" * 3_000)
    with pytest.raises(StorageError, match=r"has no space for a file of 3 kB .* TMPDIR"):
        storage.mapped_path(f"{bucket}/large")


class _Refusal(BaseHTTPRequestHandler):
    """Answers every request that access is denied, with the reason unless it is a HEAD request."""

    def parse_request(self) -> bool:
        """Answer before the method is looked at."""
        if super().parse_request():
            self.send_response(403)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(b"<Error><Code>AccessDenied</Code><Message>not for you</Message></Error>")
        return False

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def denied(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a folder to which the store denies access."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusal)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    object_store._store.cache_clear()
    yield f"{bucket}/folder"
    server.shutdown()
    server.server_close()
    object_store._store.cache_clear()


@pytest.mark.parametrize("question", ["exists", "is_file", "is_folder", "list_folder", "glob", "remove", "size_bytes"])
def test_a_store_that_refuses_an_answer_does_not_look_empty(denied: str, question: str) -> None:
    with pytest.raises(StorageError, match=r"^s3://.*: cannot (read|remove): "):
        getattr(storage, question)(f"{denied}/*/data" if question == "glob" else denied)


def test_a_file_that_the_store_refuses_is_an_error_with_its_reason(denied: str) -> None:
    with pytest.raises(StorageError, match=r"^s3://.*/folder: cannot read: not for you \(AccessDenied\)$"):
        storage.read_bytes(denied)


def test_a_lock_that_the_store_refuses_is_an_error_of_the_store(denied: str) -> None:
    with pytest.raises(StorageError, match=r"^s3://.*/folder: cannot lock: "), folder_lock(denied):
        pass


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(bucket: str) -> None:
    storage.write_bytes(f"{bucket}/data", b"a" * 1_000_000)
    with storage.open_read(f"{bucket}/data") as stream:
        assert stream.read(1) == b"a"
        storage.write_bytes(f"{bucket}/data", b"b" * 1_000_000)
        with pytest.raises(OSError, match="replaced while it was read"):
            stream.read()


def test_a_file_whose_writer_forgets_it_does_not_become_an_object(bucket: str) -> None:
    forgotten = storage.file_system(bucket).open(f"{bucket}/data".partition("://")[2], "wb")
    forgotten.write(b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del forgotten
        gc.collect()
    assert storage.walk_files(bucket) == []


def test_an_object_that_is_too_large_for_a_copy_request_is_moved(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_MAX_COPY_BYTES", 1_000)
    monkeypatch.setattr(obstore, "copy", None)
    storage.write_bytes(f"{bucket}/data", b"x" * 1_001)
    storage.move(f"{bucket}/data", f"{bucket}/moved")
    assert storage.walk_files(bucket) == [f"{bucket}/moved"]
    assert storage.read_bytes(f"{bucket}/moved") == b"x" * 1_001


def test_missing_credentials_are_an_error_unless_requests_are_not_signed(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageError, match=r"^s3://test-\w+: no credentials found; set AWS_ACCESS_KEY_ID and "):
        storage.exists(bucket)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert not storage.exists(f"{bucket}/x")


@pytest.mark.parametrize(
    ("endpoint", "cause"), [("http://127.0.0.1:1", "Connection refused"), ("https://{}", "the connection failed")]
)
def test_a_store_that_cannot_be_reached_is_named(
    endpoint: str, cause: str, bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = endpoint.format(s3_server.removeprefix("http://"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setattr(object_store, "_TRIES", 1)
    monkeypatch.setattr(object_store, "_RETRY_S", 0.1)
    with pytest.raises(StorageError, match=rf"/x: cannot read: no answer from {endpoint} \({cause}\)$"):
        storage.exists(f"{bucket}/x")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://", "s3:"),
        ("s3:/bucket/folder", "s3:/bucket/folder"),
        ("s3:///folder", "s3:///folder"),
        ("gs:bucket", "gs:bucket"),
        ("s3://KEY:SECRET@bucket/folder", "s3://***@bucket/folder"),
    ],
)
def test_what_is_nearly_a_url_is_neither_a_local_folder_nor_shown_with_a_password(url: str, shown: str) -> None:
    with pytest.raises(StorageError) as error:
        storage.exists(storage.join(url, "x"))
    assert str(error.value) == f"{shown}/x: not a URL of an object store; write s3://BUCKET/FOLDER"


def test_an_endpoint_without_a_scheme_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(StorageError, match=r"AWS_ENDPOINT_URL: '127.0.0.1:9000' does not begin with http"):
        storage.exists("s3://some-bucket-of-no-other-test/x")


def test_a_folder_of_copies_that_is_a_file_is_named(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"webtext-cache-{os.getuid()}"
    folder.write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    storage.write_bytes(f"{bucket}/a", b"a")
    with pytest.raises(StorageError, match=rf"^{folder}: cannot hold local copies .*; set TMPDIR to another folder"):
        storage.mapped_path(f"{bucket}/a")


def test_a_copy_is_private_and_its_folder_of_no_other_user(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write_bytes(f"{bucket}/a", b"a")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    copy = Path(storage.mapped_path(f"{bucket}/a"))
    assert copy.stat().st_mode & 0o777 == 0o600
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    storage.write_bytes(f"{bucket}/c", b"c")
    (tmp_path / "webtext-cache-12345").mkdir()
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(
        StorageError, match=r"cannot hold local copies \(owned by another user\); set TMPDIR to another folder"
    ):
        storage.mapped_path(f"{bucket}/c")

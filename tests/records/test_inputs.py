"""Text inputs: every kind is read, what is no document is counted, what cannot be read is named."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines import storage
from pipelines.engine.manifest import Identity, Manifest, ShardEntry, write_manifest
from pipelines.errors import InputError
from pipelines.records import file_parts, inputs, shards
from pipelines.records.document_options import DocumentConfig
from pipelines.records.document_split import document_keys
from pipelines.records.drops import Drops


def _read(path: Path | list[str], text_field: str = "text") -> tuple[list[dict[str, Any]], dict[str, int]]:
    paths = path if isinstance(path, list) else str(path)
    drops = Drops()
    source = inputs.open_documents(paths, DocumentConfig(text_field))
    rows = []
    for shard in source.shards:
        schema = inputs.document_schema(shard)
        for batch in inputs.read_documents(shard, drops):
            assert batch.schema.equals(schema)
            rows += batch.to_pylist()
    return rows, dict(drops.counts)


def test_jsonl_keeps_known_fields_and_puts_the_others_into_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 7, "text": "one", "url": "http://x/", "score": 4, "tags": ["é"]}\n\n{"text": "two"}\n')
    rows, drops = _read(path)
    assert drops == {}
    assert [(row["id"], row["text"], row["url"], row["score"]) for row in rows] == [
        ("7", "one", "http://x/", 4),
        ("a.jsonl:3", "two", None, None),
    ]
    assert json.loads(rows[0]["metadata"]) == {"tags": ["é"]}
    assert rows[1]["metadata"] is None


def test_a_known_field_of_another_type_is_kept_as_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "score": "many", "submission_ids": ["a"], "subreddits": [1], "words": true}\n')
    (row,), _ = _read(path)
    assert (row["score"], row["submission_ids"], row["words"]) == (None, ["a"], None)
    assert json.loads(row["metadata"]) == {"score": "many", "subreddits": [1], "words": True}


def test_lines_without_documents_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\nnot json\n[1]\n{"text": null}\n{"body": "x"}\n')
    rows, drops = _read(path)
    assert len(rows) == 1
    assert drops == {"bad_json": 2, "missing_text": 2}


def test_unpaired_surrogates_are_replaced_and_deep_nesting_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"text": "bad \\ud83d half", "title": "\\ude00", "id": "\\ud800", '
        '"tags": ["\\ud801"], "whole": "\\ud83d\\ude00"}\n' + "[" * 200_000 + "\n"
    )
    (row,), drops = _read(path)
    assert (row["text"], row["title"], row["id"]) == ("bad \ufffd half", "\ufffd", "\ufffd")
    assert json.loads(row["metadata"]) == {"tags": ["\ufffd"], "whole": "\U0001f600"}
    assert drops == {"bad_json": 1}


def test_deep_nesting_of_a_line_with_a_surrogate_is_counted(tmp_path: Path) -> None:
    """Replacing surrogates needs more of the stack than parsing."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "\\ud800", "deep": ' + "[" * 600 + "]" * 600 + "}\n")
    assert [row["text"] for row in _read(path)[0]] == ["one"]
    assert _read(path)[1] == {"bad_json": 1}


def test_unpaired_surrogates_as_raw_bytes_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"id":"b","text":"\xed\xa0\x80 abc \xed\x95\x9c","title":"\xed\xbf\xbf",'
        b'"key\xed\xb0\x80":"\xed\xa0\xbd\xed\xb8\x80"}\n'
    )
    (row,), drops = _read(path)
    assert (row["id"], row["text"], row["title"]) == ("b", "\ufffd abc \ud55c", "\ufffd")
    assert json.loads(row["metadata"]) == {"key\ufffd": "\U0001f600"}
    assert drops == {}


def test_a_file_name_that_is_not_utf8_becomes_an_id(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("one")
    (row,), _ = _read(tmp_path)
    assert row["id"] == r"caf\xe9.txt"


def test_the_order_of_inputs_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"text": "x"}\n')
    one, two = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    # Shards are numbered by it: a run that goes on with another order would read one file twice and the other never.
    assert inputs.open_documents([one, two]).fingerprint != inputs.open_documents([two, one]).fingerprint


def test_a_folder_with_brackets_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "my[1]corpus"
    folder.mkdir()
    (folder / "docs[v2].jsonl").write_text('{"text": "x"}\n')
    assert len(_read(folder)[0]) == len(_read(folder / "docs[v2].jsonl")[0]) == 1


def test_folders_of_stages_are_read_together_and_with_other_inputs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    folders = [str(tmp_path / name) for name in ("plain[1]", "second", "markdown")]
    for folder in folders:
        with shards.write_shard(folder, "documents-00000.parquet", pa.schema([("text", pa.string())])) as file:
            file.write({"text": folder})
        entry = ShardEntry("shards", "documents-00000", 1, 1, files=(file.entry,))
        text_format = "markdown" if folder == folders[-1] else "text"
        write_manifest(folder, Manifest(Identity("extract", 1, {}, {}), (entry,), text_format))
    source = inputs.open_documents([*folders[:2], str(tmp_path / "a.txt")])
    batches = (batch for shard in source.shards for batch in inputs.read_documents(shard, Drops()))
    texts = [text for batch in batches for text in batch.column("text").to_pylist()]
    assert texts == [*folders[:2], "x"]
    problem = rf"its texts are text, those of {folders[2]} are markdown; extract both with the same --format"
    with pytest.raises(InputError, match=f"^{re.escape(folders[0])}: {problem}"):
        inputs.open_documents(folders)
    write_manifest(str(tmp_path / "tokens"), Manifest(Identity("tokenize", 1, {}, {}), ()))
    with pytest.raises(InputError, match=r"tokens/documents-\*\.parquet: matches no files"):
        inputs.open_documents([folders[0], str(tmp_path / "tokens")])


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        ('{"body": "one", "n": 1}', "has the fields 'body', 'n'"),
        ('{"text": 5, "body": "one"}', "has 5 there"),
        ('{"text": "one"', "has the fields 'body'"),
        ("[1]", "is not a JSON object"),
    ],
)
def test_a_file_without_texts_is_refused_with_what_its_first_record_has(
    tmp_path: Path, first: str, problem: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{first}\n{{"body": "two"}}\n')
    with pytest.raises(
        InputError, match=r"a\.jsonl: no record has a text in the field 'text' \(of 2 records\); the first "
    ):
        _read(path)
    with pytest.raises(InputError, match=re.escape(problem)):
        _read(path)


def test_another_field_may_have_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "one"}\n{"body": "two"}\n')
    assert [row["text"] for row in _read(path, "body")[0]] == ["one", "two"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_compressed_jsonl_is_read_in_batches(tmp_path: Path, suffix: str) -> None:
    data = b"".join(b'{"text": "document %d"}\n' % number for number in range(2500))
    path = tmp_path / f"a.jsonl{suffix}"
    compressed = {"": data, ".gz": gzip.compress(data), ".zst": zstandard.compress(data)}[suffix]
    path.write_bytes(compressed)
    shard = inputs.open_documents(str(path)).shards[0]
    sizes = [batch.num_rows for batch in inputs.read_documents(shard, Drops())]
    assert sizes == [1024, 1024, 452]


def test_a_folder_of_plain_texts_is_one_document_per_file(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes("\ufeffzwölf".encode())
    (tmp_path / "a.txt").write_text("eins")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "notes.md").write_text("# drei")
    rows, drops = _read(tmp_path)
    assert [(row["id"], row["text"]) for row in rows] == [("a.txt", "eins"), ("b.txt", "zwölf"), ("notes.md", "# drei")]
    assert drops == {"not_utf8": 1}


def test_parquet_keeps_its_columns_and_has_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["one", None, "three"], "text": [1, 2, 3], "rank": [0.5, 0.6, 0.7]}), path)
    rows, drops = _read(path, "body")
    assert rows == [
        {"id": "a.parquet:0", "text": "one", "rank": 0.5},
        {"id": "a.parquet:2", "text": "three", "rank": 0.7},
    ]
    assert drops == {"missing_text": 1}


def test_a_large_string_column_and_existing_ids_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"id": pa.array([5, None], pa.int64()), "text": pa.array(["x", "y"], pa.large_string())})
    pq.write_table(table, path)
    rows, _ = _read(path)
    assert rows == [{"id": "5", "text": "x"}, {"id": "a.parquet:1", "text": "y"}]


def test_text_of_a_parquet_file_that_is_not_utf8_is_dropped(tmp_path: Path) -> None:
    texts = pa.array([b"good", b"caf\xe9", None, "caf\u00e9".encode()], pa.binary())
    broken = pa.StringArray.from_buffers(len(texts), *texts.buffers()[1:], texts.buffers()[0], texts.null_count)
    pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "text": broken}), tmp_path / "a.parquet")
    rows, drops = _read(tmp_path / "a.parquet")
    assert [(row["id"], row["text"]) for row in rows] == [("a", "good"), ("d", "caf\u00e9")]
    assert drops == {"missing_text": 1, "not_utf8": 1}


def test_a_large_parquet_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_parts, "_MIN_DIVIDED_BYTES", 500)
    monkeypatch.setattr(file_parts, "_MIN_PART_BYTES", 500)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"document {n}" for n in range(100)]}), path, row_group_size=10)
    source = inputs.open_documents(str(path))
    assert len(source.shards) > 2
    rows = [
        row for shard in source.shards for batch in inputs.read_documents(shard, Drops()) for row in batch.to_pylist()
    ]
    assert [row["id"] for row in rows] == [f"a.parquet:{number}" for number in range(100)]
    assert [row["text"] for row in rows] == [f"document {number}" for number in range(100)]


def test_a_parquet_file_is_opened_once_beside_its_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        pq.write_table(pa.table({"text": [str(number)]}), tmp_path / f"{number:02}.parquet")
    opened: list[str] = []
    open_read = storage.open_read
    for module in ("pipelines.storage", "pipelines.storage.files"):
        monkeypatch.setattr(
            f"{module}.open_read", lambda path, **options: opened.append(path) or open_read(path, **options)
        )
    source = inputs.open_documents(str(tmp_path))
    assert [shard.files[0].name for shard in source.shards] == [f"{number:02}.parquet" for number in range(30)]
    assert sorted(opened) == sorted(2 * [shard.files[0].path for shard in source.shards])


def test_small_files_share_a_task_and_large_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_GROUP_BYTES", 100)
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("x" * 40)
    source = inputs.open_documents(str(tmp_path))
    assert [len(shard.files) for shard in source.shards] == [2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "nothing: no such file or folder"),
        ("*.jsonl", r"\*\.jsonl: matches no files"),
        ("empty", r"empty: contains no \*\.parquet, \*\.arrow, .*, \*\.wet files"),
        ("a.pdf", r"a\.pdf: unknown file type; supported are"),
        ("empty.ndjson", r"empty\.ndjson: is empty \(0 bytes\)"),
        ("a.html", r"a\.html: contains web pages; extract their text first: `webtext extract \S*a\.html`"),
        ("pages", r"pages: contains web pages; extract their text first: `webtext extract \S*pages`"),
        ("b.warc.gz", r"b\.warc\.gz: contains web pages"),
        ("number.parquet", r"number\.parquet: column 'text' is int64, not text"),
        ("other.parquet", r"other\.parquet: has no column 'text'; it has: body"),
        ("broken.parquet", r"broken\.parquet: is not a Parquet file"),
    ],
)
def test_unreadable_inputs_are_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.ndjson").touch()
    (tmp_path / "pages").mkdir()
    for page in ("a.html", "b.warc.gz", "pages/a.HTM.gz"):
        (tmp_path / page).write_text("<p>x")
    (tmp_path / "a.pdf").write_text("x")
    pq.write_table(pa.table({"text": [1]}), tmp_path / "number.parquet")
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "other.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(InputError, match=message):
        _read([str(tmp_path / name)])


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match=r"pipe\.txt: is not a regular file; save it as one"):
        inputs.open_documents(str(tmp_path / "pipe.txt"))


def test_the_fingerprint_is_of_names_and_contents_not_of_folders(tmp_path: Path) -> None:
    for folder, text in (("one", "x"), ("two", "x"), ("three", "y")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(text)
    one, two, three = (inputs.open_documents(str(tmp_path / name)).fingerprint for name in ("one", "two", "three"))
    assert one == two != three


def test_a_folder_of_small_files_is_read_in_few_batches_and_its_names_are_collected_once(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"{number:04d}.txt").write_text(f"document {number}")
    (tmp_path / "0700.txt").write_bytes(b"\xff")
    (shard,) = inputs.open_documents(str(tmp_path)).shards
    drops = Drops()
    batches = list(inputs.read_documents(shard, drops))
    assert [batch.num_rows for batch in batches] == [1024, 475]
    assert drops.counts == {"not_utf8": 1}
    keys = [key for batch in batches for key in document_keys(batch, shard)]
    assert keys == [f"document {number}".encode() for number in range(1500) if number != 700]
    # One set for all batches: 100,000 files must not be listed again for each batch.
    assert shard.file_names is shard.file_names


def test_files_of_equal_names_in_different_folders_have_different_ids(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part-0.jsonl").write_text('{"text": "one"}\n')
        (tmp_path / folder / "c.txt").write_text("two")
        pq.write_table(pa.table({"text": ["three"]}), tmp_path / folder / "d.parquet")
    ids = ["a/c.txt", "a/d.parquet:0", "a/part-0.jsonl:1", "b/c.txt", "b/d.parquet:0", "b/part-0.jsonl:1"]
    assert sorted(row["id"] for row in _read(tmp_path)[0]) == ids
    # However the files are named, and each once.
    folders = [str(tmp_path / "a"), os.path.relpath(tmp_path / "b"), str(tmp_path / "a" / ".." / "b" / "c.txt")]
    assert sorted(row["id"] for row in _read(folders)[0]) == ids
    assert sorted(row["id"] for row in _read(tmp_path / "b")[0]) == ["c.txt", "d.parquet:0", "part-0.jsonl:1"]
    (shard, *_) = inputs.open_documents(str(tmp_path)).shards
    for batch in inputs.read_documents(shard, Drops()):
        assert document_keys(batch, shard) == [text.encode() for text in batch.column("text").to_pylist()]


def test_the_paths_below_the_common_folder_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    for folder in ("one/a", "one/b", "two/a", "two/c"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.txt").write_text("x")
    one, two = (inputs.open_documents(str(tmp_path / name)).fingerprint for name in ("one", "two"))
    assert one != two


def test_compressed_files_and_tables_contain_more_text_than_their_size() -> None:
    sizes = {"a.jsonl": 1000, "b.txt": 1000, "c.JSONL.zst": 1000, "d.parquet": 1000}
    files = [inputs.InputFile(path, size) for path, size in sizes.items()]
    assert inputs.estimate_text_bytes(files) == 2 * 900 + 2 * 3500
    assert inputs.estimate_text_bytes([*files, *files]) == inputs.estimate_text_bytes(
        files
    )  # several shards read one file
    assert inputs.estimate_text_bytes([]) == 0


@pytest.mark.parametrize(("name", "size"), [("docs", 74_722_934), ("books", 45_298_433)])
def test_real_text(shared_data: Path, name: str, size: int) -> None:
    source = inputs.open_documents(str(shared_data / "text" / f"{name}.jsonl.zst"))
    assert size / 2 < inputs.estimate_text_bytes(source.files) < size * 2

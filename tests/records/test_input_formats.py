"""Documents in every format: the same texts, ids and drops, whatever they are stored in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from compressed_files import write_compressed

from pipelines.algorithms.web.urls import id_of_url
from pipelines.engine.manifest import Identity, Manifest, write_manifest
from pipelines.errors import InputError, UsageError
from pipelines.records import inputs, reader
from pipelines.records.document_options import DocumentConfig
from pipelines.records.drops import Drops


def _read(path: Path | list[str], **options: Any) -> tuple[list[dict[str, Any]], dict[str, int]]:
    drops = Drops()
    source = inputs.open_documents(path if isinstance(path, list) else str(path), DocumentConfig(**options))
    rows = []
    for shard in source.shards:
        for batch in inputs.read_documents(shard, drops):
            assert batch.schema.equals(inputs.document_schema(shard))
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows, dict(drops.counts)


def _pairs(path: Path | list[str], **options: Any) -> list[tuple[str, str]]:
    return [(row["id"], row["text"]) for row in _read(path, **options)[0]]


def _notes(path: Path) -> tuple[str, ...]:
    return inputs.open_documents(str(path)).notes


_QUOTED = 'a "quoted" text,\n\nof two paragraphs'


@pytest.mark.parametrize("name", ["a.csv", "A.CSV.GZ"])
def test_a_table_of_text(tmp_path: Path, name: str) -> None:
    lines = [
        ["id", "text", "score", "lang", "url"],
        ["7", '"' + _QUOTED.replace('"', '""') + '"', "5", "de", "http://x/"],
        ["", "two", "many", "", ""],
    ]
    data = "\ufeff" + "".join(",".join(cells) + "\r\n" for cells in lines)
    (tmp_path / name).write_bytes(gzip.compress(data.encode()) if name.endswith("GZ") else data.encode())
    rows, drops = _read(tmp_path / name)
    assert drops == {}
    assert [(row["id"], row["text"], row["score"], row["url"]) for row in rows] == [
        ("7", _QUOTED, 5, "http://x/"),
        (f"{name}:5", "two", None, None),
    ]
    assert [json.loads(row["metadata"]) for row in rows] == [{"lang": "de"}, {"lang": None, "score": "many"}]


def test_a_quote_in_tsv_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b'id\ttext\n1\t"Open quote, never closed\n\n2\tsaid "x"\r\n3\tends here"\n4\ta\tb\n5\tcaf\xe9\n')
    rows, drops = _read(path)
    assert [(row["id"], row["text"]) for row in rows] == [
        ("1", '"Open quote, never closed'),
        ("2", 'said "x"'),
        ("3", 'ends here"'),
    ]
    assert drops == {"bad_csv": 1, "not_utf8": 1}
    path.write_text("text\none\n" + "x" * (1 << 20) + "\ntwo\n")
    rows, drops = _read(path, max_document_mib=1)
    assert ([row["text"] for row in rows], drops) == (["one", "two"], {"too_large": 1})


def test_bad_rows_of_csv_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\n1,one\n2,two,three\n3,"x" y\n\n4,caf\xe9\n5,\n6,six\n7,"late\n8,eight" x\n9,nine\n')
    rows, drops = _read(path)
    assert [row["id"] for row in rows] == ["1", "6", "9"]
    assert drops == {"bad_csv": 3, "not_utf8": 1, "missing_text": 1}


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_blank_lines_before_the_header_are_no_records(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("\n\r\ntext\none\n")
    assert _pairs(path) == [(f"{name}:4", "one")]
    assert [record[:2] for record in reader.read_records(str(path))] == [(4, {"text": "one"})]
    path.write_text("\n\n")
    assert list(reader.read_records(str(path))) == []
    with pytest.raises(InputError, match=f"{name}: has no column 'text'"):
        _read(path)


def test_csv_without_the_column_or_with_an_endless_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,body\n1,one\n")
    assert _pairs(path, text_field="body") == [("1", "one")]
    with pytest.raises(InputError, match=r"a\.csv: has no column 'text'; it has: id, body"):
        _read(path)
    path.write_text("text,text\n1,one\n")
    with pytest.raises(InputError, match=r"a\.csv: has 2 columns 'text'"):
        _read(path)
    path.write_text('text\none\n"' + "x\n" * (1 << 20))
    with pytest.raises(InputError, match=r"a\.csv: the row that begins in line 3 .*; close its quotes"):
        _read(path, max_document_mib=1)
    path.write_text('text\none\n"two\nthree\n')
    with pytest.raises(InputError, match=r"a\.csv: the row that begins in line 3 .*; close its quotes"):
        _read(path)
    path.write_text("text\none\n" + "x" * (1 << 20) + "\ntwo\n")
    rows, drops = _read(path, max_document_mib=1)
    assert ([row["text"] for row in rows], drops) == (["one", "two"], {"too_large": 1})


_ELEMENTS = [
    {"id": "a", "text": "plain"},
    {"text": 'brackets ]} and "quotes" and \\ and \\" in text', "n": [1, {"x": "]"}]},
    {"text": "é\u2028 \ud83d"},
    {"text": ""},
    {"body": "other"},
    5,
]


@pytest.mark.parametrize("block_bytes", [1, 3, 1 << 20])
def test_an_array_of_json_is_read_like_jsonl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(reader, "_READ_BYTES", block_bytes)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(element) + "\n" for element in _ELEMENTS))
    expected, drops = _read(tmp_path / "b.jsonl")
    assert drops == {"missing_text": 1, "empty_text": 1, "bad_json": 1}
    for indent in (None, 2):
        (tmp_path / "b.json").write_text("\n " + json.dumps(_ELEMENTS, indent=indent) + "\n")
        rows, drops_of_array = _read(tmp_path / "b.json")
        assert drops_of_array == drops
        assert [{**row, "id": row["id"].replace(".json:", ".jsonl:")} for row in rows] == expected


@pytest.mark.parametrize("block_bytes", range(1, 30))
def test_content_after_an_array_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(reader, "_READ_BYTES", block_bytes)
    (tmp_path / "a.json").write_text('[{"text": "one"}]\n \n{"text": "two"}\n')
    with pytest.raises(InputError, match="has content after its JSON array"):
        _read(tmp_path / "a.json")


def test_a_json_file_may_be_lines(tmp_path: Path) -> None:
    (tmp_path / "c4.json.gz").write_bytes(gzip.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    assert _pairs(tmp_path / "c4.json.gz") == [("c4.json.gz:1", "one"), ("c4.json.gz:2", "two")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "one"}, {"text": "tw', "its JSON array does not end; check that the copy"),
        ('[{"text": "one"}', "its JSON array does not end"),
        ('[{"text": "one"}] [1]', "has content after its JSON array"),
        (
            '{\n "text": "one"\n}',
            r"record 1 is not valid JSON \(Expecting property name .*\), nor is any other record; write one object",
        ),
    ],
)
def test_other_json_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=rf"a\.json: {message}"):
        _read(tmp_path)


def test_a_large_element_of_an_array_is_dropped(tmp_path: Path) -> None:
    elements = [{"text": "one"}, {"text": "x" * (3 << 20)}, {"text": "two"}]
    (tmp_path / "a.json").write_text(json.dumps(elements))
    rows, drops = _read(tmp_path / "a.json", max_document_mib=1)
    assert ([row["text"] for row in rows], drops) == (["one", "two"], {"too_large": 1})


def _arrow_table() -> pa.Table:
    return pa.table({"id": [1, 2, None], "text": ["one", None, "three"], "n": [1.5, 2.5, 3.5]})


@pytest.mark.parametrize("form", ["file", "stream", "feather"])
def test_arrow_files(tmp_path: Path, form: str) -> None:
    table = _arrow_table()
    path = tmp_path / ("a.feather" if form == "feather" else "a.arrow")
    options = pa.ipc.IpcWriteOptions(compression="lz4") if form == "feather" else None
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)
    rows, drops = _read(path)
    assert drops == {"missing_text": 1}
    assert rows == [{"id": "1", "text": "one", "n": 1.5}, {"id": f"{path.name}:2", "text": "three", "n": 3.5}]


def test_columns_of_views_are_read_and_types_without_functions_refused(tmp_path: Path) -> None:
    for name, kind in (("a.arrow", pa.string_view()), ("b.arrow", pa.dictionary(pa.int32(), pa.string_view()))):
        values = (
            pa.array(["one", None]).cast(kind)
            if name == "a.arrow"
            else pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int32()), pa.array(["one"], pa.string_view()))
        )
        table = pa.table({"text": values, "other": values})
        with pa.ipc.new_stream(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
    assert _read(tmp_path / "a.arrow") == ([{"id": "a.arrow:0", "text": "one", "other": "one"}], {"missing_text": 1})
    with pytest.raises(InputError, match=r"b\.arrow: has columns that cannot be read \("):
        _read(tmp_path / "b.arrow")


def test_damaged_arrow_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(str(path), _arrow_table().schema) as writer:
        writer.write_table(_arrow_table())
    data = path.read_bytes()
    for damaged in (b"", b"FEA1....", data[: len(data) // 2], b"not Arrow at all"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.arrow: (cannot be read as Arrow|is a file of Feather version 1)"):
            _read(path)
    # Offsets beyond the texts, which pyarrow itself follows into memory that is not the file's.
    offsets = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in (0, 1_000_000, 3)))
    column = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abc"))
    batch = pa.record_batch([column], ["text"])
    with pa.ipc.new_stream(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(InputError, match=r"a\.arrow: cannot be read as Arrow"):
        _read(path)


def _write_data_set(folder: Path, texts: list[str]) -> None:
    """Write what `datasets.save_to_disk` writes, and a file of its cache."""
    folder.mkdir(parents=True)
    for name, values in (("data-00000-of-00001.arrow", texts), ("cache-abc.arrow", ["cached"])):
        table = pa.table({"text": values})
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    _write_data_set(tmp_path / "one", ["eins", "zwei"])
    assert [text for _, text in _pairs(tmp_path / "one")] == ["eins", "zwei"]
    for split in ("train", "test"):
        _write_data_set(tmp_path / "dict" / split, [split])
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert _pairs(tmp_path / "dict") == [
        ("test/data-00000-of-00001.arrow:0", "test"),
        ("train/data-00000-of-00001.arrow:0", "train"),
    ]
    assert _notes(tmp_path / "dict") == ()
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(InputError, match=r"state\.json: is not the state of a data set of datasets.save_to_disk"):
        _read(tmp_path / "one")


def test_nested_fields_and_ids(tmp_path: Path) -> None:
    record = {"meta": {"key": 7, "n": 1}, "doc": {"body": {"content": "one"}}, "id": "x"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n" + json.dumps({"doc": 5}) + "\n")
    (tmp_path / "b.json").write_text(json.dumps([record]))
    table = pa.Table.from_pylist([record, {"doc": None, "meta": {"key": 8, "n": 2}}])
    pq.write_table(table, tmp_path / "c.parquet")
    for name in ("a.jsonl", "b.json", "c.parquet"):
        rows, drops = _read(tmp_path / name, text_field="doc.body.content", id_field="meta.key")
        assert [(row["id"], row["text"]) for row in rows] == [("7", "one")]
        assert drops == ({} if name == "b.json" else {"missing_text": 1})
        rest = json.loads(rows[0]["metadata"]) if "metadata" in rows[0] else rows[0]
        assert rest["meta"] == {"n": 1}
        assert "doc" not in rest
    with pytest.raises(InputError, match=r"c\.parquet: doc: has no column 'title'; it has: body"):
        _read(tmp_path / "c.parquet", text_field="doc.title")
    with pytest.raises(InputError, match=r"b\.json: no record has the field 'key' of --id-field .* 'meta', 'doc'"):
        _read(tmp_path / "b.json", text_field="doc.body.content", id_field="key")
    dotted = tmp_path / "d.jsonl"
    dotted.write_text('{"doc.content": "a name with a dot"}\n')
    assert _pairs(dotted, text_field="doc.content") == [("d.jsonl:1", "a name with a dot")]


def test_an_id_that_is_a_column_of_documents_stays_one(tmp_path: Path) -> None:
    record = {"url": "http://a.org/", "text": "one", "key": "k"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "b.csv").write_text("url,text,key\nhttp://a.org/,one,k\n")
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "c.parquet")
    for name in ("a.jsonl", "b.csv", "c.parquet"):
        [row], _ = _read(tmp_path / name, id_field="url")
        assert (row["id"], row["url"], row["text"]) == ("http://a.org/", "http://a.org/", "one")
        [row], _ = _read(tmp_path / name, id_field="key")
        assert (row["id"], "key" in row, row.get("metadata")) == ("k", False, None)


def test_texts_by_line_and_empty_texts(tmp_path: Path) -> None:
    (tmp_path / "A.TXT").write_bytes("\ufeffone\r\n\n two \x0c three\n".encode() + b"\xff\n")
    (tmp_path / "b.md").write_text("a\nb")
    (tmp_path / "c.txt").write_text("")
    rows, drops = _read(tmp_path, document="line")
    assert [(row["id"], row["text"]) for row in rows] == [
        ("A.TXT:1", "one"),
        ("A.TXT:3", " two \x0c three"),
        ("b.md", "a\nb"),
    ]
    assert drops == {"not_utf8": 1}
    rows, drops = _read(tmp_path)
    assert [row["id"] for row in rows] == ["b.md"]
    assert drops == {"not_utf8": 1, "empty_text": 1}


def test_blank_texts_are_dropped_alike_in_all_formats(tmp_path: Path) -> None:
    texts = ["one", "", " \n\u3000"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "a.csv").write_text('text\none\n" "\n"\n\t"\n')
    pq.write_table(pa.table({"text": [*texts, None]}), tmp_path / "a.parquet")
    (tmp_path / "a").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "a" / f"{number}.txt").write_text(text)
    for name, missing in {"a.jsonl": {}, "a.csv": {}, "a.parquet": {"missing_text": 1}, "a": {}}.items():
        rows, drops = _read(tmp_path / name)
        assert ([row["text"] for row in rows], drops) == (["one"], {"empty_text": 2} | missing)


def test_a_file_of_blank_texts_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": " "}\n')
    assert _read(tmp_path / "a.jsonl") == ([], {"empty_text": 2})


def _write_wet(path: Path, texts: dict[str, bytes]) -> None:
    records = [("warcinfo", "WARC-Filename: x.warc.wet.gz", b"software: test")]
    records += [("conversion", f"WARC-Target-URI: {url}", text) for url, text in texts.items()]
    path.write_bytes(b"".join(gzip.compress(_record(*record)) for record in records))


def _record(kind: str, header: str, content: bytes) -> bytes:
    lines = ["WARC/1.0", f"WARC-Type: {kind}", "WARC-Date: 2024-05-01T10:00:00Z", "Content-Type: text/plain", header]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode() + content + b"\r\n\r\n"


def test_wet_files(tmp_path: Path) -> None:
    path = tmp_path / "CC-MAIN.warc.wet.gz"
    _write_wet(path, {"http://a.example.com/": b"one\ntext", "http://b.org/x": b"caf\xe9", "http://c.org/": b""})
    rows, drops = _read(path)
    assert drops == {"not_utf8": 1, "empty_text": 1}
    (row,) = rows
    assert (row["id"], row["url"], row["text"]) == (id_of_url(row["url"]), "http://a.example.com/", "one\ntext")
    assert (row["domain"], row["fetched_at"].isoformat()) == ("example.com", "2024-05-01T10:00:00+00:00")
    assert (row["warc_file"], row["warc_offset"] > 0) == (path.name, True)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"CC-MAIN\.warc\.wet\.gz: is damaged after byte \d+ \("):
        _read(path)
    _write_wet(path, {})
    with pytest.raises(InputError, match="has no conversion records; `webtext extract` reads"):
        _read(path)


@pytest.mark.parametrize("suffix", ["", ".zst", ".bz2", ".xz"])
def test_wet_files_of_other_compressions(tmp_path: Path, suffix: str) -> None:
    _write_wet(tmp_path / "a.wet.gz", {"http://a.org/": b"one", "http://b.org/": b"two"})
    data = gzip.decompress((tmp_path / "a.wet.gz").read_bytes())
    path = write_compressed(tmp_path, f"b.wet{suffix}", data)
    rows, _ = _read(path)
    assert [row["text"] for row in rows] == ["one", "two"]
    # In the decompressed file; there are no members to begin at.
    assert data[rows[1]["warc_offset"] :].startswith(b"WARC/1.0\r\nWARC-Type: conversion")
    if suffix:
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(InputError, match=rf"b\.wet{suffix}: is (damaged|truncated)"):
            _read(path)


def test_what_a_folder_contains_besides_is_said(tmp_path: Path) -> None:
    for name in ("a.txt", "B.JSONL", "x.docx", "y.docx", "Makefile", "z.html.gz"):
        (tmp_path / name).write_text('{"text": "x"}\n')
    assert _notes(tmp_path) == (f"{tmp_path}: 4 files of other types not read: .docx 2, .html 1, no suffix 1",)
    assert _notes(tmp_path / "a.txt") == ()


def test_a_readme_next_to_tables_describes_them(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("one")
    assert _pairs(tmp_path) == [("README.md", "one")]
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"text": ["two"]}), tmp_path / "data" / "a.parquet")
    assert _pairs(tmp_path) == [("a.parquet:0", "two")]
    assert _notes(tmp_path) == (f"{tmp_path}: 1 file of other types not read: README.md 1",)
    assert ("README.md", "one") in _pairs([str(tmp_path), str(tmp_path / "README.md")])


def test_the_output_of_a_stage_inside_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('[{"text": "of another program"}]')
    assert len(_pairs(tmp_path)) == 2
    pq.write_table(pa.table({"cluster": ["x"]}), tmp_path / "clusters.parquet")
    write_manifest(str(tmp_path / "my" / "dedup"), Manifest(Identity("dedup", 1, {}, {}), ()))
    with pytest.raises(UsageError, match=rf"{tmp_path}/my/dedup: is the output of webtext dedup; name it or --corpus"):
        _read(tmp_path)
    (tmp_path / "my" / "dedup" / "manifest.json").unlink()
    (tmp_path / "my" / "dedup" / "_journal").mkdir()
    (tmp_path / "my" / "dedup" / "_journal" / "x.json").write_text("{}")
    with pytest.raises(UsageError, match=r"my/dedup: is an unfinished output of webtext"):
        _read(tmp_path)


def test_a_categorical_text_is_read(tmp_path: Path) -> None:
    texts = pa.array(["one", "two", None, "one"]).dictionary_encode()
    pq.write_table(pa.table({"text": texts, "lang": texts}), tmp_path / "a.parquet")
    assert [(row["text"], row["lang"]) for row in _read(tmp_path)[0]] == [
        (text, text) for text in ("one", "two", "one")
    ]


def test_files_of_different_columns_give_one_schema(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one", "score": 3, "x": 1}\n')
    pq.write_table(pa.table({"text": ["two"], "score": ["many"], "n": [1]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"text": ["three"], "n": [2.5], "tags": [["a"]]}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"text": ["four"], "tags": [{"a": "é"}]}), tmp_path / "d.parquet")
    source = inputs.open_documents(str(tmp_path))
    for shard in source.shards:
        (batch,) = inputs.read_documents(shard, Drops())
        pq.write_table(pa.Table.from_batches([batch]), tmp_path / f"documents-{shard.index}.parquet")
    table = ds.dataset(sorted(tmp_path.glob("documents-*.parquet"))).to_table()
    rows = sorted(table.select(["text", "score", "n", "tags"]).to_pylist(), key=lambda row: row["text"])
    assert rows == [
        {"text": "four", "score": None, "n": None, "tags": '{"a": "é"}'},
        {"text": "one", "score": "3", "n": None, "tags": None},
        {"text": "three", "score": None, "n": 2.5, "tags": '["a"]'},
        {"text": "two", "score": "many", "n": 1.0, "tags": None},
    ]
    assert not source.shards[0].schema.field("text").nullable

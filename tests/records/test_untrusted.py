"""Files that are valid Parquet or JSON and wrong in a value: one line that names the file and the place."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.algorithms.ngrams import hashing
from pipelines.engine.manifest import (
    FileEntry,
    Identity,
    Manifest,
    ShardEntry,
    complete_replacement,
    read_manifest,
    write_manifest,
)
from pipelines.errors import DamagedShardError, InputError, WebtextError
from pipelines.model.training.data import read_token_description
from pipelines.records import inputs
from pipelines.records.drops import Drops
from pipelines.records.inputs import StageFolder
from pipelines.records.ngram_filter import HEADER_BYTES, open_filter_folder
from pipelines.records.shards import read_rows, write_file


def _read(path: Path) -> list[str]:
    source = inputs.open_documents(str(path))
    batches = [batch for shard in source.shards for batch in inputs.read_documents(shard, Drops())]
    return [id for batch in batches for id in batch.column("id").to_pylist()]


def _texts(values: list[bytes]) -> pa.Array:
    """Return a column of strings without checking that they are UTF-8."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


@pytest.mark.parametrize("column", ["id", "url", "domain"])
def test_a_value_that_is_not_utf8_is_named(tmp_path: Path, column: str) -> None:
    values = [f"v{row}".encode() for row in range(3000)]
    values[2500] = b"caf\xe9"
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({column: _texts(values), "text": ["text"] * 3000}), path)
    with pytest.raises(InputError, match=rf"a.parquet: row 2500 has a value in column '{column}' that is not UTF-8"):
        _read(path)
    with pytest.raises(InputError, match=rf"row 2500 .* '{column}'"):
        list(read_rows(str(path)))


def test_columns_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array(["one"])
    pq.write_table(pa.Table.from_arrays([texts, texts], ["text", "text"]), path)
    with pytest.raises(InputError, match=r"a.parquet: has 2 columns 'text'"):
        _read(path)
    pq.write_table(pa.Table.from_arrays([texts, texts, texts], ["url", "url", "text"]), path)
    with pytest.raises(InputError, match=r"a.parquet: has 2 columns 'url'"):
        _read(path)
    pq.write_table(pa.table({"id": [[1]], "text": ["one"]}), path)
    with pytest.raises(InputError, match=r"a.parquet: column 'id' is list<.*int64>, not text or a number"):
        _read(path)
    pq.write_table(pa.table({"id": pa.array([b"\xff"]), "text": ["one"]}), path)
    with pytest.raises(InputError, match=r"a.parquet: column 'id' is binary and cannot be written as text"):
        _read(path)
    pq.write_table(pa.table({"id": pa.array([2**64 - 1], pa.uint64()), "text": ["one"]}), path)
    assert _read(path) == [str(2**64 - 1)]


def test_integers_of_more_than_64_bits_stay_in_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"id": {2**70}, "text": "one", "score": {2**70}, "words": {2**63}}}\n')
    assert _read(path) == [str(2**70)]


def test_messages_are_bounded() -> None:
    message = str(InputError(f"a.json: has the field {'x' * 100_000!r}; rebuild it"))
    assert len(message) < 2100
    assert message.startswith("a.json: has the field")
    assert message.endswith("; rebuild it")


_SHARD = ShardEntry(
    "shards", "documents-00000", 3, 2, {"empty": 1}, {"x": 1.5, "y": 2}, (FileEntry("a.bin", 4, "0" * 64),)
)
_MANIFEST = Manifest(Identity("tokenize", 1, {"seed": 1}, {"documents": "abc"}), (_SHARD,))
_TOKENS = {
    "dtype": "uint16",
    "header_bytes": 0,
    "vocab_size": 300,
    "end_of_text": 299,
    "tokenizer_sha256": "0" * 64,
    "splits": {"train": [{"name": "train-00000.bin", "tokens": 5, "documents_file": "train-00000-documents.parquet"}]},
}
_HEADER = {
    "n": 8,
    "normalisation": {"apostrophes": "split", "letters": "ascii", "lines": "cross", "unicode": "15.0.0"},
    "ngram_hash": hashing.NAME,
    "seed": 0,
    "error_rate": 0.1,
    "sketch_items": 5,
    "blocks": 1,
    "k": 3,
    "items": 5,
    "fill": 0.1,
    "error_bound": 0.1,
    "documents": 1,
    "corpus": "abc",
    "bits_sha256": "0" * 64,
}


def _open_manifest(folder: Path, value: Any) -> None:
    (folder / "manifest.json").write_text(json.dumps(value))
    manifest = read_manifest(str(folder))
    assert manifest.fingerprint()
    assert isinstance(manifest.dropped, dict)
    assert isinstance(manifest.counts, dict)
    assert manifest.records_in + manifest.records_out < 2**70
    StageFolder(str(folder), manifest).files("a")


def _write_stage(folder: Path, stage: str, files: dict[str, bytes]) -> None:
    entries = tuple(write_file(str(folder), name, data) for name, data in files.items())
    write_manifest(str(folder), Manifest(Identity(stage, 1, {}, {}), (ShardEntry("s", "x", files=entries),)))


def _open_tokens(folder: Path, value: Any) -> None:
    _write_stage(folder, "tokenize", {"tokens.json": json.dumps(value).encode()})
    read_token_description(inputs.open_stage(str(folder), ("tokenize",)))


def _open_index(folder: Path, value: Any) -> None:
    text = json.dumps(value).encode()
    start = (struct.pack("<8sII", b"ngrbloom", 1, len(text)) + text).ljust(HEADER_BYTES - 32, b"\0")
    description = {"format": "blocked", "corpora": ["abc"]}
    data = start + hashlib.sha256(start).digest() + bytes(512)
    _write_stage(folder, "overlap-index", {"index.json": json.dumps(description).encode(), "index.bloom": data})
    opened = open_filter_folder(str(folder))
    assert isinstance(opened.header.n + len(opened.corpora), int)
    assert opened.header.normalization


_WRONG = [None, True, -1, 2**70, 1.5, "x", "../x", [], [1], {}, {"x": 1}, [[]], "y" * 100_000]


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*place, key))


def _changed(value: Any, place: tuple[Any, ...], wrong: Any, removes: bool) -> Any:
    if not place:
        return wrong
    result = copy.deepcopy(value)
    parent = result
    for key in place[:-1]:
        parent = parent[key]
    if removes:
        del parent[place[-1]]
    else:
        parent[place[-1]] = wrong
    return result


@pytest.mark.parametrize(
    ("opens", "value"),
    [(_open_manifest, _MANIFEST.to_json()), (_open_tokens, _TOKENS), (_open_index, _HEADER)],
    ids=["manifest", "tokens", "index"],
)
def test_wrong_values_in_json_are_an_error_of_one_line(
    tmp_path: Path, opens: Callable[[Path, Any], None], value: Any
) -> None:
    value = json.loads(json.dumps(value))
    opens(tmp_path, value)
    places = list(_places(value))
    cases = [(place, wrong, False) for place in places for wrong in _WRONG] + [(place, None, True) for place in places]
    random.Random(1).shuffle(cases)
    refused = 0
    for place, wrong, removes in cases[:300]:
        try:
            opens(tmp_path, _changed(value, place, wrong, removes))
        except (InputError, DamagedShardError) as error:
            refused += 1
            message = str(error)
            assert str(tmp_path) in message
            assert "\n" not in message
            assert len(message) < 2100
    assert refused > 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": 5}, r"Expected `str`, got `int` - at `\$.stage`"),
        ({"inputs": {"a": []}}, "Expected `str`, got `array`"),
        (
            {"shards": [{"phase": "x", "name": "y", "records_in": 2**70}]},
            r"Expected `int` <= .*records_in`",
        ),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(_MANIFEST.to_json() | change))
    with pytest.raises(InputError, match=message):
        read_manifest(str(tmp_path))


def test_numbers_of_manifests_keep_their_types(tmp_path: Path) -> None:
    write_manifest(str(tmp_path), _MANIFEST)
    manifests = (read_manifest(str(tmp_path)), _MANIFEST)
    assert len({json.dumps(manifest.to_json(), sort_keys=True) for manifest in manifests}) == 1


def test_files_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    value = json.loads(json.dumps(_MANIFEST.to_json()))
    value["shards"][0]["files"][0]["name"] = "../other"
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(WebtextError, match=r"manifest.json: is not a manifest .*'../other' is not in the folder"):
        read_manifest(str(tmp_path))


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"manifest.json: is not valid JSON"):
        read_manifest(str(tmp_path))


def test_a_list_of_replaced_files_cannot_name_others(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    folder = tmp_path / "corpus"
    write_manifest(str(folder / "_next"), _MANIFEST)
    (folder / "_next" / ".replaced.json").write_text('["a.bin", "../other"]')
    (folder / "a.bin").write_text("old")
    with pytest.raises(InputError, match=r"replaced.json: is not a list of replaced files \('../other' is not in"):
        complete_replacement(str(folder))
    assert (tmp_path / "other").exists()
    assert (folder / "a.bin").exists()

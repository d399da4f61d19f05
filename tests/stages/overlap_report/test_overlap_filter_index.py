"""Queries of an index: nothing in it is missed, and the certificate bounds the false positives."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines import progress
from pipelines.algorithms.bloom.file_format import HEADER_BYTES, read_header, write_header
from pipelines.algorithms.ngrams.index import NgramIndex, ngram_text
from pipelines.algorithms.ngrams.index_builder import IndexBuilder
from pipelines.algorithms.ngrams.words import Normalization, text_ngrams
from pipelines.engine.run import RunOptions
from pipelines.errors import DamagedShardError, InputError, UsageError
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index
from pipelines.stages.overlap_report import filter_index
from pipelines.stages.overlap_report.filter_index import open_filter

_INDEXED = [" ".join(f"held{(number * 300 + place) % 5003}" for place in range(300)) for number in range(20)]
_ABSENT = [" ".join(f"absent{number}x{place}" for place in range(3000)) for number in range(10)]
_UNICODE = unicodedata.unidata_version
_FIELDS = {
    "keys",
    "bits",
    "bits_a_key",
    "hashes",
    "fill",
    "error_rate",
    "error_bound",
    "probes",
    "found",
    "upper_bound",
}


def _index(folder: Path, output: Path | str, **config: Any) -> str:
    documents = folder / "docs.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in _INDEXED))
    made = OverlapIndexConfig(**{"ngram": 4, **config})
    overlap_index(made, documents=str(documents), output=str(output), options=RunOptions())
    return str(output)


def _exact_index(texts: Sequence[str], n: int = 4, normalization: Normalization | None = None) -> NgramIndex:
    builder = IndexBuilder(n, normalization or Normalization())
    builder.add(*text_arrays(pa.array(texts)))
    return builder.finish()[0]


def _rewrite(folder: Path, name: str, data: bytes) -> None:
    """Put other bytes under the name of a file, and let the manifest vouch for them."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    for shard in manifest["shards"]:
        for file in shard["files"]:
            if file["name"] == name:
                file |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("kind", ["blocked", "pybloom-live"])
def test_indexed_ngrams_are_found_and_few_others(tmp_path: Path, kind: str) -> None:
    index = open_filter(_index(tmp_path, tmp_path / "index", error_rate=0.02, filter=kind))
    exact = _exact_index([*_ABSENT, *_INDEXED])
    found = index.contains(exact)
    indexed = {ngram for text in _INDEXED for _, ngram in text_ngrams(text, 4)}
    is_indexed = np.array([ngram_text(exact, number) in indexed for number in range(len(found))])
    assert is_indexed.sum() == len(indexed) > 4900
    assert found[is_indexed].all()
    certificate = index.certificate(probes=50_000)
    assert found[~is_indexed].mean() == pytest.approx(certificate["error_bound"], rel=0.25)
    assert (index.documents, len(index.corpus), len(index.fingerprint)) == (20, 64, 64)


def test_the_certificate_tests_the_bound_with_a_million_probes(tmp_path: Path) -> None:
    index = open_filter(_index(tmp_path, tmp_path / "index", error_rate=0.01))
    certificate = index.certificate()
    assert certificate.keys() == _FIELDS
    assert certificate["probes"] == 1_000_000
    assert certificate["found"] / 1_000_000 == pytest.approx(certificate["error_bound"], rel=0.05)
    assert certificate["found"] / 1_000_000 < certificate["upper_bound"] < 1.1 * certificate["error_bound"]
    assert certificate["bits_a_key"] == pytest.approx(certificate["bits"] / certificate["keys"], abs=1e-3)
    assert certificate["error_rate"] == 0.01
    index._filter.threads, index._filter.batch = 3, 70_001
    assert index.certificate() == certificate


def test_the_number_of_probes_depends_on_the_rate(tmp_path: Path) -> None:
    index = open_filter(_index(tmp_path, tmp_path / "index", error_rate=1e-6))
    certificate = index.certificate()
    assert certificate["probes"] == 3_000_000
    assert certificate["found"] < 12
    none = open_filter(_index(tmp_path, tmp_path / "other", error_rate=1e-12)).certificate(probes=300_000)
    assert (none["found"], none["upper_bound"]) == (0, pytest.approx(2.9957 / 300_000, rel=1e-4))


def test_a_filter_that_exceeds_its_error_bound_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    _index(tmp_path, folder, error_rate=0.01)
    data = (folder / "index.bloom").read_bytes()
    header = dataclasses.replace(read_header(data[:HEADER_BYTES], len(data)), error_bound=1e-4)
    _rewrite(folder, "index.bloom", write_header(header) + data[HEADER_BYTES:])
    with pytest.raises(
        InputError, match=r"index\.bloom: finds [\d,]+ of 100,000 random n-grams.* its bits explain 10\.0"
    ):
        open_filter(str(folder)).certificate(probes=100_000)


def test_a_damaged_filter_is_refused_at_the_first_query(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    _index(tmp_path, folder)
    data = bytearray((folder / "index.bloom").read_bytes())
    data[-1] ^= 1
    (folder / "index.bloom").write_bytes(data)
    index = open_filter(str(folder))
    with pytest.raises(DamagedShardError, match=r"index\.bloom: is damaged"):
        index.contains(_exact_index(_INDEXED))
    (folder / "index.bloom").write_bytes(data[:-512])
    with pytest.raises(InputError, match=r"index\.bloom: is truncated"):
        open_filter(str(folder))


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder; run `webtext overlap-index` first"):
        open_filter(str(tmp_path / "absent"))
    folder = tmp_path / "index"
    _index(tmp_path, folder)
    described = json.loads((folder / "index.json").read_text())
    _rewrite(folder, "index.json", json.dumps({**described, "format": "other"}).encode())
    with pytest.raises(InputError, match=r"unknown format 'other'; use a newer version"):
        open_filter(str(folder))
    _rewrite(folder, "index.json", json.dumps(described).encode())
    data = (folder / "index.bloom").read_bytes()
    header = dataclasses.replace(read_header(data[:HEADER_BYTES], len(data)), ngram_hash="other-1")
    _rewrite(folder, "index.bloom", write_header(header) + data[HEADER_BYTES:])
    with pytest.raises(InputError, match=r"hashes n-grams by 'other-1', this version by .*; rebuild it"):
        open_filter(str(folder))


@pytest.mark.parametrize("kind", ["blocked", "pybloom-live"])
def test_other_ngrams_are_refused_with_the_options_to_use(tmp_path: Path, kind: str) -> None:
    index = open_filter(_index(tmp_path, tmp_path / "index", ngram=13, apostrophes="drop", filter=kind))
    index.check_options(13, Normalization(apostrophes="drop"))
    with pytest.raises(
        UsageError, match=r"ngram 13, not 8, apostrophes drop, not split; .* --ngram 13 --apostrophes drop"
    ):
        index.check_options(8, Normalization())
    with pytest.raises(UsageError, match=r"letters unicode, not ascii; use --letters unicode$"):
        index.check_options(13, Normalization(apostrophes="drop", letters="ascii"))


def test_an_index_of_an_early_version_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    _index(tmp_path, folder, filter="pybloom-live", error_rate=1e-3)
    described = json.loads((folder / "index.json").read_text())
    for name in ("apostrophes", "letters", "lines", "corpora"):
        del described[name]
    _rewrite(folder, "index.json", json.dumps(described).encode())
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "version": 1}))
    index = open_filter(str(folder))
    index.check_options(4, Normalization())
    assert index.contains(_exact_index(_INDEXED)).all()
    certificate = index.certificate(probes=20_000)
    assert certificate.keys() == _FIELDS
    assert certificate["error_bound"] == described["error_bound"]
    assert (certificate["hashes"], certificate["bits"]) == (described["hashes"], described["bits"])


def test_limitations_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _index(tmp_path, tmp_path / "index")
    notes: list[str] = []
    monkeypatch.setattr(progress, "note", notes.append)
    open_filter(folder).contains(_exact_index(_INDEXED))
    assert notes == []
    monkeypatch.setattr("unicodedata.unidata_version", "99.0")
    monkeypatch.setattr(filter_index, "available_memory_bytes", lambda: 512)
    open_filter(folder).contains(_exact_index(_INDEXED))
    assert [note.partition(": ")[2].split(",")[0] for note in notes] == [
        f"was built with Unicode {_UNICODE}",
        "takes 26.1 kB",
    ]


def test_a_remote_index_is_queried(tmp_path: Path) -> None:
    index = open_filter(_index(tmp_path, f"memory://filter-index-{tmp_path.name}/index"))
    assert index.contains(_exact_index(_INDEXED)).all()
    assert not index.contains(_exact_index(_ABSENT)).any()

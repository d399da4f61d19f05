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
from reference_ngrams import text_ngrams

from pipelines import progress
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.index import NgramIndex, build_index, ngram_texts
from pipelines.engine.run import RunOptions
from pipelines.errors import DamagedShardError, InputError, UsageError
from pipelines.records.ngram_filter import HEADER_BYTES, read_header, write_header
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index
from pipelines.stages.overlap_report import filter_index
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.filter_index import FilterIndex

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


def _exact_index(texts: Sequence[str]) -> NgramIndex:
    return build_index([text_arrays(pa.array(texts))], 4)[0]


def _rewrite(folder: Path, name: str, data: bytes) -> None:
    """Put other bytes under the name of a file, and let the manifest vouch for them."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    for shard in manifest["shards"]:
        for file in shard["files"]:
            if file["name"] == name:
                file |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_indexed_ngrams_are_found_and_few_others(tmp_path: Path) -> None:
    index = FilterIndex(_index(tmp_path, tmp_path / "index", error_rate=0.02))
    exact = _exact_index([*_ABSENT, *_INDEXED])
    found = index.contains(exact)
    indexed = {ngram for text in _INDEXED for _, ngram in text_ngrams(text, 4)}
    is_indexed = np.array([ngram in indexed for ngram in ngram_texts(exact, np.arange(len(found))).to_pylist()])
    assert is_indexed.sum() == len(indexed) > 4900
    assert found[is_indexed].all()
    certificate = index.certificate(probes=50_000)
    assert found[~is_indexed].mean() == pytest.approx(certificate["error_bound"], rel=0.25)
    assert (index.header.documents, len(index.header.corpus), len(index.folder.fingerprint)) == (20, 64, 64)


def test_the_certificate_tests_the_bound_with_a_million_probes(tmp_path: Path) -> None:
    index = FilterIndex(_index(tmp_path, tmp_path / "index", error_rate=0.01))
    certificate = index.certificate()
    assert certificate.keys() == _FIELDS
    assert certificate["probes"] == 1_000_000
    assert certificate["found"] / 1_000_000 == pytest.approx(certificate["error_bound"], rel=0.05)
    assert certificate["found"] / 1_000_000 < certificate["upper_bound"] < 1.1 * certificate["error_bound"]
    assert certificate["bits_a_key"] == pytest.approx(certificate["bits"] / certificate["keys"], abs=1e-3)
    assert certificate["error_rate"] == 0.01
    index.threads = 3
    assert index.certificate() == certificate


def test_the_number_of_probes_depends_on_the_rate(tmp_path: Path) -> None:
    index = FilterIndex(_index(tmp_path, tmp_path / "index", error_rate=1e-6))
    certificate = index.certificate()
    assert certificate["probes"] == 3_000_000
    assert certificate["found"] < 12
    none = FilterIndex(_index(tmp_path, tmp_path / "other", error_rate=1e-12)).certificate(probes=300_000)
    assert (none["found"], none["upper_bound"]) == (0, pytest.approx(2.9957 / 300_000, rel=1e-4))


def test_a_filter_that_exceeds_its_error_bound_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    _index(tmp_path, folder, error_rate=0.01)
    data = (folder / "index.bloom").read_bytes()
    header = dataclasses.replace(read_header(data[:HEADER_BYTES], len(data)), error_bound=1e-4)
    _rewrite(folder, "index.bloom", write_header(header) + data[HEADER_BYTES:])
    with pytest.raises(
        InputError, match=r"index\.bloom: finds [\d,]+ of 100,000 random n-grams.* its fill explains only 10\.0"
    ):
        FilterIndex(str(folder)).certificate(probes=100_000)


def test_a_damaged_filter_is_refused_at_the_first_query(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    _index(tmp_path, folder)
    data = bytearray((folder / "index.bloom").read_bytes())
    data[-1] ^= 1
    (folder / "index.bloom").write_bytes(data)
    index = FilterIndex(str(folder))
    with pytest.raises(DamagedShardError, match=r"index\.bloom: is damaged"):
        index.contains(_exact_index(_INDEXED))
    (folder / "index.bloom").write_bytes(data[:-512])
    with pytest.raises(InputError, match=r"index\.bloom: is truncated"):
        FilterIndex(str(folder))


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder; run `webtext overlap-index` first"):
        FilterIndex(str(tmp_path / "absent"))
    folder = tmp_path / "index"
    _index(tmp_path, folder)
    described = json.loads((folder / "index.json").read_text())
    _rewrite(folder, "index.json", json.dumps({**described, "format": "other"}).encode())
    with pytest.raises(InputError, match="format 'other', which is for other programs"):
        FilterIndex(str(folder))
    _rewrite(folder, "index.json", json.dumps(described).encode())
    data = (folder / "index.bloom").read_bytes()
    header = dataclasses.replace(read_header(data[:HEADER_BYTES], len(data)), ngram_hash="other-1")
    _rewrite(folder, "index.bloom", write_header(header) + data[HEADER_BYTES:])
    with pytest.raises(InputError, match=r"uses n-gram hash 'other-1', this version .*; rebuild it"):
        FilterIndex(str(folder))


def test_other_ngrams_are_refused_with_the_options_to_use(tmp_path: Path) -> None:
    index = FilterIndex(_index(tmp_path, tmp_path / "index", ngram=13, apostrophes="drop"))
    index.check_options(OverlapReportConfig(ngram=13, apostrophes="drop"))
    with pytest.raises(
        UsageError, match=r"ngram 13, not 8, apostrophes drop, not split; .* --ngram 13 --apostrophes drop"
    ):
        index.check_options(OverlapReportConfig())
    with pytest.raises(UsageError, match=r"letters unicode, not ascii; use --letters unicode$"):
        index.check_options(OverlapReportConfig(ngram=13, apostrophes="drop", letters="ascii"))


def test_limitations_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _index(tmp_path, tmp_path / "index")
    notes: list[str] = []
    monkeypatch.setattr(progress, "note", notes.append)
    FilterIndex(folder).contains(_exact_index(_INDEXED))
    assert notes == []
    monkeypatch.setattr("unicodedata.unidata_version", "99.0")
    monkeypatch.setattr(filter_index, "available_memory_bytes", lambda: 512)
    FilterIndex(folder).contains(_exact_index(_INDEXED))
    assert [note.partition(": ")[2].split(",")[0] for note in notes] == [
        f"was built with Unicode {_UNICODE}",
        "takes 26.1 kB",
    ]


def test_a_remote_index_is_queried(tmp_path: Path) -> None:
    index = FilterIndex(_index(tmp_path, f"memory://filter-index-{tmp_path.name}/index"))
    assert index.contains(_exact_index(_INDEXED)).all()
    assert not index.contains(_exact_index(_ABSENT)).any()

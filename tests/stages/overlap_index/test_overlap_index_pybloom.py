"""A filter in the file of pybloom-live, as that library reads it; the same for any number of workers."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pybloom_live import BloomFilter
from reference_ngrams import text_ngrams

from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError, WebtextError
from pipelines.progress import Silent
from pipelines.records.ngram_filter import open_filter_folder
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index

pytestmark = pytest.mark.usefixtures("warm_processes")


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def _text(number: int) -> str:
    return " ".join(f"w{(number * 7 + position) % 50}" for position in range(20))


def _write_parts(folder: Path, parts: int, documents: int = 5) -> Path:
    folder.mkdir()
    for part in range(parts):
        rows = [{"id": str(number), "text": _text(part * documents + number)} for number in range(documents)]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{part:02d}.parquet")
    return folder


def _index(documents: Path, output: Path, options: RunOptions | None = None, **config: Any) -> Summary:
    return overlap_index(
        OverlapIndexConfig(filter="pybloom-live", **config),
        documents=str(documents),
        output=str(output),
        options=options or RunOptions(),
    )


def _read(output: Path) -> BloomFilter:
    with (output / "index.bloom").open("rb") as stream:
        return BloomFilter.fromfile(stream)


def _ngrams(documents: int, n: int) -> set[str]:
    return {ngram for number in range(documents) for _, ngram in text_ngrams(_text(number), n)}


def test_every_ngram_is_in_the_filter_and_others_are_not(tmp_path: Path) -> None:
    summary = _index(_write_parts(tmp_path / "docs", 2), tmp_path / "index", ngram=4)
    bloom = _read(tmp_path / "index")
    assert all(ngram in bloom for ngram in _ngrams(10, 4))
    assert not any(f"x{number} y z w" in bloom for number in range(5000))
    assert " ".join([*_text(0).split()[-2:], *_text(1).split()[:2]]) not in bloom
    assert summary.extra["ngrams"] == 10 * 17


def test_index_json_describes_the_filter(tmp_path: Path) -> None:
    _index(_write_parts(tmp_path / "docs", 2), tmp_path / "index", ngram=4, error_rate=1e-6, apostrophes="drop")
    described = json.loads((tmp_path / "index" / "index.json").read_text())
    bloom = _read(tmp_path / "index")
    held = len(_ngrams(10, 4))
    assert (described["n"], described["error_rate"], described["documents"]) == (4, 1e-6, 10)
    # By the sketch: not as many as there are with repeats.
    assert held <= described["capacity"] == bloom.capacity <= held + 10
    assert described["items"] == len(bloom) == pytest.approx(held, rel=0.1)
    assert described["fill"] == sum(bloom.bitarray) / bloom.num_bits
    assert (described["hashes"], described["bits"]) == (bloom.num_slices, bloom.num_bits)
    assert (described["apostrophes"], described["letters"], described["lines"]) == ("drop", "unicode", "cross")
    with pytest.raises(InputError, match="format 'pybloom-live', which is for other programs"):
        open_filter_folder(str(tmp_path / "index"))


def test_a_filter_filled_to_capacity_keeps_its_error_rate(tmp_path: Path) -> None:
    words = [f"{number}" for number in range(3008)]
    # Repeats, of which there are more than it has room for, take none.
    (tmp_path / "docs.jsonl").write_text(json.dumps({"text": " ".join(words * 2)}))
    _index(tmp_path / "docs.jsonl", tmp_path / "index", error_rate=0.01)
    described = json.loads((tmp_path / "index" / "index.json").read_text())
    bloom = _read(tmp_path / "index")
    assert described["items"] == pytest.approx(3008, rel=0.03)
    wrong = sum(f"absent {number}" in bloom for number in range(20000))
    assert wrong / 20000 == pytest.approx(0.01, rel=0.35)


def test_three_workers_write_the_same_as_one_and_parts_as_one_pass(tmp_path: Path) -> None:
    documents = _write_parts(tmp_path / "docs", 9)
    _index(documents, tmp_path / "one", ngram=3)
    executor = LocalExecutor(3)
    with executor.persistent_workers():
        _index(documents, tmp_path / "three", RunOptions(executor=executor), ngram=3)
    for path in (tmp_path / "one").iterdir():
        if not path.name.startswith("."):
            assert path.read_bytes() == (tmp_path / "three" / path.name).read_bytes()
    written = _read(tmp_path / "one")
    bloom = BloomFilter(written.capacity, 1e-8)
    for ngram in _ngrams(45, 3):
        bloom.add(ngram)
    assert written.bitarray.tobytes() == bloom.bitarray.tobytes()


def test_few_filters_are_in_memory_while_parts_are_joined(tmp_path: Path) -> None:
    documents = _write_parts(tmp_path / "docs", 3)
    tracemalloc.start()
    try:
        _index(documents, tmp_path / "index", ngram=4, items=4_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bloom = _read(tmp_path / "index")
    assert all(ngram in bloom for ngram in _ngrams(15, 4))
    assert peak < 3 * bloom.num_bits / 8


def test_memory_is_reported_and_limited(tmp_path: Path) -> None:
    documents = _write_parts(tmp_path / "docs", 1)
    with pytest.raises(WebtextError, match=r"takes 1\.44 MB in each worker, more than --memory-limit-mib 1;"):
        _index(documents, tmp_path / "index", memory_limit_mib=1, items=300_000)
    # The limit does not change the index: a run with a higher one resumes without --overwrite.
    notes = _Notes()
    _index(documents, tmp_path / "index", RunOptions(progress=notes), memory_limit_mib=2, items=300_000)
    assert any("filter for 300,000 n-grams at an error rate of 1e-08 takes 1.44 MB" in text for text in notes.notes)

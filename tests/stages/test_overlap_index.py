"""The Bloom filter of a corpus: what is in it, how often it errs, and the same bytes however it is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pybloom_live import BloomFilter

from pipelines.core.errors import InputError, WebtextError
from pipelines.core.executor import LocalExecutor
from pipelines.core.progress import Silent
from pipelines.core.run import RunOptions, Summary
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index
from webtext_cli.main import main


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
        rows: list[dict[str, Any]] = [
            {"id": f"{part}-{number}", "text": _text(part * documents + number)} for number in range(documents)
        ]
        rows.append({"id": f"{part}-null", "text": None})
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{part:02d}.parquet")
    return folder


def _index(documents: Path, output: Path, options: RunOptions | None = None, **config: Any) -> Summary:
    return overlap_index(
        OverlapIndexConfig(**config), documents=str(documents), output=str(output), options=options or RunOptions()
    )


def _read(output: Path) -> BloomFilter:
    with (output / "index.bloom").open("rb") as stream:
        return BloomFilter.fromfile(stream)


def _plain_ngrams(text: str, n: int) -> set[str]:
    each = text.lower().split()
    return {" ".join(each[start : start + n]) for start in range(len(each) - n + 1)}


def test_every_ngram_is_in_it_and_others_are_not(tmp_path: Path) -> None:
    summary = _index(_write_parts(tmp_path / "docs", 2), tmp_path / "index", ngram=4)
    bloom = _read(tmp_path / "index")
    held = set().union(*(_plain_ngrams(_text(number), 4) for number in range(10)))
    assert all(ngram in bloom for ngram in held)
    assert not any(f"x{number} y z w" in bloom for number in range(5000))
    # The last words of one document and the first of the next make no n-gram.
    assert " ".join([*_text(0).split()[-2:], *_text(1).split()[:2]]) not in bloom
    assert summary.extra["ngrams"] == 10 * 17
    assert (summary.records_in, summary.records_out, summary.dropped) == (12, 10, {"missing_text": 2})


def test_index_json_tells_how_it_was_made(tmp_path: Path) -> None:
    _index(_write_parts(tmp_path / "docs", 2), tmp_path / "index", ngram=4, error_rate=1e-6)
    described = json.loads((tmp_path / "index" / "index.json").read_text())
    bloom = _read(tmp_path / "index")
    held = set().union(*(_plain_ngrams(_text(number), 4) for number in range(10)))
    assert described["n"] == 4
    assert described["error_rate"] == bloom.error_rate == 1e-6
    assert described["capacity"] == bloom.capacity == 170
    assert described["items"] == len(bloom) == pytest.approx(len(held), rel=0.1)
    assert described["fill"] == pytest.approx(bloom.bitarray.count() / bloom.num_bits)
    assert described["error_bound"] == pytest.approx(described["fill"] ** bloom.num_slices, rel=0.5)
    assert described["error_bound"] <= 1e-6
    assert described["documents"] == 10


def test_a_filter_that_is_full_keeps_its_error_rate(tmp_path: Path) -> None:
    words = [f"{number}" for number in range(3008)]
    (tmp_path / "docs.jsonl").write_text(json.dumps({"text": " ".join(words)}))
    _index(tmp_path / "docs.jsonl", tmp_path / "index", error_rate=0.01)
    described = json.loads((tmp_path / "index" / "index.json").read_text())
    bloom = _read(tmp_path / "index")
    assert described["items"] == pytest.approx(3001, rel=0.03)
    assert described["error_bound"] == pytest.approx(0.01, rel=0.2)
    wrong = sum(f"absent {number}" in bloom for number in range(20000))
    assert wrong / 20000 == pytest.approx(described["error_bound"], rel=0.35)


def test_three_workers_write_the_same_as_one(tmp_path: Path) -> None:
    documents = _write_parts(tmp_path / "docs", 11)
    _index(documents, tmp_path / "one", ngram=3)
    _index(documents, tmp_path / "three", RunOptions(executor=LocalExecutor(3)), ngram=3)
    assert _bytes(tmp_path / "one") == _bytes(tmp_path / "three")
    assert not (tmp_path / "one" / "_work").exists()


def test_parts_make_the_filter_that_one_pass_makes(tmp_path: Path) -> None:
    _index(_write_parts(tmp_path / "many", 9), tmp_path / "index", ngram=3)
    bloom = BloomFilter(9 * 5 * 18, 1e-8)
    for number in range(9 * 5):
        for ngram in _plain_ngrams(_text(number), 3):
            bloom.add(ngram)
    assert _read(tmp_path / "index").bitarray.tobytes() == bloom.bitarray.tobytes()


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_the_memory_is_said_beforehand_and_a_limit_is_kept(tmp_path: Path) -> None:
    documents = tmp_path / "docs.jsonl"
    documents.write_text(json.dumps({"text": "word " * 300_000}))
    with pytest.raises(WebtextError, match=r"takes 1\.4 MB in each worker, more than --memory-limit-mb 1;"):
        _index(documents, tmp_path / "index", memory_limit_mb=1)
    notes = _Notes()
    small = tmp_path / "small.jsonl"
    small.write_text(json.dumps({"text": "word " * 30}))
    _index(small, tmp_path / "other", RunOptions(progress=notes))
    assert any("a filter for 23 n-grams at an error rate of 1e-08 takes" in note for note in notes.notes)


def test_a_higher_limit_goes_on_without_overwrite(tmp_path: Path) -> None:
    documents = tmp_path / "docs.jsonl"
    documents.write_text(json.dumps({"text": "word " * 250_000}))
    with pytest.raises(WebtextError, match="more than --memory-limit-mb"):
        _index(documents, tmp_path / "index", memory_limit_mb=1, error_rate=1e-9, ngram=1)
    # The limit is no part of what the index is.
    assert _index(documents, tmp_path / "index", memory_limit_mb=5, error_rate=1e-9, ngram=1).records_out == 1


def test_documents_that_are_all_too_short_are_refused(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "seven words are less than eight, surely"}\n')
    with pytest.raises(InputError, match="none of 1 documents has 8 words; lower --ngram"):
        _index(tmp_path / "docs.jsonl", tmp_path / "index")


def test_the_command_writes_the_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = _write_parts(tmp_path / "docs", 1)
    assert main(["overlap-index", "-i", str(documents), "-o", str(tmp_path / "index"), "--ngram", "5", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ngrams"] == 5 * 16
    assert "note: a filter for 80 n-grams" in captured.err
    assert main(["overlap-index", "-i", str(documents), "-o", str(tmp_path / "i"), "--error-rate", "2"]) == 2

"""The Bloom filter of a corpus: its contents, its false-positive rate, and identical bytes however it is built."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reference_ngrams import text_ngrams
from whole_filter import measure

from pipelines import storage
from pipelines.algorithms.bloom.blocked import contains
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.engine import machine
from pipelines.engine.executor import LocalExecutor
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import DamagedShardError, InputError, UsageError, WebtextError
from pipelines.progress import Silent
from pipelines.records.ngram_filter import HEADER_BYTES, map_bits, open_filter_folder
from pipelines.stages.overlap_index import parts
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index
from webtext_cli.main import main

pytestmark = pytest.mark.usefixtures("warm_processes")


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def _text(number: int) -> str:
    return " ".join(f"w{(number * 7 + position) % 50}" for position in range(20))


def _write(path: Path, texts: Sequence[str | None]) -> Path:
    rows: list[dict[str, Any]] = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _write_parts(folder: Path, count: int, documents: int = 5) -> Path:
    folder.mkdir()
    for part in range(count):
        texts: list[str | None] = [_text(part * documents + number) for number in range(documents)]
        _write(folder / f"{part:02d}.parquet", [*texts, None])
    return folder


def _real_text(seed: int, words: int) -> str:
    """Text with letters of all kinds, apostrophes and line ends."""
    chosen = random.Random(seed)
    vocabulary = ["don't", "Über", "naïve", "x2", "ΣΑΣ", "the", "of", "İstanbul", "it’s", "42", "漢字"]
    vocabulary += [f"word{number}" for number in range(3000)]
    return "".join(chosen.choice(vocabulary) + chosen.choice([" ", " ", " ", ", ", "\n"]) for _ in range(words))


def _index(
    documents: Path,
    output: Path,
    options: RunOptions | None = None,
    **config: Any,
) -> Summary:
    return overlap_index(
        OverlapIndexConfig(**config),
        documents=str(documents),
        output=str(output),
        options=options or RunOptions(),
    )


def _merge(output: Path, *indexes: Path, options: RunOptions | None = None, **config: Any) -> Summary:
    return overlap_index(
        OverlapIndexConfig(**config),
        documents=None,
        output=str(output),
        options=options or RunOptions(),
        merge=[str(index) for index in indexes],
    )


def _contains(output: Path, texts: Sequence[str]) -> list[bool]:
    """Query an index for texts of exactly n words each."""
    folder = open_filter_folder(str(output))
    header = folder.header
    hashes = text_ngram_hashes(*text_arrays(pa.array(texts)), header.n, header.normalization).hashes
    answers: list[bool] = contains(map_bits(folder.file.path, header), hashes, header.k, header.seed).tolist()
    return answers


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def _described(output: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((output / "index.json").read_text())
    return read


_WAYS = [
    Normalization(),
    Normalization(apostrophes="drop"),
    Normalization(letters="ascii"),
    Normalization(lines="stop"),
    Normalization("drop", "ascii", "stop"),
]


@pytest.mark.parametrize("way", _WAYS, ids=lambda way: f"{way.apostrophes}-{way.letters}-{way.lines}")
def test_no_false_negatives_and_false_positives_within_the_bound(way: Normalization, tmp_path: Path) -> None:
    texts = [_real_text(number, 1500) for number in range(10)]
    documents = _write(tmp_path / "docs.parquet", texts)
    options = {"apostrophes": way.apostrophes, "letters": way.letters, "lines": way.lines}
    summary = _index(documents, tmp_path / "index", ngram=3, error_rate=1e-2, **options)
    indexed = {ngram for text in texts for _, ngram in text_ngrams(text, 3, way)}
    absent = {ngram for _, ngram in text_ngrams(_real_text(99, 60_000), 3, Normalization("drop", "ascii"))} - indexed
    assert all(_contains(tmp_path / "index", sorted(indexed)))
    found = _contains(tmp_path / "index", sorted(absent))
    described = _described(tmp_path / "index")
    assert len(found) == len(absent) > 40_000
    assert sum(found) / len(found) == pytest.approx(described["error_bound"], rel=0.25)
    assert described["error_bound"] <= 1e-2
    assert described["items"] == pytest.approx(len(indexed), rel=0.02)
    assert len(indexed) <= described["capacity"] <= len(indexed) * 1.02 + 10
    assert summary.extra["ngrams"] == sum(len(text_ngrams(text, 3, way)) for text in texts)


def test_ngrams_do_not_cross_documents(tmp_path: Path) -> None:
    summary = _index(_write_parts(tmp_path / "docs", 2), tmp_path / "index", ngram=4)
    across = " ".join([*_text(0).split()[-2:], *_text(1).split()[:2]])
    assert _contains(tmp_path / "index", [across, " ".join(_text(0).split()[:4])]) == [False, True]
    assert (summary.records_in, summary.records_out, summary.dropped) == (12, 10, {"missing_text": 2})
    dropped = [
        row for part in range(2) for row in pq.read_table(tmp_path / f"index/dropped-0000{part}.parquet").to_pylist()
    ]
    assert [row["reason"] for row in dropped] == ["missing_text"] * 2


def test_header_and_index_json_describe_the_filter(tmp_path: Path) -> None:
    _index(_write_parts(tmp_path / "docs", 2), tmp_path / "index", ngram=4, error_rate=1e-6, lines="stop")
    folder = open_filter_folder(str(tmp_path / "index"))
    header, described = folder.header, _described(tmp_path / "index")
    bits = map_bits(folder.file.path, header)
    assert header.bits_sha256 == hashlib.sha256(bits).hexdigest()
    measured = measure(bits, header.k)
    assert (header.fill, header.items, header.error_bound) == (measured.fill, measured.items, measured.error_bound)
    assert header.normalization == Normalization(lines="stop")
    assert described["normalisation"].endswith("n-grams end where lines end")
    # 50 different words in a row, of which any 4 neighbours make one n-gram.
    assert described["items"] == pytest.approx(50, abs=2)
    assert (described["n"], described["error_rate"], described["documents"]) == (4, 1e-6, 10)
    assert (described["hashes"], described["bits"]) == (header.k, header.blocks * 4096)
    assert described["corpora"] == [described["corpus"]] == [read_manifest(folder.path).identity.inputs["documents"]]
    assert (tmp_path / "index" / "index.bloom").stat().st_size == HEADER_BYTES + bits.nbytes


def test_workers_and_part_sizes_do_not_change_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = _write_parts(tmp_path / "docs", 5, 40)
    _index(documents, tmp_path / "whole", ngram=3, items=20_000)
    monkeypatch.setattr(parts, "SMALL_PART_BYTES", 1000)
    three = LocalExecutor(3)
    with three.persistent_workers():
        for name, options in (("one", RunOptions()), ("three", RunOptions(executor=three))):
            _index(documents, tmp_path / name, options, ngram=3, items=20_000)
    assert _bytes(tmp_path / "one") == _bytes(tmp_path / "three")
    assert not (tmp_path / "one" / "_work").exists()
    for name in ("index.bloom", "index.json"):
        assert _bytes(tmp_path / "one")[name] == _bytes(tmp_path / "whole")[name]
    names = [shard.name for shard in read_manifest(str(tmp_path / "one")).shards if shard.phase == "add"]
    assert len(names) == 4


def test_a_filter_is_split_into_ranges_within_the_limit() -> None:
    def cut(blocks: int, most: int) -> list[int]:
        ranges = parts.split_blocks(parts.FilterSize(blocks, 5), most)
        assert [part.start for part in ranges] == [0, *(part.stop for part in ranges)][:-1]
        assert ranges[-1].stop == blocks
        return [512 * len(part) for part in ranges]

    assert len(cut(1, 1 << 30)) == 1
    assert len(cut(32_768, 1 << 30)) == 1
    assert len(cut(32_769, 1 << 30)) == 2
    assert len(cut(1_000_000, 1 << 30)) == 4
    assert max(cut(100_000_000, 1 << 30)) <= 1 << 30
    assert len(cut(100_000_000, 1 << 30)) == 48
    assert cut(3, 1) == [512] * 3


def test_a_merged_index_is_the_index_of_both(tmp_path: Path) -> None:
    one = _write(tmp_path / "one.parquet", [_text(number) for number in range(6)])
    two = _write(tmp_path / "two.parquet", [_text(number) for number in range(4, 30)])
    for name, documents in (("a", one), ("b", two)):
        _index(documents, tmp_path / name, ngram=3, items=5000, apostrophes="drop")
    (tmp_path / "docs").mkdir()
    for documents in (one, two):
        (tmp_path / "docs" / documents.name).write_bytes(documents.read_bytes())
    _index(tmp_path / "docs", tmp_path / "both", ngram=3, items=5000, apostrophes="drop")
    summary = _merge(tmp_path / "merged", tmp_path / "a", tmp_path / "b")
    _merge(tmp_path / "turned", tmp_path / "b", tmp_path / "a", options=RunOptions(executor=LocalExecutor(3)))
    assert _bytes(tmp_path / "merged") == _bytes(tmp_path / "turned")
    bits = [_bytes(tmp_path / name)["index.bloom"][HEADER_BYTES:] for name in ("merged", "both")]
    assert bits[0] == bits[1]
    merged, both = _described(tmp_path / "merged"), _described(tmp_path / "both")
    assert {key for key in merged if merged[key] != both[key]} == {"corpora", "corpus"}
    assert merged["corpora"] == sorted(_described(tmp_path / name)["corpus"] for name in "ab")
    assert (summary.records_in, summary.records_out) == (32, 32)
    config = read_manifest(str(tmp_path / "merged")).identity.config
    assert (config["ngram"], config["items"], config["apostrophes"]) == (3, 5000, "drop")


def test_merging_in_steps_equals_merging_at_once(tmp_path: Path) -> None:
    for number, name in enumerate("abc"):
        _index(_write(tmp_path / f"{name}.parquet", [_text(number)]), tmp_path / name, ngram=3, items=100)
    _merge(tmp_path / "ab", tmp_path / "a", tmp_path / "b")
    _merge(tmp_path / "steps", tmp_path / "ab", tmp_path / "c")
    _merge(tmp_path / "once", tmp_path / "c", tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "steps/index.bloom").read_bytes() == (tmp_path / "once/index.bloom").read_bytes()
    with pytest.raises(InputError, match=r"/b: contains the same documents as .*/ab \(fingerprint"):
        _merge(tmp_path / "twice", tmp_path / "ab", tmp_path / "b")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ngram": 4}, "n is 4, not 3; build both with the same --ngram"),
        ({"letters": "ascii"}, "normalisation is .*letters ascii.*, not .*letters unicode"),
        ({"error_rate": 1e-3}, "error_rate is 0.001, not 1e-08; build both with the same --error-rate"),
        ({"items": 900}, "blocks is 10, not 1; build both with the same --items"),
        ({"filter": "pybloom-live"}, "is for other programs; run"),
    ],
)
def test_indexes_that_differ_are_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    _index(_write(tmp_path / "a.parquet", [_text(0)]), tmp_path / "a", ngram=3, items=100)
    _index(_write(tmp_path / "b.parquet", [_text(1)]), tmp_path / "b", **{"ngram": 3, "items": 100, **config})
    with pytest.raises(InputError, match=message):
        _merge(tmp_path / "out", tmp_path / "a", tmp_path / "b")
    with pytest.raises(InputError, match="contains the same documents as"):
        _merge(tmp_path / "out", tmp_path / "a", tmp_path / "a")
    with pytest.raises(UsageError, match="only one index; name two or more"):
        _merge(tmp_path / "out", tmp_path / "a")


def test_a_damaged_index_is_not_merged(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        _index(_write(tmp_path / f"{name}.parquet", [_text(number)]), tmp_path / name, ngram=3, items=100)
    data = bytearray((tmp_path / "b/index.bloom").read_bytes())
    data[HEADER_BYTES + 3] ^= 1
    (tmp_path / "b/index.bloom").write_bytes(data)
    with pytest.raises(DamagedShardError, match=r"b/index\.bloom: is damaged"):
        _merge(tmp_path / "out", tmp_path / "a", tmp_path / "b")
    data[20] ^= 1
    (tmp_path / "b/index.bloom").write_bytes(data)
    with pytest.raises(InputError, match=r"b/index\.bloom: has a damaged header"):
        _merge(tmp_path / "out", tmp_path / "a", tmp_path / "b")


def test_a_merged_filter_that_is_too_full_is_noted(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        words = " ".join(f"{number}x{word}" for word in range(2000))
        _index(_write(tmp_path / f"{name}.parquet", [words]), tmp_path / name, items=2000, error_rate=1e-3)
    notes = _Notes()
    _merge(tmp_path / "out", tmp_path / "a", tmp_path / "b", options=RunOptions(progress=notes))
    assert any("sized for 2,000: its false-positive rate is" in note for note in notes.notes)
    assert _described(tmp_path / "out")["error_bound"] > 1e-2


def test_too_few_items_are_refused_and_more_make_a_larger_filter(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.parquet", [_real_text(1, 5000)])
    with pytest.raises(
        UsageError, match=r"--items 4000: the documents have about 4,9\d\d distinct n-grams; set it to at least 49\d\d"
    ):
        _index(documents, tmp_path / "index", items=4000, lines="cross")
    _index(documents, tmp_path / "larger", items=50_000)
    assert _described(tmp_path / "larger")["capacity"] == 50_000
    assert _described(tmp_path / "larger")["error_bound"] < 1e-12


def test_disk_and_memory_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = _write(tmp_path / "docs.parquet", [_text(0)])
    monkeypatch.setattr(storage, "free_bytes", lambda path: 10**9)
    with pytest.raises(WebtextError, match=r"takes 5\.\d\d GB, and its parts as much .* 1 GB are free"):
        _index(documents, tmp_path / "index", items=10**9)
    monkeypatch.undo()
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 10**9)
    with pytest.raises(WebtextError, match=r"each of 1 worker process needs about 1\.0\d GB of memory"):
        _index(documents, tmp_path / "index", items=10**9)


def test_an_error_rate_beyond_the_hash_width_is_refused(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.parquet", [_text(0)])
    with pytest.raises(UsageError, match="--error-rate 1e-15: an error rate of 1e-15 is not reachable"):
        _index(documents, tmp_path / "index", items=10**6, error_rate=1e-15)


def test_documents_that_are_all_too_short_are_refused(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "seven words are less than eight, surely"}\n')
    with pytest.raises(InputError, match=r"no document has 8 words .of 1 document.; lower --ngram"):
        _index(tmp_path / "docs.jsonl", tmp_path / "index")
    with pytest.raises(UsageError, match="neither documents nor indexes"):
        overlap_index(OverlapIndexConfig(), documents=None, output=str(tmp_path / "o"), options=RunOptions())


def test_the_command_writes_the_index_and_merges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        documents = _write(tmp_path / f"{name}.parquet", [_text(ord(name))])
        flags = ["--ngram", "5", "--items", "1000", "--json", "--workers", "1"]
        assert main(["overlap-index", "-i", str(documents), "-o", str(tmp_path / name), *flags]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["ngrams"] == 16
    assert "note: 16 n-grams; filter size" in captured.err
    merge = ["overlap-index", "--merge", str(tmp_path / "a"), "--merge", str(tmp_path / "b")]
    assert main([*merge, "-o", str(tmp_path / "m"), "--json", "--workers", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["records_out"] == 2
    assert _described(tmp_path / "m")["n"] == 5
    assert main([*merge, "-o", str(tmp_path / "n"), "--ngram", "5"]) == 2
    assert "--ngram has no effect with --merge" in capsys.readouterr().err
    assert main([*merge, "-o", str(tmp_path / "n"), "-i", str(documents)]) == 2
    assert main([*merge, "-o", str(tmp_path / "a" / "x")]) == 2
    assert main(["overlap-index", "-i", str(documents), "-o", str(tmp_path / "i"), "--error-rate", "2"]) == 2

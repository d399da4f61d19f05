"""Files of counts as input of train-bpe: their columns, their size, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError
from pipelines.records.buckets import BucketWriter
from pipelines.stages.train_bpe import count_tables, counting
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.count_tables import measure
from pipelines.stages.train_bpe.stage import read_report, train_bpe

pytestmark = pytest.mark.usefixtures("warm_processes")


def _train(path: Path, output: Path, **config: Any) -> Summary:
    return train_bpe(
        TrainBpeConfig(**{"vocab_size": 300, **config}),
        documents=str(path),
        output=str(output),
        options=RunOptions(),
    )


def _train_from(paths: list[Path], output: Path, **config: Any) -> Summary:
    return train_bpe(
        TrainBpeConfig(**{"vocab_size": 300, **config}),
        documents="",
        output=str(output),
        options=RunOptions(),
        counts=[str(path) for path in paths],
    )


def _documents(path: Path, count: int, group: str = "a") -> Path:
    rows = [
        {"id": f"{group}{n}", "text": f"low lower lowest, and the {n} others in {group}", "domain": group}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _merges(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "merges.txt").read_text().splitlines()[1:]
    return [(left, right) for left, right in (line.split(" ") for line in lines)]


def _table(folder: Path, noun: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob(f"{noun}-*.parquet"))])


def _counts_file(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_a_counts_file_from_elsewhere(tmp_path: Path) -> None:
    path = _counts_file(tmp_path / "c.parquet", word=["low", " lower", " lowest"], count=[5 * 2**32, 2**32, 7])
    _train_from([path], tmp_path / "bpe")
    assert _merges(tmp_path / "bpe")[:2] == [("l", "o"), ("lo", "w")]
    report = json.loads((tmp_path / "bpe" / "report.json").read_text())
    assert report["corpus"]["words"] == 6 * 2**32 + 7


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"word": ["a"], "n": [1]}, "has no column 'count'; it has: word, n"),
        ({"word": ["a", "b"], "count": [1, 0]}, "a word with a count below 1"),
        ({"word": ["a", "b"], "count": [1, -4]}, "a word with a count below 1"),
        ({"word": ["a", None], "count": [1, 2]}, "rows without a word or a count"),
        ({"word": ["a"], "count": [1.5]}, "count an integer"),
        ({"word": [["a"]], "count": [1]}, "word must be text"),
        ({"word": [1], "count": [1]}, "word must be text"),
        ({"word": ["a"], "count": [[1]]}, "count an integer"),
        ({"word": ["a"], "count": ["many"]}, "count an integer"),
        ({"word": ["a"], "count": [2**63 - 1], "held_out": [1]}, "an integer of at most 64 bits"),
        ({"word": ["a", "two words"], "count": [1, 1]}, "'two words' is not one word of GPT-2's split"),
        ({"word": ["a", ""], "count": [1, 1]}, "'' is not one word of GPT-2's split"),
    ],
)
def test_a_bad_counts_file_is_refused_by_name(tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
    path = _counts_file(tmp_path / "c.parquet", **columns)
    with pytest.raises(InputError, match=rf"c\.parquet: .*{problem}"):
        _train_from([path], tmp_path / "bpe")


def test_a_folder_without_counts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        _train_from([tmp_path / "nowhere"], tmp_path / "bpe")
    (tmp_path / "x").mkdir()
    with pytest.raises(InputError, match=r"x: .*\.parquet"):
        _train_from([tmp_path / "x"], tmp_path / "bpe")


def test_columns_of_other_types_are_converted(tmp_path: Path) -> None:
    words = pa.array(["low", " lower"])
    paths = [
        _counts_file(tmp_path / "a.parquet", word=words.cast(pa.large_string()), count=pa.array([5, 3], pa.uint32())),
        _counts_file(tmp_path / "b.parquet", word=words.dictionary_encode(), count=[5.0, 3.0], more=[[1], [2]]),
        _counts_file(tmp_path / "c.parquet", count=[5, 3], held_out=[1, 0], word=words),
    ]
    summary = _train_from(paths, tmp_path / "bpe")
    assert _table(tmp_path / "bpe", "counts").to_pylist() == [
        {"word": " lower", "count": 9, "held_out": 0},
        {"word": "low", "count": 15, "held_out": 1},
    ]
    assert summary.extra["text_bytes"] == 9 * 6 + 16 * 3


def test_words_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")
    path = _counts_file(tmp_path / "c.parquet", word=pa.StringArray.from_buffers(1, offsets, data), count=[1])
    with pytest.raises(InputError, match=r"c\.parquet: word must be text"):
        _train_from([path], tmp_path / "bpe")


def test_counts_beyond_64_bits_are_refused(tmp_path: Path) -> None:
    one = _counts_file(tmp_path / "a.parquet", word=["low"], count=[2 * 10**17])
    other = _counts_file(tmp_path / "b.parquet", word=["low"], count=[2 * 10**17])
    _train_from([one], tmp_path / "one")
    assert _merges(tmp_path / "one") == [("l", "o"), ("lo", "w")]
    with pytest.raises(InputError, match=r"b\.parquet: .* an exabyte"):
        _train_from([one, other], tmp_path / "both")
    most = _counts_file(tmp_path / "c.parquet", word=["low", "high"], count=[2**63 - 1, 2**63 - 1])
    with pytest.raises(InputError, match=r"c\.parquet: its counts.* cannot be added up in 64 bits"):
        _train_from([most], tmp_path / "most")


@pytest.mark.parametrize("again", ["full", "full/counts-*.parquet", "full/../full/counts-00000.parquet", "link"])
def test_counts_given_twice_are_refused(tmp_path: Path, again: str) -> None:
    _train(_documents(tmp_path / "d.jsonl", 20), tmp_path / "full", count_only=True)
    (tmp_path / "link").symlink_to(tmp_path / "full")
    with pytest.raises(InputError, match=r"counts-00000\.parquet: is given to --counts twice"):
        _train_from([tmp_path / "full", tmp_path / again], tmp_path / "bpe")


def test_counts_of_another_share_are_refused(tmp_path: Path) -> None:
    _train(_documents(tmp_path / "d.jsonl", 20), tmp_path / "full", count_only=True, held_out=0.25)
    with pytest.raises(InputError, match=r"full: was counted with a held-out fraction of 0\.25; use --held-out 0\.25"):
        _train_from([tmp_path / "full"], tmp_path / "bpe")
    _train_from([tmp_path / "full"], tmp_path / "bpe", held_out=0.25)


def test_sampled_texts_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for group in "ab":
        _train(_documents(tmp_path / f"{group}.jsonl", 60, group), tmp_path / group, count_only=True)
    _train_from([tmp_path / "a", tmp_path / "b"], tmp_path / "joined", count_only=True)
    joined = _table(tmp_path / "joined", "sample")["id"].to_pylist()
    assert sorted(joined) == sorted(f"{group}{n}" for group in "ab" for n in range(60))
    # Cut to size, it is the same from either order, and has texts of both.
    monkeypatch.setattr(count_tables, "SAMPLE_TEXTS", 30)
    _train_from([tmp_path / "b", tmp_path / "a"], tmp_path / "cut", count_only=True)
    _train_from([tmp_path / "a", tmp_path / "b"], tmp_path / "cut-too", count_only=True)
    sample = _table(tmp_path / "cut", "sample")
    assert sample.equals(_table(tmp_path / "cut-too", "sample"))
    assert len(sample) == 30
    assert {id[0] for id in sample["id"].to_pylist()} == {"a", "b"}


def test_a_sample_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": f"d{n}", "text": "漢字" * 20_000 + str(n)} for n in range(50)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(counting, "SAMPLE_TEXTS", 20)
    _train(tmp_path / "d.jsonl", tmp_path / "bpe", count_only=True)
    texts = _table(tmp_path / "bpe", "sample")["text"].to_pylist()
    assert len(texts) == 20
    assert {len(text) for text in texts} == {16_384}


def test_long_words_are_counted_and_added_up_in_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["low lower", *(letter * 3000 for letter in "abcdefghij"), "abc " * 9, "a" * 3000]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    _train(tmp_path / "d.jsonl", tmp_path / "plain", count_only=True)
    sizes: list[int] = []
    real = BucketWriter.write

    def seen(writer: BucketWriter, batch: pa.RecordBatch, buckets: Any) -> None:
        sizes.append(batch.column("word").nbytes)
        real(writer, batch, buckets)

    monkeypatch.setattr(BucketWriter, "write", seen)
    monkeypatch.setattr(counting, "_TABLE_BYTES", 7000)
    monkeypatch.setattr(count_tables, "_GROUP_BYTES", 7000)
    for module in (counting, count_tables):
        monkeypatch.setattr(module, "BATCH_BYTES", 7000)
    _train(tmp_path / "d.jsonl", tmp_path / "cut", count_only=True)
    _train_from([tmp_path / "cut"], tmp_path / "again", count_only=True)
    for folder in ("cut", "again"):
        assert _table(tmp_path / folder, "counts").equals(_table(tmp_path / "plain", "counts"))
    assert len(sizes) > 8
    assert max(sizes) < 10_000


def test_the_size_of_a_file_of_counts(tmp_path: Path) -> None:
    words = [f" word{number}" for number in range(20_000)]
    size = sum(map(len, words))
    for name, more in (("plain", {"use_dictionary": False}), ("dictionary", {"row_group_size": 3000})):
        pq.write_table(pa.table({"word": words, "count": [1] * len(words)}), tmp_path / name, **more)
        rows, word_bytes = measure(str(tmp_path / name))
        assert rows == 20_000
        assert size <= word_bytes < 1.3 * size


def test_many_words_make_many_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _counts_file(tmp_path / "c.parquet", word=[f" {number}" for number in range(5000)], count=[3] * 5000)
    monkeypatch.setattr(count_tables, "_BUCKET_WORDS", 1000)
    _train_from([path], tmp_path / "bpe", count_only=True)
    assert len(list((tmp_path / "bpe").glob("counts-*.parquet"))) == 6
    assert len(_table(tmp_path / "bpe", "counts")) == 5000


@pytest.mark.parametrize("damaged", ['{"seconds": {"cou', "[1]", ""])
def test_damaged_timing_is_ignored(tmp_path: Path, damaged: str) -> None:
    path = _counts_file(tmp_path / "c.parquet", word=["low", " lower"], count=[5, 3])
    _train_from([path], tmp_path / "bpe")
    (tmp_path / "bpe" / "timing.json").write_text(damaged)
    (tmp_path / "bpe" / "report.html").unlink()
    _train_from([path], tmp_path / "bpe")
    assert "The run" not in (tmp_path / "bpe" / "report.html").read_text()
    assert read_report(str(tmp_path / "bpe"))["run"] == {}


def test_a_glob_matches_folders_too(tmp_path: Path) -> None:
    for name in "ab":
        _train(_documents(tmp_path / f"{name}.jsonl", 20, name), tmp_path / f"counted-{name}", count_only=True)
    _train_from([tmp_path / "counted-?"], tmp_path / "globbed")
    _train_from([tmp_path / "counted-a", tmp_path / "counted-b"], tmp_path / "named")
    assert (tmp_path / "globbed" / "merges.txt").read_bytes() == (tmp_path / "named" / "merges.txt").read_bytes()

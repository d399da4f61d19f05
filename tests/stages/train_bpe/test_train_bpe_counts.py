"""Word counts: kept, reused, added up across machines, sampled by hash, separate for held-out documents."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_split import is_held_out
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipelines.algorithms.bpe.split import GPT2_SPLIT
from pipelines.engine import machine
from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError
from pipelines.progress import Silent
from pipelines.stages.train_bpe import counting, learning
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.count_tables import CountedWords
from pipelines.stages.train_bpe.stage import train_bpe
from webtext_cli.main import main

pytestmark = pytest.mark.usefixtures("warm_processes")

_TOKENIZER = ("tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "ranks.tiktoken")
_WORDS = [
    "the",
    "cat's",
    "sat",
    "Übung",
    "mat",
    "1998",
    "they'll",
    "漢字",
    "a",
    "end.\n",
    "naïve",
    "<|endoftext|>",
    "  ",
]


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def _documents(path: Path, first: int, count: int, seed: int = 0) -> list[dict[str, str]]:
    chosen = random.Random(seed)
    rows = [
        {"id": f"d{number}", "text": " ".join(chosen.choices(_WORDS, k=chosen.randint(3, 30)))}
        for number in range(first, first + count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def _train(path: Path, output: Path, notes: Silent | None = None, **config: Any) -> Summary:
    return train_bpe(
        TrainBpeConfig(**{"vocab_size": 320, **config}),
        documents=str(path),
        output=str(output),
        options=RunOptions(progress=notes or Silent()),
    )


def _train_from(counts: list[Path], output: Path, **config: Any) -> Summary:
    config = {"vocab_size": 320, **config}
    paths = [str(path) for path in counts]
    return train_bpe(TrainBpeConfig(**config), documents="", output=str(output), options=RunOptions(), counts=paths)


def _counts(folder: Path) -> dict[str, tuple[int, int]]:
    rows = [row for path in sorted(folder.glob("counts-*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert len({row["word"] for row in rows}) == len(rows)
    return {row["word"]: (row["count"], row["held_out"]) for row in rows}


def _same_tokenizer(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in _TOKENIZER)


def _plain_counts(rows: list[dict[str, str]]) -> Counter[str]:
    return Counter(word for row in rows for word in regex.findall(GPT2_SPLIT, row["text"]))


def test_words_are_counted_separately_for_held_out_documents(tmp_path: Path) -> None:
    rows = _documents(tmp_path / "d.jsonl", 0, 300)
    _train(tmp_path / "d.jsonl", tmp_path / "bpe", held_out=0.2)
    held_out = _plain_counts([row for row in rows if is_held_out(row["id"], 0.2)])
    kept = _plain_counts([row for row in rows if not is_held_out(row["id"], 0.2)])
    assert len(held_out) > 5
    assert _counts(tmp_path / "bpe") == {word: (kept[word], held_out[word]) for word in {*kept, *held_out}}


def test_counts_are_reused_for_another_vocabulary(tmp_path: Path) -> None:
    _documents(tmp_path / "d.jsonl", 0, 200)
    _train(tmp_path / "d.jsonl", tmp_path / "large")
    _train(tmp_path / "d.jsonl", tmp_path / "small", vocab_size=290)
    summary = _train_from([tmp_path / "large"], tmp_path / "again", vocab_size=290)
    assert _same_tokenizer(tmp_path / "small", tmp_path / "again")
    assert _counts(tmp_path / "again") == _counts(tmp_path / "large")
    assert summary.records_in == len(_counts(tmp_path / "large"))


def test_counts_of_two_machines_add_up(tmp_path: Path) -> None:
    _documents(tmp_path / "all.jsonl", 0, 200)
    lines = (tmp_path / "all.jsonl").read_text().splitlines(keepends=True)
    for name, part in (("a", lines[:70]), ("b", lines[70:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
        _train(tmp_path / f"{name}.jsonl", tmp_path / name, count_only=True)
        assert sorted(path.name for path in (tmp_path / name).iterdir() if path.name != ".lock") == [
            "counts-00000.parquet", "dropped-00000.parquet", "manifest.json", "sample-00000.parquet",
        ]  # fmt: skip
    _train_from([tmp_path / "b", tmp_path / "a"], tmp_path / "joined")
    _train(tmp_path / "all.jsonl", tmp_path / "whole")
    assert _same_tokenizer(tmp_path / "joined", tmp_path / "whole")
    assert _counts(tmp_path / "joined") == _counts(tmp_path / "whole")


def test_counts_do_not_depend_on_memory_and_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    for part in range(5):
        rows = _documents(tmp_path / "x", part * 50, 50, seed=part)
        # Parquet files are shards of their own, and their row groups are batches.
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / f"{part}.parquet", row_group_size=5)
    _train(tmp_path / "in", tmp_path / "plain")
    monkeypatch.setattr(counting, "BUCKET_BYTES", 4000)
    monkeypatch.setattr(counting, "_TABLE_WORDS", 7)
    _train(tmp_path / "in", tmp_path / "cut")
    assert len(list((tmp_path / "cut").glob("counts-*.parquet"))) > 3
    assert len(list((tmp_path / "cut").glob("sample-*.parquet"))) == 5
    assert _counts(tmp_path / "cut") == _counts(tmp_path / "plain")
    assert _same_tokenizer(tmp_path / "cut", tmp_path / "plain")


def test_counts_do_not_depend_on_workers(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for part in range(3):
        pq.write_table(
            pa.Table.from_pylist(_documents(tmp_path / "x", part * 50, 50, seed=part)),
            tmp_path / "in" / f"{part}.parquet",
        )
    for workers in (1, 2):
        options = RunOptions(executor=make_executor(workers))
        train_bpe(
            TrainBpeConfig(vocab_size=300),
            documents=str(tmp_path / "in"),
            output=str(tmp_path / f"w{workers}"),
            options=options,
        )
    assert (tmp_path / "w1" / "manifest.json").read_bytes() == (tmp_path / "w2" / "manifest.json").read_bytes()


def test_a_sample_is_chosen_by_hash_and_within_the_limit(tmp_path: Path) -> None:
    rows = _documents(tmp_path / "d.jsonl", 0, 2000)
    sizes = {row["id"]: len(row["text"].encode()) for row in rows}
    limit = sum(sizes.values()) // 3
    summaries = {
        size: _train(tmp_path / "d.jsonl", tmp_path / f"s{size}", sample_bytes=size, count_only=True)
        for size in (limit, limit // 2)
    }
    for size, summary in summaries.items():
        assert 0.9 * size < summary.extra["text_bytes"] <= size
        assert summary.records_in == 2000 == summary.records_out + summary.dropped["not_in_sample"]
    smaller, larger = _counts(tmp_path / f"s{limit // 2}"), _counts(tmp_path / f"s{limit}")
    assert all(sum(count) <= sum(larger[word]) for word, count in smaller.items())
    (tmp_path / "r.jsonl").write_text("".join(reversed((tmp_path / "d.jsonl").read_text().splitlines(keepends=True))))
    _train(tmp_path / "r.jsonl", tmp_path / "reversed", sample_bytes=limit, count_only=True)
    assert _counts(tmp_path / "reversed") == larger


def test_a_sample_of_all_or_no_documents(tmp_path: Path) -> None:
    _documents(tmp_path / "d.jsonl", 0, 20)
    notes = _Notes()
    summary = _train(tmp_path / "d.jsonl", tmp_path / "all", notes, sample_bytes=10**9)
    assert summary.dropped == {}
    assert any("documents have less text" in note for note in notes.notes)
    with pytest.raises(InputError, match="a sample of 1 bytes contains no documents; use a larger --sample-bytes"):
        _train(tmp_path / "d.jsonl", tmp_path / "none", sample_bytes=1)


def test_held_out_documents_can_be_excluded_from_training(tmp_path: Path) -> None:
    rows = _documents(tmp_path / "d.jsonl", 0, 300)
    kept = [row for row in rows if not is_held_out(row["id"], 0.3)]
    (tmp_path / "kept.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    _train(tmp_path / "d.jsonl", tmp_path / "kept-only", held_out=0.3, train_on="kept")
    _train(tmp_path / "kept.jsonl", tmp_path / "plain", held_out=0.0)
    assert _same_tokenizer(tmp_path / "kept-only", tmp_path / "plain")
    report = json.loads((tmp_path / "kept-only" / "report.json").read_text())
    assert report["held_out_was_trained_on"] is False
    _train_from([tmp_path / "kept-only"], tmp_path / "again", held_out=0.3, train_on="kept")
    assert _same_tokenizer(tmp_path / "again", tmp_path / "plain")


def test_rare_words_can_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text(json.dumps({"text": "aaaa bbbb aaaa cccc aaaa bbbb"}) + "\n")
    _train(tmp_path / "d.jsonl", tmp_path / "bpe", min_frequency=1, min_word_count=2)
    tokens = [left + right for left, right in _merges(tmp_path / "bpe")]
    assert "Ġaaaa" in tokens
    assert not any("c" in token for token in tokens)


@settings(deadline=None, max_examples=12)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=40), min_size=1, max_size=6))
def test_merges_of_any_text_match_tokenizers(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("any")
    texts = ["ab ab", *texts]
    (folder / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    _train(folder / "d.jsonl", folder / "bpe", vocab_size=280)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=279, min_frequency=2, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    assert _merges(folder / "bpe") == [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def _merges(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "merges.txt").read_text().splitlines()[1:]
    return [(left, right) for left, right in (line.split(" ") for line in lines)]


def test_the_command_takes_counts_or_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _documents(tmp_path / "d.jsonl", 0, 50)
    first = ["train-bpe", "-i", str(tmp_path / "d.jsonl"), "-o", str(tmp_path / "a"), "--vocab-size", "300"]
    assert main([*first, "--count-only", "-q"]) == 0
    second = ["train-bpe", "--counts", str(tmp_path / "a"), "-o", str(tmp_path / "b"), "--vocab-size", "300"]
    assert main(second) == 0
    assert "fertility" in capsys.readouterr().out
    assert main([*second, "-i", str(tmp_path / "d.jsonl")]) == 2
    assert "--input and --counts cannot be combined" in capsys.readouterr().err
    assert main([*second[:2], str(tmp_path / "a"), "-o", str(tmp_path / "a" / "b")]) == 2


def test_a_deleted_page_is_rebuilt(tmp_path: Path) -> None:
    _documents(tmp_path / "d.jsonl", 0, 50)
    _train(tmp_path / "d.jsonl", tmp_path / "bpe")
    page = (tmp_path / "bpe" / "report.html").read_text()
    (tmp_path / "bpe" / "report.html").unlink()
    _train(tmp_path / "d.jsonl", tmp_path / "bpe")
    assert (tmp_path / "bpe" / "report.html").read_text() == page


def test_too_little_memory_is_refused_and_the_counts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _documents(tmp_path / "d.jsonl", 0, 100)
    with monkeypatch.context() as patch:
        patch.setattr(machine, "available_memory_bytes", lambda: 10_000_000)
        with pytest.raises(
            InputError, match=r"merging \d+ distinct words needs about .* is available; train from the counts"
        ):
            _train(tmp_path / "d.jsonl", tmp_path / "bpe")
    _train_from([tmp_path / "bpe" / "counts-*.parquet"], tmp_path / "elsewhere")
    _train(tmp_path / "d.jsonl", tmp_path / "bpe")
    assert _same_tokenizer(tmp_path / "bpe", tmp_path / "elsewhere")


def test_no_time_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _documents(tmp_path / "d.jsonl", 0, 100)
    monkeypatch.setattr(counting, "_LARGE_INPUT_BYTES", 1)
    monkeypatch.setattr(learning, "_NOTED_WORDS", 1)
    notes = _Notes()
    _train(tmp_path / "d.jsonl", tmp_path / "bpe", notes)
    (note,) = [note for note in notes.notes if "about" in note]
    assert regex.fullmatch(r"train-bpe: merging [\d,]+ distinct words needs about 48\d MB of memory", note)


def test_workers_that_do_not_fit_into_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _documents(tmp_path / "d.jsonl", 0, 100)
    monkeypatch.setattr(counting, "_LARGE_INPUT_BYTES", 1)
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 10_000_000)
    with pytest.raises(InputError, match=r"counting with 1 worker needs about .*; use fewer --workers"):
        _train(tmp_path / "d.jsonl", tmp_path / "none")
    assert not list((tmp_path / "none").glob("counts-*"))


_MANY = CountedWords((), 120_000_000, 1_100_000_000, 50_000_000, 400_000_000, ())


@pytest.mark.parametrize(
    ("available_gb", "config", "advice"),
    [
        (14.8, {}, None),
        (14.7, {}, r"on a machine with more memory, or with --min-word-count 2, which needs about 6\.08"),
        (5.0, {}, r"on a machine with more memory, or count fewer documents with --sample-bytes$"),
        (
            14.8,
            {"vocab_size": 100_000},
            r".*, or with --min-word-count 2, which needs about 6\.88 GB",
        ),  # ids of 32 bits
        (6.1, {"min_word_count": 2}, None),
        (6.0, {"min_word_count": 2}, r"on a machine with more memory, or count fewer documents with --sample-bytes$"),
    ],
)
def test_the_counted_words_must_fit_into_memory(
    available_gb: float, config: dict[str, Any], advice: str | None
) -> None:
    def check() -> None:
        learning.check_merging_memory(TrainBpeConfig(**config), _MANY, "my-bpe", int(available_gb * 10**9))

    if advice is None:
        check()
        return
    with pytest.raises(InputError, match=rf"needs about .*; train from the counts \(--counts .*\) {advice}"):
        check()

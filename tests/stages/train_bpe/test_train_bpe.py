"""The trained tokenizer: GPT-2's layout of ids, one tokenizer in every file, the merges of a plain trainer."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError
from pipelines.progress import Silent
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.stage import train_bpe
from pipelines.tokenizers.formats import FILES
from webtext_cli.main import main

_END = "<|endoftext|>"


def _sentences(count: int, seed: int = 0) -> list[str]:
    chosen = random.Random(seed)
    words = ["the", "cat's", "sat", "Übung", "mat", "1998", "they'll", "漢字", "a", "end.\n", "naïve", _END, "  "]
    return [" ".join(chosen.choices(words, k=20)) for _ in range(count)]


def _write(path: Path, texts: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(texts)))
    return path


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def _train(folder: Path, texts: list[Any], notes: Silent | None = None, **config: Any) -> Summary:
    documents = _write(folder / "docs.jsonl", texts)
    options = RunOptions(progress=notes or Silent())
    return train_bpe(TrainBpeConfig(**config), documents=str(documents), output=str(folder / "bpe"), options=options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    _train(folder, _sentences(200), vocab_size=300)
    return folder / "bpe"


def _merges(folder: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split(" ")) for line in (folder / "merges.txt").read_text().split("\n")[1:-1]]


def _pieces(texts: list[str]) -> Counter[str]:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return Counter(piece for text in texts for piece, _ in split.pre_tokenize_str(text))


def _plain_training(texts: list[str], merges: int, min_frequency: int) -> list[tuple[str, str]]:
    """Train BPE naively: merge the most frequent pair, of equal ones the one with the lowest ids."""
    words = {tuple(piece): count for piece, count in _pieces(texts).items()}
    ids = {character: id for id, character in enumerate(byte_characters().values())}
    learned: list[tuple[str, str]] = []
    while len(learned) < merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]))
        if pairs[best] < min_frequency:
            break
        learned.append(best)
        ids.setdefault(best[0] + best[1], len(ids))
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            merged[_merged(word, best)] += count
        words = dict(merged)
    return learned


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    position = 0
    while position < len(word):
        if word[position : position + 2] == pair:
            out.append(pair[0] + pair[1])
            position += 2
        else:
            out.append(word[position])
            position += 1
    return tuple(out)


def test_ids_are_laid_out_as_in_gpt2(trained: Path) -> None:
    vocabulary = json.loads((trained / "vocab.json").read_text())
    merges = _merges(trained)
    assert list(vocabulary.values()) == list(range(300))
    tokens = list(vocabulary)
    assert tokens[:256] == list(byte_characters().values())
    assert tokens[256:299] == [left + right for left, right in merges]
    assert tokens[299] == _END


@pytest.mark.parametrize("seed", range(4))
def test_merges_match_a_plain_trainer(tmp_path: Path, seed: int) -> None:
    texts = _sentences(30, seed)
    _train(tmp_path, texts, vocab_size=600, min_frequency=3)
    assert _merges(tmp_path / "bpe") == _plain_training(texts, 343, 3)


@settings(deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_round_trips(trained: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(trained / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_end_of_text_in_a_document_is_text(trained: Path) -> None:
    tokenizer = Tokenizer.from_file(str(trained / "tokenizer.json"))
    assert tokenizer.encode(_END).ids == [299]
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(f"a{_END}").ids
    assert 299 not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"a{_END}"


def test_the_order_of_documents_does_not_matter(trained: Path, tmp_path: Path) -> None:
    _train(tmp_path, _sentences(200)[::-1], vocab_size=300)
    for name in FILES:
        assert (tmp_path / "bpe" / name).read_bytes() == (trained / name).read_bytes()


def test_the_number_of_threads_does_not_matter(trained: Path, tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.jsonl", _sentences(200))
    command = [sys.executable, "-m", "webtext_cli", "train-bpe", "-i", str(documents), "--vocab-size", "300", "-q"]
    processes = [
        subprocess.Popen(
            [*command, "-o", str(tmp_path / threads)],
            env={**os.environ, "RAYON_NUM_THREADS": threads},
            stdout=subprocess.DEVNULL,
        )
        for threads in ("1", "7")
    ]
    assert [process.wait() for process in processes] == [0, 0]
    for name in ("manifest.json", "tokenizer.json", "ranks.tiktoken"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "7" / name).read_bytes()
        assert (tmp_path / "1" / name).read_bytes() == (trained / name).read_bytes()


def test_a_text_that_cannot_fill_the_vocabulary_is_noted(tmp_path: Path) -> None:
    notes = _Notes()
    summary = _train(tmp_path, ["abcabcabc abc", "abc"], notes, vocab_size=1000, min_frequency=2)
    assert summary.extra["vocabulary_size"] == len(json.loads((tmp_path / "bpe" / "vocab.json").read_text()))
    assert summary.extra["merges"] == summary.extra["vocabulary_size"] - 257
    assert any(f"has only {summary.extra['vocabulary_size']:.0f} of 1,000 entries" in note for note in notes.notes)


def test_fewer_documents_than_a_pair_needs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no pair occurs 9 times .* lower --min-frequency"):
        _train(tmp_path, ["abc"], vocab_size=300, min_frequency=9)


def test_documents_without_text_are_dropped_by_name(tmp_path: Path) -> None:
    summary = _train(tmp_path, [*_sentences(5), None, ""], vocab_size=260)
    assert (summary.records_in, summary.records_out) == (7, 5)
    assert summary.dropped == {"missing_text": 1, "empty_text": 1}
    dropped = pq.read_table(tmp_path / "bpe" / "dropped-00000.parquet").to_pylist()
    assert [(row["id"], row["reason"]) for row in dropped] == [("d5", "missing_text"), ("d6", "empty_text")]


def test_a_damaged_document_ends_the_training(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00 not a gzip file at all")
    with pytest.raises(InputError, match=r"docs\.jsonl\.gz: is truncated or corrupt"):
        train_bpe(
            TrainBpeConfig(vocab_size=300),
            documents=str(tmp_path / "docs.jsonl.gz"),
            output=str(tmp_path / "bpe"),
            options=RunOptions(),
        )


def test_the_command_prints_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = _write(tmp_path / "docs.jsonl", _sentences(20))
    arguments = ["train-bpe", "-i", str(documents), "-o", str(tmp_path / "bpe"), "--vocab-size", "300", "-q"]
    assert main([*arguments, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["stage"], summary["records_out"], summary["vocabulary_size"]) == ("train-bpe", 20, 300)
    assert summary["bytes_per_token"] > 1.0
    assert main([*arguments[:-3], "--vocab-size", "100"]) == 2
    assert "--vocab-size 100: must be at least 258" in capsys.readouterr().err

"""Token shards: the ids of the tokenizers library, every text back, and a split that order does not change."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_split import is_held_out
from token_run import run, write_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.progress import Silent
from pipelines.stages.tokenize.token_shards import TokenFormat, token_format
from pipelines.tokenizers.formats import load_document_tokenizer
from webtext_cli.main import main

pytestmark = pytest.mark.usefixtures("warm_processes")

_END = "<|endoftext|>"


def _write(path: Path, texts: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(texts)))
    return path


def _tokenize(folder: Path, texts: list[Any], tokenizer: Path, **config: Any) -> Summary:
    documents = _write(folder / "docs.jsonl", texts)
    return run(documents, tokenizer, folder / "tokens", **config)


def _documents(tokens: Path, split: str) -> dict[str, list[int]]:
    """Return the ids of each document, found with tokens.json and the tables of documents."""
    described = json.loads((tokens / "tokens.json").read_text())
    documents: dict[str, list[int]] = {}
    for file in described["splits"][split]:
        path = tokens / file["name"]
        ids = np.memmap(path, dtype=described["dtype"], mode="r", offset=described["header_bytes"])
        assert len(ids) == file["tokens"]
        rows = pq.read_table(tokens / file["documents_file"]).to_pylist()
        assert len(rows) == file["documents"]
        assert sum(row["tokens"] for row in rows) == len(ids)
        for row in rows:
            document = documents.setdefault(row["id"], [])
            assert len(document) == row["document_offset"]
            document += ids[row["offset"] : row["offset"] + row["tokens"]].tolist()
    assert len(documents) == described["totals"][split]["documents"]
    assert all(ids.pop() == described["end_of_text"] for ids in documents.values())
    return documents


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


_TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), min_size=1, max_size=5)


@settings(deadline=None, max_examples=15)
@given(texts=_TEXTS, form=st.sampled_from(["nanogpt", "llmc", "npy"]), size=st.integers(1, 50))
def test_any_text_but_a_blank_one_round_trips(small: Path, texts: list[str], form: str, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = {f"d{number}": text for number, text in enumerate(texts) if text.strip()}
        if not kept:
            with pytest.raises(WebtextError, match=f"empty_text {len(texts)}"):
                _tokenize(Path(folder), texts, small, format=form, held_out=0.0, shard_tokens=size)
            return
        summary = _tokenize(Path(folder), texts, small, format=form, held_out=0.0, shard_tokens=size)
        assert summary.dropped.get("empty_text", 0) == len(texts) - len(kept)
        library = Tokenizer.from_file(str(small))
        library.encode_special_tokens = True
        documents = _documents(Path(folder) / "tokens", "train")
        assert documents == {id: library.encode(text).ids for id, text in kept.items()}
        decoder = load_document_tokenizer(small.read_bytes(), "small")
        first, text = next(iter(kept.items()))
        pieces = [decoder.id_to_token(id) for id in documents[first]]
        alphabet = {character: byte for byte, character in _alphabet().items()}
        assert bytes(alphabet[character] for piece in pieces for character in piece).decode() == text


def _alphabet() -> dict[int, str]:
    from pipelines.algorithms.bpe.byte_level import byte_characters

    return byte_characters()


def test_ids_of_real_text_match_the_library(shared_data: Path, tmp_path: Path) -> None:
    with zstandard.open(shared_data / "text" / "docs.jsonl.zst", "rt") as lines:
        texts = [json.loads(next(lines))["text"] for _ in range(60)]
    texts.append(f"An {_END} in the text, and naïve Ünïcode 漢字 🙂.")
    _tokenize(tmp_path, texts, shared_data / "gpt2_vocab", held_out=0.1)
    tokens = tmp_path / "tokens"
    described = json.loads((tokens / "tokens.json").read_text())
    assert (described["dtype"], described["vocab_size"], described["end_of_text"]) == ("uint16", 50257, 50256)
    documents = _documents(tokens, "train") | _documents(tokens, "held-out")
    library = Tokenizer(
        models.BPE.from_file(*(str(shared_data / "gpt2_vocab" / name) for name in ("encoder.json", "vocab.bpe")))
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for number, text in enumerate(texts):
        assert documents[f"d{number}"] == library.encode(text).ids
    copied = Tokenizer.from_file(str(tokens / "tokenizer.json"))
    assert copied.decode(documents["d60"], skip_special_tokens=False) == texts[60]


def test_known_ids_of_gpt2(shared_data: Path, tmp_path: Path) -> None:
    _tokenize(tmp_path, ["Hello world", "the end"], shared_data / "gpt2_vocab", held_out=0.0, shuffle=False)
    ids = np.fromfile(tmp_path / "tokens" / "train-00000.bin", dtype="<u2").tolist()
    assert ids == [15496, 995, 50256, 1169, 886, 50256]


def test_end_of_text_in_a_document_is_never_the_special_token(small: Path, tmp_path: Path) -> None:
    _tokenize(tmp_path, [f"a{_END}b", _END], small, held_out=0.0)
    documents = _documents(tmp_path / "tokens", "train")
    assert [len(documents["d0"]), len(documents["d1"])] == [len(_END) + 2, len(_END)]
    assert not any(257 in ids for ids in documents.values())


def test_a_tokenizer_whose_end_of_text_is_not_special(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.json")
    settings = json.loads(path.read_text())
    settings["added_tokens"][0]["special"] = False
    path.write_text(json.dumps(settings))
    _tokenize(tmp_path, [_END], path, held_out=0.0)
    assert len(_documents(tmp_path / "tokens", "train")["d0"]) == len(_END)


def test_truncation_and_added_tokens_of_the_file_are_turned_off(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.json")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_END} $A {_END}", special_tokens=[(_END, tokenizer.token_to_id(_END))]
    )
    tokenizer.save(str(path))
    _tokenize(tmp_path, ["abcdefgh"], path, held_out=0.0)
    assert len(_documents(tmp_path / "tokens", "train")["d0"]) == 8


def test_llmc_shards_have_its_header(small: Path, tmp_path: Path) -> None:
    _tokenize(tmp_path, ["some text", "more"], small, format="llmc", held_out=0.0)
    data = (tmp_path / "tokens" / "train-00000.bin").read_bytes()
    header = np.frombuffer(data[:1024], dtype="<i4")
    assert header[:3].tolist() == [20240520, 1, 15]
    assert not header[3:].any()
    assert len(data) == 1024 + 2 * 15
    described = json.loads((tmp_path / "tokens" / "tokens.json").read_text())
    assert (described["format"], described["header_bytes"]) == ("llmc", 1024)
    assert not (tmp_path / "tokens" / "_work").exists()


def test_tokens_json_describes_the_shards(small: Path, tmp_path: Path) -> None:
    _tokenize(tmp_path, [f"text {number}" for number in range(100)], small, held_out=0.2)
    tokens = tmp_path / "tokens"
    described = json.loads((tokens / "tokens.json").read_text())
    sha256 = hashlib.sha256((tokens / "tokenizer.json").read_bytes()).hexdigest()
    assert (tokens / "tokenizer.json").read_bytes() == small.read_bytes()
    train, held_out = described["splits"]["train"], described["splits"]["held-out"]
    names = ("name", "tokens", "documents", "documents_file", "size_bytes", "sha256")
    for file in (*train, *held_out):
        assert sorted(file) == sorted(names)
        data = (tokens / file["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size_bytes"], file["sha256"])
    totals = {
        split: {"tokens": sum(file["tokens"] for file in files), "documents": sum(file["documents"] for file in files)}
        for split, files in described["splits"].items()
    }
    assert described == {
        "engine": "gigatoken",
        "shard_tokens": 100_000_000,
        "shuffle": True,
        "seed": 0,
        "held_out": 0.2,
        "totals": totals,
        "format": "raw",
        "dtype": "uint16",
        "header_bytes": 0,
        "vocab_size": 258,
        "end_of_text": 257,
        "tokenizer_sha256": sha256,
        "splits": {"train": train, "held-out": held_out},
    }
    assert [file["name"] for file in (*train, *held_out)] == ["train-00000.bin", "held-out-00000.bin"]
    assert train[0]["documents"] + held_out[0]["documents"] == 100
    assert 2 * (train[0]["tokens"]) == (tokens / "train-00000.bin").stat().st_size


def test_65536_entries_fit_16_bits_and_more_need_32() -> None:
    assert token_format("nanogpt", 65536).dtype == "uint16"
    assert token_format("nanogpt", 65537).dtype == "uint32"
    wide = TokenFormat("llmc", "uint32")
    assert wide.little_endian.str == "<u4"
    assert np.frombuffer(wide.header(2), dtype="<i4")[:3].tolist() == [20240801, 7, 2]
    with pytest.raises(UsageError, match=r"llm\.c counts up to"):
        wide.check(2**31)


def test_ids_beyond_16_bits_are_not_truncated(tmp_path: Path) -> None:
    characters = [chr(0x4E00 + number) for number in range(20000)]
    words = [
        *characters,
        *(character + "!" for character in characters),
        *(character + "?" for character in characters),
    ]
    words += [f"word{number}" for number in range(8000)]
    vocabulary = {word: id for id, word in enumerate([*words, "[UNK]", _END])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "t.json"))
    _tokenize(tmp_path, [f"word7999 {characters[3]}"], tmp_path / "t.json", held_out=0.0)
    assert json.loads((tmp_path / "tokens" / "tokens.json").read_text())["dtype"] == "uint32"
    assert _documents(tmp_path / "tokens", "train") == {"d0": [67999, 3]}


def test_the_held_out_share_is_the_requested_one() -> None:
    for share in (0.005, 0.05, 0.3):
        count = sum(is_held_out(f"https://example.org/{number}", share) for number in range(20000))
        assert abs(count / 20000 - share) < 4 * (share * (1 - share) / 20000) ** 0.5
    assert not any(is_held_out(str(number), 0.0) for number in range(1000))


def test_a_larger_share_holds_out_the_same_documents_and_more() -> None:
    ids = [str(number) for number in range(3000)]
    assert {id for id in ids if is_held_out(id, 0.05)} < {id for id in ids if is_held_out(id, 0.1)}


def test_the_split_does_not_depend_on_order_or_files(small: Path, tmp_path: Path) -> None:
    rows = [{"id": f"id {number}", "text": f"text {number}"} for number in range(200)]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "one" / "all.parquet")
    pq.write_table(pa.Table.from_pylist(rows[100:][::-1]), tmp_path / "two" / "a.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:100]), tmp_path / "two" / "b.parquet")
    for name in ("one", "two"):
        run(tmp_path / name, small, tmp_path / f"tokens-{name}", held_out=0.2)
    for split in ("train", "held-out"):
        assert _documents(tmp_path / "tokens-one", split) == _documents(tmp_path / "tokens-two", split)
    assert len(_documents(tmp_path / "tokens-one", "held-out")) > 10


def test_the_split_of_documents_without_ids_does_not_depend_on_order_or_files(small: Path, tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(60)]
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    for name, files in {
        "whole": {"a.jsonl": lines},
        "turned": {"b.jsonl": lines[:20][::-1], "c.jsonl": lines[20:][::-1]},
    }.items():
        (tmp_path / name).mkdir()
        for file, part in files.items():
            (tmp_path / name / file).write_text("".join(part))
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"text": texts[::-1]}), tmp_path / "rows" / "d.parquet")
    (tmp_path / "plain").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "plain" / f"{number}.txt").write_text(text)
    held_out = []
    for name in ("whole", "turned", "rows", "plain"):
        run(tmp_path / name, small, tmp_path / f"{name}-tokens", held_out=0.3)
        held_out.append(sorted(_documents(tmp_path / f"{name}-tokens", "held-out").values()))
    assert held_out[0] == held_out[1] == held_out[2] == held_out[3]
    assert 5 < len(held_out[0]) < 40


def test_documents_of_one_cluster_stay_together(small: Path, tmp_path: Path) -> None:
    rows = [{"id": f"{number}", "text": "text", "cluster": number // 10} for number in range(400)]
    rows.append({"id": "alone", "text": "text", "cluster": None})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "docs.parquet")
    run(tmp_path / "docs.parquet", small, tmp_path / "tokens", held_out=0.3)
    held_out = set(_documents(tmp_path / "tokens", "held-out"))
    clusters = [{id in held_out for id in map(str, range(start, start + 10))} for start in range(0, 400, 10)]
    assert all(len(sides) == 1 for sides in clusters)
    assert 3 <= sum(True in sides for sides in clusters) <= 25
    assert ("alone" in held_out) == is_held_out("alone", 0.3)


def test_three_workers_write_the_same_as_one(small: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for part in range(4):
        rows = [{"id": f"{part} {number}", "text": "the thing " * number} for number in range(30)]
        rows.append({"id": f"{part} null", "text": None})
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "docs" / f"{part}.parquet")
    for workers in (1, 3):
        options = RunOptions() if workers == 1 else RunOptions(executor=LocalExecutor(workers))
        summary = run(tmp_path / "docs", small, tmp_path / str(workers), options, format="llmc")
        assert summary.dropped == {"missing_text": 4, "empty_text": 4}
        assert summary.records_in == 4 * 31
    assert _bytes(tmp_path / "1") == _bytes(tmp_path / "3")
    dropped = pq.read_table(tmp_path / "1" / "dropped-00002.parquet").to_pylist()
    assert sorted((row["id"], row["reason"]) for row in dropped) == [("2 0", "empty_text"), ("2 null", "missing_text")]


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_shard_without_held_out_documents_has_no_empty_file(small: Path, tmp_path: Path) -> None:
    class Notes(Silent):
        notes: list[str] = []  # noqa: RUF012 - read by the test

        def note(self, message: str) -> None:
            self.notes.append(message)

    run(_write(tmp_path / "d.jsonl", ["x"]), small, tmp_path / "t", RunOptions(progress=Notes()), held_out=1e-9)
    assert json.loads((tmp_path / "t" / "tokens.json").read_text())["splits"]["held-out"] == []
    assert not list((tmp_path / "t").glob("held-out*"))
    assert any("no documents are held out" in note for note in Notes.notes)


def test_everything_held_out_is_refused(small: Path, tmp_path: Path) -> None:
    held_out = next(number for number in range(100) if is_held_out(f"x{number}", 0.5))
    (tmp_path / "d.jsonl").write_text(json.dumps({"id": f"x{held_out}", "text": "x"}))
    with pytest.raises(InputError, match="all documents are held out"):
        run(tmp_path / "d.jsonl", small, tmp_path / "t", held_out=0.5)


def test_vocabulary_and_merges_are_found_by_name(shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "vocab.json").write_bytes((shared_data / "gpt2_vocab" / "encoder.json").read_bytes())
    (tmp_path / "named" / "merges.txt").write_bytes((shared_data / "gpt2_vocab" / "vocab.bpe").read_bytes())
    _tokenize(tmp_path, ["Hello world"], tmp_path / "named", held_out=0.0)
    assert _documents(tmp_path / "tokens", "train") == {"d0": [15496, 995]}


def test_the_commands_work_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = _write(tmp_path / "docs.jsonl", [f"the text the reader reads {number}" for number in range(50)])
    corpus = ["--corpus", str(tmp_path), "-i", str(documents), "--workers", "2"]
    assert main(["train-bpe", *corpus, "--vocab-size", "265", "-q"]) == 0
    assert main(["tokenize", *corpus, "--held-out", "0.2", "--json", "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    summary = json.loads(lines[-1])
    assert summary["records_out"] == summary["train_documents"] + summary["held-out_documents"] == 50
    trained = (tmp_path / "train-bpe" / "tokenizer.json").read_bytes()
    assert (tmp_path / "tokenize" / "tokenizer.json").read_bytes() == trained
    assert json.loads((tmp_path / "tokenize" / "tokens.json").read_text())["end_of_text"] == 264

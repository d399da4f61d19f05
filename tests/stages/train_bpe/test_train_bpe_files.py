"""The files of a tokenizer folder: those that GPT-2 was published with, and every library reads the same tokenizer."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from typing import NamedTuple

import fsspec
import pyarrow as pa
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tokenizers import Tokenizer, models

from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.algorithms.bpe.split import GPT2_SPLIT
from pipelines.errors import WebtextError
from pipelines.stages.train_bpe.stage import check_written
from pipelines.tokenizers.encoding import FastEncoder, import_engine
from pipelines.tokenizers.formats import FILES, byte_level_tokenizer, read_tokenizer, tokenizer_files

_END = "<|endoftext|>"
_BYTES = [bytes([byte]) for byte in byte_characters()]
_SAMPLE = ["the cat's mat 1998\n\n  Übung 漢字 🙂", _END, "", "the the" * 9]


def _learned(text: str, count: int) -> list[tuple[int, int]]:
    """Return the merges of a naive BPE of the words of one text."""
    ids = {token: id for id, token in enumerate(_BYTES)}
    words = [[ids[bytes([byte])] for byte in word.encode()] for word in text.split(" ")]
    merges: list[tuple[int, int]] = []
    while len(merges) < count:
        pairs = [pair for word in words for pair in itertools.pairwise(word)]
        best = max(sorted(set(pairs)), key=pairs.count)
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = [256 + len(merges)]
                at += 1
        merges.append(best)
    return merges


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def small() -> dict[str, bytes]:
    return tokenizer_files(_learned("the theatre heath 1998 1999 caaaaat Übung über mats", 20))


@pytest.fixture(scope="module")
def folder(small: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("small"), small)


def test_gpt2s_own_files_are_written_byte_for_byte(shared_data: Path, tmp_path: Path) -> None:
    published = {name: (shared_data / "gpt2_vocab" / name).read_bytes() for name in ("encoder.json", "vocab.bpe")}
    vocabulary: dict[str, int] = json.loads(published["encoder.json"])
    merges = [line.split(" ") for line in published["vocab.bpe"].decode().split("\n")[1:-1]]
    files = tokenizer_files([(vocabulary[left], vocabulary[right]) for left, right in merges])
    assert {name: files[name] for name in published} == published
    _write(tmp_path, files)
    shakespeare = (shared_data / "benchmarks" / "tinyshakespeare.txt").read_text()[:8192]
    hangul = "".join(chr(0xAC00 + number) for number in range(2000))
    texts = ("Hello world", shakespeare, "=" * 8192, hangul, f"x{' ' * 3000}y\n\n\n")
    results = _encode_with_each_library(tmp_path, *texts)
    for text, result in zip(texts, results, strict=True):
        assert len({tuple(encoded.ids) for encoded in result.values()}) == 1
        assert {encoded.decoded for encoded in result.values()} == {text}
    assert results[0]["gigatoken"].ids == [15496, 995]


def _ranks(folder: Path) -> dict[bytes, int]:
    lines = [line.split() for line in (folder / "ranks.tiktoken").read_bytes().splitlines()]
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def test_the_files_are_laid_out_as_gpt2s(small: dict[str, bytes]) -> None:
    assert tuple(small) == FILES
    vocabulary = json.loads(small["vocab.json"])
    assert list(vocabulary.values()) == list(range(277))
    assert list(vocabulary)[:256] == list(byte_characters().values())
    assert list(vocabulary)[276] == _END
    assert json.loads(small["encoder.json"]) == vocabulary
    assert small["encoder.json"].isascii()
    assert small["vocab.bpe"] == small["merges.txt"]
    lines = small["merges.txt"].decode().split("\n")
    assert (lines[0], lines[-1], len(lines)) == ("#version: 0.2", "", 22)
    assert ["".join(line.split(" ")) for line in lines[1:-1]] == list(vocabulary)[256:276]
    assert small["ranks.tiktoken"].splitlines()[-1].endswith(b" 275")


class Encoded(NamedTuple):
    ids: list[int]
    decoded: str
    with_special_tokens: list[int]


def _encode_with_each_library(folder: Path, *texts: str) -> list[dict[str, Encoded]]:
    """Return for each text, by library: its ids, their text, and the ids if special tokens are allowed."""
    results: list[dict[str, Encoded]] = [{} for _ in texts]
    vocabulary, merges = models.BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    for name, tokenizer in (
        ("tokenizer.json", Tokenizer.from_file(str(folder / "tokenizer.json"))),
        ("vocab.json, merges.txt", byte_level_tokenizer(vocabulary, merges)),
    ):
        for text, result in zip(texts, results, strict=True):
            tokenizer.encode_special_tokens = False
            special = tokenizer.encode(text).ids
            tokenizer.encode_special_tokens = True
            ids = tokenizer.encode(text).ids
            result[name] = Encoded(ids, tokenizer.decode(ids, skip_special_tokens=False), special)
    published = data_gym_to_mergeable_bpe_ranks(str(folder / "vocab.bpe"), str(folder / "encoder.json"))
    for name, ranks in (("encoder.json, vocab.bpe", published), ("ranks.tiktoken", _ranks(folder))):
        tokens = {_END: len(ranks)}
        encoding = tiktoken.Encoding("x", pat_str=GPT2_SPLIT, mergeable_ranks=ranks, special_tokens=tokens)
        for text, result in zip(texts, results, strict=True):
            ids = encoding.encode_ordinary(text)
            result[name] = Encoded(ids, encoding.decode(ids), encoding.encode(text, allowed_special={_END}))
    load = import_engine()
    assert load is not None
    gigatoken = load((folder / "tokenizer.json").read_text())
    encoder = FastEncoder((folder / "tokenizer.json").read_bytes(), "tokenizer.json")
    for text, result in zip(texts, results, strict=True):
        ids = encoder.encode(pa.array([text])).ids.tolist()
        special = [int(id) for id in gigatoken.encode(text)]
        result["gigatoken"] = Encoded(ids, bytes(gigatoken.decode(ids)).decode(), special)
    return results


@pytest.mark.parametrize("text", [*_SAMPLE, f"a{_END}b"])
def test_every_library_reads_the_same_tokenizer(folder: Path, text: str) -> None:
    [results] = _encode_with_each_library(folder, text)
    [(ids, decoded, special)] = {(tuple(ids), text, tuple(special)) for ids, text, special in results.values()}
    assert decoded == text
    assert 276 not in ids
    assert special.count(276) == text.count(_END)


@settings(deadline=None, max_examples=50)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=80))
def test_every_library_gives_the_same_ids_for_any_text(folder: Path, text: str) -> None:
    [results] = _encode_with_each_library(folder, text)
    assert len({(tuple(ids), decoded) for ids, decoded, _ in results.values()}) == 1


def test_the_written_tokenizer_must_decode_to_the_text(small: dict[str, bytes], tmp_path: Path) -> None:
    _write(tmp_path, small)
    check_written(str(tmp_path), [*_SAMPLE, ""])
    whole = json.loads(small["tokenizer.json"])
    del whole["decoder"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(WebtextError, match=r"tokenizer\.json: does not decode the ids of .*the cat"):
        check_written(str(tmp_path), _SAMPLE)
    store = fsspec.filesystem("memory")
    store.pipe_file("/bpe-files/tokenizer.json", small["tokenizer.json"])
    check_written("memory://bpe-files", _SAMPLE)


def test_two_merges_of_one_entry_are_a_bug() -> None:
    merges = _learned("the theatre heath", 4)
    with pytest.raises(WebtextError, match="two merges create one entry"):
        tokenizer_files([*merges, merges[-1]])


def test_every_format_reads_its_files_back(small: dict[str, bytes], folder: Path, tmp_path: Path) -> None:
    expected = read_tokenizer(str(folder / "tokenizer.json"))
    assert expected == small["tokenizer.json"]
    for name in FILES[1:-1]:
        assert read_tokenizer(str(folder / name)) == expected


def test_transformers_loads_the_folder(tmp_path: Path, small: dict[str, bytes]) -> None:
    from transformers import AutoTokenizer

    for name, data in small.items():
        (tmp_path / name).write_bytes(data)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    last = library.get_vocab_size() - 1
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.model_max_length) == (_END, last, 1024)
    text = "the cat's  naïve 漢字\n"
    assert tokenizer(text)["input_ids"] == library.encode(text).ids
    assert tokenizer.decode(library.encode(text).ids) == text

"""The files of a tokenizer folder: those that GPT-2 was published with, and damage to any of them noticed."""

from __future__ import annotations

import base64
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer

from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.algorithms.bpe.word_counts import GPT2_SPLIT
from pipelines.errors import InputError, WebtextError
from pipelines.stages.train_bpe.files import FILES, TRANSFORMERS, check_written, tokenizer_files
from pipelines.tokenizers.formats import read_tokenizer

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
    text = (shared_data / "benchmarks" / "tinyshakespeare.txt").read_text()[:8192]
    hangul = "".join(chr(0xAC00 + number) for number in range(2000))
    sample = ["Hello world", text, "=" * 8192, hangul, f"x{' ' * 3000}y\n\n\n{_END}"]
    encoding = tiktoken.Encoding("gpt2", pat_str=GPT2_SPLIT, mergeable_ranks=_ranks(tmp_path), special_tokens={})
    assert encoding.encode_ordinary("Hello world") == [15496, 995]
    assert check_written(str(tmp_path), sample) == sum(len(encoding.encode_ordinary(text)) for text in sample)


def _ranks(folder: Path) -> dict[bytes, int]:
    lines = [line.split() for line in (folder / "ranks.tiktoken").read_bytes().splitlines()]
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def test_the_files_are_laid_out_as_gpt2s(small: dict[str, bytes]) -> None:
    assert set(small) == {*FILES, TRANSFORMERS}
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


def test_all_formats_agree_on_a_sample(folder: Path) -> None:
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.encode_special_tokens = True
    assert check_written(str(folder), _SAMPLE) == sum(len(library.encode(text).ids) for text in _SAMPLE)
    assert check_written(str(folder), []) == 0


@settings(deadline=None, max_examples=50)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_all_formats_agree_on_any_text(folder: Path, text: str) -> None:
    assert check_written(str(folder), [text]) <= len(text.encode())


def test_a_folder_in_an_object_store_is_checked_too(small: dict[str, bytes]) -> None:
    store = fsspec.filesystem("memory")
    for name, data in small.items():
        store.pipe_file(f"/bpe-files/{name}", data)
    assert check_written("memory://bpe-files", ["the"]) == 1
    store.pipe_file("/bpe-files/ranks.tiktoken", small["ranks.tiktoken"].replace(b" 275\n", b" 277\n"))
    with pytest.raises(WebtextError, match=r"memory://bpe-files/ranks.tiktoken: has 277 for b'.*', but .* has 275"):
        check_written("memory://bpe-files", ["the"])


def _swapped(data: bytes) -> bytes:
    lines = data.split(b"\n")
    lines[3], lines[4] = lines[4], lines[3]
    return b"\n".join(lines)


def _without_line(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"\n".join([*lines[:5], *lines[6:]])


def _without_last_line(data: bytes) -> bytes:
    return data[: data.rstrip(b"\n").rindex(b"\n") + 1]


def _entries(change: Callable[[dict[str, int]], Any]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        vocabulary = json.loads(data)
        change(vocabulary)
        return json.dumps(vocabulary).encode()

    return changed


def _model(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        whole = json.loads(data)
        change(whole)
        return json.dumps(whole).encode()

    return changed


def _swap_ids(vocabulary: dict[str, int]) -> None:
    first, second = list(vocabulary)[260:262]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


_DAMAGE: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("merges.txt", _swapped, "merges.txt: has .* for 2, but tokenizer.json has"),
    ("merges.txt", _without_line, "merges.txt: has .* for 4, but tokenizer.json has"),
    ("merges.txt", _without_last_line, "merges.txt: has None for 19, but"),
    ("merges.txt", lambda data: data + b"Q Q\n", "merges.txt: has .*'Q', 'Q'.* for 20, but .* has None"),
    ("merges.txt", lambda data: data + b"QQ\n", "vocab.json and merges.txt: tokenizers cannot load it"),
    ("vocab.json", _entries(lambda vocabulary: vocabulary.pop("b")), "vocab.json: has None for 'b', but"),
    ("vocab.json", _entries(lambda vocabulary: vocabulary.update(b=999)), "vocab.json: has 999 for 'b', but"),
    ("vocab.json", _entries(_swap_ids), r"vocab.json: has 261 for '.*', but tokenizer.json has 260"),
    ("vocab.json", _half, "vocab.json and merges.txt: tokenizers cannot load it"),
    ("vocab.bpe", _swapped, "encoder.json and vocab.bpe: tiktoken cannot load it"),
    ("vocab.bpe", _without_line, "encoder.json and vocab.bpe: tiktoken cannot load it"),
    ("vocab.bpe", _without_last_line, "encoder.json and vocab.bpe: tiktoken cannot load it"),
    ("vocab.bpe", lambda data: data.removesuffix(b"\n"), "encoder.json and vocab.bpe: tiktoken cannot load it"),
    ("encoder.json", _entries(_swap_ids), "encoder.json and vocab.bpe: tiktoken cannot load it"),
    (
        "encoder.json",
        _entries(lambda vocabulary: vocabulary.pop(_END)),
        r"encoder.json: has None for '<\|endoftext\|>'",
    ),
    ("encoder.json", _entries(lambda vocabulary: vocabulary.update({_END: 0})), r"has 0 for '<\|endoftext\|>', but"),
    ("encoder.json", _half, "encoder.json and vocab.bpe: tiktoken cannot load it"),
    ("ranks.tiktoken", _without_line, "ranks.tiktoken: has None for b'&', but"),
    ("ranks.tiktoken", lambda data: data.replace(b" 262\n", b" 300\n"), "ranks.tiktoken: has 300 for b'.*', but"),
    ("ranks.tiktoken", lambda data: data + b"UVE= 276\n", "ranks.tiktoken: has 276 for b'QQ', but .* has None"),
    ("ranks.tiktoken", lambda data: data[:-8], "ranks.tiktoken: "),
    ("tokenizer.json", _half, "tokenizer.json: json cannot load it"),
    ("tokenizer.json", _model(lambda whole: whole["model"]["merges"].reverse()), "tokenizer.json has"),
    ("tokenizer.json", _model(lambda whole: _swap_ids(whole["model"]["vocab"])), "its ids are not 0, 1, 2"),
    (
        "tokenizer.json",
        _model(lambda whole: whole["added_tokens"].clear()),
        r"does not encode <\|endoftext\|> in a text as text",
    ),
    ("tokenizer.json", _model(lambda whole: whole.pop("decoder")), "does not decode the ids of"),
]


@pytest.mark.parametrize(
    ("name", "damage", "message"), _DAMAGE, ids=[f"{at}-{each[0]}" for at, each in enumerate(_DAMAGE)]
)
def test_damage_is_reported_by_name(
    small: dict[str, bytes], tmp_path: Path, name: str, damage: Callable[[bytes], bytes], message: str
) -> None:
    changed = damage(small[name])
    assert changed != small[name]
    _write(tmp_path, {**small, name: changed})
    with pytest.raises(WebtextError, match=message):
        check_written(str(tmp_path), _SAMPLE[2:3])


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(small: dict[str, bytes], tmp_path: Path, name: str) -> None:
    _write(tmp_path, small)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=f"{name}: no such file"):
        check_written(str(tmp_path), [])


def test_a_different_split_is_reported_with_text_and_position(tmp_path: Path) -> None:
    space = _BYTES.index(b" ")
    files = tokenizer_files([(space, space), (_BYTES.index(b"a"), 256)])
    whole = json.loads(files["tokenizer.json"])
    whole["pre_tokenizer"]["use_regex"] = False
    _write(tmp_path, {**files, "tokenizer.json": json.dumps(whole).encode()})
    message = (
        r"merges.txt, read by tokenizers, gives other ids for text 2 .* from token 1 on \(after 1 bytes\): .* not "
    )
    with pytest.raises(WebtextError, match=message):
        check_written(str(tmp_path), ["ab", "xa  b"])


def test_two_merges_of_one_entry_are_a_bug() -> None:
    merges = _learned("the theatre heath", 4)
    with pytest.raises(WebtextError, match="two merges create one entry"):
        tokenizer_files([*merges, merges[-1]])


@pytest.mark.parametrize("before", [None, "/nowhere"])
def test_tiktoken_reads_the_file_and_not_its_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small: dict[str, bytes], before: str | None
) -> None:
    _write(tmp_path / "bpe", small)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    load_tiktoken_bpe(str(tmp_path / "bpe" / "ranks.tiktoken"))
    kept = sorted((tmp_path / "cache").iterdir())
    assert len(kept) == 1
    (tmp_path / "bpe" / "ranks.tiktoken").write_bytes(_without_line(small["ranks.tiktoken"]))
    with pytest.raises(WebtextError, match=r"ranks.tiktoken: has None"):
        check_written(str(tmp_path / "bpe"), [])
    assert sorted((tmp_path / "cache").iterdir()) == kept
    if before is None:
        monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    else:
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", before)
    check_written(str(folder), [])
    assert os.environ.get("TIKTOKEN_CACHE_DIR") == before


def test_every_format_reads_its_files_back(small: dict[str, bytes], folder: Path, tmp_path: Path) -> None:
    expected = read_tokenizer(str(folder / "tokenizer.json"))
    assert expected == small["tokenizer.json"]
    for name in FILES[1:]:
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

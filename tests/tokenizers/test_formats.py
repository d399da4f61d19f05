"""Tokenizers in every form: the ids of the libraries that own the forms, and damage named by file and line."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipelines.algorithms.bpe.byte_level import byte_characters, token_bytes
from pipelines.algorithms.bpe.split import GPT2_SPLIT
from pipelines.errors import InputError
from pipelines.tokenizers.formats import (
    end_of_text_id,
    load_document_tokenizer,
    load_tokenizer,
    read_tokenizer,
    tokenizer_json,
    vocabulary_size,
)

_END = "<|endoftext|>"
_CHARACTERS = list(byte_characters().values())
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def _pair() -> dict[str, str]:
    """A small tokenizer as a vocabulary and merges."""
    vocabulary = {entry: id for id, entry in enumerate([*_CHARACTERS, "th", "the", "Ġthe", "==", _END])}
    return {"vocab.json": json.dumps(vocabulary), "merges.txt": "#version: 0.2\nt h\nth e\nĠ the\n= =\n"}


def _rank_lines() -> list[str]:
    tokens = [token_bytes(entry) for entry in (*_CHARACTERS, "th", "the", "Ġthe", "==")]
    return [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]


def _write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def _ids(tokenizer_json: bytes, text: str) -> list[int]:
    return load_document_tokenizer(tokenizer_json, "test").encode(text).ids


@pytest.fixture(scope="module")
def gpt2(shared_data: Path) -> Path:
    return shared_data / "gpt2_vocab"


@pytest.fixture(scope="module")
def library(gpt2: Path) -> Tokenizer:
    """GPT-2's own files as the tokenizers library reads them."""
    tokenizer = Tokenizer(models.BPE.from_file(str(gpt2 / "encoder.json"), str(gpt2 / "vocab.bpe")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="module")
def ranks_path(gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2's vocabulary as tiktoken publishes it, the lines in another order."""
    vocabulary = json.loads((gpt2 / "encoder.json").read_text())
    lines = [f"{base64.b64encode(token_bytes(token)).decode()} {id}\n" for token, id in vocabulary.items()][:-1]
    path = tmp_path_factory.mktemp("ranks") / "gpt2.tiktoken"
    path.write_text("".join([*lines[1000:], *lines[:1000]]))
    return path


@pytest.fixture(scope="module")
def forms(gpt2: Path, ranks_path: Path) -> list[Tokenizer]:
    """GPT-2's tokenizer by vocabulary and merges, and by ranks."""
    return [load_document_tokenizer(read_tokenizer(str(path)), str(path)) for path in (gpt2, ranks_path)]


@settings(deadline=None, max_examples=50)
@given(text=_TEXT)
def test_every_form_of_gpt2_gives_the_ids_of_the_library_on_any_text(
    forms: list[Tokenizer], library: Tokenizer, text: str
) -> None:
    expected = library.encode(text).ids
    for tokenizer in forms:
        assert tokenizer.encode(text).ids == expected
        assert tokenizer.decode(expected, skip_special_tokens=False) == text


def test_every_form_of_gpt2_gives_the_ids_of_the_libraries_on_real_text(
    forms: list[Tokenizer], library: Tokenizer, gpt2: Path, shared_data: Path
) -> None:
    ranks = {token_bytes(token): id for token, id in json.loads((gpt2 / "encoder.json").read_text()).items()}
    del ranks[_END.encode()]
    encoding = tiktoken.Encoding("gpt2", pat_str=GPT2_SPLIT, mergeable_ranks=ranks, special_tokens={})
    with zstandard.open(shared_data / "text" / "docs.jsonl.zst", "rt") as lines:
        texts = [json.loads(next(lines))["text"][:20000] for _ in range(40)]
    for text in [*texts, f"a{_END}b"]:
        expected = library.encode(text).ids
        assert encoding.encode_ordinary(text) == expected
        assert [tokenizer.encode(text).ids for tokenizer in forms] == [expected, expected]


def test_ranks_get_the_merges_of_gpt2_back(gpt2: Path, ranks_path: Path) -> None:
    assert read_tokenizer(str(ranks_path)) == read_tokenizer(str(gpt2))
    tokenizer = load_document_tokenizer(read_tokenizer(str(ranks_path)), "ranks")
    assert (end_of_text_id(tokenizer), vocabulary_size(tokenizer)) == (50256, 50257)


def test_all_forms_of_one_tokenizer_are_the_same_bytes(tmp_path: Path) -> None:
    pair = _pair()
    vocabulary = json.loads(pair["vocab.json"])
    expected = tokenizer_json(vocabulary, [("t", "h"), ("th", "e"), ("Ġ", "the"), ("=", "=")])
    assert _ids(expected, "the the===" + _END)[:4] == [257, 258, 259, vocabulary["="]]
    assert end_of_text_id(load_document_tokenizer(expected, "test")) == 260
    folders = {
        "hugging-face": pair,
        "openai": {"encoder.json": pair["vocab.json"], "vocab.bpe": pair["merges.txt"]},
        "tiktoken": {"any.tiktoken": "".join(_rank_lines())},
        "library": {"tokenizer.json": expected.decode()},
    }
    for name, files in folders.items():
        _write(tmp_path / name, files)
        for path in (tmp_path / name, *(tmp_path / name).iterdir()):
            assert read_tokenizer(str(path)) == expected, path
            assert read_tokenizer(f"file://{path}") == expected


def test_the_first_of_several_forms_is_taken(tmp_path: Path) -> None:
    pair = _pair()
    _write(tmp_path, {**pair, "x.tiktoken": "junk", "README.md": "hello"})
    expected = read_tokenizer(str(tmp_path))
    _write(tmp_path, {"encoder.json": "{}", "notes.json": "{}"})  # half a pair beside a whole one
    assert read_tokenizer(str(tmp_path)) == expected
    (tmp_path / "tokenizer.json").write_bytes(expected)
    (tmp_path / "merges.txt").write_text("junk")
    assert read_tokenizer(str(tmp_path)) == expected


@pytest.mark.parametrize("change", [lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text.rstrip("\n")])
def test_other_line_ends_and_marks_of_a_merges_file_are_read(tmp_path: Path, change: Callable[[str], str]) -> None:
    expected = read_tokenizer(str(_write(tmp_path, _pair())))
    (tmp_path / "merges.txt").write_bytes(change(_pair()["merges.txt"]).encode())
    assert read_tokenizer(str(tmp_path)) == expected


def test_a_merges_file_needs_no_header(tmp_path: Path) -> None:
    pair = _pair()
    expected = read_tokenizer(str(_write(tmp_path, pair)))
    _write(tmp_path, {"merges.txt": pair["merges.txt"].partition("\n")[2]})
    assert read_tokenizer(str(tmp_path)) == expected


def test_special_tokens_may_be_entries_that_no_merge_makes(tmp_path: Path) -> None:
    pair = _pair()
    vocabulary = {**json.loads(pair["vocab.json"]), "<pad>": 261, "[MASK]": 262}
    data = read_tokenizer(str(_write(tmp_path, {**pair, "vocab.json": json.dumps(vocabulary)})))
    assert vocabulary_size(load_document_tokenizer(data, "test")) == 263


def test_a_byte_may_have_a_higher_rank_than_a_token_made_of_it(tmp_path: Path) -> None:
    lines = _rank_lines()
    lines[_CHARACTERS.index("t")], lines[256] = (
        lines[256].split()[0] + f" {_CHARACTERS.index('t')}\n",
        lines[_CHARACTERS.index("t")].split()[0] + " 256\n",
    )
    (tmp_path / "x.tiktoken").write_text("".join(lines))
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
    encoding = tiktoken.Encoding("x", pat_str=GPT2_SPLIT, mergeable_ranks=ranks, special_tokens={})
    text = "the tt th eth the the"
    assert _ids(read_tokenizer(str(tmp_path)), text) == encoding.encode_ordinary(text)


_Change = Callable[[str], str]


def _entries(change: Callable[[dict[str, object]], object]) -> _Change:
    def changed(text: str) -> str:
        vocabulary = json.loads(text)
        change(vocabulary)
        return json.dumps(vocabulary)

    return changed


_BAD_PAIRS: list[tuple[str, _Change, str]] = [
    ("merges.txt", lambda text: text + "q q\n", r"merges.txt, line 6: 'qq' of the merge 'q q' is not in vocab.json"),
    ("merges.txt", lambda text: text.replace("th e", "tx e"), r"merges.txt, line 3: 'tx' of the merge"),
    ("merges.txt", lambda text: text.replace("th e", "the"), r"line 3: 'the' is not two parts .*; download it"),
    ("merges.txt", lambda text: text.replace("th e", "t h e"), r"line 3: 't h e' is not two parts"),
    ("merges.txt", lambda text: text.replace("th e", "th "), r"line 3: 'th ' is not two parts"),
    ("merges.txt", lambda text: text.replace("th e", ""), r"line 3: '' is not two parts"),
    ("merges.txt", lambda text: text + "t h\n", r"line 6: the merge 't h' is also in line 2; download it again"),
    ("merges.txt", lambda text: text.replace("= =\n", ""), r"no merge creates the entry '==' \(id 259\) of"),
    ("merges.txt", lambda text: "", r"no merge creates the entry 'th' \(id 256\) of vocab.json"),
    ("vocab.json", lambda text: text[:-20], r"vocab.json: is not valid JSON"),
    ("vocab.json", lambda text: "[1]", r"vocab.json: is not a vocabulary, which is one JSON object"),
    ("vocab.json", _entries(lambda entries: entries.update(th="257")), r"vocab.json: entry 'th' has \"257\" for an id"),
    ("vocab.json", _entries(lambda entries: entries.update(th=True)), r"vocab.json: entry 'th' has true for an id"),
    ("vocab.json", _entries(lambda entries: entries.update(th=257)), r"entries 'th' and 'the' have the same id 257"),
    ("vocab.json", _entries(lambda entries: entries.update(th=300)), r"vocab.json: no entry has id 256, although"),
    ("vocab.json", _entries(lambda entries: entries.update(th=-1)), r"vocab.json: no entry has id 256"),
    ("vocab.json", _entries(lambda entries: entries.pop("Ā")), r"vocab.json: has no entry for 1 of the 256 bytes"),
    ("vocab.json", _entries(lambda entries: entries.update({"<\ud800>": 261})), r"json: an entry contains half a"),
    ("vocab.json", _entries(lambda entries: entries.update(zz=261)), r"no merge creates the entry 'zz' \(id 261\)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), _BAD_PAIRS, ids=[str(at) for at in range(len(_BAD_PAIRS))])
def test_a_damaged_pair_is_refused_by_name(tmp_path: Path, name: str, change: _Change, message: str) -> None:
    pair = _pair()
    _write(tmp_path, {**pair, name: change(pair[name])})
    with pytest.raises(InputError, match=message) as refusal:
        read_tokenizer(str(tmp_path))
    assert str(refusal.value).startswith(str(tmp_path))
    assert "\n" not in str(refusal.value)


def test_merges_that_are_not_text_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, _pair())
    (tmp_path / "merges.txt").write_bytes(b"#version: 0.2\nt h\n\xc4")
    with pytest.raises(InputError, match=r"merges.txt: is not a merges file, as it is not UTF-8 .*; download it again"):
        read_tokenizer(str(tmp_path))


def _line(number: int, text: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [*lines[: number - 1], text, *lines[number:]]


_BAD_RANKS: list[tuple[Callable[[list[str]], list[str]], str]] = [
    (lambda lines: [*lines[:100], *lines[101:]], r"has no entry for 1 of the 256 bytes \(the first is '§'\)"),
    (lambda lines: lines[:-2] + lines[-1:], r"no entry has id 258"),
    (lambda lines: [lines[-1].replace("259", "0"), *lines[1:-1]], r"has no entry for 1 of the 256 bytes \(the first"),
    (lambda lines: [*lines[:-1], lines[-1].replace("259", "258")], r"entries 'Ġthe' and '==' have the same id 258"),
    (lambda lines: [*lines, lines[7].replace(" 7", " 260")], r"line 261: the token b'\(' has a rank in an earlier"),
    (_line(258, "dGhl 257x\n"), r"line 258: 'dGhl 257x' is not a token in base64 and its rank; download it again"),
    (_line(258, "dGhl -1\n"), r"line 258: 'dGhl -1' is not a token"),
    (_line(258, "dGhl\n"), r"line 258: 'dGhl' is not a token"),
    (_line(258, "dGh 257\n"), r"line 258: its token is not base64 \(Incorrect padding\)"),
    (_line(258, "dG*l 257\n"), r"line 258: its token is not base64"),
    (_line(257, "eno= 256\n"), r"the token b'the' \(rank 257\) is 3 tokens of lower rank, not two"),
    (lambda lines: [*lines, "ICA= 260\n", "ICAgICAg 261\n"], r"the token b' {6}' \(rank 261\) is 3 tokens"),
    (lambda lines: [*lines, "PHxlbmRvZnRleHR8Pg== 260\n"], r"line 261: <\|endoftext\|> has a rank, but .*; remove"),
    (lambda lines: [], r"has no entry for 256 of the 256 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), _BAD_RANKS, ids=[str(at) for at in range(len(_BAD_RANKS))])
def test_damaged_ranks_are_refused_by_line_or_token(
    tmp_path: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    path = tmp_path / "small.tiktoken"
    path.write_text("".join(change(_rank_lines())))
    with pytest.raises(InputError, match=message) as refusal:
        read_tokenizer(str(path))
    assert str(refusal.value).startswith(str(path))


@pytest.mark.parametrize(
    ("missing", "there"), [("vocab.json", "merges.txt"), ("merges.txt", "vocab.json"), ("vocab.bpe", "encoder.json")]
)
def test_half_a_pair_says_what_is_missing(tmp_path: Path, missing: str, there: str) -> None:
    _write(tmp_path, {there: "{}"})
    for path in (tmp_path, tmp_path / there):
        with pytest.raises(InputError, match=f"{there}: is half a tokenizer; {missing} is missing next to it"):
            read_tokenizer(str(path))


def test_other_files_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, {"notes.txt": "hello", "list.json": "[]", "other.json": json.dumps({"a": 1})})
    for path, message in (
        (tmp_path, r"contains no tokenizer in a known form: tokenizer.json, encoder.json with vocab.bpe"),
        (
            tmp_path / "nothing",
            r"nothing: no such file or folder; run `webtext train-bpe`, or name one with --tokenizer",
        ),
        (
            tmp_path / "notes.txt",
            r"notes.txt: is not a tokenizer.json .*; known forms: tokenizer.json, encoder",
        ),
        (tmp_path / "list.json", r'list.json: is JSON but not a tokenizer.json, which has a "model"'),
        (tmp_path / "other.json", r"other.json: is JSON but not a tokenizer.json"),
    ):
        with pytest.raises(InputError, match=message):
            read_tokenizer(str(path))
    _write(tmp_path, {"a.tiktoken": "", "b.tiktoken": ""})
    with pytest.raises(
        InputError, match=r"contains several files of ranks \(a.tiktoken, b.tiktoken\); name one of them"
    ):
        read_tokenizer(str(tmp_path))


_NAMES = ["tokenizer.json", "vocab.json", "merges.txt", "x.tiktoken"]


@settings(deadline=None, max_examples=75)
@given(name=st.sampled_from(_NAMES), place=st.floats(0, 1), new=st.binary(max_size=4), cut=st.integers(0, 60))
def test_any_damage_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, place: float, new: bytes, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    pair = _pair()
    vocabulary = json.loads(pair["vocab.json"])
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("=", "=")]
    whole = tokenizer_json(vocabulary, merges).decode()
    _write(folder, {**pair, "x.tiktoken": "".join(_rank_lines()), "tokenizer.json": whole})
    data = (folder / name).read_bytes()
    start = int(place * len(data))
    (folder / name).write_bytes(data[:start] + new + data[start + cut :])
    try:
        tokenizer = load_document_tokenizer(read_tokenizer(str(folder / name)), name)
    except InputError as refusal:
        assert name in str(refusal) or "vocab.json" in str(refusal)  # noqa: PT017 - either outcome is right
    else:
        assert all(id < vocabulary_size(tokenizer) for id in tokenizer.encode("the = the\n").ids)


def test_a_file_on_which_the_library_panics_is_an_error_that_names_it() -> None:
    # A prefix that is longer than the tokens of a merge: the library slices beyond their end.
    model = {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2},
        "merges": [["a", "b"]],
        "continuing_subword_prefix": "x" * 9,
    }
    with pytest.raises(InputError, match=r"^t\.json: is not a tokenizer"):
        load_tokenizer(json.dumps({"version": "1.0", "added_tokens": [], "model": model}).encode(), "t.json")

"""The files of a tokenizer folder: one tokenizer in five forms, each checked with the library that reads it."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer, models

from pipelines import progress, storage
from pipelines.algorithms.bpe.byte_level import byte_characters, token_bytes
from pipelines.algorithms.bpe.word_counts import GPT2_SPLIT
from pipelines.errors import WebtextError
from pipelines.tokenizers.formats import END_OF_TEXT, TOKENIZER, byte_level_tokenizer, token_characters, tokenizer_json

_HUGGING_FACE = ("vocab.json", "merges.txt")
_OPENAI = ("encoder.json", "vocab.bpe")
_RANKS = "ranks.tiktoken"
TRANSFORMERS = "tokenizer_config.json"
# The forms of the tokenizer, all of which are checked.
FILES = (TOKENIZER, *_HUGGING_FACE, *_OPENAI, _RANKS)

# What `transformers` reads from a tokenizer folder in addition to tokenizer.json, as in GPT-2's own.
_TRANSFORMERS_CONFIG = {
    "tokenizer_class": "GPT2Tokenizer",
    "model_max_length": 1024,
    "add_prefix_space": False,
    "bos_token": END_OF_TEXT,
    "eos_token": END_OF_TEXT,
    "unk_token": END_OF_TEXT,
}
_MERGES_HEADER = "#version: 0.2"
_SPELLED = f"a{END_OF_TEXT}b"
_TIKTOKEN_CACHE = "TIKTOKEN_CACHE_DIR"
_BUG = "this is a bug in webtext, please report it"


def token_bytes_of(merges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes of each entry: the 256 bytes in GPT-2's order, then the result of each merge of two ids."""
    tokens = [bytes([byte]) for byte in byte_characters()]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    return tokens


def tokenizer_files(merges: Sequence[tuple[int, int]]) -> dict[str, bytes]:
    """Return the bytes of each file by name; `<|endoftext|>` is the last entry.

    Raises WebtextError if two merges create the same entry.
    """
    tokens = token_bytes_of(merges)
    entries = [token_characters(token) for token in tokens]
    vocabulary = {entry: id for id, entry in enumerate([*entries, END_OF_TEXT])}
    if len(vocabulary) != len(tokens) + 1:
        raise WebtextError(f"train-bpe: two merges create one entry; {_BUG}")
    pairs = [(entries[left], entries[right]) for left, right in merges]
    lines = "\n".join([_MERGES_HEADER, *(f"{left} {right}" for left, right in pairs), ""]).encode()
    return {
        TOKENIZER: tokenizer_json(vocabulary, pairs),
        _HUGGING_FACE[0]: (json.dumps(vocabulary, ensure_ascii=False) + "\n").encode(),
        _HUGGING_FACE[1]: lines,
        _OPENAI[0]: json.dumps(vocabulary).encode(),
        _OPENAI[1]: lines,
        TRANSFORMERS: (json.dumps(_TRANSFORMERS_CONFIG, indent=1) + "\n").encode(),
        _RANKS: b"".join(b"%b %d\n" % (base64.b64encode(token), id) for id, token in enumerate(tokens)),
    }


def check_written(folder: str, sample: Sequence[str]) -> int:
    """Return the number of tokens in a sample, after checking that all files of a folder are one tokenizer.

    Each form is loaded with its own library: all entries and merges must be the same, and so must the ids of each text
    of the sample, which must decode to the text; `<|endoftext|>` is text in a text, and the last id if special tokens
    are allowed. Raises WebtextError naming the file and the entry, or the text and the position, that differ.
    """
    expected = _read_tokenizer_json(folder)
    texts = [_SPELLED, *sample]
    ids: list[list[int]] = []
    # One after the other, so that one library has its tables in memory at a time; gigatoken, which panics, is the last.
    for reader in itertools.chain(
        _read_with_tokenizers(folder, expected), _read_with_tiktoken(folder, expected), _read_with_gigatoken(expected)
    ):
        encoded = reader.encode(texts)
        ids = ids or encoded
        _check_reader(reader, texts, encoded=encoded, expected=ids, vocabulary=expected.vocabulary)
    return sum(len(text_ids) for text_ids in ids[1:])


class _Expected(NamedTuple):
    """The contents of `tokenizer.json`, which all other files must have too."""

    path: str
    data: bytes
    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]


class _Reader(NamedTuple):
    """A tokenizer as one library loaded it."""

    source: str
    encode: Callable[[Sequence[str]], list[list[int]]]
    encode_special: Callable[[str], list[int]]
    decode: Callable[[list[int]], bytes]


def _read_tokenizer_json(folder: str) -> _Expected:
    path = storage.join(folder, TOKENIZER)
    data = storage.read_bytes(path)
    with _loading(path, "json"):
        model = json.loads(data)["model"]
        vocabulary = model["vocab"]
        merges = [(left, right) for left, right in model["merges"]]
    if list(vocabulary.values()) != list(range(len(vocabulary))) or [*vocabulary][-1:] != [END_OF_TEXT]:
        raise WebtextError(f"{path}: its ids are not 0, 1, 2 and so on with {END_OF_TEXT} as the last; {_BUG}")
    return _Expected(path, data, vocabulary, merges)


def _read_with_tokenizers(folder: str, expected: _Expected) -> Iterator[_Reader]:
    with _loading(expected.path, "tokenizers"):
        tokenizer = Tokenizer.from_str(expected.data.decode())
    yield _tokenizers_reader(expected.path, tokenizer)
    with _loading_pair(folder, _HUGGING_FACE, "tokenizers") as (vocabulary_copy, merges_copy):
        vocabulary, merges = models.BPE.read_file(vocabulary_copy, merges_copy)
    vocabulary_path, merges_path = (storage.join(folder, name) for name in _HUGGING_FACE)
    _check_same_entries(vocabulary_path, vocabulary, expected.vocabulary)
    _check_same_entries(merges_path, dict(enumerate(merges)), dict(enumerate(expected.merges)))
    source = f"{vocabulary_path} and {_HUGGING_FACE[1]}"
    yield _tokenizers_reader(source, byte_level_tokenizer(vocabulary, merges))


def _tokenizers_reader(source: str, tokenizer: Tokenizer) -> _Reader:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        tokenizer.encode_special_tokens = True
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_special(text: str) -> list[int]:
        tokenizer.encode_special_tokens = False
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(ids: list[int]) -> bytes:
        return bytes(tokenizer.decode(ids, skip_special_tokens=False).encode())

    return _Reader(f"{source}, read by tokenizers,", encode, encode_special, decode)


def _read_with_tiktoken(folder: str, expected: _Expected) -> Iterator[_Reader]:
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe

    expected_ranks = {token_bytes(entry): id for entry, id in expected.vocabulary.items() if entry != END_OF_TEXT}
    with _loading_pair(folder, _OPENAI, "tiktoken") as (vocabulary_copy, merges_copy):
        ranks = data_gym_to_mergeable_bpe_ranks(merges_copy, vocabulary_copy)
    path = storage.join(folder, _OPENAI[0])
    _check_same_entries(path, ranks, expected_ranks)
    # That loader skips the end of text, which GPT-2's own code reads from here.
    _check_same_entries(path, storage.read_json(path), expected.vocabulary)
    yield _tiktoken_reader(f"{path} and {_OPENAI[1]}", ranks)
    path = storage.join(folder, _RANKS)
    with storage.local_copy(path) as ranks_copy, _loading(path, "tiktoken"):
        ranks = load_tiktoken_bpe(ranks_copy)
    _check_same_entries(path, ranks, expected_ranks)
    yield _tiktoken_reader(path, ranks)


def _tiktoken_reader(source: str, ranks: dict[bytes, int]) -> _Reader:
    import tiktoken

    special = {END_OF_TEXT: len(ranks)}
    encoding = tiktoken.Encoding("webtext", pat_str=GPT2_SPLIT, mergeable_ranks=ranks, special_tokens=special)
    return _Reader(
        f"{source}, read by tiktoken,",
        lambda texts: [encoding.encode_ordinary(text) for text in texts],
        lambda text: encoding.encode(text, allowed_special={END_OF_TEXT}),
        encoding.decode_bytes,
    )


def _read_with_gigatoken(expected: _Expected) -> Iterator[_Reader]:
    import pyarrow as pa

    from pipelines.tokenizers.encoding import FastEncoder, import_engine

    load = import_engine()
    if load is None:
        progress.note("gigatoken is not installed, so the tokenizer was not checked with it")
        return
    encoder = FastEncoder(expected.data, expected.path)
    with _loading(expected.path, "gigatoken"):
        with_special = load(expected.data.decode())

    def encode(texts: Sequence[str]) -> list[list[int]]:
        encoded = encoder.encode(pa.array(texts, pa.string()))
        return [encoded.ids[start:end].tolist() for start, end in itertools.pairwise(encoded.starts.tolist())]

    yield _Reader(
        f"{expected.path}, read by gigatoken,",
        encode,
        lambda text: [int(id) for id in with_special.encode(text)],
        lambda ids: bytes(with_special.decode(ids)),
    )


@contextlib.contextmanager
def _loading_pair(folder: str, pair: tuple[str, str], library: str) -> Iterator[tuple[str, str]]:
    """Yield local copies of a vocabulary and its merges; an error in the block names both files."""
    vocabulary, merges = (storage.join(folder, name) for name in pair)
    with (
        storage.local_copy(vocabulary) as vocabulary_copy,
        storage.local_copy(merges) as merges_copy,
        _loading(f"{vocabulary} and {pair[1]}", library),
    ):
        yield vocabulary_copy, merges_copy


@contextlib.contextmanager
def _loading(source: str, library: str) -> Iterator[None]:
    """Name the file that a library cannot load; tiktoken reads the file itself, not an older copy in its cache."""
    cache = os.environ.get(_TIKTOKEN_CACHE)
    os.environ[_TIKTOKEN_CACHE] = ""
    try:
        yield
    except Exception as error:  # each library has its own types, including failed asserts
        problem = f"{library} cannot load it ({type(error).__name__}: {error})"
        raise WebtextError(f"{source}: {problem}; {_BUG}") from error
    finally:
        del os.environ[_TIKTOKEN_CACHE]
        if cache is not None:
            os.environ[_TIKTOKEN_CACHE] = cache


def _check_same_entries(path: str, entries: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    """Raise WebtextError, naming an entry, if two mappings differ."""
    for key in (*expected, *entries):
        if entries.get(key) != expected.get(key):
            difference = f"has {entries.get(key)!r} for {key!r}, but {TOKENIZER} has {expected.get(key)!r}"
            raise WebtextError(f"{path}: {difference}; {_BUG}")


def _check_reader(
    reader: _Reader,
    texts: Sequence[str],
    encoded: Sequence[list[int]],
    expected: Sequence[list[int]],
    vocabulary: Mapping[str, int],
) -> None:
    for number, (text, ids, expected_ids) in enumerate(zip(texts, encoded, expected, strict=True)):
        name = f"text {number} of the sample" if number else f"the text {_SPELLED}"
        if ids != expected_ids:
            pairs = enumerate(itertools.zip_longest(ids, expected_ids))
            first = next(position for position, (id, expected_id) in pairs if id != expected_id)
            raise WebtextError(
                f"train-bpe: {reader.source} gives other ids for {name} from token {first} on (after "
                f"{len(reader.decode(ids[:first]))} bytes): {ids[first : first + 3]}, not "
                f"{expected_ids[first : first + 3]}; {_BUG}"
            )
        if reader.decode(ids) != text.encode():
            raise WebtextError(f"train-bpe: {reader.source} does not decode the ids of {name} to the text; {_BUG}")
    end_of_text = vocabulary[END_OF_TEXT]
    special = [vocabulary["a"], end_of_text, vocabulary["b"]]
    if end_of_text in expected[0] or reader.encode_special(_SPELLED) != special:
        raise WebtextError(
            f"train-bpe: {reader.source} does not encode {END_OF_TEXT} in a text as text, or not as the token "
            f"{end_of_text} if special tokens are allowed; {_BUG}"
        )

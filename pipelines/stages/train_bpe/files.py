"""The files of a tokenizer folder: one tokenizer in five forms, each proven by the library that reads it."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from tokenizers import Tokenizer, models

from pipelines.algorithms.bpe.byte_level import byte_characters, token_bytes
from pipelines.algorithms.bpe.word_counts import GPT2_SPLIT
from pipelines.core import progress, storage
from pipelines.core.errors import WebtextError
from pipelines.tokenizers.formats import END_OF_TEXT, TOKENIZER, byte_level_tokenizer, token_characters

VOCABULARY, MERGES = "vocab.json", "merges.txt"
GPT2_VOCABULARY, GPT2_MERGES = "encoder.json", "vocab.bpe"
RANKS = "ranks.tiktoken"
TRANSFORMERS = "tokenizer_config.json"
# The forms of the tokenizer, which are proven; the stage knows them for its own.
FILES = (TOKENIZER, VOCABULARY, MERGES, GPT2_VOCABULARY, GPT2_MERGES, RANKS)

# What `transformers` takes from a tokenizer's folder beside tokenizer.json, as GPT-2's own says it.
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


def tokenizer_files(tokens: Sequence[bytes], merges: Sequence[tuple[int, int]]) -> dict[str, bytes]:
    """Return the bytes of each file by name.

    `tokens` are the bytes of each entry by id: the 256 bytes in GPT-2's order, then what each of `merges` makes of the
    entries with these two ids; `<|endoftext|>` is added as the last. Raises WebtextError where they are not this.
    """
    _require_layout(tokens, merges)
    entries = [token_characters(token) for token in tokens]
    vocabulary = {entry: id for id, entry in enumerate([*entries, END_OF_TEXT])}
    pairs = [(entries[left], entries[right]) for left, right in merges]
    tokenizer = byte_level_tokenizer(vocabulary, pairs)
    lines = "\n".join([_MERGES_HEADER, *(f"{left} {right}" for left, right in pairs), ""]).encode()
    return {
        TOKENIZER: (tokenizer.to_str(pretty=True) + "\n").encode(),
        VOCABULARY: (json.dumps(vocabulary, ensure_ascii=False) + "\n").encode(),
        MERGES: lines,
        GPT2_VOCABULARY: json.dumps(vocabulary).encode(),
        GPT2_MERGES: lines,
        TRANSFORMERS: (json.dumps(_TRANSFORMERS_CONFIG, indent=1) + "\n").encode(),
        RANKS: b"".join(b"%b %d\n" % (base64.b64encode(token), id) for id, token in enumerate(tokens)),
    }


def check_written(folder: str, sample: Sequence[str]) -> int:
    """Return the tokens that a sample takes, after proof that all files of a folder are one tokenizer.

    Each form is loaded by its own library from where it lies: all entries and merges must be the same, and so must the
    ids of each text of the sample, which must come back from them; `<|endoftext|>` is text in a text, and the last id
    where it is asked for. Raises WebtextError naming the file and the entry, or the text and the place, where not.
    """
    whole = _read_tokenizer_json(folder)
    texts = [_SPELLED, *sample]
    expected: list[list[int]] = []
    # One after the other, so that no two libraries hold their tables at a time; gigatoken, which panics, is the last.
    for reader in itertools.chain(_by_tokenizers(folder, whole), _by_tiktoken(folder, whole), _by_gigatoken(whole)):
        ids = reader.encode(texts)
        expected = expected or ids
        _check_reader(reader, texts, ids, expected, whole)
    return sum(len(ids) for ids in expected[1:])


def _require_layout(tokens: Sequence[bytes], merges: Sequence[tuple[int, int]]) -> None:
    made = [tokens[left] + tokens[right] for left, right in merges]
    if list(tokens) != [*(bytes([byte]) for byte in byte_characters()), *made]:
        raise WebtextError(f"train-bpe: the entries are not the 256 bytes and what the merges make; {_BUG}")
    if len({*tokens, END_OF_TEXT.encode()}) != len(tokens) + 1:
        raise WebtextError(f"train-bpe: two merges make one entry; {_BUG}")


class _Whole(NamedTuple):
    """What a `tokenizer.json` says, which all other files must say too."""

    path: str
    data: bytes
    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]

    @property
    def ranks(self) -> dict[bytes, int]:
        """The id of each entry but the last by its bytes."""
        return {token_bytes(entry): id for entry, id in self.vocabulary.items() if entry != END_OF_TEXT}


class _Reader(NamedTuple):
    """A tokenizer as one library has loaded it."""

    source: str
    encode: Callable[[Sequence[str]], list[list[int]]]
    encode_special: Callable[[str], list[int]]
    decode: Callable[[list[int]], bytes]


def _read_tokenizer_json(folder: str) -> _Whole:
    path = storage.join(folder, TOKENIZER)
    data = storage.read_bytes(path)
    with _loading(path, "json"):
        model = json.loads(data)["model"]
        vocabulary = model["vocab"]
        merges = [(left, right) for left, right in model["merges"]]
    if list(vocabulary.values()) != list(range(len(vocabulary))) or [*vocabulary][-1:] != [END_OF_TEXT]:
        raise WebtextError(f"{path}: its ids are not 0, 1, 2 and so on with {END_OF_TEXT} as the last; {_BUG}")
    return _Whole(path, data, vocabulary, merges)


def _by_tokenizers(folder: str, whole: _Whole) -> Iterator[_Reader]:
    with _loading(whole.path, "tokenizers"):
        tokenizer = Tokenizer.from_str(whole.data.decode())
    yield _reader_of_tokenizers(whole.path, tokenizer)
    vocabulary_path, merges_path = storage.join(folder, VOCABULARY), storage.join(folder, MERGES)
    with (
        storage.local_copy(vocabulary_path) as vocabulary_copy,
        storage.local_copy(merges_path) as merges_copy,
        _loading(f"{vocabulary_path} and {MERGES}", "tokenizers"),
    ):
        vocabulary, merges = models.BPE.read_file(vocabulary_copy, merges_copy)
    _require_same_entries(vocabulary_path, vocabulary, whole.vocabulary)
    _require_same_entries(merges_path, dict(enumerate(merges)), dict(enumerate(whole.merges)))
    yield _reader_of_tokenizers(f"{vocabulary_path} and {MERGES}", byte_level_tokenizer(vocabulary, merges))


def _reader_of_tokenizers(source: str, tokenizer: Tokenizer) -> _Reader:
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


def _by_tiktoken(folder: str, whole: _Whole) -> Iterator[_Reader]:
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe

    expected = whole.ranks
    vocabulary_path, merges_path = storage.join(folder, GPT2_VOCABULARY), storage.join(folder, GPT2_MERGES)
    with (
        storage.local_copy(vocabulary_path) as vocabulary_copy,
        storage.local_copy(merges_path) as merges_copy,
        _loading(f"{vocabulary_path} and {GPT2_MERGES}", "tiktoken"),
    ):
        ranks = data_gym_to_mergeable_bpe_ranks(merges_copy, vocabulary_copy)
    _require_same_entries(vocabulary_path, ranks, expected)
    # That loader passes over the end of text, which GPT-2's own code takes from here.
    _require_same_entries(vocabulary_path, storage.read_json(vocabulary_path), whole.vocabulary)
    yield _reader_of_tiktoken(f"{vocabulary_path} and {GPT2_MERGES}", ranks)
    ranks_path = storage.join(folder, RANKS)
    with storage.local_copy(ranks_path) as ranks_copy, _loading(ranks_path, "tiktoken"):
        ranks = load_tiktoken_bpe(ranks_copy)
    _require_same_entries(ranks_path, ranks, expected)
    yield _reader_of_tiktoken(ranks_path, ranks)


def _reader_of_tiktoken(source: str, ranks: dict[bytes, int]) -> _Reader:
    import tiktoken

    encoding = tiktoken.Encoding(
        "webtext", pat_str=GPT2_SPLIT, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: len(ranks)}
    )

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.encode_ordinary(text) for text in texts]

    def encode_special(text: str) -> list[int]:
        return encoding.encode(text, allowed_special={END_OF_TEXT})

    return _Reader(f"{source}, read by tiktoken,", encode, encode_special, encoding.decode_bytes)


def _by_gigatoken(whole: _Whole) -> Iterator[_Reader]:
    import pyarrow as pa

    from pipelines.tokenizers.encoding import FastEncoder

    try:
        from gigatoken.gigatoken_rs import load_hf_json
    except ImportError:
        progress.note("gigatoken is not installed, so the tokenizer was not tried with it")
        return

    fast = FastEncoder(whole.data, whole.path)
    with _loading(whole.path, "gigatoken"):
        with_special = load_hf_json(whole.data.decode())

    def encode(texts: Sequence[str]) -> list[list[int]]:
        encoded = fast.encode(pa.array(texts, pa.string()))
        bounds = encoded.starts.tolist()
        return [encoded.ids[start:end].tolist() for start, end in itertools.pairwise(bounds)]

    def encode_special(text: str) -> list[int]:
        return [int(id) for id in with_special.encode(text)]

    def decode(ids: list[int]) -> bytes:
        return bytes(with_special.decode(ids))

    yield _Reader(f"{whole.path}, read by gigatoken,", encode, encode_special, decode)


@contextlib.contextmanager
def _loading(source: str, library: str) -> Iterator[None]:
    """Name the file that a library refuses; meanwhile tiktoken gives the file itself, not what it once had there."""
    before = os.environ.get(_TIKTOKEN_CACHE)
    os.environ[_TIKTOKEN_CACHE] = ""
    try:
        yield
    except Exception as error:  # each library has its own kinds, failed asserts among them
        problem = f"{library} cannot load it ({type(error).__name__}: {error})"
        raise WebtextError(f"{source}: {problem}; {_BUG}") from error
    finally:
        if before is None:
            del os.environ[_TIKTOKEN_CACHE]
        else:
            os.environ[_TIKTOKEN_CACHE] = before


def _require_same_entries(path: str, found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    """Raise WebtextError, naming an entry, where two mappings differ."""
    if found == expected:
        return
    for key in (*expected, *found):
        ours, theirs = found.get(key), expected.get(key)
        if ours != theirs:
            raise WebtextError(f"{path}: has {ours!r} for {key!r}, but {TOKENIZER} has {theirs!r}; {_BUG}")


def _check_reader(
    reader: _Reader, texts: Sequence[str], found: Sequence[list[int]], expected: Sequence[list[int]], whole: _Whole
) -> None:
    for number, (text, ids, wanted) in enumerate(zip(texts, found, expected, strict=True)):
        where = f"text {number} of the sample" if number else f"the text {_SPELLED}"
        if ids != wanted:
            _refuse_ids(reader, where, ids, wanted)
        if reader.decode(ids) != text.encode():
            raise WebtextError(f"train-bpe: {reader.source} does not give {where} back from its ids; {_BUG}")
    end_of_text = whole.vocabulary[END_OF_TEXT]
    special = [whole.vocabulary["a"], end_of_text, whole.vocabulary["b"]]
    if end_of_text in expected[0] or reader.encode_special(_SPELLED) != special:
        raise WebtextError(
            f"train-bpe: {reader.source} does not take {END_OF_TEXT} for text in a text and for the token "
            f"{end_of_text} where it is asked for; {_BUG}"
        )


def _refuse_ids(reader: _Reader, where: str, ids: list[int], wanted: list[int]) -> NoReturn:
    pairs = itertools.zip_longest(ids, wanted)
    first = next(at for at, (ours, theirs) in enumerate(pairs) if ours != theirs)
    raise WebtextError(
        f"train-bpe: {reader.source} gives other ids for {where} from token {first} on (after "
        f"{len(reader.decode(ids[:first]))} bytes): {ids[first : first + 3]}, not {wanted[first : first + 3]}; {_BUG}"
    )

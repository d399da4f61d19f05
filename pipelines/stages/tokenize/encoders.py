"""The encoders of documents: gigatoken, held to the `tokenizers` library on a sample, or that library itself."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from pipelines.core import storage
from pipelines.core.errors import InputError, WebtextError
from pipelines.tokenizers.encoding import WAY_OUT, Encoded, Encoder, FastEncoder, LibraryEncoder
from pipelines.tokenizers.formats import END_OF_TEXT, parse_tokenizer

# What a sample of each task is: its first documents, then one in so many, up to some characters of text: a million in a
# run of 5 to 50 tasks. `tokenizers` takes a hundred times as long for a character as gigatoken does.
_FIRST_DOCUMENTS = 3
_SAMPLED_ONE_IN = 200
_MOST_CHARACTERS, _LEAST_CHARACTERS, _CHARACTERS_OF_ALL = 200_000, 20_000, 1_000_000
# A longer document is compared up to here.
_COMPARED_CHARACTERS = 40_000

# What encoders may disagree on: spaces, the split's contractions, digits, scripts, text that spells special tokens.
_PROBES = (
    "Hello world, it's 2019: we'll see   what\n\n  they'd SAID\t\r\n",
    "naïve Ünïcode 漢字かな 🙂👩‍👩‍👧 ſ’s ½ ² ١٢٣ \u00a0\u2003x\u0000\u0001 e\u0301",
    f"a{END_OF_TEXT}b <|im_start|> <s></s> [UNK] [MASK]",
    " ",
    "  leading and trailing  ",
    "x" * 300 + "!" * 300 + "0" * 300,
)


def what_is_lost(library: Tokenizer) -> str | None:
    """Return a text that does not come back from its ids; None where all that are tried do, as with GPT-2's."""
    for text in _PROBES:
        ids = library.encode(text, add_special_tokens=False).ids
        if library.decode(ids, skip_special_tokens=False) != text:
            return text
    return None


class Choice(NamedTuple):
    """The engine of a run, an encoder of it, and what to tell the user of the choice."""

    engine: str
    encoder: Encoder
    note: str | None


def choose_engine(tokenizer_json: bytes, library: Tokenizer, source: str, asked: str) -> Choice:
    """Return the engine to encode with.

    `library` is the tokenizer as `tokenizers` has it. With `auto` the engine is gigatoken where it knows this kind of
    tokenizer and gives the library's ids on a few texts. Raises InputError where `gigatoken` was asked for and is not
    able to.
    """
    slow = LibraryEncoder(library)
    loaded = _loaded(hashlib.sha256(tokenizer_json).hexdigest())
    loaded.library = library
    if asked == "tokenizers":
        return Choice(asked, slow, None)
    try:
        fast = loaded.fast = FastEncoder(tokenizer_json, source)
        probes = pa.array(_PROBES, pa.string())
        if not _equal(fast.encode(probes), slow.encode(probes)):
            raise InputError(f"{source}: gigatoken gives other ids than tokenizers{WAY_OUT}")
    except InputError as error:
        if asked == "gigatoken":
            raise
        reason = str(error).removesuffix(WAY_OUT)
        return Choice("tokenizers", slow, f"encodes with tokenizers, which is slower: {reason}")
    return Choice("gigatoken", fast, None)


@dataclasses.dataclass
class _Loaded:
    """What this process has loaded of a tokenizer, by the hash of its file."""

    sha256: str
    library: Tokenizer | None = None
    fast: FastEncoder | None = None


@functools.lru_cache(maxsize=1)
def _loaded(sha256: str) -> _Loaded:
    return _Loaded(sha256)


def load_library(path: str, sha256: str) -> Tokenizer:
    """Return the tokenizer in a file, loaded once in a process; `sha256` of its bytes tells whether it is the same."""
    loaded = _loaded(sha256)
    if loaded.library is None:
        loaded.library = parse_tokenizer(_verified(path, sha256), path)
    return loaded.library


def load_encoder(path: str, sha256: str, engine: str) -> Encoder:
    """Return the encoder of an engine, loaded once in a process."""
    if engine == "tokenizers":
        return LibraryEncoder(load_library(path, sha256))
    loaded = _loaded(sha256)
    if loaded.fast is None:
        loaded.fast = FastEncoder(_verified(path, sha256), path)
    return loaded.fast


def compared_characters(tasks: int) -> int:
    """Return how many characters each of so many tasks is to compare."""
    return max(_LEAST_CHARACTERS, min(_MOST_CHARACTERS, _CHARACTERS_OF_ALL // max(1, tasks)))


class SampleCheck:
    """Compares a sample of a task's documents with what the `tokenizers` library makes of them."""

    def __init__(self, encoder: Encoder, library: Tokenizer, most_characters: int) -> None:
        self._encoder = encoder
        self._library = library
        self._characters_left = most_characters
        self._seen = 0
        self.documents = 0

    def compare(self, ids: pa.Array, texts: pa.Array, encoded: Encoded, hashes: Sequence[int]) -> None:
        """Compare the sampled documents of a batch; raise WebtextError, by document and position, for another id."""
        for row, hash in enumerate(hashes):
            self._seen += 1
            if (self._seen <= _FIRST_DOCUMENTS or hash % _SAMPLED_ONE_IN == 0) and self._characters_left > 0:
                ours = encoded.ids[encoded.starts[row] : encoded.starts[row + 1]]
                self._compare_one(ids[row].as_py(), texts[row].as_py(), ours)

    def _compare_one(self, id: str, text: str, ours: np.ndarray) -> None:
        if len(text) > _COMPARED_CHARACTERS:
            text = text[:_COMPARED_CHARACTERS]
            ours = self._encoder.encode(pa.array([text], pa.string())).ids
        self._characters_left -= len(text)
        self.documents += 1
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=False)
        theirs = np.array(encoding.ids, np.uint32)
        if not np.array_equal(ours, theirs):
            raise WebtextError(_difference(id, ours, theirs))


def _difference(id: str, ours: np.ndarray, theirs: np.ndarray) -> str:
    shorter = min(len(ours), len(theirs))
    unequal = np.flatnonzero(ours[:shorter] != theirs[:shorter])
    position = int(unequal[0]) if len(unequal) else shorter
    here, there = (int(each[position]) if position < len(each) else "no token" for each in (ours, theirs))
    return (
        f"document {id}: gigatoken has {here} as token {position}, tokenizers has {there}; "
        "nothing it encoded is used: run again with --engine tokenizers --overwrite"
    )


def _equal(one: Encoded, other: Encoded) -> bool:
    return np.array_equal(one.ids, other.ids) and np.array_equal(one.starts, other.starts)


def _verified(path: str, sha256: str) -> bytes:
    data = storage.read_bytes(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(f"{path}: has changed while documents were encoded; run `webtext tokenize` again")
    return data

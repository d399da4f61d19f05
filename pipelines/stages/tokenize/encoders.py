"""The encoders of documents: gigatoken, checked on a sample against `tokenizers`, or `tokenizers` itself."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from pipelines.errors import InputError, WebtextError
from pipelines.tokenizers.encoding import USE_TOKENIZERS, Encoded, Encoder, FastEncoder, LibraryEncoder
from pipelines.tokenizers.formats import END_OF_TEXT, load_document_tokenizer

# The sample of each shard: its first documents, then one in 200, up to a limit of characters: a million per run of 5 to
# 50 shards. `tokenizers` takes a hundred times as long per character as gigatoken.
_FIRST_DOCUMENTS = 3
_SAMPLED_ONE_IN = 200
_MAX_CHARACTERS, _MIN_CHARACTERS, _CHARACTERS_PER_RUN = 200_000, 20_000, 1_000_000
# Of a longer document only the beginning is compared.
_CHARACTERS_PER_DOCUMENT = 40_000

# Where encoders may disagree: spaces, contractions, digits, scripts, text that spells special tokens.
_PROBES = (
    "Hello world, it's 2019: we'll see   what\n\n  they'd SAID\t\r\n",
    "naïve Ünïcode 漢字かな 🙂👩‍👩‍👧 ſ’s ½ ² ١٢٣ \u00a0\u2003x\u0000\u0001 e\u0301",
    f"a{END_OF_TEXT}b <|im_start|> <s></s> [UNK] [MASK]",
    " ",
    "  leading and trailing  ",
    "x" * 300 + "!" * 300 + "0" * 300,
)


class TokenizerFile(NamedTuple):
    """The bytes of a `tokenizer.json`, and the path that error messages name."""

    data: bytes
    source: str


@functools.lru_cache(maxsize=1)
def load_library(tokenizer: TokenizerFile) -> Tokenizer:
    """Return the tokenizer as the `tokenizers` library loads it, once per process."""
    return load_document_tokenizer(tokenizer.data, tokenizer.source)


@functools.lru_cache(maxsize=1)
def _load_gigatoken(tokenizer: TokenizerFile) -> FastEncoder:
    return FastEncoder(tokenizer.data, tokenizer.source)


def load_encoder(tokenizer: TokenizerFile, engine: str) -> Encoder:
    """Return the encoder of an engine, loaded once per process."""
    return LibraryEncoder(load_library(tokenizer)) if engine == "tokenizers" else _load_gigatoken(tokenizer)


def find_lossy_text(library: Tokenizer) -> str | None:
    """Return a text that cannot be decoded from its ids, or None if all probes survive, as with GPT-2's tokenizer."""
    for text in _PROBES:
        ids = library.encode(text, add_special_tokens=False).ids
        if library.decode(ids, skip_special_tokens=False) != text:
            return text
    return None


def choose_engine(tokenizer: TokenizerFile, engine: str) -> tuple[str, str | None]:
    """Return the engine to encode with, and a note for the user if `auto` selected the slower one.

    `auto` selects gigatoken if it supports the tokenizer and gives the ids of `tokenizers` for a few texts. Raises
    InputError if `gigatoken` was requested and fails this.
    """
    library = load_encoder(tokenizer, "tokenizers")
    if engine == "tokenizers":
        return engine, None
    try:
        gigatoken = load_encoder(tokenizer, "gigatoken")
        probes = pa.array(_PROBES, pa.string())
        ids, expected = gigatoken.encode(probes), library.encode(probes)
        if not (np.array_equal(ids.ids, expected.ids) and np.array_equal(ids.starts, expected.starts)):
            raise InputError(f"{tokenizer.source}: gigatoken gives other ids than tokenizers{USE_TOKENIZERS}")
    except InputError as error:
        if engine == "gigatoken":
            raise
        reason = str(error).removesuffix(USE_TOKENIZERS)
        return "tokenizers", f"encoding with tokenizers, which is slower: {reason}"
    return "gigatoken", None


def sample_characters(shards: int) -> int:
    """Return how many characters to compare per shard."""
    return max(_MIN_CHARACTERS, min(_MAX_CHARACTERS, _CHARACTERS_PER_RUN // max(1, shards)))


class SampleCheck:
    """Compares a sample of a shard's documents with the ids of the `tokenizers` library; `documents` counts them."""

    def __init__(self, encoder: Encoder, library: Tokenizer, shards: int) -> None:
        self._encoder = encoder
        self._library = library
        self._characters_left = sample_characters(shards)
        self._seen = 0
        self.documents = 0

    def compare(self, batch: pa.RecordBatch, encoded: Encoded, hashes: npt.NDArray[np.uint64]) -> None:
        """Compare the sampled documents of a batch; raise WebtextError naming the document and the first other id."""
        for row, hash in enumerate(hashes.tolist()):
            self._seen += 1
            if (self._seen <= _FIRST_DOCUMENTS or hash % _SAMPLED_ONE_IN == 0) and self._characters_left > 0:
                ids = encoded.ids[encoded.starts[row] : encoded.starts[row + 1]]
                self._compare_document(batch.column("id")[row].as_py(), batch.column("text")[row].as_py(), ids)

    def _compare_document(self, id: str, text: str, ids: npt.NDArray[np.uint32]) -> None:
        if len(text) > _CHARACTERS_PER_DOCUMENT:
            text = text[:_CHARACTERS_PER_DOCUMENT]
            ids = self._encoder.encode(pa.array([text], pa.string())).ids
        self._characters_left -= len(text)
        self.documents += 1
        [encoding] = self._library.encode_batch_fast([text], add_special_tokens=False)
        if ids.tolist() != encoding.ids:
            raise WebtextError(_describe_difference(id, ids.tolist(), encoding.ids))


def _describe_difference(id: str, ids: list[int], expected: list[int]) -> str:
    shorter = min(len(ids), len(expected))
    position = next((place for place in range(shorter) if ids[place] != expected[place]), shorter)
    token, other = (tokens[position] if position < len(tokens) else "no token" for tokens in (ids, expected))
    return (
        f"document {id}: gigatoken has {token} as token {position}, tokenizers has {other}; "
        "re-run with --engine tokenizers --overwrite, which deletes what gigatoken encoded in this run"
    )

"""Encodes columns of text with gigatoken, without a Python object per text or token, or with `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from pipelines.algorithms.columns import text_arrays
from pipelines.engine import machine
from pipelines.errors import InputError
from pipelines.records.text_columns import slices_within
from pipelines.tokenizers.formats import END_OF_TEXT, load_document_tokenizer

USE_TOKENIZERS = "; use --engine tokenizers"

# gigatoken caches every word and never evicts one: at most a tenth of a byte per byte of text for words that repeat, 14
# for words that do not. So it is reloaded once the process has grown by this much, checked after each slice of text.
_MAX_GROWTH_BYTES = 400_000_000
_SLICE_BYTES = 16 << 20
# Where the system does not report memory, it is reloaded after this many texts; a text counts once per 256 bytes.
_MAX_TEXTS = 4_000_000
_BYTES_PER_COUNT = 256

# `tokenizers` encodes texts together up to this many bytes: an encoding takes some hundred bytes per token.
_GROUP_BYTES = 1_000_000


class Encoded(NamedTuple):
    """The ids of texts one after the other: those of text i are `ids[starts[i]:starts[i + 1]]`."""

    ids: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.int64]


class FastEncoder:
    """A `tokenizer.json` loaded by gigatoken; special tokens spelled out in a text are encoded as text.

    Memory is bounded: the cache is cleared when the process has grown by 400 MB, or after `max_texts` texts if given
    (long ones count several times). Raises InputError, naming `source`, if gigatoken is not installed, does not support
    the tokenizer, or would ignore added tokens that are not special.
    """

    def __init__(self, tokenizer_json: bytes, source: str, *, max_texts: int | None = None) -> None:
        settings = json.loads(tokenizer_json)
        _check_added_tokens(settings.get("added_tokens") or (), source)
        # Added tokens are searched for in the text; those that are part of the vocabulary stay there.
        settings["added_tokens"] = []
        self._settings = json.dumps(settings)
        self._source = source
        self._max_texts = max_texts
        self._load()

    def encode(self, texts: pa.Array, *, threads: bool = False) -> Encoded:
        """Return the ids of a column of strings without nulls; with `threads`, on all cores."""
        slices = slices_within(text_arrays(texts)[1], _SLICE_BYTES)
        parts = [self._encode(texts.slice(first, last - first), threads) for first, last in slices]
        if not parts:
            return Encoded(np.empty(0, np.uint32), np.zeros(1, np.int64))
        if len(parts) == 1:
            return parts[0]
        ends = np.cumsum([0, *(len(part.ids) for part in parts)])
        starts = [part.starts[:-1] + end for part, end in zip(parts, ends, strict=False)]
        return Encoded(np.concatenate([part.ids for part in parts]), np.concatenate([*starts, ends[-1:]]))

    def _encode(self, texts: pa.Array, threads: bool) -> Encoded:
        import awkward as ak

        if self._is_cache_full():
            self._load()
        characters, starts = text_arrays(texts)
        layout = ak.contents.ListOffsetArray(
            ak.index.Index64(starts.astype(np.int64) - starts[0]),
            ak.contents.NumpyArray(characters[starts[0] : starts[-1]], parameters={"__array__": "byte"}),
            parameters={"__array__": "bytestring"},
        )
        self._texts += max(len(texts), int(starts[-1] - starts[0]) // _BYTES_PER_COUNT)
        encoded = self._tokenizer.encode_batch(ak.Array(layout), parallel=threads).layout
        ids = np.asarray(encoded.content.data)
        return Encoded(ids, np.asarray(encoded.offsets.data).astype(np.int64, copy=False))

    def _is_cache_full(self) -> bool:
        resident = machine.resident_bytes()
        if resident is None or self._resident_after_load is None:
            return self._texts > (self._max_texts or _MAX_TEXTS)
        has_grown = resident - self._resident_after_load > _MAX_GROWTH_BYTES
        return has_grown or (self._max_texts is not None and self._texts > self._max_texts)

    def _load(self) -> None:
        self._tokenizer: Any = None  # frees the old one first
        load = import_engine()
        if load is None:
            raise InputError(f"{self._source}: gigatoken is not installed{USE_TOKENIZERS}")
        try:
            self._tokenizer = load(self._settings)
        except Exception as error:  # gigatoken raises nothing narrower
            reason = str(error).split("\n", 1)[0]
            raise InputError(f"{self._source}: gigatoken cannot load it ({reason}){USE_TOKENIZERS}") from error
        self._texts = 0
        # Memory of the old one must not count as part of the process: the limit would rise with each reload.
        machine.release_freed_memory()
        self._resident_after_load = machine.resident_bytes()


class LibraryEncoder:
    """The `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: pa.Array, *, threads: bool = False) -> Encoded:
        """Return the ids of a column of strings without nulls; the library decides on the number of threads."""
        ids = [np.empty(0, np.uint32)]
        for first, last in slices_within(text_arrays(texts)[1], _GROUP_BYTES):
            group = texts.slice(first, last - first).to_pylist()
            encodings = self._tokenizer.encode_batch_fast(group, add_special_tokens=False)
            ids += [np.array(encoding.ids, np.uint32) for encoding in encodings]
        # The first is not a text: a column may be empty.
        return Encoded(np.concatenate(ids), np.cumsum([len(part) for part in ids], dtype=np.int64))


Encoder = FastEncoder | LibraryEncoder


def import_engine() -> Callable[[str], Any] | None:
    """Return gigatoken's loader of a `tokenizer.json`, or None if it is not installed."""
    try:
        import awkward  # noqa: F401  (gigatoken's type for columns of text)
        from gigatoken.gigatoken_rs import load_hf_json
    except ImportError:
        return None
    return cast(Callable[[str], Any], load_hf_json)


def quickest_encoder(tokenizer_json: bytes, source: str, *, max_texts: int | None = None) -> Encoder:
    """Return the encoder of gigatoken if it supports a tokenizer, else that of `tokenizers`.

    Raises InputError if neither can load it.
    """
    try:
        return FastEncoder(tokenizer_json, source, max_texts=max_texts)
    except InputError:
        return LibraryEncoder(load_document_tokenizer(tokenizer_json, source))


def _check_added_tokens(added: Any, source: str) -> None:
    """Raise InputError for added tokens that are not special: `tokenizers` searches for them in every text."""
    names = [token["content"] for token in added if not token.get("special") and token["content"] != END_OF_TEXT]
    if names:
        examples = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3:,} more" if names[3:] else "")
        raise InputError(
            f"{source}: gigatoken would ignore added tokens that are not special: {examples}{USE_TOKENIZERS}"
        )

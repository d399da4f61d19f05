"""Encodes columns of text: by gigatoken, no Python object for a text or a token; or by the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from pipelines.core import machine
from pipelines.core.errors import InputError
from pipelines.core.text_columns import text_arrays
from pipelines.tokenizers.formats import END_OF_TEXT, parse_tokenizer

WAY_OUT = "; use --engine tokenizers"

# gigatoken remembers every word that it has met and never forgets one: of words that repeat, a tenth of a byte or less
# for each byte of text, of words that do not, 14. So it is loaded anew when the process has grown by so much.
_MOST_GROWTH_BYTES = 400_000_000
# Looked at after each slice of so much text.
_SLICE_BYTES = 16 << 20
# Where the system does not tell how large the process is: after so many texts, one for each 256 of their bytes.
_FORGETS_AFTER = 4_000_000
_BYTES_OF_ONE = 256

# Texts are encoded together by `tokenizers` up to this many characters: an encoding takes some hundred bytes a token.
_TOGETHER_CHARACTERS = 1_000_000


class Encoded(NamedTuple):
    """The ids of texts one after the other: those of text i are `ids[starts[i]:starts[i + 1]]`."""

    ids: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.int64]


class Encoder(Protocol):
    """Turns a column of texts into ids."""

    def encode(self, texts: pa.Array, *, threads: bool = False) -> Encoded:
        """Return the ids of a column of strings without nulls; with `threads`, by all cores."""


class FastEncoder:
    """A `tokenizer.json` loaded by gigatoken; every text is plain text to it, whatever special tokens it spells.

    Its memory is bounded: what it remembers of words is let go of when the process has grown by 400 MB, and after
    `forgets_after` texts where that is given, long ones counted more. Raises InputError, naming `source`, where
    gigatoken is not installed, does not know this kind of tokenizer, or would pass over tokens that are not special.
    """

    def __init__(self, tokenizer_json: bytes, source: str, *, forgets_after: int | None = None) -> None:
        settings = json.loads(tokenizer_json)
        _require_special(settings.get("added_tokens") or (), source)
        # Added tokens are looked for in the text; those that are part of the vocabulary stay there.
        settings["added_tokens"] = []
        self._settings = json.dumps(settings)
        self._source = source
        self._forgets_after = forgets_after
        self._load()

    def encode(self, texts: pa.Array, *, threads: bool = False) -> Encoded:
        """See `Encoder.encode`."""
        parts = [self._encode(each, threads) for each in _slices(texts)]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _encode(self, texts: pa.Array, threads: bool) -> Encoded:
        import awkward as ak

        if self._remembers_too_much():
            self._load()
        characters, starts = text_arrays(texts)
        layout = ak.contents.ListOffsetArray(
            ak.index.Index64(starts.astype(np.int64) - starts[0]),
            ak.contents.NumpyArray(characters[starts[0] : starts[-1]], parameters={"__array__": "byte"}),
            parameters={"__array__": "bytestring"},
        )
        self._met += max(len(texts), int(starts[-1] - starts[0]) // _BYTES_OF_ONE)
        encoded = self._tokenizer.encode_batch(ak.Array(layout), parallel=threads).layout
        ids = np.asarray(encoded.content.data)
        return Encoded(ids, np.asarray(encoded.offsets.data).astype(np.int64, copy=False))

    def _remembers_too_much(self) -> bool:
        if self._forgets_after is not None and self._met > self._forgets_after:
            return True
        resident = machine.resident_bytes()
        if resident is None or self._resident_when_loaded is None:
            return self._met > _FORGETS_AFTER
        return resident - self._resident_when_loaded > _MOST_GROWTH_BYTES

    def _load(self) -> None:
        self._tokenizer: Any = None  # lets go of the old one first
        load = import_engine()
        if load is None:
            raise InputError(f"{self._source}: gigatoken is not installed{WAY_OUT}")
        try:
            self._tokenizer = load(self._settings)
        except Exception as error:  # gigatoken raises nothing narrower
            reason = str(error).split("\n", 1)[0]
            raise InputError(f"{self._source}: gigatoken cannot load it ({reason}){WAY_OUT}") from error
        self._met = 0
        # What the old one had must not count as what the process has without the new: the limit would rise each time.
        machine.release_freed_memory()
        self._resident_when_loaded = machine.resident_bytes()


class LibraryEncoder:
    """The `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: pa.Array, *, threads: bool = False) -> Encoded:
        """See `Encoder.encode`; the library uses as many threads as its environment lets it."""
        ids: list[npt.NDArray[np.uint32]] = []
        for group in _groups(texts.to_pylist()):
            encodings = self._tokenizer.encode_batch_fast(group, add_special_tokens=False)
            ids += [np.array(encoding.ids, np.uint32) for encoding in encodings]
        starts = np.cumsum([0, *(len(each) for each in ids)], dtype=np.int64)
        return Encoded(np.concatenate([np.empty(0, np.uint32), *ids]), starts)


def import_engine() -> Callable[[str], Any] | None:
    """Return what loads a `tokenizer.json` in gigatoken; None where that is not installed."""
    try:
        import awkward  # noqa: F401  (what texts are handed over in)
        from gigatoken.gigatoken_rs import load_hf_json
    except ImportError:
        return None
    load: Callable[[str], Any] = load_hf_json
    return load


def quickest_encoder(tokenizer_json: bytes, source: str, *, forgets_after: int | None = None) -> Encoder:
    """Return gigatoken's encoder where that can load a tokenizer, and that of `tokenizers` where it cannot.

    Raises InputError where neither can.
    """
    try:
        return FastEncoder(tokenizer_json, source, forgets_after=forgets_after)
    except InputError:
        return LibraryEncoder(parse_tokenizer(tokenizer_json, source))


def _require_special(added: Any, source: str) -> None:
    """Raise InputError for added tokens that `tokenizers` looks for in a text though nobody asks for special ones."""
    names = [each["content"] for each in added if not each.get("special") and each["content"] != END_OF_TEXT]
    if names:
        shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3:,} more" if names[3:] else "")
        raise InputError(f"{source}: gigatoken would pass over added tokens that are not special: {shown}{WAY_OUT}")


def _slices(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield a column in parts of at most 16 MiB of text or one text, at least one part."""
    _, starts = text_arrays(texts)
    first = 0
    while first < len(texts) or not first:
        last = int(np.searchsorted(starts, int(starts[first]) + _SLICE_BYTES, side="right")) - 1
        last = min(len(texts), max(first + 1, last))
        yield texts.slice(first, last - first)
        first = max(1, last)


def _joined(parts: list[Encoded]) -> Encoded:
    ends = np.cumsum([0, *(len(each.ids) for each in parts)])
    starts = [each.starts[:-1] + end for each, end in zip(parts, ends, strict=False)]
    return Encoded(np.concatenate([each.ids for each in parts]), np.concatenate([*starts, ends[-1:]]))


def _groups(texts: list[str]) -> list[list[str]]:
    """Return texts in groups of at most about a million characters."""
    groups: list[list[str]] = []
    characters = 0
    for text in texts:
        if not groups or characters + len(text) > _TOGETHER_CHARACTERS:
            groups.append([])
            characters = 0
        groups[-1].append(text)
        characters += len(text)
    return groups

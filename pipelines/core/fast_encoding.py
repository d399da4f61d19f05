"""Encodes columns of text by gigatoken: no Python object for a text or a token."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core.errors import InputError

# gigatoken remembers every word that it has met, 50 to 100 bytes each, and never forgets one; so it is loaded anew
# after so many texts, where a text counts once for each 256 of its bytes: that is after 1 GB of prose.
_FORGETS_AFTER = 4_000_000
_BYTES_OF_ONE = 256


class Encoded(NamedTuple):
    """The ids of texts one after the other: those of text i are `ids[starts[i]:starts[i + 1]]`."""

    ids: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.int64]


class FastEncoder:
    """A `tokenizer.json` loaded by gigatoken; every text is plain text to it, whatever special tokens it spells.

    Its memory is bounded: what it remembers of words is let go of after `forgets_after` texts, long ones counted more.
    Raises InputError, naming `source`, where gigatoken does not know this kind of tokenizer.
    """

    def __init__(self, tokenizer_json: bytes, source: str, *, forgets_after: int = _FORGETS_AFTER) -> None:
        settings = json.loads(tokenizer_json)
        # Added tokens are looked for in the text; those that are part of the vocabulary stay there.
        settings["added_tokens"] = []
        self._settings = json.dumps(settings)
        self._source = source
        self._forgets_after = forgets_after
        self._load()

    def encode(self, texts: pa.Array, *, threads: bool = False) -> Encoded:
        """Return the ids of a column of strings without nulls; with `threads`, by all cores."""
        import awkward as ak

        if self._met > self._forgets_after:
            self._load()
        starts = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
        data = texts.buffers()[2]
        characters = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        layout = ak.contents.ListOffsetArray(
            ak.index.Index64(starts.astype(np.int64) - starts[0]),
            ak.contents.NumpyArray(characters[starts[0] : starts[-1]], parameters={"__array__": "byte"}),
            parameters={"__array__": "bytestring"},
        )
        self._met += max(len(texts), int(starts[-1] - starts[0]) // _BYTES_OF_ONE)
        encoded = self._tokenizer.encode_batch(ak.Array(layout), parallel=threads).layout
        ids = np.asarray(encoded.content.data)
        return Encoded(ids, np.asarray(encoded.offsets.data).astype(np.int64, copy=False))

    def _load(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        try:
            self._tokenizer: Any = load_hf_json(self._settings)
        except Exception as error:  # gigatoken raises nothing narrower
            reason = str(error).split("\n", 1)[0]
            raise InputError(f"{self._source}: gigatoken cannot load it ({reason}); use --engine tokenizers") from error
        self._met = 0

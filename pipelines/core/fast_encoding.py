"""Encodes columns of text by gigatoken: no Python object for a text or a token."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core.errors import InputError


class Encoded(NamedTuple):
    """The ids of texts one after the other: those of text i are `ids[starts[i]:starts[i + 1]]`."""

    ids: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.int64]


class FastEncoder:
    """A `tokenizer.json` loaded by gigatoken; every text is plain text to it, whatever special tokens it spells.

    Raises InputError, naming `source`, where gigatoken does not know this kind of tokenizer.
    """

    def __init__(self, tokenizer_json: bytes, source: str) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        settings = json.loads(tokenizer_json)
        # Added tokens are looked for in the text; those that are part of the vocabulary stay there.
        settings["added_tokens"] = []
        try:
            self._tokenizer: Any = load_hf_json(json.dumps(settings))
        except Exception as error:  # gigatoken raises nothing narrower
            reason = str(error).split("\n", 1)[0]
            raise InputError(f"{source}: gigatoken cannot load it ({reason}); use --engine tokenizers") from error

    def encode(self, texts: pa.Array, *, threads: bool = False) -> Encoded:
        """Return the ids of a column of strings without nulls; with `threads`, by all cores."""
        import awkward as ak

        starts = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
        data = texts.buffers()[2]
        characters = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        layout = ak.contents.ListOffsetArray(
            ak.index.Index64(starts.astype(np.int64) - starts[0]),
            ak.contents.NumpyArray(characters[starts[0] : starts[-1]], parameters={"__array__": "byte"}),
            parameters={"__array__": "bytestring"},
        )
        encoded = self._tokenizer.encode_batch(ak.Array(layout), parallel=threads).layout
        ids = np.asarray(encoded.content.data)
        return Encoded(ids, np.asarray(encoded.offsets.data).astype(np.int64, copy=False))

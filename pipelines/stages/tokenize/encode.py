"""The first phase: encode the documents of each input shard into sorted runs.

The encoder is gigatoken, checked on a sample against `tokenizers`, or `tokenizers` itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from pipelines import progress
from pipelines.engine.machine import limit_worker_threads, retain_freed_memory
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError, WebtextError
from pipelines.records import inputs, shards
from pipelines.records.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.records.text_columns import urls_of
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.runs import EncodedDocuments, RunWriter, content_hashes
from pipelines.stages.tokenize.token_shards import TokenFormat
from pipelines.tokenizers.encoding import USE_TOKENIZERS, Encoded, Encoder, FastEncoder, LibraryEncoder, import_engine
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


@dataclasses.dataclass(frozen=True)
class EncodeContext:
    """What all shards of the input share; `engine` is the one chosen for this run, `shards` their number."""

    config: TokenizeConfig
    tokenizer: TokenizerFile
    end_of_text: int
    engine: str
    form: TokenFormat
    shards: int
    output: str


def prepare_worker() -> None:
    """Import what the first task needs in a new worker, while the main process still inspects the input."""
    limit_worker_threads()
    retain_freed_memory()
    import_engine()


def encode_shard(shard: inputs.DocumentShard, context: EncodeContext) -> TaskResult:
    """Encode the documents of a shard into runs, and list those without text.

    Raises WebtextError if the `tokenizers` library gives a sampled document other ids.
    """
    limit_worker_threads()
    retain_freed_memory()
    encoder = load_encoder(context.tokenizer, context.engine)
    check = SampleCheck(encoder, load_library(context.tokenizer), context.shards)
    config = context.config
    runs = RunWriter(context.output, shard.index, end_of_text=context.end_of_text, shuffled=config.shuffle)
    documents = 0
    with shards.write_shard(context.output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped:
        drops = Drops(dropped.write)
        for batch in inputs.read_documents(shard, drops):
            if not batch.num_rows:
                continue
            # The only shard of an input uses all cores.
            encoded = encoder.encode(batch.column("text"), threads=context.shards == 1)
            encoded_documents = _encoded_documents(shard, batch, encoded=encoded, position=documents, context=context)
            if context.engine != "tokenizers":
                check.compare(batch, encoded, encoded_documents.content)
            runs.add(encoded_documents)
            documents += batch.num_rows
            progress.advance(batch.num_rows)
    files = runs.finish()
    counts = {**runs.counts, "documents_compared_with_tokenizers": check.documents}
    return drops.task_result(documents, (*files, dropped.entry), counts)


def _encoded_documents(
    shard: inputs.DocumentShard, batch: pa.RecordBatch, encoded: Encoded, position: int, context: EncodeContext
) -> EncodedDocuments:
    config = context.config
    tokens = encoded.ids.astype(context.form.little_endian)
    keys = document_keys(batch, shard)
    order: npt.NDArray[np.uint64]
    if config.shuffle:
        # By the hash of the document; the hash of its cluster would put near-duplicates next to each other.
        order = hash_keys(keys, f"shuffle-{config.seed}")
    else:
        order = np.arange(position, position + len(keys), dtype=np.uint64)
    return EncodedDocuments(
        ids=batch.column("id"),
        urls=pa.array(urls_of(batch), pa.string()),
        split=held_out_mask(split_keys(batch, keys), config.held_out).astype(np.uint8),
        order=order,
        content=content_hashes(tokens, encoded.starts[:-1], encoded.starts[1:]),
        tokens=tokens,
        starts=encoded.starts,
    )


@functools.lru_cache(maxsize=1)
def load_library(tokenizer: TokenizerFile) -> Tokenizer:
    """Return the tokenizer as the `tokenizers` library loads it, once per process."""
    return load_document_tokenizer(tokenizer.data, tokenizer.source)


@functools.lru_cache(maxsize=2)
def load_encoder(tokenizer: TokenizerFile, engine: str) -> Encoder:
    """Return the encoder of an engine, loaded once per process."""
    if engine == "tokenizers":
        return LibraryEncoder(load_library(tokenizer))
    return FastEncoder(tokenizer.data, tokenizer.source)


def find_lossy_text(library: Tokenizer) -> str | None:
    """Return a text that cannot be decoded from its ids, or None if all probes survive, as with GPT-2's tokenizer."""
    for text in _PROBES:
        ids = library.encode(text, add_special_tokens=False).ids
        if library.decode(ids, skip_special_tokens=False) != text:
            return text
    return None


def choose_engine(tokenizer: TokenizerFile, engine: str, note: Callable[[str], None]) -> str:
    """Return the engine to encode with; `note` gets a line if `auto` selected the slower one.

    `auto` selects gigatoken if it supports the tokenizer and gives the ids of `tokenizers` for a few texts. Raises
    InputError if `gigatoken` was requested and fails this.
    """
    library = load_encoder(tokenizer, "tokenizers")
    if engine == "tokenizers":
        return engine
    try:
        gigatoken = load_encoder(tokenizer, "gigatoken")
        probes = pa.array(_PROBES, pa.string())
        ids, expected = gigatoken.encode(probes), library.encode(probes)
        if not (np.array_equal(ids.ids, expected.ids) and np.array_equal(ids.starts, expected.starts)):
            raise InputError(f"{tokenizer.source}: gigatoken gives other ids than tokenizers{USE_TOKENIZERS}")
    except InputError as error:
        if engine == "gigatoken":
            raise
        note(f"encoding with tokenizers, which is slower: {str(error).removesuffix(USE_TOKENIZERS)}")
        return "tokenizers"
    return "gigatoken"


class SampleCheck:
    """Compares a sample of a shard's documents with the ids of the `tokenizers` library; `documents` counts them.

    The sample has about `characters_left` characters.
    """

    def __init__(self, encoder: Encoder, library: Tokenizer, shards: int) -> None:
        self._encoder = encoder
        self._library = library
        self.characters_left = max(_MIN_CHARACTERS, min(_MAX_CHARACTERS, _CHARACTERS_PER_RUN // shards))
        self._seen = 0
        self.documents = 0

    def compare(self, batch: pa.RecordBatch, encoded: Encoded, hashes: npt.NDArray[np.uint64]) -> None:
        """Compare the sampled documents of a batch; raise WebtextError naming the document and the first other id."""
        for row, hash in enumerate(hashes.tolist()):
            self._seen += 1
            if (self._seen <= _FIRST_DOCUMENTS or hash % _SAMPLED_ONE_IN == 0) and self.characters_left > 0:
                ids = encoded.ids[encoded.starts[row] : encoded.starts[row + 1]]
                self._compare_document(batch.column("id")[row].as_py(), batch.column("text")[row].as_py(), ids)

    def _compare_document(self, id: str, text: str, ids: npt.NDArray[np.uint32]) -> None:
        if len(text) > _CHARACTERS_PER_DOCUMENT:
            text = text[:_CHARACTERS_PER_DOCUMENT]
            ids = self._encoder.encode(pa.array([text], pa.string())).ids
        self.characters_left -= len(text)
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
        "re-run with --engine tokenizers --overwrite, which discards what gigatoken encoded"
    )

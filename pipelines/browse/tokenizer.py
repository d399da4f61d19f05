"""The tokenizer: its entries with their counts in the token shards, and documents in which an entry occurs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tokenizers import Tokenizer

from pipelines import storage
from pipelines.algorithms.bpe.byte_level import token_bytes
from pipelines.algorithms.bpe.suspicious_tokens import shown
from pipelines.browse.site import Site, number_of, site_of
from pipelines.errors import InputError, UsageError
from pipelines.model.training.data import TOKENS
from pipelines.records import inputs
from pipelines.stages.tokenize.trace import TokenShards, TracedToken
from pipelines.tokenizers.formats import TOKENIZER, load_document_tokenizer, vocabulary_size

_ROWS, _EXAMPLES, _LONGER = 100, 10, 40
# Shards are read in chunks. So many are counted, and an entry is searched for so long.
_CHUNK_TOKENS, _COUNTED_CHUNKS, _SEARCH_S = 1 << 20, 64, 3.0


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry: its text with visible spaces and bytes, and its size in bytes.

    One that a merge made has the rank of the merge, from 0, and the ids of its two parts. `count` is how often it
    occurs in the tokens that were counted, None without token shards.
    """

    id: int
    text: str
    bytes: int
    rank: int | None
    parts: tuple[int, ...]
    count: int | None


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and its entries by id; `counted` is how many tokens of the shards, if there are any, were counted."""

    library: Tokenizer
    entries: dict[int, Entry]
    shards: TokenShards | None
    counted: int


_SORTS: dict[str, tuple[str, Callable[[Entry], int]]] = {
    "": ("by id", lambda entry: entry.id),
    "count": ("most frequent first", lambda entry: -(entry.count or 0)),
    "rare": ("rarest first", lambda entry: entry.count or 0),
    "length": ("longest first", lambda entry: -entry.bytes),
}


def read_vocabulary(site: Site) -> Vocabulary:
    """Return the tokenizer of the token shards, or else that of train-bpe; raise InputError if there is none."""
    with site.tables() as tables:
        folder = tables.stages.get("tokenize") or tables.stages.get("train-bpe")
        version = site.version
    if folder is None or not folder.files(TOKENIZER):
        raise InputError(f"{site.name}: has no tokenizer yet; `webtext train-bpe` or `webtext tokenize` writes one")
    return _read_vocabulary(folder.path, version)


@functools.lru_cache(maxsize=1)
def _read_vocabulary(path: str, _version: object) -> Vocabulary:
    folder = inputs.open_stage(path, ("tokenize", "train-bpe"))
    file = folder.file(TOKENIZER).path
    data = storage.read_bytes(file)
    library, settings = load_document_tokenizer(data, file), json.loads(data)
    ids, added = library.get_vocab(), {token["content"] for token in settings["added_tokens"]}
    has_bytes = (settings.get("decoder") or {}).get("type") == "ByteLevel"
    merges: dict[str, tuple[int, tuple[int, ...]]] = {}
    for rank, merge in enumerate(settings["model"].get("merges") or ()):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        merges.setdefault("".join(parts), (rank, tuple(ids[part] for part in parts)))
    shards = TokenShards(folder) if folder.files(TOKENS) else None
    counts, counted = np.zeros(vocabulary_size(library), np.int64), 0
    for _, _, chunk in itertools.islice(_read_chunks(shards, seed=0), _COUNTED_CHUNKS) if shards else ():
        counts += np.bincount(chunk, minlength=len(counts))
        counted += len(chunk)
    entries = {}
    for name, id in sorted(ids.items(), key=lambda item: item[1]):
        text = token_bytes(name) if has_bytes and name not in added else name.encode()
        rank, parts = merges.get(name, (None, ()))
        entries[id] = Entry(id, shown(text), len(text), rank, parts, int(counts[id]) if shards else None)
    return Vocabulary(library, entries, shards, counted)


def find_documents(vocabulary: Vocabulary, entry: int, seed: int) -> tuple[list[TracedToken], int]:
    """Return tokens of an entry, each of another document, and how many tokens were read to find them.

    Reads the shards in random order, until there are ten documents or 3 seconds have passed.
    """
    assert vocabulary.shards is not None
    generator, found, tokens_read = random.Random(seed), dict[str, TracedToken](), 0
    end = time.monotonic() + _SEARCH_S
    for shard, start, chunk in _read_chunks(vocabulary.shards, seed):
        tokens_read += len(chunk)
        positions = (np.flatnonzero(chunk == entry) + start).tolist()
        chosen = sorted(generator.sample(positions, min(len(positions), _EXAMPLES)))
        for token in vocabulary.shards.trace(vocabulary.library, shard, chosen) if chosen else ():
            if token.id:  # that of a removed document is empty
                found.setdefault(token.id, token)
        if len(found) >= _EXAMPLES or time.monotonic() > end:
            break
    return list(found.values())[:_EXAMPLES], tokens_read


def _read_chunks(shards: TokenShards, seed: int) -> Iterator[tuple[dict[str, Any], int, Any]]:
    """Yield the shards in chunks in random order: the shard, the position of the first token, and the tokens."""
    chunks = [(shard, start) for shard in shards.shards for start in range(0, shard["tokens"], _CHUNK_TOKENS)]
    random.Random(seed).shuffle(chunks)
    for shard, start in chunks:
        yield shard, start, shards.read(shard["name"], start, start + _CHUNK_TOKENS)


def show_tokenizer(request: Request) -> Response:
    """Show a page of the entries that contain a text, or one entry."""
    site, id, start = site_of(request), number_of(request, "entry"), number_of(request, "after") or 0
    vocabulary = read_vocabulary(site)
    if id is not None:
        return site.render(request, "entry.html", vocabulary=vocabulary, **_describe_entry(vocabulary, id))
    sort, contains = request.query_params.get("sort", ""), request.query_params.get("contains", "")
    if sort not in _SORTS:
        raise UsageError(f"sort={sort}: is not an order of entries, which are {', '.join(filter(None, _SORTS))}")
    entries = [entry for entry in vocabulary.entries.values() if contains.replace(" ", "␣") in entry.text]
    entries.sort(key=_SORTS[sort][1])
    return site.render(
        request,
        "tokenizer.html",
        vocabulary=vocabulary,
        entries=entries[start : start + _ROWS],
        matches=len(entries),
        start=start,
        rows=_ROWS,
        sorts={name: label for name, (label, _) in _SORTS.items()},
    )


def show_documents(request: Request) -> Response:
    """Show documents in which an entry occurs, as a part of its page."""
    site, id, seed = site_of(request), number_of(request, "entry"), number_of(request, "seed") or 0
    vocabulary = read_vocabulary(site)
    entry = _describe_entry(vocabulary, id)["entry"]
    examples, tokens_read = find_documents(vocabulary, entry.id, seed) if vocabulary.shards else ([], 0)
    return site.render(
        request, "occurrences.html", entry=entry, vocabulary=vocabulary, examples=examples, read=tokens_read, seed=seed
    )


def _describe_entry(vocabulary: Vocabulary, id: int | None) -> dict[str, Any]:
    if id not in vocabulary.entries:
        raise UsageError(f"entry={id}: the tokenizer has the entries 0 to {max(vocabulary.entries):,}")
    longer = [entry for entry in vocabulary.entries.values() if id in entry.parts]
    return {"entry": vocabulary.entries[id], "longer": longer[:_LONGER], "longer_count": len(longer)}


NAVIGATION = (("/tokenizer", "Tokenizer"),)
ROUTES = (Route("/tokenizer", show_tokenizer), Route("/tokenizer/documents", show_documents))

"""The tokenizer: its entries with their counts in the token shards, and documents in which an entry occurs."""

from __future__ import annotations

import functools
import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines import storage
from pipelines.algorithms.bpe.byte_level import token_bytes
from pipelines.algorithms.bpe.suspicious_tokens import shown
from pipelines.browse.site import number_of, site_of
from pipelines.errors import InputError, UsageError
from pipelines.model.training.data import TOKENS, read_token_description
from pipelines.records.inputs import StageFolder, open_stage
from pipelines.stages.tokenize.trace import Json, TracedToken, read_tokens, trace_tokens
from pipelines.tokenizers.formats import TOKENIZER, load_document_tokenizer

_ROWS, _EXAMPLES = 100, 10
# Shards are read in chunks. So many are counted, and an entry is searched for so long.
_CHUNK_TOKENS, _COUNTED_CHUNKS, _SEARCH_S = 1 << 20, 32, 1.0
# The field and the factor of each order.
_SORTS = {"": ("id", 1), "most frequent": ("count", -1), "rarest": ("count", 1), "longest": ("bytes", -1)}


def show_tokenizer(request: Request) -> Response:
    """Show a page of the entries that contain a text, or one entry with documents in which it occurs."""
    site, id, start = site_of(request), number_of(request, "entry"), number_of(request, "offset") or 0
    with site.tables(request) as tables:
        stages, version = tables.stages, site.version
    folder = stages.get("tokenize") or stages.get("train-bpe")
    if folder is None or not folder.files(TOKENIZER):
        raise InputError(f"{site.name}: has no tokenizer yet; `webtext train-bpe` trains one")
    vocabulary = read_vocabulary(folder.path, version)
    if id is not None:
        if id not in vocabulary["entries"]:
            raise UsageError(f"entry={id}: the entries of the tokenizer are 0 to {max(vocabulary['entries']):,}")
        seed = number_of(request, "seed") or 0
        examples, tokens_read = find_documents(vocabulary, id, seed)
        state: dict[str, Any] = {"seed": seed, "examples": examples, "tokens_read": tokens_read}
        return site.render(request, "entry.html", vocabulary=vocabulary, entry=vocabulary["entries"][id], **state)
    sort, contains = request.query_params.get("sort", ""), request.query_params.get("contains", "")
    if sort not in _SORTS:
        raise UsageError(f"sort={sort}: is not an order of entries, which are {', '.join(filter(None, _SORTS))}")
    entries = [entry for entry in vocabulary["entries"].values() if contains.replace(" ", "␣") in entry["text"]]
    field, factor = _SORTS[sort]
    entries.sort(key=lambda entry: factor * (entry[field] or 0))
    state = {"entries": entries[start : start + _ROWS], "matches": len(entries), "start": start, "rows": _ROWS}
    return site.render(request, "tokenizer.html", vocabulary=vocabulary, sorts=_SORTS, stages=stages, **state)


@functools.lru_cache(maxsize=1)
def read_vocabulary(path: str, _version: object) -> dict[str, Any]:
    """Return the tokenizer in a folder of tokenize or train-bpe, with its `entries` by id.

    Their counts are those in so many (`counted`) of all `tokens` in the `shards`, None without shards.
    """
    folder = open_stage(path, ("tokenize", "train-bpe"))
    data = storage.read_bytes(file := folder.file(TOKENIZER).path)
    library, settings = load_document_tokenizer(data, file), json.loads(data)
    ids, added = library.get_vocab(), {token["content"] for token in settings["added_tokens"]}
    has_bytes = (settings.get("decoder") or {}).get("type") == "ByteLevel"
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in settings["model"].get("merges") or ()]
    ranks = {"".join(parts): rank for rank, parts in reversed([*enumerate(merges)])}
    shards = read_token_description(folder) if folder.files(TOKENS) else None
    counts, counted = np.zeros(max(ids.values()) + 1, np.int64), 0
    for _, _, chunk in itertools.islice(_read_chunks(folder, shards, seed=0), _COUNTED_CHUNKS):
        counts += np.bincount(chunk, minlength=len(counts))[: len(counts)]
        counted += len(chunk)
    entries = {}
    for name, id in sorted(ids.items(), key=lambda item: item[1]):
        text, rank = token_bytes(name) if has_bytes and name not in added else name.encode(), ranks.get(name)
        parts = tuple(ids[part] for part in merges[rank]) if rank is not None else ()
        entry = {"id": id, "text": shown(text), "bytes": len(text), "rank": rank, "parts": parts}
        entries[id] = entry | {"count": int(counts[id]) if shards else None}
    tokens = sum(split["tokens"] for split in shards["totals"].values()) if shards else 0
    counts_of = {"entries": entries, "tokens": tokens, "counted": counted}
    return {"folder": folder, "shards": shards, "library": library, **counts_of}


def find_documents(vocabulary: Json, entry: int, seed: int) -> tuple[list[TracedToken], int]:
    """Return tokens of an entry, each of another document, and how many tokens were read, for at most a second."""
    generator, found, tokens_read, end = random.Random(seed), dict[str, TracedToken](), 0, time.monotonic() + _SEARCH_S
    folder, shards, library = (vocabulary[name] for name in ("folder", "shards", "library"))
    for shard, start, chunk in _read_chunks(folder, shards, seed):
        tokens_read += len(chunk)
        positions = (np.flatnonzero(chunk == entry) + start).tolist()
        chosen = sorted(generator.sample(positions, min(len(positions), _EXAMPLES)))
        for token in trace_tokens(folder, shards, library, shard, chosen) if chosen else ():
            if token.id:  # that of a removed document is empty
                found.setdefault(token.id, token)
        if len(found) >= _EXAMPLES or time.monotonic() > end:
            break
    return list(found.values())[:_EXAMPLES], tokens_read


def _read_chunks(folder: StageFolder, description: Json | None, seed: int) -> Iterator[tuple[Json, int, Any]]:
    """Yield chunks of the shards in random order: the shard, the position of the first token, and the tokens."""
    shards = itertools.chain(*description["splits"].values()) if description else ()
    chunks = [(shard, start) for shard in shards for start in range(0, shard["tokens"], _CHUNK_TOKENS)]
    random.Random(seed).shuffle(chunks)
    for shard, start in chunks:
        stop = min(start + _CHUNK_TOKENS, shard["tokens"])
        yield shard, start, read_tokens(folder, description or {}, shard["name"], start, stop)


NAVIGATION = (("/tokenizer", "Tokenizer"),)
ROUTES = (Route("/tokenizer", show_tokenizer),)

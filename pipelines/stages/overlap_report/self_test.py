"""Plants copies of examples in documents of the corpus and sees which are found: what the audit can miss."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.ngrams.index import NgramIndex, scan, settings_of
from pipelines.algorithms.ngrams.words import Normalization, word_spans
from pipelines.core import inputs
from pipelines.core.drops import Drops
from pipelines.core.text_columns import text_arrays
from pipelines.stages.overlap_report.benchmarks import read_example_batches
from pipelines.stages.overlap_report.results import Audited
from pipelines.stages.overlap_report.scanning import corpus_batches

_EXAMPLES = 400
_DOCUMENTS = 100
_READ_SHARDS = 8
_DOCUMENT_CHARACTERS = 4000
_EXAMPLE_CHARACTERS = 20_000
# Together far below the 2 GiB that a column of text may have.
_SCANNED_TEXTS = 64
_WRAPPED_CHARACTERS = 40
_LINE = re.compile(rf"\S.{{0,{_WRAPPED_CHARACTERS - 1}}}(?!\S)|\S+")
# Runs of words between two edits: long enough for an 8-gram, too short for one of 13 words.
_EDITED_EVERY = 12


@dataclasses.dataclass(frozen=True)
class _Planted:
    """An example that is planted, or the beginning of a long one: its text, and the n-grams that it has."""

    text: str
    ids: npt.NDArray[np.int64]


def measure_recall(
    parts: Sequence[Audited], example: str, index: NgramIndex, sources: Sequence[inputs.DocumentShard], held_out: float
) -> dict[str, Any]:
    """Return how many planted copies are found, by kind of copy; an n-gram that its document held before is no find.

    `unplanted_found` are the n-grams that were neither in the document nor in what was planted there.
    """
    planted, too_short = _examples(parts, example, index)
    normalization = settings_of(index).normalization
    documents = _documents(sources, held_out)
    own = _ids(index, documents)
    kinds = []
    strangers = 0
    for kind, copy in _COPIES.items():
        hosts = [number % len(documents) for number in range(len(planted))]
        copies = [copy(each.text, normalization) for each in planted]
        texts = [_plant(documents[host], text, kind) for host, text in zip(hosts, copies, strict=True)]
        found = ngrams = ngrams_found = 0
        for host, each, of_copy, ids in zip(hosts, planted, _ids(index, copies), _ids(index, texts), strict=True):
            here = np.intersect1d(each.ids, ids)
            new = np.setdiff1d(here, own[host])
            found += len(new) > 0 or len(np.setdiff1d(each.ids, own[host])) == 0
            ngrams += len(each.ids)
            ngrams_found += len(here)
            # A copy in other lines may hold what its example does not, where n-grams stop at the end of a line.
            strangers += len(np.setdiff1d(ids, np.concatenate([each.ids, of_copy, own[host]])))
        kinds.append(_row(kind, len(planted), found, ngrams, ngrams_found))
    return {
        "examples": len(planted),
        "documents": len(documents),
        "kinds": kinds,
        "too_short": too_short,
        "unplanted_found": strangers,
    }


def _row(kind: str, planted: int, found: int, ngrams: int, ngrams_found: int) -> dict[str, Any]:
    recall = round(found / planted, 6) if planted else 0.0
    counts = {"planted": planted, "found": found, "recall": recall, "ngrams": ngrams, "ngrams_found": ngrams_found}
    return {"kind": kind, **counts}


def _examples(parts: Sequence[Audited], example: str, index: NgramIndex) -> tuple[list[_Planted], int]:
    """Return the examples of the lowest hashes that have an n-gram, and how many of as many had none."""
    chosen: list[tuple[bytes, int, int, str, bool]] = []
    for number, each in enumerate(parts):
        for batch in read_example_batches(each.benchmark, example):
            chosen += [
                (hashlib.sha256(text.encode()).digest(), number, batch.first + row, *_beginning(text))
                for row, text in enumerate(batch.texts.to_pylist())
            ]
            chosen = sorted(chosen)[:_EXAMPLES]
    planted = []
    for _, number, row, text, is_cut in chosen:
        words = parts[number].words
        ids = _ids(index, [text])[0] if is_cut else np.unique(parts[number].ids[words[row] : words[row + 1]])
        if (ids >= 0).any():
            planted.append(_Planted(text, np.asarray(ids[ids >= 0], np.int64)))
    return planted, len(chosen) - len(planted)


def _beginning(text: str) -> tuple[str, bool]:
    """Return as much of a text as is planted, and whether that is not all of it."""
    if len(text) <= _EXAMPLE_CHARACTERS:
        return text, False
    beginning = text[:_EXAMPLE_CHARACTERS]
    # Some scripts hardly have spaces: a word that is cut does less harm than a text that is lost.
    cut = max(beginning.rfind(space, _EXAMPLE_CHARACTERS // 2) for space in " \n")
    return beginning[:cut] if cut > 0 else beginning, True


def _documents(sources: Sequence[inputs.DocumentShard], held_out: float) -> list[str]:
    """Return the beginnings of the first documents of a few shards."""
    shards = sources[:: max(1, len(sources) // _READ_SHARDS)][:_READ_SHARDS]
    each = -(-_DOCUMENTS // max(1, len(shards)))
    texts: list[str] = []
    for shard in shards:
        texts += [text[:_DOCUMENT_CHARACTERS] for text in _first_texts(shard, held_out, each)]
    return texts or [""]


def _first_texts(shard: inputs.DocumentShard, held_out: float, most: int) -> Iterator[str]:
    for batch in corpus_batches(shard, held_out, Drops()):
        yield from batch.column("text").slice(0, most).to_pylist()
        most -= batch.num_rows
        if most <= 0:
            return


def _ids(index: NgramIndex, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
    """Return the n-grams of the index that each text holds."""
    found: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(texts), _SCANNED_TEXTS):
        some = texts[start : start + _SCANNED_TEXTS]
        hits = scan(index, *text_arrays(pa.array(some, pa.string())))
        bounds = np.searchsorted(hits.documents, np.arange(len(some) + 1))
        found += [np.unique(hits.ids[first:last]) for first, last in itertools.pairwise(bounds)]
    return found


def _plant(document: str, copy: str, kind: str) -> str:
    """Put a copy into the middle of a document: within a line where it is embedded, else as a paragraph of its own."""
    middle = document.find(" ", len(document) // 2)
    middle = len(document) // 2 if middle < 0 else middle
    between = " " if kind == "embedded" else "\n\n"
    return f"{document[:middle]}{between}{copy}{between}{document[middle:]}"


def _verbatim(text: str, _: Normalization) -> str:
    return text


def _wrapped(text: str, _: Normalization) -> str:
    return "\n".join(_LINE.findall(" ".join(text.split())))


def _embedded(text: str, _: Normalization) -> str:
    return " ".join(text.split())


def _edited(text: str, normalization: Normalization) -> str:
    """Replace every twelfth word; of fewer words the middle one, so that no copy is left as it is."""
    spans = word_spans(text, normalization)
    edited = spans[_EDITED_EVERY - 1 :: _EDITED_EVERY] or spans[len(spans) // 2 :][:1]
    pieces = []
    at = 0
    for start, end in edited:
        pieces += [text[at:start], "edited"]
        at = end
    return "".join([*pieces, text[at:]])


_COPIES: dict[str, Callable[[str, Normalization], str]] = {
    "verbatim": _verbatim,
    "wrapped": _wrapped,
    "embedded": _embedded,
    "edited": _edited,
}

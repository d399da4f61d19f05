"""Plants copies of examples in documents of the corpus and measures how many are found."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.ngrams.index import NgramIndex, scan, settings_of
from pipelines.algorithms.ngrams.words import Normalization, word_spans
from pipelines.benchmark_sets.benchmarks import read_example_batches
from pipelines.records import inputs
from pipelines.records.drops import Drops
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_report.indexing import IndexedBenchmark
from pipelines.stages.overlap_report.scanning import read_corpus

_EXAMPLES = 400
_DOCUMENTS = 100
_SHARDS = 8
_DOCUMENT_CHARACTERS = 4000
_EXAMPLE_CHARACTERS = 20_000
# Together far below the 2 GiB that a column of text may have.
_TEXTS_PER_SCAN = 64
_LINE_CHARACTERS = 40
_LINE = re.compile(rf"\S.{{0,{_LINE_CHARACTERS - 1}}}(?!\S)|\S+")
# Words between two edits: long enough for an 8-gram, too short for one of 13 words.
_EDIT_INTERVAL = 12

Ids = npt.NDArray[np.int64]


class _PlantedExample(NamedTuple):
    """The text of a planted example, or the beginning of a long one, and its n-grams."""

    text: str
    ids: Ids


def measure_recall(
    benchmarks: Sequence[IndexedBenchmark],
    example: str,
    index: NgramIndex,
    source: Sequence[inputs.DocumentShard],
    held_out: float,
) -> dict[str, Any]:
    """Return how many planted copies are found, by kind of copy; n-grams that their document had before do not count.

    `unplanted_found` are the n-grams that neither the document nor the copy planted there has.
    """
    examples, too_short = _choose_examples(benchmarks, example, index)
    normalization = settings_of(index).normalization
    documents = _read_documents(source, held_out)
    own_ids = find_ngrams(index, documents)
    hosts = [number % len(documents) for number in range(len(examples))]
    kinds = []
    unplanted = 0
    for kind, copy in COPIES.items():
        copies = [copy(planted.text, normalization) for planted in examples]
        texts = [_plant(documents[host], text, kind) for host, text in zip(hosts, copies, strict=True)]
        scanned = zip(find_ngrams(index, copies), find_ngrams(index, texts), strict=True)
        copies_found = ngrams_found = 0
        for host, planted, (copy_ids, text_ids) in zip(hosts, examples, scanned, strict=True):
            found = np.intersect1d(planted.ids, text_ids)
            is_new = len(np.setdiff1d(found, own_ids[host])) > 0
            copies_found += is_new or len(np.setdiff1d(planted.ids, own_ids[host])) == 0
            ngrams_found += len(found)
            # If n-grams stop at line ends, a copy in other lines may have n-grams that its example does not have.
            unplanted += len(np.setdiff1d(text_ids, np.concatenate([planted.ids, copy_ids, own_ids[host]])))
        ngrams = sum(len(planted.ids) for planted in examples)
        recall = round(copies_found / len(examples), 6) if examples else 0.0
        row = {"kind": kind, "planted": len(examples), "found": copies_found, "recall": recall}
        kinds.append({**row, "ngrams": ngrams, "ngrams_found": ngrams_found})
    return {
        "examples": len(examples),
        "documents": len(documents),
        "kinds": kinds,
        "too_short": too_short,
        "unplanted_found": unplanted,
    }


def _choose_examples(
    benchmarks: Sequence[IndexedBenchmark], example: str, index: NgramIndex
) -> tuple[list[_PlantedExample], int]:
    """Return those of the examples with the lowest hashes that have an n-gram, and the number of the others."""
    lowest: list[tuple[bytes, int, int, str, bool]] = []
    for number, indexed in enumerate(benchmarks):
        for batch in read_example_batches(indexed.benchmark, example):
            lowest += [
                (hashlib.sha256(text.encode()).digest(), number, batch.first + row, *_beginning(text))
                for row, text in enumerate(batch.texts.to_pylist())
            ]
            lowest = sorted(lowest)[:_EXAMPLES]
    examples = []
    for _, number, row, text, is_cut in lowest:
        words = benchmarks[number].words
        whole = benchmarks[number].ids[words[row] : words[row + 1]]
        ids = find_ngrams(index, [text])[0] if is_cut else np.unique(whole)
        if (ids >= 0).any():
            examples.append(_PlantedExample(text, np.asarray(ids[ids >= 0], np.int64)))
    return examples, len(lowest) - len(examples)


def _beginning(text: str) -> tuple[str, bool]:
    """Return the part of a text that is planted, and whether it is cut."""
    if len(text) <= _EXAMPLE_CHARACTERS:
        return text, False
    beginning = text[:_EXAMPLE_CHARACTERS]
    # Some scripts have hardly any spaces: cutting a word does less harm than losing a text.
    end = max(beginning.rfind(space, _EXAMPLE_CHARACTERS // 2) for space in " \n")
    return beginning[:end] if end > 0 else beginning, True


def _read_documents(source: Sequence[inputs.DocumentShard], held_out: float) -> list[str]:
    """Return the beginnings of the first documents of a few shards."""
    chosen = source[:: max(1, len(source) // _SHARDS)][:_SHARDS]
    per_shard = -(-_DOCUMENTS // max(1, len(chosen)))
    texts = [
        text[:_DOCUMENT_CHARACTERS]
        for shard in chosen
        for text in itertools.islice(_document_texts(shard, held_out), per_shard)
    ]
    return texts or [""]


def _document_texts(shard: inputs.DocumentShard, held_out: float) -> Iterator[str]:
    for batch in read_corpus(shard, held_out, Drops()):
        yield from (text.as_py() for text in batch.column("text"))


def find_ngrams(index: NgramIndex, texts: Sequence[str], texts_per_scan: int = _TEXTS_PER_SCAN) -> list[Ids]:
    """Return the n-grams of the index that each text has."""
    ngrams: list[Ids] = []
    for start in range(0, len(texts), texts_per_scan):
        batch = texts[start : start + texts_per_scan]
        hits = scan(index, *text_arrays(pa.array(batch, pa.string())))
        bounds = np.searchsorted(hits.documents, np.arange(len(batch) + 1))
        ngrams += [np.unique(hits.ids[first:last]) for first, last in itertools.pairwise(bounds)]
    return ngrams


def _plant(document: str, copy: str, kind: str) -> str:
    """Insert a copy into the middle of a document: within a line if it is embedded, else as a paragraph of its own."""
    middle = document.find(" ", len(document) // 2)
    middle = len(document) // 2 if middle < 0 else middle
    separator = " " if kind == "embedded" else "\n\n"
    return f"{document[:middle]}{separator}{copy}{separator}{document[middle:]}"


def _wrapped(text: str, _: Normalization) -> str:
    return "\n".join(_LINE.findall(" ".join(text.split())))


def _edited(text: str, normalization: Normalization) -> str:
    """Replace every twelfth word, or the middle one of fewer words, so that no copy is unchanged."""
    spans = word_spans(text, normalization)
    replaced = spans[_EDIT_INTERVAL - 1 :: _EDIT_INTERVAL] or spans[len(spans) // 2 :][:1]
    pieces = []
    position = 0
    for start, end in replaced:
        pieces += [text[position:start], "edited"]
        position = end
    return "".join([*pieces, text[position:]])


COPIES: dict[str, Callable[[str, Normalization], str]] = {
    "verbatim": lambda text, _: text,
    "wrapped": _wrapped,
    "embedded": lambda text, _: " ".join(text.split()),
    "edited": _edited,
}

"""Traces: the passages are all maximal ones, as a search in the words of all documents finds them."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from small_index import build_index, document, write_documents

from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.index import build_index as build_ngrams
from pipelines.algorithms.ngrams.index import scan
from pipelines.errors import UsageError
from pipelines.search.query import SearchIndex
from pipelines.search.trace import Passage, Trace, trace


def _texts(count: int, seed: int) -> list[str]:
    """Return texts of few different words, so that they share many passages."""
    chosen = random.Random(seed)
    return [" ".join(chosen.choices("aa bb cc dd İe Σς é".split(), k=200)) for _ in range(count)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace") / "corpus"
    rows = [document(number, text) for number, text in enumerate(_texts(20, 1))]
    rows.append(document(20, "Intro:\n\n“To be, or not to be: that is the QUESTION”, he said. İstanbul"))
    write_documents(folder, [rows[:9], rows[9:]])
    build_index(folder)
    return folder


@pytest.fixture(scope="module")
def index(corpus: Path) -> SearchIndex:
    return SearchIndex.open(str(corpus))


def test_a_passage_is_at_its_place_in_text_and_document(index: SearchIndex) -> None:
    text = "Éa said - to be or NOT to be; that is the question he said\tİSTANBUL, and left. Intro: to be"
    [passage] = trace(index, text).passages
    assert passage == Passage(text[10:-24], 10, len(text) - 24, 14, 1, passage.documents)
    [found] = passage.documents
    assert (found["id"], found["url"]) == ("id20", "http://www.site20.com/page")
    traced = "Intro:\n\n“To be, or not to be: that is the QUESTION”, he said. İstanbul"
    assert traced[found["start"] : found["end"]] == "To be, or not to be: that is the QUESTION”, he said. İstanbul"


@pytest.mark.parametrize("ngram", [3, 8])
def test_passages_are_the_maximal_ones_of_all_documents(index: SearchIndex, ngram: int) -> None:
    documents = [f" {text.lower().replace('i̇e', 'i e')} " for text in _texts(20, 1)]
    text = " ".join(_texts(1, 2))
    words = text.lower().replace("i̇e", "i e").split()

    counts = {}
    for first in range(len(words)):
        for last in range(first + ngram, len(words) + 1):
            phrase = f" {' '.join(words[first:last])} "
            counts[first, last] = sum(phrase in document for document in documents)
            if not counts[first, last]:  # nor does a longer one
                break
    maximal = {
        (last - first, count)
        for (first, last), count in counts.items()
        if count and not counts.get((first - 1, last)) and not counts.get((first, last + 1))
    }
    passages = trace(index, text, ngram=ngram, limit=1000).passages
    assert {(passage.words, passage.count) for passage in passages} == maximal
    assert maximal
    assert [passage.words for passage in passages] == sorted((passage.words for passage in passages), reverse=True)
    assert trace(index, text, ngram=ngram, limit=2) == Trace(passages[:2], len(text))


def test_passages_cover_the_ngrams_that_the_overlap_audit_finds(index: SearchIndex) -> None:
    text = " ".join(_texts(3, 3))
    ngrams, examples = build_ngrams([text_arrays(pa.array([text]))], 4)
    hits = scan(ngrams, *text_arrays(pa.array(_texts(20, 1))))
    expected = np.flatnonzero(np.isin(examples.ids, hits.ids))
    words = text.lower().replace("i̇e", "i e").split()
    covered = set[int]()
    for passage in trace(index, text, ngram=4, limit=1000).passages:
        first = len(text[: passage.start].lower().replace("i̇e", "i e").split())
        assert words[first : first + passage.words] == passage.text.lower().replace("i̇e", "i e").split()
        covered |= {*range(first, first + passage.words - 3)}
    assert covered == {*expected.tolist()}
    assert covered


def test_a_text_that_repeats_itself_is_searched_once(index: SearchIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    phrases: list[int] = []
    monkeypatch.setattr(SearchIndex, "find_phrase", lambda _, words, __: phrases.append(len(words)) or (0, []))
    assert trace(index, "the " * 1000).passages == []
    assert phrases == [8]


@pytest.mark.parametrize("max_s", [-1.0, 20.0, 70.0, 150.0])
def test_a_trace_that_ends_early_has_the_passages_of_the_text_before(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch, max_s: float
) -> None:
    text = _texts(1, 1)[0]
    text = f"{text[:150]} of {text}"
    monkeypatch.setattr(time, "monotonic", map(float, itertools.count()).__next__)
    result = trace(index, text, max_s=max_s)
    assert result.characters < len(text)
    assert result.passages
    assert trace(index, text[: result.characters], max_s=1e9) == result


def test_a_text_without_a_passage_and_one_that_is_too_short(index: SearchIndex) -> None:
    assert trace(index, "no document of these has any of these words at all").passages == []
    with pytest.raises(UsageError, match="has 3 words, fewer than the 8 of an n-gram"):
        trace(index, "To be, or")

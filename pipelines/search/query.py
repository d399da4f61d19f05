"""Searches the index of a corpus: words, phrases and fields, the best documents first, with snippets."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines import storage
from pipelines.corpus_config import CorpusConfig, check_corpus
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import check_removal_complete
from pipelines.errors import InputError, UsageError
from pipelines.extras import require_extra
from pipelines.records.inputs import StageFolder, open_stage
from pipelines.search.snippets import compile_phrases, make_snippet
from pipelines.stages.search.segments import FIELDS, INDEX, StoredDocument, open_index, read_stored

if TYPE_CHECKING:
    import tantivy

_MAX_QUERY, _MAX_ROWS = 1000, 10_000
# tantivy tries the ways in which a text may have the words of a phrase: more than 8 s for 40 repeated words and ~50.
_MAX_SLOP = 10
_REBUILD = "re-run `webtext search --build` to rebuild it"
_OPERATORS = re.compile(r"\b(AND|OR|NOT|TO|IN)\b")
_QUIRKS = re.compile(r"""("[^"]*")|(?<=\w)'(?=\w)|\bAND\s+NOT\b""")


@dataclasses.dataclass(frozen=True)
class Match:
    """A document that a query found; `snippet` has parts of its text, and whether each matches the query.

    The matches in the snippet are within the characters `start` to `end` of the text.
    """

    id: str
    url: str | None
    title: str | None
    domain: str | None
    year: int | None
    words: int | None
    score: float
    start: int
    end: int
    snippet: list[tuple[str, bool]]


@dataclasses.dataclass(frozen=True)
class Matches:
    """How many documents a query found, and some of them in order of their scores."""

    count: int
    rows: list[Match]


def make_match(document: StoredDocument, score: float, pattern: re.Pattern[str]) -> Match:
    """Return a document as a match, with a snippet of what a pattern of `compile_phrases` matches."""
    shown = {name: getattr(document, name) for name in ("id", "url", "title", "domain", "year", "words")}
    (start, end), snippet = make_snippet(document.text, pattern)
    return Match(**shown, score=score, start=start, end=end, snippet=snippet)


class SearchIndex:
    """The index in the folder of the stage `search`; `is_stale` if the documents of its corpus have changed since.

    Threads may share it.
    """

    def __init__(self, folder: StageFolder, is_stale: bool = False) -> None:
        self.is_stale, self._path = is_stale, folder.path
        files = folder.files(f"{INDEX}/")
        # Not in place, since tantivy writes locks next to the files, but a corpus may be read-only.
        local = storage.link_copies([file.path for file in files], self)
        for file in files:
            copy = storage.join(local, storage.basename(file.path))
            if not storage.exists(copy) or storage.size_bytes(copy) != file.size_bytes:
                raise InputError(f"{file.path}: is missing or damaged; {_REBUILD}")
        try:
            with _translate_panics(self._path):
                self._index = open_index(local)
                self._searcher = self._index.searcher()
        except ValueError as error:
            remedy = "rebuild it with `webtext search --build --overwrite`"
            raise InputError(f"{folder.path}: tantivy cannot read the index ({error}); {remedy}") from error

    @staticmethod
    def open(corpus: str) -> SearchIndex:
        """Open the index of a corpus, or the one in a folder that `webtext search --build --output` wrote.

        Raises InputError if there is none, with the command that builds it.
        """
        require_extra("search", "webtext search", "tantivy")
        if has_manifest(corpus):
            return SearchIndex(open_stage(corpus, ["search"]))
        check_corpus(corpus, "-i")
        check_removal_complete(corpus)
        folder = storage.join(corpus, "search")
        if not has_manifest(folder):
            raise InputError(f"{folder}: the corpus has no index; run `webtext search --build`")
        stage = open_stage(folder, ["search"])
        return SearchIndex(stage, bool(CorpusConfig(corpus).changed_sources("search", stage.manifest)))

    def search(self, query: str, *, limit: int = 10, offset: int = 0) -> Matches:
        """Return the documents that match a query in tantivy's language, in which all words must occur.

        Raises UsageError for a query that cannot be parsed.
        """
        import tantivy

        if len(query) > _MAX_QUERY or offset + limit > _MAX_ROWS:
            raise UsageError(
                f"at most {_MAX_QUERY:,} characters can be searched for, and the first {_MAX_ROWS:,} documents shown; "
                "shorten the query, or add a field, such as year:2014"
            )
        if any(int(slop) > _MAX_SLOP for slop in re.findall(r"""["']~(\d+)""", query)):
            raise UsageError(f"the words of a phrase can be at most {_MAX_SLOP} further apart, as in ~{_MAX_SLOP}")
        # tantivy divides queries at few kinds of white space, and lower-cases İ and a final Σ otherwise than the audit.
        parts = enumerate(_OPERATORS.split(" ".join(query.split())))
        normalized = "".join(part if number % 2 else part.lower() for number, part in parts)
        # To tantivy, an apostrophe is a quotation mark, and AND NOT asks for documents that are all that is excluded.
        normalized = _QUIRKS.sub(lambda match: match[1] or ("’" if match[0] == "'" else "NOT"), normalized)
        try:
            parsed = self._index.parse_query(normalized, ["text", "title"], conjunction_by_default=True)
            pattern = compile_phrases(_phrases(tantivy.parse_query(normalized)))
            count, documents = self.find(parsed, limit, offset)
        except ValueError as error:  # of the syntax, or such as `title:*`, which only numbers have
            fields = f"the fields are {', '.join(FIELDS)}; quote a phrase, or other signs, with double quotes"
            reason = "not a number" if "ParseInt" in str(error) else error
            raise UsageError(f"{query}: is not a query ({reason}); {fields}") from error
        return Matches(count, [make_match(document, score, pattern) for score, document in documents])

    def find_phrase(self, words: Sequence[str], limit: int) -> tuple[int, list[StoredDocument]]:
        """Return how many texts contain normalized words in this order, and the first of them by score."""
        import tantivy

        count, documents = self.find(tantivy.Query.phrase_query(self._index.schema, "text", [*words]), limit)
        return count, [document for _, document in documents]

    def find(self, query: tantivy.Query, limit: int, offset: int = 0) -> tuple[int, list[tuple[float, StoredDocument]]]:
        """Return how many documents match, and some of them with their scores, the highest first."""
        with _translate_panics(self._path):
            result = self._searcher.search(query, limit=max(1, limit), offset=offset)
            documents = [(score, read_stored(self._searcher.doc(address))) for score, address in result.hits[:limit]]
        count: int = result.count  # type: ignore[attr-defined]  # not in its stubs
        return count, documents


@contextlib.contextmanager
def _translate_panics(path: str) -> Iterator[None]:
    """Raise InputError where tantivy stops at a damaged file, by a PanicException that is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{path}: is damaged ({error}); {_REBUILD}") from None


def _phrases(clause: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words and phrases of a parsed query that a text must or may contain."""
    if clause["type"] == "literal" and clause["field_name"] in (None, "text"):
        yield clause["phrase"]
    elif clause["type"] == "boost":
        yield from _phrases(clause["underlying"])
    elif clause["type"] == "bool":
        for occur, part in clause["clauses"]:
            if occur != "must_not":
                yield from _phrases(part)

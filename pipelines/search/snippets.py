"""Snippets: the part of a text that matches a query best, divided into what matches and what does not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

_WIDTH, _BEFORE = 240, 60
# Between the words of a phrase; not any number, since a text may have megabytes of dashes there.
_BETWEEN = r"[\W_]{1,60}"
# More matches of a common word would not give a better snippet.
_MAX_MATCHES = 1000


def compile_phrases(phrases: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of phrases, the longest first, whatever is between their words; see `ngrams.words`."""
    words = {tuple(re.findall(r"[^\W_]+", phrase)) for phrase in phrases} - {()}  # as of `str.isalnum`
    joined = [_BETWEEN.join(map(re.escape, phrase)) for phrase in sorted(words, key=lambda key: (-len(key), key))]
    return re.compile(rf"(?<![^\W_])(?:{'|'.join(joined)})(?![^\W_])" if joined else r"(?!)", re.IGNORECASE)


def make_snippet(text: str, pattern: re.Pattern[str]) -> tuple[tuple[int, int], list[tuple[str, bool]]]:
    """Return the window of ~240 characters with the longest distinct matches, or the beginning, as parts.

    The second value of a part is whether it matches. White space is one space. The span is that of all of the matches.
    """
    spans = [match.span() for match in itertools.islice(pattern.finditer(text), _MAX_MATCHES)] or [(0, 0)]
    windows = (_spans_near(spans, first) for first in range(len(spans)))
    best = max(windows, key=lambda window: sum(map(len, {text[start:end].lower() for start, end in window})))
    begin = max(0, best[0][0] - _BEFORE)
    if begin and (space := text.find(" ", begin, best[0][0])) > 0:
        begin = space + 1
    end = max(best[-1][1], begin + _WIDTH)
    if end < len(text) and (space := text.rfind(" ", best[-1][1], end)) > 0:
        end = space
    borders = [begin, *itertools.chain.from_iterable(best), end]
    parts = [(text[start:stop], bool(number % 2)) for number, (start, stop) in enumerate(itertools.pairwise(borders))]
    parts = [("…" * (begin > 0), False), *parts, ("…" * (end < len(text)), False)]
    shown = [(re.sub(r"\s+", " ", part), is_match) for part, is_match in parts if part]
    return (best[0][0], best[-1][1]), shown


def _spans_near(spans: Sequence[tuple[int, int]], first: int) -> list[tuple[int, int]]:
    """Return the spans that a window has which begins with one of them."""
    stop = max(spans[first][1], spans[first][0] + _WIDTH - _BEFORE)
    return list(itertools.takewhile(lambda span: span[1] <= stop, spans[first:]))

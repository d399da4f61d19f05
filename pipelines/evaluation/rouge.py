"""ROUGE of summaries, as ROUGE-1.5.5 computes it, by rouge-score of the extra `evaluate`."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from pipelines import storage
from pipelines.extras import require_extra

ROUGE_TYPES = ("rouge1", "rouge2", "rougeLsum")
# What step 4 of the stemmer of ROUGE-1.5.5 strips, one after the other; Porter's step strips one suffix at most.
_SUFFIXES = ("al|ance|ence|er|ic|able|ible|ant|ement|ou|ism|ate|iti|ous|ive|ize", "ment", "ent|(?<=[st])ion")
# Raises WebtextError if what `rouge_scores` needs is not installed.
check_rouge = functools.partial(require_extra, "evaluate", "ROUGE", "rouge_score", "py-rouge")


def rouge_scores(prediction: str, golds: Sequence[str]) -> dict[str, float]:
    """Return the largest F1 of ROUGE-1, ROUGE-2 and ROUGE-Lsum over the gold summaries, 0 to 1, with stemming.

    As `ROUGE-1.5.5.pl -m`, whose ROUGE-L is ROUGE-Lsum: computed by summary, so put one sentence per line. Of summaries
    in one line it is ROUGE-L of sentences, which is usually lower.
    """
    scores = _rouge_scorer().score_multi(golds, prediction)
    return {name: float(scores[name].fmeasure) for name in ROUGE_TYPES}


def _irregular_words() -> dict[str, str]:
    """Return the bases of the irregular words of WordNet, as ROUGE-1.5.5 has them, from a file of py-rouge."""
    # Not imported: it needs packages that it does not name.
    path = importlib.metadata.distribution("py-rouge").locate_file("rouge/wordnet_key_value.txt")
    return dict(line.split("|") for line in storage.read_bytes(str(path)).decode().split())


@functools.cache
def _rouge_scorer() -> Any:
    """Return the scorer of rouge-score with the words and stems of ROUGE-1.5.5; its default has those of NLTK."""
    check_rouge()
    from nltk.stem.porter import PorterStemmer  # deferred: importing nltk takes about a second
    from rouge_score.rouge_scorer import RougeScorer

    stemmer = PorterStemmer(PorterStemmer.MARTIN_EXTENSIONS)
    bases = _irregular_words()

    def strip_suffixes(word: str) -> str:
        for suffixes in _SUFFIXES:
            stem = re.sub(f"(?:{suffixes})$", "", word)
            word = stem if stemmer._measure(stem) > 1 else word
        return word

    stemmer._step4 = strip_suffixes
    stem = functools.cache(lambda word: bases.get(word) or stemmer.stem(word) if len(word) > 3 else word)
    words = SimpleNamespace(tokenize=lambda text: [stem(word.lower()) for word in re.findall("[A-Za-z0-9]+", text)])
    return RougeScorer(list(ROUGE_TYPES), tokenizer=words)

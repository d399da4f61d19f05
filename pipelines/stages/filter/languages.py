"""The language of a text by the model of py3langid: a naive Bayes classifier of byte sequences, part of the package.

py3langid runs its automaton in Python, ~1,000 texts per second. Here NumPy advances many texts by a byte at a time. The
result is the same if py3langid is given the first `CHARACTERS` of a text and the languages with an ISO 639-1 code.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.columns import text_arrays

# ISO 639-1; `no` includes Bokmål.
CODES = tuple(
    """
    af am an ar as az ba be bg bn br bs ca cs cy da de dz el en eo es et eu fa fi fo fr fy ga gd gl gu ha he hi hr ht
    hu hy id ig is it ja jv ka kk km kn ko ku ky la lb lg ln lo lt lv mg mk ml mn mr ms mt my ne nl nn no oc om or pa
    pl ps pt qu ro ru rw sa se si sk sl sn so sq sr st sv sw ta te tg th tk tl tr tt ug uk ur uz vi vo wa xh yo zh zu
    """.split()
)
# With 1,000 characters, two more of 2,151 web pages are right, at half the speed; with 250, four more are wrong.
CHARACTERS = 500
# The model's class of texts without a language: numbers, markup, identifiers.
_NO_LANGUAGE = "zxx"
_CERTAIN = 1000.0
_TEXTS = 1024


class _Model(NamedTuple):
    """The automaton (state and byte to state, state to feature or -1), and the classifier of the features.

    `weights` (features, columns) and `prior` (columns) have one or more columns per language, ordered by language;
    `columns` is the first column of each language in `codes`.
    """

    rows: npt.NDArray[np.int64]
    next_states: npt.NDArray[np.int32]
    features: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    prior: npt.NDArray[np.float32]
    codes: list[str]
    columns: npt.NDArray[np.int64]


@functools.cache
def _load_model() -> _Model:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    identifier.set_languages([*CODES, _NO_LANGUAGE])
    order = np.argsort(identifier.nb_classes, kind="stable")
    codes, columns = np.unique(np.array(identifier.nb_classes)[order], return_index=True)
    return _Model(
        np.asarray(identifier.tk_row, np.int64) << 8,
        np.asarray(identifier.tk_nextmove, np.int32),
        np.asarray(identifier.tk_output, np.int32),
        identifier.nb_ptc[:, order].astype(np.float32, order="C"),
        identifier.nb_pc[order],
        codes.tolist(),
        columns,
    )


def identify(texts: pa.StringArray) -> tuple[pa.StringArray, pa.FloatArray]:
    """Return the code of the language of each text and its probability; both null for a text without language."""
    texts = pc.utf8_slice_codeunits(texts, 0, CHARACTERS)
    # As in py3langid: letter case is informative unless all letters are capitals. Arrow lower-cases "ΟΔΟΣ" differently.
    cased = (text.lower() if text.isupper() else text for text in texts.to_pylist())
    texts = pa.array([unicodedata.normalize("NFC", text) for text in cased], pa.string())
    codes: list[str] = []
    scores = [np.empty(0, np.float32)]
    for first in range(0, len(texts), _TEXTS):
        probabilities = _probabilities(texts.slice(first, _TEXTS))
        best = probabilities.argmax(axis=1)
        codes += [_load_model().codes[column] for column in best]
        scores.append(probabilities[np.arange(len(best)), best])
    languages = pa.array(codes, pa.string())
    is_language = pc.and_(pc.match_substring_regex(texts, r"\pL"), pc.not_equal(languages, _NO_LANGUAGE))
    null = pa.scalar(None)
    return (
        pc.if_else(is_language, languages, null),
        pc.if_else(is_language, pa.array(np.concatenate(scores), pa.float32()), null),
    )


def _probabilities(texts: pa.StringArray) -> npt.NDArray[np.float32]:
    """Return the probability of each language, shape (texts, codes)."""
    model = _load_model()
    data, starts = text_arrays(texts)
    lengths = np.diff(starts)
    scores = np.tile(model.prior, (len(texts), 1))
    for text, features in enumerate(_find_features(data, starts, lengths, model)):
        visited, counts = np.unique(features[features >= 0], return_counts=True)
        scores[text] += np.log1p(counts.astype(np.float32)) @ model.weights[visited]
        if not len(visited):
            scores[text, -1] = _CERTAIN  # the last column is that of no language
    # As in py3langid, the square root keeps probabilities calibrated across lengths.
    scores /= np.sqrt(np.maximum(lengths, 1), dtype=np.float32)[:, None]
    np.exp(scores - scores.max(axis=1, keepdims=True), out=scores)
    sums = np.add.reduceat(scores, model.columns, axis=1)
    return np.asarray(sums / sums.sum(axis=1, keepdims=True))


def _find_features(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], model: _Model
) -> npt.NDArray[np.int32]:
    """Return the feature after each byte of each text, -1 for none, shape (texts, longest length)."""
    longest_first = np.argsort(-lengths, kind="stable")
    at = starts[longest_first].astype(np.int64)
    # The number of texts that are longer than each position.
    active = np.searchsorted(-lengths[longest_first], -np.arange(int(lengths.max())), side="left")
    states: npt.NDArray[np.signedinteger[Any]] = np.zeros(len(lengths), np.int32)
    features = np.full((len(active), len(lengths)), -1, np.int32)
    for position, texts in enumerate(active):
        steps = model.rows.take(states[:texts])
        steps += data.take(at[:texts] + position)
        states = model.next_states.take(steps)
        model.features.take(states, out=features[position, :texts], mode="clip")  # "raise" would copy
    restored = np.empty((len(lengths), len(active)), np.int32)
    restored[longest_first] = features.T
    return restored

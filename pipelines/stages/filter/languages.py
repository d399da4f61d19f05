"""The language of a text by the model of py3langid: a naive Bayes classifier of byte sequences, part of the package.

py3langid runs its automaton in Python, ~1,000 texts per second; here a kernel does. The result is the same if py3langid
is given the first `CHARACTERS` of a text and the languages with an ISO 639-1 code.
"""

from __future__ import annotations

import functools
import io
import unicodedata
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.kernels.byte_scan import prefetch
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.storage.compression import open_decompressed

# ISO 639-1; `no` includes Bokmål.
CODES = tuple(
    """
    af am an ar as az ba be bg bn br bs ca cs cy da de dz el en eo es et eu fa fi fo fr fy ga gd gl gu ha he hi hr ht
    hu hy id ig is it ja jv ka kk km kn ko ku ky la lb lg ln lo lt lv mg mk ml mn mr ms mt my ne nl nn no oc om or pa
    pl ps pt qu ro ru rw sa se si sk sl sn so sq sr st sv sw ta te tg th tk tl tr tt ug uk ur uz vi vo wa xh yo zh zu
    """.split()
)
# Of --language: documents of all languages, and of none.
ALL = "all"
# With 1,000 characters, two more of 2,151 web pages are right, at half the speed; with 250, four more are wrong.
CHARACTERS = 500
# The model's class of texts without a language: numbers, markup, identifiers.
_NO_LANGUAGE = "zxx"
_CERTAIN = 1000.0
_TEXTS = 1024
# So many texts advance by a byte in turn, each while the others wait for memory.
_LANES = 8
# float16 values in a cache line, which rows of weights fill.
_LINE = 32
# Converts a float16 whose bits are moved to their places in a float32, as the exponents count from -15 and -127.
_HALF_SCALE = np.float32(2.0**112)
_HALF_BITS = -0x70002000  # 0x8FFFE000


class _Model(NamedTuple):
    """The automaton (state to 256 times its row, that and byte to state, state to feature or -1), and the classifier.

    `weights` are the bits of float16, shape (features and a row of zeros, columns and others of zeros). There are one
    or more columns per language, ordered by language; `columns` is the first one of each in `codes`.
    """

    rows: npt.NDArray[np.int32]
    next_states: npt.NDArray[np.uint32]
    features: npt.NDArray[np.int32]
    weights: npt.NDArray[np.int16]
    prior: npt.NDArray[np.float32]
    codes: pa.StringArray
    columns: npt.NDArray[np.int64]


class _Buffers(NamedTuple):
    """Buffers of the kernel: the states of each lane, before the text and after every byte; of a text, its features,
    and how often each of the model occurs, 0 between texts; and the logarithms by which their weights count.
    """

    states: npt.NDArray[np.uint32]
    visited: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]
    logarithms: npt.NDArray[np.float32]


@functools.cache
def _load_model() -> _Model:
    from py3langid.langid import MODEL_DIR, MODEL_FILE

    # The arrays as they are stored: the package converts them to lists.
    with open_decompressed(str(MODEL_DIR / MODEL_FILE)) as stream:
        arrays = np.load(io.BytesIO(stream.read()))
    order = np.argsort(arrays["classes"], kind="stable")
    order = order[np.isin(arrays["classes"][order], [*CODES, _NO_LANGUAGE])]
    codes, columns = np.unique(arrays["classes"][order], return_index=True)
    features = arrays["ptc"]
    weights = np.zeros((len(features) + 1, -(-len(order) // _LINE) * _LINE), np.float16)
    weights[:-1, : len(order)] = features[:, order]
    rows, next_states = arrays["nextmove_row"].astype(np.int32) << 8, arrays["nextmove"].astype(np.uint32, copy=False)
    bits, prior = weights.view(np.int16), arrays["pc"][order]
    return _Model(rows, next_states, arrays["out_feat"], bits, prior, pa.array(codes.tolist()), columns)


def identify(texts: pa.StringArray) -> tuple[pa.StringArray, pa.FloatArray]:
    """Return the code of the language of each text and its probability; both null for a text without language."""
    texts = pc.utf8_slice_codeunits(texts, 0, CHARACTERS)
    # As in py3langid: letter case is informative unless all letters are capitals. Arrow lower-cases "ΟΔΟΣ" differently.
    cased = (text.lower() if text.isupper() else text for text in texts.to_pylist())
    composed = [text if text.isascii() else unicodedata.normalize("NFC", text) for text in cased]
    texts = pa.array(composed, pa.string())
    best, scores = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for first in range(0, len(texts), _TEXTS):
        probabilities = _probabilities(texts.slice(first, _TEXTS))
        best.append(probabilities.argmax(axis=1))
        scores.append(probabilities.max(axis=1))
    languages = _load_model().codes.take(pa.array(np.concatenate(best)))
    is_language = pc.and_(pc.match_substring_regex(texts, r"\pL"), pc.not_equal(languages, _NO_LANGUAGE))
    null, certainties = pa.scalar(None), pa.array(np.concatenate(scores), pa.float32())
    return pc.if_else(is_language, languages, null), pc.if_else(is_language, certainties, null)


def _probabilities(texts: pa.StringArray) -> npt.NDArray[np.float32]:
    """Return the probability of each language, shape (texts, codes)."""
    model = _load_model()
    data, offsets = text_arrays(texts)
    starts = offsets.astype(np.int64)
    lengths = np.diff(starts)
    longest = int(lengths.max())
    buffers = _Buffers(
        np.zeros((_LANES, longest + 1), np.uint32),
        np.empty(longest + 3, np.int64),
        np.zeros(len(model.weights), np.int32),
        np.log1p(np.arange(longest + 1, dtype=np.float32)) * _HALF_SCALE,
    )
    sums = np.zeros((len(texts), model.weights.shape[1]), np.float32)
    _add_weights(as_read_only(data), as_read_only(starts), *model[:4], buffers, sums)
    scores = sums[:, : len(model.prior)] + model.prior
    scores[~sums.any(axis=1), -1] = _CERTAIN  # no feature of the model; the last column is that of no language
    # As in py3langid, the square root keeps probabilities calibrated across lengths.
    scores /= np.sqrt(np.maximum(lengths, 1), dtype=np.float32)[:, None]
    np.exp(scores - scores.max(axis=1, keepdims=True), out=scores)
    sums = np.add.reduceat(scores, model.columns, axis=1)
    return np.asarray(sums / sums.sum(axis=1, keepdims=True))


@kernel
def _add_weights(
    data: Any, starts: Any, rows: Any, next_states: Any, features: Any, weights: Any, buffers: Any, sums: Any
) -> None:
    """Add the weights of the features of each text, times the logarithm of 1 more than their number, to its sums."""
    for first in range(0, len(sums), _LANES):
        lanes, longest = min(_LANES, len(sums) - first), np.int64(0)
        for text in range(first, first + lanes):
            longest = max(longest, starts[text + 1] - starts[text])
        for position in range(longest):
            for lane in range(lanes):
                at = starts[first + lane] + position
                if at < starts[first + lane + 1]:
                    state = buffers.states[lane, position]
                    buffers.states[lane, position + 1] = next_states[rows[state] + data[at]]
        for lane in range(lanes):
            length = starts[first + lane + 1] - starts[first + lane]
            _add_weights_of_text(buffers.states[lane, 1 : length + 1], features, weights, buffers, sums[first + lane])


@helper
def _add_weights_of_text(states: Any, features: Any, weights: Any, buffers: Any, sums: Any) -> None:
    visited, counts, logarithms = buffers.visited, buffers.counts, buffers.logarithms
    kinds, width = 0, len(sums)
    for position in range(len(states)):
        feature = np.int64(features[states[position]])
        if feature >= 0:
            if not counts[feature]:
                visited[kinds] = feature
                kinds += 1
                for column in range(0, width, _LINE):
                    prefetch(weights, feature * width + column)
            counts[feature] += 1
    visited[kinds : kinds + 3] = len(weights) - 1  # that of zeros
    # Four at a time: the sums of hundreds of float32 are as exact as NumPy's.
    for number in range(0, kinds, 4):
        a, b, c, d = visited[number], visited[number + 1], visited[number + 2], visited[number + 3]
        of_a, of_b, of_c, of_d = (
            logarithms[counts[a]],
            logarithms[counts[b]],
            logarithms[counts[c]],
            logarithms[counts[d]],
        )
        counts[a] = counts[b] = counts[c] = counts[d] = 0
        for column in range(width):
            sums[column] += (
                of_a * _half(weights[a, column])
                + of_b * _half(weights[b, column])
                + of_c * _half(weights[c, column])
                + of_d * _half(weights[d, column])
            )


@helper
def _half(bits: Any) -> Any:
    """Return the float16 of some bits, divided by `_HALF_SCALE`."""
    return np.int32((np.int32(bits) << np.int32(13)) & np.int32(_HALF_BITS)).view(np.float32)

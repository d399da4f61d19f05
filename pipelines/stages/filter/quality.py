"""A quality classifier as GPT-3's: whether a text is more like a reference corpus or like unfiltered text.

Appendix A of Brown et al. (2020) has a logistic regression on Spark's Tokenizer and HashingTF. Here the words are those
of `ngrams.words`, hashed into 2**18 buckets, and a feature is a count divided by the square root of the number of
words, which on web pages has a ROC AUC 0.02 to 0.03 higher than the count itself (benchmarks/quality.md).

A model is a folder of `weights.npy` (float32, one weight per bucket and last the bias) and `card.json`:

- `format`, `hash`, `buckets`, `characters`: how texts become features; only the first `characters` are read
- `good`, `unfiltered`: `names`, `bytes` and `fingerprint` of the input, its `documents` with words, and how many
  of them were `sampled`
- `options`: `seed`, and `documents`, the largest sample per side
- `held_out`, of a tenth of each sample, chosen by id and not trained on: the number of documents of each side,
  `roc_auc`, the shares of each side with at least a `score` (`curve`), and the expected shares that are kept with
  alpha 9 (`kept`)
- `weights_sha256`

Equal inputs and options give equal bytes.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams import hashing
from pipelines.engine.manifest import common_text_format
from pipelines.engine.stage import RunOptions
from pipelines.errors import InputError, UsageError
from pipelines.progress import Progress, show_progress
from pipelines.records import inputs
from pipelines.records.document_split import Key, document_keys, hash_keys
from pipelines.records.drops import Drops
from pipelines.records.tally import LowestHashes
from pipelines.records.text_columns import slices_within

ALPHA = 9.0
DOCUMENTS = 50_000
_FORMAT = "webtext-quality-1"
_BUCKET_BITS = 18
_BUCKETS = 1 << _BUCKET_BITS
# Nearly all pages are shorter; a whole book would take the memory of a hundred pages.
_CHARACTERS = 50_000
_SLICE_BYTES = 1 << 20
_HELD_OUT = 10
_MIN_DOCUMENTS = 100
_EPOCHS, _BATCH, _LEARNING_RATE = 5, 64, 0.2
_WEIGHTS, _CARD = "weights.npy", "card.json"

_Floats = npt.NDArray[np.float64]
_Buckets = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class QualityModel:
    """A classifier: a weight per bucket and last the bias, and the card of the model."""

    weights: npt.NDArray[np.float32]
    card: dict[str, Any]

    @classmethod
    def load(cls, path: str) -> QualityModel:
        """Load the folder of a model; raise InputError if it is not a model, or damaged."""
        name, weights = storage.join(path, _CARD), storage.join(path, _WEIGHTS)
        if not storage.exists(name):
            raise InputError(f"{path}: has no {_CARD}, so it is not a quality model; train one with --train-quality")
        card = storage.read_json(name)
        expected = {"format": _FORMAT, "hash": hashing.NAME, "buckets": _BUCKETS, "characters": _CHARACTERS}
        if not isinstance(card, dict) or any(card.get(field) != value for field, value in expected.items()):
            raise InputError(f"{name}: is not a model card that this version reads; train the model again")
        if storage.sha256_of(weights) != card.get("weights_sha256"):
            raise InputError(f"{weights}: its SHA-256 is not the one in {_CARD}; train the model again")
        return cls(storage.read_array(weights), card)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that determines the scores."""
        return str(self.card["weights_sha256"])

    def scores(self, texts: pa.StringArray) -> npt.NDArray[np.float32]:
        """Return the probability that each text is of the reference corpus, shape (texts,); 0 without words."""
        scores = [np.empty(0)]
        for buckets, bounds in _hash_words(texts):
            sizes = np.diff(bounds)
            logits = _logits(self.weights, buckets, sizes)
            scores.append(np.where(sizes > 0, _probabilities(logits), 0))
        return np.concatenate(scores).astype(np.float32)


def draw_thresholds(ids: Sequence[Key], seed: int, alpha: float = ALPHA) -> _Floats:
    """Return for each document the score that it must exceed: 1 minus a Pareto variate, which depends on seed and id.

    GPT-3's rule keeps a document if `np.random.pareto(alpha) > 1 - score`.
    """
    hashes = hash_keys(ids, f"quality {seed}")
    uniform = ((hashes >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
    return np.asarray(2 - uniform ** (-1 / alpha))


def train_quality(
    good: Sequence[str],
    unfiltered: Sequence[str],
    output: str,
    config: Any,
    options: RunOptions,
    *,
    seed: int = 0,
    documents: int = DOCUMENTS,
) -> dict[str, Any]:
    """Train a model on two inputs of documents, write it into the folder `output`, and return its card.

    `config` has the options of `inputs.open_configured`. At most `documents` of each side are sampled by their ids,
    which take ~4 bytes per word. Raises UsageError if the folder has other files, or a model without `overwrite`, or if
    both sides are the same; InputError if a side has fewer than 100 documents with words.
    """
    files = set(storage.list_folder(output) if storage.is_folder(output) else ())
    if others := files - {_WEIGHTS, _CARD}:
        raise UsageError(f"{output}: contains other files, such as {min(others)}; choose another --output")
    if files and not options.overwrite:
        raise UsageError(f"{output}: already contains a model; use --overwrite to replace it")
    sources = [inputs.open_configured(paths, config, options) for paths in (good, unfiltered)]
    common_text_format([file for source in sources for file in source.files])
    if sources[0].fingerprint == sources[1].fingerprint:
        raise UsageError(f"{good[0]}: is on both sides, so there is nothing to learn; name unfiltered documents")
    sides, cards = [], []
    for paths, source in zip((good, unfiltered), sources, strict=True):
        with show_progress(options.progress, f"reading {paths[0]}", source.records, "documents"):
            sample, total = _sample(source, seed, documents, options.progress)
        if len(sample) < _MIN_DOCUMENTS:
            raise InputError(
                f"{paths[0]}: {len(sample)} documents with words, but each side needs {_MIN_DOCUMENTS}; add inputs"
            )
        sides.append(sample)
        cards.append(
            {
                "names": [storage.basename(path.rstrip("/")) for path in paths],
                "bytes": inputs.size_on_disk(source.files),
                "fingerprint": source.fingerprint,
                "documents": total,
                "sampled": len(sample),
            }
        )
    # By id, so that a document of both inputs is in the same part of both.
    training = [[buckets for hash, buckets in side if hash % _HELD_OUT] for side in sides]
    held_out = [[buckets for hash, buckets in side if not hash % _HELD_OUT] for side in sides]
    for paths, part in zip((good, unfiltered), held_out, strict=True):
        if not part:
            raise InputError(f"{paths[0]}: has too few distinct documents to hold some out; add more inputs")
    with show_progress(options.progress, "training", _EPOCHS * sum(map(len, training)), "documents"):
        weights = _train(training, seed, options.progress)
    data = io.BytesIO()
    np.save(data, weights)
    storage.write_bytes(storage.join(output, _WEIGHTS), data.getvalue())
    card = {
        "format": _FORMAT,
        "hash": hashing.NAME,
        "buckets": _BUCKETS,
        "characters": _CHARACTERS,
        "good": cards[0],
        "unfiltered": cards[1],
        "options": {"seed": seed, "documents": documents},
        "held_out": _evaluate(*(_predict(weights, texts) for texts in held_out)),
        "weights_sha256": storage.sha256_of(storage.join(output, _WEIGHTS)),
    }
    storage.write_json(storage.join(output, _CARD), card)
    return card


def _hash_words(texts: pa.StringArray) -> Iterator[tuple[_Buckets, npt.NDArray[np.int64]]]:
    """Yield for slices of texts the bucket of each word, and the bounds of the words of each text."""
    texts = pc.utf8_slice_codeunits(texts, 0, _CHARACTERS)
    data, starts = text_arrays(texts)
    for first, last in slices_within(starts, _SLICE_BYTES):
        words = hashing.word_hashes(data, starts[first : last + 1])
        yield (words.hashes >> np.uint64(64 - _BUCKET_BITS)).astype(np.int32), words.documents


def _sample(
    source: inputs.DocumentInput, seed: int, documents: int, progress: Progress
) -> tuple[list[tuple[int, _Buckets]], int]:
    """Return the documents with the lowest hashes of their ids, in this order, and the number of documents with words.

    A document is the hash of its id, and the bucket of each of its words.
    """
    sample, total = LowestHashes(documents), 0
    for shard in source.undivided:
        for batch in inputs.read_documents(shard, Drops()):
            hashes = iter(hash_keys(document_keys(batch, shard), f"quality sample {seed}").tolist())
            for buckets, bounds in _hash_words(batch.column("text")):
                for (begin, end), hash in zip(itertools.pairwise(bounds.tolist()), hashes):  # noqa: B905
                    total += end > begin
                    if end > begin and sample.accepts(hash):
                        sample.add(hash, buckets[begin:end].copy())
            progress.advance(batch.num_rows)
    return sample.pairs(), total


def _train(sides: Sequence[list[_Buckets]], seed: int, progress: Progress) -> npt.NDArray[np.float32]:
    """Return the weights of a logistic regression, trained by AdaGrad; both sides have the same weight in the loss."""
    texts = [text for side in sides for text in side]
    labels = np.repeat([1.0, 0.0], [len(side) for side in sides])
    importance = np.repeat([len(texts) / len(side) / 2 for side in sides], [len(side) for side in sides])
    weights, squares = np.zeros(_BUCKETS + 1), np.full(_BUCKETS + 1, 1e-8)
    draw = np.random.default_rng(seed)
    for _ in range(_EPOCHS):
        order = draw.permutation(len(texts))
        for first in range(0, len(order), _BATCH):
            batch = order[first : first + _BATCH]
            buckets = np.concatenate([texts[text] for text in batch])
            sizes = np.array([len(texts[text]) for text in batch])
            errors = (_probabilities(_logits(weights, buckets, sizes)) - labels[batch]) * importance[batch] / len(batch)
            gradient = np.bincount(buckets, np.repeat(errors * _feature_scale(sizes), sizes), _BUCKETS + 1)
            gradient[-1] = errors.sum()
            squares += gradient * gradient
            weights -= _LEARNING_RATE * gradient / np.sqrt(squares)
            progress.advance(len(batch))
    return weights.astype(np.float32)


def _predict(weights: npt.NDArray[np.float32], texts: list[_Buckets]) -> _Floats:
    sizes = np.array([len(text) for text in texts])
    return _probabilities(_logits(weights, np.concatenate(texts), sizes))


def _logits(weights: npt.NDArray[np.floating], buckets: _Buckets, sizes: npt.NDArray[np.int64]) -> _Floats:
    # Sums text by text, so that a score does not depend on the other texts.
    sums = np.bincount(np.repeat(np.arange(len(sizes)), sizes), weights[buckets], len(sizes))
    return np.asarray(sums * _feature_scale(sizes) + weights[-1])


def _feature_scale(sizes: npt.NDArray[np.int64]) -> _Floats:
    return np.asarray(1 / np.sqrt(np.maximum(sizes, 1)))


def _probabilities(logits: _Floats) -> _Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))))


def _evaluate(good: _Floats, unfiltered: _Floats) -> dict[str, Any]:
    """Return the ROC AUC of the scores of two sides, a few points of the curve, and the share of each that is kept."""
    _, ranks, counts = np.unique(np.concatenate([good, unfiltered]), return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    above = mean_ranks[ranks[: len(good)]].sum() - len(good) * (len(good) + 1) / 2
    return {
        "good": len(good),
        "unfiltered": len(unfiltered),
        "roc_auc": round(float(above / len(good) / len(unfiltered)), 6),
        "curve": [
            {"score": score, **_shares(good >= score, unfiltered >= score)} for score in (0.1, 0.25, 0.5, 0.75, 0.9)
        ],
        "kept": _shares((2 - good) ** -ALPHA, (2 - unfiltered) ** -ALPHA),
    }


def _shares(good: npt.NDArray[Any], unfiltered: npt.NDArray[Any]) -> dict[str, float]:
    return {"good": round(float(good.mean()), 6), "unfiltered": round(float(unfiltered.mean()), 6)}

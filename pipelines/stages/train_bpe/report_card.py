"""Computes the report card of a tokenizer: what its vocabulary does to the corpus.

Its keys: `vocabulary`, `corpus`, `reference`, `groups`, `held_out`, `rare`, `longest`, `strange`, `verification`,
`curves`. Figures without any data are null. Shares are between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.bpe.merges import Merges
from pipelines.algorithms.bpe.suspicious_tokens import KINDS, kind_of, shown
from pipelines.algorithms.bpe.token_statistics import (
    CheckedMerge,
    by_powers_of_ten,
    rarer_than,
    renyi_efficiency,
    spread_positions,
    steps_to_check,
    verify_merges,
)
from pipelines.stages.train_bpe.token_tally import (
    CorpusTotals,
    Description,
    Integers,
    Reference,
    Sample,
    SampleTally,
    WordTally,
    describe,
    tally_sample,
    tally_words,
)
from pipelines.tokenizers.encoding import quickest_encoder

RENYI_ALPHA = 2.5
_MAX_GROUPS = 20
_MAX_LISTED = 40
_MAX_LISTED_PER_KIND = 8
_CURVE_POINTS = 120
# Each distinct word is encoded once, so a larger cache gains nothing.
_MAX_CACHED_WORDS = 500_000
_BYTES = 256

# The symbols of all words, where each word begins and the last ends, and how often each occurs.
WordArrays = tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]


class _Measured(NamedTuple):
    """The tokens of one tokenizer; `words` is None if it does not encode words alone as in their text."""

    name: str
    description: Description
    words: WordTally | None
    sample: SampleTally

    @property
    def uses_all_words(self) -> bool:
        """Whether figures of held-out text cover all of it, or only the sample."""
        return self.words is not None and bool(self.words.held_out_frequencies.any())

    @property
    def held_out_frequencies(self) -> Integers:
        """How often each id occurs in held-out text."""
        return (
            self.words.held_out_frequencies if self.words and self.uses_all_words else self.sample.held_out_frequencies
        )


def make_card(
    *,
    tokens: Sequence[bytes],
    merges: Merges,
    words: Callable[[], Iterable[pa.RecordBatch]],
    trained_on: Callable[[], WordArrays],
    sample: pa.Table,
    tokenizer_json: bytes,
    held_out_was_trained_on: bool,
    reference: Reference | None = None,
    rare_below: int = 100,
    checked_steps: int = 12,
    threads: bool = False,
) -> dict[str, Any]:
    """Return the report card as JSON values; the same inputs give the same card.

    `tokens` are the entries by id, without <|endoftext|>; merge i makes entry 256 + i. `words` returns batches of
    `word`, `count` (in the training text) and `held_out` (in the other text), and may be called more than once; words
    are pieces of GPT-2's split, so sums over words are exact for the whole corpus. `trained_on` returns the words as
    `learn_merges` received them; the verification consumes them. `sample` has `group`, `text` and `held_out`. With
    `held_out_was_trained_on`, the held-out documents of the sample are those that `tokenize` would hold out. With
    `threads`, encoding uses all cores. Raises InputError if a tokenizer cannot be loaded.
    """
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    description = Description(len(tokens) + 1, lengths, splits_as_gpt2=True)
    name = "the new tokenizer"
    encoder = quickest_encoder(tokenizer_json, name, max_texts=_MAX_CACHED_WORDS)
    corpus, own_words = CorpusTotals(), WordTally(encoder, description.size, threads=threads)
    tally_words(words(), corpus, own_words)
    with ThreadPoolExecutor(1) as pool:
        # Kernels release the interpreter's lock, so the merges are verified in the background.
        checking = steps_to_check(len(merges.left), checked_steps)
        checked = pool.submit(lambda: verify_merges(*trained_on(), merges, checking) if checking else [])
        documents = Sample(sample)
        own_sample = tally_sample(encoder, documents, description.size, threads=threads)
        vocabulary = _Vocabulary(tokens, merges, _Measured(name, description, own_words, own_sample))
        compared = _measure_reference(reference, words, documents, threads) if reference else None
        card = _figures(vocabulary, corpus, documents, compared)
        card["held_out"]["was_trained_on"] = held_out_was_trained_on
        card |= {"rare": _rare(vocabulary, rare_below), "strange": _suspicious(vocabulary)}
        steps = checked.result()
    card["verification"] = _verification(steps, vocabulary)
    card["curves"] = _curves(vocabulary, corpus, steps, compared)
    return card


def _measure_reference(
    reference: Reference, words: Callable[[], Iterable[pa.RecordBatch]], sample: Sample, threads: bool
) -> _Measured:
    description = describe(reference.tokenizer_json, reference.name)
    encoder = quickest_encoder(reference.tokenizer_json, reference.name, max_texts=_MAX_CACHED_WORDS)
    tally = None
    if description.splits_as_gpt2:
        tally = WordTally(encoder, description.size, threads=threads)
        tally_words(words(), tally)
    sample_tally = tally_sample(encoder, sample, description.size, threads=threads)
    return _Measured(reference.name, description, tally, sample_tally)


class _Vocabulary:
    """The entries with their frequencies in the corpus and in held-out text."""

    def __init__(self, tokens: Sequence[bytes], merges: Merges, measured: _Measured) -> None:
        assert measured.words is not None
        self.tokens = tokens
        self.merges = merges
        self.measured = measured
        self.frequencies = measured.words.frequencies[: len(tokens)]
        self.held_out_frequencies = measured.held_out_frequencies[: len(tokens)]
        self.lengths = measured.description.lengths

    def entry(self, id: int) -> dict[str, Any]:
        """Return the figures of an entry; `when_merged` is how often its pair occurred when it was merged."""
        merge = id - _BYTES
        return {
            "id": id,
            "token": shown(self.tokens[id]),
            "bytes": len(self.tokens[id]),
            "count": int(self.frequencies[id]),
            "held_out": int(self.held_out_frequencies[id]),
            "when_merged": int(self.merges.counts[merge]) if 0 <= merge < len(self.merges.counts) else None,
        }

    def entries(self, ids: Iterable[int]) -> list[dict[str, Any]]:
        """Return the figures of several entries."""
        return [self.entry(int(id)) for id in ids]


def _figures(
    vocabulary: _Vocabulary, corpus: CorpusTotals, sample: Sample, compared: _Measured | None
) -> dict[str, Any]:
    measured = vocabulary.measured
    reference = compared and {
        "name": compared.name,
        "entries": compared.description.size,
        **_word_figures(compared, corpus),
        "held_out": _held_out_use(compared, sample, corpus),
    }
    return {
        "vocabulary": {"entries": measured.description.size, "merges": len(vocabulary.merges.left)},
        "corpus": {
            "bytes": corpus.bytes,
            "words": corpus.words,
            "distinct_words": corpus.distinct_words,
            **_word_figures(measured, corpus),
        },
        "reference": reference,
        "groups": _groups(sample, measured, compared),
        "held_out": _held_out(vocabulary, sample, corpus),
        "longest": vocabulary.entries(np.argsort(-vocabulary.lengths, kind="stable")[:_MAX_LISTED]),
    }


def _word_figures(measured: _Measured, corpus: CorpusTotals) -> dict[str, Any]:
    """Return the figures of all words; null if this tokenizer does not encode them alone as in their text."""
    words = measured.words
    if words is None:
        names = ("tokens", "bytes_per_token", "fertility", "continued_words", "renyi_efficiency", "shannon_efficiency")
        return dict.fromkeys(names)
    tokens, size = int(words.frequencies.sum()), measured.description.size
    return {
        "tokens": tokens,
        "bytes_per_token": _ratio(corpus.bytes, tokens),
        "fertility": _ratio(words.alphabetic_tokens, words.alphabetic_words),
        "continued_words": _ratio(words.continued_words, words.alphabetic_words),
        "renyi_efficiency": round(renyi_efficiency(words.frequencies, size, RENYI_ALPHA), 6),
        "shannon_efficiency": round(renyi_efficiency(words.frequencies, size, 1), 6),
    }


def _groups(sample: Sample, measured: _Measured, compared: _Measured | None) -> list[dict[str, Any]]:
    """Return bytes per token by group of the sample, largest first; the smallest of many groups share one row."""
    columns = {"documents": np.ones_like(sample.group), "bytes": sample.bytes, "tokens": measured.sample.tokens}
    if compared:
        columns["reference_tokens"] = compared.sample.tokens
    sums = {name: np.zeros(len(sample.groups), np.int64) for name in columns}
    for name, values in columns.items():
        np.add.at(sums[name], sample.group, values)
    order = sorted(range(len(sample.groups)), key=lambda group: (-int(sums["bytes"][group]), sample.groups[group]))
    listed = _MAX_GROUPS if len(order) > _MAX_GROUPS + 1 else len(order)
    members = [(sample.groups[group], [group]) for group in order[:listed]]
    if order[listed:]:
        members.append((f"({len(order) - listed:,} others)", order[listed:]))
    rows: list[dict[str, Any]] = [
        {"group": name, **{key: int(values[groups].sum()) for key, values in sums.items()}} for name, groups in members
    ]
    for row in rows:
        row["bytes_per_token"] = _ratio(row["bytes"], row["tokens"])
        row["reference_bytes_per_token"] = _ratio(row["bytes"], row["reference_tokens"]) if compared else None
    return rows


def _held_out(vocabulary: _Vocabulary, sample: Sample, corpus: CorpusTotals) -> dict[str, Any]:
    unused = np.flatnonzero(vocabulary.held_out_frequencies == 0)
    # Most frequent first: entries frequent in the corpus but absent here often come from one source.
    listed = unused[np.argsort(-vocabulary.frequencies[unused], kind="stable")][:_MAX_LISTED]
    figures = _held_out_use(vocabulary.measured, sample, corpus)
    return figures | {"unused": vocabulary.entries(listed) if figures["tokens"] else []}


def _held_out_use(measured: _Measured, sample: Sample, corpus: CorpusTotals) -> dict[str, Any]:
    """Return the share of a vocabulary that held-out text uses; <|endoftext|>, which no text uses, is not counted."""
    frequencies, all_words = measured.held_out_frequencies, measured.uses_all_words
    size_bytes = corpus.held_out_bytes if all_words else int(sample.bytes[sample.held_out].sum())
    tokens, used = int(frequencies.sum()), int(np.count_nonzero(frequencies))
    return {
        "measured_on": "all words" if all_words else "the sample",
        "bytes": size_bytes,
        "tokens": tokens,
        "bytes_per_token": _ratio(size_bytes, tokens),
        "entries_used": used if tokens else None,
        "share_used": _ratio(used, measured.description.size - 1) if tokens else None,
    }


def _rare(vocabulary: _Vocabulary, below: int) -> dict[str, Any]:
    """Return the entries that are rare in the corpus; single bytes, part of every vocabulary, come last."""
    rare = rarer_than(vocabulary.frequencies, below)
    listed = np.concatenate((rare[rare >= _BYTES], rare[rare < _BYTES]))[:_MAX_LISTED]
    return {
        "below": below,
        "entries": len(rare),
        "single_bytes": int(np.count_nonzero(rare < _BYTES)),
        "never": int(np.count_nonzero(vocabulary.frequencies == 0)),
        "by_powers_of_ten": by_powers_of_ten(vocabulary.frequencies),
        "listed": vocabulary.entries(listed),
    }


def _suspicious(vocabulary: _Vocabulary) -> list[dict[str, Any]]:
    """Return the suspicious entries by kind, the longest of each first."""
    ids: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for id, token in enumerate(vocabulary.tokens):
        kind = kind_of(token)
        if kind is not None:
            ids[kind].append(id)
    return [
        {
            "kind": kind,
            "what": description,
            "entries": len(ids[kind]),
            "listed": vocabulary.entries(
                sorted(ids[kind], key=lambda id: -vocabulary.lengths[id])[:_MAX_LISTED_PER_KIND]
            ),
        }
        for kind, (description, _) in KINDS.items()
        if ids[kind]
    ]


def _verification(checked: Sequence[CheckedMerge], vocabulary: _Vocabulary) -> dict[str, Any]:
    def pair(left: int, right: int) -> list[str]:
        return [shown(vocabulary.tokens[id]) for id in (left, right) if 0 <= id < len(vocabulary.tokens)]

    steps = [
        {
            "step": merge.step + 1,
            "pair": pair(merge.left, merge.right),
            "count": merge.times,
            "found_pair": pair(merge.found_left, merge.found_right),
            "found_count": merge.found_times,
            "is_right": merge.is_right,
        }
        for merge in checked
    ]
    return {"checked": len(steps), "right": sum(merge.is_right for merge in checked), "steps": steps}


def _curves(
    vocabulary: _Vocabulary, corpus: CorpusTotals, steps: Sequence[CheckedMerge], compared: _Measured | None
) -> dict[str, Any]:
    """Return lists of [x, y]; those of the reference are empty if its words were not counted."""
    descending = np.sort(vocabulary.frequencies)[::-1]
    reference_words = compared.words if compared else None
    reference_descending, reference_sizes, reference_lengths = descending[:0], [], []
    if compared and reference_words:
        reference_descending = np.sort(reference_words.frequencies)[::-1]
        reference_lengths = _count_by_length(compared.description.lengths)
        if corpus.bytes:
            reference_sizes.append([compared.description.size, _ratio(corpus.bytes, int(reference_descending.sum()))])
    # A vocabulary of the first entries only has these bytes per token; the last point is the whole vocabulary.
    sizes = [[merge.step + _BYTES + 1, _ratio(corpus.bytes, merge.tokens)] for merge in steps if merge.tokens]
    if corpus.bytes:
        sizes.append([vocabulary.measured.description.size, _ratio(corpus.bytes, int(descending.sum()))])
    counts = vocabulary.merges.counts
    return {
        "frequency_by_rank": _frequency_by_rank(descending),
        "reference_frequency_by_rank": _frequency_by_rank(reference_descending),
        "share_of_tokens": _cumulative_share(descending),
        "reference_share_of_tokens": _cumulative_share(reference_descending),
        # The trainer of the tokenizers library does not report counts.
        "count_by_step": [
            [step, int(counts[step - 1])]
            for step in spread_positions(len(counts), _CURVE_POINTS)
            if counts[step - 1] > 0
        ],
        "bytes_per_token_by_entries": sizes,
        "reference_bytes_per_token_by_entries": reference_sizes,
        "entries_by_bytes": _count_by_length(vocabulary.lengths),
        "reference_entries_by_bytes": reference_lengths,
    }


def _frequency_by_rank(descending: Integers) -> list[list[int]]:
    occurring = int(np.count_nonzero(descending))
    return [[rank, int(descending[rank - 1])] for rank in spread_positions(occurring, _CURVE_POINTS)]


def _cumulative_share(descending: Integers) -> list[list[float | None]]:
    """Return the share of all tokens that the most frequent entries cover."""
    occurring, sums = int(np.count_nonzero(descending)), np.cumsum(descending)
    return [[rank, _ratio(int(sums[rank - 1]), int(sums[-1]))] for rank in spread_positions(occurring, _CURVE_POINTS)]


def _count_by_length(lengths: Integers) -> list[list[int]]:
    return [[length, int(count)] for length, count in enumerate(np.bincount(lengths)) if count]


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None

"""The report card of a tokenizer: what its vocabulary does to the corpus, as figures for machines and for a page.

Its keys: `vocabulary`, `corpus`, `reference`, `groups`, `held_out`, `rare`, `longest`, `strange`, `verification`,
`curves`. A figure without anything to measure it on is null. Shares are of 1.
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
    Integers,
    by_powers_of_ten,
    rarer_than,
    renyi_efficiency,
    spread_positions,
    steps_to_check,
    verify_merges,
)
from pipelines.stages.train_bpe.token_tally import (
    Description,
    Reference,
    Sample,
    SampleTally,
    WordTally,
    describe,
    sample_of,
    tally_sample,
    words_of,
)
from pipelines.tokenizers.encoding import quickest_encoder

RENYI_ALPHA = 2.5
_MOST_GROUPS = 20
_LISTED = 40
_LISTED_OF_A_KIND = 8
_CURVE_POINTS = 120
# Each distinct word is met once, so to remember it serves nothing.
_WORDS_REMEMBERED = 500_000
_BYTES = 256


# The symbols of all words, where each word begins and the last ends, and how often each occurs.
WordArrays = tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]


class _Measured(NamedTuple):
    """What one tokenizer does: to the words of the corpus, where they can be encoded alone, and to the sample."""

    name: str
    about: Description
    words: WordTally | None
    sample: SampleTally

    @property
    def held_out_frequencies(self) -> Integers:
        """How often each id occurs in held-out text: in all of it where its words were counted, else in the sample."""
        if self.words is not None and self.words.held_out_frequencies.any():
            return self.words.held_out_frequencies
        return self.sample.held_out_frequencies


class _Corpus:
    """The words of the corpus: how many there are, and how often they and their bytes occur."""

    def __init__(self) -> None:
        self.bytes = self.words = self.distinct_words = self.held_out_bytes = 0

    def read(self, batches: Iterable[pa.RecordBatch], tally: WordTally) -> None:
        """Add up all words, and their tokens in `tally`."""
        for batch in batches:
            if not batch.num_rows:
                continue
            words = words_of(batch)
            lengths = np.diff(words.starts)
            self.bytes += int((lengths * words.counts).sum())
            self.held_out_bytes += int((lengths * words.held_out).sum())
            self.words += int(words.counts.sum())
            self.distinct_words += int(np.count_nonzero(words.counts))
            tally.add(words)


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

    `tokens` are the entries by id, without <|endoftext|>; merge i makes entry 256 + i. `words` gives batches of `word`,
    `count` (in the documents trained on) and `held_out` (in those that were not), as often as it is asked; each word is
    a piece of GPT-2's split, so that the sums over words are those over the whole corpus. `trained_on` gives the words
    as `learn_merges` took them, for the proof, which uses them up. `sample` has `group`, `text` and `held_out`.
    `held_out_was_trained_on` says that nothing was kept from training: the held-out documents of the sample are then
    those that `tokenize` would hold out. With `threads`, all cores encode. Raises InputError where a tokenizer cannot
    be loaded.
    """
    ours = _Tokenizer(tokenizer_json, "the new tokenizer", _described(tokens), threads)
    corpus = _Corpus()
    corpus.read(words(), ours.tally)
    with ThreadPoolExecutor(1) as beside:
        # Kernels let go of the interpreter's lock, so the merges are checked while all the rest is done.
        checked = beside.submit(_proof, trained_on, merges, steps_to_check(len(merges.left), checked_steps))
        documents = sample_of(sample)
        vocabulary = _Vocabulary(tokens, merges, ours.measured(documents))
        compared = _compared(reference, words, documents, threads) if reference else None
        card = _figures(vocabulary, corpus, documents, compared)
        card["held_out"]["was_trained_on"] = held_out_was_trained_on
        card |= {"rare": _rare(vocabulary, rare_below), "strange": _strange(vocabulary)}
        steps = checked.result()
    card["verification"] = _verification(steps, vocabulary)
    card["curves"] = _curves(vocabulary, corpus, steps, compared)
    return card


def _described(tokens: Sequence[bytes]) -> Description:
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    return Description(len(tokens) + 1, lengths, splits_as_gpt2=True)


def _proof(trained_on: Callable[[], WordArrays], merges: Merges, steps: Sequence[int]) -> list[CheckedMerge]:
    if not steps:
        return []
    symbols, starts, counts = trained_on()
    return verify_merges(symbols, starts, counts, merges, steps)


class _Tokenizer:
    """A tokenizer, loaded, and its tally of the words."""

    def __init__(self, tokenizer_json: bytes, name: str, about: Description, threads: bool) -> None:
        self._about = about
        self._name = name
        self._encoder = quickest_encoder(tokenizer_json, name, forgets_after=_WORDS_REMEMBERED)
        self._threads = threads
        self.tally = WordTally(self._encoder, self._about.size, threads=threads)

    def measured(self, sample: Sample) -> _Measured:
        """Encode the sample; the words are in the tally by now, if they can be encoded alone."""
        tally = tally_sample(self._encoder, sample, self._about.size, threads=self._threads)
        return _Measured(self._name, self._about, self.tally if self._about.splits_as_gpt2 else None, tally)


def _compared(
    reference: Reference, words: Callable[[], Iterable[pa.RecordBatch]], sample: Sample, threads: bool
) -> _Measured:
    about = describe(reference.tokenizer_json, reference.name)
    tokenizer = _Tokenizer(reference.tokenizer_json, reference.name, about, threads)
    if about.splits_as_gpt2:
        _Corpus().read(words(), tokenizer.tally)
    return tokenizer.measured(sample)


class _Vocabulary:
    """The entries with how often they occur."""

    def __init__(self, tokens: Sequence[bytes], merges: Merges, measured: _Measured) -> None:
        assert measured.words is not None
        self.tokens = tokens
        self.merges = merges
        self.measured = measured
        self.frequencies = measured.words.frequencies[: len(tokens)]
        self.held_out_frequencies = measured.held_out_frequencies[: len(tokens)]
        self.lengths = measured.about.lengths

    def entry(self, id: int) -> dict[str, Any]:
        """Return what a table shows of an entry; `when_merged` is how often its pair occurred when it was made."""
        made = id - _BYTES
        return {
            "id": id,
            "token": shown(self.tokens[id]),
            "bytes": len(self.tokens[id]),
            "count": int(self.frequencies[id]),
            "held_out": int(self.held_out_frequencies[id]),
            "when_merged": int(self.merges.counts[made]) if 0 <= made < len(self.merges.counts) else None,
        }

    def entries(self, ids: Iterable[int]) -> list[dict[str, Any]]:
        return [self.entry(int(id)) for id in ids]


def _figures(vocabulary: _Vocabulary, corpus: _Corpus, sample: Sample, compared: _Measured | None) -> dict[str, Any]:
    ours = vocabulary.measured
    return {
        "vocabulary": {"entries": ours.about.size, "merges": len(vocabulary.merges.left)},
        "corpus": {
            "bytes": corpus.bytes,
            "words": corpus.words,
            "distinct_words": corpus.distinct_words,
            **_of_words(ours, corpus),
        },
        "reference": _reference(compared, corpus, sample) if compared else None,
        "groups": _groups(sample, ours, compared),
        "held_out": _held_out(vocabulary, sample, corpus),
        "longest": vocabulary.entries(np.argsort(-vocabulary.lengths, kind="stable")[:_LISTED]),
    }


def _reference(compared: _Measured, corpus: _Corpus, sample: Sample) -> dict[str, Any]:
    return {
        "name": compared.name,
        "entries": compared.about.size,
        **_of_words(compared, corpus),
        "held_out": _use_of(compared, sample, corpus),
    }


def _of_words(measured: _Measured, corpus: _Corpus) -> dict[str, Any]:
    """Return the figures of all words; null where they cannot be encoded alone by this tokenizer."""
    words = measured.words
    if words is None:
        names = ("tokens", "bytes_per_token", "fertility", "continued_words", "renyi_efficiency", "shannon_efficiency")
        return dict.fromkeys(names)
    tokens = int(words.frequencies.sum())
    return {
        "tokens": tokens,
        "bytes_per_token": _ratio(corpus.bytes, tokens),
        "fertility": _ratio(words.letter_tokens, words.letter_words),
        "continued_words": _ratio(words.continued_words, words.letter_words),
        "renyi_efficiency": round(renyi_efficiency(words.frequencies, measured.about.size, RENYI_ALPHA), 6),
        "shannon_efficiency": round(renyi_efficiency(words.frequencies, measured.about.size, 1), 6),
    }


def _groups(sample: Sample, ours: _Measured, compared: _Measured | None) -> list[dict[str, Any]]:
    """Return bytes per token by group of the sample, the largest first; the smallest are one row if there are many."""
    number = len(sample.groups)
    columns = {"documents": np.ones(len(sample.group), np.int64), "bytes": sample.bytes, "tokens": ours.sample.tokens}
    if compared:
        columns["reference_tokens"] = compared.sample.tokens
    sums = {name: _sums(sample.group, values, number) for name, values in columns.items()}
    order = sorted(range(number), key=lambda group: (-int(sums["bytes"][group]), sample.groups[group]))
    most = _MOST_GROUPS if number > _MOST_GROUPS + 1 else number
    parts = [(sample.groups[group], [group]) for group in order[:most]]
    if order[most:]:
        parts.append((f"({number - most:,} others)", order[most:]))
    rows: list[dict[str, Any]] = [
        {"group": name, **{key: int(each[part].sum()) for key, each in sums.items()}} for name, part in parts
    ]
    for row in rows:
        row["bytes_per_token"] = _ratio(row["bytes"], row["tokens"])
        row["reference_bytes_per_token"] = _ratio(row["bytes"], row["reference_tokens"]) if compared else None
    return rows


def _sums(group: Integers, values: Integers, number: int) -> Integers:
    sums = np.zeros(number, np.int64)
    np.add.at(sums, group, values)
    return sums


def _held_out(vocabulary: _Vocabulary, sample: Sample, corpus: _Corpus) -> dict[str, Any]:
    unused = np.flatnonzero(vocabulary.held_out_frequencies == 0)
    # The most frequent of them first: what is in the corpus often and never here is often of one source alone.
    listed = unused[np.argsort(-vocabulary.frequencies[unused], kind="stable")][:_LISTED]
    figures = _use_of(vocabulary.measured, sample, corpus)
    return figures | {"unused": vocabulary.entries(listed) if figures["tokens"] else []}


def _use_of(measured: _Measured, sample: Sample, corpus: _Corpus) -> dict[str, Any]:
    """Return what held-out text uses of a vocabulary; <|endoftext|>, which no text uses, is not among its entries."""
    frequencies = measured.held_out_frequencies
    of_words = measured.words is not None and frequencies is measured.words.held_out_frequencies
    size_bytes = corpus.held_out_bytes if of_words else int(sample.bytes[sample.held_out].sum())
    tokens, used = int(frequencies.sum()), int(np.count_nonzero(frequencies))
    return {
        "measured_on": "all words" if of_words else "the sample",
        "bytes": size_bytes,
        "tokens": tokens,
        "bytes_per_token": _ratio(size_bytes, tokens),
        "entries_used": used if tokens else None,
        "share_used": _ratio(used, measured.about.size - 1) if tokens else None,
    }


def _rare(vocabulary: _Vocabulary, below: int) -> dict[str, Any]:
    """Return the entries that are rare in the corpus; the single bytes, which are always there, after the others."""
    rare = rarer_than(vocabulary.frequencies, below)
    listed = np.concatenate((rare[rare >= _BYTES], rare[rare < _BYTES]))[:_LISTED]
    return {
        "below": below,
        "entries": len(rare),
        "single_bytes": int(np.count_nonzero(rare < _BYTES)),
        "never": int(np.count_nonzero(vocabulary.frequencies == 0)),
        "by_powers_of_ten": by_powers_of_ten(vocabulary.frequencies),
        "listed": vocabulary.entries(listed),
    }


def _strange(vocabulary: _Vocabulary) -> list[dict[str, Any]]:
    """Return the strange entries by kind, the longest of each first."""
    ids: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for id, token in enumerate(vocabulary.tokens):
        kind = kind_of(token)
        if kind is not None:
            ids[kind].append(id)
    return [
        {
            "kind": kind,
            "what": what,
            "entries": len(ids[kind]),
            "listed": vocabulary.entries(sorted(ids[kind], key=lambda id: -vocabulary.lengths[id])[:_LISTED_OF_A_KIND]),
        }
        for kind, (what, _) in KINDS.items()
        if ids[kind]
    ]


def _verification(checked: Sequence[CheckedMerge], vocabulary: _Vocabulary) -> dict[str, Any]:
    def pair(left: int, right: int) -> list[str]:
        return [shown(vocabulary.tokens[id]) for id in (left, right) if 0 <= id < len(vocabulary.tokens)]

    steps = [
        {
            "step": each.step + 1,
            "pair": pair(each.left, each.right),
            "count": each.times,
            "found_pair": pair(each.found_left, each.found_right),
            "found_count": each.found_times,
            "is_right": each.is_right,
        }
        for each in checked
    ]
    return {"checked": len(steps), "right": sum(each.is_right for each in checked), "steps": steps}


def _curves(
    vocabulary: _Vocabulary, corpus: _Corpus, steps: Sequence[CheckedMerge], compared: _Measured | None
) -> dict[str, Any]:
    """Return what the plots draw: lists of [x, y]; the reference's are empty where its words were not counted."""
    by_rank = np.sort(vocabulary.frequencies)[::-1]
    has_theirs = compared is not None and compared.words is not None
    theirs = np.sort(compared.words.frequencies)[::-1] if compared and compared.words else by_rank[:0]
    # A vocabulary of the first entries alone gives these; the last is the whole.
    sizes = [[each.step + _BYTES + 1, _ratio(corpus.bytes, each.tokens)] for each in steps if each.tokens]
    if corpus.bytes:
        sizes.append([vocabulary.measured.about.size, _ratio(corpus.bytes, int(by_rank.sum()))])
    counts = vocabulary.merges.counts
    return {
        "frequency_by_rank": _at_ranks(by_rank),
        "reference_frequency_by_rank": _at_ranks(theirs),
        "share_of_tokens": _shares(by_rank),
        "reference_share_of_tokens": _shares(theirs),
        # The library's trainer does not tell how often it merged a pair; where ours cannot say, there is no count.
        "count_by_step": [
            [at, int(counts[at - 1])] for at in spread_positions(len(counts), _CURVE_POINTS) if counts[at - 1] > 0
        ],
        "bytes_per_token_by_entries": sizes,
        "reference_bytes_per_token_by_entries": _one_size(compared, corpus),
        "entries_by_bytes": _by_length(vocabulary.lengths),
        "reference_entries_by_bytes": _by_length(compared.about.lengths) if compared and has_theirs else [],
    }


def _one_size(compared: _Measured | None, corpus: _Corpus) -> list[list[float | None]]:
    if compared is None or compared.words is None or not corpus.bytes:
        return []
    return [[compared.about.size, _ratio(corpus.bytes, int(compared.words.frequencies.sum()))]]


def _at_ranks(by_rank: Integers) -> list[list[int]]:
    seen = int(np.count_nonzero(by_rank))
    return [[rank, int(by_rank[rank - 1])] for rank in spread_positions(seen, _CURVE_POINTS)]


def _shares(by_rank: Integers) -> list[list[float | None]]:
    """Return what share of all tokens the most frequent entries make up."""
    seen, sums = int(np.count_nonzero(by_rank)), np.cumsum(by_rank)
    return [[rank, _ratio(int(sums[rank - 1]), int(sums[-1]))] for rank in spread_positions(seen, _CURVE_POINTS)]


def _by_length(lengths: Integers) -> list[list[int]]:
    return [[length, int(count)] for length, count in enumerate(np.bincount(lengths)) if count]


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None

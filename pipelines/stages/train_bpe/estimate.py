"""What training will take, said from a sample before the work, and from the exact counts before the merges.

The number of distinct words grows with the text by Heaps' law; the sample gives its exponent. Over a thousandfold that
is good to a factor of two or so, which is why only what is far too much is refused before the words are counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

from pipelines.algorithms.bpe.word_counts import count_words
from pipelines.core.errors import InputError
from pipelines.core.estimate import DocumentsEstimate, round_down, size_in_words, time_in_words
from pipelines.core.machine import available_memory_bytes
from pipelines.stages.train_bpe.counting import WORDS_IN_MEMORY

# Measured on 0.5 to 6 million made-up words of 2.7 to 38 million bytes, and on real text (benchmarks/bpe.md). A symbol
# takes 1 byte as counted, 2 in the trainer (4 where ids go past 65,535) and up to 3 in the lists of words by pair; a
# word its count and start, twice since the trainer works on a copy, and its length.
_BYTES_A_SYMBOL, _BYTES_A_WIDE_SYMBOL, _BYTES_A_WORD = 6, 8, 44
_SECONDS_A_SYMBOL, _SECONDS_A_MERGE = 0.35e-6, 5e-6
_LARGEST_NARROW_VOCABULARY = 65_536
# The report card, made after the merges, keeps all words, encodes them and counts them anew: at 2 and 6 million words
# that took more than the merges. Writing the files and proving them takes some seconds whatever their size.
_BYTES_AN_EXAMINED_WORD = 200
_SECONDS_AN_EXAMINED_WORD, _SECONDS_OF_WRITING = 5e-6, 5
# The trainer of `tokenizers`: 0.39 GB at 0.29 million words, 3.98 GB at 3.58 million.
_BYTES_A_LIBRARY_WORD = 1_100
# Python with the libraries: in each worker, and in the main process, which loads those of all kinds of tokenizers.
_PROCESS_BYTES, _MAIN_PROCESS_BYTES = 300_000_000, 480_000_000
# A worker's dictionary, and the batches of texts that it reads.
_BYTES_A_COUNTED_WORD, _BYTES_OF_BATCHES = 200, 150_000_000
# What reading and splitting off the sample and the held-out take beside the counting itself.
_SECONDS_A_BYTE_READ = 1 / 60e6

_FEWEST_TEXTS = 8
_LEAST_EXPONENT, _GREATEST_EXPONENT = 0.3, 0.9
# A prediction above what is there by less than this may be wrong; the counts will tell.
_SURELY_TOO_MUCH = 1.5


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The distinct words of a text: their number, the bytes of them all, and how both grow with the text."""

    words: int
    symbols: int
    exponent: float
    bytes_a_new_word: float

    def of_text_times(self, factor: float) -> Vocabulary:
        """Return that of a text so many times as long."""
        words = round(self.words * factor**self.exponent)
        new = max(-self.symbols, (words - self.words) * self.bytes_a_new_word)
        return dataclasses.replace(self, words=words, symbols=round(self.symbols + new))

    def of_counts_from(self, least: int) -> Vocabulary:
        """Return the part of the words that occur so many times, as the exponent implies it (Pitman and Yor)."""
        share, rarer = self.exponent, 0.0
        for count in range(1, min(least, 1000)):
            rarer += share
            share *= (count - self.exponent) / (count + 1)
        kept = max(0.0, 1 - rarer)
        return dataclasses.replace(self, words=round(self.words * kept), symbols=round(self.symbols * kept))


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What training on so much text takes, and how much text would fit into the memory that is there."""

    text_bytes: int
    is_exact: bool
    workers: int
    words: int
    symbols: int
    counting_s: float
    counting_bytes: int
    merging_s: float
    merging_bytes: int
    available_bytes: int | None
    fitting_text_bytes: int


def predict(
    estimate: DocumentsEstimate,
    workers: int,
    vocab_size: int,
    *,
    min_word_count: int = 1,
    max_bytes: int | None = None,
    engine: str = "webtext",
) -> Prediction | None:
    """Return what training takes; None where the sample holds no text, so that nothing can be said."""
    if not estimate.sample_bytes:
        return None
    # Time of the processor, since the counter has threads of its own, which the workers will share.
    started = time.process_time()
    sampled = vocabulary_of(estimate.sample)
    seconds_a_byte = (time.process_time() - started) / estimate.sample_bytes
    text_bytes = min(estimate.text_bytes, max_bytes or estimate.text_bytes)
    reads = 2 if text_bytes < estimate.text_bytes else 1  # the first tells which documents make up so much
    busy = max(1, min(workers, estimate.shards))

    def trained_on(size: float) -> Vocabulary:
        return sampled.of_text_times(size / estimate.sample_bytes).of_counts_from(min_word_count)

    def merging_of(size: float) -> int:
        return merging_bytes(trained_on(size).words, trained_on(size).symbols, vocab_size, engine)

    trained = trained_on(text_bytes)
    available = available_memory_bytes()
    return Prediction(
        text_bytes=text_bytes,
        is_exact=estimate.is_exact,
        workers=busy,
        words=trained.words,
        symbols=trained.symbols,
        counting_s=(reads * estimate.text_bytes * _SECONDS_A_BYTE_READ + text_bytes * seconds_a_byte) / busy,
        counting_bytes=_counting_bytes(sampled.of_text_times(text_bytes / estimate.sample_bytes).words, busy),
        merging_s=_merging_s(trained.words, trained.symbols, vocab_size),
        merging_bytes=merging_of(text_bytes),
        available_bytes=available,
        fitting_text_bytes=text_bytes if available is None else _most_that_fits(merging_of, text_bytes, available),
    )


def vocabulary_of(texts: Sequence[str]) -> Vocabulary:
    """Count the distinct words of a sample, and see how they grow from half of it to the whole.

    Halved in all ways that four quarters allow, since neighbours may be alike and one quarter unlike the others.
    """
    parts = [text.encode() for text in (texts if len(texts) >= _FEWEST_TEXTS else _cut("".join(texts)))]
    middle = len(parts) // 2
    quarters = [parts[:middle:2], parts[1:middle:2], parts[middle::2], parts[middle + 1 :: 2]]
    counted = [frozenset(word for word, _ in count_words(quarter)) for quarter in quarters]
    sizes = [sum(map(len, quarter)) for quarter in quarters]
    words = counted[0].union(*counted[1:])
    exponents = [
        math.log(len(words) / len(counted[one] | counted[other])) / math.log(sum(sizes) / (sizes[one] + sizes[other]))
        for one, other in itertools.combinations(range(4), 2)
        if 0 < sizes[one] + sizes[other] < sum(sizes)
    ]
    exponent = statistics.fmean(exponents) if exponents else 0.0
    new = words - counted[0] - counted[1] or words
    return Vocabulary(
        words=len(words),
        symbols=sum(map(len, words)),
        exponent=min(_GREATEST_EXPONENT, max(_LEAST_EXPONENT, exponent)),
        bytes_a_new_word=sum(map(len, new)) / max(1, len(new)),
    )


def merging_bytes(words: int, symbols: int, vocab_size: int, engine: str = "webtext") -> int:
    """Return the memory that the command takes while it merges and examines distinct words of so many bytes in all."""
    a_symbol = _BYTES_A_SYMBOL if vocab_size <= _LARGEST_NARROW_VOCABULARY else _BYTES_A_WIDE_SYMBOL
    a_word = _BYTES_A_LIBRARY_WORD if engine == "tokenizers" else _BYTES_AN_EXAMINED_WORD
    return _MAIN_PROCESS_BYTES + max(a_symbol * symbols + _BYTES_A_WORD * words, a_word * words)


def describe(prediction: Prediction) -> str:
    """Say in one line what lies ahead."""
    workers = f"{prediction.workers} worker{'' if prediction.workers == 1 else 's'}"
    about = "" if prediction.is_exact else "about "
    line = (
        f"{about}{size_in_words(prediction.text_bytes)} of text: counting takes about "
        f"{time_in_words(prediction.counting_s)} with {workers}; merging about {time_in_words(prediction.merging_s)} "
        f"and {size_in_words(prediction.merging_bytes)}, the report card included"
    )
    if prediction.available_bytes is not None and prediction.merging_bytes > prediction.available_bytes:
        line += f", which may be more than the {size_in_words(prediction.available_bytes)} that are available"
    return line


def describe_counts(words: int, symbols: int, vocab_size: int) -> str:
    """Say in one line what training takes from counts of so many words, of which some may be the same."""
    needed, available = merging_bytes(words, symbols, vocab_size), available_memory_bytes()
    takes = f"{time_in_words(_merging_s(words, symbols, vocab_size))} and {size_in_words(needed)}"
    line = f"counts of {words:,} words: merging takes at most about {takes}, the report card included"
    if available is not None and needed > available:
        line += f", which may be more than the {size_in_words(available)} that are available"
    return line


def refuse_counts(words: int, symbols: int, vocab_size: int) -> None:
    """Raise InputError, before the work, where memory is surely too small for counts of so many distinct words."""
    needed, available = merging_bytes(words, symbols, vocab_size), available_memory_bytes()
    if available is not None and needed > _SURELY_TOO_MUCH * available:
        raise InputError(
            f"train-bpe: merging {words:,} words takes about {size_in_words(needed)} of memory, and "
            f"{size_in_words(available)} are available; leave out rare words with --min-word-count 2, add up counts "
            "that repeat their words with --count-only, or use a machine with more memory"
        )


def refuse_what_cannot_fit(prediction: Prediction) -> None:
    """Raise InputError, before the work, where the memory at hand is surely too small; says what would fit."""
    available = prediction.available_bytes
    if available is None:
        return
    if prediction.counting_bytes > available:
        raise InputError(
            f"train-bpe: counting takes about {size_in_words(prediction.counting_bytes)} of memory with "
            f"{prediction.workers} workers, and {size_in_words(available)} are available; give fewer --workers"
        )
    if prediction.merging_bytes > _SURELY_TOO_MUCH * available:
        fits = round_down(prediction.fitting_text_bytes)
        sample = f"train on a sample with --max-bytes {fits} ({size_in_words(fits)}), or " if fits else ""
        raise InputError(
            f"train-bpe: merging the words of about {size_in_words(prediction.text_bytes)} of text takes about "
            f"{size_in_words(prediction.merging_bytes)} of memory, and {size_in_words(available)} are available; "
            f"{sample}use a machine with more memory"
        )


def require_memory(
    words: int,
    symbols: int,
    vocab_size: int,
    counts: str,
    *,
    without_rare: tuple[int, int],
    engine: str = "webtext",
) -> None:
    """Raise InputError where the words that were counted, with so many bytes together, cannot be merged here.

    `counts` is where the counts are kept, `without_rare` the words and symbols of those that occur at least twice.
    """
    needed, available = merging_bytes(words, symbols, vocab_size, engine), available_memory_bytes()
    if available is None or needed <= available:
        return
    is_library = engine == "tokenizers"
    fewer = merging_bytes(words, symbols, vocab_size) if is_library else merging_bytes(*without_rare, vocab_size)
    way_out = f"on a machine with more memory (--counts {counts})"
    if fewer <= available and is_library:
        way_out = f"by our own trainer (--counts {counts}), which takes about {size_in_words(fewer)}"
    elif fewer <= available:
        way_out += f", or give --min-word-count 2, which takes about {size_in_words(fewer)}"
    raise InputError(
        f"train-bpe: merging {words:,} distinct words takes about {size_in_words(needed)} of memory, and "
        f"{size_in_words(available)} are available; the counts are kept: train from them {way_out}"
    )


def _merging_s(words: int, symbols: int, vocab_size: int) -> float:
    merging = symbols * _SECONDS_A_SYMBOL + vocab_size * _SECONDS_A_MERGE
    return merging + words * _SECONDS_AN_EXAMINED_WORD + _SECONDS_OF_WRITING


def _counting_bytes(words: int, workers: int) -> int:
    a_worker = _PROCESS_BYTES + _BYTES_OF_BATCHES + _BYTES_A_COUNTED_WORD * min(words, WORDS_IN_MEMORY)
    return a_worker * workers + (_PROCESS_BYTES if workers > 1 else 0)


def _most_that_fits(bytes_of: Callable[[float], int], most: int, available: int) -> int:
    """Return how much text, up to `most`, takes no more than what is available; 0 where not even a little does."""
    if bytes_of(most) <= available:
        return most
    least, too_much = 0, most
    while too_much - least > max(1, most // 1000):
        middle = (least + too_much) // 2
        if bytes_of(middle) <= available:
            least = middle
        else:
            too_much = middle
    return least


def _cut(text: str) -> list[str]:
    size = -(-len(text) // _FEWEST_TEXTS)
    return [text[start : start + size] for start in range(0, len(text), size)]

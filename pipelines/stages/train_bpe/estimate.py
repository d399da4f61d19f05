"""Time and memory that training needs, estimated from a sample before the work, and from exact counts before merging.

The number of distinct words grows with the text by Heaps' law; the sample gives its exponent. For a thousand times the
text the estimate is right within a factor of two or so; only what is far too large is refused before words are counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

from pipelines.algorithms.bpe.word_counts import count_words
from pipelines.format import format_bytes, format_duration, plural
from pipelines.records.estimate import DocumentsEstimate, check_memory, round_down
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.counts import Limits

# Measured on 0.5 to 6 million random words of 2.7 to 38 million bytes, and on real text (benchmarks/bpe.md). A symbol
# takes 1 byte as counted, 2 in the trainer (4 if ids exceed 65,535) and up to 3 in the lists of words by pair; a word
# its count and start, twice since the trainer works on a copy, and its length.
_BYTES_PER_SYMBOL, _BYTES_PER_WIDE_SYMBOL, _BYTES_PER_WORD = 6, 8, 44
_SECONDS_PER_SYMBOL, _SECONDS_PER_MERGE = 0.35e-6, 5e-6
_MAX_NARROW_VOCABULARY = 65_536
# The report card, written after the merges, keeps all words, encodes them and counts them again: for 2 and 6 million
# words that took more than merging. Writing and checking the files takes some seconds whatever their size.
_BYTES_PER_EXAMINED_WORD = 200
_SECONDS_PER_EXAMINED_WORD, _SECONDS_OF_WRITING = 5e-6, 5
# The trainer of `tokenizers`: 0.39 GB for 0.29 million words, 3.98 GB for 3.58 million.
_BYTES_PER_LIBRARY_WORD = 1_100
# Python with the libraries: in each worker, and in the main process, which loads several tokenizer libraries.
_PROCESS_BYTES, _MAIN_PROCESS_BYTES = 300_000_000, 480_000_000
# A worker's table of words, and its batches of texts.
_BYTES_PER_COUNTED_WORD, _BYTES_OF_BATCHES = 200, 150_000_000
# Reading documents and splitting them into sample and held-out, in addition to counting.
_SECONDS_PER_BYTE_READ = 1 / 60e6

_MIN_TEXTS = 8
_MIN_EXPONENT, _MAX_EXPONENT = 0.3, 0.9
# An estimate that exceeds the memory by less may be wrong; the exact counts will tell.
_TOLERANCE = 1.5


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The distinct words of a text: their number, their total bytes, and how both grow with the text."""

    words: int
    symbols: int
    exponent: float
    bytes_per_new_word: float

    def scale_text(self, factor: float) -> Vocabulary:
        """Return the vocabulary of a text `factor` times as long."""
        words = round(self.words * factor**self.exponent)
        new = max(-self.symbols, (words - self.words) * self.bytes_per_new_word)
        return dataclasses.replace(self, words=words, symbols=round(self.symbols + new))

    def keep_frequent(self, min_count: int) -> Vocabulary:
        """Return the words that occur at least `min_count` times, as the exponent implies (Pitman and Yor)."""
        share, rarer = self.exponent, 0.0
        for count in range(1, min(min_count, 1000)):
            rarer += share
            share *= (count - self.exponent) / (count + 1)
        kept = max(0.0, 1 - rarer)
        return dataclasses.replace(self, words=round(self.words * kept), symbols=round(self.symbols * kept))


@dataclasses.dataclass(frozen=True)
class TrainingEstimate:
    """Time and memory that training on `text_bytes` needs, and how much text fits into the memory available."""

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
    max_text_bytes: int

    def describe(self) -> str:
        """Return the estimate as one line."""
        return (
            f"{'' if self.is_exact else 'about '}{format_bytes(self.text_bytes)} of text: counting takes about "
            f"{format_duration(self.counting_s)} with {plural(self.workers, 'worker')}; merging about "
            f"{format_duration(self.merging_s)} and {format_bytes(self.merging_bytes)}, including the report card"
            f"{_describe_lack(self.merging_bytes, self.available_bytes)}"
        )

    def check(self, worker_bytes: int | None) -> None:
        """Raise InputError if memory is surely too small; the message suggests what would fit.

        `worker_bytes` is the memory of the workers, which may be on other machines.
        """
        task = f"train-bpe: counting with {plural(self.workers, 'worker')}"
        check_memory(task, self.counting_bytes, worker_bytes, "use fewer --workers")
        fitting = round_down(self.max_text_bytes)
        sample = f"train on a sample with --max-bytes {fitting} ({format_bytes(fitting)}), or " if fitting else ""
        task = f"train-bpe: merging the words of about {format_bytes(self.text_bytes)} of text"
        advice = f"{sample}use a machine with more memory"
        check_memory(task, self.merging_bytes, self.available_bytes, advice, tolerance=_TOLERANCE)


def estimate_training(
    documents: DocumentsEstimate, config: TrainBpeConfig, workers: int, available_bytes: int | None
) -> TrainingEstimate | None:
    """Estimate what training needs; None if the sample contains no text."""
    if not documents.sample_bytes:
        return None
    # Processor time, since the counter has threads of its own, which the workers will share.
    started = time.process_time()
    sampled = estimate_vocabulary(documents.sample)
    seconds_per_byte = (time.process_time() - started) / documents.sample_bytes
    text_bytes = min(documents.text_bytes, config.max_bytes or documents.text_bytes)
    passes = 2 if text_bytes < documents.text_bytes else 1  # the first selects the documents of the sample
    busy = max(1, min(workers, documents.shards))

    def words_of(size: float) -> Vocabulary:
        return sampled.scale_text(size / documents.sample_bytes)

    def memory_of(size: float) -> int:
        trained = words_of(size).keep_frequent(config.min_word_count)
        return merging_bytes(trained.words, trained.symbols, config.vocab_size, config.engine)

    trained = words_of(text_bytes).keep_frequent(config.min_word_count)
    table_bytes = _BYTES_PER_COUNTED_WORD * min(words_of(text_bytes).words, Limits.table_words)
    return TrainingEstimate(
        text_bytes=text_bytes,
        is_exact=documents.is_exact,
        workers=busy,
        words=trained.words,
        symbols=trained.symbols,
        counting_s=(passes * documents.text_bytes * _SECONDS_PER_BYTE_READ + text_bytes * seconds_per_byte) / busy,
        counting_bytes=(_PROCESS_BYTES + _BYTES_OF_BATCHES + table_bytes) * busy + (_PROCESS_BYTES if busy > 1 else 0),
        merging_s=_merging_s(trained.words, trained.symbols, config.vocab_size),
        merging_bytes=memory_of(text_bytes),
        available_bytes=available_bytes,
        max_text_bytes=_max_text_bytes(memory_of, text_bytes, available_bytes),
    )


def estimate_vocabulary(texts: Sequence[str]) -> Vocabulary:
    """Count the distinct words of a sample, and how they grow from half of it to the whole.

    Halves are all pairs of four quarters, since neighboring texts may be alike and one quarter unlike the others.
    """
    parts = [text.encode() for text in (texts if len(texts) >= _MIN_TEXTS else split_text("".join(texts)))]
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
        exponent=min(_MAX_EXPONENT, max(_MIN_EXPONENT, exponent)),
        bytes_per_new_word=sum(map(len, new)) / max(1, len(new)),
    )


def split_text(text: str) -> list[str]:
    """Split one text into parts, as a sample of few texts is."""
    size = -(-len(text) // _MIN_TEXTS)
    return [text[start : start + size] for start in range(0, len(text), size)]


def merging_bytes(words: int, symbols: int, vocab_size: int, engine: str = "webtext") -> int:
    """Return the memory of the command while it merges and examines distinct words of `symbols` bytes in total."""
    per_symbol = _BYTES_PER_SYMBOL if vocab_size <= _MAX_NARROW_VOCABULARY else _BYTES_PER_WIDE_SYMBOL
    per_word = _BYTES_PER_LIBRARY_WORD if engine == "tokenizers" else _BYTES_PER_EXAMINED_WORD
    return _MAIN_PROCESS_BYTES + max(per_symbol * symbols + _BYTES_PER_WORD * words, per_word * words)


def describe_counts(words: int, symbols: int, vocab_size: int, available_bytes: int | None) -> str:
    """Return in one line what training from counts needs at most; some of the words may be the same."""
    needed = merging_bytes(words, symbols, vocab_size)
    return (
        f"counts of {words:,} words: merging takes at most about "
        f"{format_duration(_merging_s(words, symbols, vocab_size))} and {format_bytes(needed)}, including the report "
        f"card{_describe_lack(needed, available_bytes)}"
    )


def check_counts(words: int, symbols: int, vocab_size: int, available_bytes: int | None) -> None:
    """Raise InputError, before counts are added up, if memory is surely too small for their distinct words."""
    advice = (
        "drop rare words with --min-word-count 2, add up counts that repeat their words with --count-only, or use a "
        "machine with more memory"
    )
    needed = merging_bytes(words, symbols, vocab_size)
    check_memory(f"train-bpe: merging {words:,} words", needed, available_bytes, advice, tolerance=_TOLERANCE)


def check_distinct_words(
    words: int,
    symbols: int,
    *,
    repeated: tuple[int, int],
    config: TrainBpeConfig,
    counts: str,
    available_bytes: int | None,
) -> None:
    """Raise InputError if the words that were counted cannot be merged on this machine.

    `repeated` are the words and symbols of those that occur at least twice; `counts` is where the counts are kept.
    """
    needed = merging_bytes(words, symbols, config.vocab_size, config.engine)
    advice = f"on a machine with more memory (--counts {counts})"
    if config.engine == "tokenizers":
        less = merging_bytes(words, symbols, config.vocab_size)
        alternative = f"with --engine webtext (--counts {counts}), which needs about {format_bytes(less)}"
    else:
        less = merging_bytes(*repeated, config.vocab_size)
        alternative = f"{advice}, or use --min-word-count 2, which needs about {format_bytes(less)}"
    if available_bytes is not None and less <= available_bytes:
        advice = alternative
    task = f"train-bpe: merging {words:,} distinct words"
    check_memory(task, needed, available_bytes, f"the counts are kept: train from them {advice}")


def _describe_lack(needed_bytes: int, available_bytes: int | None) -> str:
    if available_bytes is None or needed_bytes <= available_bytes:
        return ""
    return f", which may be more than the {format_bytes(available_bytes)} available"


def _merging_s(words: int, symbols: int, vocab_size: int) -> float:
    merging = symbols * _SECONDS_PER_SYMBOL + vocab_size * _SECONDS_PER_MERGE
    return merging + words * _SECONDS_PER_EXAMINED_WORD + _SECONDS_OF_WRITING


def _max_text_bytes(memory_of: Callable[[float], int], text_bytes: int, available_bytes: int | None) -> int:
    """Return how much of the text fits into memory; 0 if not even a little does."""
    if available_bytes is None or memory_of(text_bytes) <= available_bytes:
        return text_bytes
    low, high = 0, text_bytes
    while high - low > max(1, text_bytes // 1000):
        middle = (low + high) // 2
        if memory_of(middle) <= available_bytes:
            low = middle
        else:
            high = middle
    return low

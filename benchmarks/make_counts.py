"""Write the word counts of a made-up corpus of ten billion words, which no counter of 32 bits holds.

    python benchmarks/make_counts.py COUNTS.parquet [--words 2000000] [--total 10000000000] [--seed 2019]

Letters follow one another by chances of their own, as a monkey types with an uneven hand; the counts then follow a
power law as those of real words do. One word in seventeen is a run of spaces or of a rule's character, as in code and
tables; they put the most frequent pairs past 2**32. The words are pieces of GPT-2's split, distinct and in order. They
are written as they are made, the same for the same numbers on every machine.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

LETTERS = "etaoinshrdlucmfwypvbgkqjxzéüжя中"
SPACED = 0.8
ENDS = 0.25
RUNS = 0.06
LONGEST_RUN = 64
# With these, half of two million words occur once, and the counts of the others fall about as their rank grows.
UNEVEN = 2.2
EVEN = 0.4
HELD_OUT_EACH = 20
BATCH = 1 << 16

SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64()), ("held_out", pa.int64())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=Path)
    parser.add_argument("--words", type=int, default=2_000_000, help="distinct words")
    parser.add_argument("--total", type=int, default=10_000_000_000, help="occurrences of all words")
    parser.add_argument("--seed", type=int, default=2019)
    options = parser.parse_args()
    write_counts(options.counts, counts_of(options.words, options.total, options.seed))


def write_counts(path: Path, counts: Iterator[tuple[str, int]]) -> None:
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        while batch := list(itertools.islice(counts, BATCH)):
            words, numbers = zip(*batch, strict=True)
            held_out = [number // HELD_OUT_EACH for number in numbers]
            kept = [number - apart for number, apart in zip(numbers, held_out, strict=True)]
            writer.write_batch(pa.record_batch([pa.array(words), pa.array(kept), pa.array(held_out)], SCHEMA))


def counts_of(words: int, total: int, seed: int) -> Iterator[tuple[str, int]]:
    """Yield distinct words in order, each with how often it occurs: at least once, together `total` times."""
    runs = sorted(character * length for character in " -=*" for length in range(2, LONGEST_RUN + 1))
    if words < 2 * len(runs) or total < 2 * words:
        raise SystemExit(f"at least {2 * len(runs)} words and twice as many occurrences are needed")
    shares = heapq.merge(
        ((run, RUNS / len(runs)) for run in runs),
        ((word, (1 - RUNS) * share) for word, share in typed(words - len(runs), seed)),
    )
    rest = total - words
    so_far = 0.0
    given = 0
    for number, (word, share) in enumerate(shares, 1):
        so_far += share
        # Rounded as a sum, so that all of them are given out; the shares may not add up to one to the last bit.
        due = rest if number == words else min(rest, round(so_far * rest))
        yield word, 1 + due - given
        given = due


def typed(words: int, seed: int) -> Iterator[tuple[str, float]]:
    """Yield so many distinct words of letters in order, most of them with a space before, with their shares of all."""
    chances = Chances(seed)
    spaced = round(words * SPACED)
    yield from beginning_with(" ", spaced, SPACED, chances)
    yield from beginning_with("", words - spaced, 1 - SPACED, chances)


class Chances:
    """How likely each letter is after each other one."""

    def __init__(self, seed: int) -> None:
        generator = random.Random(seed)
        self._after: dict[str, list[tuple[str, float]]] = {}
        for letter in [" ", "", *LETTERS]:
            weights = [generator.random() ** 2 / rank for rank in range(1, len(LETTERS) + 1)]
            if letter.strip():
                weights[LETTERS.index(letter)] /= 20  # hardly any is doubled
            whole = sum(weights)
            shares = [weight / whole for weight in weights]
            self._after[letter] = sorted(zip(LETTERS, shares, strict=True))

    def after(self, beginning: str) -> list[tuple[str, float]]:
        return self._after[beginning[-1:]]


def beginning_with(beginning: str, words: int, share: float, chances: Chances) -> Iterator[tuple[str, float]]:
    """Yield so many words that begin so, which together have a share: the beginning, if a word, and then its children.

    The share that no word has yet is divided among the next letters more unevenly than their chances are, the words
    more evenly, so that most words are rare.
    """
    is_word = bool(beginning.strip())
    if is_word:
        own = share if words == 1 else share * ENDS
        yield beginning, own
        words, share = words - 1, share - own
    if not words:
        return
    so_far = 0.0
    given = 0
    parts = []
    nexts = chances.after(beginning)
    evened = sum(chance**EVEN for _, chance in nexts)
    for letter, chance in nexts:
        so_far += chance**EVEN / evened
        due = words if letter == nexts[-1][0] else min(words, round(so_far * words))
        if due > given:
            parts.append((letter, due - given, chance))
            given = due
    whole = sum(chance**UNEVEN for _, _, chance in parts)
    for letter, number, chance in parts:
        yield from beginning_with(beginning + letter, number, share * chance**UNEVEN / whole, chances)


if __name__ == "__main__":
    main()

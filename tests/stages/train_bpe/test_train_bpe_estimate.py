"""Estimates of time and memory before training, and the refusals if memory is too small."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.algorithms.bpe.word_counts import count_words
from pipelines.errors import InputError
from pipelines.records import inputs
from pipelines.records.estimate import DocumentsEstimate, estimate_documents
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.estimate import (
    TrainingEstimate,
    check_counts,
    check_distinct_words,
    describe_counts,
    estimate_training,
    estimate_vocabulary,
    merging_bytes,
    split_text,
)

pytestmark = pytest.mark.usefixtures("warm_processes")

_GB = 10**9


def _spelled(number: int) -> str:
    """Return a word of letters for each number, the shorter the lower."""
    letters = ""
    while True:
        number, letter = divmod(number, 26)
        letters += chr(97 + letter)
        if not number:
            return letters
        number -= 1


def _zipf_texts(words: int, power: float, seed: int) -> list[str]:
    """Texts of 500 words each, whose ranks follow Zipf's law without an end, as those of real words do."""
    ranks = np.minimum(np.random.default_rng(seed).zipf(power, words), 10**12)
    spelled = [_spelled(int(rank)) for rank in ranks]
    return [" ".join(spelled[start : start + 500]) for start in range(0, words, 500)]


def _documents(texts: Sequence[str], factor: int = 1, shards: int = 8) -> DocumentsEstimate:
    size = sum(len(text.encode()) for text in texts)
    return DocumentsEstimate(size * factor, len(texts) * factor, shards, factor == 1, tuple(texts), size)


def _distinct(texts: Sequence[str]) -> tuple[int, int]:
    words = [word for word, _ in count_words([text.encode() for text in texts])]
    return len(words), sum(map(len, words))


def _predict(
    documents: DocumentsEstimate, workers: int = 2, available_bytes: int | None = None, **config: Any
) -> TrainingEstimate:
    estimate = estimate_training(documents, TrainBpeConfig(**config), workers, available_bytes)
    assert estimate is not None
    return estimate


@pytest.mark.parametrize("power", [1.3, 1.7, 2.2])
def test_words_of_ten_times_the_text(power: float) -> None:
    texts = _zipf_texts(600_000, power, 4)
    sampled = estimate_vocabulary(texts[::10]).scale_text(10)
    words, symbols = _distinct(texts)
    assert words / 1.5 < sampled.words < words * 1.5
    assert symbols / 1.5 < sampled.symbols < symbols * 1.5


@pytest.mark.parametrize("power", [1.3, 1.7])
def test_words_that_occur_more_often_than_once(power: float) -> None:
    texts = _zipf_texts(400_000, power, 5)
    counts = [count for _, count in count_words([text.encode() for text in texts])]
    whole = estimate_vocabulary(texts)
    for min_count in (1, 2, 3, 5):
        kept = sum(count >= min_count for count in counts)
        assert kept / 1.4 < whole.keep_frequent(min_count).words < kept * 1.4


@pytest.mark.parametrize("name", ["docs", "books"])
def test_words_of_real_text(shared_data: Path, name: str) -> None:
    """The sample is a tenth to a twentieth of the text, which one giant document of random signs makes up in part."""
    source = inputs.open_documents(str(shared_data / "text" / f"{name}.jsonl.zst"))
    estimate = _predict(estimate_documents(source))
    words, symbols = {"docs": (289_280, 2_309_485), "books": (90_961, 743_517)}[name]
    assert words / 1.5 < estimate.words < words * 1.5
    assert symbols / 1.5 < estimate.symbols < symbols * 1.5


def test_small_samples() -> None:
    assert estimate_training(_documents([]), TrainBpeConfig(), 2, None) is None
    for texts in (["a"], ["one two", "two"], ["x" * 5000], ["same words here"] * 40):
        estimate = _predict(_documents(texts))
        parts = texts if len(texts) >= 8 else split_text("".join(texts))
        assert (estimate.words, estimate.symbols) == _distinct(parts)


def test_a_text_that_does_not_grow_stays_within_its_bounds() -> None:
    same = estimate_vocabulary(["the same words again"] * 100)
    assert same.exponent == 0.3
    random = estimate_vocabulary([_spelled(number * 10**9) for number in range(500)])
    assert random.exponent == 0.9


def test_one_line_for_the_user() -> None:
    texts = _zipf_texts(50_000, 1.5, 1)
    small = _predict(_documents(texts), 4, 64 * _GB)
    large = _predict(_documents(texts, factor=100_000), 4, 64 * _GB)
    alone = _predict(_documents(texts, factor=100_000, shards=1), 4, 64 * _GB)
    size, time = r"\d[\d.,]* (?:bytes|kB|MB|GB|TB)", r"\d[\d.,]* (?:s|min|h|days)(?: \d+ (?:s|min|h))?"
    pattern = rf"{size} of text: counting takes about {time} with 4 workers; merging about {time} and {size}"
    pattern += ", including the report card"
    assert re.fullmatch(pattern, small.describe())
    assert re.fullmatch(f"about {pattern}", large.describe())
    assert "with 1 worker;" in alone.describe()
    assert alone.counting_s == pytest.approx(4 * large.counting_s, rel=0.5)
    few = dataclasses.replace(large, available_bytes=large.merging_bytes - 1)
    assert re.fullmatch(rf"about {pattern}, which may be more than the {size} available", few.describe())


def test_a_sample_needs_less() -> None:
    documents = _documents(_zipf_texts(50_000, 1.5, 1), factor=10_000)
    whole, sample = _predict(documents, 4), _predict(documents, 4, max_bytes=documents.text_bytes // 100)
    frequent = _predict(documents, 4, min_word_count=2)
    assert sample.text_bytes == documents.text_bytes // 100
    assert sample.words < whole.words / 3
    assert sample.merging_s < whole.merging_s
    assert frequent.words < whole.words
    assert frequent.counting_bytes == whole.counting_bytes
    # If words are long, their symbols dominate, and ids above 16 bits take more.
    assert merging_bytes(1000, 10**9, 100_000) > merging_bytes(1000, 10**9, 50257)


def test_far_too_much_is_refused_with_a_size_that_fits() -> None:
    documents = _documents(_zipf_texts(200_000, 1.3, 2), factor=1_000_000)
    estimate = _predict(documents, 2, 4 * _GB)
    assert estimate.merging_bytes > 6 * _GB
    message = r"merging the words of .* needs about .* of memory, and 4 GB are"
    with pytest.raises(InputError, match=message) as refusal:
        estimate.check(4 * _GB)
    fitting = int(re.search(r"--max-bytes (\d+) \(", str(refusal.value))[1])  # type: ignore[index]
    assert len(str(fitting).rstrip("0")) <= 2
    smaller = _predict(documents, 2, 4 * _GB, max_bytes=fitting)
    larger = _predict(documents, 2, 4 * _GB, max_bytes=fitting * 5 // 4)
    assert smaller.merging_bytes <= 4 * _GB < larger.merging_bytes
    smaller.check(4 * _GB)


def test_what_may_fit_is_not_refused_before_the_work() -> None:
    estimate = _predict(_documents(_zipf_texts(200_000, 1.3, 2), factor=1_000_000))
    estimate.check(None)
    dataclasses.replace(estimate, available_bytes=int(estimate.merging_bytes / 1.4)).check(None)


def test_too_many_workers() -> None:
    documents = _documents(_zipf_texts(200_000, 1.7, 2), factor=100_000, shards=64)
    message = "counting with 32 workers needs about .*, and 2 GB are available; use fewer --workers"
    with pytest.raises(InputError, match=message):
        _predict(documents, 32, 2 * _GB).check(2 * _GB)
    _predict(documents, 1, 2 * _GB).check(2 * _GB)
    _predict(documents, 32, 2 * _GB).check(64 * _GB)  # workers on other machines


def test_no_memory_at_all() -> None:
    """No sample is suggested if not even the libraries fit."""
    estimate = _predict(_documents(_zipf_texts(5_000, 1.7, 2)), 1, 10**8)
    assert estimate.max_text_bytes == 0
    with pytest.raises(InputError) as refusal:
        estimate.check(None)
    assert "--max-bytes" not in str(refusal.value)


def _check_distinct(words: int, symbols: int, repeated: tuple[int, int], available_bytes: int, **config: Any) -> None:
    check_distinct_words(
        words,
        symbols,
        repeated=repeated,
        config=TrainBpeConfig(**config),
        counts="my-tokenizer",
        available_bytes=available_bytes,
    )


def test_counts_that_do_not_fit() -> None:
    many = (120_000_000, 1_100_000_000)
    needed = merging_bytes(*many, 50257)
    _check_distinct(*many, (1, 1), needed)
    with pytest.raises(InputError) as refusal:
        _check_distinct(*many, (50_000_000, 400_000_000), needed - 1)
    assert str(refusal.value) == (
        "train-bpe: merging 120,000,000 distinct words needs about 24.5 GB of memory, and 24.5 GB are available; the "
        "counts are kept: train from them on a machine with more memory (--counts my-tokenizer), or use "
        "--min-word-count 2, which needs about 10.5 GB"
    )
    with pytest.raises(InputError, match="--min-word-count"):
        _check_distinct(*many, (119_999_999, 1_100_000_000), needed - 1)
    with pytest.raises(InputError) as refusal:
        _check_distinct(*many, many, needed - 1)
    assert "--min-word-count" not in str(refusal.value)


def test_the_trainer_of_the_library_needs_more() -> None:
    assert 3.98 * _GB < merging_bytes(3_580_000, 26_000_000, 50257, "tokenizers") < 1.15 * 3.98 * _GB
    documents = _documents(_zipf_texts(200_000, 1.3, 2), factor=1_000)
    own, library = (_predict(documents, engine=engine) for engine in ("webtext", "tokenizers"))
    assert library.merging_bytes > 3 * own.merging_bytes
    with pytest.raises(InputError) as refusal:
        _check_distinct(4_000_000, 30_000_000, (1, 1), 3 * _GB, engine="tokenizers")
    assert str(refusal.value) == (
        "train-bpe: merging 4,000,000 distinct words needs about 4.88 GB of memory, and 3 GB are available; the counts "
        "are kept: train from them with --engine webtext (--counts my-tokenizer), which needs about 1.28 GB"
    )


def test_counts_before_they_are_added_up() -> None:
    many = (30_000_000, 240_000_000, 50257)
    needed = merging_bytes(*many)
    check_counts(*many, int(needed / 1.4))
    assert describe_counts(*many, int(needed / 1.4)) == (
        "counts of 30,000,000 words: merging takes at most about 3 min 59 s and 6.48 GB, including the report card, "
        "which may be more than the 4.63 GB available"
    )
    with pytest.raises(InputError, match=r"merging 30,000,000 words needs about 6\.48 GB .* and 4\.05 GB are avail"):
        check_counts(*many, int(needed / 1.6))
    check_counts(*many, None)
    assert "available" not in describe_counts(*many, None)

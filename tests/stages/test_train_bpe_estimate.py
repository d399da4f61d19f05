"""What training will take, said beforehand; and the refusals where memory would not do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pipelines.algorithms.bpe.word_counts import count_words
from pipelines.core import inputs
from pipelines.core.errors import InputError
from pipelines.core.estimate import DocumentsEstimate, estimate_documents, size_in_words, time_in_words
from pipelines.stages.train_bpe import estimate as training
from pipelines.stages.train_bpe.estimate import (
    describe,
    describe_counts,
    merging_bytes,
    predict,
    refuse_counts,
    refuse_what_cannot_fit,
    require_memory,
    vocabulary_of,
)

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


def _estimate(texts: Sequence[str], factor: int = 1, shards: int = 8) -> DocumentsEstimate:
    size = sum(len(text.encode()) for text in texts)
    return DocumentsEstimate(size * factor, len(texts) * factor, shards, factor == 1, tuple(texts), size)


def _distinct(texts: Sequence[str]) -> tuple[int, int]:
    words = [word for word, _ in count_words([text.encode() for text in texts])]
    return len(words), sum(map(len, words))


def _set_available(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    monkeypatch.setattr(training, "available_memory_bytes", lambda: size)


@pytest.mark.parametrize("power", [1.3, 1.7, 2.2])
def test_words_of_ten_times_the_text(power: float) -> None:
    texts = _zipf_texts(600_000, power, 4)
    sampled = vocabulary_of(texts[::10]).of_text_times(10)
    words, symbols = _distinct(texts)
    assert words / 1.5 < sampled.words < words * 1.5
    assert symbols / 1.5 < sampled.symbols < symbols * 1.5


@pytest.mark.parametrize("power", [1.3, 1.7])
def test_words_that_occur_more_often_than_once(power: float) -> None:
    texts = _zipf_texts(400_000, power, 5)
    counts = [count for _, count in count_words([text.encode() for text in texts])]
    whole = vocabulary_of(texts)
    for least in (1, 2, 3, 5):
        kept = sum(count >= least for count in counts)
        assert kept / 1.4 < whole.of_counts_from(least).words < kept * 1.4


@pytest.mark.parametrize("name", ["docs", "books"])
def test_words_of_real_text(shared_data: Path, name: str) -> None:
    """The sample is a tenth to a twentieth of the text, which one giant document of random signs makes up in part."""
    source = inputs.open_documents(str(shared_data / "text" / f"{name}.jsonl.zst"))
    found = predict(estimate_documents(source), 2, 50257)
    words, symbols = {"docs": (289_280, 2_309_485), "books": (90_961, 743_517)}[name]
    assert found is not None
    assert words / 1.5 < found.words < words * 1.5
    assert symbols / 1.5 < found.symbols < symbols * 1.5


def test_small_samples() -> None:
    assert predict(_estimate([]), 2, 50257) is None
    for texts in (["a"], ["one two", "two"], ["x" * 5000], ["same words here"] * 40):
        found = predict(_estimate(texts), 2, 50257)
        assert found is not None
        assert (found.words, found.symbols) == _distinct(texts if len(texts) >= 8 else training._cut("".join(texts)))


def test_a_text_that_does_not_grow_stays_within_its_bounds() -> None:
    same = vocabulary_of(["the same words again"] * 100)
    assert same.exponent == 0.3
    random = vocabulary_of([_spelled(number * 10**9) for number in range(500)])
    assert random.exponent == 0.9


def test_one_line_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_available(monkeypatch, 64 * _GB)
    texts = _zipf_texts(50_000, 1.5, 1)
    small = predict(_estimate(texts), 4, 50257)
    large = predict(_estimate(texts, factor=100_000), 4, 50257)
    alone = predict(_estimate(texts, factor=100_000, shards=1), 4, 50257)
    assert small is not None
    assert large is not None
    assert alone is not None
    size, time = r"\d[\d.,]* (?:bytes|kB|MB|GB|TB)", r"\d[\d.,]* (?:s|min|h)"
    pattern = rf"{size} of text: counting takes about {time} with 4 workers; merging about {time} and {size}"
    pattern += ", the report card included"
    assert re.fullmatch(pattern, describe(small))
    assert re.fullmatch(f"about {pattern}", describe(large))
    assert "with 1 worker;" in describe(alone)
    assert alone.counting_s == pytest.approx(4 * large.counting_s, rel=0.5)
    few = dataclasses.replace(large, available_bytes=large.merging_bytes - 1)
    assert re.fullmatch(rf"about {pattern}, which may be more than the {size} that are available", describe(few))


def test_a_sample_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_available(monkeypatch, 64 * _GB)
    estimate = _estimate(_zipf_texts(50_000, 1.5, 1), factor=10_000)
    whole, sample = predict(estimate, 4, 50257), predict(estimate, 4, 50257, max_bytes=estimate.text_bytes // 100)
    rarer = predict(estimate, 4, 50257, min_word_count=2)
    assert whole is not None
    assert sample is not None
    assert rarer is not None
    assert sample.text_bytes == estimate.text_bytes // 100
    assert sample.words < whole.words / 3
    assert sample.merging_s < whole.merging_s
    assert rarer.words < whole.words
    assert rarer.counting_bytes == whole.counting_bytes
    # Where words are long, it is their symbols that count, and ids beyond 16 bits take more.
    assert merging_bytes(1000, 10**9, 100_000) > merging_bytes(1000, 10**9, 50257)


def test_what_is_far_too_much_is_refused_with_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = _estimate(_zipf_texts(200_000, 1.3, 2), factor=1_000_000)
    _set_available(monkeypatch, 4 * _GB)
    found = predict(estimate, 2, 50257)
    assert found is not None
    assert found.merging_bytes > 6 * _GB
    with pytest.raises(InputError, match=r"merging the words of .* takes about .* of memory, and 4 GB are") as refusal:
        refuse_what_cannot_fit(found)
    fits = int(re.search(r"--max-bytes (\d+) \(", str(refusal.value))[1])  # type: ignore[index]
    assert str(fits).rstrip("0") == str(fits)[: len(str(fits).rstrip("0"))]
    assert len(str(fits).rstrip("0")) <= 2
    smaller, larger = predict(estimate, 2, 50257, max_bytes=fits), predict(estimate, 2, 50257, max_bytes=fits * 5 // 4)
    assert smaller is not None
    assert larger is not None
    assert smaller.merging_bytes <= 4 * _GB < larger.merging_bytes
    refuse_what_cannot_fit(smaller)


def test_what_may_fit_is_not_refused_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = _estimate(_zipf_texts(200_000, 1.3, 2), factor=1_000_000)
    _set_available(monkeypatch, None)
    found = predict(estimate, 2, 50257)
    assert found is not None
    refuse_what_cannot_fit(found)
    refuse_what_cannot_fit(dataclasses.replace(found, available_bytes=int(found.merging_bytes / 1.4)))


def test_too_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_available(monkeypatch, 2 * _GB)
    estimate = _estimate(_zipf_texts(200_000, 1.7, 2), factor=100_000, shards=64)
    many = predict(estimate, 32, 50257)
    few = predict(estimate, 1, 50257)
    assert many is not None
    assert few is not None
    with pytest.raises(InputError, match="with 32 workers, and 2 GB are available; give fewer --workers"):
        refuse_what_cannot_fit(many)
    refuse_what_cannot_fit(few)


def test_no_memory_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even the libraries fit, no sample would do."""
    _set_available(monkeypatch, 10**8)
    found = predict(_estimate(_zipf_texts(5_000, 1.7, 2)), 1, 50257)
    assert found is not None
    assert found.fitting_text_bytes == 0
    with pytest.raises(InputError) as refusal:
        refuse_what_cannot_fit(dataclasses.replace(found, counting_bytes=0))
    assert "--max-bytes" not in str(refusal.value)


def test_counts_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = merging_bytes(120_000_000, 1_100_000_000, 50257)
    _set_available(monkeypatch, needed)
    require_memory(120_000_000, 1_100_000_000, 50257, "my-tokenizer", without_rare=(1, 1))
    _set_available(monkeypatch, needed - 1)
    with pytest.raises(InputError) as refusal:
        require_memory(120_000_000, 1_100_000_000, 50257, "my-tokenizer", without_rare=(50_000_000, 400_000_000))
    assert str(refusal.value) == (
        "train-bpe: merging 120,000,000 distinct words takes about 24 GB of memory, and 24 GB are available; the "
        "counts are kept: train from them on a machine with more memory (--counts my-tokenizer), or give "
        "--min-word-count 2, which takes about 10 GB"
    )
    with pytest.raises(InputError) as refusal:
        require_memory(120_000_000, 1_100_000_000, 50257, "x", without_rare=(119_999_999, 1_100_000_000))
    assert "--min-word-count" in str(refusal.value)
    with pytest.raises(InputError) as refusal:
        require_memory(120_000_000, 1_100_000_000, 50257, "x", without_rare=(120_000_000, 1_100_000_000))
    assert "--min-word-count" not in str(refusal.value)


def test_the_trainer_of_the_library_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 3.98 * _GB < merging_bytes(3_580_000, 26_000_000, 50257, "tokenizers") < 1.15 * 3.98 * _GB
    estimate = _estimate(_zipf_texts(200_000, 1.3, 2), factor=1_000)
    _set_available(monkeypatch, 10**15)
    ours, theirs = (predict(estimate, 2, 50257, engine=engine) for engine in ("webtext", "tokenizers"))
    assert ours is not None
    assert theirs is not None
    assert theirs.merging_bytes > 3 * ours.merging_bytes
    _set_available(monkeypatch, 3 * _GB)
    with pytest.raises(InputError) as refusal:
        require_memory(4_000_000, 30_000_000, 50257, "kept", without_rare=(1, 1), engine="tokenizers")
    assert str(refusal.value) == (
        "train-bpe: merging 4,000,000 distinct words takes about 4.9 GB of memory, and 3 GB are available; the counts "
        "are kept: train from them by our own trainer (--counts kept), which takes about 1.3 GB"
    )


def test_counts_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = merging_bytes(30_000_000, 240_000_000, 50257)
    _set_available(monkeypatch, int(needed / 1.4))
    refuse_counts(30_000_000, 240_000_000, 50257)
    assert describe_counts(30_000_000, 240_000_000, 50257) == (
        "counts of 30,000,000 words: merging takes at most about 4 min and 6.5 GB, the report card included, which may "
        "be more than the 4.6 GB that are available"
    )
    _set_available(monkeypatch, int(needed / 1.6))
    with pytest.raises(InputError, match=r"merging 30,000,000 words takes about 6\.5 GB .* and 4 GB are avail"):
        refuse_counts(30_000_000, 240_000_000, 50257)
    _set_available(monkeypatch, None)
    refuse_counts(30_000_000, 240_000_000, 50257)
    assert "available" not in describe_counts(30_000_000, 240_000_000, 50257)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (9, "9 bytes"),
        (999, "1 kB"),
        (1234, "1.2 kB"),
        (9_960_000, "10 MB"),
        (41_300_000_000, "41 GB"),
        (994_000_000_000, "990 GB"),
        (5.5e15, "5,500 TB"),
    ],
)
def test_sizes_in_words(size: float, words: str) -> None:
    assert size_in_words(size) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.1, "1 s"),
        (7.4, "7 s"),
        (89, "89 s"),
        (91, "2 min"),
        (720, "12 min"),
        (5300, "88 min"),
        (7200, "2 h"),
        (1e6, "280 h"),
    ],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert time_in_words(seconds) == words

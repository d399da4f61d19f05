"""Batched decoding: the same tokens and logits as one text at a time without a cache."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from pipelines.model.inference.decoding import BatchDecoder, batch_rows, next_tokens, window_start
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.sampling import sample_tokens
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize

CPU = torch.device("cpu")
NO_END = -1


def strong_model(architecture: Architecture, seed: int = 0) -> GPT2:
    """A model with strong opinions: large weights, so that its choices are not all alike."""
    model = empty_model(architecture)
    initialize(model, seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> GPT2:
    return strong_model(Architecture(layers=3, width=40, heads=5, context=12, vocab_size=101))


def plain_window(text: Sequence[int], context: int) -> Sequence[int]:
    """What the model sees: all of it, or what is left when half a context was taken away as often as needed."""
    start = 0
    while len(text) - start > context:
        start += max(1, context // 2)
    return text[start:]


def plain_sample(model: GPT2, prompt: list[int], options: SamplingOptions, seed: int) -> list[int]:
    """Every token from all that is seen before it, one text at a time."""
    source, text = random.Random(seed), list(prompt)
    for _ in range(options.max_tokens):
        seen = torch.tensor([plain_window(text, model.architecture.context)])
        with torch.no_grad():
            logits = model(seen)[0, -1].numpy()
        if options.temperature == 0:
            text.append(int(logits.argmax()))
            continue
        tokens, shares = next_tokens(logits, options)
        text.append(int(tokens[np.searchsorted(shares.cumsum(), source.random(), side="right")]))
    return text[len(prompt) :]


@pytest.mark.parametrize("context", [1, 2, 3, 12, 13])
def test_the_window_moves_by_half_a_context(context: int) -> None:
    for length in range(1, 60):
        start = window_start(length, context)
        assert range(length)[start:] == plain_window(range(length), context)
        assert 1 <= length - start <= context


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"top_k": 0}, {"top_k": 0, "top_p": 0.8}])
@pytest.mark.parametrize("length", [1, 7, 12])
def test_cached_decoding_gives_the_same_tokens_beyond_the_context_too(
    model: GPT2, length: int, options: dict[str, float]
) -> None:
    requested = SamplingOptions(max_tokens=40, **options)  # type: ignore[arg-type]
    prompt = list(range(3, 3 + length))
    together = sample_tokens(model, prompt, requested, range(3), end_of_text=NO_END)
    assert together == [plain_sample(model, prompt, requested, seed) for seed in range(3)]


def test_cached_decoding_gives_the_same_logits(model: GPT2) -> None:
    rows = [[5, 9], [5, 9], [5, 9]]
    with torch.no_grad():
        texts = BatchDecoder(model, [5, 9], 3)
        logits = texts.logits
        for step in range(30):
            plain = torch.cat([model(torch.tensor([plain_window(row, 12)]))[:, -1] for row in rows])
            torch.testing.assert_close(logits, plain, rtol=1e-4, atol=1e-4)
            new = {number: (7 * step + number) % 101 for number in range(3)}
            for number, token in new.items():
                rows[number].append(token)
            logits = texts.append(new)


@pytest.mark.parametrize(
    ("architecture", "threads", "steps"),
    [
        (Architecture(layers=2, width=24, heads=2, context=20, vocab_size=53), 1, 32),
        (Architecture(layers=2, width=128, heads=4, context=16, vocab_size=4096), 1, 24),
        (Architecture(layers=1, width=100, heads=5, context=8, vocab_size=997), 2, 6),
    ],
)
def test_logits_are_bitwise_independent_of_the_batch(architecture: Architecture, threads: int, steps: int) -> None:
    model = strong_model(architecture)
    prompt = [1, 2, 3, 4, 5]

    def logits_of(number: int, others: int, seed: int) -> list[torch.Tensor]:
        """The logits of one text, whose own tokens are always the same, among others that are not."""
        source = random.Random(seed)
        with torch.no_grad():
            texts = BatchDecoder(model, prompt, max(number + 1, others))
            result = [texts.logits[number]]
            for step in range(steps):
                new = {other: source.randrange(architecture.vocab_size) for other in range(others)}
                # Some of the others end before it does.
                new = {other: token for other, token in new.items() if other % 3 or step < steps // 2}
                new[number] = (number + 11 * step) % architecture.vocab_size
                result.append(texts.append(new)[list(new).index(number)])
        return result

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for number in (0, 3, 7):
            alone = logits_of(number, 0, 0)
            for others, seed in ((8, 1), (5, 2)):
                assert all(map(torch.equal, alone, logits_of(number, others, seed)))
    finally:
        torch.set_num_threads(before)


def test_a_text_does_not_depend_on_the_batch_size(model: GPT2) -> None:
    options = SamplingOptions(max_tokens=30, temperature=1.5)
    together = sample_tokens(model, [1, 2], options, range(batch_rows(CPU)), end_of_text=4)
    assert any(4 in text for text in together)
    for number in range(1, batch_rows(CPU)):
        assert sample_tokens(model, [1, 2], options, range(number), end_of_text=4) == together[:number]


def test_a_shorter_text_is_the_beginning_of_a_longer_one(model: GPT2) -> None:
    short, long = (
        sample_tokens(model, [1], SamplingOptions(max_tokens=most), [3], end_of_text=NO_END)[0] for most in (9, 30)
    )
    assert long[:9] == short
    assert len(long) == 30


def test_top_p_matches_its_definition_on_a_large_vocabulary() -> None:
    source = np.random.default_rng(0)
    for scale in (0.01, 1.0, 4.0, 12.0):
        logits = (source.standard_normal(5000) * scale).astype(np.float32)
        for top_p in (0.3, 0.9, 0.999999):
            tokens, _ = next_tokens(logits, SamplingOptions(top_k=0, top_p=top_p))
            order = np.argsort(-logits, kind="stable")
            shares = np.exp(logits[order].astype(np.float64) - logits.max())
            shares /= shares.sum()
            whole = np.flatnonzero(shares.cumsum() >= top_p)[0] + 1
            assert tokens.tolist() == order[:whole].tolist()


def test_samples_need_no_log_probabilities(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "log_softmax", None)
    assert len(sample_tokens(model, [1], SamplingOptions(max_tokens=2), [3], end_of_text=NO_END)[0]) == 2

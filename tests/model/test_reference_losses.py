"""Is my loss normal? The comparison of a held-out loss with published ones."""

from __future__ import annotations

import math

import pytest

from pipelines.model.diagnostics.reference_losses import compare_loss, nearest_references, references
from pipelines.model.network.gpt2 import Architecture, empty_model, initialize, next_token_loss
from pipelines.model.training.recipe import make_recipe, parameter_count

GPT2 = 124_439_808


def messages(parameters: int, vocab_size: int, tokens_seen: int, loss: float) -> str:
    return " ".join(compare_loss(parameters, vocab_size, tokens_seen, loss))


def test_published_losses() -> None:
    losses = {entry.name: entry.loss for entry in references()}
    assert losses == {
        "OpenAI’s GPT-2 124M": 3.12,
        "OpenAI’s GPT-2 355M": 2.84,
        "OpenAI’s GPT-2 774M": 2.67,
        "OpenAI’s GPT-2 1558M": 2.54,
        "nanoGPT 124M": 2.85,
        "llm.c 124M": 3.272,
    }
    assert all(entry.source and entry.text for entry in references())


@pytest.mark.parametrize("preset", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_each_preset_of_the_paper_has_a_reference_of_its_size(preset: str) -> None:
    parameters = parameter_count(make_recipe(preset), 50_257)
    assert {entry.parameters for entry in nearest_references(parameters)} == {parameters}


def test_a_model_of_a_published_size_is_compared_with_all_of_that_size() -> None:
    text = messages(GPT2, 50_257, 3_000_000_000, 3.41)
    assert "3.410 nats per token after 3 billion tokens; a uniform guess over 50,257 entries has 10.82" in text
    assert "OpenAI’s GPT-2 124M 3.12 on OpenWebText, 0.29 below this" in text
    assert "nanoGPT 124M 2.85 on OpenWebText after 300 billion tokens (100 times this run’s), 0.56 below this" in text
    assert "llm.c 124M 3.27 on FineWeb after 10 billion tokens (3.3 times this run’s), 0.14 below this" in text
    assert "a few tenths of a nat mean nothing" in text


def test_a_run_with_as_many_tokens_and_a_lower_loss() -> None:
    text = messages(GPT2, 50_257, 290_000_000_000, 2.80)
    assert "(about as many as this run), 0.05 above this" in text
    assert "(0.034 times this run’s)" in text


def test_losses_with_another_vocabulary_are_not_compared() -> None:
    text = messages(1_000_000, 4096, 3_000_000, 5.2)
    assert "nats per token are not comparable" in text
    assert "below this" not in text
    assert "No published model of this size; the nearest have 120 times as many parameters" in text


def test_a_larger_model_than_all_published_ones() -> None:
    assert "the nearest have only 1.56 billion parameters" in messages(10**10, 50_257, 10**12, 2.2)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (10.9, "as expected"),
        (3.2, "the weights were already trained"),
        (30.0, "worse than chance"),
        (math.inf, "cannot be compared"),
        (math.nan, "cannot be compared"),
    ],
)
def test_the_loss_before_the_first_step(loss: float, words: str) -> None:
    assert words in messages(GPT2, 50_257, 0, loss)


def test_a_loss_above_the_uniform_guess() -> None:
    text = messages(GPT2, 50_257, 10**9, 11.0)
    assert "no better than chance" in text
    assert "OpenAI" not in text


@pytest.mark.parametrize(("width", "vocab_size"), [(64, 300), (256, 5000)])
def test_initial_weights_have_the_expected_loss(width: int, vocab_size: int) -> None:
    import torch

    model = empty_model(Architecture(layers=2, width=width, heads=4, context=32, vocab_size=vocab_size))
    initialize(model, 0)
    tokens = torch.randint(0, vocab_size, (4, 33), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss = next_token_loss(model.eval(), tokens).item() / (4 * 32)
    assert "as expected" in messages(10_000, vocab_size, 0, loss)

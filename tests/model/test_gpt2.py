"""The model: parameter counts, initial weights, and logits compared with a plain numpy forward pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize, next_token_loss
from pipelines.model.training.recipe import PRESETS, make_recipe, parameter_count

SMALL = Architecture(layers=3, width=24, heads=4, context=20, vocab_size=97)

TRUE_COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-125m": 125_226_240,
    "gpt3-350m": 355_871_744,
    "gpt3-760m": 760_300_032,
    "gpt3-1.3b": 1_315_723_264,
    "gpt3-2.7b": 2_651_553_280,
}


def small_model(seed: int = 3) -> GPT2:
    model = empty_model(SMALL)
    initialize(model, seed)
    return model.eval()


def numpy_logits(weights: dict[str, np.ndarray], heads: int, layers: int, tokens: np.ndarray) -> np.ndarray:
    """GPT-2 written down once more, one block at a time, in float64."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    length = len(tokens)
    x = weights["wte.weight"][tokens] + weights["wpe.weight"][:length]
    for layer in range(layers):
        query, key, value = np.split(linear(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn"), 3, axis=-1)
        size = query.shape[1] // heads
        mixed = np.zeros_like(query)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            for position in range(length):
                scores = key[: position + 1, part] @ query[position, part] / math.sqrt(size)
                chances = np.exp(scores - scores.max())
                mixed[position, part] = (chances / chances.sum()) @ value[: position + 1, part]
        x = x + linear(mixed, f"h.{layer}.attn.c_proj")
        inner = linear(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        gelu = 0.5 * inner * (1 + np.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        x = x + linear(gelu, f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ weights["wte.weight"].T


def uneven_weights(model: GPT2) -> dict[str, np.ndarray]:
    """Give every weight, also gains and biases, some value, and return them in float64."""
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
    return {name: weight.double().numpy() for name, weight in model.state_dict().items()}


@pytest.mark.parametrize("preset", TRUE_COUNTS)
def test_the_presets_have_the_true_numbers_of_parameters(preset: str) -> None:
    recipe = make_recipe(preset)
    with torch.device("meta"):
        model = GPT2(Architecture(recipe.layers, recipe.width, recipe.heads, recipe.context, 50_257))
    assert sum(weight.numel() for weight in model.parameters()) == TRUE_COUNTS[preset]
    assert parameter_count(recipe, 50_257) == TRUE_COUNTS[preset]


def test_every_preset_of_the_paper_is_counted() -> None:
    assert set(PRESETS) == {"tiny", *TRUE_COUNTS}


def test_logits_match_plain_numpy() -> None:
    model = small_model()
    weights = uneven_weights(model)
    tokens = np.random.default_rng(0).integers(0, SMALL.vocab_size, (3, SMALL.context))
    with torch.no_grad():
        own = model(torch.from_numpy(tokens)).double().numpy()
    for row, logits in zip(tokens, own, strict=True):
        expected = numpy_logits(weights, SMALL.heads, SMALL.layers, row)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_attention_is_causal() -> None:
    model = small_model()
    tokens = torch.randint(0, SMALL.vocab_size, (1, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 7] = (tokens[0, 7] + 1) % SMALL.vocab_size
    with torch.no_grad():
        before, after = model(tokens)[0], model(changed)[0]
    torch.testing.assert_close(before[:7], after[:7], rtol=0, atol=1e-6)
    assert not torch.allclose(before[7], after[7])


def test_initial_weights_follow_the_paper_and_the_code() -> None:
    architecture = Architecture(layers=8, width=256, heads=4, context=512, vocab_size=1000)
    model = empty_model(architecture)
    initialize(model, 0)
    weights = dict(model.named_parameters())
    expected = {"wte": 0.02, "wpe": 0.01, "c_attn": 0.02, "c_fc": 0.02, "c_proj": 0.02 / math.sqrt(16)}
    for name, weight in weights.items():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif weight.dim() == 1:
            assert (weight == 1).all(), name
        else:
            kind = name.split(".")[-2]
            assert weight.std().item() == pytest.approx(expected[kind], rel=0.02), name
            assert weight.mean().item() == pytest.approx(0, abs=3e-4), name


def test_initial_weights_follow_from_the_seed() -> None:
    one, same, other = (small_model(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["wte.weight"], other["wte.weight"])


def test_the_loss_is_the_sum_over_all_predicted_tokens() -> None:
    model = small_model()
    weights = uneven_weights(model)
    blocks = np.random.default_rng(1).integers(0, SMALL.vocab_size, (2, 9))
    expected = 0.0
    for block in blocks:
        logits = numpy_logits(weights, SMALL.heads, SMALL.layers, block[:-1])
        chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        expected -= np.log(chances[np.arange(8), block[1:]]).sum()
    assert next_token_loss(model, torch.from_numpy(blocks)).item() == pytest.approx(expected, rel=1e-5)


def test_a_new_model_has_the_loss_of_a_uniform_guess() -> None:
    blocks = torch.randint(0, SMALL.vocab_size, (8, SMALL.context + 1), generator=torch.Generator().manual_seed(0))
    loss = next_token_loss(small_model(), blocks).item() / (8 * SMALL.context)
    assert loss == pytest.approx(math.log(SMALL.vocab_size), abs=0.05)

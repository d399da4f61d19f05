"""The network of fine-tuning, compared with transformers, and the gradient of its loss."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2DoubleHeadsModel, GPT2ForSequenceClassification

from pipelines.model.io.hugging_face import to_hugging_face
from pipelines.model.network.classifier import (
    HEAD,
    Classifier,
    FineTuningLoss,
    initial_weights,
    label_loss,
)
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize, pack

PLAIN = Architecture(layers=2, width=16, heads=2, context=24, vocab_size=50)
SIZE = dataclasses.replace(PLAIN, vocab_size=53, dropout=0.1)


def classifier(outputs: int, compares: bool = False) -> Classifier:
    pretrained = empty_model(PLAIN)
    initialize(pretrained, 1)
    model = Classifier(SIZE, outputs, compares)
    model.load_state_dict(initial_weights(pretrained.state_dict(), outputs, seed=2))
    return model.eval()


def batch(texts: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Five examples of mixed lengths, padded."""
    generator = np.random.default_rng(seed)
    ends = torch.from_numpy(generator.integers(3, 20, size=(5, texts)))
    tokens = torch.from_numpy(generator.integers(0, 53, size=(5, texts, 20)))
    return tokens, ends


def packed(tokens: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the arguments of the loss: the tokens without padding, and the lengths of the texts."""
    rows = zip(tokens.flatten(0, 1), ends.flatten(), strict=True)
    return torch.cat([row[: end + 1] for row, end in rows]), ends + 1


def outputs_of(model: Classifier, tokens: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        ids, lengths = packed(tokens, ends)
        return model.classify(model.states(ids, lengths), lengths)


def config(labels: int, **more: object) -> GPT2Config:
    size = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 24, "vocab_size": 53}
    return GPT2Config(**size, num_labels=labels, attn_implementation="eager", **more)


def test_logits_equal_those_of_transformers() -> None:
    model = classifier(3)
    theirs = GPT2ForSequenceClassification(config(3, pad_token_id=0)).eval()
    weights = to_hugging_face(model.state_dict())
    weights[HEAD] = weights.pop(f"transformer.{HEAD}")
    theirs.load_state_dict(weights)
    tokens, ends = batch()
    own = outputs_of(model, tokens, ends)
    for row, (sequence, end) in enumerate(zip(tokens[:, 0], ends[:, 0], strict=True)):
        with torch.no_grad():
            expected = theirs(sequence[None, : end + 1]).logits[0]
        torch.testing.assert_close(own[row], expected, rtol=0, atol=1e-6)


def test_candidates_have_the_logits_of_double_heads() -> None:
    model = classifier(1, compares=True)
    theirs = GPT2DoubleHeadsModel(config(1, summary_type="cls_index")).eval()
    head = model.state_dict()[HEAD]
    names = {"multiple_choice_head.summary.weight": head, "multiple_choice_head.summary.bias": torch.zeros(1)}
    weights = {name: weight for name, weight in to_hugging_face(model.state_dict()).items() if HEAD not in name}
    missing = theirs.load_state_dict(weights | names, strict=False)
    assert missing.missing_keys == ["lm_head.weight"]
    assert not missing.unexpected_keys
    tokens, ends = batch(4)
    with torch.no_grad():
        expected = theirs(tokens, mc_token_ids=ends).mc_logits
    torch.testing.assert_close(outputs_of(model, tokens, ends), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", [0, 3])
def test_packed_texts_have_the_states_of_padded_ones(window: int) -> None:
    model = GPT2(dataclasses.replace(SIZE, dropout=0.0, attention_window=window))
    initialize(model, 1)
    tokens, ends = batch(2)
    ids, lengths = packed(tokens, ends)
    states = model.hidden(ids[None], packing=pack(lengths.flatten()))[0]
    padded = zip(model.hidden(tokens.flatten(0, 1)), ends.flatten(), strict=True)
    torch.testing.assert_close(states, torch.cat([row[: end + 1] for row, end in padded]))


@pytest.mark.parametrize(("texts", "compares"), [(1, False), (2, False), (4, True)])
def test_a_batch_of_mixed_lengths_equals_one_at_a_time(texts: int, compares: bool) -> None:
    model = classifier(1 if compares else 3, compares)
    tokens, ends = batch(texts)
    golds = torch.tensor([0, 2, 1, 0, 1])
    loss = FineTuningLoss(model, 0.5)
    whole, singly = loss(*packed(tokens, ends), golds), torch.zeros(())
    for row in range(5):
        one = (tokens[row : row + 1], ends[row : row + 1])
        torch.testing.assert_close(outputs_of(model, *one)[0], outputs_of(model, tokens, ends)[row])
        singly = singly + loss(*packed(*one), golds[row : row + 1])
    torch.testing.assert_close(whole, singly)


def test_swapped_pairs_have_equal_logits() -> None:
    model = classifier(2)
    tokens, ends = batch(2)
    assert torch.equal(outputs_of(model, tokens, ends), outputs_of(model, tokens.flip(1), ends.flip(1)))


def test_permuted_candidates_permute() -> None:
    model = classifier(1, compares=True)
    tokens, ends = batch(4)
    order = [2, 0, 3, 1]
    permuted = outputs_of(model, tokens[:, order], ends[:, order])
    assert torch.equal(outputs_of(model, tokens, ends)[:, order], permuted)


@pytest.mark.parametrize("texts", [1, 3])
def test_the_gradient_is_the_sum_of_its_parts(texts: int) -> None:
    """In float64; L1 is written out for each sequence, and is the mean over tokens, candidates and examples."""
    model = classifier(1 if texts > 1 else 3, texts > 1).double()
    tokens, ends = batch(texts)
    golds = torch.tensor([0, 2, 1, 0, 1])

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        weights = zip(parts, model.parameters(), strict=True)
        return torch.cat([(torch.zeros_like(w) if part is None else part).flatten() for part, w in weights])

    padded = model.hidden(tokens.flatten(0, 1))
    extracts = padded[torch.arange(len(padded)), ends.flatten()]
    label = label_loss(model.classify(extracts, torch.ones_like(ends)), golds)
    language = torch.zeros((), dtype=torch.float64)
    for row in range(5):
        for text in range(texts):
            ids = tokens[row, text, : ends[row, text] + 1]
            losses = torch.nn.functional.cross_entropy(model(ids[None, :-1])[0], ids[1:])
            language = language + losses / texts
    whole = gradient(FineTuningLoss(model, 0.5)(*packed(tokens, ends), golds))
    torch.testing.assert_close(whole, gradient(label) + 0.5 * gradient(language), rtol=0, atol=1e-12)


def test_candidates_share_the_mask_of_dropout() -> None:
    model = classifier(1, compares=True)
    model.train()
    states = torch.randn(5, SIZE.width).repeat_interleave(2, dim=0)
    outputs = model.classify(states, torch.ones(5, 2, dtype=torch.long))
    assert torch.equal(outputs[:, 0], outputs[:, 1])


def test_the_new_rows_follow_those_of_the_model() -> None:
    pretrained = empty_model(PLAIN)
    initialize(pretrained, 1)
    weights = initial_weights(pretrained.state_dict(), 2, seed=3)
    assert torch.equal(weights["wte.weight"][:50], pretrained.wte.weight)
    assert weights["wte.weight"].shape == (53, 16)
    assert 0.01 < weights["wte.weight"][50:].std() < 0.03
    assert not torch.equal(weights[HEAD], initial_weights(pretrained.state_dict(), 2, seed=4)[HEAD])


def test_the_new_weights_differ_from_those_of_random_tokens() -> None:
    """A model from scratch has the same seed; its start token must not be its first token."""
    random = empty_model(PLAIN)
    initialize(random, 3)
    weights = initial_weights(random.state_dict(), 2, seed=3)
    new = torch.cat([weights["wte.weight"][50:], weights[HEAD]])
    assert torch.cdist(new, weights["wte.weight"][:50]).min() > 0.01

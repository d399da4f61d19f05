"""Locally banded attention: exact against all pairs of tokens, with and without a cache, and in the scorer's trees."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor

from pipelines.errors import InputError
from pipelines.evaluation.scoring import Scorer
from pipelines.evaluation.task import Request
from pipelines.model.device import DeviceConfig, reproducible
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.sampling import sample_tokens
from pipelines.model.network.banded import banded_attention, flex_banded_attention, latest_visible
from pipelines.model.network.gpt2 import GPT2, Architecture, KeyValueCache, empty_model, empty_weights, initialize

SIZE = Architecture(layers=4, width=16, heads=2, context=48, vocab_size=61, attention_window=5)


def reference(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    """Attention over every pair of tokens, one at a time: key k is visible to query q if k <= q < k + window."""
    out = torch.empty_like(query)
    for q in range(query.shape[2]):
        seen = [k for k in range(query.shape[2]) if k <= q < k + window]
        scores = (query[:, :, q : q + 1] @ key[:, :, seen].transpose(2, 3)) / math.sqrt(query.shape[3])
        out[:, :, q] = (scores.softmax(3) @ value[:, :, seen])[:, :, 0]
    return out


def parts(tokens: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return [torch.randn(2, 3, tokens, 8, generator=generator, dtype=torch.float64) for _ in range(3)]


def sharp_model() -> GPT2:
    """A model whose attention depends on every token that it sees."""
    model = empty_model(SIZE)
    initialize(model, 5)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model.eval()


def text(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, SIZE.vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize(("tokens", "window"), [(1, 4), (4, 4), (5, 4), (8, 4), (23, 4), (23, 1), (23, 22), (9, 50)])
def test_attention_and_its_gradients_are_those_of_all_pairs(tokens: int, window: int) -> None:
    own, expected = ([part.clone().requires_grad_() for part in parts(tokens)] for _ in range(2))
    weights = torch.linspace(-1, 1, 8, dtype=torch.float64)
    with reproducible(torch.device("cpu")):
        out = banded_attention(own[0], own[1], own[2], window)
        (out * weights).sum().backward()  # type: ignore[no-untyped-call]
    wanted = reference(expected[0], expected[1], expected[2], window)
    (wanted * weights).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(out, wanted)
    for left, right in zip(own, expected, strict=True):
        torch.testing.assert_close(left.grad, right.grad)


def test_the_kernel_for_gpus_has_the_same_mask() -> None:
    query, key, value = parts(23)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        out = flex_banded_attention(query, key, value, 4)
    torch.testing.assert_close(out, reference(query, key, value, 4))


def test_dropout_drops_pairs_within_the_band_only() -> None:
    query, key, _ = parts(23)
    identity = torch.eye(23, dtype=torch.float64).expand(2, 3, 23, 23)  # so that the output is the pairs' weights
    torch.manual_seed(0)
    weights = banded_attention(F.pad(query, (0, 15)), F.pad(key, (0, 15)), identity, 4, dropout=0.5)
    band = torch.ones(23, 23, dtype=torch.bool).tril().triu(-3)
    assert not weights[:, :, ~band].any()
    assert 0.3 < (weights[:, :, band] == 0).double().mean() < 0.7


def test_only_the_latest_visible_keys_are_kept() -> None:
    visible = torch.tensor([[1, 0, 1, 1, 0, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]).bool()
    expected = torch.tensor([[0, 0, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]).bool()
    assert torch.equal(latest_visible(visible, 2), expected)


def test_every_second_layer_is_banded() -> None:
    model = sharp_model()
    tokens = torch.tensor([text(20)])
    seen: list[Tensor] = []
    for block in model.h:
        # What a layer adds depends on the last `window` positions only, if it is banded.
        x = torch.randn(1, 20, SIZE.width, generator=torch.Generator().manual_seed(1))
        changed = x.clone()
        changed[:, 14] += torch.randn(SIZE.width, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            seen.append((block(x) != block(changed)).any(2)[0].nonzero().flatten())
    assert [positions.tolist() for positions in seen] == [[*range(14, 20)], [*range(14, 19)]] * 2
    full = empty_model(Architecture(4, 16, 2, 48, 61))
    full.load_state_dict(model.state_dict())
    with torch.no_grad():
        same, other = model(tokens)[0], full.eval()(tokens)[0]
    torch.testing.assert_close(same[:5], other[:5], rtol=1e-5, atol=1e-5)
    assert (same[6:] - other[6:]).abs().max() > 0.01


@pytest.mark.parametrize("pieces", [[1] * 30, [7, 1, 1, 9, 2, 10], [3, 27]])
def test_with_a_cache_the_hidden_states_are_the_same(pieces: list[int]) -> None:
    model, tokens = sharp_model(), torch.tensor([text(30), text(30, 1)])
    cache = KeyValueCache(SIZE, 2, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        whole = model.hidden(tokens)
        rows = torch.cat([model.hidden(piece, cache) for piece in torch.split(tokens, pieces, 1)], 1)
    torch.testing.assert_close(rows, whole, rtol=1e-4, atol=1e-5)


def test_greedy_samples_are_those_without_a_cache() -> None:
    model, prompt = sharp_model(), text(9)
    [own] = sample_tokens(model, prompt, SamplingOptions(max_tokens=35, temperature=0), [0], end_of_text=-1)
    expected = [*prompt]
    with torch.no_grad():
        for _ in range(35):
            expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    assert own == expected[9:]


@pytest.mark.parametrize("tokens_at_once", [8, 30, 400])
def test_scores_of_texts_that_share_their_beginning_are_those_of_each_alone(tokens_at_once: int) -> None:
    model, start = sharp_model(), text(17)
    requests = [
        Request(start[:length], [text(size, seed) for seed, size in enumerate((1, 9, 12), length)])
        for length in (17, 17, 12, 3, 1)
    ]
    outputs = Scorer(model, DeviceConfig(torch.device("cpu"), False), tokens_at_once).score(requests)
    for request, output in zip(requests, outputs, strict=True):
        for continuation, log_probs in zip(request.continuations, output.log_probs, strict=True):
            ids = torch.tensor([[*request.prefix, *continuation]])
            with torch.no_grad():
                alone = model(ids[:, :-1]).log_softmax(2).gather(2, ids[:, 1:, None])[0, -len(continuation) :, 0]
            assert log_probs == pytest.approx(alone.tolist(), abs=1e-4)


def test_greedy_continuations_of_several_texts_are_those_of_each_alone() -> None:
    model = sharp_model()
    texts = [text(length, length) for length in (3, 11, 20)]
    texts.append([*texts[2], 5, 6])
    scorer = Scorer(model, DeviceConfig(torch.device("cpu"), False))
    outputs = scorer.continue_texts(
        texts, 15, lambda logits, _: [int(token) for token in logits.argmax(1)], lambda tokens: False
    )
    for start, output in zip(texts, outputs, strict=True):
        expected = [*start]
        with torch.no_grad():
            for _ in range(15):
                expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
        assert [*start, *output.tokens] == expected


def test_a_window_that_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"x: attention_window is -1, expected 0 to"):
        empty_weights(Architecture(1, 8, 2, 4, 9, attention_window=-1), "x")

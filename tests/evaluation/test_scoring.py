"""Scoring many texts at once equals scoring one after the other, without a cache."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import InputError
from pipelines.evaluation.scoring import Scorer
from pipelines.evaluation.task import Request
from pipelines.model.device import device_config
from pipelines.model.inference.decoding import choose_by
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize

_VOCABULARY = 23
_CPU = device_config(torch.device("cpu"))


def _model(context: int = 24, scale: float = 8.0) -> GPT2:
    model = empty_model(Architecture(layers=2, width=16, heads=2, context=context, vocab_size=_VOCABULARY))
    initialize(model, seed=3)
    with torch.no_grad():
        for weight in model.parameters():  # so that the logits differ
            weight.mul_(scale if weight.dim() > 1 else 1.0)
    return model.eval()


_MODEL = _model()
_MOST_LIKELY = choose_by(SamplingOptions(temperature=0), [])
_TOKEN = st.integers(0, 3)  # few, so that texts have much in common
_REQUESTS = st.lists(
    st.tuples(
        st.lists(_TOKEN, min_size=1, max_size=16),
        st.lists(st.lists(_TOKEN, max_size=8), max_size=4),
    ).map(lambda parts: Request(*parts)),
    max_size=8,
)


@torch.no_grad()
def _plain_scores(request: Request) -> list[tuple[list[float], list[bool]]]:
    """Score every continuation alone, from the logits of the whole text."""
    scores = []
    for tokens in request.continuations:
        text = [*request.prefix, *tokens]
        log_probs = torch.log_softmax(_MODEL(torch.tensor([text]))[0], 1)
        places = range(len(request.prefix) - 1, len(text) - 1)
        scores.append(
            (
                [float(log_probs[place, text[place + 1]]) for place in places],
                [int(log_probs[place].argmax()) == text[place + 1] for place in places],
            )
        )
    return scores


@settings(max_examples=40)
@given(_REQUESTS, st.sampled_from([1, 5, 20, 1000]))
def test_scores_equal_those_of_single_texts(requests: list[Request], tokens_at_once: int) -> None:
    outputs = Scorer(_MODEL, _CPU, tokens_at_once).score(requests)
    for request, output in zip(requests, outputs, strict=True):
        for log_probs, greedy, plain in zip(output.log_probs, output.greedy, _plain_scores(request), strict=True):
            np.testing.assert_allclose(log_probs, plain[0], atol=1e-5, rtol=0)
            assert greedy == plain[1]


@settings(max_examples=30)
@given(st.lists(st.lists(_TOKEN, min_size=1, max_size=20), min_size=1, max_size=20), st.sampled_from([1, 30, 1000]))
def test_continuations_equal_those_of_single_texts(texts: list[list[int]], tokens_at_once: int) -> None:
    results = Scorer(_MODEL, _CPU, tokens_at_once).continue_texts(
        texts, 6, _MOST_LIKELY, lambda tokens: tokens[-1] == 7
    )
    for text, result in zip(texts, results, strict=True):
        expected: list[int] = []
        log_probs = []
        with torch.no_grad():
            while len(expected) < 6 and len(text) + len(expected) <= 24 and expected[-1:] != [7]:
                last = torch.log_softmax(_MODEL(torch.tensor([[*text, *expected]]))[0, -1], 0)
                expected.append(int(last.argmax()))
                log_probs.append(float(last.max()))
        assert result.tokens == expected
        np.testing.assert_allclose(result.log_probs[0], log_probs, atol=1e-5, rtol=0)
        assert result.ended == (expected[-1] == 7)


def test_chosen_tokens_are_scored() -> None:
    def choose(logits: torch.Tensor, numbers: list[int]) -> list[int]:
        assert logits.shape == (len(numbers), _VOCABULARY)
        return [number + 1 for number in numbers]

    results = Scorer(_MODEL, _CPU).continue_texts([[5], [1, 2], [3]], 3, choose, lambda _tokens: False)
    assert [result.tokens for result in results] == [[1] * 3, [2] * 3, [3] * 3]
    plain = _plain_scores(Request([1, 2], [[2, 2, 2]]))
    np.testing.assert_allclose(results[1].log_probs[0], plain[0][0], atol=1e-5)


def test_a_uniform_model_gives_the_size_of_its_vocabulary() -> None:
    model = _model(scale=0.0)
    [output] = Scorer(model, _CPU).score([Request([1], [[2, 3, 4, 5]])])
    assert math.exp(-np.mean(output.log_probs[0])) == pytest.approx(_VOCABULARY, rel=1e-6)
    assert not any(output.greedy[0])  # all are equal, and a decoder takes one of them


def test_a_shared_beginning_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    hidden = GPT2.hidden

    def counting(self: GPT2, tokens: torch.Tensor, *rest: object) -> torch.Tensor:
        computed.append(tokens.numel())
        return hidden(self, tokens, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(GPT2, "hidden", counting)
    requests = [Request([1] * 15, [[choice, 2, 3, 4] for choice in range(10)]), Request([1] * 15, [[12, 1]])]
    Scorer(_MODEL, _CPU, tokens_at_once=20).score(requests)
    # 15 once, then 3 tokens of every choice and one more; the last of the 15 again in every batch that scores it.
    assert sum(computed) <= 15 + 10 * 3 + 1 + len(computed) - 1
    assert len(computed) <= 4


def test_a_diverged_model_is_an_error() -> None:
    with pytest.raises(InputError, match="not finite"):
        Scorer(_model(scale=math.nan), _CPU).score([Request([1], [[2]])])

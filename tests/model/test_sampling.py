"""Sampling: which tokens may come, how often they do, and where a text ends."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from small_training import train_small
from tokenizers import Tokenizer
from training_run import StopsAtStep

from pipelines.engine.run import RunOptions
from pipelines.errors import DamagedShardError, InputError, UsageError
from pipelines.model.inference.decoding import next_tokens
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.sampling import Sample, generate, sample_tokens
from pipelines.model.io.model_folder import open_model
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize

END = 10


@pytest.fixture
def model() -> GPT2:
    """A model with strong opinions: large weights, so that its choices are not all alike."""
    model = empty_model(Architecture(layers=2, width=16, heads=2, context=8, vocab_size=11))
    initialize(model, 0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5)
    return model.eval()


def probabilities(logits: list[float], options: SamplingOptions) -> np.ndarray:
    """What may come next, by id."""
    tokens, shares = next_tokens(np.array(logits), options)
    result = np.zeros(len(logits))
    result[tokens] = shares
    return result


def plain_probabilities(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """The definition, token by token."""
    likeliest = sorted(range(len(logits)), key=lambda token: -logits[token])
    kept = likeliest[:top_k] if top_k else likeliest
    weights = {token: math.exp(logits[token] / temperature) for token in kept}
    whole = sum(weights.values())
    nucleus, reached = [], 0.0
    for token in kept:
        nucleus.append(token)
        reached += weights[token] / whole
        if reached >= top_p:
            break
    rest = sum(weights[token] for token in nucleus)
    return [weights[token] / rest if token in nucleus else 0.0 for token in range(len(logits))]


@example([5.0, -1e-164, 0.0], 2.0, 0, 0.9)  # less the largest, the other two are equal
@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=12, unique=True),
    st.floats(0.1, 3),
    st.integers(0, 14),
    st.sampled_from([0.05, 0.37, 0.9, 1.0]),
)
def test_probabilities_are_those_of_the_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    options = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p)
    expected = plain_probabilities(logits, temperature, top_k, top_p)
    np.testing.assert_allclose(probabilities(logits, options), expected, rtol=1e-9, atol=1e-12)


def test_of_equal_logits_the_lower_id_comes_first() -> None:
    assert probabilities([1.0, 2.0, 1.0, 2.0, 1.0], SamplingOptions(top_k=3)).nonzero()[0].tolist() == [0, 1, 3]
    assert probabilities([1.0, 2.0, 2.0, 2.0], SamplingOptions(top_k=0, top_p=0.5)).nonzero()[0].tolist() == [1, 2]


def test_token_frequencies_match_the_probabilities(model: GPT2) -> None:
    options = SamplingOptions(max_tokens=1, temperature=2.0, top_k=4)
    counts = np.zeros(11)
    for first in range(0, 800, 8):
        for (token,) in sample_tokens(model, [1, 2], options, range(first, first + 8), end_of_text=END):
            counts[token] += 1
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2]]))[0, -1].tolist()
    expected = np.array(plain_probabilities(logits, 2.0, 4, 1.0))
    assert (counts[expected == 0] == 0).all()
    deviation = np.sqrt(expected * (1 - expected) / 800)
    assert (np.abs(counts / 800 - expected) <= 4 * deviation + 1e-9).all()


def test_a_tiny_temperature_is_greedy() -> None:
    for temperature in (1e-320, 1e-300, 1e-9):
        result = probabilities([1.0, 3.0, -2.0], SamplingOptions(temperature=temperature))
        assert result.tolist() == [0.0, 1.0, 0.0]


def test_a_text_ends_with_the_end_of_text(model: GPT2) -> None:
    options = SamplingOptions(max_tokens=200, temperature=3.0, top_k=0)
    texts = sample_tokens(model, [1], options, range(4), end_of_text=END)
    assert [text.index(END) for text in texts] == [len(text) - 1 for text in texts]
    assert len({len(text) for text in texts}) > 1


def test_the_seed_decides(model: GPT2) -> None:
    options = SamplingOptions(max_tokens=12, temperature=3.0)
    one, same, other = sample_tokens(model, [1], options, [1, 1, 2], end_of_text=-1)
    assert one == same != other


def test_logits_that_are_not_finite_are_refused(model: GPT2) -> None:
    with torch.no_grad():
        model.ln_f.weight.fill_(math.nan)
    with pytest.raises(InputError, match="the model's logits are not finite"):
        sample_tokens(model, [1], SamplingOptions(), [0], end_of_text=END)


def samples(folder: Path, prompts: list[str], number: int = 1, **options: float) -> list[Sample]:
    values = SamplingOptions(**{"max_tokens": 8, **options})  # type: ignore[arg-type]
    return list(generate(str(folder), prompts, number, values, "cpu"))


def test_a_folder_of_pretrain_gives_texts(trained: Path) -> None:
    result = samples(trained, ["the cat", ""], 2)
    assert [(sample.prompt, sample.number) for sample in result] == [("the cat", 0), ("the cat", 1), ("", 0), ("", 1)]
    assert all(sample.tokens <= 8 and (sample.ended or sample.tokens == 8) for sample in result)
    assert len({sample.text for sample in result}) > 1


def test_a_sample_does_not_depend_on_the_number_of_samples(trained: Path) -> None:
    many = samples(trained, ["", "the cat"], 3)
    assert samples(trained, ["the cat"])[0] == many[3]
    assert samples(trained, ["the cat"], seed=1)[0] != many[3]


def test_greedy_decoding_continues_the_prompt(trained: Path, tokenizer: Tokenizer) -> None:
    greedy = samples(trained, ["the cat sees"], temperature=0)[0]
    model = open_model(str(trained)).model
    row = tokenizer.encode("the cat sees").ids
    prompt = len(row)
    with torch.no_grad():
        while len(row) < prompt + greedy.tokens:
            row.append(int(model(torch.tensor([row]))[0, -1].argmax()))
    assert len(row) <= 16
    assert greedy.text == tokenizer.decode(row[prompt:])


def test_the_latest_checkpoint_of_an_unfinished_training_is_used(tokens: str, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", options=RunOptions(progress=StopsAtStep(5)))
    assert open_model(str(tmp_path / "out")).step == 4
    weights = torch.equal(open_model(str(tmp_path / "out")).model.wte.weight, open_model(str(trained)).model.wte.weight)
    assert not weights
    assert samples(tmp_path / "out", [""])


def test_a_training_without_checkpoint_is_refused(tokens: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", options=RunOptions(progress=StopsAtStep(1)))
    with pytest.raises(InputError, match=r"has no checkpoint yet; re-run `webtext pretrain`"):
        samples(tmp_path / "out", [""])


def test_three_files_of_a_finished_training_are_enough(trained: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(trained / name, tmp_path)
    assert samples(tmp_path, ["the cat"]) == samples(trained, ["the cat"])


def test_a_prompt_with_invalid_utf8_is_refused(trained: Path) -> None:
    with pytest.raises(UsageError, match=r"prompt 'caf\\udce9'\.\.\.: not valid UTF-8"):
        samples(trained, ["caf\udce9"])


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no model \(no config.json\); run `webtext pretrain` first"):
        samples(tmp_path, [""])


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=r"config.json: not the config of a GPT-2"):
        samples(tmp_path, [""])


def test_a_prompt_longer_than_the_context_is_refused(trained: Path) -> None:
    with pytest.raises(UsageError, match=r"prompt 'the cat .*'\.\.\.: \d+ tokens exceed the context of 16"):
        samples(trained, ["the cat " * 20])


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_file_of_a_model_is_named(trained: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(trained, tmp_path / "out")
    file = tmp_path / "out" / name
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedShardError, match=rf"{name}: is damaged.*re-run `webtext pretrain`"):
        samples(tmp_path / "out", [""])


def test_another_tokenizer_than_the_trained_one_is_refused(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    (tmp_path / "out" / "tokenizer.json").write_bytes((trained / "tokenizer.json").read_bytes() + b"\n")
    with pytest.raises(InputError, match=r"tokenizer.json: not the tokenizer that the model was trained with"):
        samples(tmp_path / "out", [""])


def test_weights_of_another_vocabulary_are_refused(trained: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(trained / name, tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    described["architecture"]["vocab_size"] = 400
    (tmp_path / "config.json").write_text(json.dumps(described))
    message = r"wte.weight has shape \[300, 16\], but the architecture requires \[400, 16\]"
    with pytest.raises(InputError, match=message):
        samples(tmp_path, [""])


def test_a_file_without_weights_is_refused(trained: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(trained / name, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"model.safetensors: not a safetensors file"):
        samples(tmp_path, [""])


def test_a_prompt_given_twice_is_refused(trained: Path) -> None:
    with pytest.raises(UsageError, match="prompt 'the' is given twice; use --samples"):
        list(generate(str(trained), ["the", "a", "the"], 1, SamplingOptions()))


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ("[]", "not the config of a GPT-2"),
        ('{"format": "webtext-gpt2"}', "not a complete model config"),
        ('{"format": "webtext-gpt2", "architecture": [], "end_of_text": 1}', "config .Expected `object`, got `array`"),
        (
            '{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 3, "n_positions": 4, "vocab_size": 9, '
            '"eos_token_id": 8}',
            "n_head is 3, which is impossible with the other sizes",
        ),
        (
            '{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 4, "vocab_size": 9, '
            '"eos_token_id": 9}',
            "eos_token_id is 9, which is impossible with the other sizes",
        ),
    ],
)
def test_an_impossible_config_is_refused(trained: Path, tmp_path: Path, described: str, message: str) -> None:
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    (tmp_path / "config.json").write_text(described)
    with pytest.raises(InputError, match=message):
        list(generate(str(tmp_path), [""], 1, SamplingOptions()))

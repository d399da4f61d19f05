"""Models whose predictions are known, over a vocabulary of bytes."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipelines.model.io.model_folder import open_model
from pipelines.model.io.tensor_files import write_tensors
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize

END = 256
VOCABULARY = 257


@functools.cache
def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with a token per byte, and <|endoftext|>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: id for id, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def write_model(folder: Path, kind: str = "random", context: int = 64) -> str:
    """Write a model and return its folder: random, uniform (all tokens equally likely) or bigram (see below)."""
    architecture = Architecture(layers=2, width=16, heads=2, context=context, vocab_size=VOCABULARY)
    model = empty_model(architecture)
    initialize(model, seed=5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if kind == "uniform" or (kind == "bigram" and (name == "wpe.weight" or "c_proj" in name)):
                weight.zero_()
            elif weight.dim() > 1:
                weight.mul_(12.0)
    tokenizer = byte_tokenizer().to_str()
    folder.mkdir(parents=True)
    config = {"format": "webtext-gpt2", "architecture": vars(architecture), "end_of_text": END}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer)
    write_tensors(str(folder), "model.safetensors", dict(model.state_dict()), {})
    return str(folder)


def bigram_log_probs(folder: str) -> npt.NDArray[np.float64]:
    """Return the log-probabilities of a bigram model in float64, [token, next token].

    Without positions, attention and feed-forward layers, the logits are those of the normalized embedding.
    """
    wte = _model(folder).wte.weight.detach().double().numpy()
    normal = (wte - wte.mean(1, keepdims=True)) / np.sqrt(wte.var(1, keepdims=True) + 1e-5)
    logits = normal @ wte.T
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@functools.cache
def _model(folder: str) -> GPT2:
    return open_model(folder).model


@torch.no_grad()
def plain_next_token(folder: str, text: list[int], banned: Collection[str] = ()) -> int:
    """Return the most likely token after a text that is not one of the banned texts, in any case."""
    order = _model(folder)(torch.tensor([text]))[0, -1].argsort(descending=True).tolist()
    return next(token for token in order if byte_tokenizer().decode([token]).strip().lower() not in banned)


@torch.no_grad()
def plain_log_probs(folder: str, prefix: list[int], tokens: list[int]) -> tuple[list[float], bool]:
    """Return the log-probabilities of tokens after a prefix, from one text alone, and whether all are the largest."""
    text = [*prefix, *tokens]
    log_probs = torch.log_softmax(_model(folder)(torch.tensor([text[:-1]]))[0].double(), 1)
    places = range(len(prefix) - 1, len(text) - 1)
    is_greedy = all(int(log_probs[place].argmax()) == text[place + 1] for place in places)
    return [float(log_probs[place, text[place + 1]]) for place in places], is_greedy


def encode(text: str) -> list[int]:
    """Return the tokens of a text."""
    ids: list[int] = byte_tokenizer().encode(text, add_special_tokens=False).ids
    return ids

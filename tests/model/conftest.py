"""A small corpus of tokens, and a model trained on it, that the tests of the model share."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from small_training import train_small
from token_folder import encode, train_tokenizer, write_token_folder
from tokenizers import Tokenizer


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Models as small as these only lose by more threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def documents() -> list[str]:
    source = random.Random(1)
    words = "the a cat dog bird sees hears likes old young and but then house garden river, walks runs. It She".split()
    return [" ".join(source.choice(words) for _ in range(60)) for _ in range(40)]


@pytest.fixture(scope="session")
def tokenizer(documents: list[str]) -> Tokenizer:
    return train_tokenizer(documents, 300)


@pytest.fixture(scope="session")
def tokens(documents: list[str], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of tokenize with two shards for training and one held out."""
    folder = tmp_path_factory.mktemp("corpus") / "tokenize"
    train = [encode(tokenizer, documents[:20]), encode(tokenizer, documents[20:36])]
    return write_token_folder(folder, train, [encode(tokenizer, documents[36:])], tokenizer)


@pytest.fixture(scope="session")
def trained(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run of the small model."""
    output = tmp_path_factory.mktemp("trained") / "pretrain"
    train_small(tokens, output)
    return output

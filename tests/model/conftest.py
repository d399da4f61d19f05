"""A small corpus of tokens, and a model trained on it, that the tests of the model share."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from token_folder import encode, train_tokenizer, write_token_folder
from tokenizers import Tokenizer

from pipelines.core.run import RunOptions, Summary
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.stage import pretrain

SMALL = (
    "layers=2", "width=16", "heads=2", "context=16", "batch_size=4", "micro_batch=3", "steps=6", "warmup_steps=2",
    "learning_rate=0.01", "dropout=0.1", "eval_every=3", "eval_blocks=2",
)  # fmt: skip


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


def train_small(tokens: str, output: Path, *more: str, options: RunOptions | None = None, **config: object) -> Summary:
    """Train the small model, with more `--set` values and options."""
    values = {"preset": "tiny", "set": (*SMALL, *more), "device": "cpu", "threads": 1, "checkpoint_every": 2, **config}
    return pretrain(
        PretrainConfig(**values),  # type: ignore[arg-type]
        tokens=tokens,
        output=str(output),
        options=options or RunOptions(),
    )


@pytest.fixture(scope="session")
def trained(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run of the small model."""
    output = tmp_path_factory.mktemp("trained") / "pretrain"
    train_small(tokens, output)
    return output

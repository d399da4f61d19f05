"""Mean hidden states equal those of single texts, and classify as their definition says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_task import own_task, run_task, value_of
from small_model import END, VOCABULARY, encode, write_model

from pipelines.errors import InputError, UsageError
from pipelines.evaluation.definitions import read_task
from pipelines.evaluation.scoring import Scorer
from pipelines.model.device import device_config
from pipelines.model.io.model_folder import open_model
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize

_CPU = device_config(torch.device("cpu"))
_RECORDS = [
    {"text": "the match ended in a draw", "label": 1},
    {"text": "a", "label": "C"},
    {"text": "shares of the bank fell " * 5, "label": "world news"},  # longer than the context
    {"text": "", "label": 2},
]
_LABELS = ["world news", "sport", "{text} market"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "random")


def _model() -> GPT2:
    model = empty_model(Architecture(layers=2, width=16, heads=2, context=24, vocab_size=VOCABULARY))
    initialize(model, seed=3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8.0 if weight.dim() > 1 else 1.0)
    return model.eval()


_MODEL = _model()


@torch.no_grad()
def _plain_mean(model: GPT2, text: list[int]) -> npt.NDArray[np.float64]:
    """Return the mean hidden state of a text that is computed alone."""
    return model.hidden(torch.tensor([text]))[0].double().mean(0).numpy()


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), max_size=10), st.sampled_from([1, 5, 30, 1000]))
def test_means_equal_those_of_single_texts(texts: list[list[int]], tokens_at_once: int) -> None:
    outputs = Scorer(_MODEL, _CPU, tokens_at_once).embed(texts)
    for text, output in zip(texts, outputs, strict=True):
        np.testing.assert_allclose(output.vector, _plain_mean(_MODEL, text), atol=1e-5, rtol=0)


def test_a_diverged_model_is_an_error() -> None:
    model = _model()
    with torch.no_grad():
        model.ln_f.weight.fill_(math.nan)
    with pytest.raises(InputError, match="not finite"):
        Scorer(model, _CPU).embed([[1, 2]])


def _expected(folder: str, masked: bool) -> list[dict[str, Any]]:
    """Classify every record by itself."""
    model = open_model(folder).model
    rows = []
    for record, gold in zip(_RECORDS, (1, 2, 0, 2), strict=True):
        labels = [label.replace("{text}", str(record["text"])) for label in _LABELS]
        texts = [(encode(text) or [END])[:64] for text in (str(record["text"]), *labels)]
        longest = max(map(len, texts))
        if not masked:
            texts = [text + [END] * (longest - len(text)) for text in texts]
        text, *others = (_plain_mean(model, tokens) for tokens in texts)
        cosines = [text @ other / math.sqrt((text @ text) * (other @ other)) for other in others]
        best = cosines.index(max(cosines))
        rows.append(
            {
                "gold": labels[gold].strip(),
                "output": labels[best].strip(),
                "accuracy": best == gold,
                "gold_similarity": pytest.approx(cosines[gold], abs=1e-5),
            }
        )
    return rows


@pytest.mark.parametrize("masked", [True, False])
def test_the_most_similar_label_is_chosen(tmp_path: Path, folder: str, masked: bool) -> None:
    task = own_task(tmp_path, "similarity", _RECORDS, labels=_LABELS, masked=masked)
    result, examples = run_task(task, folder, tmp_path / "out")
    expected = _expected(folder, masked)
    assert [{name: row[name] for name in expected[0]} for row in examples] == expected
    assert value_of(result, "accuracy") == sum(row["accuracy"] for row in expected) / len(expected)
    longest = len(encode(_LABELS[2].replace("{text}", str(_RECORDS[2]["text"]))))
    assert [row["cut"] for row in examples] == [0, 0, longest - 64, 0]
    assert result["truncated_examples"] == 1
    answers = pq.read_table(tmp_path / "out" / "own" / "answers-00000.parquet").to_pylist()
    assert len(answers) == len(_RECORDS) * 4
    assert all(len(answer["vector"]) == 16 and not answer["log_probs"] for answer in answers)


def test_the_protocol_has_the_known_recipe_as_a_variant() -> None:
    protocol = read_task("agnews-similarity")
    assert protocol.values("paper")["masked"]
    assert not protocol.values("unmasked")["masked"]


def test_bad_tasks_are_named(tmp_path: Path, folder: str) -> None:
    with pytest.raises(UsageError, match="labels: has 1 labels, expected at least 2"):
        run_task(own_task(tmp_path, "similarity", _RECORDS, labels=["a"]), folder, tmp_path / "out")
    for record, message in (
        ({"text": "x", "label": 7}, r"data.jsonl:1: the right choice 7 is not one of \['a', 'b'\]"),
        ({"label": 0}, r"data.jsonl:1: has no field 'text'"),
    ):
        task = own_task(tmp_path, "similarity", [record], labels=["a", "b"])
        with pytest.raises(InputError, match=message):
            run_task(task, folder, tmp_path / "out")


def test_a_model_without_weights_is_similar_to_nothing(tmp_path: Path) -> None:
    model = write_model(tmp_path / "uniform", "uniform")
    _, examples = run_task(own_task(tmp_path, "similarity", _RECORDS, labels=_LABELS), model, tmp_path / "out")
    assert [row["gold_similarity"] for row in examples] == [0.0] * len(_RECORDS)

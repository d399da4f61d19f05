"""How far a model recites documents, and those of the training split alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_task import own_task, run_task, value_of
from small_model import END, byte_tokenizer, encode, plain_next_token, write_model

from pipelines.errors import InputError, UsageError
from pipelines.evaluation.records import DocumentOptions, Documents

_CONTEXT = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "random", context=_CONTEXT)


def _continued(model: str, prompt: list[int], count: int) -> list[int]:
    """Return the most likely tokens after a prompt."""
    tokens: list[int] = []
    while len(tokens) < count and tokens[-1:] != [END]:
        tokens.append(plain_next_token(model, prompt + tokens))
    return tokens


def _text(tokens: list[int]) -> str:
    text: str = byte_tokenizer().decode(tokens, skip_special_tokens=False)
    return text


def _recited(model: str) -> str:
    """Return a text of which the model knows the second half: bytes of ASCII, since others need not be a text."""
    for letter in "abcdefghijklmnopqrstuvwxyz":
        for size in range(2, 12):
            prompt = [END, *encode(letter * (size - 1))]
            rest = _continued(model, prompt, size)
            text = _text([*prompt[1:], *rest])
            if len(rest) == size and encode(text) == [*prompt[1:], *rest]:
                return text
    raise AssertionError("the model continues no such text with a text")


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(0, 100), (0, 5), (9, 12)])
def test_continuations_are_compared_with_the_document(
    tmp_path: Path, model: str, prompt_tokens: int, max_tokens: int
) -> None:
    recited = _recited(model)
    texts = [recited, recited[:-1] + "~", "the cat sees the dog", "a long text " * 20, "x"]
    options = {"prompt_tokens": prompt_tokens, "max_tokens": max_tokens}
    task = own_task(tmp_path, "recitation", [{"text": text} for text in texts], **options)
    result, examples = run_task(task, model, tmp_path / "out")
    expected = []
    for text in texts:
        tokens = [END, *encode(text)][:_CONTEXT]
        size = prompt_tokens or len(tokens) // 2
        rest = tokens[size : size + max_tokens]
        if rest:
            continued = _continued(model, tokens[:size], len(rest))
            equal = [at < len(continued) and continued[at] == token for at, token in enumerate(rest)]
            prefix = equal.index(False) if False in equal else len(rest)
            expected.append((_text(rest), _text(continued), prefix, sum(equal) / len(rest), all(equal)))
    columns = ("gold", "output", "common_prefix", "token_accuracy", "recited")
    assert [tuple(row[name] for name in columns) for row in examples] == expected
    assert result["counts"].get("documents_too_short", 0) == len(texts) - len(expected)
    for name in columns[2:]:
        assert value_of(result, name) == pytest.approx(sum(row[name] for row in examples) / len(examples))
    if (prompt_tokens, max_tokens) == (0, 100):  # the first is known, the second except for its last token
        assert [row["recited"] for row in examples[:2]] == [True, False]
        assert examples[0]["common_prefix"] == examples[1]["common_prefix"] + 1 == (len(recited) + 2) // 2


def test_documents_of_a_split_are_recited(tmp_path: Path, model: str) -> None:
    records = [{"id": f"d{number}", "text": f"document {number}"} for number in range(40)]
    task = own_task(tmp_path, "recitation", records, part="train", held_out=0.3, sample=10, max_tokens=3)
    result, examples = run_task(task, model, tmp_path / "out")
    options = DocumentOptions(part="train", held_out=0.3, sample=10)
    assert [row["place"] for row in examples] == [
        document.place for document in Documents(options, [str(tmp_path / "data.jsonl")])
    ]
    assert len(examples) == 10
    assert 20 < result["counts"]["train_documents"] < 36


def test_bad_prompts_are_named(tmp_path: Path, model: str) -> None:
    with pytest.raises(UsageError, match="prompt_tokens = 64: leaves no room in the model's context of 64"):
        run_task(own_task(tmp_path, "recitation", [{"text": "a"}], prompt_tokens=64), model, tmp_path / "out")
    with pytest.raises(InputError, match="has no examples for the task own"):
        run_task(own_task(tmp_path, "recitation", [{"text": "a"}], prompt_tokens=63), model, tmp_path / "out")

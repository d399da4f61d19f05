"""Every kind of task gives what its definition says, computed one text at a time."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_task import own_task, run_task, value_of
from small_model import (
    END,
    VOCABULARY,
    bigram_log_probs,
    byte_tokenizer,
    encode,
    plain_log_probs,
    plain_next_token,
    write_model,
)

from pipelines.errors import InputError, UsageError
from pipelines.evaluation.definitions import parse_tasks
from pipelines.evaluation.metrics import wilson
from pipelines.evaluation.task import Encoder, ModelFacts
from pipelines.evaluation.tasks.language_modelling import Perplexity, PerplexityOptions
from webtext_cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "random")


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(tmp_path: Path) -> None:
    text = "the cat sees a dog\n\nand the dog sees a bird in the garden\n"
    task = own_task(tmp_path, "perplexity", text, unit="word+line", document="file")
    result, examples = run_task(task, write_model(tmp_path / "model", "uniform", context=16), tmp_path / "out")
    units = len(text.split()) + 3
    assert value_of(result, "perplexity") == pytest.approx(VOCABULARY ** (len(text) / units), rel=1e-6)
    assert value_of(result, "token_perplexity") == pytest.approx(VOCABULARY, rel=1e-6)
    assert value_of(result, "bits_per_byte") == pytest.approx(math.log2(VOCABULARY), rel=1e-6)
    # The blank line counts as part of the one before it.
    assert [(row["example"], row["place"], row["units"], row["bytes"]) for row in examples] == [
        (0, "data.txt:1", 7, 20),
        (1, "data.txt:3", 10, 38),
    ]


def test_words_are_counted_per_document_as_lm_eval_does(tmp_path: Path, model: str) -> None:
    text = " = Title = \n \n a b c \n\n d e \n = Other = \n f\n"
    pages = [text[: text.index(" = Other")], text[text.index(" = Other") :]]
    task = own_task(tmp_path, "perplexity", text, unit="word-lm-eval", document="article")
    _, examples = run_task(task, model, tmp_path / "file")
    assert sum(row["units"] for row in examples) == sum(len(re.split(r"\s+", page)) for page in pages)
    for document in ("record", "article"):
        task = own_task(
            tmp_path, "perplexity", [{"text": page} for page in pages], unit="word-lm-eval", document=document
        )
        _, examples = run_task(task, model, tmp_path / document)
        assert [row["units"] for row in examples] == [len(re.split(r"\s+", page)) for page in pages]
        assert len({row["cluster"] for row in examples}) == 2


def test_lines_after_the_text_of_a_special_token_have_their_own_tokens(tmp_path: Path, model: str) -> None:
    text = "two<|endoftext|>texts\nand\nlines\n"
    _, examples = run_task(own_task(tmp_path, "perplexity", text, document="file"), model, tmp_path / "out")
    assert [row["tokens"] for row in examples] == [3 + 1 + 6, 4, 6]


def test_a_text_that_is_one_document_has_a_standard_error(tmp_path: Path, model: str) -> None:
    result, _ = run_task(own_task(tmp_path, "perplexity", "some words of a line\n" * 50), model, tmp_path / "out")
    assert all(figure["error"] is not None for figure in result["metrics"])


@pytest.mark.parametrize("document", ["file", "article", "line"])
def test_records_of_lines_are_the_same_documents_as_the_file(tmp_path: Path, model: str, document: str) -> None:
    lines = [" = Title = ", " a b c @-@ d ", "", " = Other = ", " e ( f )"]
    options = {"unit": "word+line", "document": document, "detokenizer": "wikitext"}
    task = own_task(tmp_path, "perplexity", "\n".join(lines) + "\n", **options)
    expected, _ = run_task(task, model, tmp_path / "file")
    # The first line has its end, as in the files of the `datasets` library; others have none.
    task = own_task(
        tmp_path, "perplexity", [{"text": lines[0] + "\n"}, *({"text": one} for one in lines[1:])], **options
    )
    result, by_record = run_task(task, model, tmp_path / "records")
    for name in ("perplexity", "token_perplexity", "bits_per_byte"):
        assert value_of(result, name) == pytest.approx(value_of(expected, name), rel=1e-6)
    assert result["counts"] == expected["counts"]
    assert len(by_record) == 5  # blank records are examples, too, as in the overlap report


def test_a_tail_of_one_line_has_several_examples(tmp_path: Path, model: str) -> None:
    text = "".join(random.Random(1).choices("abcde ", k=9_000))
    options = {"unit": "character", "document": "file", "tail_bytes": 8_500}
    task = own_task(tmp_path, "perplexity", text, **options)
    result, examples = run_task(task, model, tmp_path / "file")
    assert [(row["place"], row["units"]) for row in examples] == [
        ("data.txt:1:1", 4096),
        ("data.txt:1:4097", 4096),
        ("data.txt:1:8193", 308),
    ]
    [bits] = [figure for figure in result["metrics"] if figure["name"] == "bits_per_character"]
    assert 0 < bits["error"] < bits["value"] / 10
    task = own_task(tmp_path, "perplexity", [{"text": text}], **options)
    with pytest.raises(InputError, match=r"data.jsonl: has records, so tail_bytes"):
        run_task(task, model, tmp_path / "records")


def test_overlapping_windows_are_not_copies(tmp_path: Path, model: str) -> None:
    (tmp_path / "data.txt").write_text("abcdefgh" * 20)
    encoder = Encoder(byte_tokenizer().to_str().encode(), ModelFacts(model, "", 1, None, 64, VOCABULARY, END))
    options = PerplexityOptions(unit="character", document="file", stride=1)
    _, first, second, *_ = Perplexity(options, [str(tmp_path / "data.txt")], encoder, None).requests()
    assert np.shares_memory(np.asarray(first.prefix), np.asarray(second.prefix))
    assert list(first.prefix[1:]) == list(second.prefix[:-1]) == encode(("abcdefgh" * 20)[1:64])


def test_a_bigram_model_has_its_known_entropy(tmp_path: Path) -> None:
    text = "häuser in the gärden\nthe end"
    model = write_model(tmp_path / "model", "bigram", context=16)
    task = own_task(tmp_path, "perplexity", text, unit="character", document="line", score_end=True)
    result, examples = run_task(task, model, tmp_path / "out")
    log_probs = bigram_log_probs(model)
    nats = []
    for line in ("häuser in the gärden", "the end"):  # <|endoftext|> stands for the end of a line
        tokens = [END, *encode(line), END]
        nats.append(-sum(log_probs[one, other] for one, other in itertools.pairwise(tokens)))
    assert [row["nats"] for row in examples] == pytest.approx(nats, abs=1e-4)
    assert value_of(result, "bits_per_character") == pytest.approx(sum(nats) / math.log(2) / len(text), abs=1e-5)


@pytest.mark.parametrize(
    ("window", "stride", "last"), [(0, 0, "full"), (0, 0, "rest"), (20, 5, "full"), (20, 7, "rest")]
)
def test_windows_are_as_stated(tmp_path: Path, model: str, window: int, stride: int, last: str) -> None:
    text = "abcdefghij klm nop" * 9
    task = own_task(tmp_path, "perplexity", [{"text": text}], window=window, stride=stride, last_window=last)
    result, [example] = run_task(task, model, tmp_path / "out")
    size, tokens = window or 64, [END, *encode(text)]
    step = stride or size
    expected = 0.0
    # The first window predicts as many tokens as it has; every other `step` tokens after those that it is given.
    start, end = 1, min(len(tokens), size + 1)
    while start < len(tokens):
        given = size - step + 1 if last == "rest" or end - start == step else size - (end - start) + 1
        expected -= sum(plain_log_probs(model, tokens[max(0, start - given) : start], tokens[start:end])[0])
        start, end = end, min(len(tokens), end + step)
    assert example["nats"] == pytest.approx(expected, abs=1e-3)
    assert value_of(result, "token_perplexity") == pytest.approx(math.exp(expected / (len(tokens) - 1)), rel=1e-4)


@pytest.mark.parametrize("normalized", ["sum", "token", "byte", "ratio"])
@pytest.mark.parametrize("scored", ["choice", "rest"])
def test_the_most_likely_choice_is_taken(tmp_path: Path, model: str, normalized: str, scored: str) -> None:
    records = [
        {
            "question": f"which of {number} is",
            "options": [f"a{number}", "bcd é", f"{number} long one"],
            "answer": number % 3,
        }
        for number in range(12)
    ]
    task = own_task(
        tmp_path, "choice", records, prompt="Q: {question}", choices=["{options}"], rest=" then.", gold="answer",
        normalized=normalized, scored=scored,
    )  # fmt: skip
    result, examples = run_task(task, model, tmp_path / "out")
    hits = 0
    nats, size = 0.0, 0
    for record, example in zip(records, examples, strict=True):
        scores, totals, endings = [], [], []
        for option in record["options"]:  # type: ignore[attr-defined]
            before, after, neutral = f"Q: {record['question']}", f" {option} then.", "Answer:"
            if scored == "rest":
                before, after, neutral = f"{before} {option}", " then.", f"{neutral} {option}"
            score = sum(plain_log_probs(model, encode(before), encode(after))[0])
            totals.append(score)
            endings.append(after)
            if normalized == "token" or (normalized == "byte" and scored == "choice"):
                score /= len(encode(after))
            elif normalized == "byte":
                score /= len(" then.")
            elif normalized == "ratio":
                score -= sum(plain_log_probs(model, encode(neutral), encode(after))[0])
            scores.append(score)
        best = int(np.argmax(scores))
        assert example["output"] == record["options"][best]  # type: ignore[index]
        assert example["accuracy"] == (best == record["answer"])
        hits += best == record["answer"]
        gold: int = record["answer"]  # type: ignore[assignment]
        shares = np.exp(totals) / np.exp(totals).sum()
        assert example["gold_probability"] == pytest.approx(shares[gold], abs=1e-5)
        assert example["margin"] == pytest.approx(totals[gold] - max(totals[:gold] + totals[gold + 1 :]), abs=1e-4)
        if scored == "choice":  # acc_norm of lm-evaluation-harness: by characters, without the space before the choice
            by_character = [total / (len(ending) - 1) for total, ending in zip(totals, endings, strict=True)]
            assert example["accuracy_normalized"] == (int(np.argmax(by_character)) == gold)
        assert example["gold_bytes"] == len(endings[gold].encode())
        nats, size = nats - totals[gold], size + len(endings[gold].encode())
    assert value_of(result, "gold_bits_per_byte") == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert ("accuracy_normalized" in {figure["name"] for figure in result["metrics"]}) == (scored == "choice")
    assert value_of(result, "accuracy") == hits / len(records)
    [accuracy] = [figure for figure in result["metrics"] if figure["name"] == "accuracy"]
    assert accuracy["low"] < accuracy["value"] < accuracy["high"] or hits in (0, len(records))


def test_the_first_token_of_a_choice_can_stand_for_it(tmp_path: Path, model: str) -> None:
    records = [{"q": f"colour {number}", "gold": 0} for number in range(3)]
    task = own_task(tmp_path, "choice", records, prompt="{q}", choices=[" blue", " red"], scored="first-token")
    _, examples = run_task(task, model, tmp_path / "out")
    for record, example in zip(records, examples, strict=True):
        assert [len(log_probs) for log_probs in example["log_probs"]] == [1, 1]
        assert (
            not {"accuracy_normalized", "gold_bytes"} & example.keys()
        )  # the length of a choice is not that of a token
        expected, _ = plain_log_probs(model, encode(str(record["q"])), encode(" "))
        assert example["gold_nll"] == pytest.approx(-expected[0], abs=1e-5)


def test_a_hint_that_leaves_no_room_is_named(tmp_path: Path, model: str) -> None:
    options = {"prompt": "{q}", "hint": " in short:", "keep": "start", "max_tokens": 60, "score": "coqa"}
    task = own_task(tmp_path, "answer", [{"q": "word " * 40, "answer": "a"}], **options)
    with pytest.raises(InputError, match=r"data.jsonl:1: .*text does not fit into the .* of 64"):
        run_task(task, model, tmp_path / "out")


def test_a_rest_that_is_empty_is_refused(tmp_path: Path, model: str) -> None:
    task = own_task(tmp_path, "choice", [{"q": "a", "gold": 0}], prompt="{q}", choices=[" b", " c"], scored="rest")
    with pytest.raises(InputError, match=r"data.jsonl:1: has no text after the choice"):
        run_task(task, model, tmp_path / "out")


def test_fields_of_records_lose_their_tokenization(tmp_path: Path, model: str) -> None:
    tokenized = {"text": "it 's not , they say . ", "options": ["we do n't", "so"], "gold": 0}
    natural = {"text": "it's not, they say.", "options": ["we don't", "so"], "gold": 0}
    prompts = []
    for record, detokenizer in ((tokenized, "cbt"), (natural, "none"), (tokenized, "none")):
        options = {"prompt": "{text} very", "choices": ["{options}"], "detokenizer": detokenizer}
        _, [row] = run_task(own_task(tmp_path, "choice", [record], **options), model, tmp_path / str(len(prompts)))
        prompts.append(row["prompt"])
    assert prompts[0] == prompts[1] != prompts[2]


@pytest.mark.parametrize("gold", [1, "1", "B", "(b)", "red"])
def test_the_right_choice_is_a_number_a_letter_or_a_text(tmp_path: Path, model: str, gold: object) -> None:
    records = [{"q": "colour", "a": "blue", "b": "red", "gold": gold}]
    task = own_task(tmp_path, "choice", records, prompt="{q}", choices=[" {a}", " {b}"])
    _, [example] = run_task(task, model, tmp_path / "out")
    assert example["gold"] == "red"


def test_the_last_word_or_its_last_token_is_predicted(tmp_path: Path, model: str) -> None:
    passages = ["the cat sees the dog", "“she said” the ``word''"]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in passages))
    for variant, texts in (
        ("paper", [("\nthe cat sees the do", "g"), ('\n"she said" the "word', '"')]),
        ("lm-eval", [("the cat sees the", " dog"), ("“she said” the", " ``word''")]),
    ):
        result, examples = run_task(f"lambada={tmp_path / 'data.jsonl'}", model, tmp_path / variant, variant)
        plain = [plain_log_probs(model, encode(before), encode(after)) for before, after in texts]
        assert [row["nll"] for row in examples] == pytest.approx([-sum(one) for one, _ in plain], abs=1e-4)
        assert [row["accuracy"] for row in examples] == [is_greedy for _, is_greedy in plain]
        mean = np.mean([row["nll"] for row in examples])
        assert value_of(result, "perplexity") == pytest.approx(math.exp(mean), rel=1e-6)


def test_no_stop_word_is_written(tmp_path: Path, model: str) -> None:
    passages = ["the cat sees the dog", "a bird sees a Cat."]
    rows = [{"text": text} for text in passages]
    banned = [chr(code) for code in range(97, 120)]
    _, examples = run_task(own_task(tmp_path, "last-word", rows, stop_words=banned), model, tmp_path / "out")
    for text, example in zip(passages, examples, strict=True):
        tokens: list[int] = []
        while len(tokens) < 6 and not set(_text(tokens).lstrip()) & {" ", "\n"}:
            tokens.append(plain_next_token(model, encode(text.rpartition(" ")[0]) + tokens, banned))
        written = _text(tokens).split()[:1]
        assert example["output"] == "".join(written)
        assert example["accuracy"] == (example["output"].lower().strip(".") in ("dog", "cat"))
        assert not set(example["output"].lower()) & set(banned)


def test_answers_are_the_most_likely_continuations(tmp_path: Path, model: str) -> None:
    records = [{"question": f"what is {number}", "answer": ["none", "x"]} for number in range(5)]
    task = own_task(tmp_path, "answer", records, prompt="Q: {question}\nA:", max_tokens=7, until=["e", "\n"])
    _, examples = run_task(task, model, tmp_path / "out")
    for record, example in zip(records, examples, strict=True):
        tokens: list[int] = []
        prompt = encode(f"Q: {record['question']}\nA:")
        while len(tokens) < 7 and not any(end in _text(tokens).lstrip() for end in ("e", "\n")):
            tokens.append(plain_next_token(model, prompt + tokens))
        text = _text(tokens).lstrip()
        cut = min([text.find(end) for end in ("e", "\n") if end in text], default=len(text))
        assert example["output"] == text[:cut].strip()
        assert example["gold"] == "none"


def _text(tokens: list[int]) -> str:
    text: str = byte_tokenizer().decode(tokens, skip_special_tokens=False)
    return text


def test_too_long_a_context_is_cut_alike_for_all_choices_and_counted(tmp_path: Path, model: str) -> None:
    records = [{"q": "x" * 80 + str(number), "a": "ab", "b": "abcdef", "gold": 0} for number in range(2)]
    records.append({"q": "short", "a": "ab", "b": "abcdef", "gold": 0})
    task = own_task(tmp_path, "choice", records, prompt="{q}", choices=[" {a}", " {b}"])
    result, examples = run_task(task, model, tmp_path / "out")
    assert [row["cut"] for row in examples] == [81 + 6 - 64, 81 + 6 - 64, 0]
    assert result["truncated_examples"] == 2
    assert result["metrics_without_truncated"][0]["examples"] == 1
    kept = encode(records[0]["q"])[81 + 6 - 64 :]
    assert sum(examples[0]["log_probs"][0]) == pytest.approx(
        sum(plain_log_probs(model, kept, encode(" ab"))[0]), abs=1e-4
    )


@pytest.mark.parametrize(
    ("kind", "records", "options", "message"),
    [
        ("choice", [{"q": "x"}], {"choices": ["{a}", "{b}"]}, "data.jsonl:1: has no field 'a'; its fields are 'q'"),
        ("choice", [{"q": "x", "gold": 7}], {"choices": ["a", "b"]}, "the right choice 7 is not one of"),
        ("choice", [{"q": "x", "gold": 0}], {"choices": ["a"]}, "has 1 choices, expected at least 2"),
        (
            "choice",
            [{"a": "b" * 90, "gold": 0}],
            {"choices": ["{a}", "c"]},
            "fit into the model's context of 64",
        ),
        ("answer", [{"question": "x", "answer": []}], {}, "has no right answer"),
        ("last-word", [{"text": "word"}], {}, "has one word only"),
        ("perplexity", [{"body": "x"}], {}, "has no field 'text'"),
        ("perplexity", " \n\n ", {}, "data.txt: has no words, so there is no perplexity per word"),
        ("choice", [[1, 2]], {}, "is not a record"),
        (
            "choice",
            [{"q": "x", "gold": 0}],
            {"choices": ["a", " a "]},
            "choice 'a' is among the choices more than once",
        ),
        ("choice", [{"options": None}], {"choices": ["{options}"]}, "data.jsonl:1: field 'options' is null"),
        ("choice", [{"o": ["a", None]}], {"choices": ["{o}"]}, "data.jsonl:1: field 'o' contains null"),
        ("answer", [{"question": math.nan, "answer": "x"}], {}, "data.jsonl:1: field 'question' is NaN"),
        ("last-word", [{"text": math.nan}], {}, "data.jsonl:1: field 'text' is NaN"),
        ("perplexity", "", {}, "has no examples"),
    ],
)
def test_bad_data_is_named(
    tmp_path: Path, model: str, kind: str, records: Any, options: dict[str, Any], message: str
) -> None:
    task = own_task(tmp_path, kind, records, **options)
    with pytest.raises(InputError, match=message):
        run_task(task, model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shares_of_dependent_examples_have_the_interval_of_as_many_clusters(tmp_path: Path, model: str) -> None:
    records = [{"q": "x", "a": "a", "b": "a" * 9, "gold": 0, "group": number // 3} for number in range(9)]
    task = own_task(tmp_path, "choice", records, prompt="{q}", choices=[" {a}", " {b}"], cluster="group")
    result, _ = run_task(task, model, tmp_path / "out")
    [accuracy] = [figure for figure in result["metrics"] if figure["name"] == "accuracy"]
    assert (accuracy["value"], accuracy["error"]) == (1.0, 0.0)
    assert (accuracy["low"], accuracy["high"]) == pytest.approx(wilson(3, 3))


def test_bad_options_are_named(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, options, message in (
        ("guess", {}, "unknown kind 'guess'; known: perplexity, choice, last-word, answer"),
        ("choice", {"normalised": "sum"}, "did you mean normalized"),
        ("choice", {"normalized": "mean"}, "is not one of sum, token, byte, ratio"),
        (
            "answer",
            {"prompt": "Q: {question\nA:"},
            r"own.toml .task.: prompt: the placeholder '{question' is not closed",
        ),
        ("choice", {"choices": ["{a}", "{b {c}"]}, r"own.toml .task.: choices: the placeholder '{b' is not closed"),
    ):
        with pytest.raises(UsageError, match=message):
            run_task(own_task(tmp_path, kind, [{"q": 1}], **options), model, tmp_path / "out")
    task = own_task(tmp_path, "perplexity", "a text", window=100)
    with pytest.raises(UsageError, match=r"a window of 100 tokens .* do not fit into the model's context of 64"):
        run_task(task, model, tmp_path / "out")
    task = own_task(tmp_path, "perplexity", "a text", sample=10)
    with pytest.raises(UsageError, match=r"sample has no effect without part = all or .*; set part or omit sample"):
        run_task(task, model, tmp_path / "out")
    assert main(["evaluate", "--task", task, "--shot-seeds", "2"]) == 2
    assert "--shot-seeds has no effect without --shots" in capsys.readouterr().err
    with pytest.raises(UsageError, match="unknown task 'lambda'; did you mean lambada"):
        parse_tasks(["lambda=x"], "paper")
    with pytest.raises(UsageError, match="unknown variant 'lmeval'; did you mean lm-eval"):
        parse_tasks([f"lambada={tmp_path / 'own.toml'}"], "lmeval")
    with pytest.raises(UsageError, match="lambada is named twice"):
        parse_tasks([f"lambada={tmp_path / 'own.toml'}"] * 2, "paper")

"""Solved examples before a question, calibration, and figures of all examples together."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from own_task import own_task, run_task, value_of
from small_model import byte_tokenizer, encode, plain_log_probs, plain_next_token, write_model

from pipelines.errors import UsageError
from pipelines.evaluation.definitions import parse_tasks
from pipelines.evaluation.metrics import best_threshold, roc_area
from pipelines.evaluation.records import Record
from pipelines.evaluation.rouge import rouge_scores
from pipelines.evaluation.task import Task
from pipelines.reports.evaluation import render_evaluation_page
from webtext_cli.main import main
from webtext_cli.tables.evaluate import print_results


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "random", context=96)


_RECORDS = [{"text": f"text {number}", "label": number % 2} for number in range(6)]
_TRAIN = [{"text": f"shown {number}", "label": number % 2} for number in range(9)]


def _labels(folder: Path, **options: object) -> str:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _TRAIN))
    return own_task(
        folder, "choice", _RECORDS, prompt="{text}:", choices=[" no", " yes"], gold="label", separator="\n",
        examples="train.jsonl", **options,
    )  # fmt: skip


def _drawn(seed: int, shots: int, records: list[dict[str, Any]] = _TRAIN) -> list[dict[str, Any]]:
    """Return the examples with the smallest random numbers, in their order."""
    generator = random.Random(seed)
    return sorted(records, key=lambda _: generator.random())[:shots]


def _score(model: str, before: str, ending: str) -> float:
    return sum(plain_log_probs(model, encode(before), encode(ending))[0])


def test_of_a_large_file_only_the_shots_are_kept() -> None:
    class Shown(Task[object]):
        takes_shots = True

        def records(self, files: Sequence[str]) -> Iterator[Record]:
            return (Record({"text": str(number)}, "") for number in range(20_000))

        def solved(self, record: Record) -> str:
            return record.text("{text}")

    task = Shown(None, [], None, None)  # type: ignore[arg-type]
    tracemalloc.start()
    task.show([], 4, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(task.shots) == 4
    assert peak < 1 << 16


@pytest.mark.parametrize("seed", [0, 1])
def test_shots_are_drawn_by_their_seed(tmp_path: Path, model: str, seed: int) -> None:
    tasks = parse_tasks([_labels(tmp_path)], "paper", shots=3, shot_seeds=2)
    assert [task.label for task in tasks] == ["own.shots-3-seed-0", "own.shots-3-seed-1"]
    arguments = ["--shots", "3", "--shot-seeds", "2", "--model", model, "--output", str(tmp_path / "out"), "-q"]
    assert main(["evaluate", "--task", str(tmp_path / "own.toml"), *arguments]) == 0

    combined = json.loads((tmp_path / "out" / "results.json").read_text())
    values = [value_of(combined["tasks"][task.label], "accuracy") for task in tasks]
    assert combined["draws"][0] == {
        "task": "own (3 shots)",
        "metric": "accuracy",
        "draws": 2,
        "mean": pytest.approx(np.mean(values)),
        "standard_deviation": pytest.approx(np.std(values, ddof=1)),
    }
    assert "Over random draws of few-shot examples" in (tmp_path / "out" / "evaluation.html").read_text()
    examples = pq.read_table(tmp_path / "out" / tasks[seed].label / "examples-00000.parquet").to_pylist()
    drawn = _drawn(seed, 3)
    shown = "".join(f"{row['text']}: {['no', 'yes'][int(row['label'])]}\n" for row in drawn)
    for record, example in zip(_RECORDS, examples, strict=True):
        scores = [_score(model, f"{shown}{record['text']}:", ending) for ending in (" no", " yes")]
        assert [sum(one) for one in example["log_probs"]] == pytest.approx(scores, abs=1e-4)


def test_shots_that_do_not_fit_are_left_out_whole(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, examples = run_task(_labels(tmp_path), model, tmp_path / "out", shots=8)
    assert {row["cut"] for row in examples} == {0}
    drawn = _drawn(0, 8)
    solved = [f"{row['text']}: {['no', 'yes'][int(row['label'])]}\n" for row in drawn]
    kept = next(number for number in range(9) if len("".join(solved[number:]) + "text 0: yes") - 1 <= 96)
    assert result["counts"]["shots_dropped"] == kept * len(_RECORDS)
    print_results([result])
    line = f"own (8 shots, seed 0): {kept * 6} of 48 shots did not fit into the context"
    assert line in capsys.readouterr().out
    assert f">{kept * 6} of 48 few-shot examples did not fit" in render_evaluation_page(
        {"own": result}, {"own": []}, {"own": []}
    )
    expected = _score(model, "".join(solved[kept:]) + "text 0:", " no")
    assert sum(examples[0]["log_probs"][0]) == pytest.approx(expected, abs=1e-4)


def test_choices_are_calibrated_by_inputs_without_content(tmp_path: Path, model: str) -> None:
    task = _labels(tmp_path, content_free=["N/A", "", "[MASK]"], input=["text"], instruction="Say yes or no.\n")
    result, examples = run_task(task, model, tmp_path / "out", shots=2)
    drawn = _drawn(0, 2)
    before = "Say yes or no.\n" + "".join(f"{row['text']}: {['no', 'yes'][int(row['label'])]}\n" for row in drawn)

    def probabilities(text: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        values = np.exp([_score(model, f"{before}{text}:", ending) for ending in (" no", " yes")])
        shares: np.ndarray[tuple[int], np.dtype[np.float64]] = values / values.sum()
        return shares

    free = np.mean([probabilities(text) for text in ("N/A", "", "[MASK]")], axis=0)
    for record, example in zip(_RECORDS, examples, strict=True):
        shares = probabilities(str(record["text"]))
        assert example["accuracy"] == (int(shares.argmax()) == record["label"])
        assert example["calibrated_accuracy"] == (int((shares / free).argmax()) == record["label"])
    assert {figure["name"] for figure in result["metrics"]} >= {"accuracy", "calibrated_accuracy"}


def test_long_choices_are_calibrated_as_they_are_compared(tmp_path: Path) -> None:
    model, choices = write_model(tmp_path / "model", context=512), [" " + "no" * 120, " " + "yes" * 120]
    task = own_task(
        tmp_path, "choice", _RECORDS, prompt="{text}:", choices=choices, gold="label", normalized="token",
        content_free=["N/A"], input=["text"],
    )  # fmt: skip
    _, examples = run_task(task, model, tmp_path / "out")
    means = [[float(np.mean(part)) for part in row["log_probs"]] for row in examples]
    # The probabilities of these texts are too small for a float.
    assert sum(examples[0]["log_probs"][0]) < -750
    free = means[0][2:]
    for record, row, (no, yes, *_) in zip(_RECORDS, examples, means, strict=True):
        assert row["calibrated_accuracy"] == (int(yes - free[1] > no - free[0]) == record["label"])


def test_the_ratio_is_that_of_what_is_scored(tmp_path: Path, model: str) -> None:
    options = {"choices": [" no", " yes"], "gold": "label", "normalized": "ratio", "scored": "first-token"}
    _, examples = run_task(own_task(tmp_path, "choice", _RECORDS, prompt="{text}:", **options), model, tmp_path / "out")
    assert [len(part) for row in examples for part in row["log_probs"]] == [1] * 4 * len(_RECORDS)


def test_the_threshold_is_taken_from_the_examples(tmp_path: Path, model: str) -> None:
    rows = [
        {"sentence": f"sentence {number} {'is' * (number % 3)}", "label": int(number % 4 > 0)} for number in range(24)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:12]))
    task = own_task(tmp_path, "acceptability", rows[12:], examples="train.jsonl")
    result, examples = run_task(task, model, tmp_path / "out")
    end = [256]
    scores = [np.mean(plain_log_probs(model, end, encode(str(row["sentence"])))[0]) for row in rows]
    labels = [row["label"] == 1 for row in rows]
    assert [row["score"] for row in examples] == pytest.approx(scores[12:], abs=1e-5)
    assert [row["example"] for row in examples] == list(range(12))
    threshold, _ = best_threshold(labels[:12], scores[:12])
    assert [row["predicted"] for row in examples] == [float(score >= threshold - 1e-6) for score in scores[12:]]
    assert value_of(result, "roc_area") == pytest.approx(roc_area(labels[12:], scores[12:]))
    assert value_of(result, "best_matthews") == pytest.approx(best_threshold(labels[12:], scores[12:])[1])
    assert all(figure["error"] > 0 for figure in result["metrics"])


def test_a_figure_that_is_not_defined_is_null(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"sentence": f"sentence {number}", "label": 1} for number in range(4)]
    task, output = own_task(tmp_path, "acceptability", rows), tmp_path / "out"
    assert main(["evaluate", "--task", task, "--model", model, "--output", str(output), "--device", "cpu", "-q"]) == 0
    for name in ("results.json", "own/results.json"):
        assert "NaN" not in (output / name).read_text()
    [area] = [
        row for row in json.loads((output / "own/results.json").read_text())["metrics"] if row["name"] == "roc_area"
    ]
    assert (area["value"], area["error"], area["low"]) == (None, None, None)
    assert "own: roc area –" in " ".join(capsys.readouterr().out.split())


def test_drawn_summaries_are_measured_by_rouge(tmp_path: Path, model: str) -> None:
    pytest.importorskip("rouge_score")
    records = [
        {"article": "word " * 30, "highlights": "One line.\nAnother line."},
        {"article": "short", "highlights": "x y"},
    ]
    options = {
        "prompt": "{article}",
        "hint": "\nTL;DR:",
        "gold": "highlights",
        "max_tokens": 20,
        "top_k": 2,
        "until": [],
    }
    task = own_task(tmp_path, "answer", records, score="rouge", sentences=3, seed=4, **options)
    result, examples = run_task(task, model, tmp_path / "out")
    again, same = run_task(task, model, tmp_path / "again")
    assert (again["metrics"], same) == (result["metrics"], examples)
    other = own_task(tmp_path, "answer", records, score="rouge", sentences=3, seed=5, **options)
    assert run_task(other, model, tmp_path / "other")[1] != examples
    # The end of the article is cut, not the hint.
    assert examples[0]["cut"] > 0
    scores = rouge_scores(examples[1]["output"], ["x y"])
    assert [examples[1][name] for name in scores] == pytest.approx(list(scores.values()))
    assert examples[1]["rouge_mean"] == pytest.approx(np.mean(list(scores.values())))
    # Every drawn token is one of the two most likely ones.
    kept = encode("short\nTL;DR:")
    for _ in range(3):
        best = plain_next_token(model, kept)
        assert examples[1]["log_probs"][0][0] <= plain_log_probs(model, kept, [best])[0][0] + 1e-5
    assert all(len(row["log_probs"][0]) == 20 for row in examples)


@pytest.mark.parametrize("keep", ["start", "end"])
@pytest.mark.parametrize("hint", ["", "\nTL;DR:"])
def test_one_end_of_a_long_prompt_is_kept_with_and_without_a_hint(
    tmp_path: Path, model: str, keep: str, hint: str
) -> None:
    article = "".join(chr(33 + number) for number in range(90)) * 2
    records = [{"question": article, "answer": "x"}]
    task = own_task(tmp_path, "answer", records, hint=hint, keep=keep, max_tokens=3, until=[])
    _, [example] = run_task(task, model, tmp_path / "out")
    kept = 96 - 3 - len(hint)
    prompt = (article[:kept] if keep == "start" else article[-kept:]) + hint
    assert example["cut"] == len(article) - kept
    best = plain_next_token(model, encode(prompt))
    assert example["log_probs"][0][0] == pytest.approx(plain_log_probs(model, encode(prompt), [best])[0][0], abs=1e-4)


def test_the_beginning_of_an_article_is_a_summary_without_the_model(tmp_path: Path, model: str) -> None:
    pytest.importorskip("rouge_score")
    article = f"Rain fell. Trains stopped! Was it over? No. {'More rain fell. ' * 20}"
    (tmp_path / "cnn.jsonl").write_text(json.dumps({"article": article, "highlights": "Trains stopped.\nRain fell."}))
    result, [example] = run_task(f"cnn-dailymail={tmp_path / 'cnn.jsonl'}", model, tmp_path / "out", "lede-3")
    assert example["output"] == "Rain fell.\nTrains stopped!\nWas it over?"
    scores = rouge_scores(example["output"], ["Trains stopped.\nRain fell."])
    assert {name: example[name] for name in scores} == scores
    assert (example["cut"], example["scored"], result["counts"]) == (0, 1, {})


def test_sentences_of_tokenized_summaries_end_at_marks_that_are_words(tmp_path: Path, model: str) -> None:
    pytest.importorskip("rouge_score")
    texts = {
        "rain fell . trains stopped ! was it over ? no": ["rain fell .", "trains stopped !", "was it over ?", "no"],
        "`` rain fell . '' he said -lrb- at 8 p.m. . -rrb- trains stopped": [
            "`` rain fell . ''",
            "he said -lrb- at 8 p.m. . -rrb-",
            "trains stopped",
        ],
        "wait . . . for dr. no ... it rained": ["wait . . . for dr. no ... it rained"],
        'He said "Rain fell." Trains stopped': ['He said "Rain fell."', "Trains stopped"],
        "the u.s . and j . k . rowling paid $ 3 . 5 . trains stopped . so did i . 10 men came to mcdonald 's . he": [
            "the u.s . and j . k . rowling paid $ 3 . 5 .",
            "trains stopped .",
            "so did i .",
            "10 men came to mcdonald 's .",
            "he",
        ],
        "<t> rain fell . </t> <t> trains stopped . </t>": ["rain fell .", "trains stopped ."],
        "rain fell<q>trains stopped": ["rain fell", "trains stopped"],
        "Rain fell. Trains stopped.\nNo. More rain": ["Rain fell.", "Trains stopped.", "No.", "More rain"],
    }
    # In this order, a summary in one line would have less in common with the right one.
    golds = ["\n".join(reversed(sentences)) for sentences in texts.values()]
    golds[-1] = "Trains stopped. Rain fell.\nMore rain. No."
    records = [{"article": text, "highlights": gold} for text, gold in zip(texts, golds, strict=True)]
    options = {"prompt": "{article}", "gold": "highlights", "score": "rouge", "lead": True, "until": []}
    first = own_task(tmp_path, "answer", records, sentences=9, **options)
    _, examples = run_task(first, model, tmp_path / "first")
    assert [example["output"].split("\n") for example in examples] == list(texts.values())
    assert [example["rougeLsum"] for example in examples] == [1.0] * len(texts)
    whole = own_task(tmp_path, "answer", records, **options)
    _, examples = run_task(whole, model, tmp_path / "whole")
    assert [example["output"] for example in examples] == list(texts)
    # The lines of a summary are its sentences: the two of each line are in another order in the right summary.
    assert [example["rougeLsum"] < 1 for example in examples] == [False] * 7 + [True]


def test_translations_are_measured_by_bleu(tmp_path: Path, model: str) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    pairs = [
        {"translation": {"fr": f"le chat {number}", "en": f"the cat {number} sees the dog"}} for number in range(8)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs[4:]))
    task = own_task(
        tmp_path, "answer", pairs[:4], prompt="{translation.fr} =", gold="translation.en", score="bleu", sentences=1,
        max_tokens=12, examples="train.jsonl",
    )  # fmt: skip
    result, examples = run_task(task, model, tmp_path / "out", shots=1)
    outputs = [row["output"] for row in examples]
    golds = [pair["translation"]["en"] for pair in pairs[:4]]
    bleu = sacrebleu.BLEU()
    assert value_of(result, "bleu") == pytest.approx(bleu.corpus_score(outputs, [golds]).score)
    assert result["counts"][f"sacrebleu {bleu.get_signature()}"] == 4
    [drawn] = _drawn(0, 1, pairs[4:])
    prompt = encode(f"{drawn['translation']['fr']} = {drawn['translation']['en']}\nle chat 0 =")
    tokens: list[int] = []
    while len(tokens) < 12 and "\n" not in byte_tokenizer().decode(tokens).lstrip():
        tokens.append(plain_next_token(model, prompt + tokens))
    assert outputs[0] == byte_tokenizer().decode(tokens, skip_special_tokens=False).lstrip().split("\n")[0].strip()


def test_examples_that_are_missing_or_of_no_use_are_refused(tmp_path: Path, model: str) -> None:
    own = own_task(tmp_path, "choice", _RECORDS, prompt="{text}", choices=[" a", " b"], gold="label")
    with pytest.raises(UsageError, match=f"give the file of the examples: --examples {own}=PATH"):
        parse_tasks([own], "paper", shots=2)
    with pytest.raises(UsageError, match="no --task is named lambada"):
        parse_tasks([own], "paper", [f"lambada={tmp_path / 'data.jsonl'}"], shots=2)
    with pytest.raises(UsageError, match="--shots 20: the file of examples has 9"):
        run_task(_labels(tmp_path), model, tmp_path / "out", shots=20)
    (tmp_path / "train.jsonl").touch()
    named = [f"{own}={tmp_path}/{name}" for name in ("./data.jsonl", "train.jsonl")]
    with pytest.raises(UsageError, match="would show the answers"):
        parse_tasks([own], "paper", named[:1], shots=2)
    with pytest.raises(UsageError, match="--examples: a task is named twice"):
        parse_tasks([own], "paper", named, shots=2)
    (tmp_path / "own.toml").write_text('[task]\nkind = "last-word"\ndata = "data.jsonl"\nexamples = "train.jsonl"\n')
    with pytest.raises(UsageError, match="takes no examples"):
        run_task(str(tmp_path / "own.toml"), model, tmp_path / "out", shots=1)
    task = own_task(tmp_path, "choice", _RECORDS, choices=[" a", " b"], gold="label", content_free=["N/A"])
    with pytest.raises(
        UsageError,
        match=r"own.toml \[task\]: content_free has no effect without input; set input or omit content_free",
    ):
        run_task(task, model, tmp_path / "out")

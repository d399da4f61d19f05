"""Examples of fine-tuning: from the forms in which data sets are distributed, and how they become sequences."""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.engine.config import make_config
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.definitions import TASK_NAMES, find_task, parse_tasks, read_task
from pipelines.finetuning.examples import Example, TransformOptions, arrange, divide_by_role, read_examples
from pipelines.model.network.gpt2 import Architecture
from pipelines.records.drops import Drops

START, DELIMITER, EXTRACT = 1000, 1001, 1002


def options_of(task: str) -> TransformOptions:
    values = {name: choice.value for name, choice in read_task(task).finetune.items()}
    options = make_config(TransformOptions, values, {}, str)
    options.check(task)
    return options


class Characters:
    """A tokenizer with a token per character."""

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[Any]:
        return [types.SimpleNamespace(ids=list(map(ord, text))) for text in texts]


def read(task: str, *paths: Path, text_tokens: int = 50) -> tuple[list[Example], dict[str, int]]:
    options, drops = options_of(task), Drops()
    size = Architecture(1, 1, 1, context=2 * text_tokens + 4, vocab_size=START)
    return read_examples(options, list(map(str, paths)), Characters(), size, drops), dict(drops.counts)


def shown(example: Example) -> tuple[tuple[str, ...], float]:
    names = {START: "<", DELIMITER: "$", EXTRACT: ">"}
    texts = ("".join(names.get(id) or chr(id) for id in sequence.tolist()) for sequence in example.sequences)
    return tuple(texts), example.gold


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))
    return path


TSV: list[tuple[str, str, list[str], tuple[tuple[str, ...], float]]] = [
    ("cola", "in_domain_train.tsv", ["gj04\t1\t\tIt runs.", "gj04\t0\t*\tRuns it."], (("<It runs.>",), 1)),
    ("sst-2", "train.tsv", ["sentence\tlabel", 'a "great" film \t1'], (('<a "great" film>',), 1)),
    (
        "mrpc",
        "msr_paraphrase_train.txt",
        ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t70\t71\t"A\tB'],
        (('<"A$B>', '<B$"A>'), 1),
    ),
    (
        "qqp",
        "train.tsv",
        ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\tWhy?\tHow?\t0", "4\t5\t6\tcut"],
        (("<Why?$How?>", "<How?$Why?>"), 0),
    ),
    (
        "sts-b",
        "train.tsv",
        ["index\tgenre\tsentence1\tsentence2\tscore", "0\tnews\ta\tb\t3.800"],
        (("<a$b>", "<b$a>"), 3.8),
    ),
    (
        "mnli",
        "train.tsv",
        ["index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label", "0\t1\tp\th\tneutral\tneutral"],
        (("<p$h>",), 1),
    ),
    ("qnli", "train.tsv", ["index\tquestion\tsentence\tlabel", "0\tq\ts\tnot_entailment"], (("<q$s>",), 1)),
    ("rte", "train.tsv", ["index\tsentence1\tsentence2\tlabel", "0\tp\th\tentailment"], (("<p$h>",), 0)),
    ("scitail", "scitail_1.0_train.tsv", ["p\th\tentails", "p\th\tneutral"], (("<p$h>",), 1)),
]


@pytest.mark.parametrize(("task", "name", "lines", "expected"), TSV, ids=[case[0] for case in TSV])
def test_tables_are_read_as_distributed(
    task: str, name: str, lines: list[str], expected: tuple[tuple[str, ...], float], tmp_path: Path
) -> None:
    examples, dropped = read(task, write(tmp_path / name, *lines))
    assert shown(examples[0]) == expected
    assert dropped == ({"bad_csv": 1} if task == "qqp" else {})


@pytest.mark.parametrize(
    ("task", "row", "expected"),
    [
        ("cola", {"sentence": "s", "label": 1, "idx": 0}, (("<s>",), 1)),
        ("mrpc", {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 0}, (("<a$b>", "<b$a>"), 1)),
        ("qqp", {"question1": "a", "question2": "b", "label": 0, "idx": 0}, (("<a$b>", "<b$a>"), 0)),
        ("sts-b", {"sentence1": "a", "sentence2": "b", "label": 2.5, "idx": 0}, (("<a$b>", "<b$a>"), 2.5)),
        ("mnli", {"premise": "p", "hypothesis": "h", "label": 2, "idx": 0}, (("<p$h>",), 2)),
        ("snli", {"premise": "p", "hypothesis": "h", "label": 0}, (("<p$h>",), 0)),
        ("scitail", {"premise": "p", "hypothesis": "h", "label": "neutral"}, (("<p$h>",), 0)),
        (
            "race",
            {"article": "a", "question": "q", "options": ["w", "x", "y", "z"], "answer": "C"},
            (("<aq$w>", "<aq$x>", "<aq$y>", "<aq$z>"), 2),
        ),
    ],
)
def test_data_sets_of_the_hub_are_read(
    task: str, row: dict[str, Any], expected: tuple[tuple[str, ...], float], tmp_path: Path
) -> None:
    hidden = {**row, "label": -1} if "label" in row else {**row, "answer": ""}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "train-00000-of-00001.parquet")
    examples, _ = read(task, tmp_path / "train-00000-of-00001.parquet")
    assert [shown(example) for example in examples] == [expected]
    lines = [json.dumps(one) for one in (hidden, row)]
    examples, dropped = read(task, write(tmp_path / "validation.jsonl", *lines))
    assert [shown(example) for example in examples] == [expected]
    assert dropped == {"no_label": 1}


def test_snli_without_consensus_is_dropped(tmp_path: Path) -> None:
    rows = [{"gold_label": label, "sentence1": "p", "sentence2": "h"} for label in ("-", "contradiction")]
    examples, dropped = read("snli", write(tmp_path / "snli_1.0_dev.jsonl", *map(json.dumps, rows)))
    assert [example.gold for example in examples] == [2]
    assert dropped == {"no_label": 1}


def test_the_articles_of_race_have_several_questions(tmp_path: Path) -> None:
    article = {
        "article": "long article",
        "questions": ["q1", "q2"],
        "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
        "answers": ["B", "D"],
        "id": "high1.txt",
    }
    path = write(tmp_path / "RACE" / "train" / "high" / "1.txt", json.dumps(article))
    examples, _ = read("race", path, text_tokens=6)
    assert [example.gold for example in examples] == [1, 3]
    assert shown(examples[0])[0][:2] == ("<longq1$a>", "<longq1$b>")  # the article is cut, the question is not
    assert [example.place for example in examples] == ["1.txt:1.0", "1.txt:1.1"]


def test_an_article_with_lists_of_different_lengths_is_dropped(tmp_path: Path) -> None:
    article = {"article": "a", "questions": ["q", "r"], "options": [["b", "c"], ["d", "e"]], "answers": ["A", "B"]}
    rows = [article, {**article, "answers": ["A"]}, {"article": "a", "questions": ["q"]}]
    examples, dropped = read("race", write(tmp_path / "train.txt", *map(json.dumps, rows)))
    assert len(examples) == 2
    assert dropped == {"bad_record": 2}


def test_story_cloze_counts_from_1(tmp_path: Path) -> None:
    header = "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,"
    header += "RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding"
    path = write(tmp_path / "cloze_val.csv", header, 'id,One.,Two.,"Three, 3.",Four.,x,y,2')
    examples, _ = read("story-cloze", path)
    story = "One. Two. Three, 3. Four."
    assert [shown(example) for example in examples] == [((f"<{story}$x>", f"<{story}$y>"), 1)]


def test_every_text_is_cut_by_itself() -> None:
    special = (START, DELIMITER, EXTRACT)
    [row] = arrange("pair", special, 3, [1, 2, 3, 4], [], [[5, 6, 7, 8, 9]])
    assert row.tolist() == [START, 1, 2, 3, DELIMITER, 5, 6, 7, EXTRACT]
    [row] = arrange("single", special, 3, [], [], [])
    assert row.tolist() == [START, EXTRACT]
    one, other = arrange("similarity", special, 3, [1], [], [[2, 3]])
    assert one.tolist() == [START, 1, DELIMITER, 2, 3, EXTRACT]
    assert other.tolist() == [START, 2, 3, DELIMITER, 1, EXTRACT]


def test_names_say_the_role_of_files() -> None:
    files = ["d/MNLI/train.tsv", "d/MNLI/dev_matched.tsv", "d/MNLI/dev_mismatched.tsv", "d/MNLI/test_matched.tsv"]
    assert divide_by_role(files) == {"train": files[:1], "validation": files[1:3], "test": files[3:]}
    assert divide_by_role(["RACE/train/high/1.txt", "RACE/dev/high/2.txt"])["validation"] == ["RACE/dev/high/2.txt"]
    with pytest.raises(UsageError, match=r"b\.tsv: its name does not say train, dev or test"):
        divide_by_role(["a/train.tsv", "a/b.tsv"])


@pytest.mark.parametrize(
    ("names", "copies"),
    [
        (("train.tsv", "dev.tsv", "original/raw/in_domain_train.tsv"), "CoLA/train.tsv, CoLA/original/raw/in_domain"),
        (("snli_1.0_train.jsonl", "snli_1.0_train.txt"), "CoLA/snli_1.0_train.jsonl, CoLA/snli_1.0_train.txt"),
    ],
)
def test_copies_of_a_data_set_in_its_folder_are_refused(names: Sequence[str], copies: str) -> None:
    with pytest.raises(UsageError, match=rf"{copies}.*: may have the same train examples; name the files"):
        divide_by_role([f"CoLA/{name}" for name in names])


def test_lines_that_are_not_utf8_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(b"sentence\tlabel\ncaf\xe9\t1\ntea\t1\n")
    examples, drops = read("sst-2", path)
    assert [shown(example) for example in examples] == [(("<tea>",), 1)]
    assert drops == {"bad_record": 1}


def test_a_label_that_is_named_is_not_hidden(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *(json.dumps({"text": "a", "label": label}) for label in (-1, 1)))
    options, size = TransformOptions(labels=("-1", "1")), Architecture(1, 1, 1, context=9, vocab_size=START)
    examples = read_examples(options, [str(path)], Characters(), size, Drops())
    assert [example.gold for example in examples] == [0, 1]


def test_labels_may_be_numbers_with_a_point(tmp_path: Path) -> None:
    rows = [{"sentence": "s", "label": label} for label in (1.0, "0.0", -1.0, 0.5)]
    examples, dropped = read("cola", write(tmp_path / "train.jsonl", *map(json.dumps, rows)))
    assert [example.gold for example in examples] == [1, 0]
    assert dropped == {"no_label": 1, "bad_record": 1}


def test_a_number_to_predict_may_be_negative(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *(json.dumps({"text": "a", "label": label}) for label in (-1, 2.5, None)))
    options, size, drops = TransformOptions(), Architecture(1, 1, 1, context=9, vocab_size=START), Drops()
    examples = read_examples(options, [str(path)], Characters(), size, drops)
    assert [example.gold for example in examples] == [-1, 2.5]
    assert drops.counts == {"no_label": 1}


def test_an_object_of_several_lines_is_refused(tmp_path: Path) -> None:
    article = {"article": "a", "questions": ["q"], "options": [["b", "c"]], "answers": ["A"]}
    path = write(tmp_path / "train.txt", json.dumps(article, indent=1))
    with pytest.raises(InputError, match=r"train\.txt:1: an object of several lines; write one per line"):
        read("race", path)


def test_different_numbers_of_candidates_are_refused(tmp_path: Path) -> None:
    rows = [{"article": "a", "question": "q", "options": list("wxyz")[:count], "answer": "A"} for count in (4, 3)]
    with pytest.raises(InputError, match=r"train\.jsonl:2: has 3 candidates, earlier examples have 4"):
        read("race", write(tmp_path / "train.jsonl", *map(json.dumps, rows)))


def test_contradictory_options_are_refused() -> None:
    with pytest.raises(UsageError, match="transform pair needs other"):
        TransformOptions(transform="pair").check("own.toml")
    with pytest.raises(UsageError, match="transform single has no other"):
        TransformOptions(other=("b",)).check("own.toml")


def test_tasks_without_a_protocol_are_for_fine_tuning_only(tmp_path: Path) -> None:
    every = {name: read_task(name) for name in TASK_NAMES}
    assert all(task.kind or task.finetune for task in every.values())
    assert sum(bool(task.finetune) for task in every.values()) == 12
    for name, task in every.items():
        if task.finetune:
            options_of(name)
    with pytest.raises(UsageError, match=r"--task qnli: has no protocol without training; use `webtext finetune`"):
        parse_tasks([f"qnli={write(tmp_path / 'dev.tsv', 'x')}"], "paper")


def test_a_task_of_ones_own_has_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "own.toml", "[finetune]", 'text = ["body"]', 'labels = ["ham", "spam"]')
    assert {name: choice.value for name, choice in find_task(str(path)).finetune.items()} == {
        "text": ["body"],
        "labels": ["ham", "spam"],
    }

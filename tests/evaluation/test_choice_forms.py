"""Tasks of multiple choice, from the files of their authors and from the records of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_task import run_task
from small_model import END, VOCABULARY, byte_tokenizer, write_model

from pipelines.errors import InputError
from pipelines.evaluation.definitions import parse_tasks
from pipelines.evaluation.stage import build_task
from pipelines.evaluation.task import Encoder, Example, ModelFacts
from pipelines.reports.evaluation import chance_level

_ENCODER = Encoder(byte_tokenizer().to_str().encode(), ModelFacts("model", "", 1, None, 4096, VOCABULARY, END))
_LETTERS = list("ABCDE")


class _Form(NamedTuple):
    """A data set with one or two questions: its files by their authors, and its rows on the hub."""

    task: str
    files: dict[str, str]
    rows: list[dict[str, Any]]
    prompts: list[str]
    choices: list[list[str]]
    golds: list[int]


def _stem(id: str, stem: str, texts: list[str], labels: list[str], key: str, **more: Any) -> dict[str, Any]:
    choices = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    return {"id": id, "question": {"stem": stem, "choices": choices, **more}, "answerKey": key}


def _lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


_WORDS = ["a drum", "the moon", "rain", "two", "sand"]
_ARC = [("Which is wet? ", _WORDS[:4], _LETTERS[:4], "C"), ("How many?", _WORDS[1:4], ["1", "2", "3"], "3")]
_ARC_ROWS = [
    {"id": "x", "question": stem, "choices": {"text": texts, "label": labels}, "answerKey": key}
    for stem, texts, labels, key in _ARC
]
_ARC_FORM = _Form(
    "arc-easy",
    {"ARC-Easy-Test.jsonl": _lines(*(_stem("x", *question) for question in _ARC))},
    _ARC_ROWS,
    ["Question: Which is wet? \nAnswer:", "Question: How many?\nAnswer:"],
    [[f" {text}" for text in _WORDS[:4]], [f" {text}" for text in _WORDS[1:4]]],
    [2, 2],
)
_HELLASWAG = {
    "activity_label": "Oiling a gate",
    "ctx_a": "[header] How to oil a gate [title] Begin early. [step] Wait.",
    "ctx_b": "then SHE",
    "ctx": "unused",
    "endings": ["opens [substeps] it.", "[title]  a", " b [x] c", "d"],
}
_PIQA = [{"goal": "Dry a towel", "sol1": "Hang it up.", "sol2": "Sink it."}, {"goal": "G", "sol1": "s", "sol2": "t"}]
_SIQA = [{"context": "Ann fell.", "question": "How is Ann? ", "answerA": "up", "answerB": "sore", "answerC": "far"}]
_GAP = {"sentence": "The cat did not fit the box as the _ was big.", "option1": "cat", "option2": "box", "answer": "1"}
_MMLU = ["Which, of\nthese? ", "A", "B", "none", "all"]
FORMS = [
    _ARC_FORM,
    _ARC_FORM._replace(task="arc-challenge"),
    _Form(
        "openbookqa",
        {"test.jsonl": _lines(_stem("8", "Rain is", _WORDS[:4], _LETTERS[:4], "C"))},
        [{"question_stem": "Rain is", "choices": {"text": _WORDS[:4], "label": _LETTERS[:4]}, "answerKey": " C"}],
        ["Rain is"],
        [[f" {text}" for text in _WORDS[:4]]],
        [2],
    ),
    _Form(
        "commonsenseqa",
        {"dev_rand_split.jsonl": _lines(_stem("1", "Where? ", _WORDS, _LETTERS, "E", question_concept="where"))},
        [{"question": "Where? ", "choices": {"label": _LETTERS, "text": _WORDS}, "answerKey": "E"}],
        ["Question: Where?\nAnswer:"],
        [[f" {text}" for text in _WORDS]],
        [4],
    ),
    _Form(
        "hellaswag",
        {"hellaswag_val.jsonl": _lines({**_HELLASWAG, "label": 1})},
        [{**_HELLASWAG, "label": "1"}],
        ["Oiling a gate: How to oil a gate. Begin early. Wait. Then she"],
        [[" opens it.", "  a", " b c", " d"]],
        [1],
    ),
    _Form(
        "piqa",
        {"valid.jsonl": _lines(*_PIQA), "valid-labels.lst": "0\n1\n"},
        [{**row, "label": label} for row, label in zip(_PIQA, (0, 1), strict=True)],
        ["Question: Dry a towel\nAnswer:", "Question: G\nAnswer:"],
        [[" Hang it up.", " Sink it."], [" s", " t"]],
        [0, 1],
    ),
    _Form(
        "siqa",
        {"dev.jsonl": _lines(*_SIQA), "dev-labels.lst": "2\n"},
        [{**_SIQA[0], "label": "2\n"}],
        ["Q: Ann fell. How is Ann? \nA:"],
        [[" up", " sore", " far"]],
        [1],
    ),
    _Form(
        "winogrande",
        {"dev.jsonl": _lines({"qID": "3-1", **_GAP})},
        [_GAP],
        ["The cat did not fit the box as the "],
        [["cat", "box"]],
        [0],
    ),
    _Form(
        "mmlu",
        {"world_history_test.csv": ",".join(f'"{cell}"' for cell in [*_MMLU, "B"]) + "\n"},
        [{"question": _MMLU[0], "subject": "world_history", "choices": _MMLU[1:], "answer": 1}],
        ["The following are questions (with answers) about world history.\n\nQuestion: Which, of\nthese?\nAnswer:"],
        [[" A", " B", " none", " all"]],
        [1],
    ),
]


def _examples(task: str, variant: str = "paper") -> list[Example]:
    [source] = parse_tasks([task], variant)
    return list(build_task(source, _ENCODER, None).examples())


def _write(folder: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        (folder / name).write_text(content)
    return ",".join(str(folder / name) for name in files)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.task)
def test_both_forms_of_a_data_set_are_the_same_questions(tmp_path: Path, form: _Form) -> None:
    pq.write_table(pa.Table.from_pylist(form.rows), tmp_path / "hub.parquet")
    own = _examples(f"{form.task}={_write(tmp_path, form.files)}")
    hub = _examples(f"{form.task}={tmp_path / 'hub.parquet'}")
    assert [(one.fitted, one.gold) for one in own] == [(one.fitted, one.gold) for one in hub]
    for example, prompt, choices, gold in zip(own, form.prompts, form.choices, form.golds, strict=True):
        texts = [
            (_ENCODER.decode(request.prefix), _ENCODER.decode(request.continuations[0]))
            for request in example.fitted.requests
        ]
        if form.task == "winogrande":
            assert texts == [(prompt + choice, " was big.") for choice in choices]
        else:
            # White space at the end of a prompt belongs to the choice.
            stem = prompt.rstrip()
            assert texts == [(stem, prompt[len(stem) :] + choice) for choice in choices]
        assert example.gold == choices[gold].strip()


def test_the_letters_of_commonsenseqa_are_a_variant(tmp_path: Path) -> None:
    [form] = [form for form in FORMS if form.task == "commonsenseqa"]
    [example] = _examples(f"commonsenseqa={_write(tmp_path, form.files)}", "lm-eval")
    prompt = "Question: Where?\nA. a drum\nB. the moon\nC. rain\nD. two\nE. sand\nAnswer:"
    assert _ENCODER.decode(example.fitted.requests[4].prefix) == prompt
    assert (_ENCODER.decode(example.fitted.requests[4].continuations[0]), example.gold) == (" E", "E")


@pytest.mark.parametrize(
    ("task", "files", "message"),
    [
        ("piqa", {"valid.jsonl": _lines(*_PIQA)}, r"valid.jsonl:1: has no label, .* after a comma .dev.jsonl,dev-lab"),
        ("piqa", {"valid.jsonl": _lines(*_PIQA), "v.lst": "0\n"}, "v.lst: has fewer labels than records"),
        ("piqa", {"valid.jsonl": _lines(*_PIQA), "v.lst": "0\n1\n1"}, "v.lst: has more labels than records"),
        ("siqa", {"dev.jsonl": _lines(*_SIQA), "v.lst": "4\n"}, "dev.jsonl:1: the right choice '4' is not one of"),
        ("arc-easy", {"t.jsonl": _lines(_stem("x", "Q", ["a", "b"], ["A", "B"], "C"))}, "t.jsonl:1: the right choice"),
        ("arc-easy", {"t.jsonl": _lines({"question": "Q", "answerKey": "A"})}, "t.jsonl:1: has no field 'choices'"),
        (
            "arc-easy",
            {"t.jsonl": _lines({"question": {"stem": "Q", "choices": [{"text": "a"}]}, "answerKey": "A"})},
            "t.jsonl:1: has no field 'label'; its fields are 'text'",
        ),
        ("winogrande", {"d.jsonl": _lines({**_GAP, "sentence": "No gap."})}, "d.jsonl:1: the sentence has no _"),
        ("winogrande", {"d.jsonl": _lines({**_GAP, "answer": ""})}, "d.jsonl:1: .* name the validation set"),
        ("hellaswag", {"h.jsonl": _lines({**_HELLASWAG, "label": ""})}, "h.jsonl:1: .* name the validation set"),
        ("hellaswag", {"h.jsonl": _lines({"ctx": "x"})}, "h.jsonl:1: has no field 'activity_label'; its"),
        ("mmlu", {"a_test.csv": "Q,1,2,3,4,E\n"}, "a_test.csv:1: the right choice 'E' is not one of"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, task: str, files: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _examples(f"{task}={_write(tmp_path, files)}")


def test_a_right_choice_that_is_there_twice_is_counted(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", context=256)
    files = {"t.jsonl": _lines(*(_stem("x", "Q", ["a", "b", "a"], ["1", "2", "3"], key) for key in "123"))}
    result, rows = run_task(f"arc-easy={_write(tmp_path, files)}", model, tmp_path / "out")
    assert result["counts"]["right_choice_repeated"] == 2
    assert [row["gold"] for row in rows] == ["a", "b", "a"]
    assert rows[0]["gold_probability"] == rows[2]["gold_probability"]
    [figure] = [figure for figure in result["metrics"] if figure["name"] == "gold_probability"]
    assert chance_level(result, figure) == pytest.approx(1 / 3)
    assert figure["value"] == pytest.approx(sum(row["gold_probability"] for row in rows) / 3)

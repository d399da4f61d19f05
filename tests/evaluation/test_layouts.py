"""The official forms of benchmark files give the same questions as their records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_model import END, VOCABULARY, byte_tokenizer

from pipelines.errors import InputError
from pipelines.evaluation.detokenizers import DETOKENIZERS
from pipelines.evaluation.layouts import LAYOUTS, QUESTIONS, Question
from pipelines.evaluation.records import Record, check_template, read_records
from pipelines.evaluation.task import Encoder, Example, ModelFacts, Output
from pipelines.evaluation.tasks.generation import AnswerOptions, AnswerTask

_SENTENCES = [f"Sentence {number} is here ." for number in range(1, 21)]
_QUERY = "`` The XXXXX ca n't sleep , '' said he .\tdog\t\tcat|dog|bird"


def _questions(layout: str, path: Path, detokenizer: str = "none") -> list[Question]:
    return [QUESTIONS[layout](record, DETOKENIZERS[detokenizer]) for record in LAYOUTS[layout]([str(path)])]


def test_cbt_in_its_own_form_and_as_records(tmp_path: Path) -> None:
    lines = [f"{number} {text}" for number, text in enumerate([*_SENTENCES, _QUERY], 1)]
    own, records = tmp_path / "cbtest_CN_valid_2000ex.txt", tmp_path / "cbt.jsonl"
    own.write_text("\n".join([*lines, "", *lines, *lines[:7], "", *lines[7:], "", ""]))
    row = {
        "sentences": _SENTENCES,
        "question": _QUERY.split("\t")[0],
        "answer": "dog",
        "options": ["cat", "dog", "bird"],
    }
    records.write_text(f"{json.dumps(row)}\n" * 3)
    questions = _questions("cbt", own, "cbt")
    assert [question._replace(place="", cluster="") for question in questions] == [
        question._replace(place="", cluster="") for question in _questions("cbt", records, "cbt")
    ]
    assert questions[0].prompt.startswith("Sentence 1 is here. Sentence 2 is here.")
    assert questions[0].prompt.endswith('Sentence 20 is here. "The')
    assert questions[0].choices == [f" {word} can't sleep,\" said he." for word in ("cat", "dog", "bird")]
    assert (questions[0].gold, questions[0].names) == (1, ["cat", "dog", "bird"])
    assert [question.place for question in questions] == [f"{own.name}:{line}" for line in (21, 43, 65)]
    raw = _questions("cbt", own)[0]
    assert raw.choices[1] == " dog ca n't sleep , '' said he ."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:5] + lines[6:], "cbt.txt:6: expected 6 SENTENCE, found '7 Sentence 7"),
        (
            lambda lines: [*lines, "", *lines[:20], "21 XXXXX\ta\tb|c"],
            "cbt.txt:43: expected 21 QUESTION<tab>ANSWER<tab><",
        ),
        (lambda lines: [*lines, *lines[:19], lines[20]], "cbt.txt:41: expected 20 SENTENCE, found .21 "),
        (lambda lines: [*lines[:20], "21 no blank\ta\t\tb|c"], "cbt.txt:21: the question has no XXXXX"),
        (lambda lines: lines[:12], "cbt.txt: ends after line 12 of the 21 of a question"),
        (lambda lines: [*lines[:20], lines[20].replace("\tdog\t", "\tfox\t")], "the right choice 'fox' is not one of"),
    ],
)
def test_a_damaged_cbt_file_is_refused(tmp_path: Path, change: Callable[[list[str]], list[str]], message: str) -> None:
    lines = [f"{number} {text}" for number, text in enumerate([*_SENTENCES, _QUERY], 1)]
    (tmp_path / "cbt.txt").write_text("\n".join(change(lines)))
    with pytest.raises(InputError, match=message):
        _questions("cbt", tmp_path / "cbt.txt")


_XML = """<?xml version="1.0"?><collection>
<schema><text><txt1>The trophy doesn't fit because </txt1><pron> it </pron><txt2> is too large.</txt2></text>
<answers><answer> The trophy </answer><answer> The case </answer></answers><correctAnswer> A. </correctAnswer></schema>
<schema><text><txt1>Bob paid. </txt1><pron>His</pron><txt2> money, he said.</txt2></text>
<answers><answer>Bob</answer><answer>the bank</answer></answers><correctAnswer>B</correctAnswer></schema>
</collection>"""


def test_winograd_in_its_own_form_and_as_records(tmp_path: Path) -> None:
    (tmp_path / "wsc.xml").write_text(_XML)
    rows = [
        {
            "text": "The trophy doesn't fit because it is too large.", "pronoun": "it", "pronoun_loc": 31,
            "options": ["The trophy", "The case"], "label": 0,
        },
        {
            "text": "Bob paid. His money, he said.", "pronoun": "His", "pronoun_loc": 10,
            "options": ["Bob", "the bank"], "label": 1,
        },
    ]  # fmt: skip
    (tmp_path / "wsc.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = _questions("winograd", tmp_path / "wsc.xml")
    records = _questions("winograd", tmp_path / "wsc.jsonl")
    assert [first._replace(place=""), second._replace(place="")] == [one._replace(place="") for one in records]
    assert first.prompt == "The trophy doesn't fit because "
    assert (first.choices, first.rest, first.gold) == (["the trophy", "the case"], " is too large.", 0)
    assert (second.choices, second.rest, second.gold) == (["Bob's", "the bank's"], " money, he said.", 1)
    assert (first.cluster, second.cluster) == ("0", "1")  # other options, so no pair
    text = """The trophy doesn't fit because it is too large.\r\nit\r\nThe trophy , The case \r\nThe trophy\r\n\r\n \r\n
Bob paid. His money, he said.\nHis\nBob,the bank\nthe bank"""
    (tmp_path / "wsc.txt").write_bytes(text.encode())
    texts = _questions("winograd", tmp_path / "wsc.txt")
    assert [one._replace(place="") for one in texts] == [one._replace(place="") for one in records]
    assert [one.place for one in texts] == ["wsc.txt:1", "wsc.txt:8"]


def test_a_pronoun_is_a_word_and_may_be_masked(tmp_path: Path) -> None:
    schemas = (
        "Ann hit it with it.\nit\nthe ball,the bat\nthe bat",
        "Ann hit Ben, so [MASK] .  \n[MASK]\n Ann , Ben \n Ben ",
        "The title of this kit: it fits.\nit\nThe title,The kit\nThe kit",
    )
    (tmp_path / "wsc273.txt").write_text("\n\n".join(schemas))
    questions = _questions("winograd", tmp_path / "wsc273.txt")
    assert [(one.prompt, one.choices, one.rest, one.gold) for one in questions] == [
        ("Ann hit ", ["the ball", "the bat"], " with it.", 1),
        ("Ann hit Ben, so ", ["Ann", "Ben"], ".", 1),
        ("The title of this kit: ", ["the title", "the kit"], " fits.", 1),
    ]


def _schemas(folder: Path, *rows: tuple[str, str, int], **more: Any) -> list[str]:
    """Return the clusters of schemas, each a text whose pronoun is `it`, options between slashes, and the label."""
    records = [
        {"text": text, "pronoun": "it", "pronoun_loc": text.index("it"), "options": options.split("/"), "label": label}
        for text, options, label in rows
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(record | more) + "\n" for record in records))
    return [question.cluster for question in _questions("winograd", folder / "pairs.jsonl")]


def test_two_schemas_in_a_row_are_a_pair_if_the_answer_differs(tmp_path: Path) -> None:
    cup, jar = "I filled the cup from the jar until it was", "the cup/the jar"
    full, empty = (f"{cup} full.", jar, 0), (f"{cup} empty.", "The jar/the cup", 0)
    assert _schemas(tmp_path, full, empty) == ["0", "0"]
    assert _schemas(tmp_path, full, full) == ["0", "1"]
    # Three of a kind, as three of the 273, are a pair and one without a partner; four are two pairs.
    assert _schemas(tmp_path, full, empty, full, ("The fish ate the worm, so it was", "fish/worm", 0)) == [*"0012"]
    assert _schemas(tmp_path, full, empty, full, empty) == [*"0011"]
    # One option may be of the word that differs, as in two pairs of the 273.
    wing = ("I put the wing on the table and it broke.", "the wing/the table", 0)
    book = ("I put the heavy book on the table and it broke.", "the heavy book/the table", 1)
    assert _schemas(tmp_path, full, wing, book, empty) == [*"0112"]
    # The same options alone do not make a pair: other schemas may have them.
    assert _schemas(tmp_path, full, ("Of both, Ann says that it looks nicer", jar, 1)) == ["0", "1"]
    assert _schemas(tmp_path, full, full, full, pair="mine") == ["mine"] * 3
    assert _schemas(tmp_path, full, empty, pair=None) == ["0", "0"]
    with (tmp_path / "pairs.jsonl").open("a") as file:  # not all records have one
        file.write((tmp_path / "pairs.jsonl").read_text().replace("null", "0"))
    assert [one.cluster for one in _questions("winograd", tmp_path / "pairs.jsonl")] == [*"0011"]


@pytest.mark.parametrize("text", ["A it.\nit\nb,c", "A it.\nit\nb,c\nb\nmore", "A with.\nit\nb,c\nb", "Ann saw it."])
def test_a_text_that_is_not_of_four_lines_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "wsc.txt").write_text(f"A it.\nit\nb,c\nb\n\n{text}\n")
    with pytest.raises(
        InputError, match=r"wsc.txt:6: expected a sentence, .*; or name records \(.json, .jsonl, .parquet\) or .xml"
    ):
        _questions("winograd", tmp_path / "wsc.txt")
    (tmp_path / "wsc.txt").write_text("A it.\nit\nb,c\nd\n")
    with pytest.raises(InputError, match=r"wsc.txt:1: the right choice 'd' is not one of \['b', 'c'\]"):
        _questions("winograd", tmp_path / "wsc.txt")


def test_a_damaged_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wsc.xml").write_text(_XML.replace("<pron>His</pron>", ""))
    with pytest.raises(InputError, match=r"wsc.xml:2: is not a schema"):
        _questions("winograd", tmp_path / "wsc.xml")
    for encoding in ("ISO-88591", "gb18030"):
        (tmp_path / "wsc.xml").write_text(_XML.replace("?>", f" encoding='{encoding}'?>", 1))
        with pytest.raises(InputError, match=r"wsc.xml: is not valid XML \(.*encoding"):
            _questions("winograd", tmp_path / "wsc.xml")
    (tmp_path / "wsc.xml").write_text("<collection>")
    with pytest.raises(InputError, match=r"wsc.xml: is not valid XML"):
        _questions("winograd", tmp_path / "wsc.xml")


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("winograd", {"pronoun_loc": 3}, "the pronoun 'it' is not at character 3"),
        ("winograd", {"pronoun_loc": "two"}, "the pronoun 'it' is not at character two"),
        ("winograd", {"label": -1}, r"the right choice -1 is not one of \['x', 'y'\]"),
        ("winograd", {"label": 2}, "the right choice 2 is not one of"),
        ("winograd", {"label": "9" * 5000}, "the right choice '99.*9' is not one of"),
        ("winograd", {"pronoun_loc": "9" * 5000}, "the pronoun 'it' is not at character 9"),
        ("winograd", {"text": {"a": 1}}, "the pronoun 'it' is not at character 2"),
        ("cbt", {"question": 7}, "the question has no XXXXX"),
        ("winograd", {"options": "x or y"}, "options is not a list of texts"),
        ("cbt", {"options": "x|y"}, "options is not a list of texts"),
        ("cbt", {"sentences": "A sentence."}, "sentences is not a list of texts"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, layout: str, changes: dict[str, Any], message: str) -> None:
    row = {"text": "a it b", "pronoun": "it", "pronoun_loc": 2, "options": ["x", "y"], "label": 0}
    row |= {"sentences": ["one"], "question": "XXXXX", "answer": "x", **changes}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(InputError, match=f"rows.jsonl:1: {message}"):
        _questions(layout, tmp_path / "rows.jsonl")


_DIALOGUE: dict[str, Any] = {
    "story": "Ann has a cat.",
    "questions": [{"input_text": "Who?"}, {"input_text": "What?"}],
    "answers": [{"input_text": "Ann"}, {"input_text": "a cat"}],
    "additional_answers": {"0": [{"input_text": "Ann does"}, {"input_text": "cat"}]},
}


def _coqa_examples(path: Path, content: Any, context: int = 200) -> list[Example]:
    path.write_text(json.dumps(content))
    encoder = Encoder(byte_tokenizer().to_str().encode(), ModelFacts("", "", 0, None, context, VOCABULARY, END))
    return list(
        AnswerTask(AnswerOptions(layout="coqa", score="coqa", max_tokens=8), [str(path)], encoder, None).examples()
    )


def _prompt(example: Example) -> str:
    text: str = byte_tokenizer().decode(list(example.fitted.requests[0].prefix))
    return text


def test_coqa_gives_every_turn_its_history(tmp_path: Path) -> None:
    path = tmp_path / "coqa-dev-v1.0.json"
    examples = _coqa_examples(path, {"version": 1, "data": [_DIALOGUE, _DIALOGUE]})
    assert [example.place for example in examples] == [
        f"coqa-dev-v1.0.json:{place}" for place in ("1.1", "1.2", "2.1", "2.2")
    ]
    assert [example.cluster for example in examples] == ["coqa-dev-v1.0.json:1"] * 2 + ["coqa-dev-v1.0.json:2"] * 2
    assert _prompt(examples[1]) == "Ann has a cat.\n\nQ: Who?\nA: Ann\nQ: What?\nA:"
    assert examples[1].gold == "a cat"
    # The right answer of the other annotator counts, too.
    measured = examples[1].measure([Output([[]], [], byte_tokenizer().encode(" cat").ids, True)])
    assert measured.metrics == {"f1": 1.0, "exact_match": 1.0}


def test_coqa_in_the_form_of_hugging_face(tmp_path: Path) -> None:
    answers = {"input_text": ["Ann", "a cat"], "answer_start": [0, 8], "answer_end": [3, 13]}
    record = {"source": "mctest", "story": "Ann has a cat.", "questions": ["Who?", "What?"], "answers": answers}
    examples = _coqa_examples(tmp_path / "coqa.json", [record])
    official = _coqa_examples(tmp_path / "own.json", [_DIALOGUE])
    assert [(_prompt(example), example.gold) for example in examples] == [
        (_prompt(example), example.gold) for example in official
    ]


def test_the_oldest_turns_are_left_out_before_the_story_is_cut(tmp_path: Path) -> None:
    turns = [{"input_text": f"q{number}"} for number in range(4)]
    record = {"story": "A story.", "questions": turns, "answers": turns}
    whole = "A story.\n\nQ: q0\nA: q0\nQ: q1\nA: q1\nQ: q2\nA: q2\nQ: q3\nA:"
    turn = len("Q: q0\nA: q0\n")
    for context, dropped, cut in (
        (len(whole) + 8, 0, 0),
        (len(whole) + 7, 1, 0),
        (len(whole) + 8 - 2 * turn, 2, 0),
        (len(whole) + 8 - 3 * turn, 3, 0),
        (len(whole) + 5 - 3 * turn, 3, 3),
    ):
        last = _coqa_examples(tmp_path / "coqa.json", [record], context)[-1]
        assert last.fitted.counts["turns_dropped"] == dropped
        assert last.fitted.cut == cut
        start = len("A story.\n\n")
        assert _prompt(last) == (whole[:start] + whole[start + dropped * turn :])[cut:]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": [{"input_text": "Ann"}]}, "every question needs an answer, but there are 2 questions, 1 answers"),
        ({"additional_answers": {"0": [{"input_text": "x"}]}}, "2 answers, 1 additional_answers.0"),
        ({"story": None}, "field 'story' is null"),
        ({"questions": "Who?"}, "questions is neither a list of texts nor of records with input_text"),
        ({"questions": [{"text": "Who?"}] * 2}, "questions is neither a list of texts"),
        ({"answers": {"answer_start": [1, 2]}}, "answers is neither a list of texts"),
        ({"answers": []}, "answers is neither a list of texts"),
        ({"additional_answers": ["x"]}, "has no field 'additional_answers.x'"),
    ],
)
def test_a_dialogue_that_is_not_complete_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"coqa.json:1: .*{re.escape(message)}"):
        _coqa_examples(tmp_path / "coqa.json", [_DIALOGUE | changes])


def test_records_are_read_from_every_form(tmp_path: Path) -> None:
    rows = [{"q": "one, two", "n": 1}, {"q": 'say "x"', "n": 2}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "data.json").write_text(json.dumps({"version": 1, "data": rows}))
    (tmp_path / "a.csv").write_text('q,n\n"one, two",1\n"say ""x""",2\n')
    (tmp_path / "a.tsv").write_text('q\tn\none, two\t1\nsay "x"\t2\n')
    (tmp_path / "quote.tsv").write_text('q\tn\n"one, two\t1\nx\t2\n')  # a quote in TSV is a character
    assert [record.value("q") for record in read_records([str(tmp_path / "quote.tsv")])] == ['"one, two', "x"]
    for name in ("a.jsonl", "a.json", "data.json", "a.csv", "a.tsv"):
        records = list(read_records([str(tmp_path / name)]))
        assert [(record.value("q"), str(record.value("n"))) for record in records] == [
            ("one, two", "1"),
            ('say "x"', "2"),
        ]
    for name, content, message in (
        ("bad.jsonl", "{}\n{", "bad.jsonl:2: is not valid JSON"),
        ("bad.json", "{}", "neither a list of records nor an object"),
        ("bad.csv", "a,b\n1,2,3\n", "bad.csv:2: cannot be read as CSV"),
        ("bad.xml", "<?xml version='1.0'?>", "bad.xml: is XML, not a text with a line per example; name records"),
        ("xml.txt", "<?xml version='1.0'?>", "xml.txt: is XML, .*; rename it to its own suffix"),
        ("bad.txt", "é".encode("latin-1"), "bad.txt:1: is not UTF-8"),
    ):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InputError, match=message):
            list(read_records([str(tmp_path / name)]))


def test_templates_name_fields_and_parts_of_them() -> None:
    record = Record({"a": {"b": ["x", "y"]}, "c-d": 1}, "file:1")
    template = '{a.b.1} and {c-d}, {not a field}, {"json": {c-d}}, { and }'
    check_template(template, "prompt")
    check_template(f"{{{'x' * 200_000}}}", "prompt")  # in less than minutes
    assert record.text(template) == 'y and 1, {not a field}, {"json": 1}, { and }'
    with pytest.raises(InputError, match=r"file:1: has no field 'a.b.2'; its fields are 'a', 'c-d'"):
        record.text("{a.b.2}")

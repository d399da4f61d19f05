"""Benchmark files as their authors distribute them give the same records as those on the hub."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from own_task import run_task
from small_model import write_model

from pipelines.errors import InputError
from pipelines.evaluation.definitions import parse_tasks
from pipelines.evaluation.detokenizers import DETOKENIZERS
from pipelines.evaluation.layouts import LAYOUTS, QUESTIONS
from pipelines.evaluation.records import Record
from webtext_cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "random")


_SGM = """<srcset setid="newstest2014" srclang="any"><doc sysid="ref" docid="{name}" genre="news" origlang="fr">
<p><seg id="1">{first}</seg></p>
<seg id="2">{second}</seg></doc><DOC docid="other">
<seg id="1">{third}</seg></doc></srcset>"""


def _rows(layout: str, *paths: Path) -> list[Record]:
    return list(LAYOUTS[layout]([str(path) for path in paths]))


def test_pairs_of_sentences_in_all_their_forms(tmp_path: Path) -> None:
    sentences = {"fr": ["Le caf&#233; &amp; moi", "Deux", "Trois"], "en": ["The coffee\n&amp; me", "Two", "Three"]}
    for language, texts in sentences.items():
        sgm = _SGM.format(name="le-monde", first=texts[0], second=texts[1], third=texts[2])
        (tmp_path / f"test-src.{language}.sgm").write_text(sgm)
    own = _rows("pairs", tmp_path / "test-src.fr.sgm", tmp_path / "test-src.en.sgm")
    pairs = ("Le café & moi", "The coffee & me"), ("Deux", "Two"), ("Trois", "Three")
    plain = [{"fr": french, "en": english} for french, english in pairs]
    assert [row.fields["translation"] for row in own] == plain
    assert [row.fields["document"] for row in own] == ["le-monde", "le-monde", "other"]
    assert [row.place for row in own] == [f"test-src.fr.sgm:{number}" for number in (1, 2, 3)]
    for language in ("fr", "en"):
        with gzip.open(tmp_path / f"test.{language}.gz", "wt") as stream:
            stream.write("".join(f"{pair[language]}\n" for pair in plain[1:]))
    lines = _rows("pairs", tmp_path / "test.en.gz", tmp_path / "test.fr.gz")
    assert [row.fields["translation"] for row in lines] == plain[1:]
    assert lines[0].fields["document"] == lines[0].place == "test.en.gz:1"
    (tmp_path / "test.jsonl").write_text(json.dumps({"translation": plain[2]}))
    assert _rows("pairs", tmp_path / "test.jsonl")[0].fields == {"translation": plain[2], "document": "test.jsonl:1"}


def test_files_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.fr").write_text("un\ndeux\n")
    (tmp_path / "a.en").write_text("one\n")
    with pytest.raises(InputError, match=r"a.fr: is not as long as a.en \(2 and 1 sentences\)"):
        _rows("pairs", tmp_path / "a.fr", tmp_path / "a.en")
    for paths in (["a.fr"], ["a.fr", "a.en", "a.en"], ["a.fr", "b.fr"]):
        with pytest.raises(InputError, match=f"{', '.join(paths)}: expected two files whose names end in"):
            _rows("pairs", *(tmp_path / path for path in paths))


def test_two_files_of_a_task_are_named_with_a_comma(tmp_path: Path) -> None:
    for name in ("a.fr", "a.en", "b,c.jsonl"):
        (tmp_path / name).write_text("x\n")
    [task] = parse_tasks([f"wmt14-en-fr={tmp_path}/a.en,{tmp_path}/a.fr"], "paper")
    assert task.files == (f"{tmp_path}/a.en", f"{tmp_path}/a.fr")
    assert parse_tasks([f"wmt14-fr-en={tmp_path}/b,c.jsonl"], "paper")[0].files == (f"{tmp_path}/b,c.jsonl",)
    with pytest.raises(InputError, match="no such file"):
        parse_tasks([f"wmt14-en-fr={tmp_path}/a.en,{tmp_path}/no.fr"], "paper")


@pytest.mark.parametrize(
    ("layout", "own", "content", "rows"),
    [
        ("cola", "dev.tsv", "gj04\t1\t\tThe \"car\" honked.\ngj04\t0\t*\tThe the.\n",
         [("1", 'The "car" honked.'), ("0", "The the.")]),
        ("cola", "dev.tsv", "sentence\tlabel\tidx\nA cat.\t1\t0\n", [("1", "A cat.")]),
        ("classes", "test.csv", '"3","Fears, for T","Unions ""say"""\n"4","A","B"\n',
         [(2, 'Fears, for T Unions "say"'), (3, "A B")]),
        ("classes", "test.csv", "Class Index,Title,Description\n1,A,B\n", [(0, "A B")]),
        ("classes", "hub.csv", "label,title,content,text\n2,A,B,A B\n", [("2", "A B")]),
        ("classes", "test.csv", '"3"," A ","  B B "\n', [(2, "A B B")]),
        ("classes", "stsa.binary.test", "0 no movement , no yuks\r\n\n1 caf\u00e9 \U0001f3a5 ! \n",
         [(0, "no movement , no yuks"), (1, "caf\u00e9 \U0001f3a5 !")]),
        ("classes", "latin-1", b"1 caf\xe9 .\n", [(1, "caf\u00e9 .")]),
        ("trec", "TREC_10.label", b"NUM:dist How far ?\nHUM:ind Who\xf0is ?\n",
         [(5, "How far ?"), (3, "Who is ?")]),
        ("trec", "hub.jsonl", '{"text": "How far ?", "coarse_label": 5, "fine_label": 40}', [(5, "How far ?")]),
    ],
)  # fmt: skip
def test_official_files_are_read_as_their_records(
    tmp_path: Path, layout: str, own: str, content: str | bytes, rows: list[tuple[object, str]]
) -> None:
    (tmp_path / own).write_bytes(content if isinstance(content, bytes) else content.encode())
    field = "sentence" if layout == "cola" else "text"
    assert [(row.value("label"), row.value(field)) for row in _rows(layout, tmp_path / own)] == rows


@pytest.mark.parametrize(
    ("layout", "own", "content", "message"),
    [
        ("cola", "a.tsv", "gj04\t1\t\tA.\ngj04\t1\n", "a.tsv:2: cannot be read as CSV"),
        (
            "trec",
            "a.label",
            "How far ?\n",
            r"a.label:1: begins with 'How', expected a label \(ABBR, ENTY, .*, NUM\) and a text",
        ),
        ("trec", "a.label", "2 Where ?\n", r"a.label:1: begins with '2', expected a label"),
        (
            "classes",
            "stsa.binary.dev",
            "1 fine .\nplain text\n",
            r"dev:2: begins with 'plain', .*; or name records \(.jso",
        ),
        ("records", "a.txt", "<!DOCTYPE html>\n<p>", "a.txt: is a web page or binary data, not text"),
        ("records", "a.jsonl", "\n<html>\n", "a.jsonl: is a web page or binary data, not text"),
        ("records", "a.json", "\ufeff<!doctype html>", "a.json: is a web page or binary data"),
        ("records", "a.csv", "<html>\n<body>\n", "a.csv: is a web page or binary data"),
        ("records", "a.txt", "PK\0\1", "a.txt: is a web page or binary data"),
        ("records", "a.txt", '<?xml version="1.0"?>', "a.txt: is XML, not a text with a line per example"),
        ("records", "a", '{"text": "x"}\n', r"a: is JSON \(.jsonl\), not a text"),
        ("records", "a.txt", "[\n{}]", r"a.txt: is JSON \(.json\), not a text"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, layout: str, own: str, content: str, message: str) -> None:
    (tmp_path / own).write_text(content)
    with pytest.raises(InputError, match=message):
        _rows(layout, tmp_path / own)
    (tmp_path / "text.txt").write_text("[sic] is text\n{x}, too\n")
    assert [row.value("text") for row in _rows("records", tmp_path / "text.txt")] == ["[sic] is text", "{x}, too"]


def test_word_labels_are_numbered_as_on_the_hub(tmp_path: Path) -> None:
    words = [("entailment", 0), ("contradiction", 1), ("neutral", 2), ("not_entailment", 1), (2, 2)]
    records = [{"premise": "P. ", "hypothesis": " H", "label": word, "idx": 3} for word, _ in words]
    (tmp_path / "val.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tP. \t H\tnot_entailment\n")
    for name, labels in (("val.jsonl", [label for _, label in words]), ("dev.tsv", [1])):
        rows = _rows("classes", tmp_path / name)
        assert [row.value("label") for row in rows] == labels
        assert {(row.value("premise"), row.value("hypothesis")) for row in rows} == {("P.", "H")}
    for task, choices in (("rte", [" True", " False"]), ("cb", [" true", " false", " neither"])):
        assert parse_tasks([f"{task}={tmp_path}/val.jsonl"], "paper")[0].definition.choices["choices"].value == choices


@pytest.mark.parametrize(
    ("task", "name", "content", "message"),
    [
        (
            "rte",
            "test.jsonl",
            '{"premise": "P", "hypothesis": "H", "idx": 0}',
            "1: has no field 'label'; its fields are",
        ),
        ("cb", "hub.jsonl", '{"premise": "P", "hypothesis": "H", "label": -1}', "1: the right choice -1 is not one of"),
        ("sst-2", "test.tsv", "index\tsentence\n0\ta film .\n", "2: has no field 'label'; its fields are 'index'"),
        ("sst-2", "hub.csv", "sentence,label\na film .,-1\n", "2: the right choice '-1' is not one of"),
        ("cola", "test.tsv", "index\tsentence\n0\tA film.\n", "2: has no field 'label'; its fields are 'index'"),
        (
            "winograd",
            "a.jsonl",
            '{"text": "a it b", "pronoun": "it", "pronoun_loc": 2, "options": ["x", "y"]}',
            "'label'",
        ),
    ],
)
def test_a_test_set_without_labels_is_named_as_such(
    tmp_path: Path, model: str, task: str, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    hint = "; test sets are often published without labels: name the validation set"
    with pytest.raises(InputError, match=f"{name}:{message}.*{hint}" if task != "winograd" else f"{message}.*{hint}"):
        run_task(f"{task}={tmp_path / name}", model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "a.csv").write_text("kind,head,body\n1,A,B\n")
    with pytest.raises(InputError, match=r"a.csv:1: the right choice 'kind' is not one of \['World', .*, by number"):
        run_task(f"agnews={tmp_path / 'a.csv'}", model, tmp_path / "out")


def test_spaces_around_a_sentence_are_not_scored(tmp_path: Path, model: str) -> None:
    log_probs = []
    for name, sentence in (("plain.tsv", "a film ."), ("glue.tsv", " a film . "), ("own.jsonl", "a film .  ")):
        row = (
            f"sentence\tlabel\n{sentence}\t1\n"
            if name != "own.jsonl"
            else json.dumps({"sentence": sentence, "label": 1})
        )
        (tmp_path / name).write_text(row)
        for variant in ("paper", "raw", "calibrate"):
            _, [example] = run_task(f"sst-2={tmp_path / name}", model, tmp_path / f"{name}-{variant}", variant)
            log_probs.append(example["log_probs"])
    assert log_probs[:3] == log_probs[3:6] == log_probs[6:]


def test_pair_accuracy_is_of_complete_pairs(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    schemas = [
        f"{name} filled the cup from the jar until it was {end}.\nit\nthe cup,the jar\n{answer}"
        for name, ends in (("Ann", {"full": "the cup", "empty": "the jar"}), ("Bob", {"full": "the cup"}))
        for end, answer in ends.items()
    ]
    (tmp_path / "wsc273.txt").write_text("\n\n".join(schemas))
    arguments = ["evaluate", "--model", model, "--output", str(tmp_path / "out"), "-q"]
    assert main([*arguments, "--task", f"winograd={tmp_path / 'wsc273.txt'}"]) == 0
    result = json.loads((tmp_path / "out" / "winograd" / "results.json").read_text())
    rows = pq.read_table(tmp_path / "out" / "winograd" / "examples-00000.parquet").to_pylist()
    [figure] = [figure for figure in result["metrics"] if figure["name"] == "pair_accuracy"]
    assert (figure["examples"], figure["unit"]) == (1, "pair")
    assert figure["value"] == (rows[0]["accuracy"] and rows[1]["accuracy"])
    assert [row["cluster"] for row in rows] == ["0", "0", "1"]
    assert re.search(r"pair accuracy +\d \D*1 pair", capsys.readouterr().out)
    assert "<td>1 pair</td>" in (tmp_path / "out" / "evaluation.html").read_text()
    # Without a pair, there is no such figure.
    assert main([*arguments, "--overwrite", "--limit", "1", "--task", f"winograd={tmp_path / 'wsc273.txt'}"]) == 0
    result = json.loads((tmp_path / "out" / "winograd" / "results.json").read_text())
    assert "pair_accuracy" not in [figure["name"] for figure in result["metrics"]]


def _substitutions(*sentences: str, correct: int = 0, number: int = 0) -> list[dict[str, object]]:
    return [
        {"question_id": number, "substitution": sentence, "correctness": place == correct}
        for place, sentence in enumerate(sentences)
    ]


def test_winograd_schemas_with_a_sentence_per_candidate(tmp_path: Path) -> None:
    rows = _substitutions(
        "The trophy is not in the case because the trophy is large.",
        "The trophy is not in the case because the case is large.",
    ) + _substitutions("Ann likes the old man 's cat.", "Ann likes the man 's cat.", correct=1, number=1)
    (tmp_path / "wsc273.json").write_text(json.dumps(rows))
    first, second = LAYOUTS["winograd"]([str(tmp_path / "wsc273.json")])
    question = QUESTIONS["winograd"]
    one = question(first, DETOKENIZERS["none"])
    assert one.prompt == "The trophy is not in the case because the "
    assert (one.choices, one.rest, one.gold, one.place) == (["trophy", "case"], " is large.", 0, "wsc273.json:1")
    two = question(second, DETOKENIZERS["none"])
    # A candidate has at least one word, also if the other has the same ones.
    assert (two.prompt, two.choices, two.rest) == ("Ann likes the ", ["old man", "man"], "'s cat.")
    assert (two.gold, two.place) == (1, "wsc273.json:3")
    (tmp_path / "wsc273.json").write_text(json.dumps(rows[:1]))
    with pytest.raises(InputError, match=r"wsc273.json:1: question 0 needs at least two sentences"):
        list(LAYOUTS["winograd"]([str(tmp_path / "wsc273.json")]))

"""The evaluation at the end of the demo: a cloze and the bits per byte of pages that were held out."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from pipelines.demo.evaluation import cloze_questions, evaluate_demo
from pipelines.engine.run import RunOptions
from pipelines.evaluation.records import Document
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.stage import tokenize

sys.path.append(str(Path(__file__).parents[1] / "evaluation"))
from small_model import VOCABULARY, byte_tokenizer, write_model

_PAGE = (
    "Return the list of arguments, one per module. This class implements a parser.\nNo word of a line alone\n"
    "It raises an error if the file is closed. See the documentation.  The encoding is given by the caller.\n"
)


def test_the_last_word_of_a_sentence_is_removed() -> None:
    questions = list(cloze_questions([Document(_PAGE, "held-out:a")]))
    assert [question["gold"] for question in questions] == ["module", "parser", "closed", "documentation", "caller"]
    for question in questions:
        assert question["page"] == "held-out:a"
        assert len(set(question["choices"])) == 4
        assert question["gold"] in question["choices"] == sorted(question["choices"])
        assert all(word in _PAGE.lower() for word in question["choices"])
        assert f"{question['prompt']} {question['gold']}." in _PAGE
    assert questions == list(cloze_questions([Document(_PAGE, "held-out:a")]))
    others = {tuple(question["choices"]) for question in cloze_questions([Document(_PAGE, "held-out:b")])}
    assert others != {tuple(question["choices"]) for question in questions}


def test_prompts_are_short_and_begin_with_a_whole_word() -> None:
    page = "word other third fourth " * 100 + "the last."
    assert not list(cloze_questions([Document(page, "a")]))  # nothing follows the sentence
    [question] = cloze_questions([Document(f"{page[:-5]}final.\n", "a")])
    assert 250 < len(question["prompt"]) <= 300
    assert question["prompt"].split()[0] in ("word", "other", "third", "fourth")
    assert not list(cloze_questions([Document("Return the list.\n", "a")]))  # too few words


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Return a corpus whose model finds all tokens equally likely."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "remove-wikipedia").mkdir()
    rows = [{"id": f"page{number}", "text": f"Page {number}. {_PAGE}"} for number in range(40)]
    (tmp_path / "remove-wikipedia" / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_str())
    tokenize(
        TokenizeConfig(held_out=0.3),
        documents=str(tmp_path / "remove-wikipedia"),
        tokenizer=str(tmp_path / "tokenizer.json"),
        output=str(tmp_path / "tokenize"),
        options=RunOptions(),
    )
    write_model(tmp_path / "pretrain", "uniform", context=512)
    return tmp_path


def _lines(corpus: Path) -> list[str]:
    return (corpus / "remove-wikipedia" / "documents.jsonl").read_text().splitlines()


def test_the_model_is_evaluated_on_held_out_pages_alone(corpus: Path) -> None:
    held_out, cloze = evaluate_demo(str(corpus), RunOptions())
    counts = json.loads((corpus / "tokenize" / "manifest.json").read_text())["counts"]
    assert held_out["metrics"][0]["examples"] == counts["held-out_documents"] < 40
    figures = {figure["name"]: figure["value"] for figure in (*held_out["metrics"], *cloze["metrics"])}
    assert figures["token_perplexity"] == pytest.approx(VOCABULARY)
    assert figures["bits_per_byte"] == pytest.approx(math.log2(VOCABULARY))
    questions = [json.loads(line) for line in (corpus / "benchmarks" / "cloze.jsonl").read_text().splitlines()]
    assert cloze["metrics"][0]["examples"] == len(questions) == 5 * counts["held-out_documents"]
    pages = [json.loads(line) for line in (corpus / "benchmarks" / "held-out.jsonl").read_text().splitlines()]
    for row in (*questions, *pages):
        assert row["page"].partition(":")[0] == "held-out"
    assert {page["text"] for page in pages} < {json.loads(line)["text"] for line in _lines(corpus)}
    page = (corpus / "evaluate" / "evaluation.html").read_text()
    assert "Cloze from held-out pages" in page
    assert "the paper" not in page  # it has no figures of these tasks


def test_a_second_evaluation_only_verifies(corpus: Path) -> None:
    first = evaluate_demo(str(corpus), RunOptions())
    manifests = {path: path.stat().st_mtime_ns for path in (corpus / "evaluate").rglob("manifest.json")}
    assert len(manifests) == 2
    assert evaluate_demo(str(corpus), RunOptions()) == first
    assert {path: path.stat().st_mtime_ns for path in manifests} == manifests

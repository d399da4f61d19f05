"""The evaluation at the end of the demo: the bits per byte of pages that were held out."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from pipelines.demo.evaluation import evaluate_demo
from pipelines.engine.run import RunOptions
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.stage import tokenize

sys.path.append(str(Path(__file__).parents[1] / "evaluation"))
from small_model import VOCABULARY, byte_tokenizer, write_model

_PAGE = (
    "Return the list of arguments, one per module. This class implements a parser.\nNo word of a line alone\n"
    "It raises an error if the file is closed. See the documentation.  The encoding is given by the caller.\n"
)


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
    [held_out] = evaluate_demo(str(corpus), RunOptions())
    counts = json.loads((corpus / "tokenize" / "manifest.json").read_text())["counts"]
    assert held_out["metrics"][0]["examples"] == counts["held-out_documents"] < 40
    figures = {figure["name"]: figure["value"] for figure in held_out["metrics"]}
    assert figures["token_perplexity"] == pytest.approx(VOCABULARY)
    assert figures["bits_per_byte"] == pytest.approx(math.log2(VOCABULARY))
    pages = [json.loads(line) for line in (corpus / "benchmarks" / "held-out.jsonl").read_text().splitlines()]
    for row in pages:
        assert row["page"].partition(":")[0] == "held-out"
    assert {page["text"] for page in pages} < {json.loads(line)["text"] for line in _lines(corpus)}
    page = (corpus / "evaluate" / "evaluation.html").read_text()
    assert "Held-out pages" in page
    assert "the paper" not in page  # it has no figures of these tasks


def test_a_second_evaluation_only_verifies(corpus: Path) -> None:
    first = evaluate_demo(str(corpus), RunOptions())
    manifests = {path: path.stat().st_mtime_ns for path in (corpus / "evaluate").rglob("manifest.json")}
    assert len(manifests) == 1
    assert evaluate_demo(str(corpus), RunOptions()) == first
    assert {path: path.stat().st_mtime_ns for path in manifests} == manifests

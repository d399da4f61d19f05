"""The pages of the model: its training, samples, and answers next to the documents in which it saw the questions."""

from __future__ import annotations

import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("starlette")
from browser_client import open_client
from starlette.testclient import TestClient

from pipelines.engine.run import RunOptions
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.stage import overlap_report

_QUESTION = "the quick brown fox jumps over the lazy dog and sleeps"
_HOSTILE = "<img src=x onerror=alert(1)>\x1b\u202e"


def _answer(number: int, **changed: Any) -> dict[str, Any]:
    row = {"example": number, "place": f"quiz.jsonl:{number + 1}", "cluster": f"quiz.jsonl:{number + 1}"}
    return row | {"gold": "fox", "output": "dog", "accuracy": False} | changed


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_training(folder: Path) -> None:
    recipe = {"preset": "tiny", "steps": 40, "batch_size": 2, "context": 8, "grad_clip": 1.0}
    shape = {"layers": 2, "width": 16, "context": 8, "vocab_size": 300}
    steps = [{"step": step, "loss": 5.0 - step / 20, "gradient_norm": 1.0, "learning_rate": 0.1} for step in range(30)]
    _write_lines(folder / "metrics.jsonl", steps)
    (folder / "config.json").write_text(json.dumps({"recipe": recipe, "architecture": shape}))
    _write_lines(folder / "samples.jsonl", [{"step": 10, "text": "early words"}, {"step": 20, "text": _HOSTILE}])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "corpus"
    _write_training(folder / "pretrain")
    _write_lines(
        folder / "documents.jsonl", [{"id": "d7", "url": "http://a.example/7", "text": f"It says {_QUESTION}."}]
    )
    questions = [{"prompt": _QUESTION, "answer": "fox", "choices": ["fox", "dog's"]}, {"prompt": _HOSTILE}]
    _write_lines(folder / "benchmarks" / "quiz.jsonl", questions + [{"prompt": f"{n}"} for n in range(2, 30)])
    overlap_report(
        OverlapReportConfig(),
        documents=str(folder / "documents.jsonl"),
        benchmarks=[f"quiz:prompt={folder / 'benchmarks' / 'quiz.jsonl'}"],
        output=str(folder / "overlap-report"),
        options=RunOptions(),
    )
    figure = {"name": "accuracy", "value": 0.5, "low": None, "high": None, "unit": "", "examples": 30}
    sha256 = hashlib.sha256((folder / "benchmarks" / "quiz.jsonl").read_bytes()).hexdigest()
    result = {
        "task": "quiz", "title": "A quiz", "variant": "paper", "limit": None, "shots": 0, "shot_seed": 0,
        "metrics": [figure | {"columns": ["accuracy"]}],
        "files": [{"path": "quiz.jsonl", "role": "data", "sha256": sha256}],
    }  # fmt: skip
    rows = [_answer(number) for number in range(30)]
    rows[1] |= {"output": _HOSTILE, "accuracy": True}
    rows[2] |= {"cluster": "train:d7"}
    (folder / "evaluate" / "quiz").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "evaluate" / "quiz" / "examples-00000.parquet")
    (folder / "evaluate" / "results.json").write_text(json.dumps({"tasks": {"quiz": result}}))
    return folder


@pytest.fixture(scope="module")
def client(corpus: Path) -> TestClient:
    return open_client(str(corpus))


def _items(page: str) -> list[str]:
    return re.findall(r"<li>(.*?)</li>", page, re.DOTALL)


def test_the_training_is_shown_before_it_has_finished(client: TestClient) -> None:
    page = client.get("/model").text
    assert "tiny: 2 layers of width 16" in page
    assert "<strong>29</strong>" in page
    assert "of 40" in page
    assert page.count("<polyline") >= 2
    assert '<a class="row" href="/model?task=quiz">quiz</a>' in page


def test_samples_lead_to_their_passages_in_the_corpus(client: TestClient) -> None:
    page = client.get("/model").text
    latest, earlier = [item for item in _items(page) if "Step" in item]
    assert "Step 10" in earlier
    assert 'href="/trace?text=early+words"' in earlier
    assert r"&lt;img src=x onerror=alert(1)&gt;\x1b\u202e" in latest
    assert "\u202e" not in page


def test_answers_are_next_to_the_document_with_the_question(client: TestClient) -> None:
    page = client.get("/model?task=quiz").text
    first, second, third, *others = _items(page)
    assert _QUESTION in first
    assert "[&#34;fox&#34;, &#34;dog&#39;s&#34;]" in first
    assert "Answer of the model: wrong" in first
    assert "4 n-grams of quiz in" in first
    assert (
        '<a class="row" href="/document?id=d7&amp;url=http%3A%2F%2Fa.example%2F7#passage">http://a.example/7</a>'
        in first
    )
    assert f'href="/trace?text={_QUESTION.replace(" ", "+")}+fox"' in first
    assert "Answer of the model: right" in second
    assert "<img" not in second
    assert 'trained on: <a class="row" href="/document?id=d7">d7</a>' in third
    assert "/document" not in "".join(others)
    assert len(others) == 17


def test_right_and_wrong_answers_and_pages_are_in_the_url(client: TestClient) -> None:
    page = client.get("/model?task=quiz&right=no").text
    assert re.findall(r">(\w+ \(\d+\))</a>", page) == ["All (30)", "Right (1)", "Wrong (29)"]
    assert 'href="/model?task=quiz&amp;right=no" aria-current="true"' in page
    assert "quiz.jsonl:2 " not in page
    assert 'rel="next" href="/model?task=quiz&amp;right=no&amp;offset=20"' in page
    assert len(_items(client.get("/model?task=quiz&right=no&offset=20").text)) == 9
    assert len(_items(client.get("/model?task=quiz&right=yes").text)) == 1


def test_questions_of_another_file_are_not_shown(corpus: Path, tmp_path: Path) -> None:
    path = corpus / "benchmarks" / "quiz.jsonl"
    data = path.read_bytes()
    try:
        path.write_bytes(data.replace(b"quick", b"other"))
        page = open_client(str(corpus)).get("/model?task=quiz").text
    finally:
        path.write_bytes(data)
    assert "brown fox" not in html.unescape(page)
    assert "quiz.jsonl:1" in page


@pytest.mark.parametrize(("query", "named"), [("task=<b>", "quiz"), ("task=quiz&right=maybe", "right=maybe")])
def test_bad_parameters_are_named(client: TestClient, query: str, named: str) -> None:
    answer = client.get(f"/model?{query}")
    assert answer.status_code == 400
    assert named in answer.text
    assert "<b>" not in answer.text


@pytest.mark.parametrize("content", ["[]", "{}", '{"tasks": {"quiz": {}}}', '{"tasks": {"quiz": 3}}'])
def test_results_of_another_shape_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "webtext.toml").touch()
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate" / "results.json").write_text(content)
    answer = open_client(str(tmp_path)).get("/model")
    assert answer.status_code == 400
    assert "results.json: is not the results of an evaluation" in answer.text


def test_without_a_model_the_page_says_what_makes_one(tmp_path: Path) -> None:
    (tmp_path / "webtext.toml").touch()
    page = open_client(str(tmp_path)).get("/model").text
    assert "webtext pretrain" in page
    assert "webtext evaluate" in page
    (tmp_path / "documents.jsonl").write_text('{"text": "one two"}\n')
    answer = open_client([str(tmp_path / "documents.jsonl")]).get("/model")
    assert answer.status_code == 400
    assert "--corpus" in answer.text

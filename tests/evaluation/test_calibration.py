"""The confidence of answers: calibration error, accuracy of the most confident ones, and their page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from own_task import own_task, run_task
from small_model import write_model

from pipelines.evaluation.metrics import Figure, Metric, summarize, wilson
from pipelines.evaluation.task import Output
from pipelines.evaluation.tasks.generation import AnswerOptions, AnswerTask, Turn
from webtext_cli.main import main

_METRICS = (
    Metric("calibration_error", "calibration_error", "exact_match", "confidence", bins=4),
    Metric("accuracy_at_1_percent", "confident_share", "exact_match", "confidence"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "random")


def _figures(right: list[bool], confidence: list[float], clusters: list[str] | None = None) -> list[Figure]:
    columns = {"exact_match": np.array(right, np.float64), "confidence": np.array(confidence)}
    return summarize(_METRICS, columns, clusters or [str(number) for number in range(len(right))])


def test_the_calibration_error_by_hand() -> None:
    right = [False, False, True, False, True, True, True, True]
    confidence = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0]
    error, top = _figures(right, confidence)
    assert error["value"] == pytest.approx((0.15 + 0.15 + 0.45 + 0.1) / 4)
    assert [(point["x"], point["value"], point["examples"]) for point in error["points"]] == [
        (pytest.approx(0.15), 0.0, 2),
        (pytest.approx(0.35), 0.5, 2),
        (pytest.approx(0.55), 1.0, 2),
        (pytest.approx(0.9), 1.0, 2),
    ]
    assert (error["points"][1]["low"], error["points"][1]["high"]) == pytest.approx(wilson(1, 2))
    assert (top["value"], top["examples"]) == (1.0, 1)
    assert (top["points"][-1]["x"], top["points"][-1]["value"], top["points"][-1]["examples"]) == (1.0, 5 / 8, 8)
    # Fewer answers than bins: one in each.
    assert [point["examples"] for point in _figures(right[:3], confidence[:3])[0]["points"]] == [1, 1, 1]


def test_calibrated_answers_have_a_small_error_and_the_most_confident_ones_are_right() -> None:
    generator = np.random.default_rng(1)
    confidence = generator.random(3610)
    right = generator.random(3610) < confidence
    error, top = _figures(right.tolist(), confidence.tolist())
    assert error["value"] < 0.03
    assert error["low"] >= 0
    assert top["examples"] == 36  # 1% of the questions of NQ-open
    assert (top["low"], top["high"]) == pytest.approx(wilson(36 * top["value"], 36))
    first = [point["examples"] for point in top["points"][:3]]
    assert first == [36, 72, 180]
    # The same answers five times have the interval of as many examples as there are.
    clusters = [str(number) for number in range(3610)] * 5
    repeated = _figures(right.tolist() * 5, confidence.tolist() * 5, clusters)[1]
    assert (repeated["examples"], repeated["value"]) == (180, pytest.approx(top["value"], abs=0.03))
    assert repeated["high"] - repeated["low"] == pytest.approx(top["high"] - top["low"], abs=0.03)


def test_the_confidence_is_the_probability_of_what_was_written(tmp_path: Path, model: str) -> None:
    records = [{"question": f"what is {number}", "answer": "x"} for number in range(6)]
    _, examples = run_task(own_task(tmp_path, "answer", records, max_tokens=7), model, tmp_path / "out")
    for example in examples:
        assert example["confidence"] == pytest.approx(math.exp(sum(example["log_probs"][0])), rel=1e-6)


class _Words:
    """An encoder whose tokens are words, and the last one <|endoftext|>."""

    texts = (" Paris", ".", ".\n", "\n", " In", "<|endoftext|>")
    end_of_text = 5

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.texts[token] for token in tokens)


@pytest.mark.parametrize(
    ("tokens", "answer", "counted"),
    [
        ([0, 3], "Paris", 1),
        ([0, 1, 3], "Paris.", 2),
        ([0, 2], "Paris.", 2),  # the token ends the answer, and has its last character
        ([0, 5], "Paris", 1),
        ([3, 0, 3, 4], "Paris", 2),
        ([0, 0], "Paris Paris", 2),
        ([5], "", 1),
    ],
)
def test_the_end_of_an_answer_may_not_count(tokens: list[int], answer: str, counted: int) -> None:
    log_probs = [-0.5 * 2**place for place in range(len(tokens))]
    for count_end, size in ((True, len(tokens)), (False, counted)):
        task = AnswerTask(AnswerOptions(count_end=count_end), [], _Words(), None)  # type: ignore[arg-type]
        turn = Turn("", [answer], "", "")
        output, scores = task._measure(turn, [Output([log_probs], [], tokens, True)])
        assert output == answer
        assert scores["exact_match"]
        assert scores["confidence"] == pytest.approx(math.exp(sum(log_probs[:size])))


def test_the_page_and_the_results_have_the_calibration(tmp_path: Path, model: str) -> None:
    records = [{"question": f"what is <{number}>", "answer": ["x", "y"]} for number in range(40)]
    task = own_task(tmp_path, "answer", records, max_tokens=4, calibration_bins=5)
    output = tmp_path / "out"
    assert main(["evaluate", "--task", task, "--model", model, "--output", str(output), "-q", "--device", "cpu"]) == 0
    figures = json.loads((output / "own" / "results.json").read_text())["metrics"]
    assert [len(figure["points"]) for figure in figures] == [0, 0, 5, 22]
    assert figures[2]["points"][0].keys() == {"x", "value", "low", "high", "examples"}
    page = (output / "evaluation.html").read_text()
    assert "Reliability." in page
    assert "Risk and coverage." in page
    assert "The 30 most confident answers" in page
    table = page[page.index("The 30 most confident answers") :]
    shares = [float(part.partition("%")[0]) for part in table.split("</td><td>")[1:31]]
    assert shares == sorted(shares, reverse=True)
    assert table.count('<th scope="row">data.jsonl:') == 30

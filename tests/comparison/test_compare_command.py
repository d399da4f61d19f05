"""`webtext compare` on an invented language: results, what is kept and added, exclusion, interruptions."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_comparison import arguments, backwards, documents, run, write, write_task

from webtext_cli.main import main


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    write(folder / "good.jsonl", documents(1, 120))
    write(folder / "bad.jsonl", backwards(documents(2, 130)))
    write(folder / "news.jsonl", documents(3, 10))
    write_task(folder)
    return folder


def _finished(corpora: Path, output: Path, *options: object) -> dict[str, Any]:
    named = ("--text", f"news={corpora / 'news.jsonl'}", "--task", corpora / "endings.toml", *options)
    return run(output, corpora / "good.jsonl", corpora / "bad.jsonl", options=named)


@pytest.fixture(scope="module")
def finished(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    output = tmp_path_factory.mktemp("compared") / "out"
    return output, _finished(corpora, output, "--seeds", 2, "--workers", 2)


def _measure(content: dict[str, Any], name: str) -> dict[str, Any]:
    return next(measure for measure in content["measures"] if measure["name"] == name)


def test_the_language_is_better_than_its_words_spelled_backwards(finished: tuple[Path, dict[str, Any]]) -> None:
    output, content = finished
    assert [corpus["name"] for corpus in content["corpora"]] == ["good", "bad"]
    assert [corpus["documents"] for corpus in content["corpora"]] == [120, 130]
    assert {one["name"]: one["kind"] for one in content["sets"]} == {
        "held-out-good": "held-out", "held-out-bad": "held-out", "news": "text", "endings": "task",
    }  # fmt: skip
    for one in content["sets"]:
        assert one["used"] + one["excluded_in_all"] == one["examples"] <= 30
        assert max(one["excluded"].values()) <= one["excluded_in_all"] <= sum(one["excluded"].values())
    values = _measure(content, "news: bits per byte")["values"]
    assert len(values["good"]) == len(values["bad"]) == 2
    assert max(values["good"]) < min(values["bad"])
    assert {measure["name"] for measure in content["measures"] if not measure["decides"]} == {
        "held-out-good: bits per byte", "held-out-bad: bits per byte",
    }  # fmt: skip
    runs = content["runs"]
    assert [(run["corpus"], run["seed"]) for run in runs] == [("good", 0), ("bad", 0), ("good", 1), ("bad", 1)]
    assert len({run["training_seed"] for run in runs}) == 4
    assert all(run["curve"][0][0] == 0 and run["curve"][-1][1] < run["curve"][0][1] for run in runs)
    assert (output / "compare.html").read_text().startswith("<!")


def test_values_follow_from_the_answers_of_each_model(finished: tuple[Path, dict[str, Any]]) -> None:
    output, content = finished
    excluded = next(one for one in content["sets"] if one["name"] == "news")["excluded_in_all"]
    if excluded:
        pytest.skip("all examples are used in this check")
    for seed, value in enumerate(_measure(content, "news: bits per byte")["values"]["bad"]):
        folder = output / "evaluate" / "bad" / f"seed-{seed}" / "news"
        rows = pq.read_table(folder / "examples-00000.parquet")
        nats, units = (sum(rows.column(name).to_pylist()) for name in ("nats", "units"))
        assert value == pytest.approx(nats / math.log(2) / units, rel=1e-12)
        texts = pq.read_table(output / "texts" / "sets" / "news.parquet").column("text").to_pylist()
        assert units == sum(len(text.encode()) for text in texts)


def test_running_again_changes_nothing(corpora: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    output, content = finished
    paths = [output / "compare.json", *output.glob("models/*/*/model.safetensors"), *output.rglob("examples-*.parquet")]
    before = {path: path.read_bytes() for path in paths}
    times = {path: path.stat().st_mtime_ns for path in paths[1:]}
    assert _finished(corpora, output, "--seeds", 2, "--workers", 1) == content
    assert {path: path.read_bytes() for path in paths} == before
    assert {path: path.stat().st_mtime_ns for path in paths[1:]} == times


def _weights(output: Path) -> dict[str, str]:
    paths = sorted(output.glob("models/*/*/model.safetensors"))
    return {str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_more_seeds_are_added_to_the_models(corpora: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    output, content = finished
    before = _weights(output)
    more = _finished(corpora, output, "--seeds", 3, "--workers", 1)
    after = _weights(output)
    assert len(before) == 4
    assert len(after) == 6
    assert before.items() <= after.items()
    for measure in content["measures"]:
        for corpus, values in measure["values"].items():
            assert _measure(more, measure["name"])["values"][corpus][:2] == values
    # Fewer seeds compare the first ones, as before.
    assert _finished(corpora, output, "--seeds", 2, "--workers", 1) == content


def test_a_corpus_against_itself_has_other_models(corpora: Path, tmp_path: Path) -> None:
    good = corpora / "good.jsonl"
    options = ("--text", f"news={corpora / 'news.jsonl'}", "--seeds", 1, "--workers", 1, "--tokens", 1000)
    content = run(tmp_path / "out", f"one={good}", f"two={good}", options=options)
    # No set of documents that are held out of both: of a corpus and a part of it, they would favor the part.
    assert {one["kind"] for one in content["sets"]} == {"held-out", "text"}
    values = _measure(content, "news: bits per byte")["values"]
    assert values["one"] != values["two"]
    assert len({*_weights(tmp_path / "out").values()}) == 2


def test_changed_wrong_answers_are_evaluated_again(
    corpora: Path, finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    # The audit and its examples have the right answers only.
    output, content = finished
    task = write_task(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "endings.jsonl").read_text().splitlines()]
    for row in rows:
        row["options"][1 - row["gold"]] = "x"
    write(tmp_path / "endings.jsonl", rows)
    weights = _weights(output)
    changed = run(
        output, corpora / "good.jsonl", corpora / "bad.jsonl", options=("--task", task, "--seeds", 2, "--workers", 1)
    )
    name = "endings: margin"
    assert _measure(changed, name)["values"] != _measure(content, name)["values"]
    assert _weights(output) == weights
    assert _finished(corpora, output, "--seeds", 2, "--workers", 1) == content


def test_models_of_another_number_of_tokens_are_not_extended(
    corpora: Path, finished: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    output, _ = finished
    before = _weights(output)
    # With these, the recipes differ in nothing but the steps.
    same = ("--set", "warmup_steps=2", "--set", "eval_every=3", "--tokens", 9000, "--seeds", 2, "--workers", 1)
    assert main(arguments(output, corpora / "good.jsonl", corpora / "bad.jsonl", options=same)) == 1
    assert "config.json: the model was trained by another recipe (steps was 31, is now 35)" in capsys.readouterr().err
    assert _weights(output) == before


def test_examples_that_a_corpus_contains_are_excluded_for_all(corpora: Path, tmp_path: Path) -> None:
    contained = [json.loads(line) for line in (corpora / "good.jsonl").read_text().splitlines()[:20]]
    write(tmp_path / "known.jsonl", contained)
    write(tmp_path / "mixed.jsonl", contained[:12] + documents(9, 4))
    options = ("--seeds", 1, "--workers", 1, "--tokens", 1000)
    pair = (corpora / "good.jsonl", corpora / "bad.jsonl")
    content = run(tmp_path / "out", *pair, options=("--text", f"mixed={tmp_path / 'mixed.jsonl'}", *options))
    mixed = next(one for one in content["sets"] if one["name"] == "mixed")
    assert mixed["excluded"]["good"] > 0
    assert mixed["excluded"]["bad"] == 0
    # More than half are excluded, so what is left may be special, too.
    assert 0 < mixed["used"] < mixed["examples"] / 2
    assert not any(measure["decides"] for measure in content["measures"])
    assert content["summary"][0]["verdict"] == "undecided"


def test_the_plan_says_what_would_be_trained_and_writes_nothing(
    corpora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = (corpora / "good.jsonl", corpora / "bad.jsonl")
    assert main(arguments(tmp_path / "out", *pair, options=("--plan", "--json", "--seeds", 4, "--workers", 2))) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["models"], plan["models_at_once"]) == (8, 2)
    assert plan["tokens_per_run"] == plan["steps"] * 4 * 64 <= 8000
    # The embeddings, one layer of width 16 and the final norm; 6 FLOPs per parameter, and attention.
    assert plan["parameters"] == (400 + 64 + 2) * 16 + 12 * 16**2 + 13 * 16
    assert plan["flops"] == 8 * plan["tokens_per_run"] * (6 * plan["parameters"] + 12 * 16 * 64)
    assert plan["seconds"] == pytest.approx(4 * plan["seconds_per_model"])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow  # it starts processes three times
def test_a_killed_comparison_resumes_to_the_same_result(corpora: Path, tmp_path: Path) -> None:
    options = ("--text", f"news={corpora / 'news.jsonl'}", "--seeds", 1, "--workers", 2)
    pair = (corpora / "good.jsonl", corpora / "bad.jsonl")
    whole = run(tmp_path / "whole", *pair, options=options)
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "webtext_cli", *arguments(killed, *pair, options=options)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(killed.glob("models/*/*/checkpoints/step-*/state.json")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[1]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (killed / "compare.json").exists()
    assert run(killed, *pair, options=options) == whole


@pytest.mark.parametrize(
    ("corpora_arguments", "options", "code", "message"),
    [
        (["good.jsonl"], [], 2, "name at least two corpora"),
        (["x=good.jsonl", "x=bad.jsonl"], [], 2, "x: is the name of two of them; give each its own, such as one="),
        (["good.jsonl", "good.jsonl"], [], 2, "good: is the name of two of them"),
        (["good.jsonl", "missing.jsonl"], [], 1, "missing.jsonl: no such file or folder"),
        (["good.jsonl", "bad.jsonl"], ["--text", "news.jsonl"], 2, "--text news.jsonl: is not of the form NAME=PATH"),
        (["good.jsonl", "bad.jsonl"], ["--text", "held-out-bad=news.jsonl"], 2, "two sets are named held-out-bad"),
        (["good.jsonl", "bad.jsonl"], ["--text", "endings=news.jsonl", "--task", "endings.toml"], 2, "named endings"),
        (["good.jsonl", "mixed=bad.jsonl"], [], 2, "mixed: is the name of a verdict"),
        (["good.jsonl", "bad.jsonl"], ["--average-last", "40"], 2, "--average-last 40: exceeds the 31 steps"),
        (["good.jsonl", "bad.jsonl"], ["--task", "wikitext-2=news.jsonl"], 2, "is of kind perplexity; use --text"),
        (["good.jsonl", "bad.jsonl"], ["--tokens", "900000"], 2, "one epoch of the smallest corpus"),
        (["good.jsonl", "bad.jsonl"], ["--set", "steps=10"], 2, "--set steps: the steps follow from --tokens"),
        (["good.jsonl", "bad.jsonl"], ["--tokenizer", "bad.jsonl"], 1, "bad.jsonl: "),
        (["good.jsonl", "bad.jsonl"], ["--tokenizer", "x"], 2, "--vocab-size has no effect with --tokenizer"),
        (["good.jsonl", "tiny.jsonl"], [], 1, "tiny: no document with text"),
        (["good.jsonl", "bad.jsonl"], ["--set", "batch_size=4000"], 1, "fewer than a batch of 256,000"),
    ],
)
def test_wrong_inputs_are_named(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    corpora_arguments: list[str], options: list[str], code: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(corpora)
    write(corpora / "tiny.jsonl", [{"id": "a", "text": "one document"}])
    values = arguments(tmp_path / "out", *corpora_arguments, options=(*options, "--workers", 1))
    if "--tokenizer" in options and "x" not in options:
        at = values.index("--vocab-size")
        del values[at : at + 2]
    assert main(values) == code
    assert message in capsys.readouterr().err

"""What a fine-tuning reports: its page, the scores of the examples, and sweeps over seeds and checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from page_reading import Page
from small_task import QUICK, finetune_small, write_task
from training_run import contents

from pipelines.engine.run import RunOptions
from pipelines.errors import DamagedShardError, UsageError
from pipelines.evaluation.definitions import TASK_NAMES, find_task, read_task
from pipelines.finetuning.config import FineTuneConfig
from pipelines.finetuning.stage import finetune_sweep
from pipelines.progress import Silent
from webtext_cli.main import main

HOSTILE = "<script>alert(1)</script> \u202eevil \x1b[31m"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small task with a record in the middle of each file that cannot be used, and a hostile text."""
    folder = write_task(tmp_path_factory.mktemp("task"))
    for name in ("train", "dev"):
        path = folder / f"{name}.jsonl"
        lines = path.read_text().splitlines()
        lines[3:3] = [json.dumps({"text": "the cat", "label": -1}), json.dumps({"text": HOSTILE, "label": 1})]
        path.write_text("".join(line + "\n" for line in lines))
    with (folder / "animals.toml").open("a") as file:
        file.write('[published.accuracy]\nbest = { value = 90, origin = "a paper" }\n')
    return folder


@pytest.fixture(scope="module")
def tuned(trained: Path, task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An epoch, after which the model makes errors."""
    output = tmp_path_factory.mktemp("tuned") / "finetune"
    finetune_small(trained, task, output, "epochs=1")
    return output


def sweep(model: Path, task: Path, output: Path, progress: Silent | None = None, **values: Any) -> None:
    options = {"seeds": 1, "set": (*QUICK, "epochs=1"), **values}
    checkpoints = options.pop("checkpoints", False)
    finetune_sweep(
        FineTuneConfig(**options, device="cpu", threads=1, log_every=0),
        task=find_task(str(task / "animals.toml")), files=sorted(map(str, task.glob("*.jsonl"))),
        model=str(model), output=str(output), checkpoints=checkpoints,
        options=RunOptions(progress=progress or Silent()),
    )  # fmt: skip


def finetune_files(task: str, model: Path, folder: Path, suffix: str) -> None:
    """Fine-tune for an epoch on `train` and `dev` of a folder, with 8 examples each."""
    config = FineTuneConfig(set=("epochs=1", "batch_size=8"), device="cpu", log_every=0)
    files = [str(folder / f"{name}{suffix}") for name in ("train", "dev")]
    finetune_sweep(
        config, task=find_task(task), files=files, model=str(model), output=str(folder / "out"), options=RunOptions()
    )


def test_the_page_has_results_errors_and_the_training(tuned: Path) -> None:
    assert not (tuned / "training.html").exists()  # of which it is a part
    written = (tuned / "finetune.html").read_text()
    page = Page(written)
    for shown in ("Fine-tuning on animals", "accuracy", "Chance", "Labels and predictions", "Errors", "Held-out score"):
        assert shown in page.text
    assert "Reason Records no_label 2" in page.text
    assert "dev.jsonl:" in page.text
    assert "<script>alert" not in written
    assert "\u202e" not in written
    assert "\x1b" not in written


def test_the_confusion_matrix_and_the_errors_agree_with_the_examples(tuned: Path) -> None:
    text = Page((tuned / "finetune.html").read_text()).text
    rows = [row for row in pq.read_table(tuned / "examples-00000.parquet").to_pylist() if row["label"]]
    pairs = [(row["label"], row["predicted"]) for row in rows]
    labels = sorted({label for pair in pairs for label in pair})
    for label in {label for label, _ in pairs}:
        counts = " ".join(str(pairs.count((label, predicted))) for predicted in labels)
        assert f"{label} {counts}" in text
    wrong = [row for row in rows if not row["accuracy"]]
    assert text.count("dev.jsonl:") == min(20, len(wrong)) > 0
    assert max(wrong, key=lambda row: row["confidence"])["place"] in text


def test_records_are_the_examples_and_the_dropped_ones(trained: Path, task: Path, tuned: Path) -> None:
    summary = finetune_small(trained, task, tuned, "epochs=1")  # already complete
    assert (summary.records_in, summary.records_out) == (33 + 17 + 2, 33 + 17)
    assert summary.dropped == {"no_label": 2}


def test_examples_have_the_texts_and_scores_of_the_usable_records(task: Path, tuned: Path) -> None:
    rows = pq.read_table(tuned / "examples-00000.parquet").to_pylist()
    lines = (task / "dev.jsonl").read_text().splitlines()
    assert [row["place"] for row in rows] == [f"dev.jsonl:{line}" for line in range(1, 19) if line != 4]
    assert [row["text"] for row in rows[:3]] == [json.loads(line)["text"] for line in lines[:3]]
    figures = {one["name"]: one for one in json.loads((tuned / "results.json").read_text())["metrics"]}
    assert sum(row["accuracy"] for row in rows) / len(rows) == figures["accuracy"]["value"]
    assert figures["accuracy"]["chance"] == 9 / 17  # 8 cats, 8 dogs and the hostile one
    assert figures["matthews"]["chance"] == 0


def test_the_overlap_report_reads_the_examples_as_a_benchmark_with_scores(tuned: Path, tmp_path: Path) -> None:
    examples = tuned / "examples-00000.parquet"
    rows = pq.read_table(examples).to_pylist()
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows[:2]))
    arguments = ["overlap-report", str(tmp_path / "docs.jsonl"), "--benchmark", f"animals={examples}"]
    arguments += ["--scores", f"animals={examples}", "--ngram", "3", "-q"]
    assert main([*arguments, "--output", str(tmp_path / "report")]) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    scores = {row["metric"]: row for row in report["benchmarks"][0]["scores"]}
    assert set(scores) == {"accuracy", "nll", "confidence", "perplexity"}
    assert scores["accuracy"]["not_scored"] == 0
    assert scores["accuracy"]["overlapping"]["examples"] >= 2
    assert scores["accuracy"]["all"]["mean"] == pytest.approx(sum(row["accuracy"] for row in rows) / len(rows))


def test_the_texts_of_a_tsv_without_a_header_are_in_the_examples(trained: Path, tmp_path: Path) -> None:
    """CoLA's files, which the overlap report cannot read itself."""
    for name in ("train", "dev"):
        rows = [f"src\t{number % 2}\t\tthe cat sees {number}\n" for number in range(8)]
        (tmp_path / f"{name}.tsv").write_text("".join(rows))
    finetune_files("cola", trained, tmp_path, ".tsv")
    rows = pq.read_table(tmp_path / "out" / "examples-00000.parquet").to_pylist()
    assert [row["text"] for row in rows] == [f"the cat sees {number}" for number in range(8)]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {figure["name"]: figure["chance"] for figure in results["metrics"]} == {"matthews": 0, "accuracy": 0.5}


def test_numbers_have_squared_errors_and_a_plot(trained: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (task / "animals.toml").write_text('[finetune]\ntext = ["text"]\nmetrics = ["pearson"]\n')
    finetune_small(trained, task, tmp_path / "out", "epochs=1")
    rows = pq.read_table(tmp_path / "out" / "examples-00000.parquet").to_pylist()
    assert {row["label"] for row in rows} == {"0", "1"}
    assert all(row["squared_error"] == pytest.approx((row["outputs"][0] - float(row["label"])) ** 2) for row in rows)
    text = Page((tmp_path / "out" / "finetune.html").read_text()).text
    assert "equal to the label" in text
    assert "Squared error" in text


def test_candidates_are_listed_below_their_question(trained: Path, tmp_path: Path) -> None:
    row = {"article": "the cat", "question": "who", "options": ["the dog", "likes"], "answer": "A"}
    for name in ("train", "dev"):
        lines = [json.dumps({**row, "answer": "AB"[number % 2]}) + "\n" for number in range(8)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    finetune_files("race", trained, tmp_path, ".jsonl")
    assert json.loads((tmp_path / "out" / "results.json").read_text())["metrics"][0]["chance"] == 0.5
    [text] = set(pq.read_table(tmp_path / "out" / "examples-00000.parquet")["text"].to_pylist())
    assert text == "the cat\nwho\nthe dog\nlikes"
    text = Page((tmp_path / "out" / "finetune.html").read_text()).text
    assert "the dog likes" in text  # one candidate per line
    assert "59 GPT-1, table 3" in text


def test_every_task_has_published_figures_of_its_first_metric() -> None:
    for task in map(read_task, TASK_NAMES):
        if task.finetune:
            metric, parts = task.finetune["metrics"].value[0], task.finetune.get("parts")
            figures = task.published[f"{parts.value[0]} {metric}" if parts else metric]
            assert 50 < figures["GPT-1"].value < 95 or task.name == "cola"
            assert all(figure.origin for figure in figures.values())


def test_checkpoints_are_scored_from_chance_to_the_best_published_figure(
    trained: Path, task: Path, tmp_path: Path
) -> None:
    sweep(trained, task, tmp_path, checkpoints=True, seeds=2)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["seeds"] == [0, 1]
    rows = [row for row in results["metrics"] if row["name"] == "accuracy"]
    assert [row["step"] for row in rows] == [4, 6]
    for row in rows:
        values = [
            json.loads((tmp_path / f"step-{row['step']}" / f"seed-{seed}" / "results.json").read_text())["metrics"][0]
            for seed in (0, 1)
        ]
        assert row["values"] == [figure["value"] for figure in values]
        assert row["chance"] == 9 / 17
        assert row["scaled"] == pytest.approx([(value - 9 / 17) / (0.9 - 9 / 17) for value in row["values"]])
    assert all(row["scaled"] is None for row in results["metrics"] if row["name"] == "matthews")
    page = Page((tmp_path / "finetune.html").read_text())
    assert "Against training steps." in page.text
    assert "90 a paper" in page.text


class _Stops(Silent):
    """Interrupts when a fine-tuning from the second checkpoint reports progress; keeps the notes."""

    def __init__(self, output: Path) -> None:
        self.output, self.notes = output, list[str]()

    def advance(self, units: int) -> None:
        if (self.output / "step-6").exists():
            raise KeyboardInterrupt

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_an_interrupted_sweep_resumes_without_repeating_what_is_complete(
    trained: Path, task: Path, tmp_path: Path
) -> None:
    sweep(trained, task, tmp_path / "whole", checkpoints=True)
    stops = _Stops(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        sweep(trained, task, tmp_path / "out", stops, checkpoints=True)
    assert not (tmp_path / "out" / "results.json").exists()
    first = (tmp_path / "out" / "step-4" / "model.safetensors").stat().st_mtime_ns
    resumed = _Stops(tmp_path / "none")
    sweep(trained, task, tmp_path / "out", resumed, checkpoints=True)
    assert (tmp_path / "out" / "step-4" / "model.safetensors").stat().st_mtime_ns == first
    assert sum("already complete" in note for note in resumed.notes) == 1
    for step in ("step-4", "step-6"):
        assert contents(tmp_path / "out" / step) == contents(tmp_path / "whole" / step)


@pytest.mark.slow
def test_a_killed_sweep_resumes(trained: Path, task: Path, tmp_path: Path) -> None:
    """Killed when the first of two runs is complete, wherever the second one is then."""
    files = f"{task / 'animals.toml'}={task / 'train.jsonl'},{task / 'dev.jsonl'}"
    sets = [word for value in (*QUICK, "epochs=1") for word in ("--set", value)]
    command = [sys.executable, "-m", "webtext_cli", "finetune", "--model", str(trained), "--task", files, *sets]
    command += ["--device", "cpu", "--threads", "1", "--seeds", "2", "--output", str(tmp_path / "out"), "--json"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not (tmp_path / "out" / "seed-1").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    assert finished.stderr.count("already complete") == 1
    assert len(json.loads(finished.stdout)["metrics"][0]["values"]) == 2


def test_sweeps_that_cannot_work_are_refused(trained: Path, task: Path, tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--checkpoints: --from-scratch transfers nothing"):
        sweep(trained, task, tmp_path, checkpoints=True, from_scratch=True)
    with pytest.raises(UsageError, match="contains a single fine-tuning; choose another --output"):
        sweep(trained, task, tuned, checkpoints=True)


def test_a_damaged_checkpoint_is_refused(trained: Path, task: Path, tmp_path: Path) -> None:
    copy = tmp_path / "pretrain"
    subprocess.run(["cp", "-r", str(trained), str(copy)], check=True)
    path = copy / "checkpoints" / "step-0000004" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedShardError, match=r"step-0000004.*delete .*step-0000004 to leave it out"):
        sweep(copy, task, tmp_path / "out", checkpoints=True)

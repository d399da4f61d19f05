"""The parts of a comparison: the recipe, seeds, averages, GPUs, and the progress of a stage inside a task."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines import progress
from pipelines.comparison.config import CompareConfig
from pipelines.comparison.corpora import open_corpora, open_texts
from pipelines.comparison.examples import ExampleSet, read_texts, with_held_out
from pipelines.comparison.jobs import Job, plan_recipe
from pipelines.comparison.measures import read_scores
from pipelines.comparison.statistics import Measure, Scores, compare_runs
from pipelines.engine.run import RunOptions
from pipelines.engine.tasks import SerialExecutor
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.definitions import TaskInput, read_task
from pipelines.model import device
from pipelines.model.io.averaging import average_checkpoints
from pipelines.model.io.tensor_files import read_tensors, write_tensors
from pipelines.records import shards
from pipelines.records.schemas import make_schema
from pipelines.storage import json_bytes
from webtext_cli.commands.compare import print_comparison


def _recipe(tokens: int | None = None, smallest: int = 10**9, values: tuple[str, ...] = ()) -> Any:
    recipe, overrides = plan_recipe(CompareConfig(tokens=tokens, set=values), "tiny", {"a": 10**10, "b": smallest})
    assert overrides[: len(values)] == values
    return recipe


def test_the_schedule_keeps_its_shares() -> None:
    assert (_recipe().steps, _recipe().warmup_steps) == (1200, 60)
    short = _recipe(tokens=512 * 300)
    assert (short.steps, short.warmup_steps, short.eval_every) == (300, 15, 30)
    assert _recipe(tokens=512 * 300, values=("warmup_steps=7",)).warmup_steps == 7
    assert _recipe(tokens=512).warmup_steps == 0


def test_a_model_sees_no_token_of_the_smallest_corpus_twice() -> None:
    blocks = 4 * 10
    assert _recipe(smallest=128 * blocks + 1).steps == 10
    assert _recipe(smallest=128 * blocks).steps == 9
    with pytest.raises(UsageError, match=r"from 512 .* to 5,120 .*smallest corpus, b"):
        _recipe(tokens=5632, smallest=128 * blocks + 1)
    with pytest.raises(InputError, match="b: has 400 training tokens, fewer than a batch of 512"):
        _recipe(smallest=400)


def test_seeds_differ_by_number_and_corpus() -> None:
    seeds = {Job(corpus, seed).training_seed for corpus in ("a", "b", "ab") for seed in range(50)}
    assert len(seeds) == 150
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_default_names_are_the_parts_of_paths_that_differ(tmp_path: Path) -> None:
    for name in ("one/filter", "two/filter", "two/extract"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.txt").write_text("some text")
    config = CompareConfig()

    def names(*paths: str) -> list[str]:
        return [corpus.name for corpus in open_corpora(paths, config)]

    one, two, other = (str(tmp_path / name) for name in ("one/filter", "two/filter", "two/extract"))
    assert names(two, other) == ["filter", "extract"]
    assert names(one, two) == ["one-filter", "two-filter"]
    assert names(one, f"mine={two}") == ["filter", "mine"]
    (tmp_path / ".new.txt").write_text("some text")
    assert names(one, str(tmp_path / ".new.txt")) == ["filter", "new"]
    (tmp_path / "a=b").mkdir()
    (tmp_path / "a=b" / "x.txt").write_text("some text")
    assert names(one, str(tmp_path / "a=b")) == ["filter", "a_b"]


def test_the_perplexity_of_a_task_is_compared_by_its_logarithm(tmp_path: Path) -> None:
    folder = str(tmp_path / "evaluate" / "a" / "seed-0" / "words")
    figure = {"name": "perplexity", "kind": "perplexity", "unit": "word", "columns": ["nll", "words"]}
    shards.write_file(folder, "results.json", json_bytes({"metrics": [figure]}))
    with shards.write_shard(folder, "examples-00000.parquet", make_schema(nll="float64", words="int64")) as shard:
        for nll in (1.0, 3.0, 50.0):
            shard.write({"nll": nll, "words": 1})
    definition = read_task("lambada")
    one = ExampleSet("words", "task", TaskInput(replace(definition, name="words"), "paper", ()), [""] * 3, [*"abc"])
    [scores] = read_scores(one, [Job("a", 0)], str(tmp_path), np.array([True, True, False]))
    assert (scores.measure.name, scores.measure.unit) == ("words: log perplexity", "nats per word")
    assert scores.values("a").tolist() == [2.0]
    assert not scores.measure.higher_is_better


def test_pieces_of_near_duplicates_have_one_cluster(tmp_path: Path) -> None:
    text = "every word is there. " * 20
    rows = [{"id": str(n), "text": text + str(n), "cluster": "c" if n < 2 else str(n)} for n in range(4)]
    rows.append({"id": "blank", "text": "\n \n", "cluster": "blank"})
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows * 9))
    config, options = CompareConfig(held_out=0.4, limit=50), RunOptions()
    corpora, texts = open_corpora([f"{p.stem}={p}" for p in paths], config), open_texts([f"t={paths[0]}"], config)
    read_texts(config, corpora, texts, 32, str(tmp_path / "out"), options)
    written = list(shards.read_rows(str(tmp_path / "out" / "sets" / "t.parquet")))
    assert {len(row["text"]) <= 128 and not row["text"].isspace() for row in written} == {True}
    assert len({row["cluster"] for row in written}) == 3


@pytest.mark.parametrize(
    ("decides", "runs", "expected"), [(False, 3, "does not decide"), (True, 1, "no interval"), (True, 3, "a")]
)
def test_only_what_was_tested_has_a_verdict_on_the_terminal(
    capsys: pytest.CaptureFixture[str], decides: bool, runs: int, expected: str
) -> None:
    values = {"a": [1.0, 1.01, 1.02][:runs], "b": [2.0, 2.01, 2.02][:runs]}
    measure = Measure("news: bits", "news", "bits_per_byte", "bits per byte", False, decides)
    rows = compare_runs([Scores(measure, {key: np.array(one)[:, None] for key, one in values.items()}, np.ones(1))])
    print_comparison({"measures": [vars(measure) | {"values": values}], "comparisons": rows, "summary": []})
    line = next(line for line in capsys.readouterr().out.splitlines() if "news: bits" in line)
    assert line.rstrip().endswith(f" {expected}")
    assert "not distinguishable" not in line


def test_of_a_large_corpus_fewer_documents_are_held_out(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in ("small", "large")]
    for path, size in zip(paths, (1_000_000, 3_000_000), strict=True):
        path.write_text("word " * (size // 5))
    config = CompareConfig(limit=10)
    documents = open_corpora([str(path) for path in paths], config)
    assert with_held_out(config, documents, context=128).held_out == 0.02  # 4 * 10 * 512 of 900,000 estimated bytes
    assert with_held_out(config, documents, context=1024).held_out == 0.05
    assert with_held_out(CompareConfig(held_out=0.3), documents, context=128).held_out == 0.3


def test_weights_are_averaged_over_the_last_checkpoints(tmp_path: Path) -> None:
    training, output = str(tmp_path / "training"), str(tmp_path / "average")
    for name in ("config.json", "tokenizer.json"):
        shards.write_file(training, name, b"{}")
    for step in (10, 20, 30):
        folder = f"{training}/checkpoints/step-{step:07d}"
        file = write_tensors(folder, "model.safetensors", {"w": torch.tensor([float(step), 1.0])})
        shards.write_file(folder, "state.json", json_bytes({"step": step, "files": [vars(file)]}))
    average_checkpoints(training, 2, output)
    assert read_tensors(f"{output}/model.safetensors")["w"].tolist() == [25.0, 1.0]
    with pytest.raises(InputError, match="has 3 checkpoints, an average of 4 was requested"):
        average_checkpoints(training, 4, output)


@pytest.mark.parametrize(("visible", "expected"), [(None, ["1", "2", "0", "1"]), ("5,6,7", ["6", "7", "5", "6"])])
def test_each_worker_process_gets_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    given = []
    for number in (1, 2, 3, 4):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(multiprocessing.current_process(), "_name", f"SpawnProcess-{number}")
        device.use_own_gpu()
        given.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert given == expected
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(multiprocessing.current_process(), "_name", "MainProcess")
    device.use_own_gpu()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def _task_with_stage(units: int) -> None:
    reported = progress.OfTask(10)
    for _ in SerialExecutor().map(lambda item: progress.advance(item), [units], None, reported.advance, str):
        pass
    reported.complete()


def test_progress_of_a_stage_inside_a_task_is_that_of_the_task() -> None:
    units: list[int] = []
    for _ in SerialExecutor().map(_task_with_stage, [4, 30, 0], None, units.append, str):
        pass
    assert sum(units) == 30
    assert units[:2] == [4, 6]

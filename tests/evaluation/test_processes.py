"""Two processes that torchrun starts give the result of one, also if one of them began it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_model import write_model

from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.evaluation import stage
from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.definitions import parse_tasks
from pipelines.evaluation.scoring import Scorer
from pipelines.evaluation.stage import build_task, evaluate
from pipelines.evaluation.task import Encoder, ModelFacts
from pipelines.model.io.model_folder import open_model
from pipelines.model.training.parallel import World

# Runs the command twice in the same processes, since most of their time would be imports.
_PROGRAM = """
import sys, torch
from pipelines.evaluation import stage
from pipelines.model.training.parallel import process_group, torchrun_world
from two_ranks import run_ranks
from webtext_cli.main import main

def evaluate():
    stage._PART_TOKENS = 100
    torch.set_num_threads(1)
    with process_group(torchrun_world(), torch.device("cpu")):
        codes = [main(sys.argv[1:]) for _ in range(2)]
    assert codes == [0, 0]

run_ranks(evaluate)
"""


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "lambada" / "examples-00000.parquet").to_pylist()
    return rows


@pytest.mark.parametrize("launcher", ["forks", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_two_processes_share_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
    monkeypatch.setattr(stage, "_PART_TOKENS", 100)
    model = write_model(tmp_path / "model")
    texts = [f"passage {number} ends with word{number % 4}" for number in range(19)]
    (tmp_path / "lambada.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    task = f"lambada={tmp_path / 'lambada.jsonl'}"
    arguments: dict[str, Any] = {"tasks": parse_tasks([task], "paper"), "model": model}
    evaluate(EvaluateConfig(), **arguments, output=str(tmp_path / "alone"), options=RunOptions())
    # One process answers the first parts, and is stopped.
    calls: list[int] = []
    score = Scorer.score

    def stopping(self: Scorer, requests: list[Any]) -> Any:
        calls.append(len(requests))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(self, requests)

    with monkeypatch.context() as patched:
        patched.setattr(Scorer, "score", stopping)
        with pytest.raises(KeyboardInterrupt):
            evaluate(EvaluateConfig(), **arguments, output=str(tmp_path / "shared"), options=RunOptions())
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch = [sys.executable, *(torchrun if launcher == "torchrun" else []), str(program)]
    command = ["evaluate", "--task", task, "--model", model, "--device", "cpu", "--output", str(tmp_path / "shared")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run([*launch, *command], env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.count("lambada: perplexity per token") == 2
    assert ran.stderr.index("resuming; 2 of ") < ran.stderr.index("already complete")
    for one, two in zip(_rows(tmp_path / "alone"), _rows(tmp_path / "shared"), strict=True):
        assert one["nll"] == pytest.approx(two["nll"], abs=1e-5)
        assert (one["place"], one["prompt"], one["accuracy"]) == (two["place"], two["prompt"], two["accuracy"])


def test_another_model_than_that_of_rank_0_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `pretrain` may write a checkpoint while the processes start.
    class Other(World):
        def broadcast(self, value: Any) -> Any:
            return stage._Work(str(tmp_path), [], run._prompts, "another model")

    trained = open_model(write_model(tmp_path / "model"))
    encoder = Encoder(trained.tokenizer_json, ModelFacts.of(trained))
    (tmp_path / "lambada.jsonl").write_text('{"text": "two words"}\n')
    [task] = parse_tasks([f"lambada={tmp_path / 'lambada.jsonl'}"], "paper")
    run = stage.TaskRun(EvaluateConfig(), task, build_task(task, encoder, None), None, Other(rank=1, size=2))
    with pytest.raises(InputError, match=r"rank 1: prompts or model differ"):
        run.run_worker_rank()

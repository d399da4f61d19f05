"""Two processes against one: the same losses, also after a change of their number."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from token_folder import encode, write_token_folder
from tokenizers import Tokenizer
from two_processes import Stops, config

from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.model.training.checkpoint import find_checkpoints
from pipelines.model.training.job import TrainingJob, architecture_of
from pipelines.model.training.parallel import World, torchrun_world
from pipelines.model.training.recipe import TrainingOptions, make_recipe
from pipelines.stages.pretrain.stage import pretrain

_HERE = Path(__file__).parent
# Folder -> how two processes share the model.
RUNS = {"ddp": "ddp", "fsdp": "fsdp", "resumed": "ddp", "resumed-fsdp": "fsdp"}


@pytest.fixture(scope="module")
def mixtures(
    tokens: str, documents: list[str], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[str]]:
    """The sources up to a step: other shares and another source begin after 6."""
    texts, folder = encode(tokenizer, documents[::2]), tmp_path_factory.mktemp("books")
    books, code = (
        write_token_folder(folder / name, [texts[start:]], [texts[:start]], tokenizer)
        for name, start in (("books", 90), ("code", 50))
    )
    return {6: [f"web={tokens}:3", f"books={books}:1"], 8: [f"web={tokens}:1", f"books={books}:0", f"code={code}:1"]}


@pytest.fixture(scope="module", params=["forks", pytest.param("torchrun", marks=pytest.mark.slow)])
def runs(
    tokens: str,
    mixtures: dict[int, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Path:
    """The folders of one process alone, and of two; `resumed...` were begun by one and finished by two."""
    folder = tmp_path_factory.mktemp("runs")
    pretrain(config(), tokens=tokens, output=str(folder / "alone"), options=RunOptions())
    for name in RUNS:
        if name.startswith("resumed"):
            stopped = RunOptions(progress=Stops(3 * 8 * 16))
            with pytest.raises(KeyboardInterrupt):
                pretrain(config(), tokens=tokens, output=str(folder / name), options=stopped)
            assert [checkpoint.step for checkpoint in find_checkpoints(str(folder / name))] == [2]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher = torchrun if request.param == "torchrun" else []
    arguments = [f"{folder / name}:{parallel}:6" for name, parallel in RUNS.items()]
    arguments += [f"{folder / 'extended'}:fsdp:{steps}" for steps in (6, 8)]
    arguments += [f"{folder / 'mixed'}:ddp:{steps}:{json.dumps(mix)}" for steps, mix in mixtures.items()]
    paths = [str(_HERE), str(_HERE.parent), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, *launcher, str(_HERE / "two_processes.py"), tokens, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return folder


def _metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_give_the_result_of_one(runs: Path, name: str) -> None:
    alone, together = _metrics(runs / "alone"), _metrics(runs / name)
    assert [row.keys() for row in alone] == [row.keys() for row in together]
    for own, reference in zip(alone, together, strict=True):
        # Dropout is on, so the masks were the same too.
        assert own == pytest.approx(reference, rel=1e-4)
    weights = [safetensors.numpy.load_file(runs / folder / "model.safetensors") for folder in ("alone", name)]
    assert weights[0].keys() == weights[1].keys()
    for key, weight in weights[0].items():
        assert weight == pytest.approx(weights[1][key], abs=2e-4)


@pytest.mark.parametrize("name", RUNS)
def test_one_process_resumes_the_checkpoint_of_two(runs: Path, name: str, tokens: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        pretrain(config(), tokens=tokens, output=str(output), options=RunOptions(progress=Stops(1)))
    (output / "checkpoints").mkdir()
    last = find_checkpoints(str(runs / name))[0]
    assert last.step == 4
    (output / "checkpoints" / "step-0000004").symlink_to(last.path)
    pretrain(config(), tokens=tokens, output=str(output), options=RunOptions())
    for own, reference in zip(_metrics(runs / "alone"), _metrics(output), strict=True):
        assert own == pytest.approx(reference, rel=1e-4)


def test_two_processes_extend_a_training_as_one_does(runs: Path, tokens: str, tmp_path: Path) -> None:
    for steps in (6, 8):
        pretrain(config(steps=steps), tokens=tokens, output=str(tmp_path / "out"), options=RunOptions())
    alone, together = _metrics(tmp_path / "out"), _metrics(runs / "extended")
    assert [row["step"] for row in together] == list(range(9))
    for own, reference in zip(alone, together, strict=True):
        assert own == pytest.approx(reference, rel=1e-4)


def test_two_processes_read_a_mixture_as_one_does(runs: Path, mixtures: dict[int, list[str]], tmp_path: Path) -> None:
    for steps, mix in mixtures.items():
        pretrain(config(steps=steps), tokens=mix, output=str(tmp_path / "out"), options=RunOptions())
    alone, together = _metrics(tmp_path / "out"), _metrics(runs / "mixed")
    assert [row["step"] for row in together] == list(range(9))
    assert {name for row in together for name in row} >= {"held_out_loss.books", "held_out_loss.code"}
    for own, reference in zip(alone, together, strict=True):
        assert own == pytest.approx(reference, rel=1e-4)
    manifests = [(folder / "manifest.json").read_text() for folder in (runs / "mixed", tmp_path / "out")]
    first, second = ([json.loads(text)[key] for key in ("config", "inputs")] for text in manifests)
    assert first == second


def test_the_log_of_two_processes_is_written_once(runs: Path) -> None:
    timing = [json.loads(line) for line in (runs / "ddp" / "timing.jsonl").read_text().splitlines()]
    assert [row["step"] for row in timing] == [1, 2, 3, 4, 5, 6]
    assert b"<svg" in (runs / "fsdp" / "training.html").read_bytes()


@pytest.mark.parametrize(
    ("batch_size", "micro_batch", "size", "way_out"),
    [(8, 3, 2, "use --set micro_batch=2"), (4, 4, 2, "use --set micro_batch=2"), (2, 1, 3, "fewer processes")],
)
def test_an_uneven_batch_is_refused(batch_size: int, micro_batch: int, size: int, way_out: str) -> None:
    with pytest.raises(UsageError, match=way_out):
        World(0, size).check_batch(batch_size, micro_batch)


def test_large_models_are_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_sharded(parallel: str, preset: str, world: World) -> bool:
        values: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(TrainingJob))
        options, recipe = TrainingOptions(parallel=parallel), make_recipe(preset)
        values["architecture"] = architecture_of(recipe, 50_257)
        return TrainingJob(**{**values, "options": options, "recipe": recipe, "world": world}).is_sharded

    two = World(0, 2)
    assert is_sharded("auto", "gpt2-xl", two)
    assert not is_sharded("auto", "gpt2-large", two)
    assert not is_sharded("fsdp", "gpt2-xl", World())
    assert torchrun_world() == World()
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert torchrun_world() == World(3, 8, 1)

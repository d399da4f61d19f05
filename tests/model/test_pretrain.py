"""Training: it learns, it is reproducible, and what cannot be trained is refused."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from small_training import train_small
from test_gpt2 import numpy_logits
from token_folder import encode, write_token_folder
from tokenizers import Tokenizer
from training_run import BATCH_TOKENS, FILES, StopsAtStep, contents, metrics

from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError, WebtextError


def test_the_folder_has_the_files_of_the_manifest(trained: Path) -> None:
    manifest = read_manifest(str(trained))
    assert {file.name for file in manifest.files} == FILES
    assert (manifest.records_in, manifest.records_out) == (24, 24)  # 6 steps of 4 blocks
    assert manifest.counts["tokens"] == 6 * 4 * 16
    names = {path.name for path in trained.iterdir()}
    assert names == {*FILES, "manifest.json", "timing.jsonl", "training.html", "checkpoints", ".lock"}


def test_metrics_of_every_step(trained: Path) -> None:
    rows = metrics(trained)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows if "held_out_loss" in row] == [0, 3, 6]
    assert rows[0]["held_out_loss"] == pytest.approx(math.log(300), abs=0.1)
    assert rows[2].keys() == {"step", "loss", "learning_rate", "gradient_norm"}
    falling = [0.005 * (1 + math.cos(math.pi * progress)) for progress in (0.25, 0.5, 0.75)]
    assert [row["learning_rate"] for row in rows[1:6]] == pytest.approx([0.005, 0.01, *falling])
    assert rows[6]["learning_rate"] == 0


def test_timing_is_not_in_the_manifest(trained: Path) -> None:
    rows = [json.loads(line) for line in (trained / "timing.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(row["seconds"] > 0 and row["tokens_per_second"] > 0 for row in rows)


def test_training_lowers_the_loss(tokens: str, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "out", "steps=60", "eval_every=60", "dropout=0", "weight_decay=0")
    rows = metrics(tmp_path / "out")
    # The words of the corpus are drawn evenly from 22: about 3.1 nats a word is the least there is to reach.
    assert rows[-1]["held_out_loss"] < 3.6 < 5.5 < rows[0]["held_out_loss"]


def test_the_same_command_gives_the_same_bytes(tokens: str, trained: Path, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(trained)


def test_gradients_of_micro_batches_add_up(tokens: str, tmp_path: Path) -> None:
    losses = []
    for micro_batch in (1, 3, 4):
        output = tmp_path / str(micro_batch)
        train_small(tokens, output, f"micro_batch={micro_batch}", "dropout=0")
        losses.append([[row["loss"], row["gradient_norm"]] for row in metrics(output)[1:]])
    np.testing.assert_allclose(losses[0], losses[2], rtol=1e-4)
    np.testing.assert_allclose(losses[1], losses[2], rtol=1e-4)


def test_dropout_and_the_seed_matter(tokens: str, trained: Path, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "no-dropout", "dropout=0")
    train_small(tokens, tmp_path / "seed", seed=1)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (trained, tmp_path / "no-dropout")]
    weights.append((tmp_path / "seed" / "model.safetensors").read_bytes())
    assert len(set(weights)) == 3


def test_the_last_held_out_loss_covers_every_token(
    tokens: str, trained: Path, tokenizer: Tokenizer, documents: list[str]
) -> None:
    weights = {
        name: value.astype(np.float64)
        for name, value in safetensors.numpy.load_file(trained / "model.safetensors").items()
    }
    ids = np.array(encode(tokenizer, documents[36:]))
    nats = 0.0
    for start in range(0, len(ids) - 1, 16):
        block = ids[start : start + 17]
        logits = numpy_logits(weights, 2, 2, block[:-1])
        chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        nats -= np.log(chances[np.arange(len(block) - 1), block[1:]]).sum()
    last = metrics(trained)[-1]
    assert last["held_out_tokens"] == len(ids) - 1
    assert last["held_out_loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    size_bytes = len("".join(documents[36:]).encode()) - len(tokenizer.decode([ids[0]]).encode())
    assert last["held_out_bits_per_byte"] == pytest.approx(nats / math.log(2) / size_bytes, rel=1e-5)


def test_the_time_left_includes_the_evaluations(tokens: str, tmp_path: Path) -> None:
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", "eval_blocks=0", options=RunOptions(progress=progress), log_every=1)
    held_out = metrics(tmp_path / "out")[-1]["held_out_tokens"]
    announced = [note for note in progress.notes if "evaluating on all" in note]
    assert announced == [f"step {step}: evaluating on all {held_out:,} held-out tokens" for step in (0, 3, 6)]
    # A forward pass is a third of the work of a step.
    assert progress.total == 6 * BATCH_TOKENS + 3 * held_out // 3
    assert progress.trained == 6 * BATCH_TOKENS
    assert progress.advanced > 0.9 * progress.total
    timing = [json.loads(line)["seconds"] for line in (tmp_path / "out" / "timing.jsonl").read_text().splitlines()]
    left = next(float(note.split()[-3]) for note in progress.notes if note.startswith("step 6 of 6"))
    assert left == pytest.approx(statistics.median(timing) * held_out / 3 / BATCH_TOKENS, abs=0.06)


def test_a_held_out_split_shorter_than_a_block_is_measured(
    tmp_path: Path, tokenizer: Tokenizer, documents: list[str]
) -> None:
    folder = write_token_folder(tmp_path / "tokenize", [encode(tokenizer, documents)], [[5, 6, 7, 299]], tokenizer)
    progress = StopsAtStep()
    train_small(folder, tmp_path / "out", options=RunOptions(progress=progress))
    assert any("the held-out split has 4 tokens, less than one block of 16" in note for note in progress.notes)
    assert [row["held_out_tokens"] for row in metrics(tmp_path / "out") if "held_out_loss" in row] == [3, 3, 3]


def test_without_held_out_tokens_there_is_a_note_and_no_loss(
    tmp_path: Path, tokenizer: Tokenizer, documents: list[str]
) -> None:
    folder = write_token_folder(tmp_path / "tokenize", [encode(tokenizer, documents)], [], tokenizer)
    progress = StopsAtStep()
    summary = train_small(folder, tmp_path / "out", options=RunOptions(progress=progress))
    assert any("no held-out tokens" in note for note in progress.notes)
    assert "held_out_loss" not in summary.extra
    assert len(metrics(tmp_path / "out")) == 7


def test_too_little_text_for_a_batch_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = write_token_folder(tmp_path / "tokenize", [[1] * 64], [], tokenizer)
    message = r"the train split has 64 tokens, 3 blocks of 16, fewer than one batch of 4; use more text, or a smaller"
    with pytest.raises(InputError, match=message):
        train_small(folder, tmp_path / "out")


def test_a_diverged_loss_stops_the_run(tokens: str, tmp_path: Path) -> None:
    message = r"step \d+: the (loss|gradient norm) is (nan|inf); training stops; the last checkpoint.*spikes/step-"
    with pytest.raises(WebtextError, match=message):
        train_small(tokens, tmp_path / "out", "learning_rate=1e30", "warmup_steps=0", checkpoint_every=1)
    assert all(math.isfinite(row["loss"]) for row in metrics(tmp_path / "out")[1:])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA GPU is available")
def test_a_missing_gpu_is_refused(tokens: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--device cuda: torch finds no CUDA GPU"):
        train_small(tokens, tmp_path / "out", device="cuda")


@pytest.mark.parametrize(
    "failure",
    [
        # As torch says it on a CPU, under Linux and under Windows.
        RuntimeError("[enforce fail at alloc_cpu.cpp:116] DefaultCPUAllocator: can't allocate memory: you ..."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:80] DefaultCPUAllocator: not enough memory: you ..."),
        MemoryError(),
    ],
)
def test_out_of_memory_is_a_short_error(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def refuse(architecture: object) -> None:
        raise failure

    monkeypatch.setattr("pipelines.model.training.next_token.empty_model", refuse)
    with pytest.raises(WebtextError, match=r"out of memory: the model needs more than this machine has; use a smaller"):
        train_small(tokens, tmp_path / "out")


def test_torch_settings_are_restored(tokens: str, tmp_path: Path) -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    train_small(tokens, tmp_path / "out", threads=before[0] + 1)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before

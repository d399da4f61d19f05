"""The benchmark scripts of training, on tiny models."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_scripts import load_script, run_script
from tokenizers import Tokenizer

from pipelines.engine.run import RunOptions
from pipelines.model.network.gpt2 import GPT2, Architecture
from pipelines.model.training.data import open_tokens
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.stage import tokenize

bench_pretrain = load_script("bench_pretrain")
bench_gpu = load_script("bench_pretrain_gpu")
nanogpt_training = load_script("nanogpt_training")
token_shards = load_script("token_shards")


def test_random_tokens_are_a_folder_of_tokenize(tmp_path: Path) -> None:
    tokens = open_tokens(token_shards.write_tokens(str(tmp_path / "tokens"), 5_000, 40, 300))
    assert (tokens.train.tokens, tokens.held_out.tokens, tokens.vocab_size) == (5_000, 40, 300)
    ids = tokens.train.read(0, 5_000)
    assert 0 <= ids.min() < ids.max() < 300
    assert np.bincount(ids).argmax() == 0


def test_the_loop_of_nanogpt_trains_on_a_folder_in_its_format(
    tokenizer: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    lines = [json.dumps({"id": str(number), "text": text}) + "\n" for number, text in enumerate(documents)]
    (tmp_path / "docs.jsonl").write_text("".join(lines))
    tokenize(
        TokenizeConfig(format="nanogpt", held_out=0.1),
        documents=str(tmp_path / "docs.jsonl"),
        tokenizer=str(tmp_path / "tokenizer.json"),
        output=str(tmp_path / "tokens"),
        options=RunOptions(),
    )
    meta = pickle.loads((tmp_path / "tokens" / "meta.pkl").read_bytes())
    sizes = nanogpt_training.Sizes(2, 32, 2, 16, meta["vocab_size"], 8)
    torch.manual_seed(0)
    steps = nanogpt_training.train_steps(str(tmp_path / "tokens" / "train.bin"), sizes, compiled=False)
    assert [next(steps) for _ in range(5)] == pytest.approx([math.log(meta["vocab_size"])] * 5, abs=0.3)
    x, y = nanogpt_training.get_batch(str(tmp_path / "tokens" / "val.bin"), sizes)
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_nanogpt_has_the_same_parameters_except_biases() -> None:
    sizes = nanogpt_training.Sizes(2, 16, 2, 8, 50, 4)
    reference = sum(weight.numel() for weight in nanogpt_training.NanoGPT(sizes).parameters())
    own = GPT2(Architecture(2, 16, 2, 8, 50))
    biases = sum(weight.numel() for name, weight in own.named_parameters() if name.endswith("bias"))
    assert reference == sum(weight.numel() for weight in own.parameters()) - biases


@pytest.mark.parametrize("trainer", ["nanogpt", pytest.param("transformers", marks=pytest.mark.slow)])
def test_the_reference_trainers_learn(trainer: str, tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.bin")
    np.tile(np.arange(40, dtype=np.uint16), 100).tofile(path)
    sizes = nanogpt_training.Sizes(1, 16, 2, 8, 40, 8)
    torch.manual_seed(0)
    steps = (
        nanogpt_training.train_steps(path, sizes, compiled=False)
        if trainer == "nanogpt"
        else bench_pretrain.transformers_steps(path, sizes)
    )
    losses = [next(steps) for _ in range(400)]
    assert losses[0] == pytest.approx(np.log(40), abs=0.1)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.slow
def test_trainers_are_compared() -> None:
    printed = run_script(
        "bench_pretrain",
        *("--configuration", "test", "--rounds", "1", "--steps", "2", "--threads", "1"),
        *("--only", "webtext", "nanogpt"),
    )
    assert "test: layers 1, width 16" in printed
    lines = {line.split()[0]: line for line in printed.splitlines() if "tokens/s" in line}
    assert lines.keys() == {"webtext", "nanogpt"}
    assert "times as fast (bar 1.0:" in lines["nanogpt"]


def test_every_gpu_case_has_a_valid_recipe() -> None:
    for case in (*bench_gpu.CASES, *bench_gpu.DRY_CASES):
        config = case.config("cuda")
        recipe = bench_gpu.make_recipe(config.preset, config.set, config.seed)
        assert recipe.batch_size % recipe.micro_batch == 0
        assert recipe.dropout == case.dropout


def _bench_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the script in this process, which has imported torch; return what it printed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("sys.argv", ["bench_pretrain_gpu.py", *arguments])
    bench_gpu.main()
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_fills_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = _bench_gpu(monkeypatch, capsys, "--dry-run", "--steps", "4")
    rows = [line for line in printed.splitlines() if line.startswith("| tiny")]
    assert len(rows) == len(bench_gpu.DRY_CASES)
    assert all(line.endswith(" 4 |") and line.count("|") == 14 for line in rows), printed


def test_cases_without_time_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = _bench_gpu(monkeypatch, capsys, "--dry-run", "--minutes", "0")
    assert printed.count("not run: out of time") == len(bench_gpu.DRY_CASES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is available")
def test_without_a_gpu_it_is_skipped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench_gpu(monkeypatch, capsys).startswith("skipped: torch finds no CUDA GPU")


def test_speed_is_measured_on_the_second_half() -> None:
    watch = bench_gpu.Stopwatch(100, 100.0)
    watch.ends = [0.0, 50.0, 51.0, 52.0, 54.0]  # 4 steps, the first of which compiles
    assert watch.step_s() == 1.5

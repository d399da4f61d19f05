"""`webtext pretrain`, `generate` and `export` on the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_training import SMALL

from pipelines.model import require_torch
from webtext_cli.main import main

SETS = [part for value in SMALL for part in ("--set", value)]


@pytest.fixture
def corpus(tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WEBTEXT_CORPUS", raising=False)
    shutil.copytree(tokens, tmp_path / "corpus" / "tokenize")
    return tmp_path / "corpus"


def test_pretrain_generate_and_export(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--corpus", str(corpus)]
    assert main(["pretrain", *shared, "--preset", "tiny", *SETS, "--device", "cpu", "--threads", "1", "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert (summary["stage"], summary["records_in"], summary["records_out"]) == ("pretrain", 24, 24)
    assert summary["held_out_loss"] > 0
    assert "pretrain: train: 573 of 573 tokens (100%)" in printed.err  # 384 are trained on, the rest is evaluation
    assert "step 6: held-out loss" in printed.err

    assert (
        main(["generate", *shared, "-p", "the cat", "-p", "a dog", "--samples", "2", "--max-tokens", "5", "--json"])
        == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["prompt"], line["number"]) for line in lines] == [
        ("the cat", 0),
        ("the cat", 1),
        ("a dog", 0),
        ("a dog", 1),
    ]

    assert main(["export", *shared, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == f"{corpus}/export"

    assert main(["generate", "--model", str(corpus / "export"), "-p", "the cat", "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out == f"--- sample 1 of 'the cat'\nthe cat{lines[0]['text']}\n\n"


def test_prompts_from_a_file_and_samples_into_one(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "the cat"}\n{"text": "a dog"}\n')
    arguments = ["generate", "--model", str(trained), "--prompt-file", str(tmp_path / "prompts.jsonl"), "-p", "It"]
    assert main([*arguments, "--output", str(tmp_path / "samples.jsonl"), "--max-tokens", "3"]) == 0
    printed = capsys.readouterr()
    assert "generate: done in" in printed.out
    assert "generate: parts: " in printed.err
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == ["It", "the cat", "a dog"]


def test_show_preset_prints_origins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "--preset", "gpt2-xl", "--show-preset", "--set", "steps=5000"]) == 0
    printed = capsys.readouterr().out
    lines = {line.split()[0]: line for line in printed.splitlines() if line.strip()}
    assert lines["batch_size"].split()[:3] == ["batch_size", "512", "stated"]
    assert lines["warmup_steps"].split()[:3] == ["warmup_steps", "2000", "inherited"]
    assert lines["steps"].split() == ["steps", "5000", "set", "the", "preset", "has", "100000"]
    assert "1,557,611,200 parameters with GPT-2's vocabulary" in printed
    assert main(["pretrain", "--preset", "gpt2", "--show-preset", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["preset"], shown["parameters"]) == ("gpt2", 124_439_808)
    assert shown["values"]["context"]["origin"] == "stated"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["pretrain", "--preset", "tiny"], 1, "error: ./tokenize: no such folder; run `webtext tokenize` first"),
        (["pretrain", "--preset", "huge"], 2, "error: --preset huge: is not one of gpt2, "),
        (["pretrain", "--set", "layrs=3"], 2, "error: --set layrs=3: unknown key 'layrs'; did you mean layers?"),
        (["pretrain", "-i", "a", "-i", "b"], 2, "error: --input: pretrain reads one tokenize folder"),
        (["generate"], 1, "error: ./pretrain: has no model (no config.json); run `webtext pretrain` first"),
        (["generate", "--prompt-file", "none.txt"], 1, "error: none.txt: no such file or folder"),
        (["generate", "--temperature", "-1"], 2, "error: --temperature -1: must be at least 0"),
        (["generate", "--top-p", "0"], 2, "error: --top-p 0: must be at least 1e-06"),
        (["export"], 1, "error: ./pretrain: has no model (no config.json); run `webtext pretrain` first"),
    ],
)
def test_wrong_usage_is_a_short_error(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "webtext.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEBTEXT_DEBUG", raising=False)
    monkeypatch.delenv("WEBTEXT_CORPUS", raising=False)
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) <= 2


@pytest.mark.parametrize("command", ["pretrain", "generate", "export"])
def test_without_torch_one_line_says_what_to_install(
    command: str, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WEBTEXT_DEBUG", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main([command, "--corpus", str(corpus)]) == 1
    printed = capsys.readouterr().err
    assert printed == "error: a model needs torch; run: pip install 'webtext-kit[train]'\n"


@pytest.mark.parametrize(("given", "kept"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_openmp_threads_sleep_unless_the_user_sets_a_policy(
    given: str | None, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")  # so that it is put back afterwards
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    require_torch()
    assert os.environ["OMP_WAIT_POLICY"] == kept


def test_help_and_presets_do_not_load_torch() -> None:
    script = (
        "import sys; from webtext_cli.main import main; main(sys.argv[1:]); import pipelines.stages.pretrain.stage; "
        "sys.exit('torch' in sys.modules)"
    )
    for arguments in (
        ["pretrain", "--help"],
        ["generate", "--help"],
        ["pretrain", "--show-preset", "--preset", "gpt2"],
    ):
        subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "c/tokenize", "--overwrite"], "c/tokenize: is both the input and the output"),
        (["--init-from", "c/pretrain", "--overwrite"], "c/pretrain: is both the input and the output"),
        (["--show-batch", "3", "--replay", "3"], "--show-batch and --replay cannot be combined"),
    ],
)
def test_inputs_are_never_overwritten(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c" / "tokenize").mkdir(parents=True)
    (tmp_path / "c" / "tokenize" / "tokens.json").write_text("{}")
    assert main(["pretrain", "--corpus", "c", "--preset", "tiny", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "c" / "tokenize" / "tokens.json").exists()


def test_replay_without_a_training_is_refused(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["pretrain", "--corpus", str(corpus), "--preset", "tiny", "-o", str(corpus / "x"), "--replay", "3"]) == 1
    )
    assert "x: no training to replay" in capsys.readouterr().err


def test_checkpoints_of_a_finished_training_are_evaluated(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared, kept = ["--corpus", str(corpus)], ["--checkpoint-every", "2", "--keep-checkpoints", "9", "-q"]
    assert main(["pretrain", *shared, "--preset", "tiny", *SETS, "--device", "cpu", "--threads", "1", *kept]) == 0
    (corpus / "text.jsonl").write_text('{"text": "the cat sees a dog"}\n{"text": "a bird likes the garden"}\n')
    evaluate = ["evaluate", *shared, "--task", f"lambada={corpus / 'text.jsonl'}", "--device", "cpu"]
    assert main([*evaluate, "--checkpoints"]) == 0
    capsys.readouterr()
    series = json.loads((corpus / "evaluate" / "results.json").read_text())["steps"]
    losses = {row["step"]: row["value"] for row in series if row["metric"].startswith("perplexity")}
    assert list(losses) == [2, 3, 4, 6]
    assert len(set(losses.values())) == 4
    # The finished model is the last of them, also without its checkpoint.
    shutil.rmtree(corpus / "pretrain" / "checkpoints" / "step-0000006")
    assert main([*evaluate, "--checkpoints"]) == 0
    assert capsys.readouterr().err.count("already complete") == 4
    assert main([*evaluate, "--json", "-q"]) == 0
    [result] = json.loads(capsys.readouterr().out)
    assert result["metrics"][0]["value"] == losses[6]
    combined = json.loads((corpus / "evaluate" / "results.json").read_text())
    assert (combined["steps"], combined["tasks"]["lambada"]) == (series, result)

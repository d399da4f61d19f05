"""Fine-tuning: a small task is learned, a killed run resumes to the same bytes, and what is written."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from small_task import QUICK, finetune_small, write_task
from tokenizers import Tokenizer
from training_run import contents, metrics
from transformers import AutoTokenizer, GPT2ForSequenceClassification

from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError, UsageError, WebtextError
from pipelines.evaluation.definitions import find_task
from pipelines.finetuning.config import FineTuneConfig
from pipelines.finetuning.stage import finetune_sweep
from pipelines.model.network.classifier import transfer_weights
from pipelines.model.network.gpt2 import Architecture
from pipelines.model.training.finetune_recipe import FineTuneRecipe, describe_values, make_finetune_recipe
from pipelines.model.training.recipe import make_recipe
from pipelines.progress import Silent
from webtext_cli.main import main


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def tuned(trained: Path, task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("tuned") / "finetune"
    finetune_small(trained, task, output)
    return output


def test_32_examples_reach_100_percent(tuned: Path) -> None:
    results = json.loads((tuned / "results.json").read_text())
    figures = {figure["name"]: figure for figure in results["metrics"]}
    assert figures["accuracy"]["value"] == 1
    assert figures["matthews"]["value"] == 1
    assert 0.7 < figures["accuracy"]["low"] < figures["accuracy"]["high"] == 1
    assert results["examples"] == {"train": 32, "validation": 16}
    assert results["recipe"]["epochs"] == {"value": 12, "origin": "set", "note": "the recipe has 3"}
    assert results["recipe"]["lm_weight"]["origin"] == "stated"
    rows = pq.read_table(tuned / "examples-00000.parquet").to_pylist()
    assert [row["label"] for row in rows] == [row["predicted"] for row in rows]


def test_the_result_has_the_weights_of_the_first_best_evaluation(tuned: Path) -> None:
    scores = {row["step"]: row["held_out_score"] for row in metrics(tuned) if row["step"] and "held_out_score" in row}
    assert list(scores) == list(range(4, 49, 4))  # after each epoch
    best = max(scores, key=lambda step: scores[step])
    assert json.loads((tuned / "best.json").read_text())["step"] == best
    assert json.loads((tuned / "results.json").read_text())["best_step"] == best
    kept = safetensors.torch.load_file(tuned / "checkpoints" / f"step-{best:07d}" / "model.safetensors")
    result = safetensors.torch.load_file(tuned / "model.safetensors")
    assert all(torch.equal(weight, kept[name]) for name, weight in result.items())
    assert result["wte.weight"].shape[0] == 303
    assert result["score.weight"].shape == (2, 16)


class _StopsAfter(Silent):
    """Interrupts after a number of reports of progress."""

    def __init__(self, reports: int) -> None:
        self.reports = reports

    def advance(self, units: int) -> None:
        self.reports -= 1
        if self.reports == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("reports", [3, 17, 40, 76])
def test_an_interrupted_run_resumes_to_the_same_bytes(
    trained: Path, task: Path, tuned: Path, tmp_path: Path, reports: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        finetune_small(trained, task, tmp_path / "out", options=RunOptions(progress=_StopsAfter(reports)))
    assert not (tmp_path / "out" / "manifest.json").exists()
    finetune_small(trained, task, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tuned)


def test_a_damaged_best_checkpoint_is_an_error(trained: Path, task: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        finetune_small(trained, task, output, options=RunOptions(progress=_StopsAfter(70)))
    best = json.loads((output / "best.json").read_text())["step"]
    path = output / "checkpoints" / f"step-{best:07d}" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(WebtextError, match=r"model\.safetensors.*that checkpoint was the best one: re-run"):
        finetune_small(trained, task, output)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bytes(trained: Path, task: Path, tuned: Path, tmp_path: Path) -> None:
    """Killed when the second checkpoint is there, wherever it is then."""
    arguments = [*_arguments(trained, task, tmp_path / "out"), "--checkpoint-every", "5", "--threads", "1"]
    process = subprocess.Popen([sys.executable, "-m", "webtext_cli", *arguments], stderr=subprocess.DEVNULL)
    while len(list((tmp_path / "out").glob("checkpoints/*/state.json"))) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (tmp_path / "out" / "manifest.json").exists()
    finetune_small(trained, task, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tuned)


def _arguments(model: Path, task: Path, output: Path) -> list[str]:
    files = f"{task / 'train.jsonl'},{task / 'dev.jsonl'}"
    sets = [word for value in QUICK for word in ("--set", value)]
    return [
        *("finetune", "--model", str(model), "--task", f"{task / 'animals.toml'}={files}", *sets),
        *("--device", "cpu", "--output", str(output)),
    ]


def test_the_command_trains_and_reports(
    trained: Path, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_arguments(trained, task, tmp_path / "out"), "--set", "epochs=1", "--json"]) == 0
    shown = capsys.readouterr()
    assert "animals: 32 examples for training, 16 for validation" in shown.err
    summary = json.loads(shown.out)
    assert summary["records_out"] == 32 + 16
    assert 0 <= summary["accuracy"] <= 1
    assert main(["finetune", "--task", "cola"]) == 2
    assert "--task: expected NAME=FILES" in capsys.readouterr().err
    assert main(["finetune", "--model", str(trained), "--task", f"lambada={task / 'train.jsonl'}"]) == 2
    assert "has no table [finetune]; these tasks have one: cola, mnli" in capsys.readouterr().err


def test_other_options_are_another_run(trained: Path, task: Path, tuned: Path) -> None:
    with pytest.raises(ChangedRunError, match="lm_weight"):
        finetune_small(trained, task, tuned, "lm_weight=0")
    with pytest.raises(UsageError, match=r"unknown key 'lm_wight'; did you mean lm_weight"):
        finetune_small(trained, task, tuned, "lm_wight=0")


def test_a_batch_larger_than_the_train_set_is_refused(trained: Path, task: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"32 examples, fewer than a batch of 64; use --set batch_size=32"):
        finetune_small(trained, task, tmp_path / "out", "batch_size=64")


def test_files_for_both_training_and_validation_are_refused(trained: Path, task: Path, tmp_path: Path) -> None:
    inputs = {"task": find_task(str(task / "animals.toml")), "files": sorted(map(str, task.glob("*.jsonl")))}
    with pytest.raises(UsageError, match=r"dev\.jsonl: is used twice, such as for training and validation"):
        finetune_sweep(
            FineTuneConfig(), **inputs, validation=[str(task / "dev.jsonl")], model=str(trained),
            output=str(tmp_path / "out"), options=RunOptions(),
        )  # fmt: skip


def test_unusable_records_are_counted_and_listed(trained: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    with (task / "train.jsonl").open("a") as file:
        file.write('{"text": "the cat", "label": -1}\n{"text": "the cat", "label": 7}\n{"label": 0}\nno json\n')
    finetune_small(trained, task, tmp_path / "out", "epochs=1")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["dropped"] == {"bad_json": 1, "bad_record": 2, "no_label": 1}
    texts = [json.loads(line)["text"] for line in (task / "dev.jsonl").read_text().splitlines()]
    tokenizer = Tokenizer.from_file(str(trained / "tokenizer.json"))
    assert 0 < results["cut"]["validation"] == sum(len(tokenizer.encode(text).ids) > 6 for text in texts)
    rows = [json.loads(line) for line in (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()]
    assert [row["reason"] for row in rows] == ["no_label", "bad_record", "bad_record", "bad_json"]
    assert [row["id"] for row in rows] == [f"train.jsonl:{line}" for line in (33, 34, 35, 36)]
    assert "the right choice 7 is not one of" in rows[1]["detail"]
    assert "has none of the fields text; its fields are 'label'" in rows[2]["detail"]


def test_a_misspelled_label_is_an_error(trained: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    table = task / "animals.toml"
    for name in ("train.jsonl", "dev.jsonl"):
        lines = (task / name).read_text()
        (task / name).write_text(lines.replace('"label": 0', '"label": "cat"').replace('"label": 1', '"label": "dgo"'))
    with pytest.raises(InputError, match=r"train\.jsonl: no example for training has the label dog \(train.* 'dgo'"):
        finetune_small(trained, task, tmp_path / "out")
    table.write_text(table.read_text().replace('"cat"', '"dog|cat"'))
    with pytest.raises(UsageError, match=r"animals\.toml.*expected two or more different labels, not dog, cat, dog"):
        finetune_small(trained, task, tmp_path / "out")


def test_files_without_examples_are_refused(trained: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (task / "dev.jsonl").write_text('{"text": "the cat", "label": -1}\n')
    with pytest.raises(
        InputError, match=r"dev\.jsonl: the files have no example that can be used \(dev\.jsonl:1: has no label\)"
    ):
        finetune_small(trained, task, tmp_path / "out")


def test_transformers_computes_the_same_outputs(
    task: Path, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "exported"
    assert main(["export", "--model", str(tuned), "--output", str(out), "--quiet"]) == 0
    theirs, info = GPT2ForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    config, tokenizer = theirs.config, AutoTokenizer.from_pretrained(out)
    assert config.id2label == {0: "cat", 1: "dog"}
    texts = [json.loads(line)["text"] for line in (task / "dev.jsonl").read_text().splitlines()]
    rows = [
        [config.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids[:6], config.eos_token_id]
        for text in texts
    ]
    longest = max(map(len, rows))
    padded = torch.tensor([row + [config.pad_token_id] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        logits = theirs.eval()(padded).logits
    outputs = pq.read_table(tuned / "examples-00000.parquet").column("outputs").to_pylist()
    torch.testing.assert_close(logits, torch.tensor(outputs), rtol=0, atol=1e-5)
    page = (Path(__file__).resolve().parents[2] / "docs/finetune-results.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["probabilities"].sum().item() == pytest.approx(1)


def test_predictions_for_a_test_set_are_in_the_format_of_glue(trained: Path, task: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv", "test_matched.tsv")]
    for path in files:
        rows = [f"the cat {number}\tthe dog\t{('neutral', 'entailment')[number % 2]}" for number in range(8)]
        header, columns = "sentence1\tsentence2\tgold_label", 2 if path.name.startswith("test") else 3
        lines = ["\t".join(row.split("\t")[:columns]) for row in (header, *rows)]
        path.write_text("".join(line + "\n" for line in lines))
    folder, sets = tmp_path / "out", ("epochs=1", "batch_size=8")
    config = FineTuneConfig(set=sets, device="cpu", log_every=0)
    paths = list(map(str, files))
    inputs = {"task": find_task("mnli"), "files": paths, "model": str(trained)}
    finetune_sweep(config, output=str(folder), options=RunOptions(), **inputs)
    lines = (folder / "predictions" / "MNLI-m.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["index", *map(str, range(8))]
    assert {line.split("\t")[1] for line in lines[1:]} <= {"entailment", "neutral", "contradiction"}
    figures = json.loads((folder / "results.json").read_text())["metrics"]
    assert {one["name"]: one["examples"] for one in figures} == {"matched accuracy": 8, "mismatched accuracy": 8}
    assert [path.name for path in (folder / "predictions").iterdir()] == ["MNLI-m.tsv"]
    apart = tmp_path / "test_mismatched.tsv"
    apart.write_text(files[-1].read_text())
    inputs["files"] = [*paths[:-1], str(apart)]
    finetune_sweep(config, output=str(tmp_path / "apart"), options=RunOptions(), **inputs)
    assert [path.name for path in (tmp_path / "apart" / "predictions").iterdir()] == ["MNLI-mm.tsv"]
    inputs["files"] = paths
    files[-1].write_text(files[-1].read_text() + "cut\n")
    with pytest.raises(InputError, match=r"test_matched\.tsv: 1 records cannot be read; predictions need all"):
        finetune_sweep(config, output=str(folder), options=RunOptions(), **inputs)


def test_exactly_the_transferred_layers_are_equal(trained: Path) -> None:
    given = safetensors.torch.load_file(trained / "model.safetensors")
    size = Architecture(layers=2, width=16, heads=2, context=16, vocab_size=300)
    blocks = [("wte", "wpe"), ("h.0.",), ("h.1.", "ln_f")]
    for transfer in (-1, 0, 1, 2):
        weights = {name: weight.clone() for name, weight in given.items()}
        transfer_weights(weights, size, transfer, seed=5)
        matrices = [name for name, weight in given.items() if weight.dim() == 2]
        equal = {name for name in matrices if torch.equal(weights[name], given[name])}
        kept = tuple(start for group in blocks[: transfer + 1] for start in group)
        assert equal == {name for name in matrices if name.startswith(kept or "none")}


def test_frozen_layers_keep_their_weights(trained: Path, task: Path, tmp_path: Path) -> None:
    finetune_small(trained, task, tmp_path / "out", "epochs=2", freeze=1)
    first, *_, last = sorted((tmp_path / "out" / "checkpoints").glob("step-*/model.safetensors"))
    given, result = (safetensors.torch.load_file(path) for path in (trained / "model.safetensors", last))
    assert first
    assert torch.equal(result["wte.weight"][:300], given["wte.weight"])
    equal = {name for name, weight in given.items() if name != "wte.weight" and torch.equal(result[name], weight)}
    assert equal == {name for name in given if name.startswith(("wpe", "h.0."))}
    with pytest.raises(UsageError, match="--from-scratch is --transfer -1; omit one of the two"):
        finetune_small(trained, task, tmp_path / "scratch", transfer=1, from_scratch=True)
    with pytest.raises(UsageError, match="--freeze 3: the model has 2 layers"):
        finetune_small(trained, task, tmp_path / "out", freeze=3)


def test_a_fine_tuned_model_is_fine_tuned_again(trained: Path, task: Path, tuned: Path, tmp_path: Path) -> None:
    finetune_small(tuned, task, tmp_path / "out", "epochs=2", freeze=2)
    first, second = (safetensors.torch.load_file(path / "model.safetensors") for path in (tuned, tmp_path / "out"))
    assert [name for name, weight in first.items() if not torch.equal(second[name], weight)] == ["score.weight"]
    for name in ("wte.weight", "score.weight"):
        assert first[name].shape == second[name].shape


def test_several_seeds_have_a_median(trained: Path, task: Path, tmp_path: Path) -> None:
    inputs = {"task": find_task(str(task / "animals.toml")), "files": sorted(map(str, task.glob("*.jsonl")))}
    config = FineTuneConfig(set=(*QUICK, "epochs=1"), seeds=3, seed=4, from_scratch=True, device="cpu", log_every=0)
    finetune_sweep(config, output=str(tmp_path), options=RunOptions(), model=str(trained), **inputs)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["seeds"] == [4, 5, 6]
    accuracies = results["metrics"][0]
    assert (accuracies["name"], accuracies["step"]) == ("accuracy", None)
    assert accuracies["value"] == sorted(accuracies["values"])[1]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"seed-4", "seed-5", "seed-6"}


def test_several_seeds_do_not_overwrite_the_results_of_one(trained: Path, task: Path, tuned: Path) -> None:
    inputs = {"task": find_task(str(task / "animals.toml")), "files": sorted(map(str, task.glob("*.jsonl")))}
    with pytest.raises(UsageError, match="contains a single fine-tuning; choose another --output"):
        finetune_sweep(FineTuneConfig(seeds=2), output=str(tuned), options=RunOptions(), model=str(trained), **inputs)
    (sweep := tuned.parent / "sweep" / "seed-0").mkdir(parents=True)
    with pytest.raises(UsageError, match="contains several fine-tunings; choose another --output"):
        finetune_sweep(FineTuneConfig(), output=str(sweep.parent), options=RunOptions(), model=str(trained), **inputs)


def test_several_seeds_are_one_json_object(
    trained: Path, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*_arguments(trained, task, tmp_path / "out"), "--set", "epochs=1", "--seeds", "2", "--json", "-q"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == [0, 1]


def test_the_learning_rate_is_that_of_the_released_code() -> None:
    """`warmup_linear`: min(1, x / warmup) * (1 - x), with x counted from 0."""
    recipe = make_finetune_recipe((), examples=32 * 1000)
    assert recipe.steps == 3000
    assert recipe.learning_rate_at(0) == 0
    assert recipe.learning_rate_at(3) == pytest.approx(6.25e-5 * 0.5 * (1 - 0.001))
    assert recipe.learning_rate_at(1500) == pytest.approx(6.25e-5 / 2)
    assert recipe.learning_rate_at(2999) == pytest.approx(6.25e-5 / 3000)


def test_every_value_of_the_recipe_has_an_origin() -> None:
    recipe = make_finetune_recipe((), examples=32)
    assert recipe == FineTuneRecipe(examples=32)  # the defaults are those of data/finetune.toml
    origins = {name: value["origin"] for name, value in describe_values((), recipe).items()}
    assert "set" not in origins.values()
    assert describe_values((), dataclasses.replace(recipe, freeze=2))["freeze"]["origin"] == "set"
    with pytest.raises(UsageError, match="unknown key"):
        make_finetune_recipe(("examples=3",), examples=32)
    with pytest.raises(UsageError, match="unknown key"):
        make_recipe("tiny", ("lm_weight=1",))


def test_an_impossible_fit_is_told_beforehand(
    trained: Path, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.model.device.available_memory_bytes", lambda: 20_000_000)
    with pytest.raises(WebtextError, match=r"training.*needs about .* use a smaller --set micro_batch"):
        finetune_small(trained, task, tmp_path / "out")
    assert not (tmp_path / "out" / "checkpoints").exists()

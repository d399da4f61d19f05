"""`webtext evaluate`: resuming, scoring again, what is printed, and what the overlap report makes of its examples."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from own_task import run_task
from small_model import write_model

from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError, WebtextError
from pipelines.evaluation import stage
from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.definitions import TASK_NAMES, parse_tasks, read_task
from pipelines.evaluation.scoring import Scorer
from pipelines.evaluation.stage import KINDS, evaluate, rescore
from pipelines.evaluation.task import ModelFacts
from pipelines.finetuning.examples import TransformOptions
from pipelines.model.device import DeviceConfig
from pipelines.model.io.model_folder import open_model
from webtext_cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "random")


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    path = tmp_path / "lambada.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"passage {number} ends with word{number % 4}"}) + "\n" for number in range(20))
    )
    return path


def _hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_an_interrupted_run_resumes_to_the_same_bytes(
    tmp_path: Path, model: str, passages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_PART_TOKENS", 100)
    tasks = parse_tasks([f"lambada={passages}"], "all")
    scored: list[int] = []
    score = Scorer.score

    def counting(self: Scorer, requests: list[object]) -> object:
        scored.append(len(requests))
        if len(scored) == 4 and fails:
            raise KeyboardInterrupt
        return score(self, requests)  # type: ignore[arg-type]

    monkeypatch.setattr(Scorer, "score", counting)
    for output, fails in ((tmp_path / "whole", False), (tmp_path / "killed", True), (tmp_path / "killed", False)):
        scored.clear()
        arguments = {"tasks": tasks, "model": model, "output": str(output), "options": RunOptions()}
        if fails:
            with pytest.raises(KeyboardInterrupt):
                evaluate(EvaluateConfig(), **arguments)  # type: ignore[arg-type]
        else:
            evaluate(EvaluateConfig(), **arguments)  # type: ignore[arg-type]
    assert len(scored) > 4
    assert sum(scored) < 3 * 20  # what was complete is not computed again
    assert _hashes(tmp_path / "whole") == _hashes(tmp_path / "killed")


def test_texts_that_share_their_first_token_alone_are_divided_into_parts(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_PART_TOKENS", 100)
    (tmp_path / "heldout").write_text("a sentence of some words\n" * 20)
    run_task(f"1bw={tmp_path / 'heldout'}", model, tmp_path / "out")
    assert len(list((tmp_path / "out" / "1bw").glob("answers-*"))) == 5


def test_metrics_are_computed_again_without_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"question": "a", "answer": "x"}\n{"question": "b", "answer": "y"}\n')
    own = tmp_path / "own.toml"
    own.write_text('[task]\nkind = "answer"\ndata = "data.jsonl"\nmax_tokens = 5\n')
    output = tmp_path / "out"
    arguments = ["evaluate", "--task", str(own), "--output", str(output), "-q", "--json"]
    assert main([*arguments, "--rescore"]) == 1
    assert "has no results; run the task without --rescore first" in capsys.readouterr().err
    assert main([*arguments, "--model", model, "--device", "cpu"]) == 0
    [before] = json.loads(capsys.readouterr().out)
    files = _hashes(output)
    shutil.rmtree(model)
    assert main([*arguments, "--rescore"]) == 0
    assert _hashes(output) == files
    # Other right answers are measured by the same answers.
    examples = json.loads((output / "own" / "results.json").read_text())
    assert [figure["value"] for figure in examples["metrics"]] == [figure["value"] for figure in before["metrics"]]
    answer = _first_answer(output / "own")
    row = {"question": "a", "answer": answer}
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + '\n{"question": "b", "answer": "y"}\n')
    capsys.readouterr()
    assert main([*arguments, "--rescore"]) == 0
    [after] = json.loads(capsys.readouterr().out)
    assert after["metrics"][1]["value"] >= 0.5
    # Answers that were written otherwise are not, nor are those to other questions.
    own.write_text(own.read_text().replace("max_tokens = 5", "max_tokens = 6"))
    assert main([*arguments, "--rescore"]) == 1
    assert "belong to other prompts" in capsys.readouterr().err
    own.write_text(own.read_text().replace("max_tokens = 6", "max_tokens = 5"))
    (tmp_path / "data.jsonl").write_text('{"question": "c", "answer": "x"}\n{"question": "b", "answer": "y"}\n')
    assert main([*arguments, "--rescore"]) == 1
    assert "belong to other prompts" in capsys.readouterr().err
    assert main(["evaluate", "--task", str(own), "--output", str(output), "--model", str(tmp_path / "no")]) == 1


def test_answers_in_other_parts_are_measured_again_but_not_resumed(
    tmp_path: Path, model: str, passages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, config = parse_tasks([f"lambada={passages}"], "paper"), EvaluateConfig()
    arguments = {"tasks": tasks, "output": str(tmp_path / "out"), "options": RunOptions()}
    monkeypatch.setattr(stage, "_PART_TOKENS", 100)
    results = evaluate(config, model=model, **arguments)  # type: ignore[arg-type]
    monkeypatch.setattr(stage, "_PART_TOKENS", 200)
    with pytest.raises(ChangedRunError, match="part_tokens"):
        evaluate(config, model=model, **arguments)  # type: ignore[arg-type]
    assert rescore(config, **arguments) == results  # type: ignore[arg-type]


def _first_answer(folder: Path) -> str:
    import pyarrow.parquet as pq

    answer: str = pq.read_table(folder / "examples-00000.parquet").to_pylist()[0]["output"]
    return answer


def test_tasks_can_be_added_and_a_changed_file_is_refused(
    tmp_path: Path, model: str, passages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", "--model", model, "--output", str(tmp_path / "out"), "--device", "cpu", "--task"]
    assert main([*arguments, f"lambada={passages}", "--limit", "5"]) == 0
    shown = capsys.readouterr()
    assert "lambada (limit 5): perplexity per token" in shown.out
    assert '<th scope="row">lambada (limit 5)</th>' in (tmp_path / "out" / "evaluation.html").read_text()
    assert "45.99" in shown.out or "0.4599" in shown.out
    (tmp_path / "page.txt").write_text("a text of several words\n" * 5)
    assert main([*arguments, f"ptb={tmp_path / 'page.txt'}", "--limit", "3"]) == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["evaluation.html", "lambada", "ptb", "results.json"]
    results = json.loads((tmp_path / "out" / "lambada" / "results.json").read_text())
    assert results["metrics"][0]["examples"] == 5
    digest = hashlib.sha256(passages.read_bytes()).hexdigest()
    assert results["files"] == [{"path": "lambada.jsonl", "role": "data", "sha256": digest, "known_as": None}]
    passages.write_text('{"text": "another passage"}\n')
    assert main([*arguments, f"lambada={passages}", "--limit", "5"]) == 1
    assert "Use --overwrite" in capsys.readouterr().err


def test_nothing_is_computed_if_one_file_is_bad(tmp_path: Path, model: str, passages: Path) -> None:
    (tmp_path / "cbt.txt").write_text("1 A sentence .\n")
    tasks = parse_tasks([f"lambada={passages}", f"cbt-cn={tmp_path / 'cbt.txt'}"], "paper")
    with pytest.raises(InputError, match=r"cbt.txt: ends after line 1 of the 21 of a question"):
        evaluate(EvaluateConfig(), tasks=tasks, model=model, output=str(tmp_path / "out"), options=RunOptions())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output", [".", "evaluate", ".."])
def test_an_output_that_overlaps_the_model_is_refused(
    model: str, passages: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(model) / output
    assert main(["evaluate", "--model", model, "--output", str(folder), "--task", f"lambada={passages}"]) == 2
    assert "; choose another --output" in capsys.readouterr().err
    assert not (folder / "lambada").exists()


def test_too_little_memory_is_said_before_the_start(
    tmp_path: Path, model: str, passages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceConfig, "free_memory_bytes", lambda self, local_processes: 1 << 20)
    tasks = parse_tasks([f"lambada={passages}"], "paper")
    with pytest.raises(WebtextError, match=r"needs about .* of memory, but 1.05 MB is available"):
        evaluate(EvaluateConfig(), tasks=tasks, model=model, output=str(tmp_path / "out"), options=RunOptions())
    assert not (tmp_path / "out").exists()


def test_quiet_shows_no_notes(
    tmp_path: Path, model: str, passages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DeviceConfig, "free_memory_bytes", lambda self, local_processes: None)
    command = ["evaluate", "--model", model, "--output", str(tmp_path), "--task", f"lambada={passages}", "--limit", "2"]
    command += ["--device", "cpu"]
    assert main(command) == 0
    shown = capsys.readouterr().err
    assert "of memory in addition to the weights" in shown
    assert re.search(rf"evaluate: {model} \([\d,]+ parameters\), on cpu, float32", shown)
    assert main([*command, "-q"]) == 0
    assert not capsys.readouterr().err


def test_values_of_a_variant_are_labelled(tmp_path: Path, model: str, passages: Path) -> None:
    tasks = parse_tasks([f"lambada={passages}"], "lm-eval")
    [result] = evaluate(EvaluateConfig(limit=1), tasks=tasks, model=model, output=str(tmp_path), options=RunOptions())
    assert result["choices"]["target"] == {
        "value": "word",
        "origin": "variant",
        "note": 'the protocol lm-eval; paper: "token"',
    }
    assert result["paper"] == {}
    assert result["note"] == read_task("lambada").note


def test_every_protocol_gives_a_reason_for_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    for name in TASK_NAMES:
        protocol = read_task(name)
        options = KINDS[protocol.kind][0].__dataclass_fields__ if protocol.kind else {}
        for choice, value in (*protocol.choices.items(), *protocol.finetune.items()):
            assert choice in (options if choice in protocol.choices else TransformOptions.__dataclass_fields__)
            assert value.origin in ("stated", "inferred", "chosen")
            assert value.note
        for variant in protocol.variants.values():
            assert variant.keys() <= protocol.choices.keys()
            assert all(value != protocol.choices[choice].value for choice, value in variant.items())
        assert all(len(figures) == 4 for figures in protocol.paper.values())
        assert main(["evaluate", "--show-task", name]) == 0
        shown = capsys.readouterr().out
        assert protocol.title in shown
    assert main(["evaluate", "--list-tasks"]) == 0
    listed = capsys.readouterr().out
    assert "Children's Book Test" in listed
    # By source: the paper's sections, other papers, lm-evaluation-harness.
    order = [listed.index(f" {name} ") for name in ("ptb", "cbt-cn", "cola", "agnews", "arc-easy", "hellaswag")]
    assert order == sorted(order)
    assert main(["evaluate", "--show-task", "winograd"]) == 0
    assert "117M figure only" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shown", "ignored"),
    [
        (["--list-tasks"], ["--task", "x=y"]),
        (["--list-tasks"], ["--show-task", "lambada"]),
        (["--show-task", "lambada"], ["--limit", "5"]),
        (["--show-task", "lambada"], ["--output", "x"]),
    ],
)
def test_showing_tasks_refuses_other_options(
    shown: list[str], ignored: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *shown, *ignored]) == 2
    assert f"{ignored[0]} has no effect with {shown[0]}; omit" in capsys.readouterr().err


def test_the_overlap_report_takes_the_examples_as_scores(
    tmp_path: Path, model: str, passages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["evaluate", "--model", model, "--output", str(tmp_path / "out"), "--task", f"lambada={passages}", "-q"])
        == 0
    )
    (tmp_path / "corpus.jsonl").write_text('{"text": "another text: passage 3 ends with word3"}\n')
    scores = tmp_path / "out" / "lambada" / "examples-00000.parquet"
    code = main(
        ["overlap-report", "-i", str(tmp_path / "corpus.jsonl"), "-o", str(tmp_path / "report"), "--ngram", "4", "-q",
         "--benchmark", f"lambada={passages}", "--scores", f"lambada={scores}"]
    )  # fmt: skip
    assert code == 0
    report = next((tmp_path / "report").glob("*.json")).read_text()
    assert "accuracy" in report or "accuracy" in capsys.readouterr().out


def test_files_of_the_same_name_are_told_apart(tmp_path: Path, model: str) -> None:
    for folder, question in (("test", "a"), ("train", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.jsonl").write_text(json.dumps({"question": question, "answer": "x"}) + "\n")
    (tmp_path / "own.toml").write_text(
        '[task]\nkind = "answer"\nmax_tokens = 2\ndata = "test/data.jsonl"\nexamples = "train/data.jsonl"\n'
    )
    result, _ = run_task(str(tmp_path / "own.toml"), model, tmp_path / "out", shots=1)
    assert [(file["path"], file["role"]) for file in result["files"]] == [
        ("test/data.jsonl", "data"),
        ("train/data.jsonl", "examples"),
    ]
    hashes = [hashlib.sha256((tmp_path / file["path"]).read_bytes()).hexdigest() for file in result["files"]]
    assert [file["sha256"] for file in result["files"]] == hashes


def test_the_recorded_path_of_a_model_has_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "user:secret@host" / "model")
    assert ModelFacts.of(open_model("file://user:secret@host/model")).path == "file://***@host/model"

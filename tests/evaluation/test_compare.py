"""`webtext evaluate --compare`: paired differences of two models on the same examples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_task import own_task
from small_model import write_model

from pipelines.evaluation.metrics import mean_error, ratio_error
from webtext_cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the results of a random and a uniform model on the same three tasks."""
    folder = tmp_path_factory.mktemp("compare")
    rows = [{"text": f"passage {number} ends in w{'x' * (number % 3)}"} for number in range(12)]
    (folder / "lambada.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "wiki.txt").write_text("".join(f"a text of {'several ' * number}words\n" for number in range(5)))
    pairs = [{"q": str(number), "a": "y", "b": "zz", "gold": number % 2, "pair": number // 2} for number in range(8)]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    (folder / "own.toml").write_text(
        '[task]\nkind = "choice"\ndata = "own.jsonl"\nprompt = "Q {q}"\nchoices = [" {a}", " {b}"]\ncluster = "pair"\n'
    )
    for kind in ("random", "uniform"):
        write_model(folder / f"{kind}-model", kind)
    assert main(_command(folder, "uniform", *_TASKS)) == 0
    assert main([*_command(folder, "random", *_TASKS), "--compare", str(folder / "uniform")]) == 0
    return folder


_TASKS = ("lambada=lambada.jsonl", "wikitext-2=wiki.txt", "own.toml")


def _command(folder: Path, kind: str, *tasks: str) -> list[str]:
    arguments = ["evaluate", "--model", str(folder / f"{kind}-model"), "--output", str(folder / kind), "-q"]
    for task in tasks:
        name, _, path = task.rpartition("=")
        arguments += ["--task", f"{name}={folder / path}" if name else str(folder / path)]
    return [*arguments, "--device", "cpu"]


def _differences(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    [compared] = json.loads((folder / "random" / "results.json").read_text())["compared"]
    return {(row["task"], row["metric"]): row for row in compared["differences"]}


def _column(folder: Path, kind: str, task: str, name: str) -> Any:
    return np.array(pq.read_table(folder / kind / task / "examples-00000.parquet").column(name).to_pylist())


def test_means_are_compared_by_example_and_cluster(folder: Path) -> None:
    row = _differences(folder)["own", "gold nll"]
    first, second = (_column(folder, kind, "own", "gold_nll") for kind in ("random", "uniform"))
    clusters = _column(folder, "random", "own", "cluster").tolist()
    assert len(set(clusters)) == 4
    expected = mean_error(first - second, clusters)
    assert (row["difference"], row["error"], row["p_value"]) == (*expected, expected.p_value)
    assert row["difference"] == pytest.approx(row["value"] - row["other"])
    assert expected.error != mean_error(first - second).error


def test_perplexities_are_compared_in_nats_over_the_same_units(folder: Path) -> None:
    row = _differences(folder)["wikitext-2", "perplexity per word or line end"]
    first, second = (_column(folder, kind, "wikitext-2", "nats") for kind in ("random", "uniform"))
    units = _column(folder, "random", "wikitext-2", "units")
    clusters = _column(folder, "random", "wikitext-2", "cluster").tolist()
    assert row["difference"] == pytest.approx(math.log(row["value"]) - math.log(row["other"]))
    assert row["unit"] == "nats per word or line end"
    assert row["error"] == pytest.approx(ratio_error(first - second, units, clusters).error)
    bits = _differences(folder)["wikitext-2", "bits per byte"]
    assert bits["difference"] == pytest.approx(bits["value"] - bits["other"])


def test_the_difference_is_printed_and_on_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_command(folder, "random", *_TASKS), "--compare", str(folder / "uniform")]) == 0
    printed, page = capsys.readouterr().out, (folder / "random" / "evaluation.html").read_text()
    assert "Compared with" in printed
    for row in _differences(folder).values():
        assert f"{row['difference']:+.4g}" in printed
        assert f"<td>{row['difference']:+.4g}" in page
    assert f"Compared with <code>{folder}/uniform-model (11,728 parameters)</code>" in page
    # A plot has the point of the other model, also of metrics of which the paper has no figures.
    assert page.count("<figure") == page.count('<circle class="compared"') == 11


def test_a_model_does_not_differ_from_itself(folder: Path) -> None:
    command = _command(folder, "random", *_TASKS)
    assert main([*command, "--compare", str(folder / "random")]) == 0
    rows = _differences(folder).values()
    assert {row["difference"] for row in rows} == {0}
    assert {row["p_value"] for row in rows} <= {1.0, None}
    assert main([*command, "--compare", str(folder / "uniform")]) == 0


def test_what_is_not_compared_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lambada.jsonl").write_text('{"text": "another passage"}\n')
    (tmp_path / "random-model").symlink_to(folder / "random-model")
    assert main(_command(tmp_path, "random", "lambada=lambada.jsonl")) == 0
    (tmp_path / "limited-model").symlink_to(folder / "random-model")
    (tmp_path / "wiki.txt").write_text((folder / "wiki.txt").read_text())
    assert main([*_command(tmp_path, "limited", "wikitext-2=wiki.txt"), "--limit", "2"]) == 0
    capsys.readouterr()
    compared = ["--compare", str(tmp_path / "random"), "--compare", str(tmp_path / "limited")]
    assert main([*_command(folder, "random", "own.toml"), *compared]) == 0
    printed = capsys.readouterr().out.replace("\n", " ")
    assert "lambada: not compared, the files differ" in printed
    assert "wikitext-2: not compared, the examples differ" in printed
    assert "compared models" not in (folder / "random" / "evaluation.html").read_text()
    assert f"own: not in {tmp_path / 'random'}" in printed
    assert main([*_command(tmp_path, "random", "lambada=lambada.jsonl"), "--compare", str(folder / "random")]) == 0
    assert f"own: only in {folder / 'random'}" in capsys.readouterr().out.replace("\n", " ")


def test_a_folder_without_results_is_refused_before_anything_is_computed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new-model").symlink_to(folder / "random-model")
    (tmp_path / "wiki.txt").write_text("text\n")
    command = _command(tmp_path, "new", "wikitext-2=wiki.txt")
    assert main([*command, "--compare", str(tmp_path / "none")]) == 1
    assert f"{tmp_path / 'none'}: has no results of `webtext evaluate`" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_other_units_are_not_compared(folder: Path) -> None:
    from pipelines.evaluation.results_page import paired_figure

    def table(clusters: str, **columns: list[float]) -> pa.Table:
        return pa.table({"cluster": list(clusters), **columns})

    figure = {"kind": "perplexity", "columns": ["nats", "tokens"]}
    examples = [table("ab", nats=[1.0, 1.0], tokens=tokens) for tokens in ([1.0, 2.0], [2.0, 2.0])]
    assert paired_figure(figure, *examples) is None
    assert paired_figure(figure, examples[0], examples[0]) == (0, 0)
    pairs = [table("aabbc", x=values) for values in ([1.0, 1, 1, 0, 1], [1.0, 0, 1, 0, 1])]  # c has no partner
    paired = paired_figure({"kind": "cluster_share", "columns": ["x"]}, *pairs)
    assert paired is not None
    assert paired.value == 0.5
    assert paired_figure({"kind": "bleu", "columns": ["x"]}, *pairs) is None


def test_only_what_both_have_measured_is_compared(folder: Path, tmp_path: Path) -> None:
    for score in ("coqa", "squad"):
        task = own_task(tmp_path, "answer", [{"question": "a", "answer": "b"}] * 3, score=score, max_tokens=2)
        arguments = ["evaluate", "--task", task, "--model", str(folder / "random-model"), "-q"]
        compared = ["--compare", str(tmp_path / "coqa")] * (score == "squad")
        assert main([*arguments, "--output", str(tmp_path / score), *compared]) == 0
    [other] = json.loads((tmp_path / "squad" / "results.json").read_text())["compared"]
    assert [row["metric"] for row in other["differences"]] == ["f1", "exact match"]

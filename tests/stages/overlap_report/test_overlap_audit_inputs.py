"""Inputs and options of the audit: an index, corrected files, changed files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from audit_run import run_report, write_documents, write_jsonl

from pipelines.engine import machine
from pipelines.engine.run import RunOptions
from pipelines.engine.tasks import SerialExecutor
from pipelines.errors import ChangedRunError, InputError, WebtextError
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.scanning import scan_shard
from pipelines.stages.overlap_report.stage import overlap_report
from webtext_cli.main import main


def test_a_failed_run_resumes_with_corrected_inputs(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "docs.parquet", ["one two three"])
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three", "x y z"])
    (tmp_path / "scores.jsonl").write_text('{"right": true}\n')
    given = [f"b={tmp_path / 'scores.jsonl'}"]
    with pytest.raises(InputError, match=r"scores\.jsonl"):
        run_report(tmp_path / "out", documents, [f"b={benchmark}"], ngram=3, scores=given)
    (tmp_path / "scores.jsonl").write_text('{"right": true}\n{"right": false}\n')
    run_report(tmp_path / "out", documents, [f"b={benchmark}"], ngram=3, scores=given)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(InputError, match="is empty"):
        run_report(tmp_path / "next", documents, [f"b={empty}"], ngram=3)
    _, report = run_report(tmp_path / "next", documents, [f"c={benchmark}"], ngram=3)
    assert report["benchmarks"][0]["overlapping"] == 1


def test_no_held_out_document_is_an_error(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "docs.parquet", ["one two three"])
    named = [f"b={write_jsonl(tmp_path / 'b.jsonl', ['one two three'])}"]
    sampled = write_jsonl(tmp_path / "samples.jsonl", ["one two three"])
    with pytest.raises(InputError, match="selects no documents"):
        run_report(tmp_path / "out", documents, named, ngram=3, held_out=1e-9, generated=sampled)


def test_an_index_is_probed_as_often_as_requested(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "docs.parquet", ["one two three four"])
    overlap_index(
        OverlapIndexConfig(ngram=3), documents=str(documents), output=str(tmp_path / "index"), options=RunOptions()
    )
    summary = overlap_report(
        OverlapReportConfig(ngram=3, probes=5000),
        documents=None,
        benchmarks=[f"b={write_jsonl(tmp_path / 'b.jsonl', ['one two three', 'x y z'])}"],
        output=str(tmp_path / "out"),
        options=RunOptions(),
        index=str(tmp_path / "index"),
        generated=str(write_jsonl(tmp_path / "samples.jsonl", ["two three four five", "x y z"])),
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["certificate"]["probes"], report["certificate"]["found"]) == (5000, 0)
    assert report["error_bound"] == report["certificate"]["error_bound"] < 1e-8
    assert report["benchmarks"][0]["percent_positions"] == 50.0
    assert report["samples"]["samples"]["mean_percent"] == 25.0
    assert (summary.records_in, report["documents"]) == (1, 1)


@pytest.mark.parametrize("flags", [["--sensitivity"], ["--ignore-common", "3"], ["--write-clean", "corpus"]])
def test_options_that_need_documents_are_refused_with_an_index(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three"])
    given = [
        "overlap-report",
        "--corpus",
        str(tmp_path),
        "--index",
        str(tmp_path / "index"),
        "--benchmark",
        f"b={benchmark}",
    ]
    assert main([*given, *flags]) == 2
    assert f"{' '.join(flags[:1])}" in capsys.readouterr().err


def test_probes_need_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three"])
    documents = write_documents(tmp_path / "docs.parquet", ["one two three"])
    given = ["overlap-report", "-i", str(documents), "-o", str(tmp_path / "out"), "--benchmark", f"b={benchmark}"]
    assert main([*given, "--probes", "5"]) == 2
    assert "--probes has no effect without --index" in capsys.readouterr().err


def _report_once(documents: Path, benchmark: Path, output: Path, options: RunOptions) -> None:
    config, benchmarks = OverlapReportConfig(ngram=3), [f"b={benchmark}"]
    overlap_report(config, documents=str(documents), benchmarks=benchmarks, output=str(output), options=options)


def test_a_benchmark_that_changes_during_the_run_is_refused(tmp_path: Path) -> None:
    """Its text is read again for the passages, which would quote lines other than those that were indexed."""
    documents = write_documents(tmp_path / "docs.parquet", ["one two three four"])
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three", "x y z"])

    class _ChangingExecutor(SerialExecutor):
        def map(self, function: Any, *arguments: Any, **options: Any) -> Any:
            if function is scan_shard:
                write_jsonl(benchmark, ["x y z", "one two three"])
            return super().map(function, *arguments, **options)

    with pytest.raises(WebtextError, match=r"b\.jsonl: was changed during the run; re-run the same command"):
        _report_once(documents, benchmark, tmp_path / "out", RunOptions(executor=_ChangingExecutor()))
    _report_once(documents, benchmark, tmp_path / "out", RunOptions())


def test_a_benchmark_may_be_called_samples(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "docs.parquet", ["one two three four"])
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three"])
    sampled = write_jsonl(tmp_path / "s.jsonl", ["x y z"])
    run_report(tmp_path / "out", documents, [f"samples={benchmark}"], ngram=3, generated=sampled)
    write_jsonl(benchmark, ["one two four"])
    with pytest.raises(ChangedRunError, match="benchmark samples' has changed"):
        run_report(tmp_path / "out", documents, [f"samples={benchmark}"], ngram=3, generated=sampled)


def test_paths_are_not_part_of_the_identity(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "docs.parquet", ["one two three four"])
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three"])
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scores.jsonl").write_text('{"right": true}\n')
    named = [f"b={benchmark}"]
    run_report(tmp_path / "out", documents, named, ngram=3, scores=[f"b={tmp_path / 'a' / 'scores.jsonl'}"])
    run_report(tmp_path / "out", documents, named, ngram=3, scores=[f"b={tmp_path / 'b' / 'scores.jsonl'}"])
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text()


def test_benchmarks_too_large_for_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = write_documents(tmp_path / "docs.parquet", ["one two three four"])
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three"])
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 10)
    with pytest.raises(InputError, match=r"1 distinct n-grams.* use fewer --workers"):
        run_report(tmp_path / "out", documents, [f"b={benchmark}"], ngram=3)


def test_known_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap-report", "--list-benchmarks"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    entry = lines.index("gsm8k (also grade-school-math)")
    assert lines[entry + 1] == "  openai/gsm8k (main); license: MIT"
    assert lines[entry + 2] == "  splits: test, train; field: question+answer"
    assert "the paper: 1.63% in WebText, 0.66% in its own train split" in out
    assert max(map(len, lines[:-1])) <= 120
    assert main(["overlap-report", "--list-benchmarks", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["gsm8k"]["license"] == "MIT"

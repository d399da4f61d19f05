"""`webtext plan`: amounts, rates, and what they amount to."""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.engine.manifest import Identity, Manifest, ShardEntry, write_manifest
from pipelines.progress import Silent
from pipelines.projection import calibration
from pipelines.projection.calibration import Calibration, Rate, calibrate
from pipelines.projection.projection import Resources, StageProjection, project, simulate_crawl, total_disk
from pipelines.projection.workload import Workload, webtext
from pipelines.records import shards
from pipelines.stages.fetch.config import FetchConfig
from webtext_cli.main import main

_STAGES = (
    "scrape", "fetch", "extract", "filter", "dedup", "remove-wikipedia", "train-bpe", "tokenize", "overlap-index",
    "overlap-report",
)  # fmt: skip
_RATE = Rate(fixed_s=2.0, core_s=1e-6, output_bytes=0.5, work_bytes=0.25, worker_bytes=500_000_000)
_RATES = dict.fromkeys(_STAGES, _RATE)


def _project(work: Workload, nodes: int = 1, cores: int = 8, memory: int = 64 * 10**9, **prices: float) -> Any:
    crawl = simulate_crawl(work, _RATES["fetch"], FetchConfig(), latency_s=1.0)
    stages = project(work, _RATES, Resources(nodes, cores, memory, **prices), crawl)
    return {stage.stage: stage for stage in stages}


def test_a_stage_takes_its_start_and_its_work_divided_by_the_cores() -> None:
    stage = _project(webtext())["tokenize"]
    assert stage.seconds == pytest.approx(2.0 + 40e9 * 1e-6 / 8, rel=0.01)
    assert (stage.kept_bytes, stage.disk_bytes) == (20e9, 30e9)
    assert (stage.workers, stage.bottleneck) == (8, "cores")


@pytest.mark.parametrize(
    ("nodes", "memory_gb", "workers", "busy", "bottleneck"),
    [(4, 64, 8, 32, "cores"), (16, 64, 8, 64, "64 shards"), (2, 3, 3, 6, "memory")],
)
def test_shards_and_memory_limit_the_cores(
    nodes: int, memory_gb: int, workers: int, busy: int, bottleneck: str
) -> None:
    stage = _project(webtext(), nodes, memory=memory_gb * 10**9)["dedup"]
    assert (stage.workers, stage.bottleneck) == (workers, bottleneck)
    assert stage.seconds == pytest.approx(2.0 + 225e9 * 1e-6 / busy, rel=0.01)
    assert stage.memory_bytes <= memory_gb * 10**9


def test_amounts_follow_the_number_of_links() -> None:
    half, whole = webtext().scaled(22.5e6), webtext()
    assert half.submissions == whole.submissions / 2
    stages, more = _project(half), _project(whole)
    for name in ("scrape", "extract", "dedup"):
        assert stages[name].seconds - 2 == pytest.approx((more[name].seconds - 2) / 2)
        assert stages[name].disk_bytes == pytest.approx(more[name].disk_bytes / 2)


def test_what_one_process_does_is_not_divided() -> None:
    stage = _project(webtext(), nodes=8)["train-bpe"]
    alone = stage.seconds - 2.0 - 40e9 * 1e-6 / 64
    assert alone > 1
    assert _project(webtext(), nodes=1)["train-bpe"].seconds == pytest.approx(2.0 + 40e9 * 1e-6 / 8 + alone)


def test_money_is_that_of_idle_cores_too() -> None:
    stage = _project(webtext(), nodes=2, price_core_hour=0.1)["fetch"]
    assert stage.money == pytest.approx(stage.seconds / 3600 * 16 * 0.1)
    *before, dedup = itertools.islice(_project(webtext(), price_gb_month=1.0).values(), 5)
    stored = sum(stage.kept_bytes for stage in before) + dedup.disk_bytes
    assert dedup.money == pytest.approx(stored / 1e9 * dedup.seconds / 3600 / 730)
    assert _project(webtext())["dedup"].money is None


def test_the_peak_of_the_disk_is_what_is_kept_and_the_work_of_a_stage() -> None:
    stage = _project(webtext())["dedup"]
    parts = [(10.0, 4.0), (8.0, 8.0), (20.0, 1.0)]
    stages = [dataclasses.replace(stage, disk_bytes=disk, kept_bytes=kept) for disk, kept in parts]
    assert total_disk(stages) == 4 + 8 + 20


@pytest.fixture
def rates(tmp_path: Path) -> str:
    """The path of a calibration."""
    measured = Calibration(calibration.machine_name(), 2, "2026-01-01", _RATES)
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(dataclasses.asdict(measured)))
    return str(path)


def _plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_documents_are_planned_from_filter_on(tmp_path: Path, rates: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"document {number} with some words that differ {number * 7}" for number in range(200)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    result = _plan(capsys, "-i", str(tmp_path / "docs.jsonl"), "--calibration", rates)
    assert [stage["stage"] for stage in result["stages"]] == list(_STAGES[3:])
    assert result["workload"]["text_bytes"] == sum(map(len, texts))
    assert result["fastest_fetch"] is None
    assert result["total"]["seconds"] == sum(stage["seconds"] for stage in result["stages"])


def test_a_corpus_of_own_texts_is_a_sample(tmp_path: Path, rates: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(9)))
    (tmp_path / "webtext.toml").write_text('[build]\nskip = ["filter"]\n[dedup]\ninput = ["docs.jsonl"]\n')
    result = _plan(capsys, "--corpus", str(tmp_path), "--calibration", rates)
    assert [stage["stage"] for stage in result["stages"]] == list(_STAGES[4:])
    assert (result["workload"]["unique_documents"], result["workload"]["basis"]) == (9, f"the corpus {tmp_path}")


@pytest.mark.parametrize(
    ("toml", "has_result", "filtered", "unplanned"),
    [
        ("", False, 600, {"filter"}),
        ("", True, 400, set()),
        ('[build]\nstages = ["extract", "filter"]\n', False, 600, set()),
        ('[build]\nskip = ["filter", "remove-wikipedia"]\n', True, 600, {"filter", "remove-wikipedia"}),
    ],
)
def test_a_corpus_is_a_sample(
    toml: str,
    has_result: bool,
    filtered: int,
    unplanned: set[str],
    tmp_path: Path,
    rates: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    amounts = {"scrape": (1000, 100), "fetch": (100, 80), "extract": (80, 60), "dedup": (60, 45)}
    if has_result:
        amounts["filter"] = (60, 40)
    (tmp_path / "webtext.toml").write_text(toml)
    for stage, (records_in, records_out) in amounts.items():
        folder, entries = str(tmp_path / stage), []
        for number in range(2):  # the second shard of extract has no documents
            name = shards.shard_name("pages" if stage == "fetch" else "documents", number)
            with shards.write_shard(folder, name, pa.schema([("text", pa.string())])) as output:
                for _ in range(0 if number else records_out):
                    output.writer.write({"text": "some text"})
            files = (shards.write_file(folder, f"pages-0000{number}.warc.gz", bytes(4000)),) if stage == "fetch" else ()
            share = (0, 0) if number else (records_in, records_out)
            entries.append(ShardEntry("shards", name, *share, files=files or (output.entry,)))
        write_manifest(folder, Manifest(Identity(stage, 1, {}, {}), tuple(entries)))
    result = _plan(capsys, "--corpus", str(tmp_path), "--links", "1000", "--calibration", rates)
    work, stages = result["workload"], {stage["stage"]: stage for stage in result["stages"]}
    assert (work["submissions"], work["pages"], work["documents"]) == (10_000, 800, 600)
    documents = (work["filtered_documents"], work["unique_documents"])
    assert documents == pytest.approx((filtered, filtered * 45 / 60))
    assert (work["text_bytes"], work["page_bytes"], work["shards"]) == (600 * 9, 100, 2)
    assert (work["filtered_bytes"], work["unique_bytes"]) == pytest.approx((documents[0] * 9, documents[1] * 9))
    assert {*_STAGES} - {*stages} == unplanned
    assert stages["dedup"]["amount"] == work["filtered_bytes"]
    if "filter" in stages:
        assert (stages["filter"]["amount"], stages["filter"]["unit"]) == (600 * 9, "bytes")


def test_the_table_fits_a_terminal(rates: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--calibration", rates, "--nodes", "2", "--cores", "4", "--memory", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:11]] == list(_STAGES)
    assert lines[11].startswith("total: ")
    assert "with 2 machines of 4 cores and 16 GB of memory" in lines[12]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "{0}/none"], "none: no such file"),
        (["--corpus", "{0}"], "scrape, fetch and extract are not finished"),
        (["--corpus", "a", "-i", "b"], "are two samples; name one"),
        (["-i", "{0}/docs.txt", "--links", "5"], "contain no links"),
        (["--calibration", "{0}/docs.txt"], "is not valid JSON"),
        (["--links", "nan"], "nan is not a number"),
        (["--links", "1e30"], "1e+30 is not in the range"),
        (["--calibration", "{0}/other.json"], "not a calibration of this version"),
        (["--calibration", "{0}/before.json"], "before.json: has no rate of filter; measure all rates again with"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: Sequence[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs.txt").write_text("some text")
    (tmp_path / "other.json").write_text('{"rates": {"scrape": {"core_s": 1}}}')
    rates = {stage: rate for stage, rate in _RATES.items() if stage != "filter"}
    before = dataclasses.asdict(Calibration(calibration.machine_name(), 2, "2026-01-01", rates))
    (tmp_path / "before.json").write_text(json.dumps(before))
    assert main(["plan", "-q", *(argument.format(tmp_path) for argument in arguments)]) in (1, 2)
    assert message in capsys.readouterr().err


def test_an_interrupt_ends_the_stages_that_are_measured(tmp_path: Path) -> None:
    calibrator = calibration._Calibrator(str(tmp_path), ["some text"], Silent())
    dump = calibrator._dump(20_000)
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        calibrator._measure("scrape", [dump], [1.0])
    interrupt.join()
    assert multiprocessing.active_children() == []
    assert not list(tmp_path.glob("scrape/*/*/manifest.json"))


@pytest.mark.slow
def test_all_stages_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_SUBMISSIONS", (500, 1000, 3000))
    monkeypatch.setattr(calibration, "_PAGES", (2, 4, 8))
    monkeypatch.setattr(calibration, "_TEXT_BYTES", (400_000, 900_000, 1_800_000))
    measured = calibrate(webtext().sample.sample, Silent())
    assert tuple(measured.rates) == _STAGES
    for rate in measured.rates.values():
        assert rate.fixed_s > 0
        assert rate.worker_bytes > 30_000_000 or rate is measured.rates["extract"]
    assert all(measured.rates[stage].output_bytes > 0 for stage in _STAGES)
    crawl = simulate_crawl(webtext(), measured.rates["fetch"], FetchConfig(), 1.0)
    stages = project(webtext(), measured.rates, Resources(1, 2, 8 * 10**9), crawl)
    assert all(isinstance(stage, StageProjection) for stage in stages)

"""`webtext plan`: amounts, rates, and what they amount to."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.engine.manifest import Identity, Manifest, ShardEntry, write_manifest
from pipelines.plan import WEBTEXT, Rate, Resources, Workload, estimate_costs, peak_disk_bytes, read_rates
from pipelines.records import shards
from webtext_cli.main import main

_STAGES = (
    "scrape", "fetch", "extract", "filter", "dedup", "remove-wikipedia", "train-bpe", "tokenize", "overlap-index",
    "overlap-report", "search",
)  # fmt: skip
_RATE = Rate(fixed_s=2.0, core_s=1e-6, output_bytes=0.5, work_bytes=0.25, worker_bytes=500_000_000)


def _estimate(work: Workload, nodes: int = 1, cores: int = 8, memory: int = 64 * 10**9, **prices: float) -> Any:
    costs = estimate_costs(work, dict.fromkeys(_STAGES, _RATE), Resources(nodes, cores, memory, **prices))
    return {cost.stage: cost for cost in costs}


def test_a_stage_takes_its_start_and_its_work_divided_by_the_cores() -> None:
    stage = _estimate(WEBTEXT)["tokenize"]
    assert stage.seconds == pytest.approx(2.0 + 40e9 * 1e-6 / 8, rel=0.01)
    assert (stage.kept_bytes, stage.disk_bytes) == pytest.approx((20e9, 30e9))
    assert (stage.workers, stage.bottleneck) == (8, "cores")


@pytest.mark.parametrize(
    ("nodes", "memory_gb", "workers", "busy", "bottleneck"),
    [(4, 64, 8, 32, "cores"), (16, 64, 8, 64, "64 shards"), (2, 4, 7, 14, "memory")],
)
def test_shards_and_memory_limit_the_cores(
    nodes: int, memory_gb: int, workers: int, busy: int, bottleneck: str
) -> None:
    stage = _estimate(WEBTEXT, nodes, memory=memory_gb * 10**9)["dedup"]
    assert (stage.workers, stage.bottleneck) == (workers, bottleneck)
    assert stage.seconds == pytest.approx(2.0 + 45e6 * 0.7e-6 + 225e9 * 1e-6 / busy, rel=0.01)
    assert stage.memory_bytes <= memory_gb * 10**9


def test_a_machine_without_memory_for_one_worker_is_named() -> None:
    assert _estimate(WEBTEXT, memory=8 * 10**8)["dedup"].bottleneck == "lacks memory"


def test_amounts_follow_the_number_of_links() -> None:
    half = WEBTEXT.scaled("links", 22.5e6)
    assert half.submissions == WEBTEXT.submissions / 2
    assert WEBTEXT.scaled("documents", 22.5e6) == dataclasses.replace(
        half, basis=half.basis.replace("links", "documents")
    )
    stages, more = _estimate(half), _estimate(WEBTEXT)
    for name in ("scrape", "extract", "dedup"):
        assert stages[name].seconds - 2 == pytest.approx((more[name].seconds - 2) / 2)
        assert stages[name].disk_bytes == pytest.approx(more[name].disk_bytes / 2)


def test_a_crawl_waits_for_its_largest_site_or_for_open_requests() -> None:
    few, many = _estimate(WEBTEXT, cores=2)["fetch"], _estimate(WEBTEXT, cores=64)["fetch"]
    assert (few.bottleneck, many.bottleneck) == ("open requests", "largest site")
    # The share of the largest site of 2013, a second between two requests, and two until the answer.
    assert many.seconds == pytest.approx(45e6 * 0.023 * 3)
    assert few.seconds > 4 * many.seconds


def test_money_is_that_of_idle_cores_too() -> None:
    stage = _estimate(WEBTEXT, nodes=2, price_core_hour=0.1)["fetch"]
    assert stage.money == pytest.approx(stage.seconds / 3600 * 16 * 0.1)
    *before, dedup = itertools.islice(_estimate(WEBTEXT, price_gb_month=1.0).values(), 5)
    stored = sum(stage.kept_bytes for stage in before) + dedup.disk_bytes
    assert dedup.money == pytest.approx(stored / 1e9 * dedup.seconds / 3600 / 730)
    assert _estimate(WEBTEXT)["dedup"].money is None


def test_the_peak_of_the_disk_is_what_is_kept_and_the_work_of_a_stage() -> None:
    stage = _estimate(WEBTEXT)["dedup"]
    parts = [(10.0, 4.0), (8.0, 8.0), (20.0, 1.0)]
    stages = [dataclasses.replace(stage, disk_bytes=disk, kept_bytes=kept) for disk, kept in parts]
    assert peak_disk_bytes(stages) == 4 + 8 + 20


def test_the_table_has_a_rate_of_every_stage() -> None:
    rates = read_rates()
    assert tuple(rates) == _STAGES
    assert all(rate.core_s > 0 and rate.worker_bytes > 30_000_000 for rate in rates.values())


def test_memory_grows_with_the_records_of_a_shard_and_of_all() -> None:
    rate = dataclasses.replace(_RATE, shard_bytes=1000.0, driver_bytes=3.0)
    (driver, worker), (larger, same) = (rate.memory_bytes(n, n // 10**6) for n in (10**7, 10**8))
    assert worker == same == 500_000_000 + 1000 * 10**6
    assert larger - driver == 3 * 9e7
    stage = _estimate(WEBTEXT, memory=10**12)["extract"]
    assert stage.memory_bytes == sum((4e8, 8 * 5e8))


def test_the_page_about_memory_has_the_figures_of_the_table() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "scaling.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    shown = {row[0].strip("`"): [float(cell.replace(",", "")) for cell in row[1:4]] for row in rows if len(row) > 5}
    assert shown == {
        stage: [rate.driver_bytes, round(rate.worker_bytes / 1e6), rate.shard_bytes]
        for stage, rate in read_rates().items()
    }


def test_the_runs_of_a_corpus_replace_the_table(tmp_path: Path) -> None:
    work = dataclasses.replace(WEBTEXT, shards=2, text_bytes=1e9, unique=0.5)
    runs = [
        {"stage": "tokenize", "outcome": "failed", "seconds": 500, "workers": 8},
        {"stage": "tokenize", "outcome": "done", "whole": True, "seconds": 100, "workers": 8},
        {"stage": "tokenize", "outcome": "done", "whole": False, "seconds": 20, "workers": 8},
        {"stage": "dedup", "outcome": "done", "whole": True, "seconds": 2, "workers": 8},
    ]
    (tmp_path / "runs.log").write_text("".join(json.dumps(run) + "\n" for run in runs) + "{")
    rates, table = read_rates(str(tmp_path), work), read_rates()
    assert rates["tokenize"].core_s == pytest.approx((100 - table["tokenize"].fixed_s) * 2 / 5e8)
    assert rates["tokenize"].is_recorded
    assert rates["dedup"] == table["dedup"]


def _plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_documents_are_planned_from_filter_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "some words of text"}\n' * 1000)
    result = _plan(capsys, "-i", str(tmp_path / "docs.jsonl"))
    assert [stage["stage"] for stage in result["stages"]] == list(_STAGES[3:])
    assert 18_000 <= result["workload"]["text_bytes"] <= (tmp_path / "docs.jsonl").stat().st_size
    assert result["total"]["seconds"] == sum(stage["seconds"] for stage in result["stages"])


def test_a_corpus_of_own_texts_is_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(9)))
    (tmp_path / "webtext.toml").write_text('[build]\nskip = ["filter"]\n[dedup]\ninput = ["docs.jsonl"]\n')
    result = _plan(capsys, "--corpus", str(tmp_path))
    assert [stage["stage"] for stage in result["stages"]] == list(_STAGES[4:])
    assert (result["workload"]["unique"], result["workload"]["basis"]) == (1, f"the corpus {tmp_path}")


@pytest.mark.parametrize(
    ("toml", "has_result", "filtered", "unplanned"),
    [
        ("[fetch]\nper_host_delay = 3.0\n", False, 1, {"filter"}),
        ("", True, 40 / 60, set()),
        ('[build]\nstages = ["extract", "filter"]\n', False, 1, set()),
        ('[build]\nskip = ["filter", "remove-wikipedia"]\n', True, 1, {"filter", "remove-wikipedia"}),
    ],
)
def test_a_corpus_is_a_sample(
    toml: str,
    has_result: bool,
    filtered: float,
    unplanned: set[str],
    tmp_path: Path,
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
                    output.write({"text": "some text"})
            files = (shards.write_file(folder, f"pages-0000{number}.warc.gz", bytes(4000)),) if stage == "fetch" else ()
            share = (0, 0) if number else (records_in, records_out)
            entries.append(ShardEntry("shards", name, *share, files=files or (output.entry,)))
        write_manifest(folder, Manifest(Identity(stage, 1, {}, {}), tuple(entries)))
    result = _plan(capsys, "--corpus", str(tmp_path), "--target-links", "1000")
    work, stages = result["workload"], {stage["stage"]: stage for stage in result["stages"]}
    assert (work["submissions"], work["pages"], work["documents"]) == (10_000, 800, 600)
    assert (work["page_bytes"], work["shards"]) == (100, 2)
    assert work["per_host_delay_s"] == (3 if "per_host_delay" in toml else 1)
    assert (work["filtered"], work["unique"]) == pytest.approx((filtered, filtered * 45 / 60))
    assert {*_STAGES} - {*stages} == unplanned
    assert stages["dedup"]["amount"] == pytest.approx(work["text_bytes"] * filtered)
    if "filter" in stages:
        assert (stages["filter"]["amount"], stages["filter"]["unit"]) == (work["text_bytes"], "bytes")


def test_documents_are_scaled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "some words of text"}\n' * 1000)
    small, large = (
        _plan(capsys, str(tmp_path / "docs.jsonl"), *arguments)["workload"]
        for arguments in ((), ("--target-documents", "1e8"))
    )
    assert large["documents"] == 1e8
    assert large["text_bytes"] == pytest.approx(small["text_bytes"] * 1e8 / small["documents"])
    assert (small["shards"], large["shards"]) == (1, 533)  # of 896 MiB
    assert large["basis"] == "the documents of --input, scaled to 100,000,000 documents"


def test_a_corpus_of_lists_of_urls_has_no_submissions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "webtext.toml").write_text("")
    for stage, records_in, records_out in (("fetch", 100, 80), ("extract", 80, 60)):
        with shards.write_shard(
            str(tmp_path / stage), "documents-00000.parquet", pa.schema([("text", pa.string())])
        ) as file:
            file.write({"text": "some text"})
        entry = ShardEntry("shards", "documents-00000", records_in, records_out, files=(file.entry,))
        write_manifest(str(tmp_path / stage), Manifest(Identity(stage, 1, {}, {"urls": "hash"}), (entry,)))
    result = _plan(capsys, "--corpus", str(tmp_path))
    assert (result["workload"]["submissions"], result["workload"]["links"]) == (0, 100)
    assert result["stages"][0]["stage"] == "fetch"


def test_large_numbers_and_shards_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--target-links", "5.6e9", "--cores", "4", "--memory-gb", "64"]) == 0
    output = capsys.readouterr().out
    assert "53,585.8M submissions" in output
    assert "shards: 64, of about 87,500,000 links each; `scrape --shards 10000` would need less memory" in output
    assert main(["plan", "--target-documents", "1e6", "--cores", "4", "--memory-gb", "64"]) == 0
    assert "shards: 64, of about 15,625 links each\n" in capsys.readouterr().out


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--nodes", "2", "--cores", "4", "--memory-gb", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 85
    assert [line.split()[0] for line in lines[3 : 3 + len(_STAGES)]] == list(_STAGES)
    assert lines[4 + len(_STAGES)].startswith("total: ")
    assert "with 2 machines of 4 cores and 16 GB of memory" in lines[5 + len(_STAGES)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "{0}/none"], "none: no such file"),
        (["--corpus", "{0}"], "extract has not finished; run `webtext build --to extract --corpus {0}` first"),
        (["--corpus", "a", "-i", "b"], "--corpus cannot be combined with input files; use one"),
        (["-i", "{0}/docs.txt", "--target-links", "5"], "contain no links"),
        (["--target-links", "nan"], "nan: is not a number"),
        (["--target-links", "5", "--target-documents", "5"], "cannot be combined with --target-links; use one"),
        (["--target-links", "1e30"], "--target-links 1e30: must be at least 1 and at most"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: Sequence[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs.txt").write_text("some text")
    for stage in ("scrape", "fetch"):
        write_manifest(str(tmp_path / stage), Manifest(Identity(stage, 1, {}, {}), ()))
    assert main(["plan", *(argument.format(tmp_path) for argument in arguments)]) in (1, 2)
    assert message.format(tmp_path) in capsys.readouterr().err

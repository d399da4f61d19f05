"""Rehydration after kills, of later releases, and of folders that cannot be rehydrated."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local_web import LocalWeb
from release_folder import (
    QUICK,
    URLS,
    make_corpus,
    page,
    rows_of,
    run,
    small_web,
    stages_of,
    url_rows,
    verdicts,
    write_checksums,
    write_release,
)  # fmt: skip
from small_web import words_text
from warm_processes import start_process

from pipelines.corpus.rehydration import rehydrate_release
from pipelines.corpus.removal import remove
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError, UsageError

PREFIXES = ("links", "pages", "documents", "dropped", "verdicts")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("rehydrate") / "corpus")


@pytest.fixture
def release(corpus: Path, tmp_path: Path) -> Path:
    return write_release(tmp_path / "release", corpus)


def _rehydrate(release: str, corpus: str) -> None:
    list(rehydrate_release(release, corpus, RunOptions(), {**QUICK, "per_host_delay": 0.02}))


@pytest.mark.slow
@pytest.mark.usefixtures("warm_processes")
def test_kills_lose_nothing_and_repeat_few_requests(release: Path, tmp_path: Path) -> None:
    new, kills = tmp_path / "new", 0
    with LocalWeb(small_web() | {URLS[0]: page(words_text(999, 240))}) as web, web.as_proxy():
        for number in range(40):
            process = start_process(_rehydrate, str(release), str(new))
            process.join(0.1 * 1.15**number)  # the last ones are long enough for a busy machine
            if process.exitcode is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        assert process.exitcode == 0
        assert kills >= 5
        requests = web.paths()
    assert {*requests} == {*URLS}
    assert len(requests) <= len(URLS) + 2 * kills
    found = verdicts(new)
    assert found.pop(URLS[0])["verdict"] == "changed"
    assert len(found) == 11
    assert {row["verdict"] for row in found.values()} == {"exact"}
    assert list(new.rglob("_*")) == []


def test_a_finished_rehydration_requests_nothing(release: Path, tmp_path: Path) -> None:
    run(release, tmp_path / "new")
    before = {path: path.read_bytes() for path in (tmp_path / "new").rglob("*.parquet")}
    summary, notes = run(release, tmp_path / "new", {})
    assert summary.extra["exact"] == 12
    assert len([note for note in notes if note.endswith("already complete; checksums verified")]) == 4
    assert {path: path.read_bytes() for path in (tmp_path / "new").rglob("*.parquet")} == before


def test_a_later_release_needs_overwrite_and_requests_only_what_is_new(corpus: Path, tmp_path: Path) -> None:
    rows = url_rows(corpus)
    first = write_release(tmp_path / "first", corpus, rows[:9])
    second = write_release(tmp_path / "second", corpus, rows[2:], version="2.0.0")
    run(first, tmp_path / "new")
    with pytest.raises(ChangedRunError, match="its input 'release' has changed"):
        run(second, tmp_path / "new")
    web = {url: body for url, body in small_web().items() if url in URLS[9:]}
    assert run(second, tmp_path / "new", web, overwrite=True)[0].extra["exact"] == 10
    assert {*verdicts(tmp_path / "new")} == {row["url"] for row in rows[2:]}


def test_another_version_is_refused_with_the_difference(release: Path, corpus: Path, tmp_path: Path) -> None:
    stages = stages_of(release)
    version = stages["extract"]["version"]
    stages["extract"]["version"] = 3
    shutil.rmtree(release)
    release = write_release(tmp_path / "release", corpus, stages=stages)
    difference = f"it was built by version 3 of the stage, this is version {version}"
    with pytest.raises(InputError, match=rf"release.json: extract: {difference}; .*--any-version"):
        run(release, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    summary, notes = run(release, tmp_path / "new", any_version=True)
    assert summary.extra["exact"] == 12
    assert difference in notes[0]


def test_other_packages_are_noted(release: Path, corpus: Path, tmp_path: Path) -> None:
    stages = stages_of(release)
    stages["extract"]["inputs"]["extractor"] = "lxml 1.0"
    shutil.rmtree(release)
    release = write_release(tmp_path / "release", corpus, stages=stages)
    _, notes = run(release, tmp_path / "new")
    assert "its input 'extractor' has changed; equal pages can give other texts" in notes[0]


def test_recorded_options_are_used_but_not_those_of_the_network(release: Path, corpus: Path, tmp_path: Path) -> None:
    stages = stages_of(release)
    stages["fetch"]["config"] |= {"max_page_bytes": 1000, "max_redirects": 3, "user_agent": "other/1"}
    stages["extract"]["config"] |= {"format": "markdown"}
    shutil.rmtree(release)
    release = write_release(tmp_path / "release", corpus, stages=stages)
    run(release, tmp_path / "new", max_page_bytes=500_000)
    fetch = json.loads((tmp_path / "new/fetch/manifest.json").read_text())["config"]
    assert (fetch["max_page_bytes"], fetch["max_redirects"], fetch["user_agent"]) == (500_000, 3, "webtext/0.1")
    assert json.loads((tmp_path / "new/rehydrate/manifest.json").read_text())["text_format"] == "markdown"
    assert {row["verdict"] for row in verdicts(tmp_path / "new").values()} <= {"exact", "near"}


def _without(column: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.drop_columns([column])


def _set(column: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.get_field_index(column), column, values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("sketch"), "has no column 'sketch'"),
        (_set("outcome", pa.array([1] * 12)), "is not a table of URLs of a release"),
        (_set("text_sha256", pa.nulls(12, pa.binary(32))), "has a document without text_sha256"),
        (_set("id", pa.nulls(12, pa.string())), "has a document without id"),
        (_set("sketch", pa.array([b"x"] * 12)), "is not a table of URLs of a release"),
        (_set("title", pa.array([b"\xff"] * 12).view(pa.string())), "is not a table of URLs of a release .*UTF8"),
        (_set("domain", pa.array([b"\xff"] * 12).view(pa.string())), "is not a table of URLs of a release .*UTF8"),
        (_set("score", pa.array(["many"] * 12)), "is not a table of URLs of a release"),
    ],
)
def test_hostile_tables(corpus: Path, tmp_path: Path, change: Any, message: str) -> None:
    release = write_release(tmp_path / "release", corpus, tables=1)
    table = release / "urls/urls-00000.parquet"
    pq.write_table(change(pq.read_table(table)), table)
    write_checksums(release)
    with pytest.raises(InputError, match=f"urls-00000.parquet: {message}"):
        run(release, tmp_path / "new")


def _edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(release: Path) -> None:
        path = release / name
        path.write_text(path.read_text().replace(old, new))
        if name != "SHA256SUMS":
            write_checksums(release)

    return edit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda release: (release / "release.json").unlink(), "release: has no release.json; name a folder that"),
        (lambda release: (release / "SHA256SUMS").unlink(), "SHA256SUMS: "),
        (lambda release: (release / "SHA256SUMS").write_bytes(b"\xff"), "SHA256SUMS: is not a list of checksums"),
        (lambda release: (release / "SHA256SUMS").write_text("x"), "SHA256SUMS: is not a list of checksums"),
        (lambda release: (release / "release.json").write_text("{}"), "release.json: does not match its checksum in "),
        (lambda release: (release / "urls/urls-00001.parquet").write_bytes(b"x"), "urls-00001.parquet: does not match"),
        (lambda release: (release / "urls/urls-00001.parquet").unlink(), "urls-00001.parquet: "),
        (_edit("release.json", '"format": 1', '"format": 2'), "release.json: has format 2"),
        (_edit("release.json", '"stages"', '"s"'), "release.json: is not the description of a release"),
        (_edit("release.json", '"version": 1', '"version": "1'), "release.json: "),
        (_edit("release.json", '"extract": {', '"other": {'), "release.json: has no stage extract"),
        (_edit("SHA256SUMS", "urls/", "urls/../urls/"), "SHA256SUMS: lists no urls/urls-NNNNN.parquet"),
    ],
)
def test_folders_that_are_no_release(release: Path, tmp_path: Path, change: Any, message: str) -> None:
    change(release)
    with pytest.raises(InputError, match=message):
        run(release, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_unknown_recorded_options(release: Path, corpus: Path, tmp_path: Path) -> None:
    stages = stages_of(release)
    stages["extract"]["config"]["colour"] = "red"
    shutil.rmtree(release)
    release = write_release(tmp_path / "release", corpus, stages=stages)
    with pytest.raises(UsageError, match=r"release.json \[extract\]: unknown option 'colour'"):
        run(release, tmp_path / "new")


def test_a_url_that_is_repeated_has_one_page(corpus: Path, tmp_path: Path) -> None:
    rows = url_rows(corpus)
    release = write_release(tmp_path / "release", corpus, [*rows, rows[0] | {"id": "again"}])
    summary, _ = run(release, tmp_path / "new")
    assert (summary.records_in, summary.extra["exact"], dict(summary.dropped)) == (13, 12, {"gone": 1})
    [gone] = [row for row in rows_of(tmp_path / "new/rehydrate", "verdicts") if row["verdict"] == "gone"]
    assert (gone["url"], gone["reason"]) == (rows[0]["url"], "fetch.duplicate_url")


def test_a_document_that_was_removed_does_not_come_back(release: Path, corpus: Path, tmp_path: Path) -> None:
    new, requests = tmp_path / "new", tmp_path / "requests.csv"
    run(release, new)
    requests.write_text(f"kind,value,reason,date\nurl,{URLS[1]},the owner asks,2026-11-28\n")
    remove(str(new), str(requests), RunOptions(), pages=False, rebuild=False)
    named = [(folder, prefix) for folder in ("scrape", "fetch", "extract", "rehydrate") for prefix in PREFIXES]

    def urls() -> set[str]:
        return {row["url"] for folder, prefix in named for row in rows_of(new / folder, prefix)}

    assert urls() == {*URLS} - {URLS[1]}
    later = write_release(tmp_path / "later", corpus, version="1.0.1")
    summary, _ = run(later, new, overwrite=True)
    assert (summary.records_in, summary.extra["exact"], urls()) == (11, 11, {*URLS} - {URLS[1]})
    assert json.loads((new / "scrape/manifest.json").read_text())["dropped"] == {"removed": 1}


def test_authors_are_not_known(release: Path, tmp_path: Path) -> None:
    run(release, tmp_path / "new")
    requests = tmp_path / "requests.csv"
    requests.write_text("kind,value,reason,date\nauthor,someone,the author asks,2026-11-28\n")
    with pytest.raises(InputError, match="has no column 'authors'"):
        remove(str(tmp_path / "new"), str(requests), RunOptions(), pages=False, rebuild=False)

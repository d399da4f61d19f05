"""The index of a reference: used again, the same bytes from any run, refused where it is damaged."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reference_run import DOCUMENTS, DROPPED, article, dropped, files, run, write_documents, write_dump

from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import (
    ChangedRunError,
    DamagedShardError,
    InputError,
    UsageError,
)
from pipelines.stages.remove_wikipedia import reference
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from pipelines.stages.remove_wikipedia.stage import remove_wikipedia
from pipelines.storage import files as storage_files

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("documents") / "documents.jsonl")


@pytest.fixture(scope="module")
def built(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    run(documents, folder / "out", write_dump(folder / "enwiki-pages-articles.xml.bz2"))
    return folder / "out"


def test_an_index_is_used_again(documents: Path, built: Path, tmp_path: Path) -> None:
    summary = run(documents, tmp_path / "out", index=built)
    assert dropped(tmp_path / "out") == dropped(built)
    assert summary.records_in == len(DOCUMENTS)
    assert not list((tmp_path / "out").glob("reference-*"))


def write_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Path], list[Path]]:
    """Write documents in three files and a reference in four, of which the index has eight parts."""
    folder.mkdir()
    monkeypatch.setattr(reference, "_PART_BYTES", 4000)
    items = list(DOCUMENTS.items())
    texts = []
    for number in range(3):
        pq.write_table(
            pa.Table.from_pylist([{"id": id, "text": text} for id, text in items[number::3]]),
            folder / f"documents-{number}.parquet",
        )
    for number in range(3):
        rows = [{"title": f"text {number}-{at}", "text": article(at)} for at in range(number, 8)]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"text-{number}.parquet")
        texts.append(folder / f"text-{number}.parquet")
    return sorted(folder.glob("documents-*")), [*texts, write_dump(folder / "a.xml.bz2")]


def test_the_bytes_are_the_same_for_one_worker_and_three_and_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, references = write_parts(tmp_path / "in", monkeypatch)
    documents = tmp_path / "in" / "documents-*.parquet"
    run(documents, tmp_path / "one", *references)
    run(documents, tmp_path / "three", *references[::-1], workers=3)
    one = files(tmp_path / "one")
    assert len([name for name in one if name.startswith("reference-")]) == 8
    assert one == files(tmp_path / "three")


def test_what_is_dropped_does_not_depend_on_the_order_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, references = write_parts(tmp_path / "in", monkeypatch)
    outcomes = []
    for name, order in (("forward", documents), ("backward", documents[::-1])):
        remove_wikipedia(
            RemoveWikipediaConfig(),
            documents=[str(path) for path in order],
            output=str(tmp_path / name),
            options=RunOptions(),
            reference=[str(path) for path in references],
        )
        outcomes.append(dropped(tmp_path / name))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) == len(DROPPED)


def test_a_run_that_is_killed_again_and_again_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, references = write_parts(tmp_path / "in", monkeypatch)
    documents = tmp_path / "in" / "documents-*.parquet"
    run(documents, tmp_path / "whole", *references)
    kills, journals = 0, set()
    while killed(documents, tmp_path / "out", references, when="before" if kills % 2 else "after"):
        kills += 1
        journals |= {path.name.split("-")[0] for path in (tmp_path / "out" / "_journal").iterdir()}
        assert kills < 50
    phases = {entry.phase for entry in read_manifest(str(tmp_path / "out")).shards}
    assert phases == {"reference", "titles", "index", "shards", "card"}
    assert kills > 8
    assert journals >= {"reference", "titles", "index", "shards"}
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert not list((tmp_path / "out").glob("_*"))


def killed(documents: Path, output: Path, references: list[Path], when: str) -> bool:
    """Run in a fork that kills itself at its fifth file, apart from its progress; return whether it did."""
    process = os.fork()
    if not process:
        rename, renames = storage_files._rename, 0

        def counted(*arguments: Any) -> None:
            nonlocal renames
            renames += not str(arguments[-1]).endswith(".progress.json")
            if renames == 5 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            rename(*arguments)
            if renames == 5 and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)

        storage_files._rename = counted  # type: ignore[assignment]
        try:
            run(documents, output, *references)
        except BaseException:  # noqa: BLE001 - the tests of this process must not continue in the fork
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    exit_code = os.waitstatus_to_exitcode(status)
    assert exit_code in (0, -signal.SIGKILL)
    return exit_code != 0


def test_another_reference_is_another_result(documents: Path, built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "out")
    with pytest.raises(ChangedRunError, match="its input 'reference' has changed"):
        run(documents, tmp_path / "out", write_documents(tmp_path / "a.jsonl"))
    with pytest.raises(ChangedRunError, match=r"reference_share was 0.5, is now 0.6"):
        run(documents, tmp_path / "out", write_dump(tmp_path / "enwiki-pages-articles.xml.bz2"), reference_share=0.6)


def test_a_reference_and_an_index_exclude_each_other(documents: Path, built: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--reference and --reference-index cannot be combined"):
        run(documents, tmp_path / "out", write_dump(tmp_path / "a.xml"), index=built)


def test_a_folder_without_an_index_is_refused(documents: Path, built: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        run(documents, tmp_path / "out", index=tmp_path / "missing")
    row = {"id": "1", "url": "https://a.example/", "text": "x"}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    run(tmp_path / "in.jsonl", tmp_path / "plain")
    with pytest.raises(InputError, match=r"plain: has no index of a reference; build one with"):
        run(documents, tmp_path / "out", index=tmp_path / "plain")
    shutil.copytree(built, tmp_path / "old")
    manifest = json.loads((tmp_path / "old" / "manifest.json").read_text())
    manifest["version"] = 1
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"old: is of version 1, not 4; build one with"):
        run(documents, tmp_path / "out", index=tmp_path / "old")


@pytest.mark.parametrize("prefix", ["reference", "titles"])
def test_a_damaged_index_is_refused(documents: Path, built: Path, tmp_path: Path, prefix: str) -> None:
    shutil.copytree(built, tmp_path / "damaged")
    [path] = (tmp_path / "damaged").glob(f"{prefix}-*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedShardError, match=rf"{path.name}: is damaged"):
        run(documents, tmp_path / "out", index=tmp_path / "damaged")

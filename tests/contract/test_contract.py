"""What every stage guarantees, tested from one table."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_web
from contract_cases import CASES, leftovers, outcome, run_stage, stage_names
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter
from warm_processes import multiprocessing_with_forks

from pipelines import storage
from pipelines.engine.config import make_config
from pipelines.engine.executor import LocalExecutor, make_executor
from pipelines.engine.folder_lock import folder_lock
from pipelines.engine.journal import JOURNAL, WORK, OutputFolder
from pipelines.engine.manifest import Identity, check_entries, read_manifest
from pipelines.engine.run import RunOptions
from pipelines.engine.tasks import Executor
from pipelines.errors import ChangedRunError, DamagedShardError, LockedError
from pipelines.pipeline import BY_NAME
from pipelines.progress import Silent
from pipelines.storage import join, sha256_of

pytestmark = pytest.mark.usefixtures("warm_processes", "on_the_web")

_ALL_STAGES = pytest.mark.parametrize("name", stage_names())

# How many times the overwrite of each stage is killed: together about two minutes. With WEBTEXT_TEST_WORKERS=2 the runs
# have worker processes, which start for each of them.
_KILLS = int(os.environ.get("WEBTEXT_TEST_KILLS", "8"))

# Files next to a result that the manifest does not list: times, which differ from run to run, and checkpoints; and the
# submissions of each dump.
_UNLISTED = {
    "scrape": ("partitions",),
    "pretrain": ("timing.jsonl", "training.html", "checkpoints"),
    "train-bpe": ("timing.json", "report.html"),
}


class Notes(Silent):
    """Collects the notes that a user would see."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_an_unfinished_run_is_private_and_its_result_as_other_programs_write_files(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    remove_journal = OutputFolder.remove_journal

    def record(folder: OutputFolder) -> None:
        modes.extend(Path(folder.path, name).stat().st_mode & 0o777 for name in (JOURNAL, WORK))
        remove_journal(folder)

    monkeypatch.setattr(OutputFolder, "remove_journal", record)
    run_stage(corpus, "dedup", tmp_path / "out", RunOptions())
    assert modes == [0o700, 0o700]
    (tmp_path / "other").touch()
    expected = (tmp_path / "other").stat().st_mode
    folders = [tmp_path / "out", *(corpus / name for name in stage_names())]
    written = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert {path: path.stat().st_mode for path in written} == dict.fromkeys(written, expected)


@_ALL_STAGES
def test_overwrite_replaces_its_own_files(corpus: Path, name: str, tmp_path: Path) -> None:
    shutil.copytree(corpus / name, tmp_path / name)
    (key, value), *_ = CASES[name].changed.items()
    run_stage(corpus, name, tmp_path / name, RunOptions(overwrite=True, discard_pages=True), **{key: value})
    assert leftovers(tmp_path / name, _UNLISTED.get(name, ())) == []
    assert read_manifest(str(tmp_path / name)).identity != read_manifest(str(corpus / name)).identity


@_ALL_STAGES
def test_an_overwrite_leaves_the_old_result_as_it_was_until_the_new_one_is_complete(
    corpus: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / name
    shutil.copytree(corpus / name, out)
    (key, value), *_ = CASES[name].changed.items()
    options = RunOptions(overwrite=True, discard_pages=True)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.engine.stage_run.replace_result", stop)
        with pytest.raises(KeyboardInterrupt):
            run_stage(corpus, name, out, options, **{key: value})
    old = {path.relative_to(corpus / name): path.read_bytes() for path in (corpus / name).rglob("*") if path.is_file()}
    assert {path: (out / path).read_bytes() for path in old} == old
    run_stage(corpus, name, out, options, **{key: value})
    assert leftovers(out, _UNLISTED.get(name, ())) == []
    assert read_manifest(str(out)).identity != read_manifest(str(corpus / name)).identity


def test_the_table_has_every_stage() -> None:
    assert list(CASES) == stage_names()


@_ALL_STAGES
def test_records_in_are_records_out_and_drops(corpus: Path, name: str) -> None:
    manifest = read_manifest(str(corpus / name))
    assert manifest.records_in > 0
    assert manifest.records_out > 0
    assert manifest.records_in == manifest.records_out + sum(manifest.dropped.values())


@_ALL_STAGES
def test_a_stage_reads_all_records_of_the_stage_before(corpus: Path, name: str) -> None:
    for parameter, source in BY_NAME[name].reads.items():
        if parameter in ("documents", "pages"):
            written = read_manifest(str(corpus / source)).records_out
            assert read_manifest(str(corpus / name)).records_in == written


@_ALL_STAGES
def test_no_other_files_are_left(corpus: Path, name: str) -> None:
    assert leftovers(corpus / name, _UNLISTED.get(name, ())) == []


class SharedWorkers(LocalExecutor):
    """Worker processes that stages keep from one to the next, since most of their time would be imports."""

    def persistent_workers(
        self, initializer: Callable[[], None] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@pytest.fixture(scope="module")
def three_workers(web: dict[str, str]) -> Iterator[LocalExecutor]:
    """Three worker processes, the same for all stages."""
    executor = SharedWorkers(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.engine.executor.multiprocessing", multiprocessing_with_forks())
        for variable, value in web.items():
            patch.setenv(variable, value)
        with LocalExecutor.persistent_workers(executor):
            yield executor


@_ALL_STAGES
def test_three_workers_write_the_same_as_one(
    corpus: Path, name: str, tmp_path: Path, three_workers: LocalExecutor
) -> None:
    run_stage(corpus, name, tmp_path / name, RunOptions(executor=three_workers))
    assert outcome(tmp_path / name) == outcome(corpus / name)


@contextlib.contextmanager
def two_ray_nodes(web: dict[str, str]) -> Iterator[tuple[Executor, Callable[[], None]]]:
    """Yield an executor on a Ray cluster of two nodes, both on this machine, and a function that kills one of them."""
    pytest.importorskip("ray", reason="needs the package ray: pip install '.[ray]'")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        # Workers inherit it: the servers of the test, and the modules of this checkout. The cluster has no token.
        modules = os.pathsep.join(filter(None, sys.path))
        for variable, value in {**web, "PYTHONPATH": modules, "RAY_AUTH_MODE": "disabled"}.items():
            patch.setenv(variable, value)
        cluster = Cluster()
        _, second = (cluster.add_node(num_cpus=2, include_dashboard=False, object_store_memory=1 << 27) for _ in "ab")
        try:
            kill = functools.partial(cluster.remove_node, second, allow_graceful=False)
            yield make_executor(None, "ray", cluster.address), kill
        finally:
            ray = importlib.import_module("ray")
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(scope="module")
def ray_executor(web: dict[str, str]) -> Iterator[Executor]:
    with two_ray_nodes(web) as (executor, _):
        yield executor


@pytest.mark.slow
@_ALL_STAGES
def test_ray_writes_the_same_as_one_process(corpus: Path, name: str, tmp_path: Path, ray_executor: Executor) -> None:
    run_stage(corpus, name, tmp_path / name, RunOptions(executor=ray_executor))
    assert outcome(tmp_path / name) == outcome(corpus / name)


class LosesNode:
    """Runs tasks on a Ray cluster of which one node is killed after the first result of the first long map."""

    def __init__(self, executor: Executor, kill: Callable[[], None]) -> None:
        self._executor = executor
        self._kill = kill
        self.has_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def map(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        items = arguments[1]
        for pair in self._executor.map(*arguments, **options):
            if len(items) > 3 and not self.has_lost:
                self._kill()
                self.has_lost = True
            yield pair


@pytest.mark.slow
# warcio leaves the files of the records that it writes open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["extract", "dedup", "tokenize"])
def test_a_ray_node_that_dies_changes_nothing(corpus: Path, name: str, tmp_path: Path, web: dict[str, str]) -> None:
    for number in range(12):
        rows = [{"id": f"{number}-{index}", "text": small_web.words_text(number, 90 + index)} for index in range(20)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{number}.parquet")
        _write_warc(tmp_path / f"{number}.warc.gz", number)
    stage = BY_NAME[name]
    files = {"extract": {"pages": f"{tmp_path}/*.warc.gz", "links": None}}.get(
        name, {"documents": f"{tmp_path}/*.parquet"}
    )
    if name == "tokenize":
        files["tokenizer"] = str(corpus / "train-bpe")
    config = make_config(stage.config_type(), CASES[name].config, {}, str)
    with two_ray_nodes(web) as (executor, kill):
        loses = LosesNode(executor, kill)
        stage.load()(config, **files, output=str(tmp_path / "ray"), options=RunOptions(executor=loses))
        assert loses.has_lost
    stage.load()(config, **files, output=str(tmp_path / "alone"), options=RunOptions())
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "alone")


def _write_warc(path: Path, seed: int) -> None:
    with path.open("wb") as stream:
        writer = WARCWriter(stream, gzip=True)
        for index in range(5):
            text = small_web.words_text(seed, 200 + index)
            page = f"<html><body><article><p>{text}</p></article></body></html>".encode()
            headers = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
            url = f"http://site{seed}.test/{index}"
            writer.write_record(writer.create_warc_record(url, "response", io.BytesIO(page), http_headers=headers))


@pytest.fixture(scope="module")
def killed_runs(corpus: Path, web: dict[str, str]) -> Iterator[Callable[..., int]]:
    """A function that runs a stage once per moment of a kill and returns how many of the runs were killed.

    One process forks the runs of all stages, since most of their time would be imports.
    """
    script = Path(__file__).with_name("killed_run.py")
    environment = {**os.environ, **web, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])}
    command = [sys.executable, str(script), str(corpus)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def run(stage: str, output: Path, *moments: str) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            print(stage, output, *moments, file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, f"{script.name} ended; its error is printed above"
            return int(answer)

        yield run


@_ALL_STAGES
def test_killed_runs_resume_to_the_same_bytes(
    corpus: Path, name: str, tmp_path: Path, killed_runs: Callable[..., int]
) -> None:
    output = tmp_path / name
    # Each run dies a little later, alternately before and after a file gets its name.
    killed = killed_runs(name, output, "1:before", "2:after", "3:before", "3:after", "5:before", "4:after")
    assert killed >= 3
    run_stage(corpus, name, output, RunOptions())
    assert outcome(output) == outcome(corpus / name)
    assert leftovers(output, _UNLISTED.get(name, ())) == []


@pytest.mark.slow
@_ALL_STAGES
def test_an_overwrite_that_is_killed_at_random_moments_leaves_one_whole_result(
    corpus: Path, name: str, tmp_path: Path, killed_runs: Callable[..., int]
) -> None:
    seed = int(os.environ.get("WEBTEXT_TEST_SEED", time.time_ns()))
    output, random_source = tmp_path / name, random.Random(seed)
    run_stage(corpus, name, tmp_path / "changed", RunOptions(), **CASES[name].changed)
    results = {"base": _result(corpus / name), "changed": _result(tmp_path / "changed")}
    shutil.copytree(tmp_path / "changed", output)
    killed_runs(name, output, "600:base")  # with the imports of the stage
    started = time.monotonic()
    assert killed_runs(name, output, "600:changed") == 0
    seconds = time.monotonic() - started
    current, requested, killed, completed, moving = "changed", "base", 0, 0, 0
    while killed < _KILLS:
        moment = str(random_source.uniform(0, 1.1 * seconds))
        if killed % 4 == 3:  # the short time in which files are moved, which few random moments meet
            moment = f"+{random_source.uniform(0, 0.004)}"
        killed += killed_runs(name, output, f"{moment}:{requested}")
        moving += (output / "_next" / "manifest.json").exists()
        manifest, where = read_manifest(str(output)), f"seed {seed}, kill {killed}"
        assert not any(check_entries(str(output), manifest.final_shards)), where
        assert _result(output) in (results[current], results[requested]), where
        if _result(output) == results[requested]:
            current, requested, completed = requested, current, completed + 1
    print(f"{name}: {killed} kills, {moving} of them during the move; {completed} replacements were completed before")
    assert killed_runs(name, output, f"600:{requested}") == 0
    assert _result(output) == results[requested], f"seed {seed}"
    assert leftovers(output, _UNLISTED.get(name, ())) == [], f"seed {seed}"
    assert not list(output.glob("_*")), f"seed {seed}"


def _result(folder: Path) -> tuple[Identity, dict[str, str]]:
    return read_manifest(str(folder)).identity, outcome(folder)


@_ALL_STAGES
def test_a_changed_config_is_refused_with_the_difference(corpus: Path, name: str) -> None:
    (key, value), *_ = CASES[name].changed.items()
    with pytest.raises(ChangedRunError, match=rf"{key} was .*, is now .*Use --overwrite"):
        run_stage(corpus, name, corpus / name, RunOptions(), **{key: value})


@_ALL_STAGES
def test_a_damaged_shard_is_named_and_rebuilt(corpus: Path, name: str, tmp_path: Path) -> None:
    shutil.copytree(corpus / name, tmp_path / name)
    file = max(read_manifest(str(corpus / name)).files, key=lambda file: file.size_bytes)
    data = bytearray((tmp_path / name / file.name).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / name / file.name).write_bytes(data)
    notes = Notes()
    if name == "fetch":
        with pytest.raises(DamagedShardError, match="--discard-pages to delete the pages of its shard"):
            run_stage(corpus, name, tmp_path / name, RunOptions(overwrite=True))
        assert (tmp_path / name / file.name).read_bytes() == data
    run_stage(corpus, name, tmp_path / name, RunOptions(progress=notes, discard_pages=name == "fetch"))
    assert any(f"{file.name}: is damaged" in note for note in notes.notes)
    assert outcome(tmp_path / name) == outcome(corpus / name)


@pytest.mark.parametrize("name", [name for name in stage_names() if BY_NAME[name].reads])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_input_is_refused_by_name(corpus: Path, name: str, tmp_path: Path, damage: str) -> None:
    source = next(iter(BY_NAME[name].reads.values()))
    for folder in {*BY_NAME[name].reads.values()}:
        shutil.copytree(corpus / folder, tmp_path / folder)
    shutil.copy(corpus / "sentences.jsonl", tmp_path)
    files = read_manifest(str(corpus / source)).files
    prefixes = ("links-", "pages-", "documents-", "train-")
    file = max((file for file in files if file.name.startswith(prefixes)), key=lambda file: file.size_bytes)
    path = tmp_path / source / file.name
    if damage == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    with pytest.raises(DamagedShardError, match=rf"{file.name}: is (missing|damaged).*re-run `webtext {source}`"):
        run_stage(tmp_path, name, tmp_path / name, RunOptions())


@_ALL_STAGES
def test_a_second_process_on_the_same_folder_is_refused(corpus: Path, name: str, tmp_path: Path) -> None:
    with folder_lock(str(tmp_path / name)), pytest.raises(LockedError, match="is being written by"):
        run_stage(corpus, name, tmp_path / name, RunOptions())


@pytest.mark.parametrize("name", [name for name in stage_names() if name != "pretrain"])
def test_a_remote_store_gets_the_same_files(corpus: Path, name: str) -> None:
    folder = f"memory://contract-{os.getpid()}/{name}"
    run_stage(corpus, name, folder, RunOptions())
    remote, local = read_manifest(folder), read_manifest(str(corpus / name))
    assert [file.name for file in remote.files] == [file.name for file in local.files]
    for file in remote.files:
        assert sha256_of(join(folder, file.name)) == file.sha256
    if name != "fetch":
        assert remote == local


@pytest.mark.slow  # test_build_in_bucket and test_unreliable_store do the same for most stages
def test_a_corpus_in_an_object_store_has_the_same_files(corpus: Path, bucket: str) -> None:
    # The pages are copied, since their times would differ.
    for path in filter(Path.is_file, (corpus / "fetch").rglob("*")):
        storage.write_bytes(f"{bucket}/fetch/{path.relative_to(corpus / 'fetch')}", path.read_bytes())
    for name in stage_names():
        folder = f"{bucket}/fetch-again" if name == "fetch" else f"{bucket}/{name}"
        run_stage(corpus, name, folder, RunOptions(), upstream=bucket)
        remote, local = read_manifest(folder), read_manifest(str(corpus / name))
        assert [file.name for file in remote.files] == [file.name for file in local.files]
        assert check_entries(folder, remote.final_shards) == [None] * len(remote.final_shards)
        if name not in ("fetch", "pretrain"):
            assert [file.sha256 for file in remote.files] == [file.sha256 for file in local.files], name
    assert not [path for path in storage.walk_files(bucket) if ".tmp-" in path or ".lock" in path]


@_ALL_STAGES
def test_a_finished_stage_is_not_run_again(corpus: Path, name: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in (corpus / name).rglob("*") if path.is_file()}
    run_stage(corpus, name, corpus / name, RunOptions())
    after = {path: path.stat().st_mtime_ns for path in (corpus / name).rglob("*") if path.is_file()}
    assert {path: time for path, time in after.items() if not path.name.startswith(".lock")} == {
        path: time for path, time in before.items() if not path.name.startswith(".lock")
    }

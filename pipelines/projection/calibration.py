"""Measures the rates of the stages on this machine, with inputs that are made from a sample of texts.

Each stage runs in some processes at once, as many as there are cores, since busy cores slow each other down. A process
runs it on a first input, which loads modules and compiles kernels, and then on a small and a larger one: the difference
is what more input costs. Texts are random words of the sample, so they have no duplicates; pages are those of Python's
documentation.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
import multiprocessing
import platform
import resource
import statistics
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from pipelines import storage
from pipelines.demo.pages import demo_routes
from pipelines.demo.submissions import demo_submissions
from pipelines.demo.web import demo_web
from pipelines.engine import machine
from pipelines.engine.executor import LocalExecutor, SerialExecutor, default_workers, sigint_blocked
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, WebtextError
from pipelines.pipeline import BY_NAME, PIPELINE
from pipelines.progress import Progress
from pipelines.records import shards

# The inputs of the runs of a process.
_SUBMISSIONS, _PAGES = (5_000, 20_000, 100_000), (20, 40, 160)
_TEXT_BYTES = (2_000_000, 15_000_000, 60_000_000)
# More processes at once need memory, and change little.
_MOST_PROCESSES = 8
# The mean size of a real submission of 2013; later ones are larger.
_SUBMISSION_BYTES = 783
_SHARDS = 8
_DOCUMENT_SCHEMA = pa.schema([("id", pa.string()), ("url", pa.string()), ("text", pa.string())])
_TOKENIZER_VOCABULARY = 8192


@dataclasses.dataclass(frozen=True)
class Rate:
    """What a stage takes, `fixed_s` at its start and the rest per unit: a submission, link or page, or a byte of text.

    `core_s` is processor time; `output_bytes` and `work_bytes` are the sizes of its files, the latter removed at its
    end; `worker_bytes` is the peak memory of a worker process.
    """

    fixed_s: float
    core_s: float
    output_bytes: float
    work_bytes: float
    worker_bytes: int


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The rates of the stages, and where and when they were measured."""

    machine: str
    cores: int
    date: str
    rates: Mapping[str, Rate]


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the last run of a process took, and the processor time of every one."""

    seconds: float
    core_s: Sequence[float]
    output_bytes: int
    work_bytes: int
    worker_bytes: int


def machine_name() -> str:
    """Return a name of this machine's processor and system."""
    return f"{platform.node()}, {platform.processor() or platform.machine()}, Python {platform.python_version()}"


def calibrate(texts: Sequence[str], shown: Progress) -> Calibration:
    """Measure all stages from scrape to overlap-report; takes some minutes on two cores."""
    with storage.temporary_folder() as folder:
        rates = _Calibrator(folder, texts, shown).measure_all()
    return Calibration(machine_name(), default_workers(), dt.date.today().isoformat(), rates)


def calibrated(path: str, texts: Sequence[str], shown: Progress, *, again: bool) -> Calibration:
    """Return the calibration of a file; without one, or `again`, measure it and write the file."""
    if again or not storage.exists(path):
        shown.note(f"measuring the rates of this machine, for some minutes; they are kept in {path}")
        calibration = calibrate(texts, shown)
        storage.write_json(path, dataclasses.asdict(calibration))
        return calibration
    calibration = _read_calibration(path)
    if calibration.machine != machine_name():
        shown.note(f"{path}: was measured on another machine ({calibration.machine}); repeat it with --calibrate")
    return calibration


def _read_calibration(path: str) -> Calibration:
    """Read a calibration; raise InputError if the file is not one."""
    content = storage.read_json(path)
    try:
        rates = {stage: Rate(**rate) for stage, rate in content.pop("rates").items()}
        calibration = Calibration(**content, rates=rates)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: is not a calibration of this version ({error}); repeat it with --calibrate"
        ) from error
    if missing := [stage.name for stage in PIPELINE if stage.name not in (*rates, "pretrain")]:
        raise InputError(f"{path}: has no rate of {', '.join(missing)}; measure all rates again with --calibrate")
    return calibration


class _Calibrator:
    def __init__(self, folder: str, texts: Sequence[str], shown: Progress) -> None:
        self._folder = folder
        self._texts = texts
        self._shown = shown
        self._workers = default_workers()

    def measure_all(self) -> dict[str, Rate]:
        rates = {"scrape": self._measure("scrape", [self._dump(count) for count in _SUBMISSIONS], _SUBMISSIONS)}
        with demo_web():
            links = [self._links(count) for count in _PAGES]
            rates["fetch"] = self._measure("fetch", links, _PAGES, {"per_host_delay": 0.0, "contact": "calibration"})
        pages = [{"pages": self._output("fetch", 0, size), "links": None} for size in range(len(_PAGES))]
        rates["extract"] = self._measure("extract", pages, _PAGES)
        documents = [{"documents": self._documents(size)} for size in _TEXT_BYTES]
        benchmark = self._write("benchmark.jsonl", [{"text": text} for text in self._texts])
        self._run("train-bpe", ["tokenizer"], documents[:1], {"vocab_size": _TOKENIZER_VOCABULARY}, self._workers)
        tokenizer = {"tokenizer": self._output("train-bpe", "tokenizer", 0)}
        for stage, inputs, options in (
            ("filter", {}, {}),
            ("dedup", {}, {}),
            ("remove-wikipedia", {}, {}),
            ("train-bpe", {}, {"count_only": True}),
            ("tokenize", tokenizer, {}),
            ("overlap-index", {}, {}),
            ("overlap-report", {"benchmarks": [f"calibration={benchmark}"]}, {}),
        ):
            rates[stage] = self._measure(stage, [inputs | part for part in documents], _TEXT_BYTES, options)
        return rates

    def _measure(
        self, stage: str, inputs: Sequence[Any], units: Sequence[float], options: Mapping[str, Any] | None = None
    ) -> Rate:
        """Return the rate of a stage from runs on inputs of the given sizes."""
        self._shown.start(f"calibrate {stage}", None, "runs")
        runs = self._run(stage, range(min(self._workers, _MOST_PROCESSES)), inputs, options, 1)
        more_s = statistics.median(run.core_s[-1] - run.core_s[-2] for run in runs)
        core_s = max(0.0, more_s) / (units[-1] - units[-2])
        [start] = self._run(stage, ["start"], inputs[:1], options, self._workers)
        self._shown.finish(True)
        return Rate(
            fixed_s=max(0.0, start.seconds - units[0] * core_s / self._workers),
            core_s=core_s,
            output_bytes=runs[0].output_bytes / units[-1],
            work_bytes=runs[0].work_bytes / units[-1],
            worker_bytes=max(run.worker_bytes for run in runs),
        )

    def _run(
        self,
        stage: str,
        copies: Sequence[int | str],
        inputs: Sequence[Any],
        options: Mapping[str, Any] | None,
        workers: int,
    ) -> list[_Run]:
        """Run a stage on inputs, one after the other, in a process per copy; return what each process took."""
        context = multiprocessing.get_context("spawn")
        receivers: list[Connection] = []
        processes = []
        try:
            for copy in copies:
                receiver, sender = context.Pipe(duplex=False)
                calls = [(part, self._output(stage, copy, number)) for number, part in enumerate(inputs)]
                process = context.Process(target=_run_stage, args=(sender, stage, dict(options or {}), calls, workers))
                with sigint_blocked():
                    process.start()
                    processes.append(process)
                sender.close()
                receivers.append(receiver)
            return [self._receive(stage, receiver) for receiver in receivers]
        finally:  # also after an error or Ctrl-C, which the processes do not see
            for process in processes:
                process.kill()
            for process in processes:
                process.join()

    def _receive(self, stage: str, receiver: Connection) -> _Run:
        """Return what a process took; raise its error."""
        try:
            result = receiver.recv()
        except EOFError:
            raise WebtextError(f"calibrate: {stage} ended without a result; is memory short?") from None
        self._shown.advance(1)
        if isinstance(result, BaseException):
            raise result
        return result  # type: ignore[no-any-return]

    def _output(self, stage: str, copy: int | str, number: int) -> str:
        return storage.join(self._folder, stage, str(copy), str(number))

    def _dump(self, count: int) -> dict[str, Any]:
        rows = itertools.islice(itertools.cycle(demo_submissions()), count)
        lines = []
        for number, row in enumerate(rows):
            line = json.dumps({**row, "id": f"{number:07x}", "url": f"{row['url']}?page={number}"})
            lines.append(f'{line[:-1]}, "media": "{"x" * (_SUBMISSION_BYTES - len(line) - 12)}"}}\n')
        path = storage.join(self._folder, str(count), "RS_2017-11.zst")
        storage.write_bytes(path, zstandard.ZstdCompressor().compress("".join(lines).encode()))
        return {"dumps": [path]}

    def _links(self, count: int) -> dict[str, Any]:
        path = storage.join(self._folder, f"urls-{count}.txt")
        storage.write_bytes(path, "".join(f"{url}\n" for url in list(demo_routes())[:count]).encode())
        return {"links": [path]}

    def _write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
        path = storage.join(self._folder, name)
        storage.write_bytes(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        return path

    def _documents(self, size_bytes: int) -> list[str]:
        """Write documents of random words of the sample, as long as the texts of the sample."""
        words = np.array(" ".join(self._texts).split(" "), dtype=object)
        lengths = [text.count(" ") + 1 for text in self._texts]
        random = np.random.default_rng(0)
        folder = storage.join(self._folder, f"documents-{size_bytes}")
        for shard in range(_SHARDS):
            name, written = shards.shard_name("documents", shard), 0
            with shards.write_shard(folder, name, _DOCUMENT_SCHEMA) as output:
                while written < size_bytes / _SHARDS:
                    text = " ".join(random.choice(words, lengths[random.integers(len(lengths))]).tolist())
                    row = {"id": f"{shard}-{written}", "url": f"https://{shard}.example/{written}", "text": text}
                    output.writer.write(row)
                    written += len(text.encode())
        return [storage.join(folder, "*.parquet")]


def _run_stage(
    sender: Connection,
    stage: str,
    options: dict[str, Any],
    calls: Sequence[tuple[dict[str, Any], str]],
    workers: int,
) -> None:
    """Run a stage on inputs, each with an output folder, in this process; send what that took, or its error."""
    spec = BY_NAME[stage]
    core_s = []
    try:
        for inputs, output in calls:
            before = _processor_seconds()
            executor = SerialExecutor() if workers == 1 else LocalExecutor(workers)
            summary = spec.load()(spec.config_type()(**options), **inputs, output=output, options=RunOptions(executor))
            core_s.append(_processor_seconds() - before)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        sender.send(error)
        return
    manifest = read_manifest(output)
    work = [file.size_bytes for entry in manifest.shards if entry.work for file in entry.files]
    sender.send(
        _Run(
            seconds=summary.seconds,
            core_s=core_s,
            output_bytes=sum(file.size_bytes for file in manifest.files),
            work_bytes=sum(work),
            worker_bytes=sum(machine.peak_bytes().values()),
        )
    )


def _processor_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in (own, children))

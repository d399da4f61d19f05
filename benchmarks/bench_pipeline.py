"""Measure every stage on real inputs: the rates of `webtext plan`, from which README's table of times is made.

    python benchmarks/bench_pipeline.py [--data FOLDER] [--rounds 3] [--write]

FOLDER contains `reddit/submissions-2013.ndjson.zst`, `pages/wcxb-dev/`, `text/` and `benchmarks/` (default:
$WEBTEXT_TEST_DATA). Each stage runs with one worker on a small and on a larger part of the same input; its rate is the
difference of the processor time (user and system, of all processes) divided by that of the amounts, of the lowest times
of all rounds: other work on the machine only adds to them. Pages are served on loopback, each under its own https or
http URL, without pauses. `--write` updates data/rates.json; then run `make docs`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import functools
import gzip
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from pipelines.engine.manifest import read_manifest

_REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_REPOSITORY / "tests"))

import small_web  # noqa: E402 - found through the path above

_RATES = _REPOSITORY / "data" / "rates.json"
_RUN = (
    "import json, sys\nfrom webtext_cli.main import main\nfrom pipelines.engine.machine import peak_bytes\n"
    "code = main(sys.argv[1:])\nprint(json.dumps(peak_bytes()))\nsys.exit(code)"
)
_FILES, _SMALL = 8, 6  # the small input is every sixth submission, page and document
_CRAWL = ("fetch", "--per-host-delay", "0", "-i")
_TRAIN = ("train-bpe", "-i")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(_REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="update data/rates.json")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"skipped: {options.data} does not exist; name the data with --data or WEBTEXT_TEST_DATA")
        return
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    rounds: list[dict[str, Runs]] = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(dict(measure(options.data, Path(folder), compiles=not rounds)))
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)
        report(rounds, write=options.write)


def report(rounds: Sequence[dict[str, Runs]], write: bool) -> None:
    """Print the rates of the rounds so far, and write them to data/rates.json."""
    rates = {stage: _rate([part[stage] for part in rounds]) for stage in rounds[0]}
    print(
        "\n| stage | processor time per unit | units | at the start, s | memory of a worker | bytes written per unit |"
    )
    print("|---|---|---|---|---|---|")
    for stage, rate in rates.items():
        few, many = rounds[0][stage].units
        memory, written = f"{rate['worker_bytes'] / 1e6:,.0f} MB", f"{rate['output_bytes']:,.3g}"
        print(
            f"| {stage} | {rate['core_s']:.3g} s | {few:,}, {many:,} | {rate['fixed_s']:.1f} | {memory} | {written} |"
        )
    if write:
        table = json.loads(_RATES.read_text())
        measured = table["measured"] | {"date": dt.date.today().isoformat()}
        # What bench_driver measures stays: `shard_bytes` and `driver_bytes`.
        rates = {stage: table["rates"][stage] | rate for stage, rate in rates.items()}
        _RATES.write_text(json.dumps(table | {"measured": measured, "rates": rates}, indent=1) + "\n")


@dataclasses.dataclass(frozen=True)
class Runs:
    """The processor time of a stage on a small and a larger input, and what the latter wrote and held in memory.

    `start_s` replaces the time at the start that follows from both.
    """

    seconds: tuple[float, float]
    units: tuple[int, int]
    output_bytes: int
    work_bytes: int
    worker_bytes: int
    start_s: float | None = None


def measure(data: Path, folder: Path, *, compiles: bool) -> Iterator[tuple[str, Runs]]:
    """Yield the name and the runs of every stage; the first run on a machine `compiles`, and is repeated."""
    measure_stage = functools.partial(_measure, folder, compiles=compiles)
    dumps = _dumps(data / "reddit" / "submissions-2013.ndjson.zst", folder)
    yield "scrape", measure_stage(["scrape", "-i"], dumps)
    pages = _pages(data / "pages" / "wcxb-dev")
    links = [_links(pages[::_SMALL], folder / "small.txt"), _links(pages, folder / "all.txt")]
    with small_web.served(dict(pages), folder, "text/html") as environment:
        yield "fetch", measure_stage(list(_CRAWL), links, environment=environment)
    crawls = [(folder / f"fetch-{number}", count) for number, (_, count) in enumerate(links)]
    yield "extract", measure_stage(["extract", "-i"], crawls)
    documents = _documents(data / "text", folder)
    audit = [
        f"--benchmark=wikitext-2={data / 'benchmarks' / 'wikitext2-test.txt'}",
        f"--benchmark=gsm8k:question={data / 'benchmarks' / 'gsm8k-test.jsonl'}",
    ]
    yield "filter", measure_stage(["filter", "-i"], documents)
    yield "dedup", measure_stage(["dedup", "-i"], documents)
    yield "remove-wikipedia", measure_stage(["remove-wikipedia", "-i"], documents)
    # Merging depends on the number of distinct words, not on the size: its time is one of the start.
    counting = measure_stage([*_TRAIN], documents, "--count-only")
    (path, _), whole = documents[1], folder / "tokenizer"
    seconds, _ = _run([*_TRAIN, str(path), "-o", str(whole)])
    output_bytes = sum(file.size_bytes for file in read_manifest(str(whole)).files)
    start_s = seconds - counting.seconds[1] + counting.seconds[0]
    yield "train-bpe", dataclasses.replace(counting, start_s=start_s, output_bytes=output_bytes)
    yield "tokenize", measure_stage(["tokenize", "-i"], documents, "--tokenizer", str(whole))
    yield "overlap-index", measure_stage(["overlap-index", "-i"], documents)
    yield "overlap-report", measure_stage(["overlap-report", "-i"], documents, *audit)
    yield "search", measure_stage(["search", "--build", "-i"], documents)


def _measure(
    folder: Path,
    command: Sequence[str],
    inputs: Sequence[tuple[Path, int]],
    *options: str,
    compiles: bool,
    environment: dict[str, str] | None = None,
) -> Runs:
    """Run a stage on a small and a larger input of so many units, after a run that may compile."""
    if compiles:
        _run([*command, str(inputs[0][0]), "-o", str(folder / f"{command[0]}-first"), *options], environment)
    seconds = []
    for number, (path, _) in enumerate(inputs):
        output = folder / f"{command[0]}-{number}"
        used, peak = _run([*command, str(path), "-o", str(output), *options], environment)
        seconds.append(used)
    (_, few), (_, many) = inputs
    print(f"{command[0]}: {seconds[0]:.1f} and {seconds[1]:.1f} s of {few:,} and {many:,} units", flush=True)
    manifest = read_manifest(str(output))
    work = [file.size_bytes for entry in manifest.shards if entry.work for file in entry.files]
    written = sum(file.size_bytes for file in manifest.files)
    return Runs((seconds[0], seconds[1]), (few, many), written, sum(work), peak)


def _rate(rounds: Sequence[Runs]) -> dict[str, float]:
    """Return what `pipelines.plan.Rate` has, of the lowest times of all rounds."""
    (small_s, large_s), runs = map(min, zip(*(part.seconds for part in rounds), strict=True)), rounds[0]
    few, many = runs.units
    core_s = max(0.0, large_s - small_s) / (many - few)
    starts = [part.start_s for part in rounds if part.start_s is not None]
    rate = {
        "core_s": core_s,
        "fixed_s": max(0.0, min(starts, default=small_s) - few * core_s),
        "output_bytes": runs.output_bytes / many,
        "work_bytes": runs.work_bytes / many,
        "worker_bytes": max(part.worker_bytes for part in rounds),
    }
    rounded = {key: float(f"{value:.3g}") for key, value in rate.items()}
    return rounded | {"worker_bytes": int(rounded["worker_bytes"])}


def _run(arguments: Sequence[str], environment: dict[str, str] | None = None) -> tuple[float, int]:
    """Run a command with one worker; return its processor time and the peak memory of it and its child process."""
    before = _processor_seconds()
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments, "--workers", "1", "--json", "--quiet"],
        env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return _processor_seconds() - before, sum(json.loads(done.stdout.splitlines()[-1]).values())


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _dumps(source: Path, folder: Path) -> list[tuple[Path, int]]:
    """Write the submissions four times over, with other ids and URLs, and every sixth of them.

    One in ten keeps its score, the others get 1: 45M links were left of WebText's 430M submissions.
    """
    lines = zstandard.decompress(source.read_bytes(), max_output_size=1 << 30).splitlines()
    rows = []
    for copy, (number, line) in itertools.product(range(4), enumerate(lines)):
        row = json.loads(line)
        joint = "&" if "?" in row["url"] else "?"
        changed = {"id": f"{copy}{row['id']}", "url": f"{row['url']}{joint}copy={copy}"}
        rows.append(json.dumps(row | changed | ({"score": 1} if (number + copy) % 10 else {})))
    result = []
    for name, part in (("small", rows[::_SMALL]), ("all", rows)):
        path = folder / name / "RS_2013-12.zst"
        path.parent.mkdir()
        path.write_bytes(zstandard.compress("".join(f"{row}\n" for row in part).encode()))
        result.append((path, len(part)))
    return result


def _pages(folder: Path) -> list[tuple[str, bytes]]:
    urls = {path.stem: json.loads(path.read_text()).get("url") for path in (folder / "ground-truth").glob("*.json")}
    names = sorted(name for name, url in urls.items() if url)
    return [(urls[name], gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes())) for name in names]


def _links(pages: Sequence[tuple[str, bytes]], path: Path) -> tuple[Path, int]:
    path.write_text("".join(f"{url}\n" for url, _ in pages))
    return path, len(pages)


def _documents(data: Path, folder: Path) -> list[tuple[Path, int]]:
    """Write the documents and books, with URLs, to eight files, and every sixth of them to eight others."""
    rows: list[dict[str, Any]] = []
    for name in ("docs.jsonl.zst", "books.jsonl.zst"):
        text = zstandard.decompress((data / name).read_bytes(), max_output_size=1 << 30)
        rows += [{"text": json.loads(line)["text"]} for line in text.splitlines()]
    rows = [row | {"id": str(number), "url": f"https://{number}.example/"} for number, row in enumerate(rows)]
    result = []
    for name, part in (("small", rows[::_SMALL]), ("all", rows)):
        output = folder / f"documents-{name}"
        output.mkdir()
        for file in range(_FILES):
            pq.write_table(pa.Table.from_pylist(part[file::_FILES]), output / f"{file}.parquet", compression="zstd")
        result.append((output / "*.parquet", sum(len(row["text"].encode()) for row in part)))
    return result


if __name__ == "__main__":
    main()

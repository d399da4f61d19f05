"""Reading dumps: webtext and plain loops over the same file, in megabytes of decompressed NDJSON per second.

    python benchmarks/bench_scrape.py [DUMP] [--size-mb 1024] [--repeats 5] [--folder TMP]

DUMP holds real submissions (default: reddit/submissions-2013.ndjson.zst in $WEBTEXT_TEST_DATA). They are repeated with
other ids up to the size, and most of them are given scores of 0 to 2, so that one in ten is a link with 3 points or
more, as in the dumps. webtext is measured with the whole first phase of `webtext scrape`: decompress, decode, filter,
make URLs canonical, and write the links by bucket, with checksums. The plain loops only decompress, split into lines
and decode. All take turns in one process; medians of wall-clock and processor time, since other work may share the
machine. Then two worker processes read two such files.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from pipelines.engine.executor import LocalExecutor
from pipelines.engine.journal import WORK
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.decision import make_filter, resolve_config
from pipelines.stages.scrape.sources import ReadContext, SourceFile, find_files, partition_file, read_stats

GOOD_LINKS = 0.1
BUCKETS = 64


def real_mix(path: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield lines until the size is reached; the same for the same dump."""
    random_source = random.Random(1)
    raw = zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(path.open("rb"))
    records = [json.loads(line) for line in io.BufferedReader(raw)]
    good = sum(not record["is_self"] and (record["score"] or 0) >= 3 for record in records)
    stays = GOOD_LINKS * len(records) / good
    written = 0
    for copy in range(1 << 20):
        for record in records:
            own = {**record, "id": f"{record['id']}{copy:x}", "name": f"t3_{record['id']}{copy:x}"}
            if random_source.random() > stays:
                own["score"] = random_source.choice((0, 1, 1, 1, 2))
            line = json.dumps(own).encode() + b"\n"
            written += len(line)
            yield line
            if written >= size_bytes:
                return


def write_dump(lines: Iterator[bytes], path: Path) -> int:
    size = 0
    with path.open("wb") as file, zstandard.ZstdCompressor(level=3, threads=-1).stream_writer(file) as stream:
        for line in lines:
            size += len(line)
            stream.write(line)
    return size


def lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        raw = zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(file)
        yield from io.BufferedReader(raw, 1 << 20)


def plain_loop(path: Path) -> None:
    for line in lines_of(path):
        json.loads(line)


def lines_only(path: Path) -> None:
    for _ in lines_of(path):
        pass


def msgspec_loop(path: Path) -> None:
    msgspec = importlib.import_module("msgspec")
    fields: list[Any] = [("id", str), ("url", str | None), ("score", int | None), ("is_self", bool)]
    fields += [("subreddit", str), ("title", str), ("created_utc", int), ("over_18", bool)]
    decode = msgspec.json.Decoder(msgspec.defstruct("Submission", fields)).decode
    for line in lines_of(path):
        decode(line)


def make_call(path: Path, folder: Path) -> tuple[SourceFile, ReadContext]:
    """Return the arguments of `partition_file` for a dump."""
    config = resolve_config(ScrapeConfig())
    (file,) = find_files([str(path)], "dump")
    (folder / WORK).mkdir(parents=True, exist_ok=True)
    return file, ReadContext(config, make_filter(config), str(folder))


def timed(function: Callable[[], object]) -> tuple[float, float]:
    clock, cores = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - clock, time.process_time() - cores


def in_workers(items: list[SourceFile], context: ReadContext, workers: int) -> float:
    """Return the seconds that worker processes take for the last items, one per worker, after as many to warm up."""
    results = LocalExecutor(workers).map(partition_file, items, context, lambda _: None, lambda item: item.name)
    finished = [time.perf_counter() for _ in results]
    return finished[-1] - finished[len(items) // 2 - 1]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def main() -> None:
    arguments = parse()
    dump = arguments.dump or Path(os.environ.get("WEBTEXT_TEST_DATA", "")) / "reddit" / "submissions-2013.ndjson.zst"
    if not dump.is_file():
        print(f"skipped: {dump} does not exist; name a dump of submissions, or set WEBTEXT_TEST_DATA")
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        path = folder / "RS_mixed.zst"
        size_mb = write_dump(real_mix(dump, arguments.size_mb * 10**6), path) / 1e6
        item, context = make_call(path, folder / "out")
        partition_file(item, context)
        (stats,) = read_stats([item], context.output)
        kept = f"{stats.kept} of {stats.lines} submissions make a link"
        print(f"{size_mb:.0f} MB of NDJSON, {path.stat().st_size / 1e6:.0f} MB compressed; {kept}")
        print(f"dropped: {dict(stats.dropped.most_common())}")
        ways: dict[str, Callable[[], object]] = {
            "webtext, first phase": lambda: partition_file(item, context),
            "zstandard + json.loads": lambda: plain_loop(path),
            "zstandard + lines": lambda: lines_only(path),
        }
        if installed("msgspec"):
            ways["zstandard + msgspec"] = lambda: msgspec_loop(path)
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(arguments.repeats):
            for name, function in ways.items():
                spent[name].append(timed(function))
        report(size_mb, spent)
        scaling(path, folder, arguments.repeats)


def report(size_mb: float, spent: dict[str, list[tuple[float, float]]]) -> None:
    base = statistics.median(cores for _, cores in spent["zstandard + json.loads"])
    print(f"{'':26} {'MB/s by clock':>14} {'MB/s of a core':>15} {'times json.loads':>17}")
    for name, times in spent.items():
        clock = statistics.median(each for each, _ in times)
        cores = statistics.median(each for _, each in times)
        print(f"{name:26} {size_mb / clock:14.0f} {size_mb / cores:15.0f} {base / cores:17.2f}")


def scaling(path: Path, folder: Path, repeats: int) -> None:
    """Print how much more two processes read than one."""
    items = []
    for number in range(4):
        copy = folder / f"RS_copy{number}.zst"
        shutil.copyfile(path, copy)
        item, context = make_call(copy, folder / "out")
        items.append(item)
    ratios = []
    for _ in range(repeats):
        one = in_workers(items[:2], context, 1)
        two = in_workers(items, context, 2)
        ratios.append(2 * one / two)
    print(f"two processes on two files read {statistics.median(ratios):.2f} times what one reads ({repeats} runs)")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", nargs="?", type=Path)
    parser.add_argument("--size-mb", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()

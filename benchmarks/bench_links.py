"""Time and memory of `webtext scrape` for dumps with N distinct links: both per link and peak memory stay flat.

    python benchmarks/bench_links.py [--links 1000000 20000000] [--workers 1 2] [--files 10] [--folder TMP]

The dumps are synthetic and determined by the seed: URLs of realistic lengths on 200,000 domains whose sizes follow
Zipf's law; one line in twenty repeats a URL. They are written to FOLDER (20M links: about 2 GB, plus twice as much for
the work files and links) and removed at the end. Memory is the sum of the proportional set sizes of all processes of
the command, sampled five times per second; the second phase starts with the first file of links. Core-seconds are the
user and system time of all processes: only these are comparable on a machine with other load.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import itertools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zstandard
from process_tree import proportional_set_mb, tree

DOMAINS = 200_000
REPEATED = 0.05
BLOCK = 20_000
SAMPLE_S = 0.2
MONTH_S = 28 * 86400
WORDS = """news article story politics world science video review how-to why-the best report science-of new interview
    games music history the-end-of opinion sports health local blog archive index posts technology market 2013 2014 2015
    2016 2017""".split()
ENDINGS = ("com", "com", "com", "org", "net", "co.uk", "de")


@dataclasses.dataclass(frozen=True)
class Timer:
    clock_s: float
    cores_s: float

    def per_item_us(self, count: int) -> Timer:
        """Return the microseconds per item."""
        return Timer(self.clock_s / count * 1e6, self.cores_s / count * 1e6)


@dataclasses.dataclass(frozen=True)
class Measurement:
    links: int
    workers: int
    read: Timer
    merge: Timer
    peak_mb: float

    @property
    def whole(self) -> Timer:
        return Timer(self.read.clock_s + self.merge.clock_s, self.read.cores_s + self.merge.cores_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", type=int, nargs="+", default=[1_000_000, 20_000_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--seed", type=int, default=2019)
    parser.add_argument(
        "--folder", type=Path, default=None, help="for the dumps and results (default: a temporary one)"
    )
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}\n")
    print("| links | workers | seconds | core-seconds | read | merge | links/s ", end="")
    print("| us per link | growth | core-us per link | growth | peak MB |")
    print("|---" * 12 + "|")
    base: dict[int, Timer] = {}
    for links in options.links:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-links-") as folder:
            dumps = Path(folder) / "dumps"
            make_dumps(dumps, links, options.files, options.seed)
            for workers in options.workers:
                measurement = measure(dumps, Path(folder) / "links", links, workers)
                report(measurement, base.setdefault(workers, measurement.whole.per_item_us(links)))


def report(measurement: Measurement, base: Timer) -> None:
    whole, per_link = measurement.whole, measurement.whole.per_item_us(measurement.links)
    print(
        f"| {measurement.links:,} | {measurement.workers} | {whole.clock_s:.1f} | {whole.cores_s:.1f} "
        f"| {measurement.read.cores_s:.1f} | {measurement.merge.cores_s:.1f} "
        f"| {measurement.links / whole.clock_s:,.0f} | {per_link.clock_s:.2f} | {per_link.clock_s / base.clock_s:.2f} "
        f"| {per_link.cores_s:.2f} | {per_link.cores_s / base.cores_s:.2f} | {measurement.peak_mb:,.0f} |",
        flush=True,
    )


def measure(dumps: Path, output: Path, links: int, workers: int) -> Measurement:
    """Run the command in a child process and measure it; check and remove its result."""
    command = [sys.executable, "-m", "webtext_cli", "scrape", str(dumps), "-o", str(output), "--json", "--quiet"]
    cores_before_s, started = core_seconds(), time.perf_counter()
    process = subprocess.Popen(
        [*command, "--workers", str(workers)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    read, peak = None, 0.0
    while process.poll() is None:
        peak = max(peak, sum(map(proportional_set_mb, tree(process.pid))))
        if read is None and any(output.glob("links-*")):
            read = Timer(time.perf_counter() - started, sum(map(core_seconds_of, tree(process.pid))))
        time.sleep(SAMPLE_S)
    clock_s = time.perf_counter() - started
    output_json, errors = process.communicate()
    cores_s = core_seconds() - cores_before_s
    if process.returncode or read is None:
        raise SystemExit(errors)
    summary = json.loads(output_json)
    if summary["records_out"] != links:
        raise SystemExit(f"wrote {summary['records_out']} links, expected {links}: {summary['dropped']}")
    shutil.rmtree(output)
    return Measurement(links, workers, read, Timer(clock_s - read.clock_s, cores_s - read.cores_s), peak)


def core_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def core_seconds_of(process: int) -> float:
    """Return the CPU time of a running process and of its children that have exited."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def make_dumps(folder: Path, links: int, files: int, seed: int) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    shares = 1 / np.arange(1, DOMAINS + 1)
    cumulative = np.cumsum(shares) / shares.sum()
    bounds = [links * number // files for number in range(files + 1)]
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        since = int(dt.datetime(2013 + number // 12, number % 12 + 1, 1, tzinfo=dt.UTC).timestamp())
        path = folder / f"RS_{2013 + number // 12}-{number % 12 + 1:02d}.zst"
        with path.open("wb") as raw, zstandard.ZstdCompressor(level=3, threads=2).stream_writer(raw) as stream:
            for start in range(first, end, BLOCK):
                stream.write(lines_of(generator, cumulative, range(start, min(start + BLOCK, end)), since))


def lines_of(generator: np.random.Generator, cumulative: np.ndarray, numbers: range, since: int) -> bytes:
    """Return a line per link of a range of numbers, and a second submission for some of them."""
    start, count = numbers.start, len(numbers)
    domains = np.searchsorted(cumulative, generator.random(count)).tolist()
    words = generator.integers(0, len(WORDS), (count, 12)).tolist()
    # Slugs of two to eight words: real URLs have a median of 61 characters and a long tail.
    lengths = generator.choice([0, 2, 3, 4, 6, 8], count, p=[0.1, 0.2, 0.25, 0.25, 0.15, 0.05]).tolist()
    marks = generator.integers(0, 2**31, count).tolist()
    urls = [
        url_of(domain, [WORDS[word] for word in slug[:length]], mark, start + number)
        for number, (domain, slug, length, mark) in enumerate(zip(domains, words, lengths, marks, strict=True))
    ]
    repeated = generator.integers(0, count, int(count * REPEATED)).tolist()
    numbered = [*range(count), *repeated]
    scores = (generator.pareto(0.8, len(numbered)) * 3 + 3).clip(max=50_000).astype(int).tolist()
    seconds = (since + generator.integers(0, MONTH_S, len(numbered))).tolist()
    lines = [
        line_of(start * 2 + position, urls[number], words[number], score, second)
        for position, (number, score, second) in enumerate(zip(numbered, scores, seconds, strict=True))
    ]
    generator.shuffle(lines)
    return "".join(lines).encode()


def url_of(domain: int, words: list[str], mark: int, number: int) -> str:
    scheme = "https" if domain % 3 == 0 else "http"
    return (
        f"{scheme}://{host_of(domain)}/{mark % 97}/{'-'.join(words)}{mark:x}-{number:x}{'.html' if mark % 2 else '/'}"
    )


def host_of(domain: int) -> str:
    name = f"{WORDS[domain % 31]}-{domain:x}.{ENDINGS[domain % len(ENDINGS)]}"
    return ("www." if domain % 2 else "") + name


def line_of(position: int, url: str, words: list[int], score: int, second: int) -> str:
    id = f"{position:x}"
    title = " ".join(WORDS[word] for word in words).capitalize()
    subreddit = f"{WORDS[words[0]]}{words[1]}"
    return (
        f'{{"id":"{id}","created_utc":{second},"subreddit":"{subreddit}","author":"user_{words[2] * 31 + words[3]}",'
        f'"domain":"{url.split("/")[2]}","url":"{url}","title":"{title}","selftext":"","score":{score},"ups":{score},'
        f'"downs":0,"num_comments":{words[4]},"permalink":"/r/{subreddit}/comments/{id}/{WORDS[words[5]]}/",'
        f'"over_18":false,"is_self":false,"name":"t3_{id}","subreddit_id":"t5_2q{words[6]}","distinguished":null,'
        '"link_flair_text":null,"thumbnail":"default"}\n'
    )


if __name__ == "__main__":
    main()

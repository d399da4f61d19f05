"""Measure every stage of the pipeline on real inputs with one worker process, and project it to WebText's size.

    python benchmarks/bench_pipeline.py [--data FOLDER] [--pages 400]

FOLDER contains `reddit/submissions-2013.ndjson.zst`, `pages/wcxb-dev/` and `text/docs.jsonl.zst` (default:
$WEBTEXT_TEST_DATA). The pages are served on loopback, so that fetch is measured without a network and without pauses.
Seconds are of the whole command, including its start; core-seconds are its user and system time, since libraries may
use several threads. The projection takes core-seconds times the paper's figures (45M links, 8M documents, 40 GB) and
the 430.6M submissions of the dumps through 2017-12; it is arithmetic, not a measurement.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_REPOSITORY / "tests"))

import small_web  # noqa: E402 - found through the path above

SUBMISSIONS = 430.6e6
LINKS = 45e6
DOCUMENTS = 8e6
TEXT_BYTES = 40e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(_REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--pages", type=int, default=400)
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"skipped: {options.data} does not exist; name the data with --data or WEBTEXT_TEST_DATA")
        return
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; one worker\n")
    print("| stage | input | seconds | core-seconds | rate | at WebText's size, core-time |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        measure(options.data, options.pages, Path(folder))
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"\nLargest process: {peak_mb:.0f} MB.")


def measure(data: Path, wanted_pages: int, folder: Path) -> None:
    dump = data / "reddit" / "submissions-2013.ndjson.zst"
    summary, seconds = run("scrape", dump, "--profile", "none", "-o", folder / "links")
    row("scrape", f"{summary['records_in']:,} submissions", seconds, summary["records_in"], "submissions", SUBMISSIONS)
    pages = real_pages(data, wanted_pages)
    (folder / "urls.txt").write_text("".join(f"{url}\n" for url in pages))
    with small_web.served(pages, folder, "text/html") as environment:
        arguments = ("fetch", "-i", folder / "urls.txt", "-o", folder / "pages", "--per-host-delay", "0")
        summary, seconds = run(*arguments, environment=environment)
    size_mb = sum(map(len, pages.values())) / 1e6
    row("fetch", f"{len(pages)} pages, {size_mb:.0f} MB, loopback", seconds, summary["records_in"], "links", LINKS)
    stored = sum(path.stat().st_size for path in (folder / "pages").glob("*.warc.gz"))
    summary, seconds = run("extract", "-i", folder / "pages", "-o", folder / "texts")
    row("extract", f"{summary['records_in']} pages", seconds, summary["records_in"], "pages", LINKS)
    measure_text(data / "text" / "docs.jsonl.zst", folder)
    print(f"\nWARC: {stored / len(pages) / 1e3:.0f} kB per page.")


def measure_text(documents: Path, folder: Path) -> None:
    summary, seconds = run("dedup", "-i", documents, "-o", folder / "unique")
    count = summary["records_in"]
    row("dedup", f"{count:,} documents", seconds, count, "documents", DOCUMENTS)
    summary, seconds = run("train-bpe", "-i", documents, "-o", folder / "bpe")
    size = summary["text_bytes"]
    row("train-bpe, 50,257", f"{size / 1e6:.0f} MB of text", seconds, size / 1e6, "MB", None)
    summary, seconds = run("tokenize", "-i", documents, "--tokenizer", folder / "bpe", "-o", folder / "tokens")
    row("tokenize", f"{size / 1e6:.0f} MB of text", seconds, size / 1e6, "MB", TEXT_BYTES / 1e6)
    benchmark = f"wikitext2={documents.parents[1] / 'benchmarks' / 'wikitext2-test.txt'}"
    summary, seconds = run("overlap-report", "-i", documents, "--benchmark", benchmark, "-o", folder / "overlap")
    row("overlap-report", f"{size / 1e6:.0f} MB of text", seconds, size / 1e6, "MB", TEXT_BYTES / 1e6)


def run(*arguments: object, environment: dict[str, str] | None = None) -> tuple[dict[str, Any], tuple[float, float]]:
    """Run a command; return its summary, its elapsed seconds and its core-seconds."""
    command = [sys.executable, "-m", "webtext_cli", *map(str, arguments), "--json", "--quiet", "--workers", "1"]
    started, used = time.perf_counter(), core_seconds()
    result = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    seconds = (time.perf_counter() - started, core_seconds() - used)
    if result.returncode:
        raise SystemExit(result.stderr)
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary, seconds


def core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(stage: str, size: str, seconds: tuple[float, float], amount: float, unit: str, whole: float | None) -> None:
    clock, cores = seconds
    projected = "-" if whole is None else hours(whole / amount * cores)
    rate = f"{amount / clock:,.0f} {unit}/s"
    print(f"| {stage} | {size} | {clock:.1f} | {cores:.1f} | {rate} | {projected} |", flush=True)


def hours(seconds: float) -> str:
    return f"{seconds / 3600:,.0f} h" if seconds < 72 * 3600 else f"{seconds / 86400:,.0f} days"


def real_pages(data: Path, wanted: int) -> dict[str, bytes]:
    folder = data / "pages" / "wcxb-dev"
    pages: dict[str, bytes] = {}
    for path in sorted((folder / "ground-truth").glob("*.json")):
        page = folder / "html" / f"{path.stem}.html.gz"
        if page.exists() and len(pages) < wanted:
            pages[json.loads(path.read_text())["url"]] = gzip.decompress(page.read_bytes())
    return pages


if __name__ == "__main__":
    main()

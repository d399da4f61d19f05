"""Extraction quality and speed on the 1,497 development pages of the Web Content Extraction Benchmark (WCXB).

    python benchmarks/bench_extract.py [--data FOLDER] [--step N] [--command-only]

FOLDER contains `pages/wcxb-dev/html/*.html.gz` and `pages/wcxb-dev/ground-truth/*.json` (default: $WEBTEXT_TEST_DATA).
The metric is that of the benchmark: the mean F1 of the multisets of lower-cased words per page. resiliparse is compared
where it is installed.

The whole command is timed on all pages: from a `.warc.gz`, which the script writes, to Parquet, with one worker. It and
its child share one core. In each round, the time of the same command on the first page alone is subtracted: Python,
imports, the model, compiled kernels. The rest, which is divided by the number of the other pages, includes the report.
A run that is not timed comes before the first round, since the first run on a machine compiles the kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import io
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from process_tree import peak_mb, tree
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.extractor.pages import AnnotatedPage, read_benchmark, word_f1
from pipelines.algorithms.blocks.page import parse_html
from pipelines.algorithms.web.metadata import read_declared
from pipelines.stages.extract.child import Limits, PageReader, RawPage, extract_text, html_of
from pipelines.stages.extract.extractors import EXTRACTORS, Extracted, extractor_version

CHILD_STEP = 10
COMPARED = ("trafilatura", "fast")
ROUNDS = 3
PIPE_COPIES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--step", type=int, default=1, help="use every Nth page")
    parser.add_argument("--command-only", action="store_true", help="time the whole command, and nothing else")
    options = parser.parse_args()
    folder = options.data / "pages" / "wcxb-dev"
    if not folder.is_dir():
        print(f"skipped: {folder} does not exist; name the data with --data or WEBTEXT_TEST_DATA")
        return
    pages = list(read_benchmark(folder, options.step))
    size_mb = sum(len(page.html) for page in pages) / 1e6
    print(f"{len(pages)} pages, {size_mb:.0f} MB; all seconds are CPU time")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # the parsers warn about malformed pages
    if not options.command_only:
        for name in EXTRACTORS:
            report_quality(name, extractor_version(name), lambda page, name=name: in_this_process(name, page), pages)
            report_child(name, pages[::CHILD_STEP])
    if not options.command_only and importlib.util.find_spec("resiliparse"):
        report_quality("resiliparse", importlib.metadata.version("resiliparse"), with_resiliparse, pages)
    report_command(pages)


def with_resiliparse(page: AnnotatedPage) -> str:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    return str(extract_plain_text(bytes_to_str(page.html, detect_encoding(page.html)), main_content=True))


def report_quality(
    name: str, version: str, extract: Callable[[AnnotatedPage], str], pages: list[AnnotatedPage]
) -> None:
    scores = defaultdict(list)
    crashes = []
    slowest = total_s = 0.0
    for page in pages:
        start = time.process_time()
        try:
            text = extract(page)
        except Exception as error:  # noqa: BLE001 - the stage counts such a page as crashed
            text = ""
            crashes.append(type(error).__name__)
        seconds = time.process_time() - start
        total_s, slowest = total_s + seconds, max(slowest, seconds)
        scores[page.kind].append(word_f1(text, page.content))
    all_scores = [score for kind in scores.values() for score in kind]
    print(f"\n{name} ({version}): mean word-F1 {mean(all_scores):.4f}")
    print("  " + ", ".join(f"{kind} {mean(values):.3f} ({len(values)})" for kind, values in sorted(scores.items())))
    print(f"  {len(pages) / total_s:.1f} pages/s; slowest page {slowest:.2f} s; crashed on: {crashes or 'none'}")


def report_child(name: str, pages: list[AnnotatedPage]) -> None:
    direct_s = cpu_seconds(lambda: [in_this_process(name, page) for page in pages])
    startup_s = cpu_seconds(lambda: in_child(name, [RawPage(b"<p>x", None, None)]))
    child_s = cpu_seconds(lambda: in_child(name, [RawPage(page.html, None, page.url) for page in pages]))
    print(
        f"  in a child process: {(child_s - startup_s) / direct_s:.3f} times the time of the same {len(pages)} pages "
        f"in this process; starting a child takes {startup_s:.2f} s"
    )


def report_command(pages: list[AnnotatedPage]) -> None:
    print(f"\nthe whole command on {len(pages)} pages, one worker, medians of {ROUNDS} rounds")
    runs = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        one, all_pages = (write_warc(Path(folder, f"{len(part)}.warc.gz"), part) for part in (pages[:1], pages))
        for name in COMPARED:
            run_command(name, one, Path(folder, "out"))
        for _ in range(ROUNDS):
            for name in COMPARED:
                start, whole = (run_command(name, warc, Path(folder, "out")) for warc in (one, all_pages))
                seconds = (whole.cpu_s - start.cpu_s, whole.wall_s - start.wall_s)
                runs[name].append((*(value / (len(pages) - 1) for value in seconds), start.wall_s, *whole.peaks_mb))
    medians = {
        name: [statistics.median(values) for values in zip(*rounds, strict=True)] for name, rounds in runs.items()
    }
    for name, (cpu_s, wall_s, start_s, worker_mb, child_mb) in medians.items():
        print(
            f"  {name}: {1 / wall_s:.1f} pages/s, {cpu_s * 1e3:.2f} ms of CPU time per page; starting takes "
            f"{start_s:.1f} s; peak memory: worker {worker_mb:.0f} MB, child {child_mb:.0f} MB"
        )
    for what, index in (("CPU time", 0), ("pages/s", 1)):
        ratios = sorted(slow[index] / fast[index] for slow, fast in zip(runs["trafilatura"], runs["fast"], strict=True))
        median = statistics.median(ratios)
        print(f"  fast against trafilatura by {what}: {median:.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    pipe_s = pipe_seconds(pages[::CHILD_STEP])
    print(f"  the pipe: {pipe_s * 1e3:.2f} ms per page, {pipe_s / medians['fast'][0]:.1%} of the CPU time of fast")


@dataclasses.dataclass(frozen=True)
class CommandRun:
    """Seconds of a command, and the peak memory of the worker, which is the command itself, and of its child."""

    wall_s: float
    cpu_s: float
    peaks_mb: tuple[float, float]


def write_warc(path: Path, pages: list[AnnotatedPage]) -> Path:
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for number, page in enumerate(pages):
            headers = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
            url = page.url or f"http://page.invalid/{number}"
            body = io.BytesIO(page.html)
            writer.write_record(writer.create_warc_record(url, "response", payload=body, http_headers=headers))
    return path


def run_command(name: str, warc: Path, output: Path) -> CommandRun:
    arguments = ["extract", "-i", str(warc), "-o", str(output), "--extractor", name, "--workers", "1", "--quiet"]
    peaks: dict[int, float] = {}
    before, start = os.times(), time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "webtext_cli", *arguments], stdout=subprocess.DEVNULL, preexec_fn=use_one_core
    ) as command:
        while command.poll() is None:
            peaks |= {process: peak_mb(process) for process in tree(command.pid) if peak_mb(process)}
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(0.1)
    wall_s, after = time.perf_counter() - start, os.times()
    if command.returncode:
        sys.exit(f"{' '.join(arguments)} failed")
    shutil.rmtree(output)
    worker_mb = peaks.pop(command.pid)
    return CommandRun(wall_s, sum(after[2:4]) - sum(before[2:4]), (worker_mb, max(peaks.values())))


def use_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def nothing(_html: bytes, _url: str | None) -> Extracted:
    return Extracted(None, "word " * 1000, read_declared(parse_html("<p>").tree))


def pipe_seconds(pages: list[AnnotatedPage]) -> float:
    """Return the CPU seconds per page that a child costs in addition to the same work in this process."""
    raw_pages = [RawPage(page.html, None, page.url) for page in pages] * PIPE_COPIES
    extract_text(nothing, raw_pages[0])  # imports the parsers
    with contextlib.closing(
        PageReader(nothing, Limits(timeout_s=120, memory_limit_mib=4096, pages_per_child=1 << 30))
    ) as reader:

        def extract(pages: list[RawPage]) -> None:
            for _ in reader.extract((None, page) for page in pages):
                pass

        start_s = cpu_seconds(lambda: (extract(raw_pages[:1]), reader.close()))
        child_s = cpu_seconds(lambda: (extract(raw_pages), reader.close()))
    direct_s = cpu_seconds(lambda: [extract_text(nothing, page) for page in raw_pages])
    return (child_s - start_s - direct_s) / len(raw_pages)


def in_child(name: str, pages: list[RawPage]) -> None:
    with contextlib.closing(PageReader(EXTRACTORS[name], Limits(timeout_s=120, memory_limit_mib=4096))) as reader:
        for _ in reader.extract((None, page) for page in pages):
            pass


def in_this_process(name: str, page: AnnotatedPage) -> str:
    html = html_of(page.html, None)
    return EXTRACTORS[name](html, page.url).text if html else ""


def cpu_seconds(function: Callable[[], object]) -> float:
    """Return the CPU time of a call, including child processes that end during it."""
    start = os.times()
    function()
    end = os.times()
    return sum(end[:4]) - sum(start[:4])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()

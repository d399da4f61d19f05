"""Extraction quality and speed on the 1,497 development pages of the Web Content Extraction Benchmark (WCXB).

    python benchmarks/bench_extract.py [--data FOLDER] [--step N]

FOLDER contains `pages/wcxb-dev/html/*.html.gz` and `pages/wcxb-dev/ground-truth/*.json` (default: $WEBTEXT_TEST_DATA).
The metric is that of the benchmark: the mean F1 of the multisets of lower-cased words per page.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gzip
import json
import logging
import os
import re
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from pipelines.stages.extract.child import Limits, PageReader, RawPage, html_of
from pipelines.stages.extract.extractors import EXTRACTORS, extractor_version

CHILD_STEP = 10


@dataclasses.dataclass(frozen=True)
class AnnotatedPage:
    url: str | None
    kind: str
    html: bytes
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--step", type=int, default=1, help="use every Nth page")
    options = parser.parse_args()
    folder = options.data / "pages" / "wcxb-dev"
    if not folder.is_dir():
        print(f"skipped: {folder} does not exist; name the data with --data or WEBTEXT_TEST_DATA")
        return
    pages = [read_page(path) for path in sorted((folder / "html").glob("*.html.gz"))[:: options.step]]
    size_mb = sum(len(page.html) for page in pages) / 1e6
    print(f"{len(pages)} pages, {size_mb:.0f} MB; all seconds are CPU time")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # the parsers warn about malformed pages
    for name in EXTRACTORS:
        report_quality(name, pages)
        report_child(name, pages[::CHILD_STEP])


def read_page(path: Path) -> AnnotatedPage:
    truth = json.loads((path.parents[1] / "ground-truth" / f"{path.name[:4]}.json").read_text())
    kind = truth["_internal"]["page_type"]["primary"]
    text = truth["ground_truth"].get("main_content") or ""
    return AnnotatedPage(truth.get("url"), kind, gzip.decompress(path.read_bytes()), text)


def report_quality(name: str, pages: list[AnnotatedPage]) -> None:
    scores = defaultdict(list)
    crashes = []
    slowest = total_s = 0.0
    for page in pages:
        start = time.process_time()
        try:
            text = in_this_process(name, page)
        except Exception as error:  # noqa: BLE001 - the stage counts such a page as crashed
            text = ""
            crashes.append(type(error).__name__)
        seconds = time.process_time() - start
        total_s, slowest = total_s + seconds, max(slowest, seconds)
        scores[page.kind].append(word_f1(text, page.text))
    all_scores = [score for kind in scores.values() for score in kind]
    print(f"\n{name} ({extractor_version(name)}): mean word-F1 {mean(all_scores):.4f}")
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


def in_child(name: str, pages: list[RawPage]) -> None:
    with contextlib.closing(PageReader(EXTRACTORS[name], Limits(timeout_s=120, memory_mb=4096))) as reader:
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


def word_f1(extracted: str, expected: str) -> float:
    words, truth = (Counter(re.findall(r"\w+", text.lower())) for text in (extracted, expected))
    if not words and not truth:
        return 1.0
    return 2 * sum((words & truth).values()) / (sum(words.values()) + sum(truth.values()))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()

"""Compare the speed of this checkout, stage by stage, with an older revision on the same generated input.

    python benchmarks/bench_against.py [REVISION] [--stages filter,dedup] [--runs 3]

REVISION (default: HEAD~1) is checked out in a temporary worktree; this checkout includes uncommitted changes. Both use
the packages of this interpreter and run in turn, with default options. The first run of each, which may compile
kernels, does not count. Prints the medians of the wall and the processor time (user and system, of all processes) of
each command, and the ratios new / old; a stage or an option that REVISION does not have is skipped. Exit status 1 if a
ratio is above 1.10 or a command of this checkout fails.
On a machine with other load the wall time varies by more than that: repeat what is slower with more `--runs`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_links import make_dumps

LIMIT = 1.10
BOOKS, BOOK_WORDS = 40, 150_000  # 50 MB in a single row group
DOCUMENTS, DOCUMENT_WORDS = 20_000, 300  # 50 MB of JSONL; the median of log-normal lengths
PAGES, PAGE_WORDS, LINKS = 600, 1_200, 400_000
INPUTS = {"scrape": ("dumps",), "extract": ("pages",)}  # of other stages: whole books, and short documents
STAGES = "scrape extract filter dedup remove-wikipedia train-bpe tokenize overlap-index overlap-report".split()
_REPOSITORY = Path(__file__).resolve().parents[1]


class Times(NamedTuple):
    wall_s: float
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", default="HEAD~1")
    parser.add_argument("--stages", type=lambda names: names.split(","), default=STAGES, help="comma-separated (all)")
    parser.add_argument("--runs", type=int, default=3, help="runs per command and revision that count (3)")
    options = parser.parse_args()
    if options.runs < 1 or not set(options.stages) <= set(STAGES):
        parser.error(f"--runs must be at least 1, and --stages some of {','.join(STAGES)}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    worktree = ["git", "-C", str(_REPOSITORY), "worktree"]
    with tempfile.TemporaryDirectory() as name:
        old = Path(name, "old")
        if subprocess.call([*worktree, "add", "--quiet", "--detach", str(old), options.revision]):
            sys.exit(1)  # git has printed why
        try:
            is_slower = compare(old, Path(name), options.stages, options.runs)
        finally:
            subprocess.run([*worktree, "remove", "--force", str(old)], check=True)
    sys.exit(is_slower)


def compare(old: Path, folder: Path, stages: list[str], runs: int) -> bool:
    """Print a row per command; return whether one is slower than the limit allows, or fails."""
    write_inputs(folder)
    more = {"tokenize": [f"--tokenizer={folder}/tokenizer"], "overlap-report": [f"--benchmark=s={folder}/parts.jsonl"]}
    print("| stage | input | s, old | new | ratio | CPU s, old | new | ratio |\n|---|---|---|---|---|---|---|---|")
    is_slower = False
    for stage in stages:
        for name in INPUTS.get(stage, ("books.parquet", "documents.jsonl")):
            command = [stage, "-i", str(folder / name), *more.get(stage, [])]
            times: dict[Path, list[Times]] = {old: [], _REPOSITORY: []}
            try:
                if stage == "tokenize" and not (folder / "tokenizer").exists():
                    run(old, ["train-bpe", "-i", str(folder / "books.parquet")], folder / "tokenizer")
                for number in range(runs + 1):
                    for source in sorted(times, reverse=number % 2 == 0):  # each is the first equally often
                        times[source].append(run(source, command, folder / "output"))
            except LookupError as error:
                print(f"| {stage} | {name} | {error} |", flush=True)
                continue
            except RuntimeError as error:
                is_slower = True
                print(f"| {stage} | {name} | {error} |", flush=True)
                continue
            cells = []
            for kind in range(len(Times._fields)):
                before, after = (statistics.median(part[kind] for part in parts[1:]) for parts in times.values())
                is_slower |= after > LIMIT * before
                mark = " (slower)" if after > LIMIT * before else ""
                cells.append(f"{before:.2f} | {after:.2f} | {after / before:.2f}{mark}")
            print(f"| {stage} | {name} | {' | '.join(cells)} |", flush=True)
    return is_slower


def run(source: Path, arguments: list[str], output: Path) -> Times:
    """Run a command of a checkout.

    Raises RuntimeError with the end of what it prints if it fails, LookupError if an older one does not have it.
    """
    shutil.rmtree(output, ignore_errors=True)
    # Empty, PYTHONDONTWRITEBYTECODE is off: else each run would compile the sources again.
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "webtext_cli", *arguments, "-o", str(output), "--quiet"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode == 2 and source != _REPOSITORY:  # wrong usage
        raise LookupError(f"not in REVISION ({done.stderr.strip()[:300]})")
    if done.returncode:
        raise RuntimeError(f"{source}: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    return Times(wall_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def write_inputs(folder: Path) -> None:
    """Write dumps, pages, books, short documents and sentences, which are the same in every run."""
    generator = np.random.default_rng(2019)
    make_dumps(folder / "dumps", LINKS, 2, 2019)
    words = Words(generator)
    (folder / "pages").mkdir()
    for number in range(PAGES):
        (folder / "pages" / f"{number}.html").write_text(page(words, number), encoding="utf-8")
    books = [words.text(BOOK_WORDS) for _ in range(BOOKS)]
    table = pa.table({"url": [f"http://books.com/{number}" for number in range(BOOKS)], "text": books})
    pq.write_table(table, folder / "books.parquet", row_group_size=BOOKS, compression="zstd")
    lengths = generator.lognormal(np.log(DOCUMENT_WORDS), 1, DOCUMENTS).astype(int) + 5
    texts = [words.text(length) for length in lengths.tolist()]
    for number in range(20, DOCUMENTS, 20):  # one in twenty is a copy, half of these with another end
        texts[number] = texts[number - 7] + words.text(8) * (number % 40 > 0)
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            url = f"http://{f'host{number % 997}.com' if number % 50 else 'en.wikipedia.org'}/{number}"
            file.write(json.dumps({"url": url, "text": text}, ensure_ascii=False) + "\n")
    with (folder / "parts.jsonl").open("w", encoding="utf-8") as file:
        for number in range(2_000):  # half of them are in the books
            text = words.text(40) if number % 2 else books[number % BOOKS][97 * number :][:240]
            file.write(json.dumps({"text": text}) + "\n")


class Words:
    """Texts of 40,000 words whose frequencies follow Zipf's law, in sentences and paragraphs."""

    def __init__(self, generator: np.random.Generator) -> None:
        syllables = [head + vowel for head in "b c d f g h k l m n p r s st t th v w".split() for vowel in "aeioué"]
        parts, counts = generator.choice(syllables, (40_000, 4)), generator.integers(1, 5, 40_000)
        rare = ["".join(row[:count]) for row, count in zip(parts.tolist(), counts.tolist(), strict=True)]
        self._words = np.array([*"the of and to a in is that it was".split(), *rare], dtype=object)
        self._shares = np.cumsum(1 / (np.arange(len(self._words)) + 2.7))
        self._generator = generator

    def text(self, count: int) -> str:
        words = self._words[np.searchsorted(self._shares, self._generator.random(count) * self._shares[-1])]
        ends = self._generator.random(count)
        marks = np.select([ends < 0.008, ends < 0.06, ends < 0.12, ends < 0.13], [".\n\n", ". ", ", ", " 1987 "], " ")
        return "".join((words + marks.astype(object)).tolist()).strip() + "."


def page(words: Words, number: int) -> str:
    """Return a page of navigation, an article with headings, a list, a table and code, and comments."""
    links = "".join(f"<li class='nav'><a href='/{link}'>{words.text(2)}</a>" for link in range(40))
    sections = "<p>".join(f"<h2>{words.text(4)}</h2><p>{words.text(PAGE_WORDS // 4)}" for _ in range(4))
    items = "".join(f"<li>{words.text(6)}" for _ in range(12))
    rows = "".join(f"<tr><td>{words.text(1)}<td>{row * number}" for row in range(15))
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{words.text(5)}</title></head><body>"
        f"<header><ul id='menu'>{links}</ul></header><main><article class='post'><h1>{words.text(6)}</h1>"
        + sections.replace("\n\n", " <a href='#n'>note</a></p><p>")
        + f"<ul>{items}</ul><table>{rows}</table><pre><code>for item in range({number}):\n    print(item)</code></pre>"
        + "".join(f"<div class='comment'><p>{words.text(30)}</p></div>" for _ in range(10))
    )


if __name__ == "__main__":
    main()

"""`webtext filter` and datatrove on the same texts: decisions, reasons, edited texts, and MB/s on one core.

    python benchmarks/bench_filter.py --peer-python PYTHON [--data FOLDER] [--pages 400] [--rounds 3]
    python benchmarks/bench_filter.py --posts 500000 [--data FOLDER] [--rounds 3]

PYTHON is that of an environment with `datatrove[processing]` (0.10) and `spacy`. Texts are the main text of pages of
`pages/wcxb-dev` and `pages/trafilatura-eval` in FOLDER (by default $WEBTEXT_TEST_DATA), and passages of the benchmarks
there. Both run in one process on one core, after a first text that loads models and kernels.

With --posts, the whole command with `gopher-quality` and two workers, with and without languages, on so many texts of
300 to 600 characters, in four files of JSONL: pieces of `text/*.jsonl.zst` in FOLDER.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.stages.filter.languages import identify
from pipelines.stages.filter.rules import load_rules

_PROFILES = ("gopher-quality", "gopher-repetition", "c4", "fineweb")
_PEER = """
import json, sys, time
from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
texts = json.load(open(sys.argv[1]))
filters = {
    "gopher-quality": [GopherQualityFilter()],
    "gopher-repetition": [GopherRepetitionFilter()],
    "c4": [C4QualityFilter()],
    "fineweb": [C4QualityFilter(filter_no_terminal_punct=False), FineWebQualityFilter()],
}
results = {}
for name, chain in filters.items():
    for one in chain:
        one.stat_update = lambda *_, **__: None
        one.filter(Document(text="A first text. " * 60, id="first"))
    rows, start = [], time.thread_time()
    for text in texts:
        document, reason = Document(text=text, id="x"), None
        for one in chain:
            try:
                answer = one.filter(document)
            except ZeroDivisionError:
                answer = (False, "division by zero")
            if answer is not True:
                reason = answer[1]
                break
        rows.append((reason, document.text if reason is None else None))
    results[name] = (time.thread_time() - start, rows)
json.dump(results, open(sys.argv[2], "w"))
"""


def read_texts(data: Path, pages: int) -> list[str]:
    """Return the main text of some pages of either folder, and passages of other texts."""
    import trafilatura

    files = [
        path
        for folder in ("wcxb-dev", "trafilatura-eval")
        for path in sorted((data / "pages" / folder / "html").glob("*.gz"))[:pages]
    ]
    html = (gzip.decompress(path.read_bytes()).decode("utf-8", "replace") for path in files)
    texts = [text for text in map(trafilatura.extract, html) if text]
    for path in sorted((data / "benchmarks").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        texts += [text[start : start + 4000] for start in range(0, min(len(text), 400_000), 4000)]
    return texts


def write_posts(data: Path, count: int, folder: Path) -> int:
    """Write pieces of 300 to 600 characters of real texts, which end with a word; return their size in bytes."""
    from pipelines.storage.compression import open_decompressed

    draw = random.Random(1)
    posts: list[str] = []
    for path in sorted((data / "text").glob("*.jsonl.zst")):
        with open_decompressed(str(path)) as stream:
            for text in (json.loads(line)["text"] for line in stream):
                start = 0
                while start < len(text):
                    end = start + draw.randrange(300, 601)
                    end += len(text[end : end + 80].partition(" ")[0])
                    posts.append(text[start:end])
                    start = end
    draw.shuffle(posts)
    posts = (posts * -(-count // len(posts)))[:count]
    for number in range(4):
        rows = [json.dumps({"id": f"{number}-{row}", "text": post}) for row, post in enumerate(posts[number::4])]
        (folder / f"posts-{number}.jsonl").write_text("\n".join(rows) + "\n")
    return sum(len(post.encode()) for post in posts)


def time_posts(data: Path, count: int, rounds: int) -> None:
    """Print the rates of the whole command, with and without languages in turn."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "posts")
        source.mkdir()
        size_mb = write_posts(data, count, source) / 1e6
        print(f"{count:,} posts, {size_mb:.1f} MB; load {os.getloadavg()[0]:.1f}")
        command = [sys.executable, "-m", "webtext_cli", "filter", "-i", str(source), "--profile", "gopher-quality"]
        for number in range(rounds):
            for name, options in (("no languages", []), ("languages", ["--language", "all"])):
                before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                output = ["-o", str(Path(folder, f"{number}-{len(options)}")), "--workers", "2"]
                subprocess.run([*command, *options, *output], check=True, capture_output=True)
                wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                rates = f"{size_mb / wall_s:.1f} MB/s; {size_mb / cpu_s:.1f} MB per second of processor time"
                print(f"{name}: {rates}, {cpu_s / count * 1e6:.1f} us per post; load {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--peer-python")
    parser.add_argument("--posts", type=int)
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.posts:
        time_posts(options.data, options.posts, options.rounds)
        return
    if not options.peer_python:
        parser.error("--peer-python or --posts is needed")
    print(f"load {os.getloadavg()[0]:.1f}")
    texts = read_texts(options.data, options.pages)
    size_mb = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts):,} texts, {size_mb:.1f} MB")
    with tempfile.TemporaryDirectory() as folder:
        source, target, script = (Path(folder, name) for name in ("texts.json", "results.json", "peer.py"))
        source.write_text(json.dumps(texts))
        script.write_text(_PEER)
        subprocess.run([options.peer_python, str(script), str(source), str(target)], check=True)
        peer: dict[str, Any] = json.loads(target.read_text())
    batch = pa.RecordBatch.from_pydict({"text": texts})
    for name in _PROFILES:
        rules = load_rules([name], [], [], None)
        judgement = rules.apply(batch)
        rows = zip(peer[name][1], judgement.reasons(), judgement.texts.to_pylist(), texts, strict=True)
        different, edited, decisions = [], 0, Counter[bool]()
        for (reason, text), own, own_text, whole in rows:
            decisions[reason is None] += 1
            if (reason is None) != (own is None):
                different.append((reason, own.detail if own else None, whole[:60]))
            edited += reason is None and own is None and text is not None and text != own_text
        print(f"{name}: {decisions[True]:,} kept by datatrove, {len(different)} other decisions, {edited} other texts")
        for reason, detail, start in different[:20]:
            print(f"   datatrove {reason}, webtext {detail}: {start!r}")
    three = ["gopher-quality", "gopher-repetition", "c4"]
    seconds = sum(peer[name][0] for name in three)
    rules = load_rules(three, [], [], None)
    timed = []
    for _ in range(options.rounds):
        start = time.thread_time()
        rules.apply(batch)
        timed.append(time.thread_time() - start)
    own = statistics.median(timed)
    print(
        f"gopher-quality + gopher-repetition + c4: datatrove {size_mb / seconds:.3f} MB/s, webtext {size_mb / own:.1f}"
    )
    identify(batch.column("text")[:1])
    start = time.thread_time()
    identify(batch.column("text"))
    print(f"ratio {seconds / own:.0f}; languages {len(texts) / (time.thread_time() - start):,.0f} documents/s")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

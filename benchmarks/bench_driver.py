"""What one process does: the driver's CPU seconds and memory in each phase of the stages, per document and per shard.

    python benchmarks/bench_driver.py [--documents 1000000 10000000] [--shards 200] [--stages dedup ...] [--folder DIR]
    python benchmarks/bench_driver.py --marks 10000000
    python benchmarks/bench_driver.py --files 100000

The first form makes corpora of documents of 10 random words, 2% of them copies and 2% copies without the last word,
and runs each stage on them, by default with two workers, in a process of its own. CPU seconds of the driver are those
of that process alone, peaks are of resident memory, which includes pages of mapped files; the slope is that between the
smallest and the largest corpus. With `--of-stage`, the corpus is the folder of a stage, each of its shards one task
whatever its size; with `--workers 1`, the driver does the tasks. scrape reads as many submissions, in `--shards`
buckets; fetch reads scrape's links, whose pages are in a WARC file, and extract those. Work bytes are those of
intermediate files per document, at the end of a phase. The second form runs what the driver does with all documents at
once on generated work files; the third writes and reads a journal and a manifest of so many shards, and opens as many
input files. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from process_tree import peak_mb, tree

STAGES = (
    "scrape", "fetch", "extract", "filter", "dedup", "remove-wikipedia", "train-bpe", "tokenize", "overlap-index",
    "overlap-report",
)  # fmt: skip
_WORDS, _WORD_BYTES, _VOCABULARY = 10, 8, 50_000
_CRAWL = {"scrape", "fetch", "extract"}
_MOST_PAGES = 1_000_000
_POLL_S = 1.0
# Phases that take less of the driver's time are not listed.
_LISTED_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--of-stage", action="store_true", help="make the corpus the folder of a stage")
    parser.add_argument("--marks", type=int, help="measure what dedup's driver does with so many documents instead")
    parser.add_argument("--files", type=int, help="measure so many shards and input files instead")
    parser.add_argument("--folder", type=Path, help="where corpora and results are written; default: a temporary one")
    parser.add_argument("--call", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        name, *arguments = options.call
        print(json.dumps(CALLS[name](*arguments)))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.files:
            measure_files(options.files, Path(folder))
        elif options.marks:
            print(f"{options.marks:,} documents\n\n| | seconds | CPU s | peak MB |\n|---|---|---|---|")
            for name, (wall, cpu, peak) in call("marks", options.marks, folder)[0].items():
                print(f"| {name} | {wall:.1f} | {cpu:.2f} | {peak:.0f} |")
        else:
            measure_stages(options, Path(folder))
    print(f"load {os.getloadavg()[0]:.1f}")


def call(name: str, *arguments: object) -> tuple[Any, float]:
    """Run a function of CALLS in a process of its own; return its result, and the largest peak of a worker in MB."""
    # This process stays small: the peak of a new process begins with that of its parent.
    command = [sys.executable, __file__, "--call", name, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        peak = 0.0
        while process.poll() is None:
            peak = max([peak, *(peak_mb(worker) for worker in tree(process.pid) - {process.pid})])
            time.sleep(_POLL_S)
        assert process.stdout is not None
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
        return json.loads(process.stdout.read()), peak


class Meter:
    """The wall seconds, CPU seconds of this process and its peak memory in MB, of one section after the other.

    As the progress of a stage, it makes a section of each phase, and one of what is between two phases.
    """

    def __init__(self, work: Path | None = None) -> None:
        self.sections: dict[str, list[float]] = {}
        self.work_bytes = 0
        self._work = work
        self.begin()

    def begin(self) -> None:
        """Begin a section, without what came before."""
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._started = time.monotonic(), cpu_seconds()

    def end(self, name: str) -> None:
        """End a section; sections of one name are added up."""
        wall, cpu, peak = self.sections.get(name, [0.0, 0.0, 0.0])
        started, used = self._started
        times = [wall + time.monotonic() - started, cpu + cpu_seconds() - used]
        self.sections[name] = [*times, max(peak, peak_mb(os.getpid()))]
        if self._work is not None:
            files = [path for path in self._work.rglob("*") if path.is_file()]
            self.work_bytes = max(self.work_bytes, sum(path.stat().st_size for path in files))
        self.begin()

    def start(self, label: str, total: int | None, unit: str) -> None:
        """See `Progress.start`."""
        self.end("between phases" if "before phases" in self.sections else "before phases")
        self._label = label.partition(": ")[2]

    def advance(self, units: int) -> None:
        """See `Progress.advance`."""

    def note(self, message: str) -> None:
        """See `Progress.note`."""

    def pause(self) -> None:
        """See `Progress.pause`."""

    def finish(self, complete: bool) -> None:
        """See `Progress.finish`."""
        self.end(self._label)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# The stages


def measure_stages(options: argparse.Namespace, folder: Path) -> None:
    """Print what each stage takes of each corpus, and the growth of what its driver takes."""
    results: dict[str, list[dict[str, list[float]]]] = {stage: [] for stage in options.stages}
    for documents in options.documents:
        start = time.monotonic()
        if {*options.stages} - _CRAWL:
            call("corpus", folder / "in", documents, options.shards, options.of_stage)
        if {*options.stages} & _CRAWL:
            call("dumps", folder / "dumps", documents)
        print(f"\n{documents:,} documents in {options.shards} shards, made in {time.monotonic() - start:.0f} s")
        heads = ["stage", "seconds", "driver: CPU s", "us per document", "peak MB", "worker: peak MB", "work bytes"]
        print(f"| {' | '.join(heads)} |")
        print("|---|---|---|---|---|---|---|")
        for stage in options.stages:
            (sections, work_bytes), worker = call("stage", stage, folder, options.shards, options.workers)
            wall, cpu = (sum(section[field] for section in sections.values()) for field in (0, 1))
            peak = max(section[2] for section in sections.values())
            per_document = cpu / documents * 1e6
            memory = f"{peak:.0f} | {worker:.0f} | {work_bytes / documents:.0f}"
            print(f"| {stage} | {wall:.1f} | {cpu:.2f} | {per_document:.2f} | {memory} |", flush=True)
            results[stage].append(sections | {"all": [wall, cpu, peak]})
        for name in ("in", "dumps", "scrape", "fetch", "extract"):
            shutil.rmtree(folder / name, ignore_errors=True)
    print_growth(results, options.documents)


def print_growth(results: dict[str, list[dict[str, list[float]]]], documents: list[int]) -> None:
    """Print the phases of the largest corpus with the driver's seconds and memory, and their slopes."""
    more = documents[-1] - documents[0]
    print("\n| stage | phase | seconds | driver: CPU s | peak MB | slope: us per document | bytes per document |")
    print("|---|---|---|---|---|---|---|")
    for stage, runs in results.items():
        for phase, (wall, cpu, peak) in runs[-1].items():
            if cpu >= _LISTED_S:
                _, cpu_before, peak_before = runs[0].get(phase, (0.0, 0.0, peak))
                slopes = "- | -"
                if more:
                    slopes = f"{(cpu - cpu_before) / more * 1e6:.3f} | {(peak - peak_before) / more * 1e6:.1f}"
                print(f"| {stage} | {phase} | {wall:.1f} | {cpu:.2f} | {peak:.0f} | {slopes} |")


def write_corpus(folder: str, documents: str, shards: str, of_stage: str) -> None:
    """Write a corpus in Parquet, also as a stage would, and a benchmark of texts of which every second one is in it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipelines import storage
    from pipelines.engine.manifest import FileEntry, Identity, Manifest, ShardEntry, write_manifest

    letters = np.random.default_rng(0)
    vocabulary = np.full((_VOCABULARY + 1, _WORD_BYTES), ord(" "), np.uint8)  # the last one is blank
    for place in range(_WORD_BYTES - 1):
        alphabet = np.frombuffer((b"aeiou", b"bcdfghjklmnpqrstvwxz")[place % 2], np.uint8)
        vocabulary[:-1, place] = letters.choice(alphabet, _VOCABULARY)
    Path(folder).mkdir()
    first, previous, entries = 0, None, []
    for shard in range(int(shards)):
        count = int(documents) * (shard + 1) // int(shards) - first
        chance = np.random.default_rng(shard)
        words = chance.integers(0, _VOCABULARY, (count, _WORDS), np.uint16)
        kinds = chance.random(count)
        copies = np.flatnonzero(kinds < 0.04)
        if previous is not None:
            words[copies] = previous[chance.integers(0, len(previous), len(copies))]
            words[kinds < 0.02, -1] = _VOCABULARY
        size = _WORDS * _WORD_BYTES
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        texts = pa.StringArray.from_buffers(
            count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(vocabulary[words]))
        )
        numbers = pa.array(np.arange(first, first + count)).cast(pa.string())
        hosts = pa.array(chance.integers(0, 10_000, count)).cast(pa.string())
        urls = pa.compute.binary_join_element_wise("http://host", hosts, ".com/", numbers, "")
        scores = pa.array(chance.integers(3, 1000, count))
        table = pa.table({"id": numbers, "url": urls, "score": scores, "text": texts})
        path = Path(folder, f"documents-{shard:05d}.parquet")
        pq.write_table(table, path, compression="zstd", row_group_size=50_000)
        file = FileEntry(path.name, path.stat().st_size, storage.sha256_of(str(path)))
        entries.append(ShardEntry("shards", path.stem, count, count, files=(file,)))
        if shard == 0:
            mixed = [text if row % 2 else text[::-1] for row, text in enumerate(texts[:1000].to_pylist())]
            lines = "".join(json.dumps({"text": text}) + "\n" for text in mixed)
            Path(folder).with_name("benchmark.jsonl").write_text(lines)
        first, previous = first + count, words
    if of_stage == "True":
        write_manifest(folder, Manifest(Identity("extract", 1, {}, {}), tuple(entries)))


def write_dumps(folder: str, submissions: str) -> None:
    """Write a dump of submissions of distinct URLs, of 10,000 hosts, and a WARC file with a page of each URL."""
    import zstandard

    from pipelines.stages.fetch.exchange import Response
    from pipelines.stages.fetch.warc import response_record

    Path(folder).mkdir()
    headers = (("Content-Type", "text/plain; charset=utf-8"),)
    with (
        open(Path(folder, "RS_2013-12.zst"), "wb") as file,
        open(Path(folder, "pages.warc.gz"), "wb") as warc,
        zstandard.ZstdCompressor().stream_writer(file) as dump,
    ):
        for number in range(int(submissions)):
            url = f"http://host{number % 10_000}.com/{number}"
            at = 1385856000 + number % 2_600_000
            row = {"id": f"{number:x}", "url": url, "title": f"The title of page {number}", "score": 5}
            row |= {"created_utc": at, "subreddit": f"subreddit{number % 1000}", "is_self": False, "over_18": False}
            dump.write(json.dumps(row).encode() + b"\n")
            if int(submissions) <= _MOST_PAGES:
                text = f"The text of page {number} has some words that are like those of all of the others.\n"
                response = Response(200, "OK", "HTTP/1.1", headers, body=text.encode())
                warc.write(response_record(url, "2013-12-01T00:00:00Z", response, {}))


def run_stage(stage: str, folder: str, shards: str, workers: str) -> tuple[dict[str, list[float]], int]:
    """Run a stage on the corpus in a folder; return what the driver's phases took, and the bytes of work files."""
    import webtext

    output, dumps = Path(folder, stage), Path(folder, "dumps")
    shutil.rmtree(output, ignore_errors=True)
    source: dict[str, Any] = {
        "scrape": {"dumps": [str(dumps / "RS_2013-12.zst")]},
        "fetch": {"links": str(Path(folder, "scrape"))},
        "extract": {"pages": str(Path(folder, "fetch")), "links": str(Path(folder, "scrape"))},
    }.get(stage, {"documents": str(Path(folder, "in"))})
    options_of_stage: dict[str, Any] = {
        "scrape": {"shards": int(shards), "accept_fresh_scores": True},
        "fetch": {"source": "warc", "pages": (str(dumps / "pages.warc.gz"),)},
        "extract": {"keep_non_documents": True, "min_words": 1},
        "filter": {"set": ("too_short=off",)},  # which drops all of these texts
    }.get(stage, {})
    more: dict[str, Any] = {
        "tokenize": {"tokenizer": str(Path(folder, "train-bpe"))},
        "overlap-report": {"benchmarks": [f"texts={Path(folder, 'benchmark.jsonl')}"]},
    }.get(stage, {})
    name = stage.replace("-", "_")
    function, config = getattr(webtext, name), getattr(webtext, f"{stage.title().replace('-', '')}Config")
    meter = Meter(output / "_work")
    options = webtext.RunOptions(webtext.make_executor(int(workers)), progress=meter)
    function(config(**options_of_stage), output=str(output), options=options, **source, **more)
    meter.end("after phases")
    if stage not in ("train-bpe", "scrape", "fetch"):
        shutil.rmtree(output)
    return meter.sections, meter.work_bytes


def measure_marks(count: str, folder: str) -> dict[str, list[float]]:
    """Run what the driver does with all documents at once, on work files like those of a dedup of so many."""
    import numpy as np

    from pipelines.stages.dedup import clusters, pairs
    from pipelines.stages.dedup.config import DedupConfig
    from pipelines.stages.dedup.documents import Corpus, record_type

    documents, config, parts = int(count), DedupConfig(), 200
    starts = tuple(documents * part // parts for part in range(parts + 1))
    corpus = Corpus(config, folder, parts, 1, starts, key_parts=parts, pair_parts=(parts,))
    chance = np.random.default_rng(0)
    for part in range(parts):
        rows = starts[part + 1] - starts[part]
        # Of records, only the ranks of some documents are read: the files are sparse.
        np.lib.format.open_memmap(corpus.path("records", part, "npy"), "w+", record_type(config.num_perm), (rows,))
        np.save(corpus.path("ids", part, "npy"), np.zeros(1, np.uint8))
        worse, better = np.sort(chance.integers(0, documents, (2, documents // parts // 50)), axis=0)[::-1]
        for noun, schema, columns in (
            ("copies", pairs.COPY_SCHEMA, (worse, better)),
            ("pairs-0", pairs.PAIR_SCHEMA, (better, worse)),
            ("edges-0", pairs.EDGE_SCHEMA, (better, worse, np.ones(len(worse)))),
        ):
            corpus.write_buckets(noun, part, schema, columns, np.zeros(len(worse), np.int32))
        corpus.write_array("groups-0", part, np.zeros((3, 0), np.int64))
    clusters.decide(corpus)  # compiles its kernels
    meter = Meter()
    for name, function in (
        ("dedup: copy-marks", lambda: pairs.mark_copies(corpus)),
        ("dedup: candidate-marks", lambda: pairs.mark_candidates(corpus)),
        ("dedup: decisions", lambda: clusters.decide(corpus)),
    ):
        function()
        meter.end(name)
    return meter.sections


# Shards and files


def measure_files(count: int, folder: Path) -> None:
    """Print what a journal, a manifest and inputs of so many files take."""
    print(f"{count:,} shards or files\n\n| | seconds | CPU s | us per file | peak MB |\n|---|---|---|---|---|")
    for name in ("manifest", "inputs"):
        sections, _ = call(name, count, folder / name)
        for section, (wall, cpu, peak) in sections.items():
            print(f"| {section} | {wall:.1f} | {cpu:.2f} | {wall / count * 1e6:.0f} | {peak:.0f} |", flush=True)


def measure_manifest(count: str, folder: str) -> dict[str, list[float]]:
    from pipelines.engine.journal import OutputFolder
    from pipelines.engine.manifest import FileEntry, Identity, Manifest, ShardEntry, read_manifest, write_manifest

    identity = Identity("dedup", 1, {}, {"documents": "0" * 64})
    entries = [
        ShardEntry(
            "shards", f"documents-{shard:05d}", 1000, 960, {"near_duplicate": 20, "exact_duplicate": 20},
            files=tuple(FileEntry(f"{noun}-{shard:05d}.parquet", 10**7, "0" * 64) for noun in ("documents", "dropped")),
        )
        for shard in range(int(count))
    ]  # fmt: skip
    meter, journal = Meter(), OutputFolder(folder)
    journal.write_header(identity)
    meter.begin()
    for entry in entries:
        journal.write_entry(entry)
    meter.end("write the journal")
    entries = journal.entries()
    meter.end("read the journal")
    write_manifest(folder, Manifest(identity, tuple(entries)))
    meter.end("write the manifest")
    manifest = read_manifest(folder)
    meter.end("read the manifest")
    manifest.fingerprint()
    meter.end("fingerprint of the manifest")
    journal.remove_journal()
    meter.end("remove the journal")
    return meter.sections


def measure_inputs(count: str, folder: str) -> dict[str, list[float]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipelines import storage
    from pipelines.records import inputs

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ["1"], "text": ["a text"]}), sink)
    contents = {"jsonl": b'{"text": "a text"}\n', "parquet": sink.getvalue().to_pybytes()}
    meter = Meter()
    for kind, content in contents.items():
        Path(folder, kind).mkdir(parents=True)
        for number in range(int(count)):
            Path(folder, kind, f"{number:06d}.{kind}").write_bytes(content)
    meter.begin()
    calls: dict[str, Callable[[], object]] = {
        "list the folder": lambda: storage.walk_files(f"{folder}/jsonl"),
        "match a glob": lambda: storage.glob(f"{folder}/jsonl/*.jsonl"),
        "open JSONL": lambda: inputs.open_documents(f"{folder}/jsonl"),
        "open Parquet": lambda: inputs.open_documents(f"{folder}/parquet"),
    }
    for name, function in calls.items():
        function()
        meter.end(name)
    return meter.sections


CALLS: dict[str, Callable[..., Any]] = {
    "corpus": write_corpus,
    "dumps": write_dumps,
    "stage": run_stage,
    "marks": measure_marks,
    "manifest": measure_manifest,
    "inputs": measure_inputs,
}


if __name__ == "__main__":
    main()

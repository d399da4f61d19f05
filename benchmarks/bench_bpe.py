"""Compares `webtext train-bpe` with the BPE trainers of tokenizers, rustbpe and gigatoken.

    python benchmarks/bench_bpe.py [DOCS] [--vocab-size 50257] [--rounds 3] [--peers webtext-2 tokenizers ...]

The default input is `text/docs.jsonl.zst` in the folder $WEBTEXT_TEST_DATA. Each run is a separate process, from the
compressed file to the merges; the trainers alternate, so that other load on the machine affects all alike. Seconds are
of the whole process, core-seconds its user and system time including its children's. Memory is the peak sum of the
proportional set sizes of the processes of a run, sampled twenty times per second, and the largest resident set size of
a single process. All figures are medians of the rounds.

`webtext train-bpe` does more than its peers: it holds out documents, keeps the word counts, and writes and verifies six
files and a report. The time of its parts is printed below the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from process_tree import proportional_set_mb, tree

SAMPLE_S = 0.05
PEERS = ("webtext-2", "webtext-1", "tokenizers", "rustbpe", "gigatoken")

# Each script reads the same file and writes its merges in order, as lines of two hexadecimal tokens.
READ = """
import io, json, sys
import zstandard
docs, size, output = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def texts():
    if docs.endswith(".parquet"):
        import pyarrow.parquet as pq
        for batch in pq.ParquetFile(docs).iter_batches(64, columns=["text"]):
            yield from batch.column("text").to_pylist()
        return
    with open(docs, "rb") as raw:
        stream = zstandard.ZstdDecompressor().stream_reader(raw) if docs.endswith(".zst") else raw
        for line in io.TextIOWrapper(stream, "utf-8"):
            yield json.loads(line)["text"]
def write(pairs):
    with open(output, "w") as file:
        file.writelines(f"{left.hex()} {right.hex()}\\n" for left, right in pairs)
"""
BYTES_OF = """
printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
byte_of = {chr(byte): byte for byte in printable}
byte_of.update({chr(256 + n): byte for n, byte in enumerate(b for b in range(256) if b not in printable)})
def token_bytes(token):
    return bytes(byte_of[character] for character in token)
"""
SCRIPTS = {
    "tokenizers": READ + BYTES_OF + '''
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
trainer = trainers.BpeTrainer(vocab_size=size - 1, min_frequency=2, show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator(texts(), trainer)
write([tuple(map(token_bytes, pair)) for pair in json.loads(tokenizer.to_str())["model"]["merges"]])
''',
    "rustbpe": READ + '''
import rustbpe
from pipelines.algorithms.bpe.split import GPT2_SPLIT
tokenizer = rustbpe.Tokenizer()
tokenizer.train_from_iterator(texts(), size - 1, pattern=GPT2_SPLIT)
ranked = sorted((rank, bytes(token)) for token, rank in tokenizer.get_mergeable_ranks())
ranks = {token: rank for rank, token in ranked}
def pair_of(token, below):
    """Return the pair that was merged into a token; rustbpe only returns tokens, so apply the earlier merges to it."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        best = min((ranks.get(a + b, below), at) for at, (a, b) in enumerate(zip(parts, parts[1:])))
        if best[0] >= below:
            break
        parts[best[1] : best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]
    return parts
write([tuple(pair_of(token, rank)) for rank, token in ranked if len(token) > 1])
''',
    "gigatoken": READ + '''
from gigatoken.gigatoken_rs import train_bpe
joined = b"\\xff".join(text.encode() for text in texts())
_, merges = train_bpe(joined, size - 1, [], separator=b"\\xff")
write(merges)
''',
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Run:
    seconds: float
    core_seconds: float
    sum_mb: float
    largest_mb: float
    parts: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("docs", type=Path, nargs="?", default=Path(data) / "text" / "docs.jsonl.zst")
    parser.add_argument("--vocab-size", type=int, default=50257)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    options = parser.parse_args()
    if not options.docs.is_file():
        print(f"skipped: {options.docs} does not exist; name a JSONL file, or set WEBTEXT_TEST_DATA")
        return
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {cores} cores, load before {load:.1f}")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in SCRIPTS if name in options.peers))
    runs: dict[str, list[Run]] = {peer: [] for peer in options.peers}
    merges: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-bpe-") as folder:
        for _ in range(options.rounds):
            for peer in options.peers:
                run, pairs = train(peer, options.docs, options.vocab_size, Path(folder))
                if merges.setdefault(peer, pairs) != pairs:
                    print(f"{peer}: merges differ from those of the previous round")
                runs[peer].append(run)
    report(runs, merges)


def train(peer: str, docs: Path, vocab_size: int, folder: Path) -> tuple[Run, list[str]]:
    """Run one trainer in a child process; return its measurements and merges."""
    output = folder / "result"
    if peer in SCRIPTS:
        command = [sys.executable, "-c", SCRIPTS[peer], str(docs), str(vocab_size), str(output)]
    else:
        workers = peer.rpartition("-")[2]
        command = [sys.executable, "-m", "webtext_cli", "train-bpe", "-i", str(docs), "-o", str(output), "--quiet"]
        command += ["--vocab-size", str(vocab_size), "--workers", workers]
    seconds, core_seconds, sum_mb, largest_mb = measure(command)
    if peer in SCRIPTS:
        pairs, parts = output.read_text().splitlines(), {}
        output.unlink()
    else:
        pairs = [line for line in (output / "merges.txt").read_text().splitlines() if not line.startswith("#version")]
        pairs = [" ".join(hex_of(token) for token in line.split(" ")) for line in pairs]
        parts = json.loads((output / "timing.json").read_text())
        shutil.rmtree(output)
    return Run(seconds, core_seconds, sum_mb, largest_mb, parts), pairs


def hex_of(token: str) -> str:
    from pipelines.algorithms.bpe.byte_level import token_bytes

    return token_bytes(token).hex()


def measure(command: list[str]) -> tuple[float, float, float, float]:
    """Return seconds, core-seconds and the two memory peaks in MB of a command with its child processes."""
    peak = 0.0
    before, started = children_core_seconds(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]
    reader.start()
    while True:
        exited, status, usage = os.wait4(process.pid, os.WNOHANG)
        if exited:
            break
        peak = max(peak, sum(map(proportional_set_mb, tree(process.pid))))
        time.sleep(SAMPLE_S)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    reader.join()
    if process.returncode:
        raise SystemExit(b"".join(errors).decode(errors="replace"))
    # `ru_maxrss` includes the largest of its children, since the process waited for them.
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, children_core_seconds() - before, peak, usage.ru_maxrss * unit / 1e6


def children_core_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def report(runs: dict[str, list[Run]], merges: dict[str, list[str]]) -> None:
    first = next(iter(merges))
    print("\n| trainer | seconds | all rounds | core-seconds | peak MB, sum | largest process MB ", end="")
    print(f"| merges | not in {first} | first difference |")
    print("|---" * 9 + "|")
    for peer, rounds in runs.items():
        seconds, cores, total, largest = (
            statistics.median(getattr(run, name) for run in rounds)
            for name in ("seconds", "core_seconds", "sum_mb", "largest_mb")
        )
        all_seconds = ", ".join(f"{run.seconds:.1f}" for run in rounds)
        differing, first_difference = differences(merges[first], merges[peer])
        print(
            f"| {peer} | {seconds:.1f} | {all_seconds} | {cores:.1f} | {total:,.0f} | {largest:,.0f} "
            f"| {len(merges[peer]):,} | {differing:,} | {first_difference} |"
        )
    for peer, rounds in runs.items():
        if rounds[0].parts:
            print(f"\n{peer}, parts of the last round: {json.dumps(rounds[-1].parts)}")
    if "tokenizers" in runs:
        report_ratios(runs)


def report_ratios(runs: dict[str, list[Run]]) -> None:
    baseline = runs["tokenizers"]
    for peer in (name for name in runs if name.startswith("webtext")):
        speed, memory = (
            statistics.median(getattr(run, name) for run in baseline)
            / statistics.median(getattr(run, name) for run in runs[peer])
            for name in ("seconds", "sum_mb")
        )
        print(f"\n{peer}: {speed:.1f} times as fast as tokenizers, with 1/{memory:.1f} of its memory")


def differences(expected: list[str], merges: list[str]) -> tuple[int, str]:
    """Return the number of merges that are not expected, and the position of the first difference ("-" for none)."""
    known = set(expected)
    pairs = enumerate(zip(expected, merges, strict=False))
    first = next((str(position) for position, (left, right) in pairs if left != right), None)
    if first is None:
        first = "-" if len(expected) == len(merges) else str(min(len(expected), len(merges)))
    return sum(pair not in known for pair in merges), first


if __name__ == "__main__":
    main()

"""Train a byte-level BPE: `webtext train-bpe` against the trainers of tokenizers, rustbpe and gigatoken.

    python benchmarks/bench_bpe.py [DOCS.jsonl.zst] [--vocab-size 50257] [--rounds 3] [--peers webtext-2 tokenizers ...]

Default input: `text/docs.jsonl.zst` of the folder that $WEBTEXT_TEST_DATA names. Each run is a process of its own, from
the compressed file to the merges, and the runs take turns, so that what else the machine does falls on all alike.
Seconds are of the whole process; core-seconds its user and system time, with its children's. Memory is the highest sum
over the processes of a run of what each holds for itself (proportional set size, looked up twenty times a second), and
beside it the greatest resident size that the kernel noted of any one of them. Medians of the rounds.

`webtext train-bpe` does more than its peers: it splits off held-out documents, keeps the counts, writes and proves six
files and a report card. Its own times of the parts stand below the table.
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

# Each reads the same file and writes its merges as lines of two hexadecimal tokens, in order.
READ = """
import io, json, sys
import zstandard
docs, size, output = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def texts():
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
from pipelines.algorithms.bpe.word_counts import GPT2_SPLIT
tokenizer = rustbpe.Tokenizer()
tokenizer.train_from_iterator(texts(), size - 1, pattern=GPT2_SPLIT)
ranked = sorted((rank, bytes(token)) for token, rank in tokenizer.get_mergeable_ranks())
ranks = {token: rank for rank, token in ranked}
def parts_of(token, below):
    """It tells tokens, not pairs: the pair is what its own merges below this one leave of the token."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        best = min((ranks.get(a + b, below), at) for at, (a, b) in enumerate(zip(parts, parts[1:])))
        if best[0] >= below:
            break
        parts[best[1] : best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]
    return parts
write([tuple(parts_of(token, rank)) for rank, token in ranked if len(token) > 1])
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
        print(f"skipped: {options.docs} is not here; name a JSONL file, or its folder with WEBTEXT_TEST_DATA")
        return
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {cores} cores, load before {load:.1f}")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tokenizers", "rustbpe", "gigatoken")))
    runs: dict[str, list[Run]] = {peer: [] for peer in options.peers}
    merges: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-bpe-") as folder:
        for _ in range(options.rounds):
            for peer in options.peers:
                found, pairs = train(peer, options.docs, options.vocab_size, Path(folder))
                if merges.setdefault(peer, pairs) != pairs:
                    print(f"{peer} gave other merges than in the round before")
                runs[peer].append(found)
    report(runs, merges)


def train(peer: str, docs: Path, vocab_size: int, folder: Path) -> tuple[Run, list[str]]:
    """Run one trainer in a process of its own; return what it took and its merges."""
    output = folder / "result"
    if peer in SCRIPTS:
        command = [sys.executable, "-c", SCRIPTS[peer], str(docs), str(vocab_size), str(output)]
    else:
        workers = peer.rpartition("-")[2]
        command = [sys.executable, "-m", "webtext_cli", "train-bpe", "-i", str(docs), "-o", str(output), "--quiet"]
        command += ["--vocab-size", str(vocab_size), "--workers", workers]
    seconds, core_seconds, sum_mb, largest_mb = measured(command)
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


def measured(command: list[str]) -> tuple[float, float, float, float]:
    """Return seconds, core-seconds, and the two peaks of memory in MB of a command and all below it."""
    peak = 0.0
    before, started = children_core_seconds(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]
    reader.start()
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        peak = max(peak, sum(map(proportional_set_mb, tree(process.pid))))
        time.sleep(SAMPLE_S)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    reader.join()
    if process.returncode:
        raise SystemExit(b"".join(errors).decode(errors="replace"))
    # Of its children the kernel notes the greatest in the process that waited for them, and it was reaped here.
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, children_core_seconds() - before, peak, used.ru_maxrss * unit / 1e6


def children_core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(runs: dict[str, list[Run]], merges: dict[str, list[str]]) -> None:
    first = next(iter(merges))
    print("\n| trainer | seconds | of all rounds | core-seconds | peak MB, sum | largest process MB ", end="")
    print(f"| merges | not among {first}'s | first other |")
    print("|---" * 9 + "|")
    for peer, found in runs.items():
        seconds, cores, total, largest = (
            statistics.median(getattr(run, name) for run in found)
            for name in ("seconds", "core_seconds", "sum_mb", "largest_mb")
        )
        each = ", ".join(f"{run.seconds:.1f}" for run in found)
        differing, at = differences(merges[first], merges[peer])
        print(
            f"| {peer} | {seconds:.1f} | {each} | {cores:.1f} | {total:,.0f} | {largest:,.0f} | {len(merges[peer]):,} "
            f"| {differing:,} | {at} |"
        )
    for peer, found in runs.items():
        if found[0].parts:
            print(f"\n{peer}, the last round's parts: {json.dumps(found[-1].parts)}")
    if "tokenizers" in runs:
        report_ratios(runs)


def report_ratios(runs: dict[str, list[Run]]) -> None:
    theirs = runs["tokenizers"]
    for peer in (name for name in runs if name.startswith("webtext")):
        speed, memory = (
            statistics.median(getattr(run, name) for run in theirs)
            / statistics.median(getattr(run, name) for run in runs[peer])
            for name in ("seconds", "sum_mb")
        )
        print(f"\n{peer}: {speed:.1f} times as fast as tokenizers, in 1/{memory:.1f} of its memory")


def differences(ours: list[str], theirs: list[str]) -> tuple[int, str]:
    """Return how many of their merges are none of ours, and the place of the first that differs ("-" if none does)."""
    known = set(ours)
    first = next((str(at) for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if first is None:
        first = "-" if len(ours) == len(theirs) else str(min(len(ours), len(theirs)))
    return sum(pair not in known for pair in theirs), first


if __name__ == "__main__":
    main()

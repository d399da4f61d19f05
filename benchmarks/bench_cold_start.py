"""What numba compilation costs: each command with an empty kernel cache (cold), then again (warm).

    python benchmarks/bench_cold_start.py [DOCS] [--benchmark PATH] [--workers 2] [--apart]

Default input: `text/books.jsonl.zst` and `benchmarks/wikitext2-test.txt` of the folder that $WEBTEXT_TEST_DATA names.
The commands share one cache, as in a pipeline, so a kernel that two of them use is compiled by the first; `--apart`
starts each with an empty cache. CPU seconds are user time of the command and its workers; on a busy machine only they
compare.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("WEBTEXT_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("docs", type=Path, nargs="?", default=default / "text" / "books.jsonl.zst")
    parser.add_argument("--benchmark", type=Path, default=default / "benchmarks" / "wikitext2-test.txt")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--apart", action="store_true", help="start each command with an empty cache")
    options = parser.parse_args()
    commands = {
        "train-bpe": [],
        "tokenize": ["--tokenizer", "{folder}/train-bpe"],
        "overlap-index": [],
        "overlap-report": ["--benchmark", f"benchmark={options.benchmark}"],
    }
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; wall and CPU seconds")
    print(f"{'command':<16}{'cold':>8}{'CPU':>8}{'warm':>8}{'CPU':>8}{'compiling':>11}{'CPU':>8}")
    sums = [0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        for command, arguments in commands.items():
            if options.apart:
                shutil.rmtree(Path(folder, "cache"), ignore_errors=True)
            call = [command, "-i", str(options.docs), "--workers", str(options.workers)]
            call += [argument.format(folder=folder) for argument in arguments]
            cold, warm = (run(call, folder, keep=number == 1) for number in range(2))
            compiling = [before - after for before, after in zip(cold, warm, strict=True)]
            sums = [total + seconds for total, seconds in zip(sums, compiling, strict=True)]
            print(
                f"{command:<16}{cold[0]:>8.1f}{cold[1]:>8.1f}{warm[0]:>8.1f}{warm[1]:>8.1f}"
                f"{compiling[0]:>11.1f}{compiling[1]:>8.1f}",
                flush=True,
            )
    print(f"{'together':<48}{sums[0]:>11.1f}{sums[1]:>8.1f}")


def run(call: list[str], folder: str, *, keep: bool) -> tuple[float, float]:
    """Run a command; return its wall and user seconds."""
    output = Path(folder, call[0])
    environment = os.environ | {"NUMBA_CACHE_DIR": str(Path(folder, "cache"))}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.perf_counter()
    command = [sys.executable, "-m", "webtext_cli", *call, "-o", str(output)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if done.returncode:
        sys.exit(f"{' '.join(call)}: {done.stderr}")
    if not keep:
        shutil.rmtree(output)
    return seconds


if __name__ == "__main__":
    main()

"""The estimates of `webtext plan` compared with real runs of the same stages on the same documents.

    python benchmarks/bench_plan.py [--data FOLDER] [--size-mb 500]

FOLDER contains `text/docs.jsonl.zst` and `text/books.jsonl.zst` (default: $WEBTEXT_TEST_DATA), from which the documents
are made as in bench_dedup_command. Prints estimated and real seconds and bytes of disk per stage, and their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_dedup_command import write_corpus

_RUN = "import sys; from webtext_cli.main import run; sys.argv[0] = 'webtext'; run()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--size-mb", type=int, default=500)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(options.data / "text", folder / "in", options.size_mb)
        documents = f"{folder}/in/*.parquet"
        estimate = run_webtext("plan", "-i", documents)
        print(f"rates: {estimate['rates']}; load {os.getloadavg()[0]:.1f}")
        (folder / "benchmark.jsonl").write_text(json.dumps({"text": "the " * 20}) + "\n")
        more = {
            "tokenize": ["--tokenizer", f"{folder}/train-bpe"],
            "overlap-report": ["--benchmark", f"small={folder}/benchmark.jsonl"],
        }
        print(
            "| stage | estimated s | real s | ratio | estimated disk kept, MB | real, MB |\n|---|---|---|---|---|---|"
        )
        totals = [0.0, 0.0]
        for stage in estimate["stages"]:
            if stage["stage"] == "remove-wikipedia":
                continue  # these documents have no URLs
            output = folder / stage["stage"]
            summary = run_webtext(stage["stage"], "-i", documents, "-o", str(output), *more.get(stage["stage"], []))
            real, size = summary["seconds"], sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
            totals = [totals[0] + stage["seconds"], totals[1] + real]
            times = f"{stage['seconds']:.1f} | {real:.1f} | {stage['seconds'] / real:.2f}"
            print(f"| {stage['stage']} | {times} | {stage['kept_bytes'] / 1e6:.0f} | {size / 1e6:.0f} |", flush=True)
        print(f"| all | {totals[0]:.1f} | {totals[1]:.1f} | {totals[0] / totals[1]:.2f} | | |")
    print(f"load {os.getloadavg()[0]:.1f}")


def run_webtext(*arguments: str) -> Any:
    """Run a command and return its summary."""
    command = [sys.executable, "-c", _RUN, *arguments, "--json", "-q"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()

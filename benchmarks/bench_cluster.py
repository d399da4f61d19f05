"""Ray against local processes, and an object store against a local folder: seconds, and the driver's cost per task.

    python benchmarks/bench_cluster.py [--data FOLDER] [--size-mb 500] [--rounds 1]
                                       [--tasks 100000] [--only stages tasks] [--settings ray s3]
                                       [--ray-address HOST:PORT]

FOLDER contains `text/docs.jsonl.zst` and `text/books.jsonl.zst` (default: $WEBTEXT_TEST_DATA), from which the corpus is
made as in bench_dedup_command. Stages: dedup and tokenize with two workers, on local files with both executors, and in
an S3 of moto, which runs on this machine in a process of its own. Tasks: as many that do nothing, on Ray; the driver's
CPU seconds and its memory. Needs ray, obstore and moto.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_dedup_command import write_corpus

WORKERS = "2"
_SERVER = """
import logging, sys, threading
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--size-mb", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", choices=("stages", "tasks"), default=["stages", "tasks"])
    parser.add_argument("--ray-address", help="a running cluster; without it, a Ray is started for every command")
    parser.add_argument("--settings", nargs="+", choices=("ray", "s3"), default=["ray", "s3"], help="besides local")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    if "stages" in options.only:
        with tempfile.TemporaryDirectory() as folder:
            compare_stages(options, Path(folder))
    if "tasks" in options.only:
        measure_tasks(options.tasks)
    print(f"load {os.getloadavg()[0]:.1f}")


def compare_stages(options: argparse.Namespace, folder: Path) -> None:
    """Print the seconds of dedup and tokenize in each setting, and the ratios to local processes and files."""
    write_corpus(options.data / "text", folder / "in", options.size_mb)
    gpt2 = str(options.data / "gpt2_vocab")
    seconds: dict[tuple[str, str], list[float]] = {}
    with s3_server() as environment:
        address = ["--ray-address", options.ray_address] if options.ray_address else []
        settings = {"local": ([], folder / "local"), "ray": (["--executor", "ray", *address], folder / "ray")}
        for number in range(options.rounds):
            for name in ("local", *options.settings):
                arguments, output = settings.get(name, ([], f"s3://bench/{number}"))
                output = output if name == "s3" else f"{output}-{number}"
                source = f"{folder}/in/*.parquet"
                if name == "s3":
                    source = "s3://bench/in"
                    upload(sorted((folder / "in").glob("*.parquet")), environment)
                for stage, more in (("dedup", []), ("tokenize", ["--tokenizer", gpt2])):
                    command = [stage, "-i", source, "-o", f"{output}/{stage}", *arguments, *more]
                    seconds.setdefault((name, stage), []).append(run_webtext(command, environment))
    for (name, stage), values in seconds.items():
        ratio = statistics.median(value / local for value, local in zip(values, seconds["local", stage], strict=True))
        print(f"{stage}, {name}: {statistics.median(values):.1f} s, {ratio:.2f} times local")


def run_webtext(arguments: list[str], environment: dict[str, str]) -> float:
    """Run a command and return its seconds."""
    start = time.perf_counter()
    code = "import sys; from webtext_cli.main import run; sys.argv[0] = 'webtext'; run()"
    command = [sys.executable, "-c", code, *arguments, "--workers", WORKERS, "-q"]
    subprocess.run(command, check=True, env=os.environ | environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Yield the environment of clients of an S3 on this machine, which has the bucket `bench`."""
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        address = f"http://127.0.0.1:{int(server.stdout.readline())}"
        with urllib.request.urlopen(urllib.request.Request(f"{address}/bench", method="PUT"), timeout=30):
            yield {
                "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1", "NO_PROXY": "127.0.0.1",
            }  # fmt: skip
        server.kill()


def upload(paths: list[Path], environment: dict[str, str]) -> None:
    """Write files into the folder `in` of the bucket."""
    os.environ.update(environment)
    from pipelines import storage

    for path in paths:
        with storage.atomic_write(f"s3://bench/in/{path.name}") as writer:
            writer.write(path.read_bytes())


def nothing(number: int) -> int:
    """Return the number."""
    return number


def measure_tasks(count: int) -> None:
    """Print the driver's seconds per task and its memory for tasks that do nothing."""
    from pipelines.engine.executor import make_executor

    executor = make_executor(int(WORKERS), "ray")
    with executor.persistent_workers():
        list(executor.map(nothing, range(100), None, lambda _: None, str))
        start, before = time.perf_counter(), time.process_time()
        done = sum(1 for _ in executor.map(nothing, range(count), None, lambda _: None, str))
        wall, cpu = time.perf_counter() - start, time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{done:,} tasks on Ray: {wall:.0f} s, {1000 * wall / done:.2f} ms per task, of which the driver's CPU")
    print(f"  {1000 * cpu / done:.2f} ms; the driver's peak memory {peak:.0f} MB")


if __name__ == "__main__":
    main()

"""How fetch divides a list of URLs among its shards: processor time per URL and memory.

    python benchmarks/bench_url_lists.py [--urls 1000000] [--domains 100000]

The list is made up: 1 in 3 URLs is of the thousand most frequent domains. It is divided in this process, then each
shard is read once, as each phase of fetch does.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import resource
import tempfile
import time
from pathlib import Path

from pipelines import storage
from pipelines.engine.run import RunOptions, stage_run
from pipelines.stages.fetch.links import divide_lists, open_links, read_links
from pipelines.stages.fetch.stage import STAGE


@dataclasses.dataclass(frozen=True)
class _NoConfig:
    pass


def write_list(path: Path, urls: int, domains: int) -> None:
    generator = random.Random(0)
    with path.open("w") as stream:
        for number in range(urls):
            domain = generator.randrange(1000 if number % 3 == 0 else domains)
            host = ("www.", "blog.", "")[domain % 3] + f"site-{domain}" + (".com", ".co.uk", ".org")[domain % 5 % 3]
            stream.write(f"https://{host}/{number % 2013}/{generator.getrandbits(48):x}-article.html\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--urls", type=int, default=1_000_000)
    parser.add_argument("--domains", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder, "urls.txt"), str(Path(folder, "fetch"))
        write_list(path, options.urls, options.domains)
        source = open_links(str(path))
        print(f"{options.urls:,} URLs, {path.stat().st_size:,} bytes, {len(source.shards)} shards")
        before = memory_mb()
        with stage_run(STAGE, _NoConfig(), inputs={}, output=output, options=RunOptions()) as run:
            start = time.process_time()
            divide_lists(run, source.shards)
            divided = time.process_time()
            size = storage.folder_bytes(run.work)
            print(f"divided: {(divided - start) / options.urls * 1e6:.2f} us per URL, work files {size:,} bytes")
            print(f"memory: {before:.0f} MB before, {memory_mb():.0f} MB at most")
            links = sum(len(read_links(shard, run.output)) for shard in source.shards)
        print(f"all shards read once: {(time.process_time() - divided) / options.urls * 1e6:.2f} us per URL")
        print(f"load {os.getloadavg()[0]:.1f}")
    assert links == options.urls


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()

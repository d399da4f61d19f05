"""What bounds `webtext fetch`: its memory, what one slow host costs, and what is repeated after `kill -9`.

    python benchmarks/bench_fetch_bounds.py [--only memory|slow|kills] [--links 100000] [--seed 1]

memory: links of 2,000 hosts; the resident memory of the largest process every ten seconds.
slow: 100 hosts of 200 links, a second between two requests to a host; then one of them sends a byte per second.
kills: 3,000 pages of 100 hosts, a third of them gone and half of these in a Common Crawl of this machine; the run is
killed at 20 random moments, and its rows and requests are compared with those of one that was left alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from warcio.archiveiterator import ArchiveIterator

_TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(_TESTS / "stages" / "fetch"), str(_TESTS / "stages"), str(_TESTS), str(Path(__file__).parent)]

from bench_fetch import server  # noqa: E402
from local_archives import Archived, write_crawl  # noqa: E402
from local_web import Answer, LocalWeb  # noqa: E402

_CODE = "import sys; from webtext_cli.main import run; sys.argv[0] = 'webtext'; run()"
_KILLS = 20
_CONCURRENCY = 32


def start_fetch(urls: Path, output: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the command with two workers in a process group of its own."""
    command = [sys.executable, "-c", _CODE, "fetch", "-i", str(urls), "-o", str(output), "--workers", "2", "-q"]
    return subprocess.Popen(
        [*command, "--contact", "mailto:bench@example.org", *arguments],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def process_memory(process: int) -> Iterator[int]:
    """Yield the resident bytes of a process and those that it started."""
    yield int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[0]) << 10
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        yield from process_memory(int(child))


def measure_memory(folder: Path, links: int) -> None:
    with server(folder, True) as port:
        hosts = [f"127.0.{number // 250}.{number % 250 + 1}:{port}" for number in range(2000)]
        urls = folder / "urls.txt"
        urls.write_text("\n".join(f"http://{hosts[number % 2000]}/{number}" for number in range(links)))
        start = shown = time.perf_counter()
        process = start_fetch(urls, folder / "memory", "--per-host-delay", "0", "--allow-private-addresses")
        peak = 0
        while process.poll() is None:
            time.sleep(0.5)
            try:
                largest = max(process_memory(process.pid))
            except (OSError, IndexError):
                continue  # one of them has just ended
            peak = max(peak, largest)
            if time.perf_counter() - shown > 10:
                shown = time.perf_counter()
                print(f"{shown - start:4.0f} s: {largest / 1e6:.0f} MB")
        print(f"{links:,} links: {links / (time.perf_counter() - start):.0f} pages/s, peak {peak / 1e6:.0f} MB")
        assert process.returncode == 0


async def _serve_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer robots.txt at once, and any page by a byte per second."""
    try:
        while line := await reader.readuntil(b"\r\n\r\n"):
            if b"/robots.txt" in line.split(b"\r\n")[0]:
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9000\r\n\r\n")
            for _ in range(9000):
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(1)
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()


@contextmanager
def slow_server() -> Iterator[int]:
    """Yield the port of a server of one byte per second."""
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(_serve_bytes, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield listening.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def measure_slow_host(folder: Path) -> None:
    seconds = []
    with server(folder, True) as port, slow_server() as slow:
        for name in ("none", "one"):
            hosts = [f"127.0.1.{number + 1}:{port}" for number in range(100)]
            if name == "one":
                hosts[50] = f"127.0.0.1:{slow}"
            urls = folder / f"{name}.txt"
            urls.write_text("\n".join(f"http://{host}/{number}" for number in range(200) for host in hosts))
            start = time.perf_counter()
            # An address is a registered domain, so the hosts are in several shards, but most of them in one at a time.
            process = start_fetch(urls, folder / name, "--allow-private-addresses", "--concurrency", "100")
            assert process.wait() == 0
            seconds.append(time.perf_counter() - start)
            outcomes = Counter(row["outcome"] for row in read_rows(folder / name))
            print(f"{name} of 100 hosts slow: {seconds[-1]:.0f} s, {dict(outcomes)}")
    print(f"ratio {seconds[1] / seconds[0]:.2f}")


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("pages-*.parquet")) for row in pq.read_table(path).to_pylist()]


def _comparable(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return sorted((row["url"], row["outcome"], row["source"], str(row["captured_at"])) for row in rows)


def measure_kills(folder: Path, seed: int) -> None:
    generator = random.Random(seed)
    urls = [f"http://site{number % 100}.org/{number}" for number in range(3000)]
    pages: dict[str, Any] = {
        url: b"<p>text %d</p>" % number if number % 3 else Answer(status=404) for number, url in enumerate(urls)
    }
    crawl = ["--archive", "commoncrawl", "--cc-index", str(folder / "cc/index"), "--cc-records", str(folder / "cc")]
    arguments = ("--per-host-delay", "0", "--retries", "0", "--concurrency", str(_CONCURRENCY), *crawl)
    path = folder / "urls.txt"
    path.write_text("\n".join(urls))
    with LocalWeb(pages) as web, web.as_proxy():
        write_crawl(folder / "cc", [Archived(url, "2013-05-01") for url in urls[::6]], files=4, row_group=64)
        assert start_fetch(path, folder / "whole", *arguments).wait() == 0
        web.requests.clear()
        kills, done = 0, False
        while not done and kills < _KILLS:
            process = start_fetch(path, folder / "killed", *arguments)
            try:
                done = process.wait(generator.uniform(1.2, 3.2)) == 0
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                kills += 1
        assert done or start_fetch(path, folder / "killed", *arguments).wait() == 0
        repeated = len(web.paths()) - len(set(web.paths()))
    rows = read_rows(folder / "killed")
    assert _comparable(rows) == _comparable(read_rows(folder / "whole"))
    assert len({row["url"] for row in rows}) == len(rows) == len(urls)
    records = 0
    for name in (folder / "killed").glob("*.warc.gz"):
        with name.open("rb") as stream:
            records += sum(1 for _ in ArchiveIterator(stream, check_digests="raise"))
    print(f"{kills} kills: same rows; {repeated} of {len(set(web.paths()))} pages requested twice; {records:,} records")
    assert repeated <= kills * _CONCURRENCY * 2, "more than were under way"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("memory", "slow", "kills"))
    parser.add_argument("--links", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    for part, measure in (
        ("kills", lambda folder: measure_kills(folder, options.seed)),
        ("memory", lambda folder: measure_memory(folder, options.links)),
        ("slow", measure_slow_host),
    ):
        if options.only in (None, part):
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder))
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

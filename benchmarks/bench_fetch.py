"""Pages per second of `webtext fetch` and of a bare pool of requests, from the same servers on this machine.

    python benchmarks/bench_fetch.py [--data FOLDER] [--pages 20000] [--hosts 2000] [--workers 2] [--rounds 3] [--small]

Hosts are addresses 127.0.x.y of one server process, which sends real pages (`pages/wcxb-dev` in FOLDER, by default
$WEBTEXT_TEST_DATA), compressed as most servers do; without them, generated pages. The pool: 64 threads, each with a
`requests.Session` per host, which read the body and keep nothing. fetch asks for robots.txt, obeys limits and writes
WARC and outcomes; its delay per host is 0.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import requests

_HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n"
)
_NO_ROBOTS = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Site(asyncio.Protocol):
    """A connection: every request gets a page chosen by its path, robots.txt a 404."""

    pages: Sequence[bytes] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            request, self._received = self._received.split(b"\r\n\r\n", 1)
            path = request.split(b" ", 2)[1]
            is_robots = path == b"/robots.txt"
            self._transport.write(_NO_ROBOTS if is_robots else self.pages[int(path[1:]) % len(self.pages)])


def serve(data: Path, small: bool) -> None:
    """Serve pages on a free port of all addresses of this machine until standard input ends; print the port."""
    files = sorted((data / "pages" / "wcxb-dev" / "html").glob("*.gz"))[:500]
    html = [gzip.decompress(path.read_bytes()) for path in files if not small] or [
        b"<html><body>" + b"<p>%d words of a page</p>" % number * 350 + b"</body></html>" for number in range(500)
    ]
    bodies = [gzip.compress(page, 6) for page in html]
    Site.pages = [_HEAD.format(len(body)).encode() + body for body in bodies]

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Site, "0.0.0.0", 0, backlog=1024)
        mean = [sum(map(len, pages)) // len(pages) for pages in (html, bodies)]
        print(f"{len(html)} pages, mean {mean[0]:,} bytes, {mean[1]:,} compressed", file=sys.stderr)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    asyncio.run(run())


@contextmanager
def server(data: Path, small: bool) -> Iterator[int]:
    """Yield the port of a server process."""
    command = [sys.executable, __file__, "--serve", "--data", str(data), *(["--small"] if small else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def bare_pool(urls_by_host: Sequence[Sequence[str]]) -> float:
    """Request all URLs with 64 threads, host by host on one connection, and return the seconds."""

    def get(urls: Sequence[str]) -> bool:
        with requests.Session() as session:
            return all(session.get(url, timeout=30).content for url in urls)

    start = time.perf_counter()
    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(get, urls_by_host))
    return time.perf_counter() - start


def fetch(urls: Path, output: Path, arguments: Sequence[str]) -> float:
    """Run the command and return its seconds."""
    code = "import sys; from webtext_cli.main import run; sys.argv[0] = 'webtext'; run()"
    command = [sys.executable, "-c", code, "fetch", "-i", str(urls), "-o", str(output), *arguments]
    start = time.perf_counter()
    subprocess.run(
        [*command, "--per-host-delay", "0", "--allow-private-addresses", "-q"], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, default=2_000)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="generated pages of 8 KB instead of real ones")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.data, options.small)
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder, server(options.data, options.small) as port:
        hosts = [f"127.0.{number // 250}.{number % 250 + 1}:{port}" for number in range(options.hosts)]
        urls = [f"http://{hosts[number % len(hosts)]}/{number}" for number in range(options.pages)]
        path = Path(folder, "urls.txt")
        path.write_text("\n".join(urls))
        ratios = []
        for number in range(options.rounds):
            bare = len(urls) / bare_pool([urls[start :: len(hosts)] for start in range(len(hosts))])
            ours = len(urls) / fetch(path, Path(folder, str(number)), ["--workers", options.workers])
            ratios.append(ours / bare)
            print(f"bare pool {bare:,.0f} pages/s, webtext fetch {ours:,.0f} pages/s, ratio {ours / bare:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

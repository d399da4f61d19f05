"""Pages per second of `webtext fetch` and of a bare pool of requests, from the same servers on this machine.

    python benchmarks/bench_fetch.py [--data FOLDER] [--pages 20000] [--hosts 2000] [--shards 2] [--workers 2]
                                     [--pools 1] [--rounds 3] [--small] [--tls] [--faulty] [--against FOLDER]
                                     [-- OPTIONS OF FETCH]

Hosts are addresses 127.0.x.y of one server process, which sends real pages (`pages/wcxb-dev` in FOLDER, by default
$WEBTEXT_TEST_DATA), compressed as most servers do; without them, generated pages. URLs are padded with zeros so that
the list is divided into --shards, since one worker fetches a shard. The pool: 64 threads, each with a
`requests.Session` per host, which read the body and keep nothing; with --pools, one in each of some processes, among
which the hosts are divided. fetch asks for robots.txt, obeys limits and writes WARC and outcomes; its delay per host is
0. With --tls, the servers have certificates of an authority of this run. With --faulty, of each 20 hosts one never
answers, one resets its connections, and one redirects to the next; fetch is then not compared with the pool. With
--against, it is compared with the fetch of another checkout instead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import os
import resource
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import requests
import trustme

from pipelines.stages.fetch.links import LIST_SHARD_BYTES

_HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n"
)
_NO_ROBOTS = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
_MOVED = "HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n"
_GROUP = 100  # hosts of a certificate
_ROOT = Path(__file__).resolve().parents[1]


class Site(asyncio.Protocol):
    """A connection: every request gets a page chosen by its path, robots.txt a 404."""

    pages: Sequence[bytes] = ()
    faulty = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""
        address, self._port = transport.get_extra_info("sockname")
        self._host = 250 * int(address.split(".")[2]) + int(address.split(".")[3]) - 1
        if self.faulty and self._host % 20 == 1:
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            request, self._received = self._received.split(b"\r\n\r\n", 1)
            path = request.split(b" ", 2)[1]
            if self.faulty and self._host % 20 == 0:
                continue
            if path == b"/robots.txt":
                self._transport.write(_NO_ROBOTS)
            elif self.faulty and self._host % 20 == 2:
                url = f"http://{host_address(self._host + 1)}:{self._port}{path.decode()}"
                self._transport.write(_MOVED.format(url).encode())
            else:
                self._transport.write(self.pages[int(path[1:][-9:]) % len(self.pages)])


def host_address(number: int) -> str:
    return f"127.0.{number // 250}.{number % 250 + 1}"


def serve(data: Path, small: bool, authority: Path | None, hosts: int) -> None:
    """Serve pages on a free port of all addresses until standard input ends; print the port, also of TLS."""
    files = sorted((data / "pages" / "wcxb-dev" / "html").glob("*.gz"))[:500]
    html = [gzip.decompress(path.read_bytes()) for path in files if not small] or [
        b"<html><body>" + b"<p>%d words of a page</p>" % number * 350 + b"</body></html>" for number in range(500)
    ]
    bodies = [gzip.compress(page, 6) for page in html]
    Site.pages = [_HEAD.format(len(body)).encode() + body for body in bodies]

    async def run() -> None:
        create = asyncio.get_running_loop().create_server
        server = await create(Site, "0.0.0.0", 0, backlog=1024)
        tls_port = 0
        issuer = (
            trustme.CA.from_pem(authority.read_bytes(), authority.with_suffix(".key").read_bytes())
            if authority
            else None
        )
        for number in range(hosts if issuer else 0):
            if number % _GROUP == 0:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                issuer.issue_cert(*map(host_address, range(number, number + _GROUP))).configure_cert(context)
            secure = await create(Site, host_address(number), tls_port, backlog=64, ssl=context)
            tls_port = secure.sockets[0].getsockname()[1]
        mean = [sum(map(len, pages)) // len(pages) for pages in (html, bodies)]
        print(f"{len(html)} pages, mean {mean[0]:,} bytes, {mean[1]:,} compressed", file=sys.stderr)
        print(tls_port or server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    asyncio.run(run())


@contextlib.contextmanager
def server(data: Path, small: bool, *options: str) -> Iterator[int]:
    """Yield the port of a server process."""
    command = [sys.executable, __file__, "--serve", "--data", str(data), *(["--small"] if small else []), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def bare_pool(urls_by_host: Sequence[Sequence[str]]) -> bool:
    """Request all URLs with 64 threads, host by host on one connection; return whether each gave a page."""

    def get(urls: Sequence[str]) -> bool:
        with requests.Session() as session:
            return all(session.get(url, timeout=30).content for url in urls)

    with ThreadPoolExecutor(64) as pool:
        return all(pool.map(get, urls_by_host))


def bare_pools(urls_by_host: Sequence[Sequence[str]], processes: int) -> float:
    """Request all URLs with a pool in each of some processes, and return the seconds."""
    start = time.perf_counter()
    with ProcessPoolExecutor(processes) as executor:
        assert all(executor.map(bare_pool, [urls_by_host[number::processes] for number in range(processes)]))
    return time.perf_counter() - start


def fetch(urls: Path, output: Path, arguments: Sequence[str], checkout: Path = _ROOT) -> tuple[float, float]:
    """Run the command of a checkout and return its seconds, and those of its processes on a core."""
    code = "import sys; from webtext_cli.main import run; sys.argv[0] = 'webtext'; run()"
    command = [sys.executable, "-c", code, "fetch", "-i", str(urls), "-o", str(output), *arguments]
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*command, "--per-host-delay", "0", "--allow-private-addresses", "-q"], check=True, stdout=subprocess.DEVNULL,
        cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
    )  # fmt: skip
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, default=2_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--pools", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="generated pages of 8 KB instead of real ones")
    parser.add_argument("--tls", action="store_true", help="https")
    parser.add_argument("--faulty", action="store_true", help="hosts that hang, reset and redirect")
    parser.add_argument("--against", type=Path, help="a checkout of another version")
    parser.add_argument("--authority", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help="options of fetch, after --")
    options = parser.parse_args()
    if options.serve:
        Site.faulty = options.faulty
        serve(options.data, options.small, options.authority, options.hosts)
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        flags = ["--faulty"] if options.faulty else []
        if options.tls:
            authority = Path(folder, "authority.pem")
            issuer = trustme.CA()
            issuer.cert_pem.write_to_path(str(authority))
            issuer.private_key_pem.write_to_path(str(authority.with_suffix(".key")))
            os.environ["REQUESTS_CA_BUNDLE"] = str(authority)
            flags += ["--authority", str(authority), "--hosts", str(options.hosts)]
        port = stack.enter_context(server(options.data, options.small, *flags))
        scheme = "https" if options.tls else "http"
        hosts = [f"{host_address(number)}:{port}" for number in range(options.hosts)]
        width = round((options.shards - 0.5) * LIST_SHARD_BYTES / options.pages) - len(f"{scheme}://{hosts[-1]}/\n")
        urls = [f"{scheme}://{hosts[number % len(hosts)]}/{number:0{max(1, width)}}" for number in range(options.pages)]
        path = Path(folder, "urls.txt")
        path.write_text("\n".join(urls))
        ratios = []
        for number in range(options.rounds):
            output = Path(folder, str(number))
            flags_of_fetch = ["--workers", options.workers, *options.arguments]
            seconds, core_s = fetch(path, output, flags_of_fetch)
            ours = len(urls) / seconds
            print(f"webtext fetch: {ours:,.0f} pages/s, {1000 * core_s / len(urls):.2f} ms of processor time per page")
            tables = [pq.read_table(file, columns=["outcome"]) for file in sorted(output.glob("pages-*.parquet"))]
            print(dict(sum((Counter(table["outcome"].to_pylist()) for table in tables), Counter())))
            print(f"links per shard: {', '.join(str(table.num_rows) for table in tables)}")
            if options.against:
                seconds, core_s = fetch(path, Path(folder, f"other-{number}"), flags_of_fetch, options.against)
                other = len(urls) / seconds
                ratios.append(ours / other)
                print(f"the other: {other:,.0f} pages/s, {1000 * core_s / len(urls):.2f} ms; ratio {ours / other:.2f}")
            elif not options.faulty:
                by_host = [urls[start :: len(hosts)] for start in range(len(hosts))]
                bare = len(urls) / bare_pools(by_host, options.pools)
                ratios.append(ours / bare)
                print(f"bare pool {bare:,.0f} pages/s, ratio {ours / bare:.2f}")
    print(f"median ratio {statistics.median(ratios or [0]):.2f}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

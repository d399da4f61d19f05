"""The table of fuzz targets, which `fuzz_web`, `fuzz_files` and `fuzz_folders` fill."""

from __future__ import annotations

import bz2
import dataclasses
import functools
import gzip
import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path

# Passes an input to the function that a command calls. It may write into the folder, which is the target's own and is
# kept between inputs. Libraries are imported inside, so that the driver stays small and can fork at any time.
Run = Callable[[bytes, Path], object]
Seeds = Callable[[], Sequence[bytes]]

_DOCUMENT = {"url": "http://a.example/1", "text": "One text of more words than a few.", "score": 5}
DOCUMENTS = "".join(json.dumps({"id": f"a{number}", **_DOCUMENT}) + "\n" for number in range(40)).encode()


@dataclasses.dataclass(frozen=True)
class Target:
    """One parser. It accepts the first of `seeds`; `words` of its format are inserted into inputs."""

    name: str
    run: Run
    seeds: Seeds
    words: Sequence[bytes]


TARGETS: dict[str, Target] = {}


def add(name: str, run: Run, seeds: Seeds, words: str = "") -> None:
    """Add a target; the words are separated by `|`."""
    tokens = [word.encode() for word in words.split("|") if word]
    TARGETS[name] = Target(name, run, functools.cache(seeds), tokens)


def add_file(name: str, read: Callable[[str], object], seeds: Seeds, words: str = "") -> None:
    """Add a target whose input is a file of this name, of which `read` gets the path."""

    def run(data: bytes, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
        read(str(folder / name))

    add(name, run, seeds, words)


def add_packed(name: str, read: Callable[[str], object], data: bytes, words: str = "") -> None:
    """Add a target for a file and for each of its compressed forms."""
    for suffix, pack in {"": bytes, ".gz": gz, ".zst": _zst, ".xz": lzma.compress, ".bz2": bz2.compress}.items():
        add_file(name + suffix, read, functools.partial(_packed, pack, data), words)


def _packed(pack: Callable[[bytes], bytes], data: bytes) -> list[bytes]:
    return [pack(data)]


def gz(data: bytes) -> bytes:
    """Compress without the time, so that the inputs are the same in each run."""
    return gzip.compress(data, mtime=0)


def _zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.compress(data)

"""The file of an index, read by nothing but what docs/formats.md says of it."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from pipelines.engine.run import RunOptions
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index

_64 = (1 << 64) - 1


def _ngram_hash(words: list[str]) -> int:
    total = 0
    for word in words:
        data = word.encode()
        data += bytes(-len(data) % 16)
        h = 0x2545F4914F6CDD1D
        for a, b in struct.iter_unpack("<QQ", data):
            h = (h ^ a) * 0x9E3779B97F4A7C15 & _64
            h = ((h ^ h >> 32) + b * 0xC2B2AE3D27D4EB4F) * 0xD6E8FEB86659FD93 & _64
            h ^= h >> 29
        total = (total * 0xD1342543DE82EF95 + h) & _64
    total = (total ^ total >> 32) * 0xFF51AFD7ED558CCD & _64
    total = (total ^ total >> 32) * 0xC4CEB9FE1A85EC53 & _64
    return total ^ total >> 32


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _64
    return x ^ x >> 31


def _holds(header: dict[str, Any], bits: bytes, words: list[str]) -> bool:
    w = _mix(_ngram_hash(words) ^ _mix(header["seed"]))
    block = w * header["blocks"] >> 64
    for number in range(header["k"]):
        mixture = _mix((w + (number // 5 + 1) * 0x9E3779B97F4A7C15) & _64)
        position = mixture >> 12 * (number % 5) & 4095
        if not bits[block * 512 + position // 8] >> position % 8 & 1:
            return False
    return True


def test_the_file_matches_the_documented_format(tmp_path: Path) -> None:
    words = [f"número{number}" if number % 3 else f"averylongwordindeed{number}" for number in range(3000)]
    (tmp_path / "docs.jsonl").write_text(json.dumps({"text": " ".join(words)}))
    overlap_index(
        OverlapIndexConfig(ngram=3, error_rate=1e-4),
        documents=str(tmp_path / "docs.jsonl"),
        output=str(tmp_path / "index"),
        options=RunOptions(),
    )
    data = (tmp_path / "index" / "index.bloom").read_bytes()
    magic, version, length = struct.unpack_from("<8sII", data)
    assert (magic, version) == (b"ngrbloom", 1)
    header = json.loads(data[16 : 16 + length])
    assert not any(data[16 + length : 4064])
    assert data[4064:4096] == hashlib.sha256(data[:4064]).digest()
    bits = data[4096:]
    assert len(bits) == 512 * header["blocks"] > 512 * 10
    assert header["bits_sha256"] == hashlib.sha256(bits).hexdigest()
    assert header["ngram_hash"] == "ngram-polynomial-1"
    assert all(_holds(header, bits, words[start : start + 3]) for start in range(2998))
    assert sum(_holds(header, bits, words[start : start + 3][::-1]) for start in range(2998)) < 10
    described = json.loads((tmp_path / "index" / "index.json").read_text())
    same = {"capacity": "sketch_items", "hashes": "k"} | {
        name: name for name in ("n", "error_rate", "items", "fill", "error_bound", "documents", "corpus", "ngram_hash")
    }
    assert all(described[ours] == header[theirs] for ours, theirs in same.items())
    assert {name: described[name] for name in header["normalisation"]} == header["normalisation"]

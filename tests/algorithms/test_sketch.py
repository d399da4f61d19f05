"""Sketches of texts: stable bytes, and the similarity that they estimate."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pyarrow as pa

from pipelines.algorithms.minhash.signing import sign
from pipelines.algorithms.minhash.sketch import SKETCH_BYTES, SKETCH_TYPE, estimate_jaccard, sketches


def test_is_the_low_byte_of_the_signature_of_dedup() -> None:
    texts = pa.array(["a b c d e f g", "one two", "", "Straße \u4e2d\u6587 caf\u00e9 " * 40])
    expected = sign(texts, 5, SKETCH_BYTES, 1).values.astype(np.uint8)
    result = sketches(texts)
    assert result.type == SKETCH_TYPE
    assert result.to_pylist() == [row.tobytes() for row in expected]
    assert result[2].as_py() == b"\xff" * SKETCH_BYTES


def test_bytes_never_change() -> None:
    """Releases of the past contain these bytes."""
    [sketch] = sketches(pa.array(["the quick brown fox jumps over the lazy dog and runs away"])).to_pylist()
    assert hashlib.sha256(sketch).hexdigest() == "08c4bb85de6692524c55abcafd3db1f77eafe7e7a88841a9dc5b255bd693416f"


def test_estimates_the_jaccard_similarity_of_the_shingles() -> None:
    draw = random.Random(3)
    words = [f"w{draw.randrange(10**6)}" for _ in range(1000)]
    # Of 996 shingles each, the last 200 words share none with the other text: 796 / (2 * 996 - 796).
    other = words[:800] + [f"x{number}" for number in range(200)]
    near, same, far = estimate_jaccard(
        sketches(pa.array([" ".join(words)] * 3)),
        sketches(pa.array([" ".join(other), "  ".join(words), " ".join(reversed(words))])),
    )
    assert abs(near - 796 / 1196) < 0.12
    assert same == 1
    assert far < 0.05


def test_slices_and_nothing() -> None:
    result = sketches(pa.array(["x", "a b c", "d e f"])[1:])
    assert result.equals(sketches(pa.array(["a b c", "d e f"])))
    assert estimate_jaccard(result[1:], result[1:]).tolist() == [1.0]
    assert len(estimate_jaccard(result[:0], result[:0])) == len(sketches(pa.array([], pa.string()))) == 0

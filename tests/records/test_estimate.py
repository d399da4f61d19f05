"""Estimates of the text in an input: close for every kind of file, and never an error."""

from __future__ import annotations

import bz2
import functools
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines import progress
from pipelines.errors import InputError
from pipelines.records import inputs
from pipelines.records.drops import Drops
from pipelines.records.estimate import DocumentsEstimate, estimate_documents
from pipelines.storage.compression import open_counted

_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".zst": zstandard.ZstdCompressor(level=3).compress,
    ".gz": lambda data: gzip.compress(data, 1),
    ".bz2": lambda data: bz2.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
}


@functools.cache
def _texts(number: int, seed: int = 1, drift: float = 0.0) -> list[str]:
    """Texts of words; where they drift, the later are longer and have more characters outside ASCII."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(3000)]
    odd = ["über", "naïve", "日本", '"quoted"', "tab\tnew\nline"]
    texts = []
    for place in range(number):
        share = drift * place / number
        length = int(rng.randint(30, 300) * (1 + 3 * share))
        texts.append(" ".join(rng.choice(odd if rng.random() < share else words) for _ in range(length)))
    return texts


def _jsonl(texts: list[str], *, ascii_only: bool = True) -> bytes:
    rows = ({"id": f"d{place}", "text": text, "tags": ["x"]} for place, text in enumerate(texts))
    return "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows).encode()


def _size(texts: list[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _estimate(*paths: Path) -> DocumentsEstimate:
    return estimate_documents(inputs.open_documents([str(path) for path in paths]))


def _assert_near(estimate: DocumentsEstimate, texts: list[str], within: float = 0.2) -> None:
    assert estimate.text_bytes == pytest.approx(_size(texts), rel=within)
    assert estimate.documents == pytest.approx(len(texts), rel=within)
    assert estimate.sample_bytes == _size(list(estimate.sample)) <= 9 << 20
    assert estimate.sample


@pytest.mark.parametrize("suffix", _COMPRESS)
def test_small_lines_are_counted(tmp_path: Path, suffix: str) -> None:
    texts = _texts(200)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(_COMPRESS[suffix](_jsonl(texts) + b"\nno json\n[1]\n" + b'{"text": null}\n'))
    estimate = _estimate(path)
    assert (estimate.text_bytes, estimate.documents, estimate.is_exact) == (_size(texts), 200, True)
    assert list(estimate.sample) == texts


@pytest.mark.parametrize("suffix", ["", ".zst", ".gz", ".bz2", pytest.param(".xz", marks=pytest.mark.slow)])
def test_a_large_file_that_drifts(tmp_path: Path, suffix: str) -> None:
    texts = _texts(5000, drift=0.9)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(_COMPRESS[suffix](_jsonl(texts)))
    estimate = _estimate(path)
    assert not estimate.is_exact
    _assert_near(estimate, texts)
    assert suffix in (".bz2", ".xz") or estimate == _estimate(path)


@pytest.mark.parametrize("suffix", ["", ".zst", ".gz"])
def test_many_files(tmp_path: Path, suffix: str) -> None:
    texts = _texts(6000)
    for place in range(60):
        of_file = texts[place * 100 : place * 100 + 100]
        (tmp_path / f"{place:02d}.jsonl{suffix}").write_bytes(_COMPRESS[suffix](_jsonl(of_file)))
    _assert_near(_estimate(tmp_path), texts)


def test_a_large_file_among_small_ones(tmp_path: Path) -> None:
    texts = _texts(5000)
    (tmp_path / "large.jsonl").write_bytes(_jsonl(texts[:4000], ascii_only=False))
    for place in range(20):
        (tmp_path / f"{place:02d}.jsonl.gz").write_bytes(gzip.compress(_jsonl(texts[4000 + place * 50 :][:50])))
    _assert_near(_estimate(tmp_path), texts)


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_parquet_says_it_in_its_footer(tmp_path: Path, use_dictionary: bool) -> None:
    texts = _texts(5000, drift=0.9)
    table = pa.table({"id": [f"d{place}" for place in range(len(texts))], "text": texts})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000, use_dictionary=use_dictionary)
    estimate = _estimate(tmp_path / "a.parquet")
    assert (estimate.documents, estimate.is_exact) == (len(texts), False)
    assert estimate.text_bytes == pytest.approx(_size(texts), rel=0.01)
    assert 4 << 20 < estimate.sample_bytes < 9 << 20


def test_small_parquet_is_exact(tmp_path: Path) -> None:
    texts = _texts(500)
    pq.write_table(pa.table({"text": [*texts, None, ""]}), tmp_path / "a.parquet", row_group_size=100)
    estimate = _estimate(tmp_path / "a.parquet")
    assert (estimate.text_bytes, estimate.documents, estimate.is_exact) == (_size(texts), 501, True)


def test_parquet_of_repeated_texts(tmp_path: Path) -> None:
    """A dictionary keeps each once, so the size of the column says little."""
    texts = _texts(100) * 300
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    _assert_near(_estimate(tmp_path / "a.parquet"), texts)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_folders_of_plain_text(tmp_path: Path, suffix: str) -> None:
    texts = _texts(1000)
    for place, text in enumerate(texts):
        (tmp_path / f"{place:04d}.txt{suffix}").write_bytes(_COMPRESS[suffix](text.encode()))
    estimate = _estimate(tmp_path)
    assert estimate.text_bytes == pytest.approx(_size(texts), rel=0.2)
    assert estimate.documents == pytest.approx(1000, rel=0.4)


def test_plain_text_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffgood é".encode())
    (tmp_path / "b.txt").write_bytes(b"bad \xe9 latin")
    estimate = _estimate(tmp_path)
    assert (estimate.documents, estimate.text_bytes, estimate.sample) == (1, 7, ("good é",))


def test_very_long_documents(tmp_path: Path) -> None:
    """A window is passed by one line, and only a part of it is kept."""
    texts = [" ".join(_texts(900, seed)) for seed in range(12)]
    (tmp_path / "a.jsonl").write_bytes(_jsonl(texts))
    _assert_near(_estimate(tmp_path / "a.jsonl"), texts)


@pytest.mark.parametrize("suffix", [".zst", ".gz", ".xz", ".bz2"])
def test_a_damaged_file_is_left_to_the_stage(tmp_path: Path, suffix: str) -> None:
    texts = _texts(3000)
    data = _COMPRESS[suffix](_jsonl(texts[:1500]))
    (tmp_path / f"a.jsonl{suffix}").write_bytes(data[: len(data) // 2] + b"\x00" * 64)
    (tmp_path / f"b.jsonl{suffix}").write_bytes(_COMPRESS[suffix](_jsonl(texts[1500:])))
    estimate = _estimate(tmp_path)
    assert not estimate.is_exact
    assert estimate.text_bytes > 0
    source = inputs.open_documents(str(tmp_path))
    with pytest.raises(InputError, match=r"a\.jsonl.* is truncated or corrupt"):
        list(inputs.read_documents(source.shards[0], Drops()))


@pytest.mark.parametrize("suffix", [".zst", ".xz"])
def test_a_file_that_is_little_but_holds_much(tmp_path: Path, suffix: str) -> None:
    line = _jsonl([" ".join(["again"] * 20_000)])
    (tmp_path / f"a.jsonl{suffix}").write_bytes(_COMPRESS[suffix](line * 1500))
    assert (tmp_path / f"a.jsonl{suffix}").stat().st_size < 64 << 10
    estimate = _estimate(tmp_path)
    assert estimate.text_bytes > 100_000_000
    assert estimate.sample_bytes < 10 << 20  # a window is passed by its last line


def test_nothing_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b"{}"))
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "c.jsonl").write_bytes(b"")
    estimate = _estimate(tmp_path)
    assert (estimate.text_bytes, estimate.documents, estimate.sample) == (0, 0, ())


def test_nothing_is_reported_as_progress(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(_jsonl(_texts(50))))
    seen: list[int] = []
    progress.set_sink(seen.append)
    try:
        _estimate(tmp_path)
    finally:
        progress.set_sink(None)
    assert seen == []


@pytest.mark.parametrize("suffix", _COMPRESS)
def test_the_bytes_of_the_file_are_counted_as_they_are_decoded(tmp_path: Path, suffix: str) -> None:
    """Half of what is decoded came of about half of the file, whatever the decoder holds back."""
    data = random.Random(3).randbytes(2 << 20).hex().encode()
    path = tmp_path / f"a{suffix}"
    path.write_bytes(_COMPRESS[suffix](data))
    with open_counted(str(path)) as stream:
        stream.read(len(data) // 2)
        ratio = stream.decoded_bytes / stream.file_bytes
        assert stream.decoded_bytes - len(data) // 2 <= 1 << 20
        assert ratio == pytest.approx(len(data) / path.stat().st_size, rel=0.1)
        stream.read()
        assert (stream.decoded_bytes, stream.file_bytes) == (len(data), path.stat().st_size)


@pytest.mark.parametrize(("name", "documents", "size"), [("docs", 6010, 74_722_934), ("books", 143, None)])
def test_real_text(shared_data: Path, name: str, documents: int, size: int | None) -> None:
    estimate = _estimate(shared_data / "text" / f"{name}.jsonl.zst")
    assert estimate.documents == pytest.approx(documents, rel=0.2)
    if size is not None:
        assert estimate.text_bytes == pytest.approx(size, rel=0.1)

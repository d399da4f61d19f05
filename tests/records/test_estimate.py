"""Estimates of the text in an input from the sizes of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.records import inputs
from pipelines.records.estimate import estimate_text_bytes


def test_compressed_files_and_tables_contain_more_text_than_their_size() -> None:
    sizes = {"a.jsonl": 1000, "b.txt": 1000, "c.JSONL.zst": 1000, "d.parquet": 1000}
    files = [inputs.InputFile(path, size) for path, size in sizes.items()]
    assert estimate_text_bytes(files) == 2 * 900 + 2 * 2500
    assert estimate_text_bytes([*files, *files]) == estimate_text_bytes(files)  # several shards read one file
    assert estimate_text_bytes([]) == 0


@pytest.mark.parametrize(("name", "size"), [("docs", 74_722_934), ("books", 25_000_000)])
def test_real_text(shared_data: Path, name: str, size: int) -> None:
    source = inputs.open_documents(str(shared_data / "text" / f"{name}.jsonl.zst"))
    assert size / 3 < estimate_text_bytes(source.files) < size * 3

"""Exact equals brute force, and Bloom is at most its bound above, on every benchmark that is at hand."""

from __future__ import annotations

import itertools
import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reference_ngrams import words

from pipelines.engine.run import RunOptions
from pipelines.records import inputs
from pipelines.records.drops import Drops
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.stage import overlap_report

_DOCUMENTS = 150
_PLANTED = 12


def _examples(folder: Path) -> dict[str, list[str]]:
    """Return the lines, or questions, of every benchmark; those of the samples as their files have them."""
    questions = [json.loads(line)["question"] for line in (folder / "gsm8k-test.jsonl").read_text().splitlines()]
    found = {"gsm8k": questions}
    found |= {path.stem: path.read_text().split("\n") for path in folder.glob("*.txt")}
    for path in sorted((folder / "samples").rglob("*.zip")):
        name = "-".join(path.relative_to(folder / "samples").parts[:-1])
        with zipfile.ZipFile(path) as archive:
            texts = [archive.read(member) for member in archive.namelist() if not member.endswith("/")]
        lines = [line for text in texts if _is_text(text) for line in text.decode().split("\n")]
        if any(len(words(line)) >= 8 for line in lines):
            found[name] = lines
    return found


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _documents(shared_data: Path, benchmarks: dict[str, list[str]]) -> Iterator[str]:
    source = inputs.open_documents([str(shared_data / "text" / "docs.jsonl.zst")])
    batches = inputs.read_documents(source.shards[0], Drops())
    texts = (text for batch in batches for text in batch.column("text").to_pylist())
    yield from itertools.islice(texts, _DOCUMENTS)
    chosen = random.Random(11)
    for lines in benchmarks.values():
        long = [line for line in lines if len(words(line)) >= 8]
        for line in chosen.sample(long, min(_PLANTED, len(long))):
            yield f"Before it. {line.upper()}\n— and after"


@pytest.fixture(scope="module")
def audited(
    shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, list[str]], list[str], list[str]]:
    """A corpus with passages of all benchmarks, the examples of each, the benchmarks as they are named, the texts."""
    folder = tmp_path_factory.mktemp("real")
    benchmarks = _examples(shared_data / "benchmarks")
    texts = list(_documents(shared_data, benchmarks))
    table = pa.table({"id": [str(number) for number in range(len(texts))], "text": texts})
    pq.write_table(table, folder / "docs.parquet", row_group_size=50)
    named = []
    for name, lines in benchmarks.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        named.append(f"{name}={folder / name}.jsonl")
    return folder, benchmarks, named, texts


def _ngrams(text: str) -> list[str]:
    """Count by the plainest code there is: characters, words, slices."""
    each = "".join(character if character.isalnum() else " " for character in text.lower()).split()
    return [" ".join(each[start : start + 8]) for start in range(len(each) - 7)]


@pytest.mark.slow
def test_exact_matches_brute_force_and_bloom_its_bound(
    audited: tuple[Path, dict[str, list[str]], list[str], list[str]],
) -> None:
    folder, benchmarks, named, texts = audited
    held = {ngram for text in texts for ngram in _ngrams(text)}
    documents = str(folder / "docs.parquet")
    overlap_report(
        OverlapReportConfig(),
        documents=documents,
        benchmarks=named,
        output=str(folder / "exact"),
        options=RunOptions(),
    )
    rows = json.loads((folder / "exact" / "report.json").read_text())["benchmarks"]
    assert [row["name"] for row in rows] == list(benchmarks)
    assert len(rows) >= 10
    for row, lines in zip(rows, benchmarks.values(), strict=True):
        each = [_ngrams(line) for line in lines]
        hits = [[ngram for ngram in ngrams if ngram in held] for ngrams in each]
        assert row["ngrams"] == sum(map(len, each)), row["name"]
        assert row["overlapping"] == sum(map(len, hits)) > 0, row["name"]
        assert row["examples_any"] == sum(map(bool, hits)), row["name"]
        distinct = {ngram for ngrams in each for ngram in ngrams}
        assert row["percent_distinct"] == pytest.approx(100 * len(distinct & held) / len(distinct), abs=1e-6)
    _bloom_is_at_most_its_bound_above(folder, documents, named, held)


def _bloom_is_at_most_its_bound_above(folder: Path, documents: str, named: list[str], held: set[str]) -> None:
    index = str(folder / "index")
    overlap_index(OverlapIndexConfig(error_rate=1e-3), documents=documents, output=index, options=RunOptions())
    overlap_report(
        OverlapReportConfig(probes=1_000_000),
        documents=None,
        benchmarks=named,
        output=str(folder / "bloom"),
        options=RunOptions(),
        index=index,
    )
    report = json.loads((folder / "bloom" / "report.json").read_text())
    claimed = set(pq.read_table(folder / "bloom" / "hits.parquet").column("ngram").to_pylist())
    found = set(pq.read_table(folder / "exact" / "hits.parquet").column("ngram").to_pylist())
    assert found <= claimed
    assert not found - held
    absent = sum(row["ngrams"] for row in report["benchmarks"])
    assert len(claimed - found) <= 5 + 2 * report["error_bound"] * absent

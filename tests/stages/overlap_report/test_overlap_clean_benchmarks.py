"""Benchmarks without the examples that overlap: what stays is as it was, whatever an example is."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import storage
from pipelines.benchmark_sets import registry
from pipelines.benchmark_sets.benchmarks import Benchmark, parse_benchmarks, read_example_batches
from pipelines.benchmark_sets.registry import Entry
from pipelines.errors import InputError
from pipelines.stages.overlap_report.clean_benchmarks import (
    CleanBenchmark,
    clean_folders,
    clean_names,
    write_clean_benchmark,
)


def _write(
    value: str, output: Path, overlapping: list[bool], example: str = "auto", known: dict[str, Entry] | None = None
) -> tuple[CleanBenchmark, dict[str, bytes]]:
    (benchmark,) = parse_benchmarks([value], known)
    (folder,) = clean_folders([benchmark.label])
    written = write_clean_benchmark(benchmark, example, np.array(overlapping, np.bool_), str(output), folder)
    for entry in written.files:
        path = output / entry.name
        assert (entry.size_bytes, entry.sha256) == (path.stat().st_size, storage.sha256_of(str(path)))
    found = {path.relative_to(output).as_posix(): path.read_bytes() for path in output.rglob("*") if path.is_file()}
    assert sorted(found) == sorted(entry.name for entry in written.files)
    return written, found


def test_overlapping_lines_are_removed_and_the_rest_is_unchanged(tmp_path: Path) -> None:
    lines = [b"\xef\xbb\xbfone\r\n", b"\n", b"two\n", b" \t\n", b"three\n", b"four"]
    (tmp_path / "b.txt").write_bytes(b"".join(lines))
    written, found = _write(f"b/test={tmp_path / 'b.txt'}", tmp_path / "out", [False, True, True, False])
    assert found == {"clean/b-test/b.txt": b"".join([lines[0], lines[1], lines[3], lines[5]])}
    assert (written.kept, written.removed) == (2, 2)
    _, found = _write(f"b={tmp_path / 'b.txt'}", tmp_path / "all", [False] * 4)
    assert found == {"clean/b/b.txt": b"".join(lines)}
    written, found = _write(f"b={tmp_path / 'b.txt'}", tmp_path / "none", [True] * 4)
    assert found == {"clean/b/b.txt": b"\n \t\n"}
    assert (written.kept, written.removed) == (0, 4)


def test_paragraphs_and_documents_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n1\n1\n\n \n2\n\n3\n3\n")
    (tmp_path / "b.txt").write_bytes(b"4\n\n5\n")
    value = f"b={tmp_path}/*.txt"
    _, found = _write(value, tmp_path / "one", [True, False, True, False, True], "paragraph")
    assert found == {"clean/b/a.txt": b"\n2\n\n", "clean/b/b.txt": b"4\n\n"}
    _, found = _write(value, tmp_path / "two", [False, True, False, True, False], "paragraph")
    assert found == {"clean/b/a.txt": b"\n1\n1\n\n \n3\n3\n", "clean/b/b.txt": b"5\n"}
    written, found = _write(value, tmp_path / "three", [True, False], "document")
    assert found == {"clean/b/b.txt": b"4\n\n5\n"}
    assert (written.kept, written.removed) == (1, 1)


def test_jsonl_records_are_unchanged(tmp_path: Path) -> None:
    lines = [
        b'{"text" : "one\\ntwo\\n\\nthree", "n": 1.50}\n',
        b"\n",
        b'{"n": 2, "text": null}\n',
        b'{"text": "\\u00e9"}',
    ]
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    for name in ("b.jsonl", "c.jsonl.gz"):
        value, kept = f"b={tmp_path / name}", f"clean/b/{name.removesuffix('.gz')}"
        written, found = _write(value, tmp_path / f"o-{name}", [True, False, False])
        assert found == {kept: b"".join(lines[1:])}
        assert (written.kept, written.removed) == (2, 1)
        _, found = _write(value, tmp_path / f"l-{name}", [False, True, False, False], "line")
        assert found == {kept: b"".join(lines[1:])}
        _, found = _write(value, tmp_path / f"p-{name}", [False, False, True], "paragraph")
        assert found == {kept: b"".join(lines[:3])}
        written, found = _write(value, tmp_path / f"d-{name}", [True], "document")
        assert found == {}
        assert (written.kept, written.removed) == (0, 3)


def test_rows_of_parquet_keep_all_their_columns(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"question": f"{number} a\nb", "answers": {"text": ["x", None], "start": [number]}, "label": number % 3}
        for number in range(5000)
    ]
    schema = pa.schema(
        [
            pa.field("question", pa.large_string()),
            pa.field("answers", pa.struct({"text": pa.list_(pa.string()), "start": pa.list_(pa.int32())})),
            pa.field("label", pa.int8(), nullable=False),
        ],
        metadata={"made by": "a test"},
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "b.parquet", row_group_size=700)
    chosen = random.Random(1)
    overlapping = [chosen.random() < 0.3 for _ in rows]
    value = f"b:question={tmp_path / 'b.parquet'}"
    written, _ = _write(value, tmp_path / "out", overlapping)
    table = pq.read_table(tmp_path / "out" / "clean" / "b" / "b.parquet")
    assert table.to_pylist() == [row for row, left_out in zip(rows, overlapping, strict=True) if not left_out]
    assert table.schema.equals(pq.read_schema(tmp_path / "b.parquet"), check_metadata=True)
    assert table.schema.field("question").type == pa.large_string()
    assert (written.kept, written.removed) == (overlapping.count(False), overlapping.count(True))
    by_line = [each for row in overlapping for each in (False, row)]
    _write(value, tmp_path / "lines", by_line, "line")
    assert pq.read_table(tmp_path / "lines" / "clean" / "b" / "b.parquet").equals(table)
    written, found = _write(value, tmp_path / "document", [True], "document")
    assert (found, written.kept, written.removed) == ({}, 0, 5000)


def test_the_output_has_exactly_the_clean_examples(tmp_path: Path) -> None:
    chosen = random.Random(2)
    texts = ["\n".join(chosen.choices(["one", "two", "", " ", "three four"], k=8)) for _ in range(200)]
    (tmp_path / "b.txt").write_text("\n".join(texts))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def examples(benchmark: Benchmark, example: str) -> list[str]:
        return [text for batch in read_example_batches(benchmark, example) for text in batch.texts.to_pylist()]

    for name, example in (("b.txt", "line"), ("b.txt", "paragraph"), ("b.jsonl", "auto")):
        (benchmark,) = parse_benchmarks([f"b={tmp_path / name}"])
        before = examples(benchmark, example)
        overlapping = [chosen.random() < 0.4 for _ in before]
        output = tmp_path / f"{name}-{example}"
        _write(f"b={tmp_path / name}", output, overlapping, example)
        (clean,) = parse_benchmarks([f"b={output / 'clean' / 'b' / name}"])
        assert examples(clean, example) == [text for text, out in zip(before, overlapping, strict=True) if not out]


def test_files_with_equal_or_odd_names_stay_in_the_folder(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test.txt").write_text(f"{folder}\n")
    _, found = _write(f"..b c:valid={tmp_path}/[xy]/test.txt", tmp_path / "out", [False, True])
    assert found == {"clean/_b_c-valid/00000-test.txt": b"x\n", "clean/_b_c-valid/00001-test.txt": b""}


@pytest.mark.parametrize(
    ("labels", "folders"),
    [
        (["b", "b/test", "c d"], ["b", "b-test", "c_d"]),
        (["x/y", "z", "x-y"], ["x-y-1", "z", "x-y-2"]),
        (["x y", "x_y", "x?y"], ["x_y-1", "x_y-2", "x_y-3"]),
        (["Squad", "squad", "SQUAD/1"], ["Squad-2", "squad-3", "SQUAD-1"]),
        (["x/1", "x-1", "x-1-1", "X-1-2"], ["x-1-3", "x-1-4", "x-1-1", "X-1-2"]),
        (["straße", "STRASSE"], ["straße-1", "STRASSE-2"]),
        (["\uf900", "\u8c48"], ["\uf900-1", "\u8c48-2"]),
        (["..", "."], ["_-1", "_-2"]),
        (["b.tmp-1"], ["b_tmp-1"]),
    ],
)
def test_benchmarks_never_share_a_folder(labels: list[str], folders: list[str]) -> None:
    assert clean_folders(labels) == folders
    assert len({folder.casefold() for folder in folders}) == len(folders)


def test_folders_of_many_odd_labels_differ() -> None:
    chosen = random.Random(3)
    for _ in range(300):
        labels = sorted({"".join(chosen.choices("xX-/_ 1", k=chosen.randrange(1, 5))) for _ in range(12)})
        folders = clean_folders(labels)
        assert len({folder.casefold() for folder in folders}) == len(labels)
        plain = [label.replace("/", "-").replace(" ", "_") for label in labels]
        for name, folder in zip(plain, folders, strict=True):
            alone = [other.casefold() for other in plain].count(name.casefold()) == 1
            assert folder == name if alone else folder.startswith(f"{name}-")


def test_benchmarks_with_similar_names_are_all_written(tmp_path: Path) -> None:
    for name, text in (("one", "1\n"), ("two", "2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b.txt").write_text(text)
    benchmarks = parse_benchmarks([f"x/y={tmp_path}/one/b.txt", f"x-y={tmp_path}/two/b.txt"])
    folders = clean_folders([benchmark.label for benchmark in benchmarks])
    output = tmp_path / "out"
    for benchmark, folder in zip(benchmarks, folders, strict=True):
        write_clean_benchmark(benchmark, "auto", np.array([False]), str(output), folder)
    found = {path.relative_to(output).as_posix(): path.read_text() for path in output.rglob("*") if path.is_file()}
    assert found == {"clean/x-y-1/b.txt": "1\n", "clean/x-y-2/b.txt": "2\n"}
    assert sorted(clean_names(benchmarks)) == sorted(found)


def test_files_with_similar_names_are_all_written(tmp_path: Path) -> None:
    for name in ("x/a.txt", "y/a.txt", "z/00001-a.txt", "z/B.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    _, found = _write(f"b={tmp_path}/[xyz]/*.txt", tmp_path / "out", [False] * 4)
    assert found == {
        "clean/b/00000-a.txt": b"x/a.txt\n",
        "clean/b/00001-a.txt": b"y/a.txt\n",
        "clean/b/00002-00001-a.txt": b"z/00001-a.txt\n",
        "clean/b/00003-B.txt": b"z/B.txt\n",
    }
    _, found = _write(f"b={tmp_path}/z/*.txt", tmp_path / "differ", [False] * 2)
    assert set(found) == {"clean/b/00001-a.txt", "clean/b/B.txt"}
    (tmp_path / "x" / "b.txt").write_text("small\n")
    _, found = _write(f"b={tmp_path}/[xz]/[bB].txt", tmp_path / "case", [False] * 2)
    assert set(found) == {"clean/b/00000-b.txt", "clean/b/00001-B.txt"}


def test_a_changed_benchmark_is_detected(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("x\ny\n")
    with pytest.raises(InputError, match=r"b\.txt: b has 2 examples, but 3 were checked; the file has changed: re-run"):
        _write(f"b={tmp_path / 'b.txt'}", tmp_path / "out", [True] * 3)


@pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None,
    reason="the datasets library is not installed: pip install '.[benchmarks]'",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_dataset_of_the_hub_is_written_as_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    registry._load.cache_clear()
    rows: list[dict[str, Any]] = [{"text": f"text {number}", "n": number} for number in range(2500)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = f"{tmp_path}/{{split}}.jsonl"
    entry = Entry("own", "Own", "own/set", ("test",), "none", "http://x.test", files=files, format="json")
    overlapping = [number % 7 == 0 for number in range(2500)]
    written, found = _write("own", tmp_path / "out", overlapping, known={"own": entry})
    assert list(found) == ["clean/own-test/own-test.parquet"]
    table = pq.read_table(tmp_path / "out" / "clean" / "own-test" / "own-test.parquet")
    assert table.to_pylist() == [row for row in rows if row["n"] % 7]
    assert (written.kept, written.removed) == (table.num_rows, 2500 - table.num_rows)
    registry._load.cache_clear()

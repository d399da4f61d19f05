"""Reading prompts from files and writing samples to one: resumable, and without overwriting."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from pipelines.benchmark_sets.benchmarks import parse_benchmarks, read_example_batches
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, DamagedFileError, InputError
from pipelines.format import to_json
from pipelines.model.inference import sampling
from pipelines.model.inference.options import SamplingOptions, read_prompts
from pipelines.model.inference.sampling import Batch, Sample, Sampler, generate, write_samples
from webtext_cli.main import main

PROMPTS = ["the cat", "", "a dog"]
OPTIONS = SamplingOptions(max_tokens=6)


def test_prompts_are_the_lines_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_bytes("\ufeffthe\u2028cat \r\n \n\n a\fdog".encode())
    assert read_prompts(str(tmp_path / "prompts.txt")) == ["the\u2028cat ", " a\fdog"]


def test_prompts_are_a_field_of_each_record(tmp_path: Path) -> None:
    records = [
        {"prompt": "two\nlines", "text": "no"},
        {"text": "the \ud83d cat", "id": 3},
        {"prompt": None, "text": ""},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records) + "\n"
    (tmp_path / "prompts.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert read_prompts(str(tmp_path / "prompts.jsonl.gz")) == ["two\nlines", "the � cat", ""]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("p.txt", b"\n \n", r"p.txt: has no prompts; write one per line"),
        ("p.txt", b"one\ncaf\xe9\n", r"p.txt:2: is not UTF-8"),
        ("p.jsonl", b'{"text": "a"}\n{"text"\n', r"p.jsonl:2: is not valid JSON"),
        (
            "p.jsonl",
            b'{"text": "a"}\n\n{"words": "a"}\n',
            r"p.jsonl:3: has no prompt; .*a string prompt or text; for one prompt",
        ),
        ("p.ndjson", b'["a"]\n', r"p.ndjson:1: has no prompt"),
        ("p.json", b"The cat\n", r"p.json:1: is not valid JSON .*; for one prompt per line, name the file \.txt"),
        ("p.csv", b"The cat, and\n", r"p.csv: has no prompts; for one prompt per line, name the file \.txt"),
    ],
)
def test_a_file_without_prompts_is_refused_with_its_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_prompts(str(tmp_path / name))


def test_a_truncated_file_of_prompts_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.txt.gz").write_bytes(gzip.compress(b"the cat\n" * 9)[:-4])
    with pytest.raises(DamagedFileError, match=r"p.txt.gz: is truncated"):
        read_prompts(str(tmp_path / "p.txt.gz"))


class StoppingSampler(Sampler):
    """Stops, as Ctrl-C does, before a batch; counts those that it draws."""

    def __init__(self, folder: Path, stop_before: int | None = None, options: SamplingOptions = OPTIONS) -> None:
        super().__init__(str(folder), PROMPTS, options, "cpu")
        self.stop_before, self.drawn = stop_before, 0

    def draw(self, batch: Batch) -> list[Sample]:
        if self.drawn == self.stop_before:
            raise KeyboardInterrupt
        self.drawn += 1
        return super().draw(batch)


def test_all_samples_are_written_in_order_and_the_parts_removed(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "samples.jsonl"
    summary = write_samples(StoppingSampler(trained), 11, str(path), RunOptions())
    expected = [json.loads(to_json(sample)) for sample in generate(str(trained), PROMPTS, 11, OPTIONS, "cpu")]
    assert [json.loads(line) for line in path.read_text().splitlines()] == expected
    assert [file.name for file in path.parent.iterdir()] == ["samples.jsonl"]
    assert (summary.stage, summary.output, summary.records_out) == ("generate", str(path), 33)
    assert summary.extra["tokens"] == sum(sample["tokens"] for sample in expected)
    assert summary.extra["ended_samples"] == sum(sample["ended"] for sample in expected)


@pytest.mark.parametrize("stop_before", [1, 4, 5])
def test_an_interrupted_run_is_resumed(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_before: int
) -> None:
    whole, path = tmp_path / "whole.jsonl", tmp_path / "samples.jsonl"
    write_samples(StoppingSampler(trained), 11, str(whole), RunOptions())
    monkeypatch.setattr(sampling, "_PART_TOKENS", 48)  # a batch
    with pytest.raises(KeyboardInterrupt):
        write_samples(StoppingSampler(trained, stop_before), 11, str(path), RunOptions())
    assert not path.exists()
    again = StoppingSampler(trained)
    write_samples(again, 11, str(path), RunOptions())
    assert again.drawn == 6 - stop_before
    assert path.read_bytes() == whole.read_bytes()


def test_parts_of_another_run_are_refused_without_overwrite(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "samples.jsonl")
    monkeypatch.setattr(sampling, "_PART_TOKENS", 48)
    with pytest.raises(KeyboardInterrupt):
        write_samples(StoppingSampler(trained, 2), 11, path, RunOptions())
    with pytest.raises(ChangedRunError, match=r"unfinished run .*samples was 11, is now 2.*--overwrite"):
        write_samples(StoppingSampler(trained), 2, path, RunOptions())
    other = StoppingSampler(trained, options=SamplingOptions(max_tokens=6, top_k=3))
    with pytest.raises(ChangedRunError, match=r"top_k was 40, is now 3"):
        write_samples(other, 11, path, RunOptions())
    write_samples(other, 11, path, RunOptions(overwrite=True))
    assert other.drawn == 6


def test_an_existing_file_is_refused_without_overwrite(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text("dear\n")
    arguments = ["generate", "--model", str(trained), "-o", str(path), "--max-tokens", "3", "--device", "cpu"]
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.err == f"error: {path}: already exists; use --overwrite to replace it, or choose another --output\n"
    assert path.read_text() == "dear\n"
    assert main([*arguments, "--overwrite", "--json", "-q"]) == 0
    printed = capsys.readouterr()
    assert (json.loads(printed.out)["records_out"], printed.err) == (1, "")
    assert len(path.read_text().splitlines()) == 1


def test_overlap_report_reads_the_samples(trained: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "samples.jsonl")
    write_samples(StoppingSampler(trained), 3, path, RunOptions())
    (benchmark,) = parse_benchmarks([f"samples={path}"])
    texts = [text for batch in read_example_batches(benchmark, "auto") for text in batch.texts.to_pylist()]
    assert texts == [sample.text for sample in generate(str(trained), PROMPTS, 3, OPTIONS, "cpu")]

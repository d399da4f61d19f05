"""The estimate of memory and disk with its refusals, and the document of any token."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from token_run import END, Notes, described, pieces, run, write_parquet, write_tokenizer

from pipelines import storage
from pipelines.engine import machine
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, DamagedShardError, InputError, UsageError
from pipelines.records.estimate import DocumentsEstimate
from pipelines.stages.tokenize.estimate import TokenizeEstimate, estimate_tokenizing
from pipelines.stages.tokenize.trace import trace
from webtext_cli.main import main


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module", params=["nanogpt", "llmc", "npy"])
def tokens(small: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    rows = [{"id": f"d{n}", "url": f"http://example.com/{n}", "text": f"number {n} " * 9} for n in range(12)]
    write_parquet(folder / "docs.parquet", rows)
    run(folder / "docs.parquet", small, folder / "tokens", format=request.param, shard_tokens=100, held_out=0.2)
    return folder / "tokens"


def test_every_token_is_traced(tokens: Path) -> None:
    for split in ("train", "held-out"):
        for file, table in zip(described(tokens)["splits"][split], pieces(tokens, split), strict=True):
            for position in range(0, file["tokens"], 7):
                token = trace(f"{tokens / file['name']}:{position}")
                [row] = [row for row in table if row["offset"] <= position < row["offset"] + row["tokens"]]
                assert (token.id, token.url) == (row["id"], row["url"])
                text = f"number {row['id'][1:]} " * 9 + END
                place = position - row["offset"] + row["document_offset"]
                assert token.position_in_document == place
                assert token.is_end == (place == len(text) - len(END))
                assert token.text == (END if token.is_end else text[place])
                assert text[:place].endswith(token.before)
                assert text[place + len(token.text) :].startswith(token.after)


def test_the_command_prints_what_it_traces(tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = described(tokens)["splits"]["train"][0]["name"]
    assert main(["tokenize", "--trace", f"{tokens / file}:20", "--json"]) == 0
    traced = json.loads(capsys.readouterr().out)
    assert (traced["shard"], traced["position"]) == (file, 20)
    assert main(["tokenize", "--trace", f"{tokens / file}:20"]) == 0
    shown = capsys.readouterr().out
    assert traced["id"] in shown
    assert traced["url"] in shown
    assert repr(traced["before"]) in shown


def test_invalid_locations_are_refused(tokens: Path) -> None:
    file = described(tokens)["splits"]["train"][0]
    with pytest.raises(UsageError, match="expected FILE:POSITION"):
        trace(str(tokens / file["name"]))
    with pytest.raises(UsageError, match=f"has the tokens 0 to {file['tokens'] - 1}"):
        trace(f"{tokens / file['name']}:{file['tokens']}")
    with pytest.raises(InputError, match="is not a token shard of its folder"):
        trace(f"{tokens / 'train-99999.bin'}:0")
    with pytest.raises(InputError, match="no such folder"):
        trace(f"{tokens.parent / 'absent' / 'train-00000.bin'}:0")


def test_a_tokenizer_that_the_shards_do_not_name_is_refused(tokens: Path, small: Path, tmp_path: Path) -> None:
    place = f"{tokens / described(tokens)['splits']['train'][0]['name']}:0"
    assert trace(place, str(small)) == trace(place)
    other = tmp_path / "other.json"
    other.write_text(small.read_text() + "\n")
    with pytest.raises(ChangedRunError, match=r"other\.json: is not the tokenizer of"):
        trace(place, str(other))
    shutil.copytree(tokens, tmp_path / "damaged")
    (tmp_path / "damaged" / "tokenizer.json").write_text(other.read_text())
    with pytest.raises(DamagedShardError, match=r"tokenizer\.json: .*damaged"):
        trace(place.replace(str(tokens), str(tmp_path / "damaged")))


def test_the_estimate_is_noted(small: Path, tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": f"text number {number}, and more of it"} for number in range(500)]
    write_parquet(tmp_path / "docs.parquet", rows)
    notes = Notes()
    summary = run(tmp_path / "docs.parquet", small, tmp_path / "out", RunOptions(progress=notes), held_out=0.0)
    [note] = [note for note in notes.notes if "of text" in note]
    assert "of memory per worker, with 1 worker" in note
    match = re.search(r"([\d,]+) tokens", note)
    assert match
    assert int(match[1].replace(",", "")) == pytest.approx(summary.extra["train_tokens"], rel=0.05)


_DOCUMENTS = DocumentsEstimate(
    text_bytes=40_000_000_000,
    documents=8_000_000,
    shards=9,
    is_exact=False,
    sample=("abc def " * 100,),
    sample_bytes=800,
)


def _estimate(shard_tokens: int, available_bytes: int | None) -> TokenizeEstimate:
    return estimate_tokenizing(_DOCUMENTS, _Encoder(), 2, shard_tokens, available_bytes)


def _check(shard_tokens: int, available_bytes: int | None) -> None:
    _estimate(shard_tokens, available_bytes).check(shard_tokens, "memory://x")


def test_shards_larger_than_memory_are_refused_with_a_size_that_fits() -> None:
    fitting = _estimate(100_000_000, 3_000_000_000)
    _check(100_000_000, 3_000_000_000)
    assert "use --workers" not in fitting.describe(3)
    assert "more than the 3 GB available; use --workers 3" in fitting.describe(4)
    message = r"5\.5\d? GB of memory, and 3 GB are available; use --shard-tokens (\d+) or"
    with pytest.raises(InputError, match=message) as refusal:
        _check(2_000_000_000, 3_000_000_000)
    match = re.search(r"--shard-tokens (\d+)", str(refusal.value))
    assert match
    _check(int(match[1]), 3_000_000_000)
    with pytest.raises(InputError, match="free some memory"):
        _check(100_000_000, 200_000_000)
    _check(2_000_000_000, None)


def test_blocks_of_runs_in_an_object_store_count() -> None:
    local, remote = (
        estimate_tokenizing(_DOCUMENTS, _Encoder(), 2, 10**8, 10**10, is_local=is_local) for is_local in (True, False)
    )
    assert remote.memory_bytes - local.memory_bytes == 16 * (16 << 20)


def test_too_little_memory_is_refused_before_the_work(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 200_000_000)
    write_parquet(tmp_path / "docs.parquet", [{"id": "a", "text": "text"}])
    with pytest.raises(InputError, match="one worker needs about"):
        run(tmp_path / "docs.parquet", small, tmp_path / "out", held_out=0.0)


class _Encoder:
    """A token for every four bytes."""

    def encode(self, texts: object, *, threads: bool = False) -> object:
        class Encoded:
            ids = [0] * (sum(len(text) for text in texts.to_pylist()) // 4)  # type: ignore[attr-defined]

        return Encoded()


def test_too_little_disk_space_is_refused(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "docs.parquet", [{"id": "a", "text": "text " * 1000}])
    monkeypatch.setattr(storage, "free_bytes", lambda path: 5000)
    with pytest.raises(InputError, match=r"out: needs about .* kB more .* 5 kB are free"):
        run(tmp_path / "docs.parquet", small, tmp_path / "out", held_out=0.0)


def test_free_space_is_that_of_the_output_disk(tmp_path: Path) -> None:
    free = storage.free_bytes(str(tmp_path / "not" / "there" / "yet"))
    assert free is not None
    assert free > 0
    assert storage.free_bytes("memory://anything") is None


def test_more_shards_than_a_folder_should_contain_are_refused() -> None:
    message = r"shards of 1 tokens would be about [\d,]+ files, .*; use --shard-tokens \d+ or more"
    with pytest.raises(InputError, match=message):
        _check(1, None)

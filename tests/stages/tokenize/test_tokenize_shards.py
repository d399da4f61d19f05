"""Token shards: of one size, read by the loaders they are for, the same whatever the order of the input."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_split import is_held_out
from token_run import END, described, pieces, run, shard_bytes, stream, write_parquet, write_tokenizer

from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions, TaskResult
from pipelines.errors import ChangedRunError, WebtextError
from pipelines.records.document_split import hash_key, hash_keys, held_out_mask
from pipelines.records.inputs import DocumentShard
from pipelines.stages.tokenize import runs
from pipelines.stages.tokenize.encode import EncodeContext, encode_shard
from pipelines.stages.tokenize.runs import EncodedDocuments, RunWriter, content_hashes
from pipelines.stages.tokenize.token_shards import cut_bins
from pipelines.tokenizers.formats import load_document_tokenizer

pytestmark = pytest.mark.usefixtures("warm_processes")


def _rows(number: int, seed: int = 1) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {"id": f"id {index}", "url": f"http://example.com/{index}", "text": f"{index} " + "the " * chance.randrange(60)}
        for index in range(number)
    ]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def _expected(rows: list[dict[str, Any]], seed: int | None, held_out: float) -> dict[str, list[dict[str, Any]]]:
    """Return the documents of each split in their order, in the plainest way."""
    ordered = rows if seed is None else sorted(rows, key=lambda row: hash_key(row["id"], f"shuffle-{seed}"))
    return {
        "train": [row for row in ordered if not is_held_out(row["id"], held_out)],
        "held-out": [row for row in ordered if is_held_out(row["id"], held_out)],
    }


@pytest.mark.parametrize("seed", [None, 0, 7])
@pytest.mark.parametrize("run_bytes", [1 << 20, 500])
def test_shards_cut_the_ordered_documents_into_equal_parts(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None, run_bytes: int
) -> None:
    monkeypatch.setattr(runs, "_RUN_BYTES", run_bytes)
    monkeypatch.setattr(runs, "_GROUP_ROWS", 3)
    rows = _rows(90)
    for part in range(3):
        write_parquet(tmp_path / "docs" / f"{part}.parquet", rows[30 * part : 30 * part + 30])
    order = {"shuffle": False} if seed is None else {"seed": seed}
    run(tmp_path / "docs", small, tmp_path / "out", shard_tokens=400, held_out=0.2, **order)
    tokenizer = json.loads(small.read_text())["model"]["vocab"]
    for split, expected in _expected(rows, seed, 0.2).items():
        ids = stream(tmp_path / "out", split)
        characters = {id: text for text, id in tokenizer.items()}
        text = "".join(characters[id] for id in ids).replace("Ġ", " ")
        assert text == "".join(row["text"] + END for row in expected)
        shards = described(tmp_path / "out")["splits"][split]
        assert [shard["tokens"] for shard in shards[:-1]] == [400] * (len(shards) - 1)
        assert 0 < shards[-1]["tokens"] <= 400
        assert len(shards) == -(-len(ids) // 400)


def test_any_token_is_traced_to_its_document_by_the_tables(small: Path, tmp_path: Path) -> None:
    rows = [*_rows(40), {"id": "long", "url": None, "text": "x" * 1000}]
    write_parquet(tmp_path / "docs.parquet", rows)
    run(tmp_path / "docs.parquet", small, tmp_path / "out", shard_tokens=150, held_out=0.0)
    texts = {row["id"]: row["text"] for row in rows}
    characters = {id: text for text, id in json.loads(small.read_text())["model"]["vocab"].items()}
    seen: dict[str, str] = dict.fromkeys(texts, "")
    for shard, table in zip(
        described(tmp_path / "out")["splits"]["train"], pieces(tmp_path / "out", "train"), strict=True
    ):
        ids = np.fromfile(tmp_path / "out" / shard["name"], np.uint16)
        ends = 0
        for row in table:
            assert row["offset"] == ends
            ends += row["tokens"]
            assert (row["document_offset"] > 0) == bool(seen[row["id"]])
            assert row["url"] == next(other["url"] for other in rows if other["id"] == row["id"])
            seen[row["id"]] += "".join(characters[id] for id in ids[row["offset"] : ends].tolist()).replace("Ġ", " ")
        assert ends == shard["tokens"]
    assert seen == {id: text + END for id, text in texts.items()}


def test_shuffled_shards_do_not_depend_on_order_files_or_workers(small: Path, tmp_path: Path) -> None:
    rows = _rows(120)
    mixed = random.Random(3).sample(rows, len(rows))
    write_parquet(tmp_path / "one" / "all.parquet", rows)
    for part in range(5):
        write_parquet(tmp_path / "many" / f"{part}.parquet", mixed[24 * part : 24 * part + 24])
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mixed[::-1]))
    results = []
    for name, options in (("one", None), ("many", RunOptions(LocalExecutor(2))), ("many", None), ("lines", None)):
        output = tmp_path / f"out-{len(results)}"
        run(tmp_path / name, small, output, options, shard_tokens=700, held_out=0.1)
        results.append(shard_bytes(output))
    assert len(results[0]) > 6
    assert results[0] == results[1] == results[2] == results[3]
    assert (tmp_path / "out-1" / "manifest.json").read_bytes() == (tmp_path / "out-2" / "manifest.json").read_bytes()


def test_documents_with_equal_ids_are_ordered(small: Path, tmp_path: Path) -> None:
    rows = [{"id": "same", "url": f"u{number % 3}", "text": f"text {number % 20}"} for number in range(80)]
    write_parquet(tmp_path / "a.parquet", rows)
    write_parquet(tmp_path / "b.parquet", random.Random(5).sample(rows, len(rows)))
    for name in "ab":
        run(tmp_path / f"{name}.parquet", small, tmp_path / name, shard_tokens=100, held_out=0.0)
    assert shard_bytes(tmp_path / "a") == shard_bytes(tmp_path / "b")


def test_documents_with_equal_ids_and_crc32_are_ordered(small: Path, tmp_path: Path) -> None:
    texts = ["K0j5oqbYVF9C", "cE8NZY9VQJAj"]
    library = load_document_tokenizer(small.read_bytes(), "small")
    assert len({zlib.crc32(np.array(library.encode(text).ids, "<u2").tobytes()) for text in texts}) == 1
    for name, order in (("a", texts), ("b", texts[::-1])):
        write_parquet(tmp_path / f"{name}.parquet", [{"id": "same", "text": text} for text in order])
        run(tmp_path / f"{name}.parquet", small, tmp_path / name, held_out=0.0)
    assert shard_bytes(tmp_path / "a") == shard_bytes(tmp_path / "b")


def test_long_urls_count_towards_the_size_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One column of strings holds 2 GiB, which 64 MiB of tokens with long URLs would exceed.
    monkeypatch.setattr(runs, "_RUN_BYTES", 1000)
    writer = RunWriter(str(tmp_path), 0, end_of_text=257, shuffled=True)
    tokens, starts = np.array([7], np.uint16), np.array([0, 1])
    for number in range(40):
        documents = EncodedDocuments(
            ids=pa.array([str(number)]),
            urls=pa.array(["u" * 900]),
            split=np.zeros(1, np.uint8),
            order=np.array([number], np.uint64),
            content=content_hashes(tokens, starts[:-1], starts[1:]),
            tokens=tokens,
            starts=starts,
        )
        writer.add(documents)
    assert len(writer.finish()) > 15


def test_long_ids_and_urls_of_documents_are_listed(small: Path, tmp_path: Path) -> None:
    rows = [
        {"id": f"{number}" * 20_000, "url": "u" * 9000 + str(number), "text": f"text {number}"} for number in range(40)
    ]
    write_parquet(tmp_path / "d.parquet", rows)
    run(tmp_path / "d.parquet", small, tmp_path / "out", held_out=0.0)
    table = pq.read_table(tmp_path / "out" / "train-00000-documents.parquet")
    assert table.schema.field("url").type == pa.string()
    assert sorted(table.column("url").to_pylist()) == sorted(row["url"] for row in rows)


def test_clusters_of_jsonl_stay_on_one_side(small: Path, tmp_path: Path) -> None:
    rows = [{"id": f"d{number}", "text": "text", "cluster": number // 10} for number in range(2000)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(tmp_path / "d.jsonl", small, tmp_path / "out", held_out=0.1)
    sides = [
        {
            int(row["id"][1:]) // 10
            for path in sorted((tmp_path / "out").glob(f"{split}-*-documents.parquet"))
            for row in pq.read_table(path).to_pylist()
        }
        for split in ("train", "held-out")
    ]
    assert len(sides[1]) > 5
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 200


def test_another_seed_gives_another_order_and_holds_out_the_same(small: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "docs.parquet", _rows(100))
    for seed in (0, 1):
        run(tmp_path / "docs.parquet", small, tmp_path / str(seed), seed=seed, held_out=0.2)
    ids = {
        seed: {
            split: [row["id"] for table in pieces(tmp_path / seed, split) for row in table]
            for split in ("train", "held-out")
        }
        for seed in ("0", "1")
    }
    for split in ("train", "held-out"):
        assert ids["0"][split] != ids["1"][split]
        assert sorted(ids["0"][split]) == sorted(ids["1"][split])


def test_members_of_a_cluster_are_not_adjacent(small: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "docs.parquet", [{**row, "cluster": number % 2} for number, row in enumerate(_rows(64))])
    run(tmp_path / "docs.parquet", small, tmp_path / "out", held_out=0.0)
    [table] = pieces(tmp_path / "out", "train")
    clusters = [int(row["id"].split()[1]) % 2 for row in table]
    assert sum(one != other for one, other in itertools.pairwise(clusters)) > 15


@given(bins=st.lists(st.integers(0, 30), max_size=30), shard_tokens=st.integers(1, 50))
def test_shards_are_cut_from_the_bins_that_they_need(bins: list[int], shard_tokens: int) -> None:
    tokens = [(bin, number) for bin, size in enumerate(bins) for number in range(size)]
    shards = cut_bins(np.array(bins, np.int64), shard_tokens)
    expected = [tokens[start : start + shard_tokens] for start in range(0, len(tokens), shard_tokens)]
    assert len(shards) == len(expected)
    for (first, last, skip, size), part in zip(shards, expected, strict=True):
        assert [token for token in tokens if first <= token[0] <= last][skip : skip + size] == part
        assert (first, last) == (part[0][0], part[-1][0])


def _nanogpt_batch(path: Path, block_size: int, starts: list[int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """`get_batch` of nanoGPT's train.py, without torch."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    x = np.stack([data[i : i + block_size].astype(np.int64) for i in starts])
    y = np.stack([data[i + 1 : i + 1 + block_size].astype(np.int64) for i in starts])
    return x, y


def _llmc_tokens(path: Path) -> npt.NDArray[Any]:
    """`dataloader_load_shard_` of llm.c's dataloader.h: the header is checked, then the size of the file."""
    with path.open("rb") as file:
        header = np.frombuffer(file.read(256 * 4), np.int32)
        assert header[0] == 20240520, "Bad magic in the data file"
        assert header[1] == 1, "Bad version in data file"
        ntok = int(header[2])
        assert ntok > 0
        body = file.read()
    assert 1024 + ntok * 2 == path.stat().st_size, "Error: file size is not as expected"
    return np.frombuffer(body, np.uint16)


@pytest.fixture(scope="module")
def formats(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same documents in each format."""
    folder = tmp_path_factory.mktemp("formats")
    write_parquet(folder / "docs.parquet", _rows(60))
    for form in ("raw", "nanogpt", "llmc", "npy"):
        run(folder / "docs.parquet", small, folder / form, format=form, shard_tokens=500, held_out=0.1)
    return folder


def test_the_loaders_of_nanogpt_llmc_and_numpy_read_the_shards(formats: Path) -> None:
    expected = stream(formats / "raw", "train")
    starts = [0, 100, 491, len(expected) - 9]
    x, y = _nanogpt_batch(formats / "nanogpt" / "train.bin", 8, starts)
    assert x.tolist() == [expected[start : start + 8] for start in starts]
    assert y.tolist() == [expected[start + 1 : start + 9] for start in starts]
    names = sorted(path.stem for path in (formats / "llmc").glob("train-*.bin"))
    assert [id for name in names for id in _llmc_tokens(formats / "llmc" / f"{name}.bin").tolist()] == expected
    loaded = [np.load(formats / "npy" / f"{name}.npy", mmap_mode="r") for name in names]
    assert all(shard.dtype == np.uint16 and shard.ndim == 1 for shard in loaded)
    assert np.concatenate(loaded).tolist() == expected
    assert (formats / "npy" / "train-00000.npy").read_bytes()[:8] == b"\x93NUMPY\x01\x00"
    assert described(formats / "npy")["header_bytes"] == 128


@pytest.mark.parametrize("form", ["raw", "nanogpt", "llmc", "npy"])
def test_pretrain_reads_all_formats(formats: Path, form: str) -> None:
    from pipelines.model.training.data import open_tokens

    folder = open_tokens(str(formats / form))
    assert folder.train.read(0, folder.train.tokens).tolist() == stream(formats / form, "train")


def test_a_folder_of_another_tokenizer_is_refused(small: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "docs.parquet", _rows(5))
    run(tmp_path / "docs.parquet", small, tmp_path / "out", held_out=0.0)
    other = tmp_path / "other.json"
    other.write_text(small.read_text() + "\n")
    with pytest.raises(ChangedRunError, match="its input 'tokenizer' has changed"):
        run(tmp_path / "docs.parquet", other, tmp_path / "out", held_out=0.0)


def test_dropped_texts_are_listed_in_files_of_the_manifest(small: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "docs.parquet", [*_rows(5), {"id": "none", "url": "u", "text": ""}])
    summary = run(tmp_path / "docs.parquet", small, tmp_path / "out", held_out=0.0)
    assert summary.dropped == {"empty_text": 1}
    [row] = pq.read_table(tmp_path / "out" / "dropped-00000.parquet").to_pylist()
    assert (row["id"], row["url"], row["reason"]) == ("none", "u", "empty_text")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    final = [file["name"] for shard in manifest["shards"] if not shard["work"] for file in shard["files"]]
    assert sorted(final) == sorted(set(final))
    present = {path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")}
    assert present == {*final, "manifest.json"}


def _flip(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def _without_an_end(data: bytes) -> bytes:
    return data[:-2] + b"\0\0"


@pytest.fixture(scope="module")
def interrupted(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with input, the whole output, and the output of a run killed after its first phase."""
    folder = tmp_path_factory.mktemp("interrupted")
    for number in range(3):
        write_parquet(folder / "in" / f"{number}.parquet", _rows(60, number)[:50])
    run(folder / "in", small, folder / "whole", shard_tokens=900)

    def killed(*_: Any, **__: Any) -> None:
        raise WebtextError("power failure")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.stages.tokenize.stage.cut_files", killed)
        with pytest.raises(WebtextError, match="power failure"):
            run(folder / "in", small, folder / "out", shard_tokens=900)
    return folder


@pytest.mark.parametrize("damage", [_flip, _without_an_end, lambda data: data[:-2], lambda data: data + b"x", None])
def test_a_resumed_run_encodes_again_what_is_damaged(
    small: Path,
    tmp_path: Path,
    interrupted: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    shutil.copytree(interrupted / "out", tmp_path / "out")
    [damaged] = (tmp_path / "out" / "_work").glob("run-00001-*.tokens")
    damaged.write_bytes(damage(damaged.read_bytes())) if damage else damaged.unlink()
    encoded = []

    def counted(shard: DocumentShard, context: EncodeContext) -> TaskResult:
        encoded.append(shard.index)
        return encode_shard(shard, context)

    monkeypatch.setattr("pipelines.stages.tokenize.stage.encode_shard", counted)
    run(interrupted / "in", small, tmp_path / "out", shard_tokens=900)
    assert encoded == [1]
    assert shard_bytes(tmp_path / "out") == shard_bytes(interrupted / "whole")


@given(keys=st.lists(st.text(st.characters(exclude_categories=["Cs"]))), share=st.floats(0, 0.5))
def test_keys_are_hashed_alike_in_batches_and_alone(keys: list[str], share: float) -> None:
    assert hash_keys(keys, "shuffle-1").tolist() == [hash_key(key, "shuffle-1") for key in keys]
    assert held_out_mask(keys, share).tolist() == [is_held_out(key, share) for key in keys]

"""The loss on the documents that `tokenize` trained on and held out, by document."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_task import own_task, run_task, value_of
from small_model import END, byte_tokenizer, encode, plain_log_probs, write_model

from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError
from pipelines.evaluation.definitions import parse_tasks
from pipelines.evaluation.records import DocumentOptions, Documents
from pipelines.records.document_split import hash_key
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.stage import tokenize


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "random")


def _records(count: int = 60) -> list[dict[str, Any]]:
    """Return documents of 20 to 110 tokens, every third of them in a cluster."""
    words = random.Random(1)
    return [
        {
            "id": f"d{number}",
            "text": f"{number} " + "".join(words.choices("abcde \n", k=words.randint(20, 110))),
            **({"cluster": f"c{number // 9}"} if number % 3 == 0 else {}),
        }
        for number in range(count)
    ]


def _write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _tokenize(documents: Path, output: Path, **config: Any) -> None:
    tokenizer = output.parent / "tokenizer.json"
    tokenizer.write_text(byte_tokenizer().to_str())
    config = {"held_out": 0.3, **config}
    tokenize(
        TokenizeConfig(**config),
        documents=str(documents),
        tokenizer=str(tokenizer),
        output=str(output),
        options=RunOptions(),
    )


def _ids(tokens: Path, split: str) -> set[str]:
    """Return the ids of a split, as `tokenize` lists them."""
    return {row["id"] for path in tokens.glob(f"{split}-*.parquet") for row in pq.read_table(path).to_pylist()}


def _sampled(path: Path, part: str, sample: int = 1000, **options: Any) -> list[str]:
    return [document.place for document in Documents(DocumentOptions(part=part, sample=sample, **options), [str(path)])]


def test_the_loss_is_that_of_every_document_alone(tmp_path: Path, model: str) -> None:
    records = _records()
    data = _write(tmp_path / "docs.jsonl", records)
    _tokenize(data, tmp_path / "tokens")
    texts = {record["id"]: record["text"] for record in records}
    splits = {split: _ids(tmp_path / "tokens", split) for split in ("train", "held-out")}
    assert min(map(len, splits.values())) > 5
    assert [task.variant for task in parse_tasks([f"webtext={data}"], "all")] == ["paper", "train", "held-out"]
    for split, ids in splits.items():
        result, rows = run_task(f"webtext={data}", model, tmp_path / split, split)
        assert {row["place"] for row in rows} == {f"{split}:{id}" for id in ids}
        losses, sizes = [], []
        for row in rows:
            text = [END, *encode(texts[row["place"].partition(":")[2]]), END]
            # Windows of 64 tokens, the last one filled up with earlier tokens.
            parts = [plain_log_probs(model, text[: min(len(text), 65)][:1], text[1:65])[0]]
            if len(text) > 65:
                parts.append(plain_log_probs(model, text[len(text) - 65 : 65], text[65:])[0])
            losses.append(-sum(map(sum, parts)))
            sizes.append(len(text) - 1)
        assert [row["nats"] for row in rows] == pytest.approx(losses, abs=1e-3)
        assert [row["tokens"] for row in rows] == sizes
        assert value_of(result, "loss") == pytest.approx(sum(losses) / sum(sizes), rel=1e-6)
        residuals = np.array(losses) - sum(losses) / sum(sizes) * np.array(sizes)
        error = np.sqrt(len(rows) / (len(rows) - 1) * (residuals**2).sum()) / sum(sizes)
        assert result["metrics"][0]["error"] == pytest.approx(error, rel=1e-5)  # by document
        assert result["counts"][f"{split}_documents"] == len(ids)
    _, rows = run_task(f"webtext={data}", model, tmp_path / "all")
    smaller = min(map(len, splits.values()))
    assert Counter(row["place"].partition(":")[0] for row in rows) == dict.fromkeys(splits, smaller)


def test_a_sample_depends_on_the_documents_alone(tmp_path: Path) -> None:
    records = _records()
    _tokenize(_write(tmp_path / "a" / "docs.jsonl", records), tmp_path / "a" / "tokens")
    first = _sampled(tmp_path / "a" / "docs.jsonl", "all", 4)
    assert len(first) == 8
    random.Random(2).shuffle(records)
    _tokenize(_write(tmp_path / "b" / "docs.jsonl", records), tmp_path / "b" / "tokens")
    assert _sampled(tmp_path / "b" / "docs.jsonl", "all", 4) == first
    assert set(first) <= set(_sampled(tmp_path / "a" / "docs.jsonl", "all", 6))
    train = sorted(_ids(tmp_path / "a" / "tokens", "train"), key=lambda id: hash_key(id, "evaluate"))
    assert _sampled(tmp_path / "a" / "docs.jsonl", "train", 4) == [f"train:{id}" for id in train[:4]]


def test_the_split_is_read_as_tokenize_read_it(tmp_path: Path) -> None:
    records = [{"name": record["id"], "body": record["text"]} for record in _records()]
    records += [{"name": "empty", "body": ""}]
    data = _write(tmp_path / "docs.jsonl", records)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text("{}")
    _tokenize(data, tmp_path / "tokens", text_field="body", id_field="name")
    ids = _ids(tmp_path / "tokens", "held-out")
    source = Documents(DocumentOptions(part="held-out"), [str(data)])
    assert {document.place for document in source} == {f"held-out:{id}" for id in ids}
    assert source.counts == {"held-out_documents": len(ids), "fraction_held_out": 0.3, "documents_not_read": 1}
    with pytest.raises(InputError, match="output of tokenize, which contains no documents"):
        parse_tasks([f"webtext={tmp_path / 'tokens'}"], "paper")


def test_documents_of_a_stage(tmp_path: Path, model: str) -> None:
    from pipelines.stages.dedup.config import DedupConfig
    from pipelines.stages.dedup.stage import dedup

    raw = tmp_path / "raw.parquet"
    records = [{"id": record["id"], "text": record["text"]} for record in _records(30)]
    pq.write_table(pa.Table.from_pylist(records), raw)
    folder = tmp_path / "corpus" / "dedup"
    dedup(DedupConfig(), documents=str(raw), output=str(folder), options=RunOptions())
    _tokenize(folder, tmp_path / "corpus" / "tokenize")
    result, rows = run_task(f"webtext={folder}", model, tmp_path / "out", "held-out")
    ids = _ids(tmp_path / "corpus" / "tokenize", "held-out")
    assert {row["place"] for row in rows} == {f"held-out:{id}" for id in ids}
    assert [file["path"] for file in result["files"]] == ["documents-00000.parquet"]


def test_another_split_is_another_result(tmp_path: Path, model: str) -> None:
    data = _write(tmp_path / "docs.jsonl", _records(40))
    _tokenize(data, tmp_path / "tokens")
    run_task(f"webtext={data}", model, tmp_path / "out")
    with pytest.raises(InputError, match="no folder next to it has these documents as tokens"):
        _sampled(_write(tmp_path / "new.jsonl", _records(41)), "all")
    shutil.rmtree(tmp_path / "tokens")
    _tokenize(data, tmp_path / "tokens", held_out=0.5)
    with pytest.raises(ChangedRunError, match="its input 'prompts' has changed"):
        run_task(f"webtext={data}", model, tmp_path / "out")


def test_a_fraction_of_a_task_replaces_that_of_tokenize(tmp_path: Path, model: str) -> None:
    task = own_task(tmp_path, "perplexity", _records(), part="held-out", held_out=0.1, unit="byte")
    data = tmp_path / "data.jsonl"
    few = set(_sampled(data, "held-out", held_out=0.1))
    assert few < set(_sampled(data, "held-out", held_out=0.4))
    _, rows = run_task(task, model, tmp_path / "out")
    assert {row["place"] for row in rows} == few
    with pytest.raises(InputError, match=r"no document is in the split held-out \(fraction held out: 1e-09\)"):
        _sampled(data, "all", held_out=1e-9)

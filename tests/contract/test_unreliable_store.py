"""Stages on an object store that fails: the bytes of a local run, and nothing else is left."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unreliable_proxy import unreliable_proxy

from pipelines import storage
from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.stage import tokenize
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.stage import train_bpe
from pipelines.storage import object_store

pytestmark = pytest.mark.usefixtures("warm_processes")

_REQUEST_S = 0.3


class _ImpatientWorkers(LocalExecutor):
    """Two workers for all stages, whose requests time out before the proxy closes those that it does not answer."""

    @contextlib.contextmanager
    def persistent_workers(self, initializer: Callable[[], None] | None = None) -> Iterator[None]:
        yield


def _shorten_timeout() -> None:
    object_store._REQUEST_S = _REQUEST_S


def test_stages_on_an_unreliable_store_write_the_same_as_locally(
    bucket: str, s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_documents(f"{tmp_path}/documents")
    _write_documents(f"{bucket}/documents")
    tokenizer = str(tmp_path / "train-bpe")
    train_bpe(TrainBpeConfig(vocab_size=300), documents=f"{tmp_path}/documents", output=tokenizer, options=RunOptions())
    _run_stages(str(tmp_path), tokenizer, RunOptions())
    monkeypatch.setattr(object_store, "_REQUEST_S", _REQUEST_S)
    executor = _ImpatientWorkers(2)
    with unreliable_proxy(s3_server, 0.05, 2 * _REQUEST_S) as (address, failures), monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", address)
        object_store._store.cache_clear()  # it has the address
        with LocalExecutor.persistent_workers(executor, _shorten_timeout):
            _run_stages(bucket, tokenizer, RunOptions(executor=executor))
    object_store._store.cache_clear()
    assert _checksums(bucket) == _checksums(str(tmp_path))
    assert min(failures[name] for name in ("500", "503", "hangs", "cut", "lost")) > 0


def _write_documents(folder: str) -> None:
    source = random.Random(1)
    words = ["".join(source.choices("abcdefgh", k=5)) for _ in range(500)]
    texts = [" ".join(source.choices(words, k=80)) for _ in range(30)]
    for number in range(3):
        rows = [{"id": f"{number}-{index}", "text": source.choice(texts)} for index in range(20)]
        with storage.atomic_write(f"{folder}/part-{number}.parquet") as stream:
            pq.write_table(pa.Table.from_pylist(rows), stream)


def _run_stages(corpus: str, tokenizer: str, options: RunOptions) -> None:
    documents = f"{corpus}/documents/*.parquet"
    dedup(DedupConfig(), documents=documents, output=f"{corpus}/dedup", options=options)
    documents = f"{corpus}/dedup"
    config = TokenizeConfig(held_out=0.3, shard_tokens=2000)
    tokenize(config, documents=documents, tokenizer=tokenizer, output=f"{corpus}/tokenize", options=options)
    overlap_index(OverlapIndexConfig(), documents=documents, output=f"{corpus}/overlap-index", options=options)


def _checksums(corpus: str) -> dict[str, str]:
    """Return the checksums of all files by name, also of hidden ones, but not of inputs and the log of the runs.

    The lock of a local folder is an empty file that stays.
    """
    file_system, plain = storage.file_system(corpus), corpus.removeprefix("s3://")
    names = [str(path).removeprefix(f"{plain}/") for path in file_system.find(plain)]
    if storage.is_local(corpus):
        names = [name for name in names if not name.endswith("/.lock")]
    others = ("documents/", "train-bpe/", "runs.log")
    return {name: storage.sha256_of(f"{corpus}/{name}") for name in names if not name.startswith(others)}

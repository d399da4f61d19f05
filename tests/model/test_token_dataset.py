"""Token shards as a dataset for other training loops: its items, order, documents and streams."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

import webtext
from pipelines.errors import DamagedShardError, InputError, UsageError
from pipelines.model.diagnostics.batch_documents import describe_blocks
from pipelines.model.training import token_stream
from pipelines.model.training.data import Mixture, open_tokens
from pipelines.model.training.mixture import SINGLE
from pipelines.model.training.order import BatchOrder

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)
    from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = [
    # torchdata 0.11 calls what torch 2.13 deprecates.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker:UserWarning"),  # on fewer cores
]

WORDS = "the cat größer 日本語 runs.".split()
SHARD_TOKENS = 300


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of tokenize with documents of 1 to 60 words, of which some are divided between shards."""
    path, source = tmp_path_factory.mktemp("documents"), random.Random(3)
    rows = [
        {"id": f"document-{number}", "url": f"https://example.com/{number}" if number % 3 else None, "text": text}
        for number in range(50)
        if (text := " ".join(source.choices(WORDS, k=source.randint(1, 60))))
    ]
    pq.write_table(pa.Table.from_pylist(rows), path / "documents.parquet")
    (path / "tokenizer.json").write_text(tokenizer.to_str())
    webtext.tokenize(
        webtext.TokenizeConfig(engine="tokenizers", held_out=0.2, shard_tokens=SHARD_TOKENS),
        documents=str(path / "documents.parquet"),
        tokenizer=str(path / "tokenizer.json"),
        output=str(path / "tokenize"),
        options=webtext.RunOptions(),
    )
    return str(path / "tokenize")


@pytest.fixture
def blocks(folder: str) -> webtext.TokenDataset:
    return webtext.TokenDataset(folder, length=8)


def ids(items: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    return [item["input_ids"].tolist() for item in items]


def documents_of(folder: str, split: str) -> list[list[int]]:
    """The documents of a split, without end-of-text, by a walk over all tokens."""
    opened = open_tokens(folder)
    tokens = opened.train if split == "train" else opened.held_out
    documents: list[list[int]] = [[]]
    for token in tokens.read(0, tokens.tokens).tolist():
        if token == opened.end_of_text:
            documents.append([])
        else:
            documents[-1].append(token)
    assert documents[-1] == []
    return documents[:-1]


@pytest.mark.parametrize("seed", [0, 7])
def test_blocks_and_their_order_are_those_of_pretrain(folder: str, seed: int) -> None:
    context, batch_size = 16, 5
    dataset = webtext.TokenDataset(folder, length=context + 1, overlap=1, seed=seed)
    mixture = Mixture({SINGLE: open_tokens(folder)})
    order = BatchOrder({SINGLE: len(dataset)}, batch_size, seed)
    assert len(dataset) == mixture.first.train.blocks(context)
    numbers = np.concatenate([dataset.epoch_order(epoch) for epoch in range(3)])
    for step in range(len(numbers) // batch_size):  # some batches reach into the next epoch
        expected = mixture.read_blocks(order.batch(step), context).tolist()
        assert ids(dataset.__getitems__(numbers[step * batch_size : (step + 1) * batch_size])) == expected


@pytest.mark.parametrize(("length", "overlap"), [(1, 0), (8, 0), (8, 3), (500, 0)])
@pytest.mark.parametrize("split", ["train", "held-out"])
def test_blocks_share_the_overlap(folder: str, split: Any, length: int, overlap: int) -> None:
    dataset = webtext.TokenDataset(folder, split, length=length, overlap=overlap)
    tokens = [id for document in documents_of(folder, split) for id in [*document, dataset.end_of_text]]
    step = length - overlap
    starts = range(0, len(tokens) - length + 1, step)
    assert ids([dataset[index] for index in range(len(dataset))]) == [tokens[at : at + length] for at in starts]


@pytest.mark.parametrize(("length", "overlap"), [(1, 0), (7, 0), (7, 2), (16, 1), (1000, 0)])
@pytest.mark.parametrize("split", ["train", "held-out"])
def test_documents_are_cut_and_never_joined(folder: str, split: Any, length: int, overlap: int) -> None:
    dataset = webtext.TokenDataset(folder, split, length=length, overlap=overlap, documents=True)
    expected = []
    for document in documents_of(folder, split):
        start = 0
        expected.append(document[:length])
        while start + length < len(document):
            start += length - overlap
            expected.append(document[start : start + length])
    assert ids(dataset.__getitems__(range(len(dataset)))) == expected
    assert ids([dataset[-1], dataset[0]]) == [expected[-1], expected[0]]


def test_items_are_those_that_torch_collates(blocks: webtext.TokenDataset) -> None:
    batches = list(DataLoader(blocks, batch_size=4, sampler=blocks.epoch_order(1).tolist(), drop_last=True))
    assert batches[0]["input_ids"].shape == (4, 8)
    assert str(batches[0]["input_ids"].dtype) == "torch.int64"
    assert batches[0]["input_ids"].tolist() == ids([blocks[index] for index in blocks.epoch_order(1)[:4]])
    assert len(list(iter(blocks))) == len(blocks)


def test_a_block_is_traced_as_pretrain_does(folder: str) -> None:
    dataset = webtext.TokenDataset(folder, length=51, overlap=1)
    described = describe_blocks(open_tokens(folder), range(len(dataset)), 50)
    for index, block in enumerate(described):
        traced = dataset.trace(index)
        assert [
            (
                one["id"],
                one["url"],
                one["document_start"],
                one["file"],
                one["position"],
                one["position"] + one["last"] + 1 - one["first"],
            )
            for one in traced
        ] == [
            (piece.id, piece.url, piece.document_start, piece.file, piece.start, piece.stop) for piece in block.pieces
        ]
        places = [place for one in traced for place in range(one["first"], one["last"] + 1)]
        assert places == list(range(51))


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_an_item_of_documents_is_traced_to_one_document(folder: str, split: Any) -> None:
    dataset = webtext.TokenDataset(folder, split, length=60, documents=True)
    lengths: dict[str, int] = {}
    for index in range(len(dataset)):
        traced = dataset.trace(index)
        assert len({one["id"] for one in traced}) == 1
        assert traced[0]["document_start"] == lengths.setdefault(traced[0]["id"], 0)
        assert (traced[0]["first"], traced[-1]["last"]) == (0, len(dataset[index]["input_ids"]) - 1)
        lengths[traced[0]["id"]] += traced[-1]["last"] + 1
    assert list(lengths.values()) == [len(document) for document in documents_of(folder, split)]


def test_removed_documents_are_not_items(folder: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    copy = copy_folder(folder, tmp_path)
    removed = {"document-0", "document-1", "document-7"}
    for table in copy.glob("train-*-documents.parquet"):
        rows = pq.read_table(table).to_pylist()
        hidden = [row | {"id": "", "url": None} if row["id"] in removed else row for row in rows]
        pq.write_table(pa.Table.from_pylist(hidden, pq.read_schema(table)), table)
    dataset = webtext.TokenDataset(str(copy), length=1000, documents=True, verify=False)
    whole = webtext.TokenDataset(folder, length=1000, documents=True)
    kept = [index for index in range(len(whole)) if whole.trace(index)[0]["id"] not in removed]
    assert len(kept) < len(whole)
    assert ids([dataset[index] for index in range(len(dataset))]) == ids([whole[index] for index in kept])


def test_what_is_known_of_the_tokens(folder: str, tokenizer: Tokenizer, blocks: webtext.TokenDataset) -> None:
    assert (blocks.path, blocks.split, blocks.vocab_size) == (folder, "train", tokenizer.get_vocab_size())
    assert blocks.end_of_text == tokenizer.token_to_id("<|endoftext|>")
    assert Tokenizer.from_file(blocks.tokenizer_path).to_str() == tokenizer.to_str()


def test_reading_imports_no_torch(folder: str) -> None:
    code = (
        "import sys, webtext; dataset = webtext.TokenDataset(sys.argv[1], length=8, documents=True); dataset[0]; "
        "dataset.trace(0); dataset.epoch_order(0); print('torch' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True).stdout
    assert printed == "False\n"


@pytest.mark.parametrize("kind", ["blocks", "documents"])
def test_a_pickle_has_no_tokens_and_opens_the_folder_again(folder: str, kind: str) -> None:
    dataset = webtext.TokenDataset(folder, "held-out", length=9, overlap=2, documents=kind == "documents", seed=3)
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 600
    assert len(pickle.dumps(webtext.TokenStream(dataset))) < 1000
    copy = pickle.loads(pickled)
    assert ids(copy.__getitems__(range(len(copy)))) == ids(dataset.__getitems__(range(len(dataset))))
    assert (copy.options, copy.fingerprint) == (dataset.options, dataset.fingerprint)


def test_spawned_processes_read_the_same(blocks: webtext.TokenDataset) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert ids([pool.apply(blocks.__getitem__, (3,))]) == ids([blocks[3]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length 0, overlap 0: expected 0 <= overlap < length"),
        ({"length": 4, "overlap": 4}, "length 4, overlap 4: expected"),
        ({"length": 4, "overlap": -1}, "length 4, overlap -1: expected"),
        ({"length": 4, "split": "test"}, "split 'test': expected 'train' or 'held-out'"),
    ],
)
def test_invalid_arguments(folder: str, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        webtext.TokenDataset(folder, **options)


def test_a_split_without_items(folder: str) -> None:
    with pytest.raises(InputError, match=r"the held-out split has [\d,]+ tokens, but no block of 100,000"):
        webtext.TokenDataset(folder, "held-out", length=100_000)


def test_items_out_of_range(blocks: webtext.TokenDataset) -> None:
    for index in (len(blocks), -len(blocks) - 1):
        with pytest.raises(IndexError, match="the train split has"):
            blocks[index]
    assert blocks.__getitems__([]) == []


def copy_folder(folder: str, target: Path) -> Path:
    copy = target / "tokenize"
    copy.mkdir()
    for file in Path(folder).iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    return copy


def test_a_damaged_shard(folder: str, tmp_path: Path) -> None:
    copy = copy_folder(folder, tmp_path)
    shard = copy / "train-00000.bin"
    shard.write_bytes(bytes(2) + shard.read_bytes()[2:])
    with pytest.raises(DamagedShardError, match=r"train-00000\.bin"):
        webtext.TokenDataset(str(copy), length=8)


@pytest.mark.parametrize("change", ["first row", "last row"])
def test_a_table_that_does_not_cover_its_shard(folder: str, tmp_path: Path, change: str) -> None:
    copy = copy_folder(folder, tmp_path)
    table = copy / "train-00001-documents.parquet"
    rows = pq.read_table(table).to_pylist()
    rows = {"first row": rows[1:], "last row": rows[:-1]}[change]
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(table)), table)
    with pytest.raises(InputError, match=r"train-00001-documents\.parquet: does not cover the 300 tokens"):
        webtext.TokenDataset(str(copy), length=8, documents=True, verify=False)
    assert len(webtext.TokenDataset(str(copy), length=8, verify=False))


def steps_of(streams: Sequence[webtext.TokenStream], batch_size: int, workers: int) -> list[list[list[int]]]:
    """The items of all ranks at each step, in order of their ids."""
    loaders = [DataLoader(stream, batch_size, num_workers=workers) for stream in streams]
    return [
        sorted(row for batch in batches if batch is not None for row in batch["input_ids"].tolist())
        for batches in itertools.zip_longest(*loaders)
    ]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_ranks_and_workers_together_have_the_same_steps(folder: str, workers: int) -> None:
    blocks = webtext.TokenDataset(folder, length=40)
    epochs, batch_size = 2, 6
    order = np.concatenate([blocks.epoch_order(epoch) for epoch in range(epochs)])
    rows = ids(blocks.__getitems__(order[: len(order) // 2 * 2]))
    expected = [sorted(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    one = webtext.TokenStream(blocks, epochs, batch_size=batch_size)
    two = [webtext.TokenStream(blocks, epochs, rank, 2, batch_size=batch_size // 2) for rank in range(2)]
    assert steps_of([one], batch_size, workers) == expected
    assert steps_of(two, batch_size // 2, workers) == expected


def test_ranks_have_equally_many_items(blocks: webtext.TokenDataset) -> None:
    rows = [ids(list(webtext.TokenStream(blocks, 1, rank, 7))) for rank in range(7)]
    assert {len(of_rank) for of_rank in rows} == {len(blocks) // 7}
    expected = ids(blocks.__getitems__(blocks.epoch_order(0)[: len(blocks) // 7 * 7]))
    assert [row for rows_of_turn in zip(*rows, strict=True) for row in rows_of_turn] == expected


def test_workers_without_the_batch_size_have_each_item_once(
    blocks: webtext.TokenDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Worker:
        id, num_workers = 0, 3

    monkeypatch.setattr(token_stream, "get_worker_info", lambda: Worker)
    rows = []
    for Worker.id in range(3):
        rows += ids(list(webtext.TokenStream(blocks, 1)))
    assert sorted(rows) == sorted(ids(blocks.__getitems__(range(len(blocks)))))


def test_an_endless_stream_goes_through_the_epochs(blocks: webtext.TokenDataset) -> None:
    order = np.concatenate([blocks.epoch_order(epoch) for epoch in range(3)])
    stream = webtext.TokenStream(blocks, batch_size=4)
    assert ids(list(itertools.islice(stream, len(order)))) == ids(blocks.__getitems__(order))
    assert ids(list(itertools.islice(stream, 5))) == ids(blocks.__getitems__(order[:5]))  # begins again


@pytest.mark.parametrize("stop", [0, 1, 5, 8, "all but one"])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
def test_a_stream_resumes_from_its_state(blocks: webtext.TokenDataset, stop: Any, rank: int, world_size: int) -> None:
    def stream() -> webtext.TokenStream:
        return webtext.TokenStream(blocks, 2, rank, world_size, batch_size=4)

    whole = ids(list(stream()))
    stop = len(whole) - 1 if stop == "all but one" else stop
    first, resumed = stream(), stream()
    iterator = iter(first)
    assert ids(list(itertools.islice(iterator, stop))) == whole[:stop]
    resumed.load_state_dict(first.state_dict())
    assert resumed.state_dict() == first.state_dict()
    assert ids(list(resumed)) == whole[stop:]
    assert ids(list(resumed)) == whole  # the state applies to one iterator
    assert ids(list(iterator)) == whole[stop:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_stateful_loader_resumes_within_an_epoch(blocks: webtext.TokenDataset, workers: int, steps: int) -> None:
    def loader() -> Any:
        return StatefulDataLoader(webtext.TokenStream(blocks, 1, batch_size=10), 10, num_workers=workers)

    def rows(batches: Iterator[Any]) -> list[list[int]]:
        return [row for batch in batches for row in batch["input_ids"].tolist()]

    first = loader()
    iterator = iter(first)
    rows(itertools.islice(iterator, steps))
    state = pickle.loads(pickle.dumps(first.state_dict()))
    resumed = loader()
    resumed.load_state_dict(state)
    expected = ids(blocks.__getitems__(blocks.epoch_order(0)[steps * 10 :]))
    assert rows(iterator) == rows(resumed) == expected


def test_the_state_of_another_stream(folder: str, blocks: webtext.TokenDataset) -> None:
    state = webtext.TokenStream(blocks).state_dict()
    for other, names in [
        (webtext.TokenStream(blocks, world_size=2), "world_size"),
        (webtext.TokenStream(webtext.TokenDataset(folder, length=9, seed=1)), "length, seed"),
    ]:
        with pytest.raises(UsageError, match=f"the state is of another stream: {names} differ"):
            other.load_state_dict(state)


@pytest.mark.parametrize("options", [{"rank": 1}, {"rank": -1, "world_size": 2}, {"batch_size": 0}])
def test_invalid_streams(blocks: webtext.TokenDataset, options: Any) -> None:
    with pytest.raises(UsageError, match=", ".join(f"{name} {value}" for name, value in options.items())):
        webtext.TokenStream(blocks, **options)

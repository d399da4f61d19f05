"""The documents of a batch, compared with a plain walk over all tokens, on folders that tokenize wrote."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from token_folder import END_OF_TEXT, encode
from tokenizers import Tokenizer

from pipelines.engine.run import RunOptions
from pipelines.errors import DamagedShardError, InputError
from pipelines.format import to_json
from pipelines.model.diagnostics.batch_documents import BatchBlock, Piece, describe_blocks
from pipelines.model.training.data import TokenFolder, open_tokens
from pipelines.records import shards
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.stage import tokenize
from webtext_cli.commands.pretrain import print_batch

Row = dict[str, Any]


def _tokenized(folder: Path, rows: Sequence[Row], tokenizer: Tokenizer, **config: Any) -> TokenFolder:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "documents.parquet")
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    values = {"engine": "tokenizers", "held_out": 0.0, "shard_tokens": 700, **config}
    tokenize(
        TokenizeConfig(**values),
        documents=str(folder / "documents.parquet"),
        tokenizer=str(folder / "tokenizer.json"),
        output=str(folder / "tokenize"),
        options=RunOptions(),
    )
    return open_tokens(str(folder / "tokenize"))


def _rows(count: int, most_words: int) -> list[Row]:
    """Documents with and without URLs, some empty, some longer than a block, some with many bytes a character."""
    source = random.Random(4)
    words = ["the", "cat", "größer", "日本語", "😀", "runs.", "\n\n", "a\tb"]
    return [
        {
            "id": f"document-{number}",
            "url": None if number % 3 == 0 else f"https://example.com/{number}",
            "text": " ".join(source.choices(words, k=source.randrange(most_words))),
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return _rows(60, 90)


@pytest.fixture(scope="module", params=[False, True], ids=["as they came", "shuffled"])
def folder(
    request: pytest.FixtureRequest, rows: list[Row], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> TokenFolder:
    return _tokenized(tmp_path_factory.mktemp("batches"), rows, tokenizer, shuffle=request.param)


def _walk(folder: TokenFolder, rows: Sequence[Row], tokenizer: Tokenizer) -> list[tuple[str, str | None, int, int]]:
    """Of each token of the train split: whose it is by id and URL, its place in the document, and itself.

    The order of the documents is found by their tokens, which no table tells.
    """
    ids = {tuple(encode(tokenizer, [row["text"]])): row for row in rows}
    assert len(ids) == len(rows)
    walked, document = [], []
    for token in folder.train.read(0, folder.train.tokens).tolist():
        document.append(token)
        if token == folder.end_of_text:
            row = ids[tuple(document)]
            walked += [(row["id"], row["url"], place, item) for place, item in enumerate(document)]
            document = []
    return walked


def _expected(
    walked: Sequence[tuple[str, str | None, int, int]], numbers: Sequence[int], context: int, tokenizer: Tokenizer
) -> Iterator[BatchBlock]:
    for number in numbers:
        pieces: list[tuple[Piece, list[int]]] = []
        for place in range(number * context, (number + 1) * context + 1):
            id, url, document_start, token = walked[place]
            file, offset = f"train-{place // 700:05d}.bin", place % 700
            if pieces and (pieces[-1][0].id, pieces[-1][0].file) == (id, file):
                pieces[-1][1].append(token)
            else:
                pieces.append((Piece(id, url, "train", file, offset, 0, document_start, ""), [token]))
        yield BatchBlock(
            number,
            tuple(
                dataclasses.replace(
                    piece, stop=piece.start + len(ids), text=tokenizer.decode(ids, skip_special_tokens=False)
                )
                for piece, ids in pieces
            ),
        )


@pytest.mark.parametrize("context", [1, 16, 50, 900])
def test_block_documents_match_a_plain_walk_over_all_tokens(
    folder: TokenFolder, rows: list[Row], tokenizer: Tokenizer, context: int
) -> None:
    walked = _walk(folder, rows, tokenizer)
    numbers = list(range(folder.train.blocks(context)))[: 700 if context == 1 else None]
    random.Random(2).shuffle(numbers)
    numbers.append(numbers[0])  # a batch that reaches into the next epoch may hold a block twice
    assert describe_blocks(folder, numbers, context) == list(_expected(walked, numbers, context, tokenizer))


def test_the_text_of_neighbouring_blocks_is_the_corpus(rows: list[Row], tokenizer: Tokenizer, tmp_path: Path) -> None:
    ascii_rows = [row | {"text": row["text"].encode("ascii", "ignore").decode()} for row in rows]
    folder = _tokenized(tmp_path, ascii_rows, tokenizer, shuffle=False)
    blocks = describe_blocks(folder, range(folder.train.blocks(20)), 20)
    whole = "".join(row["text"] + END_OF_TEXT for row in ascii_rows)
    text = tokenizer.decode(folder.train.read(0, 1).tolist(), skip_special_tokens=False)
    for block in blocks:
        block_text = "".join(piece.text for piece in block.pieces)
        first = block.number * 20
        shared = tokenizer.decode(folder.train.read(first, first + 1).tolist(), skip_special_tokens=False)
        assert block_text.startswith(shared)
        text += block_text.removeprefix(shared)
    assert whole.startswith(text)
    assert len(text) > len(whole) - 200


def test_only_row_groups_with_documents_of_the_batch_are_read(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": f"d{number}", "url": None, "text": "a"} for number in range(20_000)]
    folder = _tokenized(tmp_path, rows, tokenizer, shuffle=False, shard_tokens=1_000_000)
    read: list[list[int]] = []
    real = shards.read_batches

    def spied(path: str, columns: list[str], row_groups: list[int]) -> Iterator[pa.RecordBatch]:
        read.append(row_groups)
        return real(path, columns, row_groups)

    monkeypatch.setattr(shards, "read_batches", spied)
    # Documents are of two tokens, blocks of four documents and the next token, row groups of 8,192 documents.
    for numbers, groups in [([0], [0]), ([2047], [0, 1]), ([2048], [1]), ([4998, 0], [0, 2])]:
        blocks = describe_blocks(folder, numbers, 8)
        assert read.pop() == groups
        result = [[piece.id for piece in block.pieces] for block in blocks]
        assert result == [[f"d{4 * number + place}" for place in range(5)] for number in numbers]
    assert not read


def test_a_damaged_document_table_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = _tokenized(tmp_path, _rows(10, 20), tokenizer, shard_tokens=100_000)
    table = tmp_path / "tokenize" / "train-00000-documents.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(DamagedShardError, match=r"train-00000-documents.parquet: is damaged"):
        describe_blocks(folder, [0], 16)


def test_an_incomplete_document_table_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = _tokenized(tmp_path, _rows(10, 20), tokenizer, shard_tokens=100_000)
    path = tmp_path / "tokenize" / "train-00000-documents.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    tables = {name: dataclasses.replace(table, entry=None) for name, table in folder.train.tables.items()}
    changed = dataclasses.replace(folder, train=dataclasses.replace(folder.train, tables=tables))
    with pytest.raises(
        InputError, match=r"does not cover the tokens 0 to 17 of its shard; delete the folder and re-run `webtext tok"
    ):
        describe_blocks(changed, [0], 16)


def test_a_batch_as_json(folder: TokenFolder) -> None:
    blocks = describe_blocks(folder, [3, 0], 50)
    shown = json.loads(to_json(blocks))
    assert [item["number"] for item in shown] == [3, 0]
    assert [tuple(Piece(**piece) for piece in item["pieces"]) for item in shown] == [block.pieces for block in blocks]


def test_a_batch_is_printed_with_its_documents(terminal: pytest.CaptureFixture[str]) -> None:
    pieces = (
        Piece(
            "d1",
            "https://example.com/\x1b[31m",
            "train",
            "train-00002.bin",
            1500,
            1510,
            2000,
            "first\n\tred \x1b[31m, no\u00a0break",
        ),
        Piece("d2", None, "train", "train-00002.bin", 1510, 1513, 0, f"no URL{END_OF_TEXT}"),
    )
    print_batch({"step": 12_000, "blocks": [BatchBlock(4711, pieces)]})
    assert terminal.readouterr().out.splitlines() == [
        "step 12,000, 1 of 1: block 4,711",
        "  train-00002.bin, tokens 1,500 to 1,509: document d1 from its token 2,000",
        r"  https://example.com/\u001b[31m",
        "    first",
        "        red \\u001b[31m, no\u00a0break",
        "  train-00002.bin, tokens 1,510 to 1,512: document d2 from its beginning",
        "    no URL<|endoftext|>",
        "",
    ]

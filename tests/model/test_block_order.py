"""Reading blocks from shards, and the stateless order of blocks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_folder import encode, write_token_folder
from tokenizers import Tokenizer

from pipelines.errors import DamagedShardError, InputError
from pipelines.model.training.data import Split, open_tokens, token_bytes
from pipelines.model.training.next_token import held_out_batches
from pipelines.model.training.order import BatchOrder, BlockOrder


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.data())
def test_shards_are_read_as_one_sequence(lengths: list[int], data: st.DataObject) -> None:
    row = np.arange(sum(lengths), dtype=np.uint16)
    split = Split("x", tuple(np.split(row, np.cumsum(lengths)[:-1])), 65_536)
    assert split.tokens == len(row)
    if len(row):
        start = data.draw(st.integers(0, len(row) - 1))
        stop = data.draw(st.integers(start + 1, len(row)))
        assert split.read(start, stop).tolist() == row[start:stop].tolist()
        where = [(span.shard, list(range(span.start, span.stop))) for span in split.spans(start, stop)]
        tokens = [int(split.shards[shard][token]) for shard, places in where for token in places]
        assert tokens == row[start:stop].tolist()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 4), st.data())
def test_reading_several_blocks_equals_reading_one_by_one(
    lengths: list[int], context: int, data: st.DataObject
) -> None:
    row = np.arange(sum(lengths), dtype=np.uint16)
    split = Split("x", tuple(np.split(row, np.cumsum(lengths)[:-1])), 65_536)
    last = split.blocks(context) - 1
    numbers = data.draw(st.lists(st.integers(0, last), max_size=5)) if last >= 0 else []
    result = split.read_blocks(numbers, context)
    assert (result.dtype, result.shape) == (np.int64, (len(numbers), context + 1))
    assert result.tolist() == [row[item * context : (item + 1) * context + 1].tolist() for item in numbers]


def test_consecutive_blocks_share_one_token() -> None:
    split = Split("x", (np.arange(6, dtype=np.uint16), np.arange(6, 14, dtype=np.uint16)), 14)
    assert split.blocks(4) == 3  # 13 tokens to predict
    assert split.read_blocks(range(3), 4).tolist() == [
        [0, 1, 2, 3, 4],
        [4, 5, 6, 7, 8],
        [8, 9, 10, 11, 12],
    ]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_a_block_has_one_token_more_than_the_context(tokens: int, blocks: int) -> None:
    assert Split("x", (np.zeros(tokens, np.uint16),), 1).blocks(4) == blocks


def test_every_epoch_is_a_new_permutation() -> None:
    order = BatchOrder({"tokens": 10}, batch_size=4, seed=5)
    drawn = [block.number for step in range(10) for block in order.batch(step)]
    epochs = [drawn[first : first + 10] for first in range(0, 40, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_step_reads_the_same_blocks_after_any_restart() -> None:
    whole = BatchOrder({"tokens": 23}, batch_size=5, seed=2)
    steps = [whole.batch(step) for step in range(12)]
    assert steps == [BatchOrder({"tokens": 23}, batch_size=5, seed=2).batch(step) for step in range(12)]
    assert steps[7] == whole.batch(7)  # also when asked again, out of order


def test_the_seed_changes_the_order() -> None:
    assert BlockOrder(100, 0).numbers(0, 50) != BlockOrder(100, 1).numbers(0, 50)


def test_the_order_never_changes() -> None:
    # Philox's bits are the same in every version of numpy and on every machine, and so must this be.
    assert BlockOrder(8, 0).numbers(0, 8) == [0, 2, 1, 5, 4, 3, 6, 7]


@pytest.mark.parametrize(
    ("blocks", "batch_size", "seed", "steps_sha256"),
    [(1000, 64, 7, "3a17f825816a070d"), (5, 16, 2**63 + 1, "56a5d9a840bdf8b0"), (70_000, 512, 3, "a8d19e950263fe51")],
)
def test_the_order_of_many_epochs_never_changes(blocks: int, batch_size: int, seed: int, steps_sha256: str) -> None:
    order = BatchOrder({"tokens": blocks}, batch_size, seed)
    steps = [[block.number for block in order.batch(step)] for step in range(300)]
    assert hashlib.sha256(str(steps).encode()).hexdigest()[:16] == steps_sha256


def test_first_positions_are_uniform_over_all_blocks() -> None:
    places = Counter(BlockOrder(4, seed).numbers(0, 1)[0] for seed in range(400))
    assert min(places.values()) > 60


@pytest.mark.parametrize(("chosen", "blocks", "numbers"), [(3, 9, [0, 3, 6]), (9, 4, [0, 1, 2, 3]), (2, 0, [])])
def test_evaluated_blocks_are_spread(chosen: int, blocks: int, numbers: list[int]) -> None:
    split = Split("", (np.zeros(2 * blocks + 1, np.uint16),), 1)
    assert [number for batch in held_out_batches(split, 2, 4, chosen) for number in batch] == numbers


@pytest.mark.parametrize(("dtype", "header_bytes"), [("uint16", 0), ("uint16", 1024), ("uint32", 0), ("uint32", 1024)])
def test_every_format_of_tokenize_is_read(tmp_path: Path, tokenizer: Tokenizer, dtype: str, header_bytes: int) -> None:
    rows = [[1, 2, 3], [4, 5, 299]]
    folder = write_token_folder(
        tmp_path / "tokenize", rows, [[7, 8]], tokenizer, dtype=dtype, header_bytes=header_bytes
    )
    result = open_tokens(folder)
    assert result.train.read(0, 6).tolist() == [1, 2, 3, 4, 5, 299]
    assert result.held_out.read(0, 2).tolist() == [7, 8]
    assert (result.vocab_size, result.end_of_text) == (300, 299)


def test_a_split_may_have_no_shards_or_an_empty_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    result = open_tokens(write_token_folder(tmp_path / "tokenize", [[1, 2], [], [3]], [], tokenizer))
    assert result.train.read(0, 3).tolist() == [1, 2, 3]
    assert result.held_out.tokens == 0


def test_an_id_beyond_the_vocabulary_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    result = open_tokens(write_token_folder(tmp_path / "tokenize", [[1, 300, 2]], [], tokenizer))
    with pytest.raises(
        InputError,
        match=r"contains token 300, but the vocabulary has 300 entries; delete this folder and re-run `webtext tok",
    ):
        result.train.read(0, 3)
    with pytest.raises(InputError, match=r"contains token 300"):
        result.train.read_blocks([0], 2)


def test_shards_of_another_tokenizer_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = Path(write_token_folder(tmp_path / "tokenize", [[1, 2, 3]], [], tokenizer))
    assert open_tokens(str(folder)).tokenizer == tokenizer.to_str().encode()
    _replace_vouched(folder, "tokenizer.json", (folder / "tokenizer.json").read_bytes() + b"\n")
    with pytest.raises(InputError, match=r"tokenizer.json: not the tokenizer that .* re-run `webtext tokenize`"):
        open_tokens(str(folder))


def _replace_vouched(folder: Path, name: str, data: bytes) -> None:
    """Replace a file, and what the manifest says of it."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    for file in (file for shard in manifest["shards"] for file in shard["files"] if file["name"] == name):
        file |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_damaged_shard_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = Path(write_token_folder(tmp_path / "tokenize", [[1, 2, 3]], [], tokenizer))
    (folder / "train-00000.bin").write_bytes(b"\0" * 6)
    with pytest.raises(DamagedShardError, match=r"train-00000.bin: is damaged.*re-run `webtext tokenize`"):
        open_tokens(str(folder))
    assert open_tokens(str(folder), verify=False).train.read(0, 3).tolist() == [0, 0, 0]  # others have read it
    (folder / "train-00000.bin").write_bytes(b"\0" * 5)
    with pytest.raises(InputError, match=r"train-00000.bin: has 5 bytes, but tokens.json says 6"):
        open_tokens(str(folder), verify=False)


def test_token_bytes_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    texts = ["the cat, größer than 日本 😀", "", "It runs."]
    ids = encode(tokenizer, texts)
    lengths = token_bytes(tokenizer.to_str().encode(), tokenizer.get_vocab_size())
    assert lengths is not None
    assert lengths[ids].sum() == len("".join(texts).encode())
    assert lengths[299] == 0  # <|endoftext|> stands for no text


def test_a_tokenizer_that_does_not_work_on_bytes_has_no_bytes() -> None:
    assert token_bytes(b'{"decoder": null, "model": {"vocab": {"a": 0}}}', 1) is None

"""gigatoken's ids are those of tokenizers and tiktoken; if they are not, the run stops with an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from token_run import END, Notes, described, pieces, run, shard_bytes, stream, write_parquet, write_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, WebtextError
from pipelines.stages.tokenize.encode import SampleCheck
from pipelines.tokenizers.encoding import Encoded, FastEncoder
from pipelines.tokenizers.formats import read_tokenizer

_SPLIT = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module")
def gpt2(shared_data: Path) -> FastEncoder:
    return FastEncoder(read_tokenizer(str(shared_data / "gpt2_vocab")), "gpt2")


@pytest.fixture(scope="module")
def gpt2_library(shared_data: Path) -> Tokenizer:
    files = (str(shared_data / "gpt2_vocab" / name) for name in ("encoder.json", "vocab.bpe"))
    library = Tokenizer(models.BPE.from_file(*files))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library


@pytest.fixture(scope="module")
def gpt2_tiktoken(shared_data: Path) -> Any:
    import tiktoken

    # The ranks as tiktoken.load.data_gym_to_mergeable_bpe_ranks makes them: bytes in GPT-2's order, then the merges.
    from pipelines.algorithms.bpe.byte_level import byte_characters

    bytes_of = {character: bytes([byte]) for byte, character in byte_characters().items()}
    vocabulary = json.loads((shared_data / "gpt2_vocab" / "encoder.json").read_text())
    ranks = {b"".join(bytes_of[character] for character in text): id for text, id in vocabulary.items() if text != END}
    return tiktoken.Encoding("gpt2", pat_str=_SPLIT, mergeable_ranks=ranks, special_tokens={END: 50256})


def _documents(shared_data: Path) -> list[str]:
    with zstandard.open(shared_data / "text" / "docs.jsonl.zst", "rt") as lines:
        return [json.loads(line)["text"] for line in lines]


def _same_ids(texts: list[str], fast: FastEncoder, library: Tokenizer, ranks: Any) -> None:
    encoded = fast.encode(pa.array(texts, pa.string()))
    for row, text in enumerate(texts):
        ids = encoded.ids[encoded.starts[row] : encoded.starts[row + 1]].tolist()
        assert ids == library.encode(text, add_special_tokens=False).ids == ranks.encode_ordinary(text)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
_PARTS = st.sampled_from([END, "\u0000", " " * 200, "a" * 3000, "\n\n\n", "'ll", "١٢٣", "漢字" * 90, "e\u0301", "x y"])


@settings(deadline=None, max_examples=60)
@given(texts=st.lists(st.lists(st.one_of(_TEXT, _PARTS), max_size=6).map("".join), min_size=1, max_size=6))
def test_any_text_round_trips_with_gpt2s_vocabulary(texts: list[str], gpt2: FastEncoder, gpt2_tiktoken: Any) -> None:
    encoded = gpt2.encode(pa.array(texts, pa.string()))
    for row, text in enumerate(texts):
        ids = encoded.ids[encoded.starts[row] : encoded.starts[row + 1]].tolist()
        assert 50256 not in ids
        assert gpt2_tiktoken.decode_bytes(ids).decode() == text


def test_real_documents_have_the_ids_of_both_libraries(
    shared_data: Path, gpt2: FastEncoder, gpt2_library: Tokenizer, gpt2_tiktoken: Any
) -> None:
    sample = _documents(shared_data)[::60]
    assert len(sample) > 90
    _same_ids(sample, gpt2, gpt2_library, gpt2_tiktoken)


@pytest.mark.slow
def test_every_document_has_the_ids_of_both_libraries_and_round_trips(
    shared_data: Path, tmp_path: Path, gpt2_library: Tokenizer, gpt2_tiktoken: Any
) -> None:
    texts = _documents(shared_data)
    rows = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    write_parquet(tmp_path / "docs.parquet", rows)
    run(tmp_path / "docs.parquet", shared_data / "gpt2_vocab", tmp_path / "out", shard_tokens=3_000_000)
    seen = 0
    for split in ("train", "held-out"):
        ids = np.array(stream(tmp_path / "out", split), np.uint16)
        ends = np.flatnonzero(ids == 50256)
        starts = np.array([0, *(ends[:-1] + 1)])
        names = [row["id"] for table in pieces(tmp_path / "out", split) for row in table if row["document_offset"] == 0]
        for name, start, end in zip(names, starts.tolist(), ends.tolist(), strict=True):
            shard_ids, text = ids[start:end].tolist(), texts[int(name)]
            assert shard_ids == gpt2_library.encode(text).ids == gpt2_tiktoken.encode_ordinary(text)
            assert gpt2_tiktoken.decode_bytes(shard_ids).decode() == text
            seen += 1
    assert seen == len(texts)


@pytest.mark.parametrize("threads", [False, True])
def test_ids_do_not_depend_on_threads_and_slices(shared_data: Path, gpt2: FastEncoder, threads: bool) -> None:
    texts = pa.array(_documents(shared_data)[:300], pa.string())
    whole = gpt2.encode(texts, threads=threads)
    part = gpt2.encode(texts.slice(100, 50))
    assert part.ids.tolist() == whole.ids[whole.starts[100] : whole.starts[150]].tolist()


def test_both_engines_write_the_same_shards(small: Path, tmp_path: Path) -> None:
    texts = ["the end", END, "naïve 漢字 🙂 \u0000", "x" * 5000, " " * 700, "a\n\n b"]
    write_parquet(tmp_path / "docs.parquet", [{"id": str(number), "text": text} for number, text in enumerate(texts)])
    for engine in ("gigatoken", "tokenizers"):
        summary = run(tmp_path / "docs.parquet", small, tmp_path / engine, engine=engine, held_out=0.0)
        assert described(tmp_path / engine)["engine"] == engine
        assert summary.extra["documents_compared_with_tokenizers"] == (3 if engine == "gigatoken" else 0)
    assert shard_bytes(tmp_path / "gigatoken") == shard_bytes(tmp_path / "tokenizers")


def _wrong_about(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make gigatoken give one wrong id in texts that contain a word."""
    right = FastEncoder.encode

    def wrong(self: FastEncoder, texts: pa.Array, *, threads: bool = False) -> Encoded:
        encoded = right(self, texts, threads=threads)
        ids = encoded.ids.copy()
        for row, text in enumerate(texts.to_pylist()):
            if word in text:
                ids[encoded.starts[row] + 2] += 1
        return Encoded(ids, encoded.starts)

    monkeypatch.setattr(FastEncoder, "encode", wrong)


def test_a_wrong_id_in_the_first_documents_ends_the_run(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wrong_about("special", monkeypatch)
    write_parquet(
        tmp_path / "d.parquet", [{"id": f"d{number}", "text": f"abc special {number}"} for number in range(9)]
    )
    with pytest.raises(
        WebtextError,
        match=r"document d0: gigatoken has (\d+) as token 2, tokenizers has (\d+).*--engine tokenizers --overwrite",
    ):
        run(tmp_path / "d.parquet", small, tmp_path / "out", held_out=0.0)
    assert not (tmp_path / "out" / "tokens.json").exists()
    run(tmp_path / "d.parquet", small, tmp_path / "out", RunOptions(overwrite=True), held_out=0.0, engine="tokenizers")
    assert described(tmp_path / "out")["engine"] == "tokenizers"


def test_a_wrong_id_deep_in_a_shard_is_found_by_the_sample(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wrong_about("special", monkeypatch)
    rows = [
        {"id": f"d{number}", "text": f"abc {'special' if number > 10 else 'plain'} {number}"}
        for number in range(12_000)
    ]
    write_parquet(tmp_path / "d.parquet", rows)
    with pytest.raises(WebtextError, match=r"document d.*gigatoken has"):
        run(tmp_path / "d.parquet", small, tmp_path / "out", held_out=0.0)


def test_only_the_start_of_a_long_document_is_compared(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wrong_about("special", monkeypatch)
    write_parquet(tmp_path / "d.parquet", [{"id": "long", "text": "special " + "word " * 30_000}])
    with pytest.raises(WebtextError, match="document long: gigatoken has"):
        run(tmp_path / "d.parquet", small, tmp_path / "out", held_out=0.0)


def test_gigatoken_is_not_used_if_it_fails_the_probes(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wrong_about("Hello", monkeypatch)
    write_parquet(tmp_path / "d.parquet", [{"id": "d", "text": "text"}])
    notes = Notes()
    run(tmp_path / "d.parquet", small, tmp_path / "auto", RunOptions(progress=notes), held_out=0.0)
    assert any("encoding with tokenizers" in note and "other ids" in note for note in notes.notes)
    with pytest.raises(InputError, match="gigatoken gives other ids than tokenizers; use --engine tokenizers"):
        run(tmp_path / "d.parquet", small, tmp_path / "asked", held_out=0.0, engine="gigatoken")


def test_tokenizers_encodes_with_a_tokenizer_that_gigatoken_does_not_support(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2, END: 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "t.json"))
    write_parquet(tmp_path / "d.parquet", [{"id": "d", "text": "a b a"}])
    notes = Notes()
    run(tmp_path / "d.parquet", tmp_path / "t.json", tmp_path / "out", RunOptions(progress=notes), held_out=0.0)
    assert stream(tmp_path / "out", "train") == [0, 1, 0, 3]
    assert described(tmp_path / "out")["engine"] == "tokenizers"
    assert any("encoding with tokenizers, which is slower" in note for note in notes.notes)
    with pytest.raises(InputError, match=r"t\.json: gigatoken .*use --engine tokenizers"):
        run(tmp_path / "d.parquet", tmp_path / "t.json", tmp_path / "asked", held_out=0.0, engine="gigatoken")


def test_tokenizers_encodes_with_added_tokens_that_are_not_special(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.json")
    library = Tokenizer.from_file(str(path))
    library.add_tokens(["<tool_call>"])
    library.save(str(path))
    write_parquet(tmp_path / "d.parquet", [{"id": "d", "text": "a<tool_call>b"}])
    notes = Notes()
    run(tmp_path / "d.parquet", path, tmp_path / "out", RunOptions(progress=notes), held_out=0.0)
    assert library.token_to_id("<tool_call>") in stream(tmp_path / "out", "train")
    assert described(tmp_path / "out")["engine"] == "tokenizers"
    assert any("not special: '<tool_call>'" in note for note in notes.notes)


def test_a_tokenizer_that_loses_text_is_noted(small: Path, tmp_path: Path) -> None:
    whole, lossy = Notes(), Notes()
    documents = write_parquet(tmp_path / "d.parquet", [{"id": "a", "text": "some text"}, {"id": "b", "text": "more"}])
    run(documents, small, tmp_path / "whole", RunOptions(progress=whole), held_out=0.0)
    assert not any("loses text" in note for note in whole.notes)
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "some": 1, END: 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    run(documents, tmp_path / "words.json", tmp_path / "lossy", RunOptions(progress=lossy), held_out=0.0)
    assert 'words.json: loses text: "Hello world' in "\n".join(lossy.notes)


def test_each_of_many_shards_compares_less() -> None:
    unused: Any = None
    assert [SampleCheck(unused, unused, shards).characters_left for shards in (1, 5, 20, 50, 10_000)] == [
        200_000,
        200_000,
        50_000,
        20_000,
        20_000,
    ]

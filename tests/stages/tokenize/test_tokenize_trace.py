"""The document of any token of a shard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from token_run import END, described, pieces, run, write_parquet, write_tokenizer

from pipelines.errors import ChangedRunError, DamagedShardError, InputError, UsageError
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
    with pytest.raises(UsageError, match=f"has tokens 0 to {file['tokens'] - 1}"):
        trace(f"{tokens / file['name']}:{file['tokens']}")
    with pytest.raises(InputError, match="is not a token shard of its folder"):
        trace(f"{tokens / 'train-99999.bin'}:0")
    with pytest.raises(InputError, match=r"train-00000\.bin: no such file; name the path of the shard"):
        trace("train-00000.bin:1")
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

"""remove-wikipedia with a reference: copies of articles are dropped, quotations stay."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from reference_ngrams import words
from reference_run import DOCUMENTS, DROPPED, article, dropped, edited, run, sentence, write_documents, write_dump

from pipelines.errors import (
    InputError,
)
from pipelines.stages.remove_wikipedia import reference
from webtext_cli.commands.remove_wikipedia import command


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("documents") / "documents.jsonl")


def test_copies_are_dropped_with_share_and_title_and_quotations_stay(documents: Path, tmp_path: Path) -> None:
    summary = run(documents, tmp_path / "out", write_dump(tmp_path / "enwiki-pages-articles.xml.bz2"))
    assert dropped(tmp_path / "out") == {id: ("wikipedia_content", detail) for id, detail in DROPPED.items()}
    assert summary.records_out == len(DOCUMENTS) - len(DROPPED)
    pages_by_kind = ("articles", "redirects", "disambiguations", "other_pages")
    assert [summary.extra[f"reference_{kind}"] for kind in pages_by_kind] == [7, 1, 1, 1]


def test_the_share_is_that_of_the_words_in_common_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_SLICE_NGRAMS", 1000)
    source = random.Random(3)
    texts = {f"{number}": edited(article(number % 6), source.randint(2, 30)) for number in range(60)}
    # Every second n-gram of an article is indexed, and its last one.
    indexed = {tuple(words(article(number))[at : at + 8]) for number in range(6) for at in (*range(0, 113, 2), 112)}
    write_documents(tmp_path / "documents.jsonl", {**texts, "own": sentence("own", 50)})
    run(tmp_path / "documents.jsonl", tmp_path / "out", write_dump(tmp_path / "a.xml.bz2"), reference_share=0.25)
    expected = {}
    for id, text in texts.items():
        document = words(text)
        starts = [at for at in range(len(document) - 7) if tuple(document[at : at + 8]) in indexed]
        # A gap of up to 8 words belongs to the passage.
        ends = [start + (step if step <= 16 else 8) for start, step in zip(starts, np.diff(starts), strict=False)]
        share = len(set().union(*map(range, starts, [*ends, *(start + 8 for start in starts[-1:])]))) / len(document)
        if share >= 0.25:
            expected[id] = ("wikipedia_content", f"{share:.3f} Article {int(id) % 6} & co")
    assert 10 < len(expected) < 60
    assert dropped(tmp_path / "out") == expected


def test_in_scripts_without_spaces_each_character_is_a_word(tmp_path: Path) -> None:
    rng = random.Random(5)

    def chinese() -> str:
        return "，".join("".join(chr(rng.randrange(0x4E00, 0x5E00)) for _ in range(12)) for _ in range(20))

    articles = [chinese() for _ in range(5)]
    path = tmp_path / "articles.jsonl"
    path.write_text("".join(json.dumps({"title": f"条{n}", "text": text}) + "\n" for n, text in enumerate(articles)))
    copies = {}
    for number, text in enumerate(articles):
        characters = list(text)
        for at in rng.sample(range(len(text)), 12):  # of 259
            characters[at] = "改"
        copies[f"copy{number}"] = "".join(characters)
    others = {f"other{number}": chinese() + text[:50] for number, text in enumerate(articles)}
    write_documents(tmp_path / "documents.jsonl", {**copies, **others, "short": articles[0][:5]})
    run(tmp_path / "documents.jsonl", tmp_path / "out", path)
    titles = {id: detail.split(" ")[1] for id, (_, detail) in dropped(tmp_path / "out").items()}
    assert titles == {f"copy{number}": f"条{number}" for number in range(5)}


def test_a_share_of_one_keeps_all_but_whole_copies(documents: Path, tmp_path: Path) -> None:
    run(documents, tmp_path / "out", write_dump(tmp_path / "a.xml.bz2"), reference_share=1.0)
    assert set(dropped(tmp_path / "out")) == {"copy", "of an article with a doubt"}


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_texts_are_a_reference_too_and_untitled_ones_are_named_by_id(
    documents: Path, tmp_path: Path, suffix: str
) -> None:
    rows = [{"id": f"a{number}", "title": None if number else "First", "text": article(number)} for number in range(6)]
    path = tmp_path / f"wikipedia.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    summary = run(documents, tmp_path / "out", path)
    assert {id: detail.split(" ", 1)[1] for id, (_, detail) in dropped(tmp_path / "out").items()} == {
        "copy": "First",
        "copy with other words, case and signs": "a1",
    }
    assert summary.extra.get("reference_bad_json") == (1 if suffix == "jsonl" else None)


def test_domains_count_before_content(tmp_path: Path) -> None:
    row = {"id": "1", "url": "https://en.wikipedia.org/wiki/A", "text": article(0)}
    other = {"id": "2", "url": "https://a.example/", "text": "other"}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(other) + "\n")
    run(tmp_path / "in.jsonl", tmp_path / "out", write_dump(tmp_path / "a.xml.bz2"))
    assert dropped(tmp_path / "out") == {"1": ("wikipedia_domain", "wikipedia.org")}


def test_a_missing_reference_is_named(documents: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"enwiki.xml.bz2: no such file"):
        run(documents, tmp_path / "out", tmp_path / "enwiki.xml.bz2")


def test_the_command_takes_the_reference_of_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "dedup").mkdir()
    write_documents(tmp_path / "dedup" / "documents.jsonl")
    write_dump(tmp_path / "enwiki.xml.bz2", streams=2)
    (tmp_path / "webtext.toml").write_text('[remove-wikipedia]\nreference = ["enwiki.xml.bz2"]\n')
    result = CliRunner().invoke(command, ["--corpus", str(tmp_path), "--json", "-q", "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["dropped"] == {"wikipedia_content": len(DROPPED)}
    arguments = ["-i", str(tmp_path / "dedup" / "documents.jsonl"), "-o", str(tmp_path / "out"), "--json", "-q"]
    index = ["--reference-index", str(tmp_path / "remove-wikipedia")]
    result = CliRunner().invoke(command, [*arguments, *index])
    assert json.loads(result.output)["dropped"] == {"wikipedia_content": len(DROPPED)}
    result = CliRunner().invoke(command, [*arguments, *index, "--reference-share", "2"])
    assert "must be at least 0.01 and at most 1" in result.output

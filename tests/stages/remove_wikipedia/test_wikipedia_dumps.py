"""Dumps of Wikipedia under all names and in any compression; what is not a whole dump is refused."""

from __future__ import annotations

import bz2
from collections import Counter
from pathlib import Path

import pytest
from reference_run import DROPPED, HEADER, dropped, page, pages, run, write_documents, write_dump

from pipelines.errors import (
    DamagedFileError,
    InputError,
    WebtextError,
)
from pipelines.stages.remove_wikipedia import dumps


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("documents") / "documents.jsonl")


@pytest.mark.parametrize("name", ["a.xml", "a.xml.gz", "a.xml-p1p41242.bz2"])
def test_dumps_are_read_under_all_names(documents: Path, tmp_path: Path, name: str) -> None:
    run(documents, tmp_path / "out", write_dump(tmp_path / name))
    assert {id: detail for id, (_, detail) in dropped(tmp_path / "out").items()} == DROPPED


def test_the_parts_of_a_multistream_dump_have_all_its_pages(
    tmp_path: Path,
) -> None:
    path = write_dump(tmp_path / "a.xml.bz2", streams=5)
    whole, *rest = dumps.dump_parts([str(path)])
    assert not rest
    parts = dumps.dump_parts([str(path)], part_bytes=700)
    assert len(parts) > 3
    assert [part.begin for part in parts[1:]] == [part.end for part in parts[:-1]]
    counts: Counter[str] = Counter()
    whole_counts: Counter[str] = Counter()
    articles = [article for part in parts for article in dumps.read_articles(part, counts)]
    assert articles == list(dumps.read_articles(whole, whole_counts))
    assert counts == whole_counts
    assert min(title for title, _ in articles) == "Article 0 & co"


def test_a_dump_that_was_compressed_in_blocks_is_read_by_one_task(tmp_path: Path) -> None:
    data = (HEADER + "".join(pages()) + "</mediawiki>").encode()
    blocks = [data[first : first + 500] for first in range(0, len(data), 500)]
    (tmp_path / "a.xml.bz2").write_bytes(b"".join(map(bz2.compress, blocks)))
    [part] = dumps.dump_parts([str(tmp_path / "a.xml.bz2")], part_bytes=300)
    assert len(list(dumps.read_articles(part, Counter()))) == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its XML does not begin with <mediawiki>"),
        (b"no XML", "its XML does not begin with <mediawiki>"),
        (b"<rss><page></page></rss>", "its XML does not begin with <mediawiki>"),
        (b'<!DOCTYPE x [<!ENTITY a "aaa">]>' + HEADER.encode(), "its XML does not begin with <mediawiki>"),
        (HEADER.encode() + b"<page><title>A</page>", "is truncated, or not the XML of a MediaWiki dump"),
        (HEADER.encode() + page("A", "b").encode(), "is truncated, or not the XML of a MediaWiki dump"),
        (HEADER.encode() + b"</mediawiki>", "no article has 8 words"),
    ],
)
def test_what_is_not_a_dump_is_refused(documents: Path, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.xml").write_bytes(content)
    with pytest.raises(InputError, match=message):
        run(documents, tmp_path / "out", tmp_path / "a.xml")


def test_a_truncated_dump_is_refused_wherever_it_ends(documents: Path, tmp_path: Path) -> None:
    path = write_dump(tmp_path / "a.xml.bz2", streams=3)
    data = path.read_bytes()
    path.write_bytes(data[:-50])
    with pytest.raises(DamagedFileError, match=r"a.xml.bz2: is truncated or corrupt near compressed byte"):
        run(documents, tmp_path / "out", path)
    # Without its last stream, all that remains decompresses.
    path.write_bytes(data[: -len(bz2.compress(b"</mediawiki>\n"))])
    with pytest.raises(InputError, match="is truncated, or not the XML of a MediaWiki dump"):
        run(documents, tmp_path / "out", path)
    path.write_bytes(b"text")
    with pytest.raises(DamagedFileError, match=r"a.xml.bz2: is truncated or corrupt"):
        run(documents, tmp_path / "out", path)


def test_a_page_without_end_is_refused(documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "MAX_LINE_BYTES", 3 << 20)
    (tmp_path / "a.xml").write_bytes(HEADER.encode() + page("A", "word " * (1 << 20)).encode() + b"</mediawiki>")
    with pytest.raises(InputError, match="has a page of more than 3,145,728 bytes"):
        run(documents, tmp_path / "out", tmp_path / "a.xml")


def test_a_missing_parser_is_named_with_its_installation(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.extras.find_spec", lambda name: None)
    with pytest.raises(WebtextError, match=r"a.xml: reading a dump needs mwparserfromhell.*\[wikipedia\]"):
        run(documents, tmp_path / "out", write_dump(tmp_path / "a.xml"))

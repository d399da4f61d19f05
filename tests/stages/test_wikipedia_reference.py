"""remove-wikipedia with a reference: copies of articles are dropped, quotations stay."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipelines.algorithms.ngrams.words import words
from pipelines.core import storage
from pipelines.core.errors import (
    ChangedRunError,
    DamagedFileError,
    DamagedShardError,
    InputError,
    UsageError,
    WebtextError,
)
from pipelines.core.executor import make_executor
from pipelines.core.manifest import read_manifest
from pipelines.core.run import RunOptions, Summary
from pipelines.stages.remove_wikipedia import dumps, reference
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from pipelines.stages.remove_wikipedia.stage import remove_wikipedia
from webtext_cli.commands.remove_wikipedia import command

HEADER = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">\n<siteinfo><base>x</base></siteinfo>\n'
)
VOCABULARY = [f"{first}{second}" for first in "bcdfghklmnprst" for second in ("aro", "ilen", "omas", "unt", "ey")]


def sentence(seed: object, count: int) -> str:
    source = random.Random(str(seed))
    return " ".join(source.choice(VOCABULARY) for _ in range(count))


def page(title: str, text: str, namespace: int = 0, extra: str = "") -> str:
    return (
        f"<page><title>{escape(title)}</title><ns>{namespace}</ns><id>7</id>{extra}<revision><id>8</id>"
        f'<text bytes="1" xml:space="preserve">{escape(text)}</text></revision></page>\n'
    )


def article(number: int) -> str:
    return sentence(f"article {number}", 120)


def wikitext(number: int) -> str:
    head, *rest = article(number).split(" ")
    linked = " ".join(f"[[{word.title()} (x)|{word}]]" if at % 9 == 0 else word for at, word in enumerate(rest))
    return (
        "{{Infobox|name={{nowrap|some name}}}}\n"
        f"'''{head}'''<ref>{{{{cite|title=a reference}}}}</ref> {linked}\n\n"
        "{| class=wikitable\n! Year\n|-\n| 1990\n|}\n== Notes ==\n<!-- hidden -->[[Category:Words]]"
    )


def pages() -> list[str]:
    return [
        *(page(f"Article {number} & co", wikitext(number)) for number in range(6)),
        page("Old name", "#REDIRECT [[Article 0]]", extra='<redirect title="Article 0" />'),
        page("Talk:Article 0", sentence("talk", 50), namespace=1),
        page("Meanings", sentence("meanings", 50) + "{{Place name disambiguation}}"),
        page("Doubt", sentence("doubt", 50) + "{{Disambiguation needed|date=May}}"),
    ]


def write_dump(path: Path, streams: int = 1) -> Path:
    """Write a dump whose pages are in so many streams, besides those of the header and the end."""
    listed = pages()
    parts = [HEADER, *("".join(listed[stream::streams]) for stream in range(streams)), "</mediawiki>\n"]
    if streams == 1:
        parts = ["".join(parts)]
    packed = {".bz2": bz2.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
    path.write_bytes(b"".join(packed(part.encode()) for part in parts))
    return path


def edited(text: str, every: int) -> str:
    return " ".join("changed" if at % every == every - 1 else word for at, word in enumerate(text.split(" ")))


DOCUMENTS = {
    "copy": article(0),
    "copy with other words, case and signs": edited(article(1), 12).upper().replace(" ", ", "),
    "quotation": f"{sentence('own', 100)} {' '.join(article(2).split(' ')[20:50])} {sentence('more', 100)}",
    "of a talk page": sentence("talk", 50),
    "of a disambiguation page": sentence("meanings", 50),
    "of an article with a doubt": sentence("doubt", 50),
    "short": " ".join(article(3).split(" ")[:7]),
    "own": sentence("other", 200),
    "empty": "",
}
DROPPED = {
    "copy": "1.000 Article 0 & co",
    "of an article with a doubt": "1.000 Doubt",
    "copy with other words, case and signs": "0.917 Article 1 & co",
}


def write_documents(path: Path, documents: dict[str, str] = DOCUMENTS) -> Path:
    path.write_text("".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in documents.items()))
    return path


def run(
    documents: Path, output: Path, *references: Path, workers: int = 1, index: Path | None = None, **settings: Any
) -> Summary:
    return remove_wikipedia(
        RemoveWikipediaConfig(**settings),
        documents=str(documents),
        output=str(output),
        options=RunOptions(make_executor(workers)),
        reference=[str(path) for path in references],
        reference_index=None if index is None else str(index),
    )


def dropped(folder: Path) -> dict[str, tuple[str, str]]:
    rows = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("dropped-*.parquet"))]).to_pylist()
    return {row["id"]: (row["reason"], row["detail"]) for row in rows}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("documents") / "documents.jsonl")


@pytest.fixture(scope="module")
def built(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    run(documents, folder / "out", write_dump(folder / "enwiki-pages-articles.xml.bz2"))
    return folder / "out"


def test_copies_are_dropped_with_share_and_title_and_quotations_stay(documents: Path, tmp_path: Path) -> None:
    summary = run(documents, tmp_path / "out", write_dump(tmp_path / "enwiki-pages-articles.xml.bz2"))
    assert dropped(tmp_path / "out") == {id: ("wikipedia_content", detail) for id, detail in DROPPED.items()}
    assert summary.records_out == len(DOCUMENTS) - len(DROPPED)
    pages_by_kind = ("articles", "redirects", "disambiguations", "other_pages")
    assert [summary.extra[f"reference_{kind}"] for kind in pages_by_kind] == [7, 1, 1, 1]


@pytest.mark.parametrize("name", ["a.xml", "a.xml.gz", "a.xml-p1p41242.bz2"])
def test_dumps_are_read_under_all_names(documents: Path, tmp_path: Path, name: str) -> None:
    run(documents, tmp_path / "out", write_dump(tmp_path / name))
    assert {id: detail for id, (_, detail) in dropped(tmp_path / "out").items()} == DROPPED


def test_the_share_is_that_of_the_words_in_common_ngrams(tmp_path: Path) -> None:
    source = random.Random(3)
    texts = {f"{number}": edited(article(number % 6), source.randint(2, 30)) for number in range(60)}
    known = {tuple(words(article(number))[at : at + 8]) for number in range(6) for at in range(113)}
    write_documents(tmp_path / "documents.jsonl", {**texts, "own": sentence("own", 50)})
    run(tmp_path / "documents.jsonl", tmp_path / "out", write_dump(tmp_path / "a.xml.bz2"), reference_share=0.25)
    expected = {}
    for id, text in texts.items():
        found = words(text)
        starts = [at for at in range(len(found) - 7) if tuple(found[at : at + 8]) in known]
        share = len({at + k for at in starts for k in range(8)}) / len(found)
        if share >= 0.25:
            expected[id] = ("wikipedia_content", f"{share:.3f} Article {int(id) % 6} & co")
    assert 10 < len(expected) < 60
    assert dropped(tmp_path / "out") == expected


def test_a_share_of_one_keeps_all_but_whole_copies(documents: Path, tmp_path: Path) -> None:
    run(documents, tmp_path / "out", write_dump(tmp_path / "a.xml.bz2"), reference_share=1.0)
    assert set(dropped(tmp_path / "out")) == {"copy", "of an article with a doubt"}


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


def test_an_index_is_used_again(documents: Path, built: Path, tmp_path: Path) -> None:
    summary = run(documents, tmp_path / "out", index=built)
    assert dropped(tmp_path / "out") == dropped(built)
    assert summary.records_in == len(DOCUMENTS)
    assert not list((tmp_path / "out").glob("reference-*"))


def test_domains_count_before_content(tmp_path: Path) -> None:
    row = {"id": "1", "url": "https://en.wikipedia.org/wiki/A", "text": article(0)}
    other = {"id": "2", "url": "https://a.example/", "text": "other"}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(other) + "\n")
    run(tmp_path / "in.jsonl", tmp_path / "out", write_dump(tmp_path / "a.xml.bz2"))
    assert dropped(tmp_path / "out") == {"1": ("wikipedia_domain", "wikipedia.org")}


def write_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Path], list[Path]]:
    """Write documents in three files and a reference in four, of which the index has eight parts."""
    folder.mkdir()
    monkeypatch.setattr(reference, "_PART_BYTES", 4000)
    items = list(DOCUMENTS.items())
    texts = []
    for number in range(3):
        pq.write_table(
            pa.Table.from_pylist([{"id": id, "text": text} for id, text in items[number::3]]),
            folder / f"documents-{number}.parquet",
        )
    for number in range(3):
        rows = [{"title": f"text {number}-{at}", "text": article(at)} for at in range(number, 8)]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"text-{number}.parquet")
        texts.append(folder / f"text-{number}.parquet")
    return sorted(folder.glob("documents-*")), [*texts, write_dump(folder / "a.xml.bz2")]


def test_the_bytes_are_the_same_for_one_worker_and_three_and_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, references = write_parts(tmp_path / "in", monkeypatch)
    documents = tmp_path / "in" / "documents-*.parquet"
    run(documents, tmp_path / "one", *references)
    run(documents, tmp_path / "three", *references[::-1], workers=3)
    one = files(tmp_path / "one")
    assert len([name for name in one if name.startswith("reference-")]) == 8
    assert one == files(tmp_path / "three")


def test_what_is_dropped_does_not_depend_on_the_order_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, references = write_parts(tmp_path / "in", monkeypatch)
    outcomes = []
    for name, order in (("forward", documents), ("backward", documents[::-1])):
        remove_wikipedia(
            RemoveWikipediaConfig(),
            documents=[str(path) for path in order],
            output=str(tmp_path / name),
            options=RunOptions(),
            reference=[str(path) for path in references],
        )
        outcomes.append(dropped(tmp_path / name))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) == len(DROPPED)


def test_a_run_that_is_killed_again_and_again_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, references = write_parts(tmp_path / "in", monkeypatch)
    documents = tmp_path / "in" / "documents-*.parquet"
    run(documents, tmp_path / "whole", *references)
    kills, journals = 0, set()
    while killed(documents, tmp_path / "out", references, when="before" if kills % 2 else "after"):
        kills += 1
        journals |= {path.name.split("-")[0] for path in (tmp_path / "out" / "_journal").iterdir()}
        assert kills < 50
    phases = {entry.phase for entry in read_manifest(str(tmp_path / "out")).shards}
    assert phases == {"reference", "titles", "index", "shards"}
    assert kills > 8
    assert journals >= {"reference", "titles", "index", "shards"}
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert not list((tmp_path / "out").glob("_*"))


def killed(documents: Path, output: Path, references: list[Path], when: str) -> bool:
    """Run in a fork that kills itself at its fifth file; return whether it did."""
    process = os.fork()
    if not process:
        rename, renames = storage._rename, 0

        def counted(*arguments: Any) -> None:
            nonlocal renames
            renames += 1
            if renames == 5 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            rename(*arguments)
            if renames == 5 and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)

        storage._rename = counted  # type: ignore[assignment]
        try:
            run(documents, output, *references)
        except BaseException:  # noqa: BLE001 - the tests of this process must not continue in the fork
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    exit_code = os.waitstatus_to_exitcode(status)
    assert exit_code in (0, -signal.SIGKILL)
    return exit_code != 0


# Errors


def test_another_reference_is_another_result(documents: Path, built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "out")
    with pytest.raises(ChangedRunError, match="its input 'reference' has changed"):
        run(documents, tmp_path / "out", write_documents(tmp_path / "a.jsonl"))
    with pytest.raises(ChangedRunError, match=r"reference_share was 0.5, is now 0.6"):
        run(documents, tmp_path / "out", write_dump(tmp_path / "enwiki-pages-articles.xml.bz2"), reference_share=0.6)


def test_a_reference_and_an_index_exclude_each_other(documents: Path, built: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--reference and --reference-index exclude each other"):
        run(documents, tmp_path / "out", write_dump(tmp_path / "a.xml"), index=built)


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


def test_a_missing_reference_is_named(documents: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"enwiki.xml.bz2: no such file"):
        run(documents, tmp_path / "out", tmp_path / "enwiki.xml.bz2")


def test_a_folder_without_an_index_is_refused(documents: Path, built: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        run(documents, tmp_path / "out", index=tmp_path / "missing")
    row = {"id": "1", "url": "https://a.example/", "text": "x"}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    run(tmp_path / "in.jsonl", tmp_path / "plain")
    with pytest.raises(InputError, match=r"plain: has no index of a reference; build one with"):
        run(documents, tmp_path / "out", index=tmp_path / "plain")
    shutil.copytree(built, tmp_path / "old")
    manifest = json.loads((tmp_path / "old" / "manifest.json").read_text())
    manifest["version"] = 1
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"old: is of version 1, not 2; build one with"):
        run(documents, tmp_path / "out", index=tmp_path / "old")


@pytest.mark.parametrize("prefix", ["reference", "titles"])
def test_a_damaged_index_is_refused(documents: Path, built: Path, tmp_path: Path, prefix: str) -> None:
    shutil.copytree(built, tmp_path / "damaged")
    [path] = (tmp_path / "damaged").glob(f"{prefix}-*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedShardError, match=rf"{path.name}: is damaged"):
        run(documents, tmp_path / "out", index=tmp_path / "damaged")


def test_a_missing_parser_is_named_with_its_installation(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dumps, "find_spec", lambda name: None)
    with pytest.raises(WebtextError, match=r"a.xml: reading a dump needs the mwparserfromhell library.*\[wikipedia\]"):
        run(documents, tmp_path / "out", write_dump(tmp_path / "a.xml"))


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
    assert result.exit_code == 2
    assert "0.01<=x<=1" in result.output

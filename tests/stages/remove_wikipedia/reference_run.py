"""Writes documents and a small dump of Wikipedia, runs remove-wikipedia with it, and reads the result."""

from __future__ import annotations

import bz2
import gzip
import json
import random
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions, Summary
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from pipelines.stages.remove_wikipedia.stage import remove_wikipedia

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
    "without words": "-",
}


DROPPED = {
    "copy": "1.000 Article 0 & co",
    "of an article with a doubt": "1.000 Doubt",
    "copy with other words, case and signs": "0.983 Article 1 & co",
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

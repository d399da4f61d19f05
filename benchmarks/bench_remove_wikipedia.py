"""Measures `webtext remove-wikipedia --reference`: what it finds and keeps, and how fast it indexes and compares.

    python benchmarks/bench_remove_wikipedia.py [--data FOLDER] [--articles N] [--megabytes N] [--workers N] [--seed N]

FOLDER contains `text/` (default: $WEBTEXT_TEST_DATA). Found and kept: half of the texts in it become the articles of a
stand-in dump in the XML of MediaWiki (multistream bzip2, with templates, tables, references, links, images, redirects,
disambiguation and talk pages), the other half are original text. The documents are copies of articles with 10% of their
words replaced, inserted or deleted; original articles of which 20% of the words are a passage of an article; and
original articles as they are. Speed: a reference of N megabytes in Parquet, of copies of the texts whose letters are
permuted, so that n-grams of one are not in another, and as many megabytes of documents without a copy.
"""

from __future__ import annotations

import argparse
import bz2
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
from process_tree import peak_mb, tree

from pipelines.records import inputs
from pipelines.records.drops import Drops

_PAGES_PER_STREAM = 100
_LETTERS = "bcdfghjklmnpqrstvwxz"
_HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo><sitename>Stand-in</sitename><namespaces><namespace key="0" case="first-letter" /></namespaces></siteinfo>
"""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--articles", type=int, default=2000, help="articles of the stand-in dump")
    parser.add_argument("--megabytes", type=int, default=1000, help="reference text to index")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not (options.data / "text").exists():
        print(f"skipped: {options.data} does not exist; name the data with --data or WEBTEXT_TEST_DATA")
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    texts = read_texts(options.data / "text")
    with tempfile.TemporaryDirectory() as folder:
        check_matches(texts, options, Path(folder))
        time_index(texts, options, Path(folder))


def read_texts(folder: Path) -> list[str]:
    """Return all texts of a folder."""
    source = inputs.open_documents([str(path) for path in sorted(folder.glob("*.jsonl.zst"))])
    columns = (batch.column("text") for shard in source.shards for batch in inputs.read_documents(shard, Drops()))
    return [text for column in columns for text in column.to_pylist()]


# What is found and kept


def check_matches(texts: list[str], options: argparse.Namespace, folder: Path) -> None:
    """Compare altered articles of a stand-in dump with it."""
    source = random.Random(options.seed)
    articles = split_articles(texts, source)
    reference = articles[: options.articles]
    known = {ngram for words in reference for ngram in ngrams_of(words)}
    # The texts have near-duplicates: versions of the same documentation.
    original = [words for words in articles[options.articles :] if known.isdisjoint(ngrams_of(words))]
    original = original[: options.articles]
    dump = folder / "enwiki-20260101-pages-articles-multistream.xml.bz2"
    xml_bytes = write_dump(dump, reference, source)
    documents = {
        **{f"copy-{number}": edit(words, source) for number, words in enumerate(reference)},
        **{f"quote-{n}": quote(words, source.choice(reference), source) for n, words in enumerate(original)},
        **{f"original-{number}": words for number, words in enumerate(original)},
    }
    rows = [{"id": id, "text": " ".join(words)} for id, words in documents.items()]
    (folder / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = sum(map(len, reference)) / len(reference)
    print(f"dump: {len(reference):,} articles of {words:.0f} words on average, {xml_bytes / 1e6:.1f} MB of XML")
    arguments = ["-i", str(folder / "documents.jsonl"), "--reference", str(dump), "--workers", str(options.workers)]
    summary, seconds, cpu, _ = run(arguments, folder / "matches")
    print(f"  {seconds:.1f} s ({cpu:.1f} CPU s): {xml_bytes / 1e6 / cpu:.2f} MB of XML per CPU s; {summary['dropped']}")
    dropped = pa.concat_tables(pq.read_table(path) for path in sorted((folder / "matches").glob("dropped-*.parquet")))
    ids, details = dropped.column("id").to_pylist(), dropped.column("detail").to_pylist()
    titles = {id: detail.split(" ", 1)[1] for id, detail in zip(ids, details, strict=True)}
    for kind in ("copy", "quote", "original"):
        count = sum(id.startswith(f"{kind}-") for id in ids)
        total = sum(id.startswith(f"{kind}-") for id in documents)
        print(f"  {kind}: {count:,} of {total:,} dropped ({100 * count / total:.2f}%)")
    right = sum(titles[id] == f"Article {id.split('-')[1]}" for id in titles if id.startswith("copy-"))
    print(f"  the title is that of the copied article for {right:,} of the dropped copies")
    shares = sorted(float(detail.split(" ")[0]) for id, detail in zip(ids, details, strict=True) if "copy" in id)
    print(f"  shares of the dropped copies: smallest {shares[0]}, median {shares[len(shares) // 2]}")


def split_articles(texts: list[str], source: random.Random) -> list[list[str]]:
    """Return articles of 100 to 2,000 words from the paragraphs of texts, in random order and without repeats."""
    articles: dict[str, list[str]] = {}
    for text in texts:
        words: list[str] = []
        size = source.randint(100, 2000)
        for paragraph in text.split("\n\n"):
            if len(paragraph) > 200 and not set("|{}[]<>=*") & set(paragraph):
                words += paragraph.split()
            if len(words) >= size:
                articles.setdefault(" ".join(words[100:130]), words[:size])
                words, size = [], source.randint(100, 2000)
    result = list(articles.values())
    source.shuffle(result)
    return result


def ngrams_of(words: list[str], n: int = 8) -> set[tuple[str, ...]]:
    """Return the n-grams of words as they are."""
    return set(zip(*(words[start:] for start in range(n)), strict=False))


def edit(words: list[str], source: random.Random, share: float = 0.1) -> list[str]:
    """Replace, insert or delete a share of words."""
    edited: list[str] = []
    for word in words:
        kind = source.random() / share
        edited += [word] if kind >= 1 else [[source.choice(words)], [word, source.choice(words)], []][int(3 * kind)]
    return edited


def quote(words: list[str], quoted: list[str], source: random.Random, share: float = 0.2) -> list[str]:
    """Insert a passage of another article, so that it is a share of the words."""
    size = min(len(quoted), round(len(words) * share / (1 - share)))
    words = words[: round(size * (1 - share) / share)]
    first, at = source.randint(0, len(quoted) - size), source.randint(0, len(words))
    return [*words[:at], *quoted[first : first + size], *words[at:]]


def write_dump(path: Path, articles: list[list[str]], source: random.Random) -> int:
    """Write a multistream dump; return the bytes of its XML."""
    pages = [page(f"Article {number}", markup(words, source)) for number, words in enumerate(articles)]
    for number in range(0, len(articles), 10):
        pages.append(page(f"Synonym {number}", f"#REDIRECT [[Article {number}]]", redirect=f"Article {number}"))
        pages.append(page(f"Talk:Article {number}", f"== Size ==\nA question about {number}. ~~~~", namespace=1))
        pages.append(page(f"Meaning {number}", f"* [[Article {number}]]\n{{{{disambiguation}}}}"))
    source.shuffle(pages)
    streams = ["".join(pages[first : first + _PAGES_PER_STREAM]) for first in range(0, len(pages), _PAGES_PER_STREAM)]
    data = [stream.encode() for stream in (_HEADER, *streams, "</mediawiki>\n")]
    path.write_bytes(b"".join(map(bz2.compress, data)))
    return sum(map(len, data))


def page(title: str, text: str, *, namespace: int = 0, redirect: str | None = None) -> str:
    """Return a page as MediaWiki exports it."""
    redirected = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{namespace}</ns>\n    <id>1</id>\n{redirected}"
        "    <revision>\n      <id>2</id>\n      <timestamp>2026-01-01T00:00:00Z</timestamp>\n"
        "      <model>wikitext</model>\n      <format>text/x-wiki</format>\n"
        f'      <text bytes="{len(text.encode())}" xml:space="preserve">{escape(text)}</text>\n'
        "    </revision>\n  </page>\n"
    )


def markup(words: list[str], source: random.Random) -> str:
    """Return the wikitext of an article: every 40 words a reference, every 25 a link, sections, tables, images."""
    parts = ["{{Short description|A topic}}\n{{Infobox\n| name = {{nowrap|A name}}\n| image = Picture.jpg\n}}\n"]
    for number, word in enumerate(words):
        if number % 120 == 119:
            parts.append("\n\n")
        if number % 300 == 299:
            parts.append('== Section ==\n{| class="wikitable"\n|-\n! Year !! Size\n|-\n| 1990 || {{val|12}}\n|}\n')
            parts.append("[[File:Picture.jpg|thumb|left|A [[picture]] of it]]\n")
        choice = source.random()
        if choice < 0.02:
            word = f"[[{word.capitalize()} (topic)|{word}]]"
        elif choice < 0.03:
            word = f"[[{word}]]"
        elif choice < 0.035:
            word = f"'''{word}'''"
        elif choice < 0.06:
            word += '<ref name="r">{{cite book |last=Author |title=A title |url=https://example.org/ |pages=1–2}}</ref>'
        elif choice < 0.065:
            word += "{{citation needed|date=May 2020}}"
        parts.append(f"{word} ")
    return "".join(parts) + "\n== References ==\n{{reflist}}\n<!-- a comment -->\n[[Category:Topics]]\n"


# Speed


def time_index(texts: list[str], options: argparse.Namespace, folder: Path) -> None:
    """Time indexing a reference in Parquet, and comparing documents with the index."""
    size = write_copies(texts, options.megabytes, folder / "reference", options.seed)
    documents = write_copies(texts, options.megabytes, folder / "documents", options.seed + 1)
    small = folder / "one.jsonl"
    small.write_text('{"id": "one", "text": "too short"}\n')
    workers = ["--workers", str(options.workers)]
    references = str(folder / "reference")
    print(
        f"reference: {size / 1e6:,.0f} MB of text in Parquet, {options.workers} workers; load {os.getloadavg()[0]:.1f}"
    )
    summary, seconds, cpu, memory = run(["-i", str(small), "--reference", references, *workers], folder / "index")
    index = sum(path.stat().st_size for path in (folder / "index").glob("reference-*"))
    print(
        f"  indexed in {seconds:.1f} s, {size / 1e6 / seconds:.0f} MB/s; {cpu:.1f} CPU s, {size / 1e6 / cpu:.0f} MB/s "
        f"per core; {summary['reference_distinct_ngrams']:,} distinct n-grams of {summary['reference_ngrams']:,} in "
        f"{index / 1e9:.2f} GB; largest process {memory:.0f} MB"
    )
    arguments = ["-i", str(folder / "documents"), "--reference-index", str(folder / "index"), *workers]
    summary, seconds, cpu, memory = run(arguments, folder / "compared")
    print(
        f"  compared {documents / 1e6:,.0f} MB of documents with it in {seconds:.1f} s, "
        f"{documents / 1e6 / seconds:.0f} MB/s; {cpu:.1f} CPU s; dropped {summary['dropped']}; largest process "
        f"{memory:.0f} MB"
    )


def write_copies(texts: list[str], megabytes: int, folder: Path, seed: int) -> int:
    """Write copies of texts, each with other letters, until there are so many megabytes; return the bytes."""
    folder.mkdir()
    source = random.Random(seed)
    size = 0
    for number in range(1 << 30):
        letters = "".join(source.sample(_LETTERS, len(_LETTERS)))
        table = str.maketrans(_LETTERS + _LETTERS.upper(), letters + letters.upper())
        for part, batch in enumerate(_batches(texts)):
            copies = [text.translate(table) for text in batch]
            ids = [f"{seed}-{number}-{part}-{row}" for row in range(len(copies))]
            path = folder / f"{number:03d}-{part}.parquet"
            pq.write_table(pa.table({"id": ids, "text": copies}), path, compression="zstd", row_group_size=256)
            size += sum(len(text.encode()) for text in copies)
            if size >= megabytes * 1e6:
                return size
    return size


def _batches(texts: Iterable[str], characters: int = 30_000_000) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if sum(map(len, batch)) > characters:
            yield batch
            batch = []
    yield batch


def run(arguments: list[str], output: Path) -> tuple[dict[str, object], float, float, float]:
    """Run the command; return its summary, seconds, CPU seconds, and the peak memory of its largest process in MB."""
    command = [sys.executable, "-m", "webtext_cli", "remove-wikipedia", *arguments, "-o", str(output), "--json", "-q"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peaks: dict[int, float] = {}

    def watch() -> None:
        while process.poll() is None:
            peaks.update({pid: max(peaks.get(pid, 0.0), peak_mb(pid)) for pid in tree(process.pid)})
            time.sleep(0.05)

    thread = threading.Thread(target=watch)
    thread.start()
    stdout, _ = process.communicate()
    thread.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(stdout), time.monotonic() - started, cpu, max(peaks.values())


if __name__ == "__main__":
    main()

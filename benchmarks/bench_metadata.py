"""Accuracy and speed of the metadata of pages: `webtext extract` against trafilatura, htmldate and extruct.

    python benchmarks/bench_metadata.py [--data FOLDER] [--step N]

FOLDER contains `pages/trafilatura-eval` and `pages/wcxb-dev` (default: $WEBTEXT_TEST_DATA). extruct is measured if it
is installed (`pip install extruct`): its JSON-LD, Open Graph and microdata, without rules of its own.

An answer is right if it equals the annotation; where that is empty, if there is no answer. Titles and site names are
compared without differences of case, white space, quotes and dashes, authors as sets of names, and dates by day. The
errors on half A of the pages were read to choose rules; of half B only the figures were seen. A page's half is given by
the hash of its registered domain.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import statistics
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import htmldate
import trafilatura
from trafilatura.metadata import extract_metadata

from pipelines.algorithms.blocks.page import parse_html
from pipelines.algorithms.web.metadata import as_list, name_of, read_declared, read_metadata
from pipelines.algorithms.web.urls import registered_domain
from pipelines.stages.extract.child import html_of

try:
    import extruct
except ImportError:
    extruct = None

_QUOTES_AND_DASHES = str.maketrans('‘’‚‛´`“”„«»‹›"–—‐‑−', "''''''''''''''-----")
_SEPARATOR = re.compile(r"[,;/|&]|\s(?:and|und|et|y|e)\s")
_BY = re.compile(r"^(von|by|de|par|text|autor|author)\b:?\s+")
_DAY = re.compile(r"(\d{4})-(\d\d?)[-.](\d\d?)")


def normalize_text(value: Any) -> str:
    text = unicodedata.normalize("NFKC", value or "").casefold().translate(_QUOTES_AND_DASHES)
    return " ".join(text.split())


def set_of_names(value: Any) -> frozenset[str]:
    texts = [_BY.sub("", normalize_text(text)) for text in as_list(value)]
    names = [" ".join(re.findall(r"\w+", name)) for text in texts for name in _SEPARATOR.split(text)]
    return frozenset(filter(None, names))


def day(value: Any) -> tuple[int, ...]:
    match = _DAY.match(value or "")
    return tuple(map(int, match.groups())) if match else ()


FIELDS: dict[str, Callable[[Any], Any]] = {
    "title": normalize_text, "author": set_of_names, "date": day, "sitename": normalize_text
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Page:
    url: str
    html: str
    truth: dict[str, Any]

    @property
    def half(self) -> str:
        domain = registered_domain(self.url) or self.url
        return "AB"[hashlib.sha256(domain.encode()).digest()[0] % 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--step", type=int, default=10, help="measure the speed on every Nth page of wcxb-dev")
    options = parser.parse_args()
    folder = options.data / "pages"
    if not (folder / "trafilatura-eval").is_dir():
        print(f"skipped: {folder / 'trafilatura-eval'} does not exist; name the data with --data or WEBTEXT_TEST_DATA")
        return
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # the parsers warn about malformed pages
    pages = list(read_pages(folder / "trafilatura-eval"))
    print(
        f"{len(pages)} pages of trafilatura-eval; right answers of all annotations, of those with a value, and answers"
    )
    print("where the annotation is empty, by half")
    readers: dict[str, Callable[[Page], dict[str, Any]]] = {"webtext": read_webtext, "trafilatura": read_trafilatura}
    readers["htmldate"] = read_htmldate
    if extruct is not None:
        readers["extruct"] = read_extruct
    for name, reader in readers.items():
        report_accuracy(name, pages, reader)
    report_speed(folder / "wcxb-dev", options.step)


def read_pages(folder: Path) -> Iterator[Page]:
    for name, truth in json.loads((folder / "annotations.json").read_text(encoding="utf-8")).items():
        yield Page(truth["url"], read_html(folder / "html" / f"{name}.html.gz"), truth)


def read_html(path: Path) -> str:
    return (html_of(gzip.decompress(path.read_bytes()), None) or b"").decode()


def read_webtext(page: Page) -> dict[str, Any]:
    metadata = read_metadata(read_declared(parse_html(page.html).tree), page.url)
    return {
        "title": metadata.title,
        "author": metadata.author,
        "date": metadata.published,
        "sitename": metadata.site_name,
    }


def read_trafilatura(page: Page) -> dict[str, Any]:
    metadata = extract_metadata(trafilatura.load_html(page.html), page.url)
    return {name: getattr(metadata, name) for name in FIELDS}


def read_htmldate(page: Page) -> dict[str, Any]:
    return {"date": htmldate.find_date(page.html, url=page.url, original_date=True)}


def read_extruct(page: Page) -> dict[str, Any]:
    try:
        syntaxes = ["json-ld", "opengraph", "microdata"]
        objects = extruct.extract(page.html, base_url=page.url, syntaxes=syntaxes, uniform=True, errors="ignore")
    except Exception:  # noqa: BLE001 - it fails on some malformed pages
        return {}
    items = [*objects.get("json-ld", []), *objects.get("microdata", []), *objects.get("opengraph", [])]
    flat = [inner for item in items for inner in (item.get("@graph") or [item]) if isinstance(inner, dict)]

    def first(*names: str) -> Any:
        return next((item[name] for name in names for item in flat if item.get(name)), None)

    return {
        "title": name_of(first("headline", "og:title"), {}),
        "author": [name_of(author, {}) for author in as_list(first("author", "article:author"))],
        "date": name_of(first("datePublished", "article:published_time"), {}),
        "sitename": name_of(first("og:site_name", "publisher"), {}),
    }


def report_accuracy(name: str, pages: list[Page], reader: Callable[[Page], dict[str, Any]]) -> None:
    version = "" if name == "webtext" else f" {importlib.metadata.version(name)}"
    print(f"\n{name}{version}")
    answers = [reader(page) for page in pages]
    for field, normalize in FIELDS.items():
        if not any(field in answer for answer in answers):
            continue
        for half in ("A", "B", "AB"):
            chosen = [
                (normalize(page.truth[field]), normalize(answer.get(field)))
                for page, answer in zip(pages, answers, strict=True)
                if page.truth.get(field) is not None and page.half in half
            ]
            right = sum(truth == answer for truth, answer in chosen)
            valued = [truth == answer for truth, answer in chosen if truth]
            false = sum(bool(answer) for truth, answer in chosen if not truth)
            print(
                f"  {field:8} {half:2} {right}/{len(chosen)} = {right / len(chosen):.3f}, "
                f"{sum(valued)}/{len(valued)} = {sum(valued) / len(valued):.3f}, {false}/{len(chosen) - len(valued)}"
            )


def report_speed(folder: Path, step: int) -> None:
    """Print processor time per page: of our parser and our metadata, and of trafilatura's on its own tree."""
    times: dict[str, list[float]] = {"webtext parse": [], "webtext metadata": [], "trafilatura metadata": []}
    for path in sorted((folder / "html").glob("*.html.gz"))[::step]:
        html = read_html(path)
        start = time.process_time()
        tree = parse_html(html).tree
        parsed = time.process_time()
        read_metadata(read_declared(tree), None)
        times["webtext parse"].append(parsed - start)
        times["webtext metadata"].append(time.process_time() - parsed)
        if (document := trafilatura.load_html(html)) is not None:
            start = time.process_time()
            extract_metadata(document)
            times["trafilatura metadata"].append(time.process_time() - start)
    print("\nprocessor time per page of wcxb-dev, without parsing")
    for name, seconds in times.items():
        milliseconds = [value * 1000 for value in seconds]
        print(
            f"  {name}: median {statistics.median(milliseconds):.2f} ms, mean {statistics.mean(milliseconds):.2f} ms, "
            f"maximum {max(milliseconds):.0f} ms ({len(milliseconds)} pages)"
        )


if __name__ == "__main__":
    main()

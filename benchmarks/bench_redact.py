"""Measures `filter --redact`: precision and recall by kind on annotated real texts, and speed.

    python benchmarks/bench_redact.py [--data FOLDER] [--errors] [--speed]

FOLDER contains pages/ and text/docs.jsonl.zst (default: $WEBTEXT_TEST_DATA). redact.json has the annotations, without
text: for each document of FOLDER the beginning of the SHA-256 of its text, and by kind the spans that are personal
data, in characters; `held_out` if nobody looked at it before the rules were done.
Of pages, the text is what a browser shows. An annotated span is found if all of its letters and digits are replaced;
a match is right if it overlaps an annotated span. `FineWeb` are the regular expressions that its authors describe
(arXiv 2406.17557): addresses as in RFC 5322, in lower case, and four numbers up to 255, of the public Internet.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import ipaddress
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from selectolax.lexbor import LexborHTMLParser

from pipelines.algorithms.quality.redaction import _FINDERS, KINDS, redact_texts
from pipelines.storage.compression import open_decompressed

ANNOTATIONS = Path(__file__).with_name("redact.json")
Span = tuple[int, int]
Spans = list[Span]
Texts = dict[str, str]
Find = Callable[[str, str], Spans]

_ATOM = r"[a-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[0-9]{1,2})"
FINEWEB = {
    "email": re.compile(rf"\b{_ATOM}(?:\.{_ATOM})*@(?:{_LABEL}\.)+{_LABEL}"),
    "ip": re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WEBTEXT_TEST_DATA", ".")))
    parser.add_argument("--errors", action="store_true", help="also print what was missed and what was wrong")
    parser.add_argument("--speed", action="store_true", help="also measure MB/s of all texts, by kind")
    options = parser.parse_args()
    texts = dict(read_texts(options.data))
    annotations = json.loads(ANNOTATIONS.read_text())
    for kind in KINDS:
        print_quality(f"{kind}, webtext", kind, find_webtext, texts, annotations, options.errors)
        if kind in FINEWEB:
            print_quality(f"{kind}, FineWeb", kind, find_fineweb, texts, annotations, options.errors)
    held_out = {key: document for key, document in annotations.items() if "held_out" in document}
    print_quality("phone, webtext, held out", "phone", find_webtext, texts, held_out, options.errors)
    if options.speed:
        print_speed("visible text of pages", [text for key, text in texts.items() if not key.startswith("docs/")])
        print_speed("technical documents", [text for key, text in texts.items() if key.startswith("docs/")])


def read_texts(data: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of all documents."""
    for name in ("wcxb-dev", "trafilatura-eval"):
        for path in sorted((data / "pages" / name / "html").glob("*.gz")):
            yield f"{name}/{path.name.removesuffix('.html.gz')}", visible_text(gzip.decompress(path.read_bytes()))
    with open_decompressed(str(data / "text" / "docs.jsonl.zst")) as stream:
        for record in map(json.loads, stream):
            yield f"docs/{record['id']}", record["text"]


def visible_text(html: bytes) -> str:
    tree = LexborHTMLParser(html.decode(errors="replace"))
    tree.strip_tags(["script", "style", "noscript", "template", "svg", "head"])
    lines = tree.body.text(separator="\n").split("\n") if tree.body else []
    return "\n".join(filter(None, (re.sub(r"[ \t\r\f]+", " ", line).strip() for line in lines)))


def find_webtext(kind: str, text: str) -> Spans:
    return [(match.start, match.end) for match in _FINDERS[kind](text)]


def find_fineweb(kind: str, text: str) -> Spans:
    matches = [match.span() for match in FINEWEB[kind].finditer(text)]
    return [span for span in matches if kind != "ip" or is_public(text[slice(*span)])]


def is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def print_quality(name: str, kind: str, find: Find, texts: Texts, annotations: Any, shows_errors: bool) -> None:
    counts: Counter[str] = Counter()
    for key, document in annotations.items():
        if kind not in document["kinds"]:
            continue
        text = texts[key]
        if not hashlib.sha256(text.encode()).hexdigest().startswith(document["sha256"]):
            raise SystemExit(f"{key}: has another text than when it was annotated")
        expected, found = document["spans"].get(kind, []), find(kind, text)
        missed = [span for span in expected if not is_covered(text, span, found)]
        wrong = [span for span in found if not any(span[0] < end and start < span[1] for start, end in expected)]
        counts.update(documents=1, annotated=len(expected), missed=len(missed), matches=len(found), wrong=len(wrong))
        for problem, spans in (("missed", missed), ("wrong", wrong)):
            for start, end in spans if shows_errors else ():
                print(f"  {name} {problem} in {key}: {text[max(0, start - 30) : end + 20]!r}")
    recall, precision = 1 - counts["missed"] / counts["annotated"], 1 - counts["wrong"] / counts["matches"]
    print(f"{name}: precision {precision:.1%}, recall {recall:.1%}; {dict(counts)}")


def is_covered(text: str, span: Span, spans: Spans) -> bool:
    """Return whether all letters and digits of a span are in some of the others."""
    places = (place for place in range(*span) if text[place].isalnum())
    return all(any(start <= place < end for start, end in spans) for place in places)


def print_speed(name: str, texts: list[str]) -> None:
    column = pa.array(texts, pa.large_string())
    for kinds in (*((kind,) for kind in KINDS), KINDS):
        start = time.process_time()
        redact_texts(column, kinds)
        print(f"{name}, {', '.join(kinds)}: {column.nbytes / 1e6 / (time.process_time() - start):.0f} MB/s")


if __name__ == "__main__":
    main()

"""Which pages `webtext extract` drops because they are not documents: precision and recall.

    python benchmarks/bench_rejection.py [--data FOLDER] [--extractor NAME]

FOLDER contains `pages/wcxb-dev`, `pages/trafilatura-eval` and `reddit` (default: $WEBTEXT_TEST_DATA). Their pages were
labelled by reading (`rejection/labels.json`; all others are documents). `rejection/pages.txt` contains pages written in
the manner of well-known templates, and short documents about such pages. They are divided by the hash of their host: a
half for choosing the rules and one for reporting. Those with hosts below `.test` were written later.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import logging
import math
import os
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pipelines.stages.extract.child import RawPage, extract_text
from pipelines.stages.extract.extractors import EXTRACTORS
from pipelines.stages.extract.rejection import find_rejection
from pipelines.storage.compression import open_decompressed

FOLDER = Path(__file__).parent / "rejection"
DOCUMENT = "document"
WORDS = "river harbour old town stone bridge market morning people walked under rain toward hill garden road boats"


class LabelledPage(NamedTuple):
    part: str
    id: str
    label: str
    page: RawPage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--extractor", choices=tuple(EXTRACTORS), default="fast")
    parser.add_argument("--verbose", action="store_true", help="list the documents dropped and the other pages kept")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # the parsers warn about malformed pages
    outcomes: dict[str, Counter[str]] = {}
    for labelled in [*read_written(), *read_real(options.data / "pages")]:
        text = extract_text(EXTRACTORS[options.extractor], labelled.page)
        reason = text.rejection.reason if text.rejection else None if text.text else "empty_text"
        outcome = outcome_of(labelled.label, reason)
        outcomes.setdefault(labelled.part, Counter())[outcome] += 1
        if options.verbose and outcome in ("false drop", "kept", "other reason"):
            print(f"{outcome}: {labelled.part} {labelled.id} ({labelled.label}): {reason} {text.rejection}")
    for part, counts in outcomes.items():
        report(part, counts)
    posts, dropped = count_posts(options.data / "reddit" / "submissions-2013.ndjson.zst")
    print(f"posts of 5 to 300 words: {dropped} of {posts:,} dropped, at most {wilson(dropped, posts)[1]:.3%}")


def outcome_of(label: str, reason: str | None) -> str:
    """Return how a page with a label fares; a document without extracted text is not a matter of these rules."""
    if label == DOCUMENT:
        return "document" if reason in (None, "empty_text") else "false drop"
    if reason is None:
        return "kept"
    return "dropped" if reason in (label, "empty_text") else "other reason"


def report(part: str, counts: Counter[str]) -> None:
    dropped, false = counts["dropped"] + counts["other reason"], counts["false drop"]
    documents, others = counts["document"] + false, dropped + counts["kept"]
    print(f"{part}: {documents} documents, {false} dropped (at most {wilson(false, documents)[1]:.2%})")
    if others:
        print(
            f"  {others} others: {dropped} dropped, {counts['other reason']} of them by another reason; "
            f"precision {interval(dropped, dropped + false)}, recall {interval(dropped, others)}"
        )


def interval(successes: int, trials: int) -> str:
    low, high = wilson(successes, trials)
    return f"{successes / trials:.3f} ({low:.3f} to {high:.3f})" if trials else "unknown"


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson interval of a proportion at 95%."""
    if not trials:
        return 0.0, 1.0
    share, scale = successes / trials, 1 + z * z / trials
    center = share + z * z / (2 * trials)
    margin = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, (center - margin) / scale), min(1.0, (center + margin) / scale)


def read_written() -> Iterator[LabelledPage]:
    """Yield the pages of `pages.txt`: a line `@ LABEL LANGUAGE URL [-> FINAL URL]`, the title, and the body."""
    for block in (FOLDER / "pages.txt").read_text().strip().split("\n\n"):
        head, title, *lines = block.split("\n")
        _, label, language, url, *arrow = head.split(" ")
        body = re.sub(r"\{filler (\d+)\}", lambda match: filler(int(match[1])), "\n".join(lines))
        html = f'<!doctype html><html lang="{language}"><head><title>{title}</title></head><body>{body}</body></html>'
        yield LabelledPage(
            part_of(url), url, label, RawPage(html.encode(), None, arrow[-1] if arrow else url, requested_url=url)
        )


def part_of(url: str) -> str:
    host = urlsplit(url).hostname or ""
    if host.endswith(".test"):
        return "written later"
    return "written, for reporting" if hashlib.sha256(host.encode()).digest()[0] % 2 else "written, for choosing"


def filler(words: int) -> str:
    choice = random.Random(1)
    return " ".join(choice.choice(WORDS.split()) + "." * (number % 14 == 13) for number in range(words))


def read_real(folder: Path) -> Iterator[LabelledPage]:
    labels = json.loads((FOLDER / "labels.json").read_text())
    for collection, ids_of_label in labels.items():
        label_of = {id: label for label, ids in ids_of_label.items() for id in ids}
        for path in sorted((folder / collection / "html").glob("*.html.gz")):
            id = path.name.removesuffix(".html.gz")
            page = RawPage(gzip.decompress(path.read_bytes()), None, None)
            yield LabelledPage(collection, id, label_of.get(id, DOCUMENT), page)


def count_posts(path: Path) -> tuple[int, int]:
    """Return the number of short posts of Reddit, all of them documents, and how many of them are rejected."""
    posts = dropped = 0
    if not path.exists():
        return 0, 0
    with open_decompressed(str(path)) as stream:
        for line in stream:
            post = json.loads(line)
            if 5 <= len(post["selftext"].split()) <= 300:
                posts += 1
                dropped += find_rejection(post["title"], post["selftext"], b"") is not None
    return posts, dropped


if __name__ == "__main__":
    main()

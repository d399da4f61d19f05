"""Measures the quality classifier: ROC AUC by cross-validation on real texts, and the speed of scores and of training.

    python benchmarks/bench_quality.py [--data FOLDER]

FOLDER contains pages/wcxb-dev and text/docs.jsonl.zst (default: $WEBTEXT_TEST_DATA). Each fifth of the documents is
scored by a model of the others; the two texts of a page are in the same fifth. `counts` has word counts as features,
at the best of three learning rates.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from selectolax.lexbor import LexborHTMLParser

from pipelines.progress import Silent
from pipelines.stages.filter import quality
from pipelines.storage.compression import open_decompressed

FOLDS = 5
COUNT_RATES = (0.001, 0.003, 0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WEBTEXT_TEST_DATA", ".")))
    data = parser.parse_args().data
    pages = list(read_pages(data / "pages" / "wcxb-dev"))
    articles = [main for kind, main, _ in pages if kind == "article"]
    others = [main for kind, main, _ in pages if kind != "article"]
    main_texts, visible = (
        articles + others,
        [text for _, _, text in sorted(pages, key=lambda page: page[0] != "article")],
    )
    with open_decompressed(str(data / "text" / "docs.jsonl.zst")) as stream:
        records = [record for record in map(json.loads, stream) if record["source"] in ("peps", "rust-rfcs")]
    for name, good, against in (
        ("articles / other kinds of pages, main text", articles, others),
        ("main text / visible text of the same pages", main_texts, visible),
        ("main text of articles / visible text of all pages", articles, visible),
        ("PEPs and Rust RFCs / articles", [record["text"] for record in records], articles),
    ):
        sides = [list(words_of(texts)) for texts in (good, against)]
        print(f"{name}: {len(good)} / {len(against)}")
        print(f"  {cross_validate(sides)}")
        scale, rate = quality._feature_scale, quality._LEARNING_RATE
        quality._feature_scale = lambda sizes: np.ones(len(sizes))
        for count_rate in COUNT_RATES:
            quality._LEARNING_RATE = count_rate
            print(f"  counts, rate {count_rate}: {cross_validate(sides)}")
        quality._feature_scale, quality._LEARNING_RATE = scale, rate
    report_speed(sides, pa.array(main_texts * 4))


def read_pages(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, main text and visible text of pages with a main text of 300 characters or more."""
    for path in sorted((folder / "ground-truth").glob("*.json")):
        page = json.loads(path.read_text())
        main_text = page["ground_truth"].get("main_content") or ""
        if len(main_text) >= 300:
            html = gzip.decompress((folder / "html" / f"{path.stem}.html.gz").read_bytes())
            tree = LexborHTMLParser(html.decode("utf-8", "replace"))
            for node in tree.css("script, style, noscript"):
                node.decompose()
            yield (
                page["_internal"]["page_type"]["primary"],
                main_text,
                tree.body.text(separator=" ") if tree.body else "",
            )


def words_of(texts: list[str]) -> Iterator[quality._Buckets]:
    for buckets, bounds in quality._hash_words(pa.array(texts)):
        yield from np.split(buckets, bounds[1:-1])


def cross_validate(sides: list[list[quality._Buckets]]) -> str:
    results = []
    for fold in range(FOLDS):
        training = [[words for n, words in enumerate(side) if n % FOLDS != fold and len(words)] for side in sides]
        testing = [[words for n, words in enumerate(side) if n % FOLDS == fold and len(words)] for side in sides]
        weights = quality._train(training, 0, Silent())
        results.append(quality._evaluate(*(quality._predict(weights, texts) for texts in testing)))
    areas = [result["roc_auc"] for result in results]
    kept = [statistics.mean(result["kept"][side] for result in results) for side in ("good", "against")]
    return (
        f"ROC AUC {statistics.mean(areas):.3f} ({min(areas):.3f} to {max(areas):.3f}); "
        f"kept {kept[0]:.1%} of the first, {kept[1]:.1%} of the second"
    )


def report_speed(sides: list[list[quality._Buckets]], texts: pa.StringArray) -> None:
    start = time.process_time()
    model = quality.QualityModel(quality._train(sides, 0, Silent()), {})
    words = sum(len(words) for side in sides for words in side)
    print(f"training: {words / (time.process_time() - start) / 1e6:.1f} million words/s of CPU time")
    model.scores(texts[:1])
    rates = []
    for _ in range(5):
        start = time.process_time()
        model.scores(texts)
        rates.append(texts.nbytes / (time.process_time() - start) / 1e6)
    print(f"scores: {statistics.median(rates):.0f} MB/s of CPU time ({min(rates):.0f} to {max(rates):.0f})")


if __name__ == "__main__":
    main()

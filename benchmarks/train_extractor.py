"""Train the block classifier of `webtext extract --extractor fast`, and measure it by cross-validation.

    python benchmarks/train_extractor.py --data wcxb-dev trafilatura-eval --output data/extractor.npz
    python benchmarks/train_extractor.py --data wcxb-dev trafilatura-eval --cross-validate
    python benchmarks/train_extractor.py --data wcxb-dev --test trafilatura-eval

The data are folders with the pages of the Web Content Extraction Benchmark (`html`, `ground-truth`) and of
trafilatura's evaluation (`html`, `annotations.json`). In the cross-validation all pages of a registered domain are in
the same fold.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.extractor.pages import GROUPS, LabelledPage, normalize_spaces, read_pages, word_f1
from benchmarks.extractor.training import Recipe, save_model, train
from pipelines.algorithms.blocks.model import BlockModel, choose_blocks
from pipelines.algorithms.blocks.rendering import render_blocks
from pipelines.stages.extract.config import CONTENTS

_FOLDS = 5


def main() -> None:
    """Train, or cross-validate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders of labelled pages")
    parser.add_argument("--output", type=Path, help="the model to write")
    parser.add_argument("--cross-validate", action="store_true", help="measure on pages of other sites than trained on")
    parser.add_argument("--test", type=Path, nargs="+", help="train on the data, measure on these folders")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    recipe = Recipe(seed=options.seed)
    pages = read_pages([*options.data, *(options.test or [])])
    tested = [page for page in pages if page.folder in (options.test or [])]
    pages = [page for page in pages if page.folder not in (options.test or [])]
    if options.cross_validate:
        scores = Scores()
        for fold in range(_FOLDS):
            model = train(pages, [group for group in range(GROUPS) if group % _FOLDS != fold], recipe)
            scores.add(model, [page for page in pages if page.group % _FOLDS == fold])
            print(f"after fold {fold}: {scores.summary('main')}", flush=True)
        scores.report()
    if options.test or options.output:
        model = train(pages, range(GROUPS), recipe)
        if options.test:
            scores = Scores()
            scores.add(model, tested)
            scores.report()
        if options.output:
            save_model(str(options.output), model)
            print(f"{options.output}: {options.output.stat().st_size:,} bytes")


class Scores:
    """The F1 of pages by kind, and the segments in texts, for each choice of the content."""

    def __init__(self) -> None:
        self._f1: dict[str, dict[str, list[float]]] = {content: defaultdict(list) for content in CONTENTS}
        # Segments that are in the texts or not: wanted ones, unwanted ones.
        self._segments = {content: np.zeros((2, 2), np.int64) for content in CONTENTS}

    def add(self, model: BlockModel, pages: Sequence[LabelledPage]) -> None:
        """Measure the texts of pages."""
        for page in pages:
            for content in CONTENTS:
                keep = choose_blocks(model, page.page, page.url, content).keep
                text = render_blocks(page.page.segments, keep).text
                if page.kind is not None:
                    self._f1[content][page.kind].append(word_f1(text, page.content))
                text = normalize_spaces(text)
                for row, segments in enumerate((page.wanted, page.unwanted)):
                    for segment in segments:
                        self._segments[content][row, int(normalize_spaces(segment) in text)] += 1

    def summary(self, content: str) -> str:
        """Return the mean F1, and precision, recall and F1 of segments."""
        f1 = [score for scores in self._f1[content].values() for score in scores]
        (missing, wanted), (_, unwanted) = self._segments[content].tolist()
        precision, recall = wanted / max(1, wanted + unwanted), wanted / max(1, wanted + missing)
        segments = 2 * wanted / max(1, 2 * wanted + missing + unwanted)
        return (
            f"{content:8} {len(f1)} pages, F1 {np.mean(f1) if f1 else 0:.4f}; "
            f"segments {segments:.4f} ({precision=:.4f} {recall=:.4f})"
        )

    def report(self) -> None:
        """Print all figures."""
        for content in CONTENTS:
            print(self.summary(content))
            print("  ".join(f"{kind} {np.mean(scores):.3f}" for kind, scores in sorted(self._f1[content].items())))


if __name__ == "__main__":
    main()

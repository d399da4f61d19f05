"""Train the block classifier of `webtext extract --extractor fast`, and measure it by cross-validation.

    python benchmarks/train_extractor.py --data shared/data/pages/wcxb-dev --output data/extractor.npz
    python benchmarks/train_extractor.py --data shared/data/pages/wcxb-dev --cross-validate

The data are the pages of the Web Content Extraction Benchmark (folders `html` and `ground-truth`). In the
cross-validation all pages of a registered domain are in the same fold. Needs `pip install lightgbm`.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.extractor.pages import GROUPS, LabelledPage, read_wcxb, word_f1
from benchmarks.extractor.training import Recipe, train
from pipelines.algorithms.blocks.model import BlockModel, choose_blocks, save_model
from pipelines.algorithms.blocks.rendering import render_blocks

_FOLDS = 5


def main() -> None:
    """Train, or cross-validate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with html/ and ground-truth/")
    parser.add_argument("--output", type=Path, help="the model to write")
    parser.add_argument("--cross-validate", action="store_true", help="print the word F1 of pages by kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pages, recipe = read_wcxb(options.data), Recipe(seed=options.seed)
    if options.cross_validate:
        cross_validate(pages, recipe)
    if options.output:
        save_model(str(options.output), train(pages, range(GROUPS), recipe))
        print(f"{options.output}: {options.output.stat().st_size:,} bytes")


def cross_validate(pages: list[LabelledPage], recipe: Recipe) -> None:
    """Print the mean F1 of the pages of each fold, which the model of the other folds has not seen, and by kind."""
    scores: dict[str, list[float]] = defaultdict(list)
    for fold in range(_FOLDS):
        model = train(pages, [group for group in range(GROUPS) if group % _FOLDS != fold], recipe)
        of_fold = {page.kind: [] for page in pages}
        for page in pages:
            if page.group % _FOLDS == fold:
                of_fold[page.kind].append(word_f1(text_of(model, page), page.content))
        print(f"fold {fold}: {np.mean([score for kind in of_fold.values() for score in kind]):.4f}", flush=True)
        for kind, values in of_fold.items():
            scores[kind] += values
    print(f"all: {np.mean([score for values in scores.values() for score in values]):.4f}")
    for kind, values in sorted(scores.items()):
        print(f"{kind:15} {len(values):5} {np.mean(values):.3f}")


def text_of(model: BlockModel, page: LabelledPage) -> str:
    """Return the text of a page as the extractor writes it."""
    return render_blocks(page.page.segments, choose_blocks(model, page.page, page.url).keep)


if __name__ == "__main__":
    main()

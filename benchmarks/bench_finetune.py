"""Compares fine-tuning from a small pretrained model with fine-tuning from random weights.

    python benchmarks/bench_finetune.py --texts docs.jsonl.zst --output FOLDER [--steps 6000] [--seeds 3]

The task: from which of the sources in the file (field `source`) is a sentence? The model of 2 layers of width 64 is
pretrained on other documents than those of the task; sentences for validation are from other documents than those for
training. Prints by learning rate the accuracies of the seeds, and the mean of their paired differences with its 95%
interval. Everything else is the same for both.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
from pathlib import Path
from typing import Any

from pipelines.evaluation.records import read_records
from webtext_cli.main import main

MODEL = ("layers=2", "width=64", "heads=2", "context=64", "batch_size=16", "micro_batch=16", "learning_rate=0.004",
         "eval_every=500", "eval_blocks=64")  # fmt: skip
LEARNING_RATES, EPOCHS = (0.0003, 0.001, 0.003), 15
# Examples per label.
SIZES = {"train": 80, "dev": 200}
PRETRAINING_CHARACTERS = 900_000
# Student's t for a 95% interval, by degrees of freedom.
STUDENT_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}


def sentences(documents: list[dict[str, Any]], source: random.Random) -> list[str]:
    """Plain English sentences of 8 to 25 words, each once, in random order."""
    found: dict[str, None] = {}
    for document in documents:
        for text in re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", document["text"])):
            is_plain = (
                text.isascii() and text[:1].isupper() and text.endswith(".") and not set(text) & set("*#_[]|`<>{}=/$")
            )
            if 8 <= len(text.split(" ")) <= 25 and is_plain:
                found[text] = None
    order = list(found)
    source.shuffle(order)
    return order


def write_data(texts: str, folder: Path) -> None:
    """Write the documents for pretraining, and the files of the task."""
    source = random.Random(3)
    documents: dict[str, list[dict[str, Any]]] = {}
    for record in read_records([texts]):
        documents.setdefault(record.fields["source"], []).append(dict(record.fields))
    pretraining, pools = [], []
    for name in sorted(documents):
        group = documents[name]
        source.shuffle(group)
        count, characters = max(10, len(group) // 5), 0
        pools.append([sentences(part, source) for part in (group[: count * 2 // 3], group[count * 2 // 3 : count])])
        for document in group[count:]:
            if characters < PRETRAINING_CHARACTERS:
                pretraining.append({"id": document["id"], "text": document["text"][:20_000]})
                characters += len(document["text"])
    source.shuffle(pretraining)
    write_lines(folder / "pretraining.jsonl", pretraining)
    (folder / "source.toml").write_text(f"[finetune]\nlabels = {json.dumps(sorted(documents))}\n")
    for place, (name, count) in enumerate(SIZES.items()):
        rows = [{"text": text, "label": label} for label, pool in enumerate(pools) for text in pool[place][:count]]
        write_lines(folder / f"{name}.jsonl", rows)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(*arguments: object) -> None:
    if main(list(map(str, arguments))):
        raise SystemExit(f"failed: webtext {' '.join(map(str, arguments))}")


def accuracies(folder: Path) -> list[float]:
    values: list[float] = json.loads((folder / "results.json").read_text())["metrics"][0]["values"]
    return values


def sets(values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3, choices=[key + 1 for key in STUDENT_T])
    options = parser.parse_args()
    folder = options.output
    write_data(options.texts, folder)
    run("train-bpe", "-i", folder / "pretraining.jsonl", "-o", folder / "bpe", "--vocab-size", 1024, "-q")
    run("tokenize", "-i", folder / "pretraining.jsonl", "--tokenizer", folder / "bpe", "-o", folder / "tokens", "-q")
    computed = ("--device", "cpu", "--threads", 1, "-q")
    shape = sets((*MODEL, f"steps={options.steps}"))
    run("pretrain", "-i", folder / "tokens", "-o", folder / "model", "--preset", "tiny", *shape, *computed)
    files = f"{folder / 'source.toml'}={folder / 'train.jsonl'},{folder / 'dev.jsonl'}"
    for rate in LEARNING_RATES:
        results = {}
        for name, more in (("pretrained", ()), ("scratch", ("--from-scratch",))):
            output = folder / f"{name}-{rate}"
            run("finetune", "--model", folder / "model", "--task", files, "-o", output, "--seeds", options.seeds,
                *sets((f"epochs={EPOCHS}", f"learning_rate={rate}")), *more, *computed)  # fmt: skip
            results[name] = accuracies(output)
        differences = [a - b for a, b in zip(*results.values(), strict=True)]
        margin = STUDENT_T[len(differences) - 1] * statistics.stdev(differences) / math.sqrt(len(differences))
        print(
            f"learning rate {rate}: {results}, difference {statistics.mean(differences):.3f} ± {margin:.3f}", flush=True
        )

"""Tasks of multiple choice against lm-evaluation-harness: the same log-probabilities and right answers, from any form.

    python benchmarks/bench_choices.py --peers PYTHON --model DIR [--questions N]

PYTHON is an interpreter with `lm_eval==0.4.13`, torch, transformers and accelerate (default: $WEBTEXT_LM_EVAL), DIR a
folder of `webtext export`. Questions are invented, with what is found in the data sets: marks in brackets, white space
around texts, labels of letters and digits, characters beyond ASCII, and a right choice that is there twice. webtext
reads them in the forms of the authors and as Parquet, lm_eval with its own tasks as JSONL of the same rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bench_evaluate
import pyarrow as pa
import pyarrow.parquet as pq

_REPOSITORY = Path(__file__).resolve().parents[1]
_TOLERANCE = 1e-4
_WORDS = (
    "the a one old red small café river “stone” bird's drum, rain; window seven naïve cat paints opens under near "
    "because while without Ann Bob never often 12 3.5 km gate-post moon sand — slow tower"
).split()
Rows = list[dict[str, Any]]


class Form(NamedTuple):
    """A task: its rows on the hub, its files by their authors, and the task of lm_eval with what differs."""

    rows: Callable[[random.Random], dict[str, Any]]
    files: Callable[[Rows], dict[str, str]]
    lm_eval_file: str
    lm_eval: Mapping[str, Any] = {}
    variant: str = "paper"


def _text(draw: random.Random, least: int = 2, most: int = 9) -> str:
    return " ".join(draw.choices(_WORDS, k=draw.randint(least, most)))


def _choices(draw: random.Random, count: int) -> list[str]:
    texts = [_text(draw, 1, 6) for _ in range(count)]
    return texts if draw.random() < 0.9 else [*texts[:-1], texts[0]]


def _labeled(field: str, count: int, labels: Sequence[str] = ("ABCDE", "12345")) -> Callable[[random.Random], Any]:
    def row(draw: random.Random) -> dict[str, Any]:
        names = list(draw.choice(labels)[: count - (count == 4 and draw.random() < 0.1)])
        choices = {"text": _choices(draw, len(names)), "label": names}
        stem = _text(draw) + draw.choice(("?", "? ", ""))
        return {"id": str(draw.random()), field: stem, "choices": choices, "answerKey": draw.choice(names)}

    return row


def _stems(name: str, field: str) -> Callable[[Rows], dict[str, str]]:
    def files(rows: Rows) -> dict[str, str]:
        records = []
        for row in rows:
            texts, labels = row["choices"]["text"], row["choices"]["label"]
            choices = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
            question = {"stem": row[field], "choices": choices}
            records.append({"id": row["id"], "question": question, "answerKey": row["answerKey"]})
        return {name: _lines(records)}

    return files


def _hellaswag(draw: random.Random) -> dict[str, Any]:
    def marked() -> str:
        return (
            draw.choice(("", "", "[header] ", "[substeps] ", "[step]")) + _text(draw) + draw.choice((".", " [title] x"))
        )

    fields = {"activity_label": _text(draw, 1, 3), "ctx_a": marked(), "ctx_b": draw.choice(("", _text(draw, 1, 3)))}
    return {**fields, "endings": [marked() for _ in range(4)], "label": str(draw.randrange(4))}


def _piqa(draw: random.Random) -> dict[str, Any]:
    return {"goal": _text(draw), "sol1": _text(draw), "sol2": _text(draw) + " ", "label": draw.randrange(2)}


def _siqa(draw: random.Random) -> dict[str, Any]:
    answers = {f"answer{letter}": text for letter, text in zip("ABC", _choices(draw, 3), strict=True)}
    return {"context": _text(draw) + ".", "question": _text(draw) + "? ", **answers, "label": str(draw.randint(1, 3))}


def _winogrande(draw: random.Random) -> dict[str, Any]:
    sentence = f"{_text(draw)} {draw.choice(('_', '_ _'))} {_text(draw)}" + draw.choice((".", " ."))
    return {"sentence": sentence, "option1": "Ann", "option2": _text(draw, 1, 2), "answer": draw.choice("12")}


def _mmlu(draw: random.Random) -> dict[str, Any]:
    question = _text(draw) + draw.choice(("?", "\n" + _text(draw), "? "))
    choices = draw.choice((_choices(draw, 4), ["B", "A", "10", "None"]))
    return {"question": question, "subject": "astronomy", "choices": choices, "answer": draw.randrange(4)}


def _mmlu_files(rows: Rows) -> dict[str, str]:
    with tempfile.TemporaryFile("w+", newline="") as stream:
        csv.writer(stream).writerows([row["question"], *row["choices"], "ABCD"[row["answer"]]] for row in rows)
        stream.seek(0)
        return {"astronomy_test.csv": stream.read()}


def _with_labels(name: str, labels: str) -> Callable[[Rows], dict[str, str]]:
    def files(rows: Rows) -> dict[str, str]:
        records = [{key: value for key, value in row.items() if key != "label"} for row in rows]
        return {name: _lines(records), labels: "".join(f"{row['label']}\n" for row in rows)}

    return files


def _lines(records: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


_CLOZE = {
    "doc_to_text": "Question: {{question.strip()}}\nAnswer:",
    "doc_to_choice": "{{choices.text}}",
    "doc_to_target": "{{choices.label.index(answerKey)}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
_ARC = Form(_labeled("question", 4), _stems("test.jsonl", "question"), "arc/arc_easy.yaml")
_CSQA = _labeled("question", 5, ["ABCDE"])
FORMS = {
    "hellaswag": Form(
        _hellaswag,
        lambda rows: {"hellaswag_val.jsonl": _lines([{**row, "label": int(row["label"])} for row in rows])},
        "hellaswag/hellaswag.yaml",
    ),
    "arc-easy": _ARC,
    "arc-challenge": _ARC._replace(lm_eval_file="arc/arc_challenge.yaml"),
    "piqa": Form(_piqa, _with_labels("valid.jsonl", "valid-labels.lst"), "piqa/piqa.yaml"),
    "siqa": Form(_siqa, _with_labels("dev.jsonl", "dev-labels.lst"), "siqa/siqa.yaml"),
    "openbookqa": Form(
        _labeled("question_stem", 4, ["ABCD"]), _stems("test.jsonl", "question_stem"), "openbookqa/openbookqa.yaml"
    ),
    # lm_eval has no such task.
    "commonsenseqa": Form(
        _CSQA, _stems("dev_rand_split.jsonl", "question"), "commonsense_qa/default.yaml", _CLOZE
    ),
    "commonsenseqa.lm-eval": Form(
        _CSQA, _stems("dev_rand_split.jsonl", "question"), "commonsense_qa/default.yaml", {}, "lm-eval"
    ),
    "winogrande": Form(_winogrande, lambda rows: {"dev.jsonl": _lines(rows)}, "winogrande/default.yaml"),
    "mmlu": Form(
        _mmlu, _mmlu_files, "mmlu/continuation/mmlu_astronomy.yaml", {"fewshot_split": None, "fewshot_config": None}
    ),
}  # fmt: skip


def main() -> None:
    """Compare all tasks in both forms, and print a row per task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=os.environ.get("WEBTEXT_LM_EVAL"), help="an interpreter with lm_eval")
    parser.add_argument("--model", type=Path, required=True, help="folder of `webtext export`")
    parser.add_argument("--questions", type=int, default=100, help="per task")
    options = parser.parse_args()
    if not options.peers:
        print("lm_eval is not installed here; see bench_evaluate.py, then --peers PYTHON or $WEBTEXT_LM_EVAL")
        return
    with tempfile.TemporaryDirectory() as temporary:
        bench = bench_evaluate.Bench(options.peers, Path(), Path(temporary), 2)
        print(bench_evaluate.lm_eval_version(bench))
        sources = {name: write_sources(bench.work / name, form, options.questions) for name, form in FORMS.items()}
        other = run_lm_eval(bench, options.model.resolve(), {name: paths["lm_eval"] for name, paths in sources.items()})
        differing = 0
        for kind in ("authors", "hub"):
            print(f"\n{kind}: task, requests, largest difference, examples with another acc, another acc_norm")
            for variant in ("paper", "lm-eval"):
                named = {name: paths[kind] for name, paths in sources.items() if FORMS[name].variant == variant}
                own = run_webtext(bench, options.model.resolve(), named, variant, kind)
                differing += sum(describe(name, own[name], other[name]) for name in named)
    raise SystemExit(f"{differing} tasks differ" if differing else 0)


def write_sources(folder: Path, form: Form, count: int) -> dict[str, str]:
    """Write a task's questions for both programs, and return their paths as `--task` takes them."""
    folder.mkdir()
    draw = random.Random(folder.name)
    rows = [form.rows(draw) for _ in range(count)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "hub.parquet")
    (folder / "hub.jsonl").write_text(_lines(rows), "utf-8")
    files = form.files(rows)
    for name, content in files.items():
        (folder / name).write_text(content, "utf-8", newline="")
    authors = ",".join(str(folder / name) for name in files)
    return {"authors": authors, "hub": str(folder / "hub.parquet"), "lm_eval": str(folder / "hub.jsonl")}


def run_webtext(
    bench: bench_evaluate.Bench, model: Path, sources: Mapping[str, str], variant: str, kind: str
) -> dict[str, Rows]:
    """Return the examples of each task: `log_probs` per choice, `acc`, and `acc_norm` where there is one."""
    output = bench.work / f"{kind}-{variant}"
    command = [sys.executable, "-m", "webtext_cli", "evaluate", "-q", f"--model={model}", f"--output={output}"]
    command += ["--device=cpu", "--precision=float32", f"--variant={variant}"]
    command += [f"--task={name.partition('.')[0]}={path}" for name, path in sources.items()]
    done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return {
        name: [
            {
                "log_probs": [sum(part) for part in row["log_probs"]],
                "acc": row["accuracy"],
                "acc_norm": row.get("accuracy_normalized"),
                "cut": row["cut"],
            }
            for row in pq.read_table(output / name / "examples-00000.parquet").to_pylist()
        ]
        for name in sources
    }


def run_lm_eval(bench: bench_evaluate.Bench, model: Path, sources: Mapping[str, str]) -> dict[str, Rows]:
    """Return the same of lm_eval's own tasks, all evaluated by one process."""
    folder = bench.work / "tasks"
    folder.mkdir()
    for name, path in sources.items():
        data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": {"test": path}}}
        splits = {"test_split": "test", "training_split": None, "validation_split": None}
        file = bench_evaluate.lm_eval_folder(bench) / "tasks" / FORMS[name].lm_eval_file
        task = {"include": str(file), "task": f"bench_{name}", **data, **splits, **FORMS[name].lm_eval}
        # YAML includes JSON.
        (folder / f"{name}.yaml").write_text(json.dumps(task), "utf-8")
    names = ",".join(f"bench_{name}" for name in sources)
    command = [bench.peer, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={model},dtype=float32"]
    command += ["--device", "cpu", "--batch_size", "1", "--log_samples", "--include_path", str(folder)]
    command += ["--tasks", names, "--output_path", str(bench.work / "lm_eval")]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(bench.work / "hugging-face")}
    done = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    results = {}
    for name in sources:
        [samples] = (bench.work / "lm_eval").rglob(f"samples_bench_{name}_2*.jsonl")
        rows = sorted(map(json.loads, samples.read_text("utf-8").splitlines()), key=lambda row: int(row["doc_id"]))
        results[name] = [
            {
                "log_probs": [float(response[0][0]) for response in row["resps"]],
                "acc": bool(row["acc"]),
                "acc_norm": bool(row["acc_norm"]) if "acc_norm" in row else None,
            }
            for row in rows
        ]
    return results


def describe(name: str, own: Rows, other: Rows) -> bool:
    """Print how far two results of a task are apart, and return whether they differ."""
    pairs = list(zip(own, other, strict=True))
    if cut := sum(bool(row["cut"]) for row in own):
        raise SystemExit(f"{name}: {cut} examples do not fit into the model's context")
    gaps = [abs(a - b) for row, peer in pairs for a, b in zip(row["log_probs"], peer["log_probs"], strict=True)]
    unequal = [
        sum(row[metric] != peer[metric] for row, peer in pairs if peer[metric] is not None)
        for metric in ("acc", "acc_norm")
    ]
    shown = str(unequal[1]) if other[0]["acc_norm"] is not None else "–"
    rates = sum(row["acc"] for row in own) / len(own)
    print(f"{name:22} {len(gaps):6} {max(gaps):8.1e} {unequal[0]:4} {shown:>4}   accuracy {rates:.2f}", flush=True)
    return max(gaps) > _TOLERANCE or any(unequal)


if __name__ == "__main__":
    main()

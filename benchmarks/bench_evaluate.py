"""`webtext evaluate` against lm-evaluation-harness: the same log-probabilities and texts, and seconds on a CPU.

    python benchmarks/bench_evaluate.py --peers PYTHON [--data FOLDER] [--work FOLDER] [--only parity speed]
                                        [--tasks NAME ...] [--rounds N] [--scale F] [--threads N]

PYTHON is an interpreter with `lm_eval==0.4.13`, torch, transformers and accelerate (default: $WEBTEXT_LM_EVAL). FOLDER
of --data has `text/docs.jsonl.zst`, `text/books.jsonl.zst` and `gpt2_vocab` (default: $WEBTEXT_TEST_DATA); examples are
made from them, models are trained in --work and kept.

Parity: a model of 4 layers, width 256 and 60 steps; the largest difference per request, in nats. It continues all
texts alike, so they are also compared for random weights, which continue every text in another way. Speed: GPT-2 of
124M parameters after one step; in each round both evaluate a task, one after the other, lm_eval with batches of 1 and
of 8, of which the faster counts. Seconds are of whole processes, and of the evaluation alone, with a loaded model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import evaluate_models as models
import evaluate_shapes as shapes

_REPOSITORY = Path(__file__).resolve().parents[1]
_INSTALL = 'python -m venv peers && peers/bin/pip install "lm_eval[hf]==0.4.13" accelerate'
_TOLERANCE = 1e-4
_MAX_TOKENS = 24
_UNTIL = ["\nQ:", "."]
_LM_EVAL_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_MULTIPLE_CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{prompt}}",
    "doc_to_choice": "{{options}}",
    "doc_to_target": "{{gold}}",
    "metric_list": [{"metric": "acc"}],
}
_GENERATION = {
    "output_type": "generate_until",
    "doc_to_text": "{{prompt}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": _UNTIL, "max_gen_toks": _MAX_TOKENS, "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}
_CHOICE = {"kind": "choice", "prompt": "{prompt}", "choices": ["{options}"], "gold": "gold"}
_ANSWER = {"kind": "answer", "prompt": "{prompt}", "gold": "answer", "max_tokens": _MAX_TOKENS, "until": _UNTIL}
_PAGES = {"kind": "perplexity", "unit": "word-lm-eval", "document": "record", "text_field": "page"}


class Shape(NamedTuple):
    """A task: how its file is written, how many examples are compared and timed, and its protocol in both programs.

    lm_eval's is a file of its own tasks, changed by `lm_eval`; ours a task with a variant, or a table [task]. `bar` is
    the least ratio of seconds.
    """

    write: Callable[[Path, Path, int], None]
    compared: int
    timed: int
    lm_eval_file: str
    lm_eval: dict[str, Any]
    webtext: str | dict[str, Any]
    bar: float | None


SHAPES = {
    "lambada": Shape(
        shapes.write_lambada, 200, 240, "lambada/lambada_openai.yaml", {}, "lambada --variant=lm-eval", 1.3
    ),
    # Without lm_eval's de-tokenizer: it changes quotes and brackets of plain text.
    "wikitext": Shape(
        shapes.write_wikitext, 20, 8, "wikitext/wikitext.yaml", {"doc_to_target": "{{page}}"}, _PAGES, 1.3
    ),
    # lm_eval's wsc273 has no such line, and so scores two spaces after the candidate: its delimiter and the text's own.
    "winograd": Shape(
        shapes.write_winograd, 100, 100, "wsc273/default.yaml", {"target_delimiter": ""}, "winograd", None
    ),
    "race": Shape(shapes.write_race, 60, 20, "", _MULTIPLE_CHOICE, _CHOICE, None),
    "cbt": Shape(shapes.write_cbt, 20, 8, "", _MULTIPLE_CHOICE, _CHOICE, 3.0),
    "coqa": Shape(shapes.write_coqa, 4, 2, "", _GENERATION, _ANSWER, 3.0),
}


class Run(NamedTuple):
    """The seconds of a process, those of its evaluation, and per request the log-probability or the text.

    `cut` has the examples of requests whose context was cut, by the number of the request.
    """

    seconds: float
    inner_seconds: float
    results: list[float | str]
    cut: Mapping[int, int]


class Bench(NamedTuple):
    """Where everything is."""

    peer: str
    data: Path
    work: Path
    threads: int


def main() -> None:
    """Compare results, then seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(_REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--peers", default=os.environ.get("WEBTEXT_LM_EVAL"), help="an interpreter with lm_eval")
    parser.add_argument("--work", type=Path, help="folder for models and results, which is kept")
    parser.add_argument("--only", nargs="+", choices=("parity", "speed"), default=["parity", "speed"])
    parser.add_argument("--tasks", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the examples per timed task")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if not options.peers:
        print(f"lm_eval is not installed here: {_INSTALL}; then --peers peers/bin/python, or $WEBTEXT_LM_EVAL")
        return
    if not (options.data / "text").is_dir():
        print(f"{options.data}: has no folder text; name the test data with --data, or $WEBTEXT_TEST_DATA")
        return
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(options.peers, options.data, (options.work or Path(temporary)).resolve(), options.threads)
        bench.work.mkdir(parents=True, exist_ok=True)
        print(f"{lm_eval_version(bench)}, {options.threads} threads of {os.cpu_count()} cores", flush=True)
        if "parity" in options.only:
            for name in options.tasks:
                compare_results(bench, name)
        if "speed" in options.only:
            for name in options.tasks:
                compare_seconds(bench, name, options.rounds, options.scale)


def compare_results(bench: Bench, name: str) -> None:
    """Print the largest difference of a task's requests, and every request beyond the tolerance."""
    model, shape = models.parity_model(bench.data, bench.work), SHAPES[name]
    source = bench.work / f"{name}-{shape.compared}.jsonl"
    shape.write(bench.data, source, shape.compared)
    own = run_webtext(bench, name, source, model)
    other = run_lm_eval(bench, name, source, model, 1)
    describe_difference(name, own, other)
    if isinstance(own.results[0], str):
        model = models.random_model(bench.data, bench.work)
        own, other = run_webtext(bench, name, source, model), run_lm_eval(bench, name, source, model, 1)
        describe_difference(f"{name}, random weights", own, other)
    if name in ("wikitext", "race"):
        # A window of 1,024 tokens, or a long choice, has thousands of nats, which lm_eval adds up in float32.
        exact = run_lm_eval(bench, name, source, model, 1, "softmax_dtype=float64")
        describe_difference(f"{name}, lm_eval in float64 after the logits", own, exact)


def describe_difference(name: str, own_run: Run, other_run: Run) -> None:
    """Print how far results of two programs for the same requests are apart."""
    own, other = own_run.results, other_run.results
    if len(own) != len(other):
        raise SystemExit(f"{name}: {len(own)} requests, but {len(other)} of lm_eval")
    if isinstance(own[0], str):
        unequal = [number for number, pair in enumerate(zip(own, other, strict=True)) if pair[0] != pair[1]]
        lengths = [len(str(text)) for text in own]
        shown = f"{len(own)} texts ({len(set(own))} different ones) of {min(lengths)} to {max(lengths)} characters"
        print(f"{name}: {shown}; {len(unequal)} differ")
    else:
        gaps = [abs(float(a) - float(b)) for a, b in zip(own, other, strict=True)]
        whole = [number for number in range(len(gaps)) if number not in own_run.cut]
        unequal = [number for number in whole if gaps[number] > _TOLERANCE]
        largest = max(abs(float(other[number])) for number in whole)
        print(
            f"{name}: {len(whole)} requests of up to {largest:,.1f} nats; largest difference "
            f"{max(gaps[number] for number in whole):.1e}, median {statistics.median(gaps):.1e}; "
            f"{len(unequal)} above {_TOLERANCE:.0e}"
        )
        # lm_eval cuts the context of each choice by itself, webtext that of all choices of an example alike.
        if examples := set(own_run.cut.values()):
            equal = {own_run.cut[number] for number in own_run.cut if gaps[number] <= _TOLERANCE}
            print(f"  {len(examples)} examples with a cut context: a choice is equal in {len(equal)} of them")
    for number in unequal[:10]:
        print(f"  request {number}: {own[number]!r}, lm_eval {other[number]!r}")
    sys.stdout.flush()


def compare_seconds(bench: Bench, name: str, rounds: int, scale: float) -> None:
    """Print the seconds of a task in both programs, and the ratios."""
    model, shape = models.speed_model(bench.data, bench.work), SHAPES[name]
    count = max(1, round(shape.timed * scale))
    source = bench.work / f"{name}-{count}.jsonl"
    shape.write(bench.data, source, count)
    print(f"\n{name}: {source.read_text('utf-8').count(chr(10))} examples; load {os.getloadavg()[0]:.2f}", flush=True)
    runs: dict[str, list[Run]] = {}
    for number in range(rounds):
        methods: dict[str, Callable[[], Run]] = {
            "webtext": lambda: run_webtext(bench, name, source, model),
            "lm_eval": lambda: run_lm_eval(bench, name, source, model, 1),
            "lm_eval, batch 8": lambda: run_lm_eval(bench, name, source, model, 8),
        }
        # Each round starts with another one, so that none always follows the same one.
        order = list(methods)
        for method in order[number % 3 :] + order[: number % 3]:
            runs.setdefault(method, []).append(methods[method]())
    for method in methods:
        times = [(run.seconds, run.inner_seconds) for run in runs[method]]
        whole, inner = (statistics.median(column) for column in zip(*times, strict=True))
        shown = " ".join(f"{seconds:.1f}" for seconds, _ in times)
        print(f"  {method:17} {whole:7.1f} s, evaluation {inner:7.1f} s ({shown})")
    for label, index in (("whole processes", 0), ("evaluation", 1)):
        ratios = [
            min(plain[index], batched[index]) / own[index]
            for own, plain, batched in zip(*(runs[method] for method in methods), strict=True)
        ]
        bar = f"; bar {shape.bar}" if shape.bar else ""
        shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"  {label}: {statistics.median(ratios):.2f} times lm_eval ({shown}){bar}")
    describe_difference("  results", runs["webtext"][0], runs["lm_eval"][0])


def run_webtext(bench: Bench, name: str, source: Path, model: Path) -> Run:
    """Evaluate a task with `webtext evaluate`."""
    task = SHAPES[name].webtext
    with tempfile.TemporaryDirectory(dir=bench.work) as folder:
        if isinstance(task, str):
            protocol, *options = task.split()
            arguments = [f"--task={protocol}={source}", *options]
        else:
            table = {**task, "data": str(source)}
            path = Path(folder, f"{name}.toml")
            path.write_text("[task]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items()))
            arguments = [f"--task={path}"]
        command = [sys.executable, str(_REPOSITORY / "benchmarks" / "evaluate_timed.py"), "webtext", "evaluate", "-q"]
        command += [*arguments, f"--model={model}", f"--output={folder}/out", "--device=cpu", "--precision=float32"]
        seconds, inner = run_timed(command, bench, {"PYTHONPATH": str(_REPOSITORY)})
        [output] = (path.parent for path in Path(folder, "out").rglob("examples-*.parquet"))
        return Run(seconds, inner, *read_own(output, model, isinstance(task, dict) and "until" in task))


def read_own(output: Path, model: Path, is_generation: bool) -> tuple[list[float | str], dict[int, int]]:
    """Return the sum of the log-probabilities of each request, or the text up to where it ends, and `Run.cut`."""
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer

    if is_generation:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        answers = [row for path in sorted(output.glob("answers-*.parquet")) for row in pq.read_table(path).to_pylist()]
        texts = (tokenizer.decode(row["tokens"], skip_special_tokens=True) for row in answers)
        return [re.split("|".join(map(re.escape, _UNTIL)), text)[0] for text in texts], {}
    [path] = output.glob("examples-*.parquet")
    examples = pq.read_table(path).to_pylist()
    if not examples[0]["log_probs"]:
        return [-row["nats"] for row in examples], {}
    requests = [(row["example"], row["cut"], sum(part)) for row in examples for part in row["log_probs"]]
    cut = {number: example for number, (example, tokens, _) in enumerate(requests) if tokens}
    return [total for _, _, total in requests], cut


def run_lm_eval(bench: Bench, name: str, source: Path, model: Path, batch_size: int, *model_arguments: str) -> Run:
    """Evaluate a task with lm_eval."""
    shape = SHAPES[name]
    with tempfile.TemporaryDirectory(dir=bench.work) as folder:
        data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": {"test": str(source)}}}
        splits = {"test_split": "test", "training_split": None, "validation_split": None}
        task = {"task": f"bench_{name}", **data, **splits, **shape.lm_eval}
        if shape.lm_eval_file:
            task["include"] = str(lm_eval_folder(bench) / "tasks" / shape.lm_eval_file)
        Path(folder, "tasks").mkdir()
        # YAML includes JSON.
        Path(folder, "tasks", "task.yaml").write_text(json.dumps(task), "utf-8")
        command = [bench.peer, str(_REPOSITORY / "benchmarks" / "evaluate_timed.py"), "lm_eval", "--model", "hf"]
        arguments = ",".join((f"pretrained={model}", "dtype=float32", *model_arguments))
        command += ["--model_args", arguments, "--device", "cpu", "--batch_size", str(batch_size), "--log_samples"]
        command += ["--include_path", f"{folder}/tasks", "--tasks", f"bench_{name}", "--output_path", f"{folder}/out"]
        cache = {"HF_HOME": str(bench.work / "hugging-face")}
        seconds, inner = run_timed(command, bench, _LM_EVAL_ENVIRONMENT | cache)
        [path] = Path(folder, "out").rglob("samples_*.jsonl")
        return Run(seconds, inner, read_lm_eval(path), {})


def read_lm_eval(path: Path) -> list[float | str]:
    """Return the log-probability or text of each request."""
    rows = sorted(map(json.loads, path.read_text("utf-8").splitlines()), key=lambda row: int(row["doc_id"]))
    results: list[float | str] = []
    for row in rows:
        for response in row["resps"]:
            value = response[0]
            if row["arguments"]["gen_args_0"].get("arg_1", "").__class__ is dict:
                results.append(value)
            else:
                results.append(float(value[0] if isinstance(value, list) else value))
    return results


def run_timed(command: Sequence[str], bench: Bench, environment: dict[str, str]) -> tuple[float, float]:
    """Run a command of `evaluate_timed.py`; return the seconds of its process and of its evaluation."""
    threads = {"OMP_NUM_THREADS": str(bench.threads), "MKL_NUM_THREADS": str(bench.threads)}
    start = time.perf_counter()
    done = subprocess.run(
        command, env=os.environ | threads | environment, capture_output=True, text=True, check=False, cwd=bench.work
    )
    seconds = time.perf_counter() - start
    inner = re.findall(r"^evaluation seconds: ([\d.]+)$", done.stderr, re.MULTILINE)
    if done.returncode or not inner:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return seconds, float(inner[-1])


def lm_eval_folder(bench: Bench) -> Path:
    """Return the folder of the package."""
    return Path(ask(bench, "import importlib.util as u; print(u.find_spec('lm_eval').submodule_search_locations[0])"))


def lm_eval_version(bench: Bench) -> str:
    """Return the versions of lm_eval and of its libraries."""
    names = "('lm_eval', 'torch', 'transformers', 'accelerate')"
    return ask(
        bench, f"from importlib.metadata import version as v; print(*(n + ' ' + v(n) for n in {names}), sep=', ')"
    )


def ask(bench: Bench, program: str) -> str:
    """Return what a Python program prints in the interpreter with lm_eval."""
    done = subprocess.run([bench.peer, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{bench.peer}: {done.stderr.strip().splitlines()[-1:]}; install it: {_INSTALL}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()

"""The benchmarks that are known by name: the table, names, the paper's figures, and loading them without a network."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.benchmark_sets import registry
from pipelines.benchmark_sets.benchmarks import Benchmark, parse_benchmarks, read_example_batches
from pipelines.benchmark_sets.registry import Entry, PaperFigures, find_entry, known_benchmarks
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.format import loose_name

needs_datasets = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None,
    reason="the datasets library is not installed: pip install '.[benchmarks]'",
)

TABLE_6 = {
    "ptb": (2.67, 0.88),
    "wikitext-2": (0.66, 1.63),
    "enwik8": (7.50, 6.31),
    "text8": (2.34, 3.94),
    "wikitext-103": (9.09, 2.42),
    "1bw": (13.19, 3.75),
}


def test_the_registry_contains_the_papers_table_6() -> None:
    held = {entry.name: entry.paper for entry in known_benchmarks().values() if entry.paper is not None}
    assert {name: (paper.own_train, paper.webtext) for name, paper in held.items()} == TABLE_6
    assert round(sum(own for own, _ in TABLE_6.values()) / 6, 1) == 5.9
    assert round(sum(webtext for _, webtext in TABLE_6.values()) / 6, 1) == 3.2


def test_every_entry_is_complete_and_names_are_unique() -> None:
    seen: dict[str, str] = {}
    for entry in known_benchmarks().values():
        assert entry.splits
        assert entry.dataset.count("/") == 1
        assert entry.homepage.startswith("http")
        assert entry.license
        assert entry.field
        if entry.files is not None:
            assert entry.files.format(split="test").startswith(f"hf://datasets/{entry.dataset}@")
        for name in (entry.name, *entry.aliases):
            assert seen.setdefault(loose_name(name), entry.name) == entry.name
    asked = "lambada cbt winograd wsc273 coqa squad race nq_open gsm8k hellaswag arc-easy arc-challenge piqa boolq"
    asked += (
        " openbookqa winogrande mmlu truthfulqa humaneval mbpp triviaqa cnn_dailymail snli wmt14 lm1b natural-questions"
    )
    assert [name for name in asked.split() if find_entry(name) is None] == []


def test_names_are_matched_loosely() -> None:
    for name in ("wikitext-103", "WikiText103", "wikitext_103", "WIKITEXT 103"):
        assert find_entry(name) is known_benchmarks()["wikitext-103"]
    assert find_entry("lm1b") is find_entry("1BW") is known_benchmarks()["1bw"]
    assert find_entry("nothing-such") is None
    entry = find_entry("Wikitext2")
    assert entry is not None
    figures = entry.paper
    assert figures is not None
    assert dataclasses.asdict(figures) == {"name": "WikiText-2", "own_train": 0.66, "webtext": 1.63}


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        UsageError,
        match=r"'wikitxt' is neither of the form .*\(did you mean wikitext.*\?\).*--list-benchmarks",
    ):
        parse_benchmarks(["wikitxt"])
    with pytest.raises(UsageError, match="gsm8k has no split 'valid'; it has: test, train"):
        parse_benchmarks(["gsm8k:valid"])
    with pytest.raises(UsageError, match="gsm8k/test is named twice"):
        parse_benchmarks(["gsm8k", "GSM-8K:test"])


def test_a_known_name_implies_its_split_and_field() -> None:
    def parts(value: str) -> tuple[str, str]:
        (benchmark,) = parse_benchmarks([value])
        return benchmark.label, benchmark.field

    assert parts("gsm8k") == ("gsm8k/test", "question+answer")
    assert parts("lm1b:train") == ("1bw/train", "text")
    assert parts("coqa") == ("coqa/validation", "story")
    assert parts("wikitext-2/valid") == ("wikitext-2/validation", "text")
    assert parts("mmlu:dev")[0] == "mmlu/dev"
    assert parts("mmlu:valid")[0] == "mmlu/validation"
    assert parts("mbpp/prompt")[0] == "mbpp/prompt"
    assert parts("squad:train:context") == ("squad/train", "context")


def test_the_papers_figures_belong_to_test_sets(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("x\n")

    def has_figures(left: str) -> bool:
        (benchmark,) = parse_benchmarks([f"{left}={tmp_path / 'b.txt'}"])
        return benchmark.paper is not None

    assert [has_figures(left) for left in ("wikitext2", "LM1B/test", "ptb:test")] == [True] * 3
    assert [has_figures(left) for left in ("wikitext2:train", "ptb/valid", "gsm8k", "mine")] == [False] * 4
    (benchmark,) = parse_benchmarks(["wikitext-103"])
    assert benchmark.paper is not None


def test_known_benchmarks_have_source_splits_license_and_figures() -> None:
    entries = known_benchmarks()
    assert entries["wikitext-2"].source == "Salesforce/wikitext (wikitext-2-v1)"
    assert entries["wikitext-2"].splits == ("test", "validation", "train")
    assert entries["wikitext-2"].paper == PaperFigures("WikiText-2", own_train=0.66, webtext=1.63)
    assert entries["gsm8k"].paper is None
    assert (entries["gsm8k"].field, entries["gsm8k"].license) == ("question+answer", "MIT")


def test_the_docs_match_the_registry() -> None:
    page = (Path(__file__).parents[2] / "docs" / "overlap-benchmarks.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert len(rows) == len(known_benchmarks())
    for row, entry in zip(rows, known_benchmarks().values(), strict=True):
        paper = "" if entry.paper is None else f"{entry.paper.own_train:.2f}, {entry.paper.webtext:.2f}"
        source = entry.dataset if entry.config is None else f"{entry.dataset} `{entry.config}`"
        cells = [f"[{entry.name}]({entry.homepage})", ", ".join(entry.aliases), source, ", ".join(entry.splits)]
        assert row == f"| {' | '.join([*cells, f'`{entry.field}`', entry.license, paper])} |"


def test_without_the_library_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    registry._load.cache_clear()
    (benchmark,) = parse_benchmarks(["wikitext-103"])
    with pytest.raises(WebtextError) as caught:
        list(read_example_batches(benchmark, "auto"))
    assert str(caught.value) == (
        "--benchmark wikitext-103: a download needs datasets; run: pip install 'webtext-kit[benchmarks]', or "
        "download the file (https://huggingface.co/datasets/Salesforce/wikitext) and use --benchmark wikitext-103=PATH"
    )
    with pytest.raises(WebtextError, match="a download needs datasets"):
        _ = benchmark.fingerprint


def test_names_are_looked_up_without_the_library() -> None:
    code = "import sys; from pipelines.benchmark_sets.benchmarks import parse_benchmarks as p; p(['1bw', 'gsm8k'])"
    code += "; assert not {'datasets', 'huggingface_hub', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


RECORDS = [{"question": f"what is {number}?", "answers": {"text": ["a", str(number)]}} for number in range(3000)]


@pytest.fixture
def local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Entry]]:
    """A registry of data sets that the real library reads from local files, in a cache of its own."""
    folder = tmp_path / "sets"
    folder.mkdir()
    for split, records in (("train", RECORDS[:10]), ("test", RECORDS)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        pq.write_table(pa.Table.from_pylist(records), folder / f"{split}.parquet")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    registry._load.cache_clear()
    common = {
        "splits": ("test", "train"),
        "field": "question+answers.text",
        "license": "none",
        "homepage": "http://x.test",
    }
    entries = [
        Entry(name="as-json", title="A", dataset="own/a", files=f"{folder}/{{split}}.jsonl", format="json", **common),  # type: ignore[arg-type]
        Entry(name="as-parquet", title="B", dataset="own/b", files=f"{folder}/{{split}}.parquet", **common),  # type: ignore[arg-type]
        Entry(name="gone", title="C", dataset="own/c", files=f"{folder}/none-{{split}}.parquet", **common),  # type: ignore[arg-type]
    ]
    yield {entry.name: entry for entry in entries}
    registry._load.cache_clear()


def _one(value: str, known: dict[str, Entry]) -> Benchmark:
    (benchmark,) = parse_benchmarks([value], known)
    return benchmark


@needs_datasets
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("name", ["as-json", "as-parquet"])
def test_the_real_library_matches_local_files(local_hub: dict[str, Entry], name: str) -> None:
    benchmark = _one(name, local_hub)
    batches = list(read_example_batches(benchmark, "auto"))
    texts = [text for batch in batches for text in batch.texts.to_pylist()]
    assert texts == [f"{record['question']}\na\n{number}" for number, record in enumerate(RECORDS)]
    dataset = local_hub[name].dataset
    assert [place for batch in batches for place in batch.places] == [
        f"{dataset}/test:{row}" for row in range(1, len(RECORDS) + 1)
    ]
    ((_, document, places),) = read_example_batches(benchmark, "document")
    assert (document.to_pylist(), places) == (["\n".join(texts)], [f"{dataset}/test:1"])
    lines = sum(len(batch.texts) for batch in read_example_batches(benchmark, "line"))
    assert lines == 3 * len(RECORDS)
    train = _one(f"{name}:train", local_hub)
    assert benchmark.fingerprint == _one(name, local_hub).fingerprint != train.fingerprint
    with pytest.raises(
        InputError, match=rf"{dataset}/test: has no text 'answer'; its texts are: question, answers\.text"
    ):
        list(read_example_batches(_one(f"{name}:answer", local_hub), "auto"))


@needs_datasets
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_missing_dataset_is_a_one_line_error(local_hub: dict[str, Entry]) -> None:
    with pytest.raises(InputError) as caught:
        list(read_example_batches(_one("gone", local_hub), "auto"))
    assert str(caught.value).startswith("--benchmark gone: cannot load own/c/test from the Hugging Face hub (")
    assert str(caught.value).endswith("download the file (http://x.test) and use --benchmark gone=PATH")
    assert "\n" not in str(caught.value)


@needs_datasets
@pytest.mark.parametrize(
    ("name", "switch", "value"),
    [
        ("wikitext-103", "HF_HUB_OFFLINE", "1"),
        ("wikitext-103", "HF_DATASETS_OFFLINE", "1"),
        ("lm1b", "HF_HUB_OFFLINE", "1"),
        ("lm1b", "HF_ENDPOINT", "http://127.0.0.1:9"),
    ],
)
def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, name: str, switch: str, value: str) -> None:
    """In a process of its own, since the library reads its switches when it is imported."""
    code = (
        "import sys\n"
        "from pipelines.errors import InputError\n"
        "from pipelines.benchmark_sets.benchmarks import parse_benchmarks, read_example_batches\n"
        "try:\n"
        "    list(read_example_batches(parse_benchmarks([sys.argv[1]])[0], 'auto'))\n"
        "except InputError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, switch: value, "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, name], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.count("\n") == 1
    assert "from the Hugging Face hub (" in done.stdout
    assert "check the network, or download the file (" in done.stdout
    assert "Traceback" not in done.stderr

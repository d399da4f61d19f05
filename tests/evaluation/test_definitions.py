"""How tasks, their splits, fields and files are named on the command line."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from own_task import run_task
from small_model import write_model

from pipelines.benchmark_sets import registry
from pipelines.benchmark_sets.registry import Entry, find_entry
from pipelines.errors import UsageError, WebtextError
from pipelines.evaluation import definitions
from pipelines.evaluation.definitions import TASK_NAMES, find_task, parse_tasks, read_task
from pipelines.evaluation.detokenizers import DETOKENIZERS
from pipelines.evaluation.records import read_records
from webtext_cli.main import main

# The texts of these are not on the hub, or are the corpus's own.
_LOCAL_ONLY = {"dprd", "story-cloze", "webtext", "recitation"}


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    path = tmp_path / "passages.jsonl"
    rows = [{"text": f"passage {number} ends here", "body": f"another {number}"} for number in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_two_splits_of_a_task_have_results_of_their_own(tmp_path: Path, passages: Path) -> None:
    model = write_model(tmp_path / "model")
    out = tmp_path / "out"
    arguments = [f"--task=lambada/{split}={passages}" for split in ("test", "valid")]
    code = main(["evaluate", "--model", model, "--output", str(out), "--variant", "word", "-q", *arguments])
    assert code == 0
    results = json.loads((out / "results.json").read_text())["tasks"]
    assert {label: (result["task"], result["split"]) for label, result in results.items()} == {
        "lambada-test.word": ("lambada/test", "test"),
        "lambada-valid.word": ("lambada/valid", "valid"),
    }
    # The paper's figures are those of its own protocol.
    assert [result["paper"] for result in results.values()] == [{}, {}]
    assert "lambada/valid (word)" in (out / "evaluation.html").read_text()


def test_splits_and_fields_are_named_as_for_the_overlap_report(passages: Path) -> None:
    names = ("lambada", "lambada/valid", "LAMBADA:dev", "lambada:body", "lambada/extra:body")
    tasks = [task for name in names for task in parse_tasks([f"{name}={passages}"], "paper")]
    assert [(task.label, task.definition.values("paper")["text_field"]) for task in tasks] == [
        ("lambada", "text"),
        ("lambada-valid", "text"),
        ("lambada-dev", "text"),
        ("lambada", "body"),
        ("lambada-extra", "body"),
    ]
    # The paper scored the validation split of CBT.
    cbt = [parse_tasks([f"{name}={passages}"], "paper")[0] for name in ("cbt-cn", "cbt-cn:dev", "cbt-cn/test")]
    assert [bool(task.definition.paper) for task in cbt] == [True, True, False]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("lambada/=x", "--task: 'lambada/=x' is not of the form NAME=PATH, NAME/SPLIT=PATH or NAME:FIELD=PATH"),
        ("lambada/test:train=x", "--task: 'lambada/test:train' names two splits"),
        ("winograd:body={path}", "--task: winograd reads several fields, so 'body' cannot be named"),
        ("story-cloze", "--task story-cloze: name its file, --task story-cloze=PATH"),
        ("lambada:valid", "--task: lambada-openai has no split 'valid'; it has: test"),
        ("enwik8", "--task: enwik8 has no split 'test'; it has: train"),
    ],
)
def test_a_name_of_another_form_is_refused(passages: Path, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_tasks([value.format(path=passages)], "paper")


def test_tasks_have_the_data_sets_of_the_overlap_report() -> None:
    tasks = [task for task in map(read_task, TASK_NAMES) if task.kind]
    known = {task.name: find_entry(task.benchmark or "") for task in tasks}
    assert {name for name, entry in known.items() if entry is None} == _LOCAL_ONLY
    assert known["lambada"] is not None
    assert known["lambada"].dataset == "EleutherAI/lambada_openai"
    for name, entry in known.items():
        if entry is not None and name != "enwik8":
            assert read_task(name).split in entry.splits


def test_a_task_that_is_like_another_has_its_own_figures() -> None:
    one, other = read_task("wikitext-2"), read_task("wikitext-103")
    assert (one.kind, one.choices, one.variants) == (other.kind, other.choices, other.variants)
    assert one.paper["perplexity"] != other.paper["perplexity"]
    assert (other.section, other.benchmark, other.known_files) == ("3.1", "wikitext-103", {})
    text8 = read_task("text8")
    assert (list(text8.paper), list(text8.variants)) == (["bits_per_character"], ["stride-32"])


@pytest.mark.parametrize(
    ("name", "task"), [("DPR", "dprd"), ("sst2", "sst-2"), ("cnn-dm", "cnn-dailymail"), ("wsc", "winograd")]
)
def test_a_task_has_other_names(name: str, task: str) -> None:
    assert find_task(name).name == task


def test_a_task_without_a_title_has_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[task]\nkind = 'answer'\ntitle = ''\n")
    assert find_task(str(tmp_path / "mine.toml")).title == "mine"


def test_every_detokenizer_is_used_by_a_task() -> None:
    every = [read_task(name) for name in TASK_NAMES]
    used = {one.values(variant).get("detokenizer", "none") for one in every for variant in ("paper", *one.variants)}
    assert used == set(DETOKENIZERS)


def test_without_the_library_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    registry._load.cache_clear()
    with pytest.raises(WebtextError) as caught:
        parse_tasks(["wmt14-en-fr"], "paper")
    assert str(caught.value) == (
        "--task wmt14-en-fr: a download needs datasets; run: pip install 'webtext-kit[benchmarks]', or download the "
        "file (https://www.statmt.org/wmt14/translation-task.html) and use --task wmt14-en-fr=PATH"
    )


@pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None,
    reason="the datasets library is not installed: pip install '.[benchmarks]'",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_the_real_library_gives_the_examples_of_the_file(
    tmp_path: Path, passages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    registry._load.cache_clear()
    local = Entry(
        name="lambada-openai", title="", dataset="own/local", splits=("test",), license="", homepage="", field="body",
        files=str(passages), format="json",
    )  # fmt: skip
    monkeypatch.setattr(definitions, "find_entry", lambda name: local)
    model = write_model(tmp_path / "model")
    result, examples = run_task("lambada", model, tmp_path / "out")
    expected, rows = run_task(f"lambada:body={passages}", model, tmp_path / "expected")
    assert result["metrics"] == expected["metrics"]
    assert [row["gold"] for row in examples] == [row["gold"] for row in rows]
    assert result["choices"]["text_field"]["value"] == "body"
    assert [(file["path"].rpartition(".")[2], len(file["sha256"])) for file in result["files"]] == [("arrow", 64)]
    # A folder that the library saved is read by its path.
    datasets.load_dataset("json", data_files=str(passages), split="train").save_to_disk(str(tmp_path / "saved"))
    [task] = parse_tasks([f"lambada={tmp_path / 'saved'}"], "paper")
    assert [record.value("body") for record in read_records(task.files)] == [f"another {number}" for number in range(4)]

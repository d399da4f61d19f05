"""What the next try of a stage does after one that failed: every stage, from one table.

A try fails since its input is bad, since it drops everything, or since it is killed when one task is complete. The next
one has the same options and inputs, other options, or other inputs. None needs --overwrite, unless it would lose
finished tasks that a run with the same options can use; then the message names the difference.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_web
from contract_cases import CASES, outcome, stage_names

from pipelines import storage
from pipelines.engine.config import make_config
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError, WebtextError
from pipelines.pipeline import BY_NAME
from pipelines.progress import Silent
from webtext_cli.main import main

pytestmark = pytest.mark.usefixtures("warm_processes", "on_the_web")

_READ_DOCUMENTS = ("filter", "dedup", "remove-wikipedia", "train-bpe", "tokenize", "overlap-index", "search")
# A stage with files of two kinds, of which the second is bad, so that the first task is complete when it is read.
_CAN_READ_BAD_INPUT = ("scrape", "extract", *_READ_DOCUMENTS, "overlap-report")
_CAN_DROP_ALL = ("scrape", "fetch", "extract", "filter", "remove-wikipedia", "train-bpe", "tokenize")
# If one of several files was replaced, the work on the others is used.
_RESUME_WITH_OTHER_FILES = ("scrape", "overlap-report")


class Notes(Silent):
    """Collects the notes that a user would see."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


class Killed(BaseException):
    """Stops a run where a signal would."""


@pytest.fixture(scope="module")
def files(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs that are bad, of which everything is dropped, or that differ from those of the corpus."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = [small_web.words_text(seed, 240) for seed in range(6)]
    urls = [f"http://site{number}.example/{number}" for number in range(6)]
    rows = [{"id": url, "url": url, "text": text} for url, text in zip(urls, texts, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    (folder / "bad.jsonl").write_text('{"body": "a record without a text"}\n')
    (folder / "dropped.jsonl").write_text('{"text": ""}\n{"text": ""}\n')
    wikipedia = [
        {"id": str(number), "url": f"https://en.wikipedia.org/wiki/{number}", "text": texts[0]} for number in range(2)
    ]
    (folder / "wikipedia.jsonl").write_text("".join(json.dumps(row) + "\n" for row in wikipedia))
    (folder / "urls.txt").write_text("http://alpha.com/page-1.html\n")
    (folder / "gone.txt").write_text("http://alpha.com/gone-1.html\nhttp://alpha.com/gone-2.html\n")
    (folder / "comments.json").write_text('{"body": "a comment"}\n' * 20)
    unpopular = {"id": "a1", "url": "http://alpha.com/", "created_utc": 1451606400, "score": 1, "subreddit": "news"}
    (folder / "unpopular.json").write_text(json.dumps(unpopular) + "\n")
    for name, text in (("a", texts[0]), ("empty", "")):
        page = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html><body><p>{text}</p></body></html>"
        headers = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {urls[0]}\r\nContent-Length: {len(page)}"
        record = f"{headers}\r\nContent-Type: application/http;msgtype=response\r\n\r\n{page}\r\n\r\n"
        (folder / f"{name}.warc.gz").write_bytes(gzip.compress(record.encode()))
    content = (folder / "a.warc.gz").read_bytes()
    (folder / "bad.warc.gz").write_bytes(content[: len(content) // 2])
    return folder


def _inputs(corpus: Path, files: Path, name: str, kind: str) -> dict[str, Any]:
    """Return the arguments of a stage for inputs that are `good`, `other`, `bad`, or `dropped` as a whole."""
    read: dict[str, Any] = {parameter: f"{corpus}/{source}" for parameter, source in BY_NAME[name].reads.items()}
    if name == "scrape":
        dumps = sorted(str(path) for path in (corpus / "dumps").iterdir())
        kinds = {
            "bad": [f"{files}/comments.json"],
            "other": dumps[:1],
            "dropped": [f"{files}/unpopular.json"],
        }
        return {"dumps": kinds.get(kind, dumps)}
    if name == "overlap-report":
        sentences = {"bad": files / "bad.jsonl", "other": files / "a.parquet"}.get(kind, corpus / "sentences.jsonl")
        return read | {"benchmarks": [f"sentences={sentences}"]}
    if kind == "good":
        return read
    if name == "fetch":
        return {"links": f"{files}/{'gone' if kind == 'dropped' else 'urls'}.txt"}
    if name == "extract":
        kinds = {"bad": ["a.warc.gz", "bad.warc.gz"], "other": ["a.warc.gz"], "dropped": ["empty.warc.gz"]}
        return {"pages": [f"{files}/{file}" for file in kinds[kind]], "links": None}
    dropped = "wikipedia.jsonl" if name == "remove-wikipedia" else "dropped.jsonl"
    kinds = {"bad": ["a.parquet", "bad.jsonl"], "other": ["a.parquet"], "dropped": [dropped]}
    return read | {BY_NAME[name].main_input or "": [f"{files}/{file}" for file in kinds[kind]]}


@pytest.fixture
def attempt(corpus: Path, files: Path) -> Callable[..., list[str]]:
    """A function that runs a stage and returns its notes."""

    def run(name: str, output: Path, kind: str = "good", *, overwrite: bool = False, **changed: Any) -> list[str]:
        stage, notes = BY_NAME[name], Notes()
        config = make_config(stage.config_type(), {**CASES[name].config, **changed}, {}, str)
        options = RunOptions(progress=notes, overwrite=overwrite, discard_pages=overwrite)
        stage.load()(config, **_inputs(corpus, files, name, kind), output=str(output), options=options)
        return notes.notes

    return run


def _copies(folder: Path) -> Callable[[], Path]:
    """Return a function that copies what a failed run left, so that several next tries start from it."""
    numbers = iter(range(100))

    def copy() -> Path:
        return Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-{next(numbers)}")))

    return copy


def _kill_after_one_task(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    write_entry = OutputFolder.write_entry

    def write_one(folder: OutputFolder, entry: Any) -> None:
        write_entry(folder, entry)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "write_entry", write_one)
        with pytest.raises(Killed):
            run()


@pytest.mark.parametrize("name", _CAN_READ_BAD_INPUT)
def test_after_a_bad_input_the_same_options_work_and_others_if_no_task_was_finished(
    corpus: Path, name: str, tmp_path: Path, attempt: Callable[..., list[str]]
) -> None:
    with pytest.raises(InputError) as first:
        attempt(name, tmp_path / name, "bad")
    copy = _copies(tmp_path / name)
    with pytest.raises(InputError) as second:
        attempt(name, copy(), "bad")
    assert str(second.value) == str(first.value)
    repaired = copy()
    attempt(name, repaired)
    assert outcome(repaired) == outcome(corpus / name)
    changed = CASES[name].changed
    [key] = changed
    if name in ("scrape", "overlap-report"):  # nothing was finished
        attempt(name, copy(), **changed)
        return
    for kind in ("bad", "good"):
        with pytest.raises(ChangedRunError, match=rf"an unfinished run that differs: {key} was .*Use --over"):
            attempt(name, copy(), kind, **changed)
    attempt(name, copy(), overwrite=True, **changed)


def test_a_failed_replacement_stays_and_a_failed_run_that_was_resumed_is_like_any(
    corpus: Path, tmp_path: Path, attempt: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Path(shutil.copytree(corpus / "filter", tmp_path / "done"))
    with pytest.raises(InputError):
        attempt("filter", done, "bad", overwrite=True)
    assert [note for note in attempt("filter", done) if "unfinished replacement of the result" in note]
    assert (done / "_next").exists()

    failed = tmp_path / "failed"
    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "write_entry", lambda *_: (_ for _ in ()).throw(InputError("a rule")))
        with pytest.raises(InputError):
            attempt("filter", failed)
    _kill_after_one_task(monkeypatch, lambda: attempt("filter", failed))
    for kind, options in (("good", CASES["filter"].changed), ("other", {})):
        with pytest.raises(ChangedRunError):
            attempt("filter", failed, kind, **options)


@pytest.mark.parametrize("name", _CAN_DROP_ALL)
def test_after_everything_was_dropped_every_next_try_works(
    corpus: Path, name: str, tmp_path: Path, attempt: Callable[..., list[str]]
) -> None:
    with pytest.raises(WebtextError, match=r"no (documents|pages|links) left: (all|the only)") as first:
        attempt(name, tmp_path / name, "dropped")
    assert "retry if the cause was temporary" in str(first.value)
    copy = _copies(tmp_path / name)
    for options in ({}, CASES[name].changed):
        with pytest.raises(WebtextError) as second:
            attempt(name, copy(), "dropped", **options)
        assert not isinstance(second.value, ChangedRunError)
    other = copy()
    assert not [note for note in attempt(name, other) if "unfinished" in note], "there is no work to speak of"
    assert outcome(other) == outcome(corpus / name)


@pytest.mark.parametrize("name", stage_names())
def test_after_a_kill_the_work_is_resumed_or_the_difference_named(
    corpus: Path, name: str, tmp_path: Path, attempt: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _kill_after_one_task(monkeypatch, lambda: attempt(name, tmp_path / name))
    copy = _copies(tmp_path / name)
    same = copy()
    attempt(name, same)
    assert outcome(same) == outcome(corpus / name)

    (key, value), *_ = CASES[name].changed.items()
    remedy = "Use --overwrite .*to delete its .* and start from the beginning, or choose another --output"
    changed = copy()
    difference = rf"an unfinished run that differs: {key} was .*, is now .*\. {remedy}"
    with pytest.raises(ChangedRunError, match=difference) as refusal:
        attempt(name, changed, **{key: value})
    assert "'rules'" not in str(refusal.value)
    attempt(name, changed, overwrite=True, **{key: value})
    assert read_manifest(str(changed)).identity.config != read_manifest(str(corpus / name)).identity.config

    if name in _RESUME_WITH_OTHER_FILES:
        assert [note for note in attempt(name, copy(), "other") if "resuming an unfinished run: its input" in note]
    elif name != "pretrain":
        with pytest.raises(ChangedRunError, match=rf"an unfinished run that differs: its input .*\. {remedy}"):
            attempt(name, copy(), "other")


_COMMANDS = {
    "evaluate": (["--task", "wikitext-2={corpus}/wiki.txt", "--device", "cpu"], ["--limit", "1"], "limit was null"),
    "generate": (["--max-tokens", "3", "--device", "cpu"], ["--seed", "5"], "seed was 0"),
    "export": ([], [], ""),
}


@pytest.mark.parametrize("name", _COMMANDS)
def test_after_a_killed_command_of_a_model_the_difference_is_named(
    corpus: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "wiki.txt").write_text(small_web.words_text(3, 300))
    options, changed, difference = _COMMANDS[name]
    command = [name, "--model", f"{corpus}/pretrain", *(option.format(corpus=corpus) for option in options)]
    command += ["-o", f"{tmp_path}/result"]
    _kill_after_one_task(monkeypatch, lambda: main(command))
    if changed:
        assert main([*command, *changed]) == 1
        assert f"an unfinished run that differs: {difference}, is now" in capsys.readouterr().err
    assert main(command) == 0


@pytest.mark.parametrize("name", stage_names())
def test_every_file_of_a_result_is_known_to_be_of_the_stage(corpus: Path, name: str) -> None:
    # Of a run that dropped everything no entry is left, and --overwrite keeps files of others.
    stage = __import__(f"pipelines.stages.{BY_NAME[name].function}.stage", fromlist=["STAGE"]).STAGE
    folder = OutputFolder(str(corpus / name), stage.writes)
    names = [name for name in storage.list_folder(folder.path) if not name.startswith(".")]
    assert [name for name in names if not folder._belongs_to_stage(name)] == []

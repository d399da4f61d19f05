"""`webtext search`: its four modes, what it prints, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_index import TEXTS, build_index, document, write_documents

from webtext_cli.main import main

Run = Callable[..., str]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched") / "corpus"
    rows = [document(number, text, title=f"Title {number}") for number, text in enumerate(TEXTS)]
    write_documents(folder, [rows])
    build_index(folder)
    return folder


@pytest.fixture
def run(corpus: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command on the corpus, and returns its output, or with a `code` its error."""

    def call(*arguments: str, code: int = 0, folder: Path = corpus) -> str:
        capsys.readouterr()
        assert main(["search", *arguments, "--corpus", str(folder)]) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    return call


def test_matches_are_printed_with_snippet_and_count(run: Run) -> None:
    assert run('"quick brown"').splitlines() == [
        "http://www.site0.com/page  Title 0",
        f"  {TEXTS[0]}",
        "1 document",
    ]
    assert run("quick", "-n", "2").endswith("\n3 documents, the first 2 shown\n")
    assert run("quick domain:site1.com", "--json").startswith('{"count": 1, "rows": [{"id": "id1", "url": ')
    assert run("nothing") == "0 documents\n"


def test_matches_are_bold_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _stream: True)
    monkeypatch.setenv("TERM", "xterm")
    assert "An evil\\u001b[31m text \\u202e with <b>\x1b[1mquick\x1b[0m</b> markup" in run(
        "quick markup -absent"
    ).replace("\x1b[1mmarkup\x1b[0m", "markup")


def test_a_trace_names_passages_and_documents(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "He wrote: “A LAZY afternoon; the dog slept and the quick cat...”"
    (tmp_path / "answer.txt").write_text(text)
    expected = [
        "10 words, characters 11 to 60, in 1 document",
        f"  {text[11:60]}",
        "    http://www.site1.com/page at 0",
        "1 passage",
    ]
    assert run("--trace", str(tmp_path / "answer.txt")).splitlines() == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    [passage] = json.loads(run("--trace", "-", "--json"))
    assert (passage["words"], passage["documents"]) == (
        10, [{"id": "id1", "url": "http://www.site1.com/page", "start": 0, "end": 50}]
    )  # fmt: skip


def test_an_exact_scan_needs_no_index(run: Run, tmp_path: Path) -> None:
    (tmp_path / "docs.txt").write_text("Some words, and more words.")
    (tmp_path / "new").mkdir()
    assert "1 document" in run("--exact", "words and more", "-i", str(tmp_path / "docs.txt"), folder=tmp_path / "new")
    assert run("--exact", "lazy dog the fox").splitlines()[-1] == "1 document"


def test_an_index_elsewhere_is_searched_as_a_corpus(run: Run, tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text(json.dumps({"id": "a", "text": "one two"}) + "\n")
    index = tmp_path / "index"
    assert "search: done in" in run("--build", "-i", str(tmp_path / "docs.jsonl"), "-o", str(index))
    assert run("two", folder=index).splitlines() == ["a", "  one two", "1 document"]


def test_a_stale_index_is_noted(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_documents(tmp_path, [[document(0, "old words")]])
    build_index(tmp_path)
    write_documents(tmp_path, [[document(0, "new words")]])
    arguments = ["search", "old", "--corpus", str(tmp_path)]
    assert main(arguments) == 0
    assert (
        "note: the documents have changed since the index was built; `webtext search --build`"
        in capsys.readouterr().err
    )
    assert main(["search", "--build", "--corpus", str(tmp_path), "-q"]) == 0
    capsys.readouterr()
    assert main(arguments) == 0
    assert capsys.readouterr() == ("0 documents\n", "")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "no QUERY; name a query, or one of --build, --trace FILE and --exact QUERY"),
        (["--exact"], "no QUERY; name"),
        (["a", "--build"], "--build and QUERY cannot be combined"),
        (["a", "--exact", "--trace", "b"], "--exact and --trace cannot be combined"),
        (["a", "-i", "docs.txt"], "--input has no effect with QUERY; omit it"),
        (["a", "--exact", "-o", "out"], "--output has no effect with --exact"),
        (["--trace", "b", "-i", "docs.txt"], "--input has no effect with --trace"),
        (["a", "-o", "out"], "--output has no effect with QUERY"),
        (["a:b"], "a:b: is not a query (Field does not exist: 'a'); the fields are text, title"),
        (["--exact", "..."], "'...': has no words to search for"),
    ],
)
def test_bad_usage_is_named(run: Run, arguments: list[str], error: str) -> None:
    assert run(*arguments, code=2).startswith(f"error: {error}")


def test_without_an_index_the_command_that_builds_it_is_named(run: Run, tmp_path: Path) -> None:
    write_documents(tmp_path, [[document(0, "words")]])
    expected = f"the corpus has no index; run `webtext search --build --corpus {tmp_path}`"
    assert expected in run("words", code=1, folder=tmp_path)

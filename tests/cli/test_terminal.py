"""A corpus full of escape sequences: none reaches the terminal, and all reach files and pipes."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.errors import InputError
from pipelines.format import escape_controls
from webtext_cli import console
from webtext_cli.console import BarProgress, PlainProgress, QuietProgress, complain
from webtext_cli.main import main

# A color, a window title, a C1 sequence, a backspace, directions, line separators; and what looks like a message.
_ODD = "\x1b[31mred\x1b]0;title\x07\x9b2J\x08\x7f\u202e\u2067\u200f\u061c\u2028\u0085"
_FORGED = f"{_ODD}\rerror: forged"
_FORBIDDEN = re.compile(r"[^\n\t\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\U0010ffff]")
_WORDS = "the river runs past the old mill and the corpus has a language model in each paragraph of every page".split()


def _text(seed: int) -> str:
    return " ".join(_WORDS[(seed * place + place // 7) % len(_WORDS)] + _ODD * (place % 29 == 3) for place in range(90))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd") / f"{_ODD}corpus"
    folder.mkdir()
    documents = [
        {"id": f"{_FORGED}\n{seed}", "url": f"http://{_ODD}.com/{seed}", "title": _FORGED, "text": _text(seed),
         "domain": f"{_ODD}.com", f"own{_FORGED}": _FORGED} for seed in range(1, 13)
    ]  # fmt: skip
    short = {**documents[0], "id": f"short{_FORGED}", "text": f"short {_ODD}"}
    copy = {**documents[0], "id": f"copy{_FORGED}"}
    lines = [json.dumps(document) for document in (*documents, short, copy)]
    (folder / f"documents{_ODD}.jsonl").write_text("\n".join([*lines, f"not json {_ODD}", ""]))
    submissions = [
        {"id": _ODD, "url": f"http://a.com/{seed}", "score": seed, "subreddit": _FORGED, "created_utc": 1420070400}
        for seed in range(6)
    ]
    (folder / f"RS_2015-01{_ODD}").write_text("\n".join([*map(json.dumps, submissions), f"bad {_ODD}", ""]))
    odd = "".join(f"&#{ord(character)};" for character in _FORGED)
    words = " ".join(_WORDS)
    (folder / "page.html").write_text(f"<title>{odd}</title><p>{words}. {words}.</p><p>{odd} {words}.</p>")
    return folder


@pytest.fixture
def both_terminals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Runs a command whose standard output and error are a terminal, and returns what it shows."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _stream: True)
    monkeypatch.setenv("TERM", "dumb")  # no sequences of rich

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(arguments) == code, capsys.readouterr()
        shown = capsys.readouterr()
        assert _FORBIDDEN.findall(shown.out + shown.err.replace("\r", "")) == []
        assert "error: forged" not in [line[:13] for line in (shown.out + shown.err).splitlines()]
        return shown.out + shown.err

    return run


def test_no_command_shows_a_control_character(corpus: Path, both_terminals: Callable[..., str]) -> None:
    run, own = both_terminals, ["--corpus", str(corpus), "--workers", "1"]
    dump, documents = (str(next(corpus.glob(pattern))) for pattern in ("RS*", "documents*"))
    run("scrape", dump, *own, "--shards", "2")
    run("scrape", "--explain", "http://a.com/4", dump, *own, "--shards", "2")
    run("extract", "--explain", str(corpus / "page.html"))
    run("filter", documents, *own, "--profile", "gopher-quality")
    run("filter", documents, "--profile", "gopher-quality", "--dry-run")
    run("filter", documents, "--profile", "gopher-quality", "--explain", f"short{_FORGED}")
    run("dedup", *own)
    run("remove-wikipedia", *own)
    run("train-bpe", *own, "--vocab-size", "300")
    run("tokenize", *own)
    run("tokenize", "--trace", f"{corpus}/tokenize/train-00000.bin:30")
    run("overlap-index", *own)
    examples = corpus / f"examples{_ODD}.jsonl"
    examples.write_text("\n".join(json.dumps({"text": _text(seed)}) for seed in range(1, 4)))
    benchmark = ["--benchmark", f"{_ODD}={examples}", "--sensitivity"]
    run("overlap-report", *own, *benchmark)
    corpus_option = own[:2]
    pytest.importorskip("tantivy", reason="needs the package tantivy: pip install '.[search]'")
    run("search", "--build", *own)
    assert r"\u001b[31mred" in run("search", "river page -absent", *corpus_option)
    run("search", f'"{_FORGED}', *corpus_option, code=2)
    assert "passages" in run("search", "--trace", str(examples), *corpus_option)
    assert r"\u001b[31mred" in run("search", "--exact", "page", "-i", documents)
    assert r"\u001b[31mred" in run("show", "--random", "2", *corpus_option)
    json.loads(run("show", "--random", "1", "--json", *corpus_option))
    run("show", "--dropped", "exact_duplicate", *corpus_option)
    run("show", "--where", f"words > {_FORGED}", *corpus_option, code=2)
    run("explain", f"nothing{_FORGED}\n", *corpus_option, code=1)
    run("stats", *corpus_option, "--by", "domain", "--by", "title")
    for kind in ("table", "csv", "jsonl"):
        run("sql", f'SELECT *, title AS "{_ODD}" FROM documents', *corpus_option, "--format", kind)
    run("sql", f"SELECT {_FORGED}", *corpus_option, code=2)
    run("export-text", *corpus_option)
    run("export-text", *corpus_option, "--format", "txt")
    run("status", *corpus_option, "--verify")
    run("plan", documents)
    run("dedup", f"missing{_FORGED}\n", code=1)
    run("dedup", f"--{_FORGED}\n", code=2)
    run(f"{_FORGED}\n", code=2)


def test_a_pipe_gets_the_text_as_it_is(corpus: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    source = ["-i", str(next(corpus.glob("documents*")))]

    def output(*arguments: str) -> str:
        capfdbinary.readouterr()
        assert main(arguments) == 0
        return capfdbinary.readouterr().out.decode()

    text, id = _text(3), f"{_FORGED}\n3"
    assert output("show", id, *source).endswith(f"\n{text}\n")
    assert f"  title: {_FORGED}\n" in output("show", id, *source)
    query = "SELECT id, text FROM documents"
    lines = output("sql", query, *source, "--json").split("\n")
    assert {"id": id, "text": text} in map(json.loads, lines[:-1])
    assert [id, text] in csv.reader(io.StringIO(output("sql", query, *source, "--format", "csv"), newline=""))
    assert _text(1) in output("export-text", *source, "--format", "txt").split("\n")
    assert "\x1b[31mred" in output("sql", f"SELECT '{_ODD}' AS x", *source)


def test_a_real_terminal_and_a_real_pipe(corpus: Path) -> None:
    source = next(corpus.glob("documents*"))
    command = [sys.executable, "-m", "webtext_cli", "show", f"{_FORGED}\n2", "-i", str(source)]
    assert f"\n{_text(2)}\n".encode() in subprocess.run(command, capture_output=True, check=True).stdout
    terminal, process_end = pty.openpty()
    process = subprocess.Popen(command, stdout=process_end, stderr=process_end, env=os.environ | {"TERM": "dumb"})
    os.close(process_end)
    screen = b""
    with contextlib.suppress(OSError):  # on Linux, when the other end is closed
        while block := os.read(terminal, 65536):
            screen += block
    os.close(terminal)
    assert process.wait() == 0
    shown = screen.decode().replace("\r\n", "\n")
    assert escape_controls(_text(2)) in shown
    assert _FORBIDDEN.findall(shown) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31m\x9b\x7f\x00", r"a\u001b[31m\u009b\u007f\u0000"),
        ("a\r\nb\n\tc\rd\r", "a\r\nb\n\tc\\u000dd\\u000d"),
        ("\u061c\u200e\u200f\u2028\u2029\u202a\u202e", r"\u061c\u200e\u200f\u2028\u2029\u202a\u202e"),
        ("\u2066\u2069\ud800", r"\u2066\u2069\ud800"),
        ("न्\u200dय \u200b\xa0\ufeffé👩\u200d👩", "न्\u200dय \u200b\xa0\ufeffé👩\u200d👩"),
    ],
)
def test_controls_are_visible_and_text_stays(text: str, shown: str) -> None:
    assert escape_controls(text) == shown
    assert escape_controls(shown) == shown
    assert json.loads(f'"{escape_controls(text, one_line=True)}"'.replace("\t", " ")) == text.replace("\t", " ")


def test_a_message_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("error: a\r\nerror: b\x1b[2J")
    QuietProgress().note("a\nnote: b")
    progress = PlainProgress()
    progress.start("a\nb\x1b", 1, "records")
    assert capsys.readouterr().err.splitlines() == [
        r"error: a\u000d\u000aerror: b\u001b[2J",
        r"note: a\u000anote: b",
        r"a\u000ab\u001b ...",
    ]
    assert str(InputError("a\nb\x1b")) == r"a b\u001b"


def test_a_bar_interprets_neither_controls_nor_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _stream: True)
    monkeypatch.setenv("TERM", "dumb")
    progress = BarProgress()
    progress.start("[red]:smile: \x1b[2J\u202e", 1, "records")
    progress.note(f"[bold]:100: {_ODD}")
    progress.advance(1)
    progress.finish(complete=True)
    shown = capsys.readouterr().err
    assert _FORBIDDEN.findall(shown) == []
    assert r"[red]:smile: \u001b[2J\u202e" in shown
    assert f"note: [bold]:100: {escape_controls(_ODD)}" in shown


def test_what_libraries_and_tracebacks_print_is_visible(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print(warnings.formatwarning(_ODD, UserWarning, "a.py", 1, ""))
    assert logging.lastResort is not None
    print(logging.lastResort.format(logging.makeLogRecord({"msg": _ODD})))

    def fail(*_arguments: object) -> None:
        raise RuntimeError(_FORGED)

    monkeypatch.setattr("webtext_cli.commands.queries.CorpusTables", fail, raising=False)
    monkeypatch.setattr("pipelines.corpus.tables.CorpusTables", fail)
    monkeypatch.setenv("WEBTEXT_DEBUG", "1")
    assert main(["show"]) == 1
    shown = capsys.readouterr()
    assert _FORBIDDEN.findall(shown.out + shown.err) == []
    assert shown.err.startswith("Traceback")
    assert shown.err.count(escape_controls(_ODD)) == 2


def test_only_the_console_prints() -> None:
    printing = re.compile(r"(?<![\w.])print\(|\becho\(|\bsecho\(|sys\.std(out|err)\b(?!\.(flush|isatty))|Console\(")
    root = Path(console.__file__).parent.parent
    files = [path for package in ("webtext_cli", "pipelines", "webtext") for path in (root / package).rglob("*.py")]
    found = {str(path.relative_to(root)) for path in files if printing.search(path.read_text())}
    # Besides: text that is escaped, and rules of users that print to standard error instead.
    others = {"pipelines/corpus/export.py", "pipelines/stages/filter/rules.py"}
    assert found == {"webtext_cli/console.py", "webtext_cli/main.py"} | others

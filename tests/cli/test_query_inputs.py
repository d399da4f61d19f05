"""`show`, `stats`, `sql`, `explain`, `status` and `export-text` on what --output named and on files; wrong folders."""

from __future__ import annotations

import gzip
import io
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.corpus.tables import CorpusTables
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import Identity
from pipelines.engine.run import RunOptions
from pipelines.records.document_options import DocumentConfig
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.stage import train_bpe
from webtext_cli.main import main

_ROWS: list[dict[str, Any]] = [
    {"id": "d0", "url": "http://www.a.org/x", "text": "one two three"},
    {"id": "d1", "url": "https://news.bbc.co.uk/b", "text": "four five"},
    {"id": "d2", "url": None, "text": "one two three"},
]
_READING = (["show"], ["stats"], ["sql", "FROM documents"], ["explain", "d0"], ["status"], ["export-text"], ["plan"])
_STAGES = (["fetch"], ["extract"], ["filter"], ["dedup"], ["remove-wikipedia"], ["train-bpe"], ["tokenize"],
           ["pretrain"], ["overlap-index"])  # fmt: skip
_OTHERS = (["build"], ["build", "--dry-run"], ["generate"], ["export"], ["evaluate", "--task", "lambada=x"])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same documents in several formats, and in the output folder of dedup, `unique`."""
    folder = tmp_path_factory.mktemp("written")
    lines = "".join(json.dumps(row) + "\n" for row in _ROWS)
    (folder / "docs.jsonl").write_text(lines)
    (folder / "docs.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.Table.from_pylist(_ROWS), folder / "docs.parquet")
    (folder / "docs.csv").write_text(
        "id,url,text\n" + "".join(f"{','.join(value or '' for value in row.values())}\n" for row in _ROWS)
    )
    dedup(DedupConfig(), documents=str(folder / "docs.jsonl"), output=str(folder / "unique"), options=RunOptions())
    return folder


@pytest.fixture(scope="module")
def vocabulary(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of train-bpe for these documents."""
    folder = tmp_path_factory.mktemp("trained") / "vocabulary"
    config = TrainBpeConfig(vocab_size=260)
    train_bpe(config, documents=str(written / "docs.jsonl"), output=str(folder), options=RunOptions())
    return folder


@pytest.fixture
def files(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a copy of all documents."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.out + captured.err


def test_export_text_counts_on_standard_output_if_it_writes_a_file(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(_run(capsys, "export-text", "docs.jsonl", "-o", "out.txt", "--json")) == {"documents": 3}
    assert main(["export-text", "docs.jsonl", "--json"]) == 0
    captured = capsys.readouterr()
    assert (len(captured.out.splitlines()), json.loads(captured.err)) == (3, {"documents": 3})


def test_a_seed_without_a_random_choice_is_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, "show", "--seed", "7", "-i", "docs.jsonl", code=2)
    assert shown == "error: --seed has no effect without --random; omit it\n"


def test_sql_aligns_numbers_right_and_text_left(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT length(text)::BIGINT AS characters, url FROM documents WHERE url IS NOT NULL ORDER BY id"
    rows = [line for line in _run(capsys, "sql", query, "-i", "docs.jsonl").splitlines() if "//" in line]
    starts = [(row.index(row.split()[0]) + len(row.split()[0]), row.index("http")) for row in rows]
    assert starts[0] == starts[1]


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.jsonl.gz", "docs.parquet", "docs.csv"])
def test_files_are_queried_without_a_corpus(name: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, "show", "--json", "-i", name).splitlines()
    assert [(row["id"], row["text"]) for row in map(json.loads, shown)] == [(row["id"], row["text"]) for row in _ROWS]
    total = json.loads(_run(capsys, "stats", "--json", "-i", name))["total"]
    assert (total["documents"], total["words"]) == (3, 8)
    # Read by each query anew, here twice.
    query = "SELECT a.id AS one, b.id AS other FROM documents a JOIN documents b USING (text) WHERE a.id < b.id"
    assert _run(capsys, "sql", query, "-i", name, "--format", "csv") == "one,other\nd0,d2\n"
    history = json.loads(_run(capsys, "explain", "http://www.a.org/x", "-i", name, "--json"))
    assert [(step["stage"], step["outcome"]) for step in history["steps"]] == [("input", "kept")]
    assert json.loads(_run(capsys, "export-text", "-i", name, "--limit", "1"))["id"] == "d0"


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.parquet", "unique"])
def test_domains_and_words_that_files_lack_are_derived(
    name: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = json.loads(_run(capsys, "stats", "--by", "domain", "--json", "-i", name))["groups"]["domain"]
    words = {row["value"]: row["words"] for row in groups}
    assert (words["a.org"], words["bbc.co.uk"]) == (3, 2)
    assert json.loads(_run(capsys, "show", "--where", "domain = 'bbc.co.uk'", "--json", "-i", name))["id"] == "d1"
    shown = _run(capsys, "show", "--where", "words > 2", "--json", "-i", name).splitlines()
    assert [(row["id"], row["words"]) for row in map(json.loads, shown)][:1] == [("d0", 3)]
    assert len(_run(capsys, "show", "--random", "2", "--json", "-i", name).splitlines()) == 2


def test_words_that_only_some_documents_of_a_stage_lack_are_derived(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": "e0", "url": "https://e.org/", "text": "of extract", "words": 2}]
    schema = pa.schema([("id", pa.string()), ("url", pa.string()), ("text", pa.string()), ("words", pa.int64())])
    pq.write_table(pa.Table.from_pylist(rows, schema), files / "a.parquet")
    _run(capsys, "dedup", "a.parquet", "docs.jsonl", "-o", "mixed")
    query = "SELECT id, words FROM documents ORDER BY id"
    assert _run(capsys, "sql", query, "-i", "mixed", "--format", "csv") == "id,words\nd0,3\nd1,2\ne0,2\n"


def test_the_folder_of_a_stage_is_queried_alone(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (["-i", "unique"], ["--corpus", "unique"]):
        assert len(_run(capsys, "show", "--json", *place).splitlines()) == 2
        assert json.loads(_run(capsys, "stats", "--json", *place))["total"]["documents"] == 2
        assert _run(capsys, "sql", "FROM dropped SELECT stage, id", "--format", "csv", *place) == "stage,id\ndedup,d2\n"
        history = json.loads(_run(capsys, "explain", "d2", "--json", *place, code=1))
        assert [(step["stage"], step["reason"]) for step in history["steps"]] == [("dedup", "exact_duplicate")]
        [stage] = json.loads(_run(capsys, "status", "--json", *place))["stages"]
        assert (stage["stage"], stage["folder"], stage["state"], stage["records_out"]) == ("dedup", "unique", "done", 2)
        assert len(_run(capsys, "export-text", *place).splitlines()) == 2
        assert "dedup" in _run(capsys, "plan", *place)
    message = _run(capsys, "sql", "FROM pages", "-i", "unique", code=2)
    assert "unique: no table pages, which fetch writes; the tables of dedup are clusters" in message


def test_outputs_of_several_stages_are_one_corpus(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["remove-wikipedia", "-i", "unique", "-o", "clean", "--extra-domain", "bbc.co.uk", "-q"]) == 0
    capsys.readouterr()
    history = json.loads(_run(capsys, "explain", "d1", "--json", "-i", "clean", "-i", "unique", code=1))
    assert [step["stage"] for step in history["steps"]] == ["dedup", "remove-wikipedia"]
    stages = json.loads(_run(capsys, "status", "--json", "-i", "unique", "-i", "clean"))["stages"]
    assert [stage["records_out"] for stage in stages] == [2, 1]
    shutil.copytree("unique", "copy")
    assert "copy: is of the same stage as unique" in _run(capsys, "show", "-i", "unique", "-i", "copy", code=2)
    assert _run(capsys, "stats", "unique", "./unique", "--json") == _run(capsys, "stats", "unique", "--json")
    for twice in (["-i", "unique", "-i", "unique"], ["-i", "un*e"]):
        assert len(json.loads(_run(capsys, "status", "--json", *twice))["stages"]) == 1
    assert "cannot be combined with" in _run(capsys, "stats", "-i", "docs.csv", "--corpus", "unique", code=2)


def test_a_url_may_have_no_domain(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "odd.jsonl").write_text('{"id": "o", "url": "no URL", "text": "a"}\n')
    assert json.loads(_run(capsys, "show", "--json", "-i", "odd.jsonl"))["domain"] is None


def test_documents_of_other_fields_and_from_standard_input(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (files / "own.jsonl").write_text('{"key": 7, "body": "a text"}\n')
    own = ("-i", "own.jsonl", "--text-field", "body", "--id-field", "key")
    assert json.loads(_run(capsys, "show", "7", "--json", *own))["text"] == "a text"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((files / "docs.jsonl").read_bytes())))
    assert json.loads(_run(capsys, "stats", "--json", "-i", "-"))["total"]["documents"] == 3


def test_records_that_are_not_documents_are_noted_and_listed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "mixed.jsonl").write_text('{"text": "fine"}\nnot JSON\n{"id": "x", "body": 1}\n')
    assert main(["stats", "-i", "mixed.jsonl"]) == 0
    assert "2 records of the input are not a document (bad_json 1, missing_text 1)" in capsys.readouterr().err
    [row] = map(
        json.loads, _run(capsys, "show", "--dropped", "missing_text", "--json", "-i", "mixed.jsonl").splitlines()
    )
    assert (row["stage"], row["id"], row["text"]) == ("input", "x", None)
    (files / "empty.jsonl").write_text('{"text": ""}\n')
    message = _run(capsys, "stats", "-i", "empty.jsonl", code=1)
    assert "(empty_text 1)\nerror: the input has no documents\n" in message
    (files / "none.jsonl").write_text('{"body": "a text"}\n')
    message = _run(capsys, "stats", "-i", "none.jsonl", code=1)
    assert "none.jsonl: no record has a text in the field 'text'" in message
    assert "Traceback" not in message


def test_the_first_documents_of_a_large_file_are_shown_at_once(files: Path) -> None:
    (files / "large.jsonl").write_text("".join(f'{{"text": "text {number}"}}\n' for number in range(200_000)) + "bad\n")
    notes: list[str] = []
    options = RunOptions()
    options.progress.note = notes.append  # type: ignore[method-assign]
    tables = CorpusTables(["large.jsonl"], DocumentConfig(), options)
    assert [row["text"] for row in tables.rows("SELECT text FROM documents LIMIT 2")] == ["text 0", "text 1"]
    assert notes == []  # the last record was not read
    assert tables.rows("SELECT count(*) AS n FROM documents") == [{"n": 200_000}]
    assert len(notes) == 1


def test_similar_urls_of_own_documents_are_listed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("docs.jsonl", "unique"):
        for near in ("http://a.org/x", "https://www.a.org/x", "http://www.a.org/x/"):
            history = json.loads(_run(capsys, "explain", near, "--json", "-i", place, code=1))
            assert history["similar_urls"] == ["http://www.a.org/x"]
    assert "similar URLs:\n  http://www.a.org/x\n" in _run(capsys, "explain", "http://a.org/x", "-i", "unique", code=1)


def test_a_document_with_a_malformed_url_is_explained(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "odd.jsonl").write_text(json.dumps({"id": "odd", "url": "http://\x1b[31mred]0/", "text": "a"}))
    dedup(DedupConfig(), documents=str(files / "odd.jsonl"), output=str(files / "odd"), options=RunOptions())
    history = json.loads(_run(capsys, "explain", "odd", "--json", "-i", "docs.jsonl", "-i", "odd"))
    assert (history["url"], history["similar_urls"]) == ("http://\x1b[31mred]0/", [])


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("none", "no such folder"),
        ("docs.jsonl", "it is a file"),
        ("empty", "no webtext.toml and no folder of a stage"),
        ("unique", "it is the folder of a stage"),
    ],
)
def test_every_command_says_in_the_same_words_what_is_not_a_corpus(
    folder: str, problem: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "empty").mkdir()
    pytest.importorskip("torch")

    def refusal(command: Sequence[str]) -> str:
        assert main([*command, "--corpus", folder]) == 1, command
        return capsys.readouterr().err

    path = "unique" if folder == "unique" else "PATH"
    takes_input = {refusal(command) for command in (*(_READING if folder != "unique" else ()), *_STAGES)}
    assert takes_input == {
        f"error: {folder}: is not a corpus ({problem}); name another folder with --corpus, or use -i {path}; "
        "`webtext init DIR` creates one\n"
    }
    others = {refusal(command).replace(f", or use --model {path}", "") for command in _OTHERS}
    assert others == {
        f"error: {folder}: is not a corpus ({problem}); name another folder with --corpus; `webtext init DIR` creates "
        "one\n"
    }
    assert not (files / "none").exists()


def test_a_corpus_without_a_finished_stage_says_what_to_run(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "new").mkdir()
    (files / "new" / "webtext.toml").touch()
    queries = [command for command in _READING if command[0] not in ("status", "plan")]
    for remedy in ("run `webtext build --corpus new`", "re-run `webtext dedup --corpus new`, which was interrupted"):
        messages = {_run(capsys, *command, "--corpus", "new", code=1) for command in queries}
        assert messages == {f"error: new: no stage has finished; {remedy}, or name another folder with --corpus\n"}
        OutputFolder("new/dedup").write_header(Identity("dedup", 1, {}, {}))
    [stage] = json.loads(_run(capsys, "status", "--json", "-i", "new/dedup"))["stages"]
    assert (stage["stage"], stage["state"]) == ("dedup", "unfinished")
    assert "docs.csv: is not the folder of a stage" in _run(capsys, "status", "-i", "docs.csv", code=1)
    assert "nowhere: no such file or folder" in _run(capsys, "status", "-i", "nowhere", code=1)


def test_a_stage_creates_the_corpus_that_it_writes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dedup", "-i", "docs.jsonl", "--corpus", "my new", "-q"]) == 0
    capsys.readouterr()
    assert len(_run(capsys, "show", "--json", "--corpus", "my new").splitlines()) == 2
    # A remedy can be pasted.
    message = _run(capsys, "tokenize", "--corpus=my new", code=1)
    assert "run `webtext remove-wikipedia --corpus 'my new'` first" in message


def test_an_input_before_a_stage_has_the_texts_that_it_dropped(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("-i", "docs.jsonl", "-i", "unique")
    [row] = map(json.loads, _run(capsys, "show", "--dropped", "exact_duplicate", "--json", *place).splitlines())
    assert (row["id"], row["text"]) == ("d2", "one two three")
    history = _run(capsys, "explain", "d2", *place, code=1)
    assert "input: kept" in history
    assert "dedup: DROPPED, exact_duplicate" in history
    assert main(["stats", "--json", *place]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["total"]["documents"] == 2
    assert "docs.jsonl: taken as the input of dedup, whose documents are read" in captured.err


def test_an_id_may_begin_like_a_host(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "5.1/About/x.txt", "text": "a"}, {"id": "u", "url": "http://a.com/index.html", "text": "b"}]
    (files / "dots.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert json.loads(_run(capsys, "show", "5.1/About/x.txt", "--json", "-i", "dots.jsonl"))["text"] == "a"
    assert json.loads(_run(capsys, "explain", "5.1/About/x.txt", "--json", "-i", "dots.jsonl"))["is_present"]
    history = json.loads(_run(capsys, "explain", "a.com/index.html", "--json", "-i", "dots.jsonl", code=1))
    assert history["similar_urls"] == ["http://a.com/index.html"]
    assert "does not have it" in _run(capsys, "explain", "x.[1", "-i", "dots.jsonl", code=1)


def test_the_example_in_python_runs(files: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "corpus-commands.md"
    _, _, example = page.read_text().partition("```python\n")
    variables: dict[str, Any] = {}
    exec(example.partition("```")[0], variables)
    assert variables["rows"] == [{"id": row["id"], "words": len(row["text"].split())} for row in _ROWS]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("show nope -i docs.jsonl", "no document has the id nope; `webtext explain -i docs.jsonl nope` says why"),
        ("show 'page 1.html' --corpus unique", "`webtext explain -i unique 'page 1.html'` says why"),
        ("stats vocabulary", "vocabulary: no table documents; the tables of train-bpe are dropped: "
         "`webtext sql -i vocabulary 'FROM dropped'`"),
        ("sql 'FROM clusters' --corpus corpus", "corpus: no table clusters, which dedup writes; the tables of "
         "train-bpe are dropped: `webtext sql 'FROM dropped' --corpus corpus`"),
        ("status -i nope", "nope: no such file or folder"),
        ("export-text -i docs.csv -o docs.csv --overwrite --format txt", "choose another --output"),
        ("tokenize --corpus begun", "begun: is not a corpus (it is the folder of a stage that has not finished)"),
        ("tokenize begun -o t", "begun: dedup has not finished; re-run the command that wrote begun to resume it"),
        ("stats begun", "begun: dedup has not finished; re-run the command that wrote begun to resume it"),
        ("extract texts -o t", "texts need no extraction: `webtext dedup texts` reads them"),
        ("explain pages/a.html -i pages", "`webtext extract pages`; `webtext extract --explain` explains one of them"),
        ("dedup corpus -o t", "corpus/train-bpe: is the output of webtext train-bpe; name it or --corpus corpus"),
        ("overlap-report docs.jsonl -o t --benchmark /x/w.txt", "(write NAME=/x/w.txt for a file)"),
        ("dedup docs.jsonl -o t --id-field nam", "(of 3 records; the first has the fields 'id', 'url', 'text')"),
    ],
)  # fmt: skip
def test_messages_name_a_way_that_works(
    command: str, message: str, files: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(vocabulary, "vocabulary")
    shutil.copytree(vocabulary, "corpus/train-bpe")
    OutputFolder("begun").write_header(Identity("dedup", 1, {}, {}))
    (files / "texts").mkdir()
    (files / "texts" / "a.txt").write_text("a text")
    (files / "pages").mkdir()
    (files / "pages" / "a.html").write_text("<p>a text</p>")
    assert main(shlex.split(command)) in (1, 2)
    assert message in capsys.readouterr().err
    assert (files / "docs.csv").read_text().startswith("id,url,text")

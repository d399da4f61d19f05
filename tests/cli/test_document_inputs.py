"""Documents on the command line: standard input, notes on what is not read, and folders that `datasets` loads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from webtext_cli.commands.dedup import command as dedup
from webtext_cli.commands.queries import export_text
from webtext_cli.commands.remove_wikipedia import command as remove_wikipedia
from webtext_cli.main import main


def _dedup(output: Path, *arguments: str, data: str | bytes | None = None) -> Result:
    return CliRunner().invoke(dedup, ["-o", str(output), "--workers", "1", *arguments], input=data)


def _documents(output: Path) -> list[tuple[str, str]]:
    table = pq.read_table(output / "documents-00000.parquet")
    return list(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        ('{"text": "one"}\n{"text": "two"}\n', [], [("stdin.jsonl:1", "one"), ("stdin.jsonl:2", "two")]),
        ('[{"doc": {"body": "one"}, "key": 7}]', ["--text-field", "doc.body", "--id-field", "key"], [("7", "one")]),
        ("[Intro]\none", [], [("stdin.txt", "[Intro]\none")]),
        ("one\ntwo\n", ["--document", "line"], [("stdin.txt:1", "one"), ("stdin.txt:2", "two")]),
    ],
)
def test_standard_input(tmp_path: Path, data: str, options: list[str], expected: list[tuple[str, str]]) -> None:
    result = _dedup(tmp_path / "out", "-i", "-", *options, data=data)
    assert result.exit_code == 0, result.output
    assert _documents(tmp_path / "out") == expected
    spooled = re.search(r"standard input: \S+ \S+ in (\S+) until the command ends", result.output)
    assert spooled is not None
    assert not Path(spooled[1]).exists()
    again = _dedup(tmp_path / "out", "-i", "-", *options, data=data)
    assert "already complete" in again.output


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "standard input: is empty"), (b"\x1f\x8b\x08", "standard input: contains gzip data")]
)
def test_standard_input_without_documents_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    result = _dedup(tmp_path / "out", "-i", "-", data=data)
    assert result.exit_code == 1
    assert message in str(result.exception or result.output)


def test_files_may_be_arguments(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt")]
    for name in names:
        Path(name).write_text(f"the text of {name}")
    result = _dedup(tmp_path / "out", names[0], "-i", names[2], names[1])
    assert result.exit_code == 0, result.output
    assert [id for id, _ in _documents(tmp_path / "out")] == ["a.txt", "b.txt", "c.txt"]
    exported = CliRunner().invoke(export_text, [names[0], names[1], "-n", "1"])
    assert json.loads(exported.stdout)["id"] == "a.txt"


def test_files_that_are_not_read_are_noted(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("a.txt", "b.docx", "c.pdf", "d.pdf"):
        (tmp_path / "mine" / name).write_text("some text")
    result = _dedup(tmp_path / "out", "-i", str(tmp_path / "mine"))
    assert f"{tmp_path}/mine: 3 files of other types not read: .docx 1, .pdf 2" in result.output


def test_what_is_not_exported_is_noted(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.jsonl").write_text('{"text": "one"}\n{"no": "text"}\nnot JSON\n{"text": "two"}\n')
    (tmp_path / "mine" / "b.docx").write_text("x")
    result = CliRunner().invoke(export_text, ["-i", str(tmp_path / "mine")])
    assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == ["one", "two"]
    assert result.stderr.splitlines() == [
        f"note: {tmp_path}/mine: 1 file of other types not read: .docx 1",
        "note: 2 records of the input are not a document (bad_json 1, missing_text 1)",
        "2 documents written",
    ]


def test_standard_input_is_exported(tmp_path: Path) -> None:
    arguments = ["-i", "-", "-o", str(tmp_path / "a.txt")]
    result = CliRunner().invoke(export_text, arguments, input='[{"text": "one"}, {"text": "two"}]')
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.txt").read_text() == "one\n<|endoftext|>\ntwo\n"


def _corpus(folder: Path) -> tuple[Path, Path]:
    """Return the folders of dedup and remove-wikipedia, run on two documents and a copy."""
    rows = [{"text": text, "url": f"http://{number}.org/"} for number, text in enumerate(("one", "two", "one"))]
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _dedup(folder / "dedup", "-i", str(folder / "a.jsonl")).exit_code == 0
    output = folder / "clean"
    arguments = ["-i", str(folder / "dedup"), "-o", str(output), "--workers", "1"]
    assert CliRunner().invoke(remove_wikipedia, arguments).exit_code == 0
    return folder / "dedup", output


def test_the_data_card_names_the_files_of_documents(tmp_path: Path) -> None:
    for folder, other in zip(_corpus(tmp_path / "one"), _corpus(tmp_path / "two"), strict=True):
        card = (folder / "README.md").read_text()
        assert card == (other / "README.md").read_text()
        _, header, _ = card.split("---\n")
        (config,) = yaml.safe_load(header)["configs"]
        (files,) = config["data_files"]
        assert sorted(path.name for path in folder.glob(files["path"])) == ["documents-00000.parquet"]
        manifest = json.loads((folder / "manifest.json").read_text())
        assert "README.md" in {file["name"] for shard in manifest["shards"] for file in shard["files"]}


def test_datasets_loads_a_folder_of_a_stage(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    for folder in _corpus(tmp_path / "corpus"):
        data = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
        assert list(data) == ["train"]
        assert sorted(data["train"]["text"]) == ["one", "two"]


def test_documents_of_save_to_disk_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    data = datasets.Dataset.from_dict({"text": ["one", "two", "three"]})
    data.select([2, 0]).save_to_disk(str(tmp_path / "data"))
    assert _dedup(tmp_path / "out", "-i", str(tmp_path / "data")).exit_code == 0
    assert [text for _, text in _documents(tmp_path / "out")] == ["three", "one"]
    datasets.DatasetDict(train=data).save_to_disk(str(tmp_path / "splits"))
    assert _dedup(tmp_path / "two", "-i", str(tmp_path / "splits")).exit_code == 0
    assert [text for _, text in _documents(tmp_path / "two")] == ["one", "two", "three"]


@pytest.mark.parametrize("stage", ["train-bpe", "tokenize", "overlap-index"])
def test_an_unfinished_stage_is_named_with_its_command_and_a_way_around_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    corpus = tmp_path / "my corpus"
    (corpus / "remove-wikipedia" / "_journal").mkdir(parents=True)
    (corpus / "dedup").mkdir()
    (corpus / "dedup" / "a.txt").write_text("one text")
    assert main([stage, "--corpus", str(corpus)]) == 1
    assert capsys.readouterr().err == (
        f"error: {corpus}/remove-wikipedia: remove-wikipedia has not finished; re-run `webtext remove-wikipedia "
        f"--corpus '{corpus}'` to resume it, or name your files as arguments, or omit the stage: "
        f'skip = ["remove-wikipedia"] below [build] in {corpus}/webtext.toml\n'
    )
    (corpus / "webtext.toml").write_text('[build]\nskip = ["remove-wikipedia"]\n')
    main([stage, "--corpus", str(corpus)])
    assert "remove-wikipedia" not in capsys.readouterr().err


def test_a_corpus_of_own_pages_without_urls_gets_a_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "The river rose again in the night, and the town went to bed late. " * 20
    (tmp_path / "documents.jsonl").write_text(json.dumps({"text": text}) + "\n")
    assert main(["remove-wikipedia", str(tmp_path / "documents.jsonl"), "--corpus", str(tmp_path)]) == 0
    assert "note: documents without a URL: 1 of 1" in capsys.readouterr().err
    assert main(["train-bpe", "--corpus", str(tmp_path), "--vocab-size", "300", "--count-only"]) == 0
